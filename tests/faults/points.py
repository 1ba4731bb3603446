"""A worker that dies at one chosen instant, once: an engine factory that puts the instant into the process.

NIGHTMILL_TEST_POINT names the instant, NIGHTMILL_TEST_POINT_ONCE a file that the first process to come there makes.
`memory` is a model that the machine has no memory for.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import db.jobs
import db.phases
import db.shards
from db.settings import Settings
from tests.worker import fakes

POINTS: dict[str, tuple[Any, str]] = {
    "shards written": (db.phases, "finish_split"),
    "part published": (db.shards, "finish"),
    "manifest published": (db.jobs, "complete"),
}


def build(name: str, settings: Settings) -> fakes.FakeModel:
    if name == "memory":
        raise MemoryError("no room for 999 GiB of weights")
    point = os.environ.get("NIGHTMILL_TEST_POINT")
    if point is not None:
        module, function = POINTS[point]
        setattr(module, function, deadly(getattr(module, function), Path(os.environ["NIGHTMILL_TEST_POINT_ONCE"])))
    return fakes.build(name, settings)


def deadly(real: Callable[..., Any], once: Path) -> Callable[..., Any]:
    def wrapped(*arguments: Any, **named: Any) -> Any:
        try:
            once.touch(exist_ok=False)
        except FileExistsError:
            return real(*arguments, **named)
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("still alive")

    return wrapped
