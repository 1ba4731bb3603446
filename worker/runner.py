"""Runner: the process's one engine thread, shared by the task threads.

The engine thread takes the next request, round-robin over the tasks, only when the engine has room. So the next
shard's rows fill this shard's tail, and memory stays bounded whatever the size of the job. Requests that must have the
same answer are computed once (worker.twins). One model is loaded at a time; who asks for another one waits until the
tasks before it are done, in order of arrival, so that neither starves.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable, Iterator

import structlog

from engine import Engine, EngineStats, LoadedModel
from engine.request import Output, Request
from worker.alone import Alone
from worker.counters import Counters, Meters, counters_of
from worker.in_turn import InTurn
from worker.open_model import OpenModel
from worker.results import Results
from worker.sources import POLL_SECONDS, EngineFailed, Source, Stop, Stopped
from worker.timings import Timings
from worker.turns import Ticket, Turns
from worker.twins import Twins
from worker.watchdog import Watchdog

log = structlog.get_logger()
CLOSE_SECONDS = 5.0


class Runner:
    def __init__(
        self,
        load: Callable[[str], LoadedModel],
        hang_seconds: float = math.inf,
        on_hang: Callable[[], None] = lambda: None,
        results: Results | None = None,
        salt: Callable[[str], str] = lambda model: "",
    ) -> None:
        """`load` gives the model of a name; it is called in the engine thread, and what it raises reaches `use`.

        A step longer than `hang_seconds` fails the tasks and calls `on_hang`: no thread can be ended from outside, so
        this Runner is of no use any more. `results` are earlier answers; `salt`, asked before a model is loaded, gives
        what beside its fingerprint decides them.
        """
        self._results = results if results is not None else Results(None)
        self._salt = salt
        self._twins: Twins | None = None  # of the loaded model
        self._load = load
        self._lock = threading.Lock()
        self._wake = threading.Condition(self._lock)  # the engine thread has something to do
        self._answered = threading.Condition(self._lock)  # a ticket was
        self._turns = Turns()
        self._sources = InTurn(self._lock, self._wake)
        self._loaded: tuple[str, LoadedModel] | None = None
        self._stats: EngineStats | None = None
        self._meters = Meters()
        self.timings = Timings()
        self.alone = Alone(self._lock, self._sources)
        self._watchdog = Watchdog(hang_seconds, lambda: self._hang(on_hang))
        self._thread: threading.Thread | None = None
        self._closed = False

    @property
    def model(self) -> str | None:
        """The name of the loaded model."""
        loaded = self._loaded
        return loaded[0] if loaded else None

    @property
    def stats(self) -> EngineStats | None:
        """The engine's counters after its latest step."""
        return self._stats

    @contextlib.contextmanager
    def use(self, model: str, stop: Stop, waits: Callable[[bool], None] = lambda waiting: None) -> Iterator[OpenModel]:
        """Hold a model open. Waits for its turn; raises Stopped when `stop` is set first, or what loading raised.

        `waits` is told before it waits until others let go of another model, and after; meanwhile it is not guarded.
        """
        ticket = Ticket(model)
        try:
            yield OpenModel(self, model, self._admitted(ticket, stop, waits))
        finally:
            with self._lock:
                self._turns.leave(ticket)
                self._wake.notify()

    def close(self) -> None:
        """Stop the engine thread after its current step. Tasks still in it get EngineFailed."""
        with self._lock:
            self._closed = True
            self._wake.notify()
        if self._thread is not None:
            self._thread.join(CLOSE_SECONDS)  # a model may be loading: the process need not wait for it
        self._watchdog.stop()

    # -- task threads ------------------------------------------------------------------------------------------------

    def _admitted(self, ticket: Ticket, stop: Stop, waits: Callable[[bool], None]) -> LoadedModel:
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._loop, name="engine", daemon=True)
                self._thread.start()
                self._watchdog.start()
            self._turns.join(ticket)
            if self._loaded is not None and self._turns.wanted(self._loaded[0]) == self._loaded[0]:
                self._turns.grant(*self._loaded)
                self._answered.notify_all()
            self._wake.notify()
            soon = ticket.answered or self._turns.wanted(self.model) == ticket.model
        if not soon:
            waits(True)
            guarded = self.alone.guards_here
            self.alone.unguard()
            self._await(lambda: ticket.answered or ticket.loading, stop)
            if guarded:
                self.alone.guard(stop)
            waits(False)
        self._await(lambda: ticket.answered, stop)
        if ticket.granted is None:
            assert ticket.refused is not None
            raise ticket.refused
        return ticket.granted

    def _await(self, condition: Callable[[], bool], stop: Stop) -> None:
        with self._lock:
            while not condition():
                if stop() or self._closed:
                    raise Stopped
                self._answered.wait(POLL_SECONDS)

    def _counters(self) -> Counters:
        return {**counters_of(self._stats), **self.timings.occupancy}

    def _counted(self, job: str) -> Counters:
        with self._lock:
            return self._meters.take(job, self._counters())

    @contextlib.contextmanager
    def _source(self, user: OpenModel, loaded: LoadedModel, job: str, *, reuse: str | None) -> Iterator[Source]:
        with self._lock:
            if self._loaded is None or self._loaded[1] is not loaded:
                raise EngineFailed(user.name, RuntimeError("the model was dropped after an earlier failure"))
            source = self._sources.add(user, reuse, self.alone.guards_here)
            self._meters.join(job, source.number, self._counters())
        try:
            yield source
        finally:
            with self._lock:
                self._meters.leave(job, source.number, self._counters())
                self._sources.remove(source)

    # -- engine thread -----------------------------------------------------------------------------------------------

    def _loop(self) -> None:
        while self._await_work():
            self._change_model()
            if self._loaded is None:
                continue
            try:
                assert self._twins is not None, "a loaded model has them"
                self._turn(self._loaded[1].engine, self._twins)
            except Exception as error:
                log.exception("engine failed", model=self.model)
                self._drop(EngineFailed(self.model or "", error))
        self._drop(EngineFailed(self.model or "", RuntimeError("the worker is closing")))

    def _await_work(self) -> bool:
        with self._lock:
            self._wake.wait_for(self._has_work)
            return not self._closed

    def _has_work(self) -> bool:
        if self._closed or self._turns.wanted(self.model) is not None:
            return True
        if self._loaded is None:
            return False
        busy = self._sources.orphaned or not self._loaded[1].engine.idle
        return busy or any(source.offers and self.alone.admits(source) for source in self._sources)

    def _change_model(self) -> None:
        """Let in who waits for the loaded model; load another one when its turn has come."""
        with self._lock:
            wanted = self._turns.wanted(self.model)
        if wanted is None:
            return
        if wanted != self.model:
            self._drop(EngineFailed(self.model or "", RuntimeError("the model was unloaded")))
            with self._lock:
                self._turns.begin(wanted)
                self._answered.notify_all()
            try:
                salt, loaded = self._salt(wanted), self._load(wanted)
            except Exception as error:
                with self._lock:
                    self._turns.refuse(wanted, error)
                    self._answered.notify_all()
                return
            log.info("model loaded", model=wanted, fingerprint=loaded.fingerprint)
            self._twins = Twins(self._results, f"{loaded.fingerprint} {salt}".encode())
            self._loaded = (wanted, loaded)
        with self._lock:
            assert self._loaded is not None
            self._turns.grant(*self._loaded)
            self._answered.notify_all()

    def _turn(self, engine: Engine, twins: Twins) -> None:
        """One engine step; before it, what was given up is taken out and what fits is put in."""
        with self._lock:
            orphans = self._sources.take_orphans()
        for orphan in orphans:
            if twins.drop(orphan):
                engine.abort(orphan)
        while engine.has_room and (taken := self._take()) is not None:
            self._deliver(twins.offer(engine, *taken))
        began = time.perf_counter()
        with self._watchdog.watching():
            outputs = [] if engine.idle else engine.step()
        self._stats = engine.stats()  # first: who has its last output asks what was counted
        self.timings.note(began, self._stats)
        self._deliver([each for output in outputs for each in twins.settle(output)])
        if engine.idle:
            self._results.flush()

    def _take(self) -> tuple[Request, str | None] | None:
        with self._lock:
            return self._sources.take(self.alone.admits)

    def _deliver(self, outputs: list[Output]) -> None:
        with self._lock:
            self._sources.deliver(outputs)

    def _hang(self, on_hang: Callable[[], None]) -> None:
        """Called by the watchdog's thread; the engine's never comes back."""
        log.critical("the engine hangs", model=self.model)
        with self._lock:
            self._closed = True
        self._fail(EngineFailed(self.model or "", TimeoutError("a step took too long")))
        on_hang()

    def _fail(self, failure: EngineFailed) -> None:
        with self._lock:
            self._sources.fail(failure)

    def _drop(self, failure: EngineFailed) -> None:
        """Let the engine go, and tell every task that still has requests in it."""
        with self._lock:
            loaded, self._loaded = self._loaded, None
            self._stats = None
            self._meters.restart()
        self._fail(failure)
        if loaded is not None:
            try:
                loaded[1].engine.close()
            except Exception:
                log.exception("engine did not close", model=loaded[0])
