"""Runner: one engine thread for many tasks. Fairness, back-pressure, aborts, a broken engine, a change of model."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest

from engine.errors import EngineError
from engine.request import FinishReason, Request
from tests.worker.fakes import FakeEngine, FakeModel
from worker.runner import Runner
from worker.sources import MAX_READY, MAX_UNDELIVERED, EngineFailed, Stopped


def never() -> bool:
    return False


def requests(count: int, first: int = 0) -> Iterator[Request]:
    return (Request(index, tuple(b"row%d" % index)) for index in range(first, first + count))


def texts(outputs: object) -> dict[object, str]:
    return {output.id: bytes(output.tokens).decode() for output in outputs}  # type: ignore[attr-defined]


def expected(count: int, first: int = 0) -> dict[object, str]:
    return {index: f"ROW{index}" for index in range(first, first + count)}


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline, "never came true"
        time.sleep(0.005)


class Loader:
    """Hands out fake models and remembers them."""

    def __init__(self, **engine: object) -> None:
        self.engine = engine
        self.loaded: list[tuple[str, FakeModel]] = []

    def __call__(self, name: str) -> FakeModel:
        if name == "missing":
            raise EngineError("no such model")
        self.loaded.append((name, FakeModel(FakeEngine(**self.engine))))  # type: ignore[arg-type]
        return self.loaded[-1][1]

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.loaded]

    @property
    def last(self) -> FakeEngine:
        return self.loaded[-1][1].engine


@pytest.fixture
def loader() -> Loader:
    return Loader()


@pytest.fixture
def runner(loader: Loader) -> Iterator[Runner]:
    made = Runner(loader)  # type: ignore[arg-type]
    yield made
    made.close()


def test_every_request_is_answered_once(runner: Runner) -> None:
    with runner.use("m", never) as model:
        assert (model.name, model.fingerprint, model.max_model_len) == ("m", "f" * 16, 4096)
        outputs = list(model.run(requests(500), never, "job"))
    assert len(outputs) == 500
    assert texts(outputs) == expected(500)


def test_no_requests(runner: Runner) -> None:
    with runner.use("m", never) as model:
        assert list(model.run(iter(()), never, "job")) == []


def test_equal_ids_of_two_tasks_do_not_meet(runner: Runner) -> None:
    got: dict[int, dict[object, str]] = {}

    def task(number: int) -> None:
        with runner.use("m", never) as model:
            got[number] = texts(
                model.run((Request(i, tuple(b"%d-%d" % (number, i))) for i in range(100)), never, "job")
            )

    threads = [threading.Thread(target=task, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == {number: {i: f"{number}-{i}" for i in range(100)} for number in range(4)}


def test_the_same_request_is_computed_once(runner: Runner, loader: Loader) -> None:
    def same(count: int) -> Iterator[Request]:
        return (Request(i, tuple(b"%d" % (i % 10))) for i in range(count))

    with runner.use("m", never) as model:
        outputs = list(model.run(same(200), never, "job", reuse="t"))
        assert texts(outputs) == {i: str(i % 10) for i in range(200)}
        assert sum(not output.reused for output in outputs) == len(loader.last.added) < 200
        before = len(loader.last.added)
        assert len(list(model.run(same(20), never, "job"))) == 20
        assert len(loader.last.added) == before + 20, "every request is computed where that is wanted"


def test_a_task_that_gives_up_takes_no_answer_from_the_others(runner: Runner, loader: Loader) -> None:
    with runner.use("m", never) as model:
        given_up = model.run(requests(100), never, "job", reuse="t")
        next(given_up)
        kept = model.run(requests(100), never, "job", reuse="t")
        first = next(kept)
        given_up.close()
        assert texts([first, *kept]) == expected(100)


def test_tasks_take_turns(runner: Runner, loader: Loader) -> None:
    """Two tasks that both have requests ready are served one by one, whoever came first."""
    with runner.use("m", never) as model:
        engine = loader.last
        gate = threading.Event()
        engine.step = lambda step=engine.step: (gate.wait(), step())[1]  # type: ignore[method-assign,func-returns-value,misc]
        first, second = model.run(requests(100), never, "job"), model.run(requests(100), never, "job")
        threads = [threading.Thread(target=next, args=(source,)) for source in (first, second)]
        for thread in threads:
            thread.start()
        wait_until(lambda: [len(source.ready) > MAX_READY // 2 for source in runner._sources] == [True, True])
        before = len(engine.added)
        gate.set()
        for thread in threads:
            thread.join()
        first.close()
        second.close()
    order = [source for source, _ in engine.added[before : before + 8]]  # type: ignore[misc]
    assert sorted([order[:4], order[4:]]) in ([[0, 1, 0, 1]] * 2, [[1, 0, 1, 0]] * 2)


def test_requests_are_pulled_only_as_the_engine_has_room(runner: Runner, loader: Loader) -> None:
    pulled = 0

    def counted() -> Iterator[Request]:
        nonlocal pulled
        for request in requests(10_000):
            pulled += 1
            yield request

    with runner.use("m", never) as model:
        outputs = model.run(counted(), never, "job")
        taken = [next(outputs) for _ in range(50)]
        # What the engine and both buffers hold, and no more, although nobody has looked for a while.
        wait_until(lambda: loader.last.idle)
        bound = len(taken) + MAX_UNDELIVERED + MAX_READY + 16
        assert pulled <= bound
        outputs.close()


def test_a_slow_task_is_not_pulled_further(runner: Runner, loader: Loader) -> None:
    with runner.use("m", never) as model:
        engine = loader.last
        outputs = model.run(requests(10_000), never, "job")
        for _ in range(1000):
            next(outputs)
        wait_until(lambda: engine.idle)
        (source,) = runner._sources
        assert len(source.outputs) <= MAX_UNDELIVERED + 16
        outputs.close()


def test_a_pause_is_asked_again_after_an_output(runner: Runner) -> None:
    """No more than four requests are open at once when the iterator says so."""
    open_now = most = 0

    def careful() -> Iterator[Request | None]:
        nonlocal open_now, most
        for request in requests(40):
            while open_now == 4:
                yield None
            open_now += 1
            most = max(most, open_now)
            yield request

    with runner.use("m", never) as model:
        seen = []
        for output in model.run(careful(), never, "job"):
            open_now -= 1
            seen.append(output.id)
    assert sorted(seen) == list(range(40))
    assert most == 4


def test_who_waits_for_an_engine_that_fails_does_not_get_it(runner: Runner, loader: Loader) -> None:
    """Its rows would be marked as suspects of what others' rows did."""
    with runner.use("m", never) as model:
        outputs = model.run(requests(1), never, "job")
        assert next(outputs).id == 0
        runner._drop(EngineFailed("m", RuntimeError("poison")))
        with pytest.raises(EngineFailed, match="it ended with another shard's rows"), model.alone(never):
            raise AssertionError("not reached")
        outputs.close()


def test_closing_aborts_what_is_in_the_engine(runner: Runner, loader: Loader) -> None:
    loader.engine = {"step_seconds": 0.001}
    with runner.use("m", never) as model:
        outputs = model.run(requests(100), never, "job")
        next(outputs)
        outputs.close()
        engine = loader.last
        wait_until(lambda: engine.idle and bool(engine.aborted))
        assert set(engine.aborted) <= set(engine.added)
        assert texts(model.run(requests(3), never, "job")) == expected(3)


def test_an_error_of_the_requests_reaches_their_task_alone(runner: Runner) -> None:
    def broken() -> Iterator[Request]:
        yield from requests(10)
        raise LookupError("no more rows")

    with runner.use("m", never) as model:
        with pytest.raises(LookupError, match="no more rows"):
            list(model.run(broken(), never, "job"))
        assert texts(model.run(requests(3), never, "job")) == expected(3)


def test_stop(runner: Runner, loader: Loader) -> None:
    stop = threading.Event()
    with runner.use("m", never) as model:
        outputs = model.run(requests(10_000), stop.is_set, "job")
        next(outputs)
        stop.set()
        with pytest.raises(Stopped):
            list(outputs)
        wait_until(lambda: loader.last.idle)


def test_stop_while_waiting_for_a_model(runner: Runner) -> None:
    stop = threading.Event()
    with runner.use("a", never):
        threading.Timer(0.1, stop.set).start()
        with pytest.raises(Stopped), runner.use("b", stop.is_set):
            pass
    with runner.use("a", never):
        assert runner.model == "a"


def test_a_request_the_engine_refuses_is_an_output(runner: Runner, loader: Loader) -> None:
    loader.engine = {"max_model_len": 300}
    with runner.use("m", never) as model:
        (output,) = model.run(iter([Request(7, (1,) * 100)]), never, "job")
    assert (output.id, output.finish_reason, output.num_prompt_tokens) == (7, FinishReason.ERROR, 100)
    assert output.error_code == "request_too_long"
    assert output.error == "356 tokens (prompt and output) exceed max_model_len of 300"


def test_a_broken_engine_fails_its_tasks_and_is_built_anew(runner: Runner, loader: Loader) -> None:
    loader.engine = {"crash_at": 3}
    with runner.use("m", never) as model:
        with pytest.raises(EngineFailed) as caught:
            list(model.run(requests(100), never, "job"))
        assert str(caught.value) == "the engine of model 'm' failed: RuntimeError: the fake engine broke"
        with pytest.raises(EngineFailed):
            list(model.run(requests(1), never, "job"))
    assert loader.last.closed
    loader.engine = {}
    with runner.use("m", never) as model:
        assert texts(model.run(requests(3), never, "job")) == expected(3)
    assert loader.names == ["m", "m"]


def test_a_model_that_does_not_load(runner: Runner) -> None:
    with pytest.raises(EngineError, match="no such model"), runner.use("missing", never):
        pass
    with runner.use("m", never):
        assert runner.model == "m"


def test_the_model_stays_loaded_between_tasks(runner: Runner, loader: Loader) -> None:
    for _ in range(3):
        with runner.use("m", never):
            pass
    assert loader.names == ["m"]


def test_models_take_turns_in_order_of_arrival(runner: Runner, loader: Loader) -> None:
    """a runs; b waits; a second a comes after b and must not overtake it."""
    order: list[str] = []

    def task(name: str, leave: threading.Event) -> None:
        with runner.use(name, never):
            order.append(name)
            leave.wait()

    leaves = [threading.Event() for _ in range(3)]
    threads = [threading.Thread(target=task, args=pair) for pair in zip("aba", leaves, strict=True)]
    for position, thread in enumerate(threads):
        thread.start()
        wait_until(lambda position=position: len(order) + len(runner._turns._waiting) == position + 1)  # type: ignore[misc]
    time.sleep(0.05)
    assert order == ["a"]
    leaves[0].set()
    wait_until(lambda: order == ["a", "b"])
    assert loader.loaded[0][1].engine.closed
    for leave in leaves[1:]:
        leave.set()
    for thread in threads:
        thread.join()
    assert order == ["a", "b", "a"]
    assert loader.names == ["a", "b", "a"]


def test_close_fails_the_tasks_inside(loader: Loader) -> None:
    runner = Runner(loader)  # type: ignore[arg-type]
    with runner.use("m", never) as model:
        outputs = model.run(requests(100_000), never, "job")
        next(outputs)
        runner.close()
        with pytest.raises(EngineFailed, match="the worker is closing"):
            list(outputs)
    with pytest.raises(Stopped), runner.use("m", never):
        pass
