"""`nightmill run-batch`: answers in the order of the requests, whether a service runs or not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import CommandLine


def request(custom_id: str, text: str, **options: Any) -> dict[str, Any]:
    body = {"model": "fake", "messages": [{"role": "user", "content": text}], **options}
    return {"custom_id": custom_id, "method": "POST", "url": "/v1/chat/completions", "body": body}


def write(path: Path, lines: list[Any]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.mark.parametrize("nightmill", ["embedded"], indirect=True)
def test_a_file_in_and_a_file_out(nightmill: CommandLine, tmp_path: Path) -> None:
    texts = ["x" * 5000 if i in (0, 7, 8) else f"text {i}" for i in range(20)]
    source = write(tmp_path / "in.jsonl", [request(f"r{i}", text) for i, text in enumerate(texts)])
    done = nightmill("run-batch", "-i", source, "-o", tmp_path / "out.jsonl", "--strict")
    assert done.returncode == 3, done.stderr
    assert "completed: 17 of 20 requests" in done.stderr
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [line["custom_id"] for line in lines] == [f"r{i}" for i in range(20)]
    assert [line["response"]["status_code"] for line in lines] == [400 if i in (0, 7, 8) else 200 for i in range(20)]
    assert lines[1]["response"]["body"]["choices"][0]["message"]["content"] == "TEXT 1"

    bad = write(tmp_path / "bad.jsonl", [request("a", "x"), request("a", "y"), request("b", "z", tools=[])])
    refused = nightmill("run-batch", "-i", bad, "-o", tmp_path / "none.jsonl")
    assert refused.returncode == 2
    assert f"{bad}: line 2: The custom_id 'a' was used before." in refused.stderr
    assert f"{bad}: line 3: 'tools' is not supported." in refused.stderr
    assert not (tmp_path / "none.jsonl").exists()
    missing = nightmill("run-batch", "-i", tmp_path / "none", "-o", tmp_path / "none.jsonl")
    assert (missing.returncode, "no such file" in missing.stderr) == (2, True)
    wrong = write(tmp_path / "wrong.jsonl", [{"a": 1}])
    refused = nightmill("run-batch", "-i", wrong, "-o", tmp_path / "none.jsonl")
    assert (refused.returncode, "is no request with a url and a model" in refused.stderr) == (2, True)
