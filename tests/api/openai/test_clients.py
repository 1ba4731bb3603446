"""The published client, unmodified, against a server and a worker process: polling, pages, retries, errors."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import openai
import pytest
from pydantic import BaseModel

from tests.api.openai.rig import chat, eventually, jsonl

ENDED = ("completed", "failed", "expired", "cancelled")


@pytest.fixture
def url(service_url: str) -> str:
    return f"{service_url}/v1"


@pytest.fixture
def client(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=url, api_key="none") as made:
        yield made


def wait(client: openai.OpenAI, batch_id: str) -> openai.types.Batch:
    found: openai.types.Batch = eventually(
        lambda: (now := client.batches.retrieve(batch_id)).status in ENDED and now, "the batch ends"
    )
    return found


def test_the_published_example(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The code of the Batch API guide as it is published, but for the base URL and the key."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "batchinput.jsonl").write_text(
        '{"custom_id": "request-1", "method": "POST", "url": "/v1/chat/completions", "body": {"model": '
        '"gpt-3.5-turbo-0125", "messages": [{"role": "system", "content": "You are a helpful assistant."},{"role": '
        '"user", "content": "Hello world!"}],"max_tokens": 1000}}\n'
        '{"custom_id": "request-2", "method": "POST", "url": "/v1/chat/completions", "body": {"model": '
        '"gpt-3.5-turbo-0125", "messages": [{"role": "system", "content": "You are an unhelpful assistant."},{"role": '
        '"user", "content": "Hello world!"}],"max_tokens": 1000}}\n'
    )
    monkeypatch.setenv("OPENAI_BASE_URL", url)
    monkeypatch.setenv("OPENAI_API_KEY", "none")

    from openai import OpenAI

    client = OpenAI()

    with open("batchinput.jsonl", "rb") as opened:
        batch_input_file = client.files.create(file=opened, purpose="batch")

    batch_input_file_id = batch_input_file.id
    created = client.batches.create(
        input_file_id=batch_input_file_id,
        endpoint="/v1/chat/completions",
        completion_window="24h",
        metadata={"description": "nightly eval job"},
    )
    batch = client.batches.retrieve(created.id)
    while batch.status not in ENDED:
        time.sleep(0.1)
        batch = client.batches.retrieve(created.id)
    assert batch.status == "completed"
    assert batch.output_file_id is not None
    file_response = client.files.content(batch.output_file_id)
    lines = [json.loads(line) for line in file_response.text.splitlines()]
    assert [line["custom_id"] for line in lines] == ["request-1", "request-2"]
    assert lines[1]["response"]["body"]["choices"][0]["message"]["content"] == "HELLO WORLD!"
    assert created.id in [each.id for each in client.batches.list(limit=10)]
    client.close()


def test_polling_and_pages(client: openai.OpenAI) -> None:
    sent = [client.files.create(file=(f"{i}.jsonl", jsonl([chat("a", "x")])), purpose="batch") for i in range(3)]
    assert client.files.wait_for_processing(sent[0].id, poll_interval=0.1).status == "processed"
    listed = [each.id for each in client.files.list(limit=1, order="desc", purpose="batch")]
    assert listed[:3] == [each.id for each in reversed(sent)]
    created = [
        client.batches.create(input_file_id=each.id, endpoint="/v1/chat/completions", completion_window="24h")
        for each in sent
    ]
    assert [each.id for each in client.batches.list(limit=1)][:3] == [each.id for each in reversed(created)]
    done = [wait(client, each.id) for each in created]
    assert {each.status for each in done} == {"completed"}
    assert client.files.delete(sent[0].id).deleted
    with pytest.raises(openai.NotFoundError, match="No file found"):
        client.files.retrieve(sent[0].id)


def test_an_upload_in_chunks(client: openai.OpenAI) -> None:
    content = jsonl([chat(f"r{i}", "x" * 50) for i in range(20)])
    upload = client.uploads.upload_file_chunked(
        file=content, filename="in.jsonl", bytes=len(content), mime_type="application/jsonl", purpose="batch",
        part_size=700,
    )  # fmt: skip
    assert (upload.status, upload.file is not None) == ("completed", True)
    assert upload.file is not None
    assert client.files.content(upload.file.id).content == content


def test_errors_are_the_clients_own(client: openai.OpenAI, url: str) -> None:
    with pytest.raises(openai.NotFoundError, match="No batch found with id 'batch_x'") as missing:
        client.batches.retrieve("batch_x")
    assert missing.value.request_id is not None
    with pytest.raises(openai.BadRequestError) as wrong:
        client.batches.create(input_file_id="f", endpoint="/v1/embeddings", completion_window="24h")
    assert (wrong.value.param, wrong.value.type) == ("endpoint", "invalid_request_error")
    with pytest.raises(openai.BadRequestError, match="not supported"):
        client.embeddings.create(model="fake", input="x")
    with pytest.raises(openai.BadRequestError, match="Streaming is not supported"):
        client.chat.completions.create(model="fake", messages=[{"role": "user", "content": "x"}], stream=True)


def test_a_cancel_that_cannot_be_is_sent_once(client: openai.OpenAI) -> None:
    file = client.files.create(file=("a.jsonl", jsonl([chat("a", "x")])), purpose="batch")
    batch = client.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")
    wait(client, batch.id)
    began = time.monotonic()
    with pytest.raises(openai.ConflictError, match="Cannot cancel a batch with status 'completed'") as refused:
        client.batches.cancel(batch.id)
    assert time.monotonic() - began < 5
    assert "x-stainless-retry-count" not in refused.value.response.headers
    assert refused.value.response.request.headers["x-stainless-retry-count"] == "0"


def test_a_batch_is_cancelled_while_it_runs(client: openai.OpenAI) -> None:
    requests = [chat(f"r{i}", f"text {i}", model="slow") for i in range(2000)]
    file = client.files.create(file=("a.jsonl", jsonl(requests)), purpose="batch")
    batch = client.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="2m")  # type: ignore[arg-type]
    eventually(lambda: client.batches.retrieve(batch.id).request_counts.completed > 40, "some rows are done")  # type: ignore[union-attr]
    partial = client.batches.retrieve(batch.id).nightmill["partial_output_file_id"]  # type: ignore[attr-defined]
    early = client.files.with_raw_response.content(partial)
    assert early.headers["x-incomplete"] == "true"
    assert early.headers["x-last-line"] == str(len(early.text.splitlines()))
    client.batches.cancel(batch.id)
    ended = wait(client, batch.id)
    assert ended.status == "cancelled"
    counts = ended.request_counts
    assert counts is not None
    assert counts.completed + counts.failed == counts.total == 2000
    found = []
    for file_id in (ended.output_file_id, ended.error_file_id):
        assert file_id is not None
        found.append([json.loads(line)["custom_id"] for line in client.files.content(file_id).text.splitlines()])
    assert (len(found[0]), len(found[1])) == (counts.completed, counts.failed)
    assert sorted(found[0] + found[1]) == sorted(each["custom_id"] for each in requests)


def test_an_answer_while_one_waits(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="gpt-4o-mini", messages=[{"role": "user", "content": "hello"}], n=2, seed=1, logprobs=True
    )
    assert (answer.object, answer.model) == ("chat.completion", "gpt-4o-mini")
    assert [choice.message.content for choice in answer.choices] == ["HELLO", "HELLO"]
    assert answer.choices[0].logprobs is not None
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 10
    text = client.completions.create(model="fake", prompt="hello")
    assert text.choices[0].text == "HELLO"


class Place(BaseModel):
    city: str


def test_an_answer_held_to_a_schema(client: openai.OpenAI) -> None:
    answer = client.chat.completions.parse(
        model="fake", messages=[{"role": "user", "content": '{"city": "Rome"}'}], response_format=Place
    )
    assert answer.choices[0].message.parsed == Place(city="Rome")
    with pytest.raises(openai.LengthFinishReasonError):
        client.chat.completions.parse(
            model="fake",
            messages=[{"role": "user", "content": '{"city": "Rome"}'}],
            response_format=Place,
            max_completion_tokens=3,
        )


def test_calls_that_cannot_be_answered(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(model="none", messages=[{"role": "user", "content": "x"}])
    assert (missing.value.code, missing.value.param) == ("model_not_found", "model")
    with pytest.raises(openai.BadRequestError) as long:
        client.chat.completions.create(model="fake", messages=[{"role": "user", "content": "x" * 5000}])
    assert (long.value.code, long.value.param) == ("context_length_exceeded", "messages")
    with pytest.raises(openai.BadRequestError, match="'tools' is not supported"):
        client.chat.completions.create(
            model="fake",
            messages=[{"role": "user", "content": "x"}],
            tools=[{"type": "function", "function": {"name": "f", "parameters": {}}}],
        )


def test_calls_side_by_side(client: openai.OpenAI) -> None:
    def ask(i: int) -> str | None:
        message = {"role": "user", "content": f"text {i}"}
        return client.chat.completions.create(model="fake", messages=[message]).choices[0].message.content  # type: ignore[list-item]

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(ask, range(8))) == [f"TEXT {i}" for i in range(8)]


def test_models(client: openai.OpenAI) -> None:
    names = [model.id for model in client.models.list()]
    assert names[0] == "fake"
    assert {"smollm2-135m", "gpt-4o-mini"} <= set(names)
    assert client.models.retrieve("gpt-4o-mini").owned_by == "nightmill"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("none")
