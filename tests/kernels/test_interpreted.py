"""Runs tests/gpu with Triton's interpreter, in processes of their own: the variable counts before the first import."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


FILES = sorted(path.name for path in (ROOT / "tests" / "gpu").glob("test_*.py"))
Run = subprocess.CompletedProcess[str]


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest) -> Iterator[dict[str, Future[Run]]]:
    """A process per file that is asked for, two at a time: the interpreter uses one core."""
    chosen = [name for name in FILES if any(item.name.endswith(f"[{name}]") for item in request.session.items)]
    with ThreadPoolExecutor(2) as pool:
        yield {name: pool.submit(interpret, f"tests/gpu/{name}") for name in chosen}
        pool.shutdown(cancel_futures=True)


@pytest.mark.parametrize("name", FILES)
def test_in_the_interpreter(name: str, runs: dict[str, Future[Run]]):
    check(runs[name].result())


@pytest.mark.slow
def test_what_takes_minutes():
    check(interpret("tests/gpu", "-m", "slow"))


def interpret(*arguments: str) -> Run:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def check(done: Run) -> None:
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"\d+ passed", done.stdout)
    assert "skipped" not in done.stdout
