"""Logs: our events and those of libraries in one form, with the ids that the work at hand has."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from db import log
from db.settings import Settings

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    root, config = logging.getLogger(), structlog.get_config()
    handlers, level = root.handlers[:], root.level
    levels = {name: logging.getLogger(name).level for name in log.QUIET}
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    for name, before in levels.items():
        logging.getLogger(name).setLevel(before)
    structlog.configure(**config)


def test_every_line_is_json_with_the_ids_of_the_work(settings: Settings, capsys: pytest.CaptureFixture[str]) -> None:
    log.configure(settings.model_copy(update={"log_json": True}))
    with structlog.contextvars.bound_contextvars(job="job_x", shard=3):
        structlog.get_logger("ours").warning("row set aside", row=7)
        logging.getLogger("a.library").warning("slow %s", "disk")
        logging.getLogger("httpx").info("asked https://example.org/?secret")
        structlog.get_logger("ours").debug("below the level")
    ours, theirs = (json.loads(line) for line in capsys.readouterr().err.splitlines())
    assert {"event": "row set aside", "row": 7, "job": "job_x", "shard": 3, "level": "warning"}.items() <= ours.items()
    assert {"event": "slow disk", "job": "job_x", "shard": 3, "level": "warning"}.items() <= theirs.items()
    assert "timestamp" in ours


def test_text_has_the_ids_too(settings: Settings, capsys: pytest.CaptureFixture[str]) -> None:
    log.configure(settings)
    with structlog.contextvars.bound_contextvars(batch="batch_1"):
        logging.getLogger("api.openai").info("brought on")
    assert "brought on" in (line := capsys.readouterr().err)
    assert "batch=batch_1" in line


@pytest.mark.slow  # a real server
def test_the_api_logs_in_json(tmp_path: Path) -> None:
    own = {"NIGHTMILL_HOME": str(tmp_path), "NIGHTMILL_LOG_JSON": "true", "NIGHTMILL_PORT": "0"}
    command = [sys.executable, "-m", "api"]
    environment = {**os.environ, **own, "PYTHONPATH": str(REPOSITORY)}
    process = subprocess.Popen(command, env=environment, cwd=REPOSITORY, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    with process.stderr:
        lines = []
        for line in process.stderr:
            lines.append(json.loads(line))
            if "running on" in lines[-1]["event"]:
                process.terminate()
    assert process.wait(30) in (0, -signal.SIGTERM)  # uvicorn ends as it was asked to
    assert lines[-1]["event"].startswith("Finished server process")
    assert {line["level"] for line in lines} <= {"info", "warning"}
    assert any("running on http://127.0.0.1:" in line["event"] for line in lines)
