"""A running service for tests of the OpenAI face: server and worker processes with the fake model, on SQLite."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from api.embedded.lock import running

REPOSITORY = Path(__file__).resolve().parents[3]
SETTINGS = {
    "MODEL": "fake",
    "ENGINE_FACTORY": "tests.worker.fakes:build",
    "SWEEP_SECONDS": "0.2",
    "OPENAI_MODELS": json.dumps({"gpt-3.5-turbo-0125": "fake", "gpt-4o-mini": "fake", "slow": "fake:slow"}),
    "OPENAI_COMPLETION_WINDOWS": '["2m"]',
    "OPENAI_TIMEOUT_SECONDS": "20",
    "WEBHOOK_PRIVATE_ADDRESSES": "true",
    "SHARD_ROWS": "20",
}


@contextmanager
def service(**settings: str) -> Iterator[str]:
    """The address of a service of its own, gone afterwards."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "home"
        kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "TMPDIR") if name in os.environ}
        named = {f"NIGHTMILL_{name}": value for name, value in {**SETTINGS, **settings}.items()}
        environment = {**kept, **named, "NIGHTMILL_HOME": str(home), "PYTHONPATH": str(REPOSITORY)}
        command = [sys.executable, "-P", "-c", "from api.cli import app; app()", "up", "--port", "0"]
        with (Path(folder) / "log").open("w+") as log:
            process = subprocess.Popen(command, env=environment, cwd=folder, stdout=log, stderr=log)
            try:
                deadline = time.monotonic() + 60
                while (found := running(home)) is None:
                    alive = process.poll() is None and time.monotonic() < deadline
                    assert alive, Path(log.name).read_text()
                    time.sleep(0.05)
                yield found.url
            finally:
                process.send_signal(signal.SIGTERM)
                try:
                    process.wait(timeout=40)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()


def chat(custom_id: str, text: str, **options: Any) -> dict[str, Any]:
    body = {"model": "fake", "messages": [{"role": "user", "content": text}], **options}
    return {"custom_id": custom_id, "method": "POST", "url": "/v1/chat/completions", "body": body}


def jsonl(requests: Sequence[Any]) -> bytes:
    """Requests as the lines of a file; a text stands for itself."""
    return "".join((each if isinstance(each, str) else json.dumps(each)) + "\n" for each in requests).encode()


def eventually(condition: Callable[[], Any], what: str, seconds: float = 60.0) -> Any:
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.05)
    return found
