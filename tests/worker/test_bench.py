"""The sample workload of `nightmill bench`, on an engine with a model of a few lines."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from db import datasets
from db.errors import InvalidDataset, InvalidJob
from db.settings import Settings
from db.specs import JobSpec
from engine import Engine, EngineConfig, Request, SamplingParams
from engine.clock import PARTS
from tests.engine.fakes import HashModel
from tests.worker.fakes import FakeTokenizer
from worker import samples
from worker.bench import WORDS_PER_ROW, NoRowFits, Reader, measure, named, rows_of, run, sample
from worker.plans import plan


@pytest.fixture
def model() -> Any:
    return model_of(num_blocks=2000)


def model_of(num_blocks: int) -> Any:
    config = EngineConfig(max_sequences=4, num_blocks=num_blocks, token_budget=512, num_threads=1)
    engine = Engine(HashModel(vocab_size=300), config, eos_token_ids=frozenset())
    return SimpleNamespace(engine=engine, tokenizer=FakeTokenizer())


def test_the_parts_add_up(model: Any) -> None:
    measure(model, sample(model, 2, 3, salt=1))
    measured = measure(model, sample(model, 6, 3, salt=2))
    assert (measured.rows, measured.output_tokens) == (6, 18)
    prompts = [request.prompt for request in sample(model, 6, 3, salt=2)]
    assert measured.prompt_tokens == sum(map(len, prompts))
    assert 0 < measured.cached_tokens < measured.prompt_tokens  # the question is the same in all
    assert set(measured.parts) == {*PARTS, "tokenise", "detokenise", "other"}
    assert sum(measured.parts.values()) == pytest.approx(measured.seconds)
    assert min(measured.parts.values()) >= 0
    assert measured.host_share == pytest.approx(1 - measured.parts["model"] / measured.seconds)
    assert measured.steps >= 6  # four at a time, three tokens each
    assert 1 <= measured.occupancy <= 4
    assert 0 < measured.latency["p50"] <= measured.latency["p90"] <= measured.latency["p99"] <= measured.seconds


def test_rows_that_do_not_fit_are_not_counted() -> None:
    """Neither they, nor their tokens, nor that they took no time."""
    sampling, small = SamplingParams(max_tokens=4, ignore_eos=True), model_of(num_blocks=10)
    short, long = (tuple(range(length)) for length in (20, 2000))
    requests = [Request((row, 0), long if row % 2 else short, sampling) for row in range(6)]
    half = Request((6, 0), short, sampling), Request((6, 1), long, sampling)
    measured = measure(small, [*requests, *half])
    assert (measured.rows, measured.refused) == (3, 4)
    assert measured.refusal is not None
    assert "exceed the whole cache" in measured.refusal
    assert (measured.prompt_tokens, measured.output_tokens) == (4 * 20, 4 * 4)
    assert measured.latency["p50"] > 0
    none = measure(small, sample(small, 3, 4))
    assert (none.rows, none.refused, none.prompt_tokens, none.steps, none.latency["p99"]) == (0, 3, 0, 0, 0.0)


def test_settings_in_which_no_row_fits_have_no_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worker.bench.load_model", lambda name, settings: model_of(num_blocks=10))
    with pytest.raises(NoRowFits, match=r"^no row fits: .* exceed the whole cache"):
        run(None, 6, 4, Settings())


def test_the_sample_is_repeatable(model: Any) -> None:
    first, second, other = (list(sample(model, 3, 5, salt=salt)) for salt in (7, 7, 8))
    assert first == second
    assert len({request.prompt for request in [*first, *other]}) == 6
    text = FakeTokenizer().decode(first[0].prompt)
    assert len(text.partition("\n\n")[2].split()) == WORDS_PER_ROW
    assert all(request.sampling.ignore_eos and request.sampling.max_tokens == 5 for request in first)


def job(folder: Path, texts: list[str], **changes: Any) -> JobSpec:
    pq.write_table(pa.table({"text": texts}), folder / "in.parquet")
    recipe = {"kind": "generate", "template": "Say: {{ text }}", "columns": ["text"]}
    values = {"input": str(folder / "in.parquet"), "model": "m", "recipe": recipe, "sampling": {"max_tokens": 4}}
    return JobSpec.model_validate(values | changes)


def test_rows_of_a_job(model: Any, tmp_path: Path) -> None:
    """Short and long ones, each once, as the job's own requests; twice the same."""
    texts = [f"{row} " + "word " * (row % 20) for row in range(200)]
    settings = Settings(home=tmp_path / "home")
    rows = rows_of(job(tmp_path, [*texts, *texts]), 40, model, settings)
    assert len(rows) == 40
    assert len({request.prompt for (request,) in rows}) == 40
    lengths = sorted(len(request.prompt) for (request,) in rows)
    assert lengths[0] + 60 < lengths[-1]
    assert all(request.sampling.max_tokens == 4 for (request,) in rows)
    assert rows == rows_of(job(tmp_path, [*texts, *texts]), 40, model, settings)
    assert len(rows_of(job(tmp_path, texts[:3]), 40, model, settings)) == 3
    assert len(rows_of(job(tmp_path, texts, max_rows=7), 40, model, settings)) == 7


def test_rows_are_measured_without_what_warming_up_left_in_the_cache(model: Any, tmp_path: Path) -> None:
    rows = rows_of(job(tmp_path, [f"a text that goes on and on, {n}" for n in range(5)]), 5, model, Settings())
    both = [measure(model, named(rows, owner)) for owner in ("warm", "bench")]
    assert [each.rows for each in both] == [5, 5]
    assert both[0].cached_tokens == both[1].cached_tokens


@pytest.mark.parametrize("calibration", ["batch", "contextual"])
def test_rows_of_a_job_that_learns_before_its_first_row(model: Any, tmp_path: Path, calibration: str) -> None:
    """Its choices are pruned as in the job; what that takes is not counted, and makes no row faster."""
    recipe = {"kind": "label", "labels": ["good", "bad"], "calibration": calibration}
    texts = [f"text {row} is {'good' if row % 3 else 'bad'}" for row in range(40)]
    spec, settings = job(tmp_path, texts, recipe=recipe, sampling={}), Settings(home=tmp_path / "home")
    rows = rows_of(spec, 12, model, settings)
    steps = model.engine.stats().steps
    assert steps > 0
    dataset = datasets.inspect(tmp_path / "in.parquet")
    opened = Reader(model.tokenizer, model.engine.max_model_len)
    first = plan(spec, opened, settings, dataset.schema, {}, "j", "other")
    learnt = samples.learn(dataset, 40, first, model_of(num_blocks=2000).engine.generate)
    margin = plan(spec, opened, settings, dataset.schema, learnt, "j", "other").recipe.choice_margin
    assert margin is not None
    assert {request.choice_margin for (request,) in rows} == {margin}
    new = measure(model_of(num_blocks=2000), named(rows, "bench"))
    measured = measure(model, named(rows, "bench"))
    assert (measured.rows, measured.steps, measured.cached_tokens) == (12, new.steps, new.cached_tokens)


def test_a_job_without_a_row_to_ask(model: Any, tmp_path: Path) -> None:
    with pytest.raises(InvalidJob, match="can be asked"):
        rows_of(job(tmp_path, []), 8, model, Settings())
    recipe = {"kind": "generate", "template": "{{ body }}", "columns": ["body"]}
    with pytest.raises(InvalidDataset, match="body"):
        rows_of(job(tmp_path, ["x"], recipe=recipe), 8, model, Settings())
