"""Contenders as child processes, and what a run of one costs: wall time, its processors' time, others', peak memory."""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

CONTENDERS = Path(__file__).with_name("contenders.py")


@dataclass(frozen=True, slots=True)
class Measured:
    """One run. `others` is how many processors other processes took meanwhile: above 0.25, distrust the run."""

    rows: int
    tokens: int
    valid: int
    seconds: float
    others: float
    ids: tuple[tuple[int, ...], ...] = ()  # the outputs' tokens

    @property
    def rows_per_second(self) -> float:
        return self.rows / self.seconds

    def agreement(self, reference: Measured) -> float:
        """The share of the reference's output tokens that stand before the first different one, a mean over rows."""
        shares = []
        for own, expected in zip(self.ids, reference.ids, strict=False):
            pairs = enumerate(zip(own, expected, strict=False))
            same = next((i for i, (a, b) in pairs if a != b), min(len(own), len(expected)))
            shares.append(same / len(expected) if expected else 1.0)
        return sum(shares) / len(shares)


class Contender:
    """One engine in its own process, loaded and warm."""

    def __init__(self, name: str, python: Path, kind: str, model: Path, options: Sequence[str] = ()) -> None:
        """Starts at once; raises RuntimeError with the log's path when the engine does not come up."""
        self.name = name
        self.log = Path(tempfile.gettempdir()) / f"nightmill-bench-{name}.log"
        command = [str(python), str(CONTENDERS), kind, "--model", str(model), *options]
        with self.log.open("w") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, bufsize=1
            )
        self._answer()

    def run(self, workload: str, salt: int, limit: int | None = None) -> Measured:
        assert self._process.stdin is not None
        own, busy, began = self._own_seconds(), _busy_seconds(), time.perf_counter()
        self._process.stdin.write(json.dumps({"workload": workload, "salt": salt, "limit": limit}) + "\n")
        answer = self._answer()
        seconds = time.perf_counter() - began
        others = max(0.0, (_busy_seconds() - busy - (self._own_seconds() - own)) / seconds)
        ids = tuple(map(tuple, answer["ids"]))
        return Measured(answer["rows"], answer["tokens"], answer["valid"], seconds, others, ids)

    @property
    def peak_bytes(self) -> int:
        """The largest resident set the process has had, as the kernel counted it."""
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM"))

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.name} ended without an answer; its log: {self.log}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _own_seconds(self) -> float:
        process = psutil.Process(self._process.pid)
        tree = [process, *process.children(recursive=True)]
        return sum(sum(each.cpu_times()[:2]) for each in tree)


def _busy_seconds() -> float:
    """Processor seconds that anybody used since the machine started."""
    times = psutil.cpu_times()
    return float(times.user + times.nice + times.system)
