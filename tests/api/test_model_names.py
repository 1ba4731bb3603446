"""A model's name by way of `..` is answered alike, whether or not a folder is there."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.api.gate import Gate
from tests.api.ledger import summarize, write


def test_a_folder_of_another_tenant_cannot_be_guessed(
    gate: Gate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tests").mkdir()
    monkeypatch.chdir(tmp_path)
    source = write(gate.folder / "acme" / "in.parquet", 3)
    answers = []
    for name in ("bolt", "none"):
        job = summarize(source, model=f"tests/../tenants/{name}")
        answer = gate.call("acme submit", "POST", "/v1/jobs", json=job)
        answers.append((answer.status_code, answer.json()["code"], answer.text.replace(name, "?")))
    assert answers[0] == answers[1]
    assert answers[0][:2] == (422, "model_missing")
