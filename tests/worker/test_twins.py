"""Twins and Results: what is computed once, what is never taken for the same, and a cache file that cannot hurt."""

from __future__ import annotations

import dataclasses
import json
import os
import sqlite3
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from db.errors import ModelMissing
from db.settings import Settings
from engine.format import Format
from engine.loading import fingerprint
from engine.request import FinishReason, Output, Request, SamplingParams, TokenLogprobs
from tests.worker.factories import Office, spec_of, write_texts
from tests.worker.fakes import FakeModel
from worker.models import earlier_results, numerics, salt
from worker.results import FRESH, Results
from worker.runner import Runner
from worker.twins import Twins, key_of

SALT = b"model"


@pytest.mark.parametrize(("reuse", "reused"), [(True, 80), (False, 0)])
def test_equal_rows_of_a_job_have_equal_answers_in_their_places(
    office: Office, tmp_path: Path, reuse: bool, reused: int
) -> None:
    texts = [f"row {i // 5}" for i in range(100)]
    source, out = write_texts(tmp_path / "in.parquet", texts), tmp_path / "out"
    office.submit(spec_of(source, reuse=reuse), out)
    office.work()
    assert office.job().rows_succeeded == 100
    table = pq.read_table(out / "part-00000.parquet")
    assert table["output"].to_pylist() == [text.upper() for text in texts]
    counts = json.loads((out / "_manifest.json").read_text())["engine"]
    # Without a file of results, a row that comes after its twin has ended is computed again.
    assert counts["rows_reused"] <= reused
    assert (counts["rows_reused"] > 0) is reuse


def test_what_decides_answers_beside_the_request_tells_them_apart(tmp_path: Path) -> None:
    kinds = [{}, {"engine_dtype": "int8"}, {"engine_kv_dtype": "bf16"}, {"engine_device": "cuda:1"}]
    assert len({numerics(Settings(home=tmp_path, **kind)) for kind in kinds}) == len(kinds)  # type: ignore[arg-type]


def test_what_an_earlier_model_answered_is_not_a_changed_ones(tmp_path: Path) -> None:
    """Nor is it where the change lies between the places that the fingerprint reads."""
    settings = Settings(home=tmp_path)
    settings.models.mkdir(parents=True)
    weights = settings.models / "m.gguf"
    with weights.open("wb") as file:
        file.truncate(50 << 20)
    os.utime(weights, (0, 0))  # or the change could come within the clock's tick
    before = fingerprint(weights)

    def reused() -> list[bool]:
        runner = Runner(
            lambda name: FakeModel(fingerprint=fingerprint(weights)),  # type: ignore[arg-type,return-value]
            results=Results(tmp_path / "results"),
            salt=lambda name: salt(name, settings),
        )
        try:
            with runner.use(str(weights), lambda: False) as model:
                requests = iter([Request(0, tuple(b"row"), SamplingParams(temperature=0))])
                return [each.reused for each in model.run(requests, lambda: False, "job", reuse="t")]
        finally:
            runner.close()

    assert [reused(), reused()] == [[False], [True]]
    with weights.open("r+b") as file:
        file.seek((20 << 20) + 420_000)
        file.write(b"\1" * 200_000)
    assert fingerprint(weights) == before
    assert [reused(), reused()] == [[False], [True]]


def test_models_without_files_have_a_salt_too(tmp_path: Path) -> None:
    assert salt("fake", Settings(home=tmp_path, engine_factory="other:build"))
    with pytest.raises(ModelMissing):
        salt("fake", Settings(home=tmp_path))


def test_results_lie_in_the_home_folder_or_nowhere(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path)
    kept = earlier_results(settings)
    kept.put(b"k", output("a", 1))
    kept.close()
    assert settings.results.is_file()
    again = earlier_results(settings)
    assert again.get(b"k") is not None
    for off in ({"results_bytes": 0}, {"engine_factory": "other:build"}):
        assert earlier_results(Settings(home=tmp_path, **off)).get(b"k") is None  # type: ignore[arg-type]


def output(request_id: object, *tokens: int, reason: FinishReason = FinishReason.STOP) -> Output:
    return Output(request_id, tokens, reason, 3, 0, len(tokens))  # type: ignore[arg-type]


def twins(path: Path | None = None) -> Twins:
    return Twins(Results(path), SALT)


def test_the_first_is_computed_and_the_others_wait_for_it() -> None:
    both = twins()
    assert both.find(Request("a", (1, 2)), "t") is None
    assert both.find(Request("b", (1, 2)), "t") == []
    assert both.find(Request("c", (1, 2, 3)), "t") is None
    made = both.settle(output("a", 7, 8))
    assert [(each.id, each.tokens, each.reused) for each in made] == [("a", (7, 8), False), ("b", (7, 8), True)]
    assert both.settle(output("c", 9)) == [output("c", 9)]
    assert both.find(Request("d", (1, 2)), "t") is None, "nothing is kept without a file"


def test_what_one_tenant_asked_another_is_not_told(tmp_path: Path) -> None:
    both = twins(tmp_path / "results")
    assert both.find(Request("a", (1, 2)), "acme") is None
    assert both.find(Request("b", (1, 2)), "bolt") is None, "computed, and not waiting for the other's"
    assert [each.id for each in both.settle(output("a", 7))] == ["a"]
    assert [each.id for each in both.settle(output("b", 7))] == ["b"]
    assert [each.reused for each in both.find(Request("c", (1, 2)), "acme") or []] == [True]
    assert both.find(Request("d", (1, 2)), "coil") is None


def test_answers_outlive_the_process(tmp_path: Path) -> None:
    logprobs = (TokenLogprobs(7, -0.1, ((7, -0.1), (8, -2.5))),)
    first = Results(tmp_path / "deep" / "results")
    one = Twins(first, SALT)
    assert one.find(Request("a", (1,)), "t") is None
    one.settle(dataclasses.replace(output("a", 7), logprobs=logprobs, choice_logprobs=(-0.25, -1e-300), stopped_by=2))
    assert one.find(Request("b", (1,)), "t") == [
        dataclasses.replace(
            output("b", 7),
            logprobs=logprobs,
            choice_logprobs=(-0.25, -1e-300),
            stopped_by=2,
            reused=True,
            num_cached_tokens=3,
        )
    ]
    first.close()
    again = twins(tmp_path / "deep" / "results")
    found = again.find(Request("c", (1,)), "t")
    assert found is not None
    assert (found[0].id, found[0].tokens, found[0].logprobs) == ("c", (7,), logprobs)
    assert Twins(Results(tmp_path / "deep" / "results"), b"another model").find(Request("c", (1,)), "t") is None


@pytest.mark.parametrize("reason", [FinishReason.CANCELLED, FinishReason.ERROR])
def test_what_did_not_come_to_its_end_is_not_kept(tmp_path: Path, reason: FinishReason) -> None:
    both = twins(tmp_path / "results")
    both.find(Request("a", (1,)), "t")
    both.find(Request("b", (1,)), "t")
    assert [each.finish_reason for each in both.settle(output("a", reason=reason))] == [reason, reason]
    assert both.find(Request("c", (1,)), "t") is None


PLAIN = Request("x", (1, 2, 3))
OTHERS = [
    dataclasses.replace(PLAIN, prompt=(1, 2)),
    dataclasses.replace(PLAIN, prompt=(1, 2, 4)),
    dataclasses.replace(PLAIN, sampling=SamplingParams(max_tokens=9)),
    dataclasses.replace(PLAIN, sampling=SamplingParams(stop=("a",))),
    dataclasses.replace(PLAIN, sampling=SamplingParams(temperature=1.0, seed=1)),
    dataclasses.replace(PLAIN, sampling=SamplingParams(temperature=1.0, seed=2)),
    dataclasses.replace(PLAIN, format=Format("json_object")),
    dataclasses.replace(PLAIN, format=Format("regex", "a")),
    dataclasses.replace(PLAIN, format=Format("regex", "b")),
    dataclasses.replace(PLAIN, choices=((1,), (2,))),
    dataclasses.replace(PLAIN, choices=((1, 2),)),
    dataclasses.replace(PLAIN, choices=((1,), (2,)), choice_margin=2.0),
    dataclasses.replace(PLAIN, prompt=(1, 2, 3, 1), choices=((2,),)),
]


def test_whatever_decides_the_answer_is_in_the_key() -> None:
    keys = [key_of(each, SALT) for each in [PLAIN, *OTHERS]]
    assert len(set(keys)) == len(keys)
    assert None not in keys
    assert key_of(PLAIN, b"other") not in keys
    assert key_of(dataclasses.replace(PLAIN, id="y", group="g"), SALT) == keys[0]


def test_chance_is_never_shared() -> None:
    drawn = Request("a", (1,), SamplingParams(temperature=0.5))
    assert key_of(drawn, SALT) is None
    both = twins()
    assert both.find(drawn, "t") is None
    assert both.find(dataclasses.replace(drawn, id="b"), "t") is None
    assert both.settle(output("a", 1)) == [output("a", 1)]


def test_what_others_wait_for_is_computed_to_its_end() -> None:
    both = twins()
    both.find(Request("a", (1,)), "t")
    both.find(Request("b", (1,)), "t")
    both.find(Request("c", (1,)), "t")
    assert both.drop("c"), "it was only waiting"
    assert not both.drop("a"), "b still waits for it"
    assert [each.id for each in both.settle(output("a", 5))] == ["a", "b"]
    both.find(Request("d", (1,)), "t")
    assert both.drop("d")
    assert both.find(Request("e", (1,)), "t") is None


def test_a_damaged_file_costs_time_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "results"
    path.write_bytes(b"not a database" * 100)
    both = twins(path)
    assert both.find(Request("a", (1,)), "t") is None
    assert both.settle(output("a", 5)) == [output("a", 5)]
    good = tmp_path / "good"
    kept = Results(good)
    kept.put(b"k", output("a", 1))
    kept.flush()
    with sqlite3.connect(good) as database:
        database.execute("update results set answer = '{}'")
    assert kept.get(b"k") is None
    assert Results(good).get(b"k") is None


def test_old_answers_go_and_the_file_stays_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "results"
    kept = Results(path, max_bytes=200_000)
    kept.put(b"old", output("a", 1))
    kept.flush()
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 40 * 86_400)
    assert Results(path).get(b"old") is None, "not used for 40 days"
    for number in range(40 * FRESH):
        kept.put(number.to_bytes(16, "big"), output("a", *range(20)))
    kept.close()
    reopened = Results(path, max_bytes=200_000)
    assert reopened.get((40 * FRESH - 1).to_bytes(16, "big")) is not None
    assert reopened.get((0).to_bytes(16, "big")) is None
    with sqlite3.connect(path) as database:
        (count,) = database.execute("select count(*) from results").fetchone()
    assert 500 < count < 3 * FRESH + 1500
