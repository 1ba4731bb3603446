"""OpenModel: a loaded model as a task sees it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterator
from typing import TYPE_CHECKING

from engine import LoadedModel
from engine.format import Format
from engine.request import Output, Request
from engine.tokenizer import Tokenizer
from worker.counters import Counters
from worker.sources import Stop
from worker.timings import TimedStep

if TYPE_CHECKING:
    from worker.runner import Runner


class OpenModel:
    """A loaded model, for as long as the task holds it open."""

    def __init__(self, runner: Runner, name: str, loaded: LoadedModel) -> None:
        self._runner = runner
        self._loaded = loaded
        self.name = name
        self.fingerprint: str = loaded.fingerprint
        self.tokenizer: Tokenizer = loaded.tokenizer
        self.max_model_len: int = loaded.engine.max_model_len

    def check(self, format: Format) -> None:
        """Raises UnsupportedFormat where the format cannot be enforced."""
        self._loaded.grammars.check(format)

    @property
    def cache(self) -> tuple[int, int]:
        """The key/value cache's size in bytes and in tokens."""
        engine = self._loaded.engine
        return engine.cache_bytes, engine.cache_size

    def timed(self) -> contextlib.AbstractContextManager[list[TimedStep]]:
        """A list that gets every step of the engine, whosever requests are in it, until the block ends."""
        return self._runner.timings.watch()

    def counters(self, job: str) -> Counters:
        """What the engine counted while the job's requests were in it, since the last call (see worker.counters)."""
        return self._runner._counted(job)

    def run(
        self,
        requests: Iterator[Request | None],
        stop: Stop,
        job: str,
        idle: Callable[[], None] = lambda: None,
        *,
        reuse: str | None = None,
    ) -> Generator[Output, None, None]:
        """The outputs of the requests, in the order they finish. Request ids must be distinct.

        `requests` is pulled from the calling thread, a few ahead of the engine. A None from it means "none at the
        moment": it is asked again after the next output, so there must be one to come. Closing the iterator aborts
        what is unfinished. `idle` is called while there is nothing to do but wait. With `reuse`, the name of a tenant,
        what must have the same answer as another request of that tenant is answered with it, and says so. Raises
        Stopped, EngineFailed, and what `requests` raises.
        """
        with self._runner._source(self, self._loaded, job, reuse=reuse) as source:
            yield from source.run(requests, stop, idle)

    @contextlib.contextmanager
    def alone(self, stop: Stop) -> Iterator[None]:
        """Have the engine without the requests of any other task, from within `run`. Raises Stopped, EngineFailed."""
        with self._runner.alone.held(self, self.name, stop):
            yield
