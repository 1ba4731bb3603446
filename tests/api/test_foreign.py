"""Schedules, files and batches of another tenant look as what is not there, to the byte."""

from __future__ import annotations

import json

from tests.api.gate import Gate
from tests.api.ledger import write

CALLS = [
    ("GET", "/v1/schedules/NAME"), ("DELETE", "/v1/schedules/NAME"), ("POST", "/v1/schedules/NAME/pause"),
    ("POST", "/v1/schedules/NAME/resume"), ("POST", "/v1/schedules/NAME/run"), ("GET", "/v1/schedules/NAME/runs"),
    ("GET", "/v1/files/NAME"), ("GET", "/v1/files/NAME/content"), ("DELETE", "/v1/files/NAME"),
    ("GET", "/v1/plans/NAME"), ("GET", "/v1/batches/NAME"), ("POST", "/v1/batches/NAME/cancel"),
]  # fmt: skip


def test_what_is_anothers_is_not_there(gate: Gate) -> None:
    write(gate.folder / "acme" / "in.parquet", 3)
    job = {"input": str(gate.folder / "acme" / "in.parquet"), "recipe": {"kind": "summarize"}}
    made = gate.call("acme submit", "POST", "/v1/schedules", json={"name": "nightly", "cron": "30 2 * * *", "job": job})
    assert made.status_code == 201, made.text
    message = {"model": "m", "messages": [{"role": "user", "content": "x"}]}
    line = json.dumps({"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", "body": message})
    sent = {"file": ("in.jsonl", line.encode() + b"\n")}
    file = gate.call("acme submit", "POST", "/v1/files", files=sent, data={"purpose": "batch"}).json()
    body = {"input_file_id": file["id"], "endpoint": "/v1/chat/completions", "completion_window": "24h"}
    batch = gate.call("acme submit", "POST", "/v1/batches", json=body).json()
    plan = gate.call("acme submit", "POST", "/v1/jobs?dry_run=true", json=job).json()
    names = {
        "plans": [plan["id"]],
        "schedules": ["nightly", made.json()["id"]],
        "files": [file["id"]],
        "batches": [batch["id"]],
    }
    for method, path in CALLS:
        for name in names[path.split("/")[2]]:
            absent = name[:-1] + ("0" if name[-1] != "0" else "1")
            foreign = gate.call("bolt admin", method, path.replace("NAME", name))
            missing = gate.call("bolt admin", method, path.replace("NAME", absent))
            assert foreign.status_code == missing.status_code == 404, (method, path, foreign.text)
            assert foreign.text == missing.text.replace(absent, name)
    for path in ("/v1/schedules", "/v1/files", "/v1/batches"):
        assert made.json()["id"] not in gate.call("bolt admin", "GET", path).text
        assert file["id"] not in gate.call("bolt admin", "GET", path).text
    taken = gate.call("bolt submit", "POST", "/v1/batches", json=body)
    lost = gate.call("bolt submit", "POST", "/v1/batches", json={**body, "input_file_id": "file-none"})
    assert taken.status_code == lost.status_code >= 400
    assert taken.text.replace(file["id"], "file-none") == lost.text
    assert gate.call("acme read", "GET", "/v1/schedules/nightly").json()["paused"] is False
