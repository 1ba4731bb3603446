"""Runs tests/gpu with Triton's interpreter, in a process of its own: the variable counts before the first import."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


FILES = sorted(path.name for path in (ROOT / "tests" / "gpu").glob("test_*.py"))


@pytest.mark.parametrize("name", FILES)
def test_in_the_interpreter(name: str):
    check(f"tests/gpu/{name}")


@pytest.mark.slow
def test_what_takes_minutes():
    check("tests/gpu", "-m", "slow")


def check(*arguments: str) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"\d+ passed", done.stdout)
    assert "skipped" not in done.stdout
