"""Tensor parallelism: rank 0 has the engine; the others compute the same steps with their part of the model.

What a step is goes over as numbers, from host to host; only partial products travel between devices.
"""

from __future__ import annotations

import multiprocessing
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.distributed import FileStore  # type: ignore[attr-defined]  # made in C++

from engine.batch import Batch
from engine.config import EngineConfig
from engine.errors import InvalidRequest, RankFailed
from engine.follower import ENDED, HERE, LOADING, SIZE, follow, join, pack
from engine.grammar.masks import RowMasks
from engine.ranks import Ranks, broadcast
from engine.runner import Runner
from engine.step import Step

ENDING = 10.0  # seconds that a rank has to end on its own


class Team:
    """The processes of the other ranks, started and led by this one."""

    def __init__(self, path: Path, config: EngineConfig) -> None:
        """Returns when all ranks have met. Raises InvalidRequest when this process leads or is led already, and
        RankFailed."""
        if dist.is_initialized():
            raise InvalidRequest("tensor_parallel", config.tensor_parallel, "this process has such an engine already")
        self.ranks = Ranks(0, config.tensor_parallel)
        self._folder = tempfile.TemporaryDirectory(prefix="nightmill-ranks-")
        self._closing = False
        self._leader: _Leader | None = None
        meeting = f"{self._folder.name}/meeting"
        spawn = multiprocessing.get_context("spawn")
        self._others: list[BaseProcess] = [
            spawn.Process(target=follow, args=(path, config, rank, meeting), daemon=True)
            for rank in range(1, config.tensor_parallel)
        ]
        for process in self._others:
            process.start()
        self._store = FileStore(meeting, config.tensor_parallel)
        try:
            self._await(HERE)
            with self.guarded():
                self._group = join(config, 0, self._store)
        except BaseException:
            self.close()
            raise
        self._failed = False
        self._watcher = threading.Thread(target=self._watch, args=(config.device.startswith("cuda"),), daemon=True)
        self._watcher.start()

    def sized(self, config: EngineConfig, own: Callable[[EngineConfig], EngineConfig]) -> EngineConfig:
        """The configuration with a size of the cache that every rank has room for; `own` measures this one's. Raises
        RankFailed, OutOfCache."""
        with self.guarded():
            mine = own(config)
        if mine is config:
            return config
        self._await(SIZE)
        ranks = range(1, self.ranks.size)
        least = min(mine.cache_bytes or 0, *(int(self._store.get(f"{SIZE} {rank}")) for rank in ranks))
        self._store.set(SIZE, str(least))
        return replace(config, cache_bytes=least)

    def lead(self, runner: Runner) -> Runner:
        """A runner whose steps the others compute too."""
        self._leader = _Leader(runner, self._group, self)
        return self._leader

    def check(self) -> None:
        """Raises RankFailed when a rank has ended; what was computed since may be wrong."""
        if self._failed:
            raise self._failure()

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """Errors of talking to a rank that has ended are RankFailed."""
        try:
            yield
        except RuntimeError as error:
            # The connection breaks a moment before the process is gone.
            if wait([process.sentinel for process in self._others], ENDING):
                raise self._failure() from error
            raise

    def close(self) -> None:
        """Let the other ranks end; those that do not within ENDING are killed."""
        self._closing = True
        if self._leader is not None and all(process.is_alive() for process in self._others):
            with suppress(RuntimeError):  # one has ended at this very moment
                broadcast(ENDED, self._group)
        else:
            for process in self._others:
                process.terminate()
        until = time.monotonic() + ENDING
        for process in self._others:
            process.join(max(until - time.monotonic(), 0.1))
            if process.exitcode is None:
                process.kill()
                process.join()
        if dist.is_initialized():
            dist.destroy_process_group()
        self._folder.cleanup()

    def _await(self, word: str) -> None:
        """Wait until every other rank has put `word` into the store."""
        keys = [f"{word} {rank}" for rank in range(1, self.ranks.size)]
        until = time.monotonic() + LOADING.total_seconds()
        while not self._store.check(keys):
            if time.monotonic() > until or any(not process.is_alive() for process in self._others):
                raise self._failure()
            time.sleep(0.01)

    def _watch(self, on_gpu: bool) -> None:
        """Where a rank ends on its own, let nobody wait for it: a GPU would, for ever."""
        wait([process.sentinel for process in self._others])
        if not self._closing:
            self._failed = True  # first: what is aborted leaves wrong numbers behind
            if on_gpu and dist.group.WORLD is not None:
                dist.group.WORLD.abort()

    def _failure(self) -> RankFailed:
        for process in self._others:
            if wait([process.sentinel], 0):
                process.join(ENDING)  # its status comes a moment later
        codes = {rank: process.exitcode for rank, process in enumerate(self._others, 1) if process.exitcode is not None}
        return RankFailed(codes)


class _Leader:
    """Of each step the others are told; the language-model head is rank 0's alone."""

    def __init__(self, runner: Runner, group: dist.ProcessGroup, team: Team) -> None:
        self._runner = runner
        self._group = group
        self._team = team

    def free_memory(self) -> None:
        """Raises RankFailed: the others compute the step for which there was no memory here."""
        raise RankFailed({0: None})

    def check(self) -> None:
        self._team.check()

    def prepare(self, batch: Batch) -> Any:
        return self.prepare_step(Step.of(batch))

    def prepare_step(self, step: Step) -> Any:
        with self._team.guarded():
            broadcast(pack(step), self._group)
        return self._runner.prepare_step(step)

    def run(self, prepared: Any) -> Tensor:
        with self._team.guarded():
            return self._runner.run(prepared)

    def logits(self, hidden: Tensor, masks: RowMasks | None = None) -> Tensor:
        return self._runner.logits(hidden, masks)

    def largest(self, hidden: Tensor, masks: RowMasks | None = None) -> tuple[Tensor, Tensor]:
        return self._runner.largest(hidden, masks)
