"""Alone: who has the engine to itself, and who is guarded from that."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from engine.request import Request
from tests.worker.test_runner import Loader, expected, never, requests, texts, wait_until
from worker.runner import Runner
from worker.sources import Stopped


@pytest.fixture
def runner() -> Iterator[Runner]:
    made = Runner(Loader())  # type: ignore[arg-type]
    yield made
    made.close()


class Other:
    """A task thread; `at`: how far it has come."""

    def __init__(self, work: Callable[[list[str]], None]) -> None:
        self.at: list[str] = []
        self.failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(work,), daemon=True)
        self._thread.start()

    def _run(self, work: Callable[[list[str]], None]) -> None:
        try:
            work(self.at)
        except BaseException as error:
            self.failure = error

    def end(self) -> None:
        self._thread.join(10)
        assert not self._thread.is_alive(), self.at
        if self.failure is not None:
            raise self.failure


def alone(runner: Runner, go_on: threading.Event) -> Callable[[list[str]], None]:
    """Has the engine alone until `go_on`."""

    def work(at: list[str]) -> None:
        def own() -> Iterator[Request]:
            at.append("wants")
            with model.alone(never):
                at.append("alone")
                go_on.wait(10)
                yield from requests(1)

        with runner.alone.guarded(never), runner.use("m", never) as model:
            assert texts(model.run(own(), never, "job")) == expected(1)
        at.append("done")

    return work


def test_nobody_has_it_alone_while_another_task_is_guarded(runner: Runner) -> None:
    """Who is guarded may compute meanwhile, or both would wait for each other."""
    go_on = threading.Event()
    go_on.set()
    with runner.alone.guarded(never):
        other = Other(alone(runner, go_on))
        wait_until(lambda: other.at == ["wants"])  # it may be guarded itself, beside this one
        with runner.use("m", never) as model:
            assert texts(model.run(requests(20), never, "job")) == expected(20)
        threading.Event().wait(0.1)
        assert other.at == ["wants"]
    other.end()
    assert other.at == ["wants", "alone", "done"]


def test_nobody_begins_while_another_has_it_alone(runner: Runner) -> None:
    go_on = threading.Event()
    first = Other(alone(runner, go_on))
    wait_until(lambda: "alone" in first.at)
    ending = threading.Event()
    threading.Timer(0.1, ending.set).start()
    with pytest.raises(Stopped), runner.alone.guarded(ending.is_set):  # a worker that is told to end
        raise AssertionError("not reached")

    def begin(at: list[str]) -> None:
        with runner.alone.guarded(never):
            at.append("begun")

    second = Other(begin)
    threading.Event().wait(0.1)
    assert second.at == []
    go_on.set()
    second.end()
    first.end()


def test_who_waits_for_another_model_is_not_guarded(runner: Runner) -> None:
    """It would wait for a task that waits for it. It is told, so that it can say that its waiting does not count."""
    go_on = threading.Event()
    told: list[bool] = []
    with ExitStack() as held:
        model = held.enter_context(runner.use("m", never))

        def begin(at: list[str]) -> None:
            with runner.alone.guarded(never), runner.use("n", never, told.append) as other:
                assert runner.alone.guards_here
                assert texts(other.run(requests(3), never, "job")) == expected(3)

        second = Other(begin)
        wait_until(lambda: told == [True])

        def own() -> Iterator[Request]:
            with model.alone(never):
                yield from requests(1)

        assert texts(model.run(own(), never, "job")) == expected(1)
        assert told == [True]
        go_on.set()
    second.end()
    assert told == [True, False]
    with runner.use("n", never, told.append):
        pass
    assert told == [True, False]  # nothing to wait for


def test_a_guard_ends_with_its_block_and_once(runner: Runner) -> None:
    with runner.alone.guarded(never):
        assert runner.alone.guards_here
        runner.alone.unguard()
        assert not runner.alone.guards_here
    runner.alone.unguard()
    go_on = threading.Event()
    go_on.set()
    Other(alone(runner, go_on)).end()
