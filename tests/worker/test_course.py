"""A job's rows at known prices: steps that can be counted by hand."""

from __future__ import annotations

import random

import pytest

from engine.config import EngineConfig
from engine.request import FinishReason, Request
from engine.simulation import FittedCost, SimulatedRequest, Work
from tests.worker.fakes import FakeEngine, FakeModel
from worker.course import Asked, course_of, donors_of, requests_of, stretched
from worker.frame import Seen, Stratum
from worker.rows import Asking, Result
from worker.runner import Runner
from worker.timings import TimedStep
from worker.trial import FEWEST_STEPS, MOST_AGAIN, Speed, Tried, more_steps, speed_of

CONFIG = EngineConfig(max_sequences=2, token_budget=64, num_blocks=64)
STEP = FittedCost((1.0, 0, 0, 0, 0, 0), 0.0)  # a second for every step


def row(number: int, num_output: int) -> Asked:
    return Asked((SimulatedRequest(tuple(range(100 * number, 100 * number + 8)), num_output),), num_output)


def seen(index: int) -> Seen:
    return Seen(index, Asking((Request(index, (index, 1)),)), None, None)


def test_steps_are_the_schedulers() -> None:
    """Two at a time, three tokens each: the prompt's step gives the first, so that each pair takes three steps."""
    course = course_of([row(i, 3) for i in range(4)], [], 4, CONFIG, Speed(STEP, 1.0, 0.0, 0.0))
    assert (course.seconds, course.steps, course.occupancy) == (6.0, 6, 1.0)
    assert course.cached_share == 0.0


def test_what_the_split_computes_comes_before_and_serves_the_cache() -> None:
    prompt = tuple(range(32))
    rows = [Asked((SimulatedRequest((*prompt, 99), 1),), 1)]
    course = course_of(rows, [prompt], 1, CONFIG, Speed(STEP, 1.0, 0.0, 0.0))
    assert (course.seconds, course.steps) == (2.0, 1)
    assert course.cached_share == pytest.approx(32 / 33)


def test_level_and_extra() -> None:
    course = course_of([row(i, 3) for i in range(4)], [], 4, CONFIG, Speed(STEP, 2.0, 0.5, 0.0))
    assert course.seconds == 2.0 * (6.0 + 0.5 * 12)
    assert Speed(STEP, 1.0, -9.0, 0.0).seconds(10.0, 5.0) == 2.0


def test_more_rows_than_were_read_take_as_long_each() -> None:
    rows = [row(i, 3) for i in range(256)]
    assert course_of(rows, [], 25_600, CONFIG, Speed(STEP, 1.0, 0.0, 0.0)).seconds == pytest.approx(3 * 12_800)
    assert course_of(rows, [], 64, CONFIG, Speed(STEP, 1.0, 0.0, 0.0)).seconds == 3 * 32


def test_rows_that_were_not_computed_answer_as_one_of_their_stratum() -> None:
    strata = [
        Stratum((seen(0), seen(1), seen(2)), (seen(0),)),
        Stratum((seen(3), seen(4)), (seen(4),)),
    ]
    assert donors_of(strata, random.Random(1)) == {0: 0, 1: 0, 2: 0, 3: 4, 4: 4}
    assert stretched({0: 10, 1: 1, 2: 90}, 1.5, 96) == {0: 15, 1: 2, 2: 96}
    assert requests_of([seen(3)], {3: 9}, {}) == [Asked((SimulatedRequest((3, 1), 9),), 9)]
    choice = Seen(5, Asking((Request(5, (1,), choices=((1,), (2,))),)), None, None)
    assert requests_of([choice], {5: 4}, {}) == [Asked((SimulatedRequest((1,), 1),), 4)]


def test_what_a_row_asks_for_later_is_simulated_too() -> None:
    """The answers' tokens are shared out evenly. What another row asked for begins as this row's prompts do, and goes
    on as no other's does."""
    later = (Request((9, 1), (3, 7, 8)), Request((9, 2), (8, 9)), Request((9, 3), (3,)))
    asked = requests_of([seen(3), seen(4)], {3: 12, 4: 8}, {3: later})
    prompts = ((3, 1), (3, -4, 8), (-4, 9), (-4,))
    assert asked[0] == Asked(tuple(SimulatedRequest(prompt, 3) for prompt in prompts), 12)
    assert asked[1] == Asked((SimulatedRequest((4, 1), 8),), 8)


def test_prices_come_from_the_steps_and_one_that_was_disturbed_counts_not() -> None:
    work = [Work(10 * count, count, count, count, count) for count in range(1, 9)]
    steps = [TimedStep(0.01 + 0.001 * each.tokens, each) for each in work]
    tried = Tried({0: Result({}, FinishReason.STOP.value, output_tokens=10)}, steps, False)
    total = sum(step.seconds for step in steps)
    speed = speed_of([*steps, TimedStep(9.0, work[0])], tried, lambda cost: total / 2)
    assert speed is not None
    assert speed.cost.seconds(work[3]) == pytest.approx(steps[3].seconds, rel=1e-6)
    assert speed.level == pytest.approx(1.0)
    assert speed.extra == pytest.approx(total / 2 / 10)
    assert speed_of([], tried, lambda cost: 0.0) is None


def test_beside_other_jobs_nothing_is_made_of_what_the_steps_did() -> None:
    steps = [TimedStep(1.0, Work(1, 1, 1, 1, 1))]
    tried = Tried({0: Result({}, "stop", output_tokens=10)}, steps, True)
    speed = speed_of(steps, tried, lambda cost: 99.0)
    assert speed is not None
    assert speed.extra == 0.0


def test_a_trial_of_few_steps_is_timed_again_and_finds_nothing_of_itself_in_the_cache() -> None:
    added: list[Request] = []
    engine = FakeEngine()
    add = engine.add
    engine.add = lambda request: (added.append(request), add(request))[1]  # type: ignore[method-assign,assignment]
    runner = Runner(lambda name: FakeModel(engine))  # type: ignore[arg-type,return-value]
    rows = [Seen(index, Asking((Request(index, (1, index)),)), None, None) for index in range(3)]
    step = TimedStep(1.0, Work(1, 1, 1, 1, 1))
    try:
        with runner.use("m", lambda: False) as model:
            many = Tried({}, [step] * FEWEST_STEPS, False)
            assert more_steps(rows, many, model, lambda: False, "plan") == ()
            assert added == []
            few = more_steps(rows, Tried({}, [step], False), model, lambda: False, "plan")
    finally:
        runner.close()
    assert len(few) >= 1
    turns = [added[first : first + 3] for first in range(0, len(added), 3)]
    assert 1 <= len(turns) <= MOST_AGAIN
    assert [{request.prompt for request in turn} for turn in turns] == [{(1, 0), (1, 1), (1, 2)}] * len(turns)
    assert [{request.owner for request in turn} for turn in turns] == [{f"plan {n}"} for n in range(len(turns))]
