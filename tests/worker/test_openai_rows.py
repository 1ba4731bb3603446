"""The recipe openai: each body brings its own sampling, format and number of answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from db.specs import JobSpec
from engine.request import Request
from tests.worker.factories import Office
from tests.worker.fakes import FakeTokenizer
from worker.openai_rows import OpenAIRowMaker, seed_of
from worker.recipes.openai import OpenAIRecipe

CHAT = {"kind": "openai"}
COMPLETIONS = {"kind": "openai", "endpoint": "/v1/completions"}


def chat(text: str, **options: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": text}], **options}


def spec(source: Path, recipe: dict[str, Any] = CHAT) -> JobSpec:
    return JobSpec.model_validate({"input": str(source), "model": "fake", "recipe": recipe})


def run(office: Office, folder: Path, bodies: list[Any], recipe: dict[str, Any] = CHAT) -> list[dict[str, Any]]:
    source = folder / "in.parquet"
    texts = [body if isinstance(body, str) else json.dumps(body) for body in bodies]
    pq.write_table(pa.table({"custom_id": [f"r{i}" for i in range(len(texts))], "body": texts}), source)
    office.submit(spec(source, recipe), folder / "out")
    office.work()
    rows: list[dict[str, Any]] = pq.read_table(folder / "out" / "part-00000.parquet").to_pylist()
    assert [row["body"] for row in rows] == texts
    return rows


def test_rows_have_options_of_their_own(office: Office, tmp_path: Path) -> None:
    schema = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}}}
    bodies = [
        chat("one"),
        chat("two", max_tokens=2),
        chat("three", n=3, seed=5),
        chat('{"a": 1}', response_format=schema),
        chat("[1]", response_format={"type": "json_object"}),
        chat('{"a": 1}', response_format={"type": "json_object"}, max_tokens=3),
        chat("x" * 5000),
        chat("seven", max_tokens=4090),
        chat("eight", tools=[]),
        "{",
        chat("ten", logprobs=True, top_logprobs=1),
    ]
    rows = run(office, tmp_path, bodies)
    assert [row["output"] for row in rows] == [
        "ONE", "TW", "THREE", '{"a": 1}', None, '{"a', None, None, None, None, "TEN"
    ]  # fmt: skip
    codes = [row["error"] and row["error"]["code"] for row in rows]
    refused = "invalid_request"
    assert codes == [
        None, None, None, None, "invalid_output", None, "too_long", "too_long", refused, refused, None
    ]  # fmt: skip
    assert rows[8]["error"]["message"] == "'tools' is not supported."
    assert rows[1]["choices"] == [{"text": "TW", "finish_reason": "length", "logprobs": None}]
    assert [choice["text"] for choice in rows[2]["choices"]] == ["THREE"] * 3
    assert (rows[2]["prompt_tokens"], rows[2]["output_tokens"]) == (8, 15)
    assert (rows[5]["choices"][0]["finish_reason"], rows[5]["finish_reason"]) == ("length", "length")
    assert [entry["token"] for entry in json.loads(rows[10]["choices"][0]["logprobs"])] == ["T", "E", "N"]
    assert (office.job().rows_succeeded, office.job().rows_failed) == (6, 5)


def test_completions_take_text_or_tokens(office: Office, tmp_path: Path) -> None:
    bodies = [{"model": "m", "prompt": "abc"}, {"model": "m", "prompt": [100, 101]}, {"model": "m", "prompt": "a" * 20}]
    rows = run(office, tmp_path, bodies, COMPLETIONS)
    assert [row["output"] for row in rows] == ["ABC", "DE", "A" * 16]
    assert rows[2]["finish_reason"] == "length"


def maker() -> OpenAIRowMaker:
    job = spec(Path("in"))
    recipe = OpenAIRecipe(job.recipe)  # type: ignore[arg-type]
    tokenizer: Any = FakeTokenizer()
    return OpenAIRowMaker(job, recipe, tokenizer, max_model_len=100, max_prompt_bytes=1000, group="job")


def requests(body: dict[str, Any], index: int = 4) -> tuple[Request, ...]:
    text = json.dumps(body)
    return maker().asking(index, {"body": text}, text).requests


def test_parameters_reach_the_engine() -> None:
    (request,) = requests(
        chat("a", temperature=0.5, top_p=0, presence_penalty=1, frequency_penalty=-1, stop="x", seed=-1, user="u")
    )
    sampling = request.sampling
    assert (sampling.temperature, sampling.top_p, sampling.stop) == (0.5, 1e-9, ("x",))
    assert (sampling.presence_penalty, sampling.frequency_penalty, sampling.seed) == (1.0, -1.0, 2**63 - 1)
    assert (request.id, sampling.max_tokens, sampling.logprobs) == (4, 96, None)  # The room that is left.
    (plain,) = requests(chat("a", max_completion_tokens=7))
    assert (plain.sampling.temperature, plain.sampling.seed, plain.sampling.max_tokens) == (1.0, None, 7)


def test_answers_of_a_seed_differ_and_repeat() -> None:
    found = [[request.sampling.seed for request in requests(chat("a", n=4, seed=9), index)] for index in (1, 2)]
    assert found[0] == found[1]  # The request's own seed, wherever it stands.
    assert found[0][0] == 9
    assert len(set(found[0])) == 4
    assert [request.id for request in requests(chat("a", n=2), 3)] == [(3, 0), (3, 1)]
    assert seed_of(None, 1) is None


@pytest.mark.parametrize("wrong", [{"sampling": {"temperature": 1.0}}, {"on_long": "truncate_head"}])
def test_a_job_does_not_say_what_its_rows_say(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="recipe openai"):
        JobSpec.model_validate({"input": "in", "model": "m", "recipe": CHAT, **wrong})
