"""Source: one task's requests on their way to the engine and its outputs on their way back.

The lock is the Runner's; every field is read and written under it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator, Hashable, Iterator
from dataclasses import dataclass, field, fields
from enum import Enum, auto
from operator import attrgetter
from typing import TypeAlias

from engine.errors import EngineError
from engine.request import FinishReason, Output, Request

MAX_READY = 32  # requests made ahead of the engine, so that it need not wait for a tokenizer
MAX_UNDELIVERED = 256  # outputs a slow task may leave lying; more, and its requests wait
POLL_SECONDS = 0.2  # how often a waiting task looks at its stop

Stop: TypeAlias = Callable[[], bool]

# Every field but the id, which comes first. dataclasses.replace takes twice as long, and each row would need it twice.
_rest_of_request = attrgetter(*(each.name for each in fields(Request)[1:]))
_rest_of_output = attrgetter(*(each.name for each in fields(Output)[1:]))


class Stopped(Exception):
    """The task's own stop was set; what it had in the engine is dropped."""


class EngineFailed(Exception):
    """The engine broke with this task's requests in it. Their rows are not done; the next use builds a new engine."""

    code = "engine_failed"

    def __init__(self, model: str, cause: BaseException) -> None:
        super().__init__(f"the engine of model {model!r} failed: {type(cause).__name__}: {cause}")
        self.model = model
        self.cause = cause


class Supply(Enum):
    """What there is left to ask the task's requests for."""

    MORE = auto()
    LATER = auto()  # none until an output was taken
    NONE = auto()


class Idle(Enum):
    """Why there is no output now."""

    WANTING = auto()  # all were taken, or it is time to make more requests
    WAITING = auto()  # a moment has passed without any


@dataclass(eq=False, slots=True)
class Source:
    number: int
    owner: object  # who may have the engine alone
    lock: threading.Lock
    wake: threading.Condition  # of the engine thread
    changed: threading.Condition  # outputs came, requests went, or the engine failed
    reuse: str | None  # the tenant within which a request may be answered by another one's answer
    guarded: bool = False  # its requests go in even while somebody waits to have the engine alone (worker.alone)
    ready: deque[Request] = field(default_factory=deque)
    in_engine: set[Hashable] = field(default_factory=set)
    outputs: deque[Output] = field(default_factory=deque)
    failure: EngineFailed | None = None

    # -- the task's side ---------------------------------------------------------------------------------------------

    def run(
        self, requests: Iterator[Request | None], stop: Stop, idle: Callable[[], None]
    ) -> Generator[Output, None, None]:
        """See OpenModel.run."""
        supply = Supply.MORE
        taken: deque[Output] = deque()
        while True:
            if supply is Supply.MORE:
                supply = self._feed(requests, stop)
            if not taken:
                idleness = self._take_outputs(taken, stop, supply)
            if taken:
                yield taken.popleft()
                supply = Supply.NONE if supply is Supply.NONE else Supply.MORE
            elif idleness is Idle.WAITING:
                idle()
            elif supply is Supply.NONE:
                return

    def _feed(self, requests: Iterator[Request | None], stop: Stop) -> Supply:
        while len(self.ready) < MAX_READY:
            if stop():
                raise Stopped
            try:
                request = next(requests)
            except StopIteration:
                return Supply.NONE
            if request is None:
                return Supply.LATER
            with self.lock:
                self.ready.append(request)
                if len(self.ready) == 1:  # before, the engine thread had nothing of this task to wait for
                    self.wake.notify()
        return Supply.MORE

    def _take_outputs(self, taken: deque[Output], stop: Stop, supply: Supply) -> Idle:
        """Move what there is into `taken`; where it stays empty, the answer says why."""
        with self.lock:
            while not self.outputs:
                if self.failure is not None:
                    raise self.failure
                if stop():
                    raise Stopped
                if supply is Supply.MORE and len(self.ready) <= MAX_READY // 2:
                    return Idle.WANTING
                if not self.ready and not self.in_engine:
                    assert supply is not Supply.LATER, "the requests paused with no output to come"
                    return Idle.WANTING
                if not self.changed.wait(POLL_SECONDS):
                    return Idle.WAITING
            taken.extend(self.outputs)
            self.outputs.clear()
            self.wake.notify()
            return Idle.WANTING

    # -- the engine thread's side, under the lock --------------------------------------------------------------------

    @property
    def offers(self) -> bool:
        return bool(self.ready) and len(self.outputs) < MAX_UNDELIVERED

    def take(self) -> Request:
        """The next request, under an id that is unique among all sources."""
        request = self.ready.popleft()
        self.in_engine.add(request.id)
        if len(self.ready) == MAX_READY // 2:
            self.changed.notify()
        return Request((self.number, request.id), *_rest_of_request(request))

    def deliver(self, output: Output, request_id: Hashable) -> None:
        self.in_engine.discard(request_id)
        if not self.outputs:  # else the task was told already
            self.changed.notify()
        self.outputs.append(Output(request_id, *_rest_of_output(output)))


def refusal(request: Request, error: EngineError) -> Output:
    """The output of a request that the engine would not take."""
    size = len(request.prompt)
    return Output(request.id, (), FinishReason.ERROR, size, 0, 0, error=str(error), error_code=error.code)
