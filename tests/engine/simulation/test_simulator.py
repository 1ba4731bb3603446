"""Simulator: the real scheduler's steps, one by one or many at once."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest

from engine.config import EngineConfig
from engine.errors import InvalidRequest
from engine.simulation import Drafts, FittedCost, SimulatedRequest, Simulator, Work, simulate

CONFIG = EngineConfig(block_size=4, num_blocks=100, max_sequences=4, token_budget=8)
PER_TOKEN = FittedCost((0.0, 1.0, 0.0, 0.0, 0.0, 0.0), 0.0)
MIXED = FittedCost((0.5, 0.25, 0.125, 0.0625, 0.03125, 1.0), 0.0)  # sums of these are exact


class CountingCost:
    calls = 0

    def seconds(self, work: Work, steps: int = 1) -> float:
        self.calls += 1
        return MIXED.seconds(work, steps)


def test_every_step_is_the_schedulers() -> None:
    works: list[Work] = []
    requests = [SimulatedRequest((1,) * 5, 2), SimulatedRequest((2,) * 12, 1)]
    done = simulate(requests, replace(CONFIG, prefix_caching=False), PER_TOKEN, works=works)
    assert works == [
        Work(tokens=8, sequences=2, context=5 + 3, attended=15 + 6, rows=1),
        Work(tokens=8, sequences=2, context=6 + 10, attended=6 + (4 + 5 + 6 + 7 + 8 + 9 + 10), rows=1),
        Work(tokens=2, sequences=1, context=12, attended=11 + 12, rows=1),
    ]
    assert (done.rows, done.steps, done.computed_tokens, done.output_tokens) == (2, 3, 18, 3)
    assert done.seconds == 18.0
    assert list(done.ends) == [16.0, 18.0]
    assert done.occupancy == pytest.approx(5 / 3 / 4)
    assert done.kv_occupancy == pytest.approx((2 + 1 + 2 + 3 + 3) / 3 / 100)


def test_shared_beginnings_are_computed_once() -> None:
    requests = [SimulatedRequest.of_lengths(i, 10, 1, shared=8) for i in range(3)]
    done = simulate(requests, replace(CONFIG, token_budget=64), PER_TOKEN)
    assert (done.prompt_tokens, done.cached_tokens, done.computed_tokens) == (30, 16, 14)


def test_owners_share_nothing() -> None:
    requests = [SimulatedRequest.of_lengths(i, 10, 1, shared=8, owner=i) for i in range(3)]
    assert simulate(requests, CONFIG, PER_TOKEN).cached_tokens == 0


def test_a_long_decode_is_one_jump_and_the_sum_of_its_steps() -> None:
    cost, single = CountingCost(), CountingCost()
    done = simulate([SimulatedRequest((1,), 50)], CONFIG, cost)
    assert done == simulate([SimulatedRequest((1,), 50)], CONFIG, single, jumps=False)
    assert (cost.calls, single.calls) == (4, 50)  # the prompt, the first decode, 47 like it, the last
    assert (done.steps, done.work.context) == (50, 50 * 51 // 2)


@pytest.mark.parametrize("seed", range(24))
def test_jumps_change_nothing(seed: int) -> None:
    """Whatever waits, is preempted, shared or evicted: all counts, times and blocks are those of single steps."""
    dice = random.Random(seed)
    config = EngineConfig(
        block_size=dice.choice([1, 2, 4, 16]),
        num_blocks=dice.choice([12, 40, 200]),
        max_sequences=dice.choice([1, 3, 8]),
        token_budget=dice.choice([8, 64]),
        prefix_caching=dice.random() < 0.8,
    )
    longest = min(config.num_blocks or 0, 40)
    requests = []
    for number in range(30):
        num_prompt = dice.randint(1, longest)
        shared = dice.randint(0, num_prompt)
        requests.append(
            SimulatedRequest.of_lengths(
                number,
                num_prompt,
                dice.randint(1, 60),
                shared=shared,
                prefix=dice.randint(0, 2),
                owner=dice.choice("ab"),
            )
        )
    assert simulate(requests, config, MIXED) == simulate(requests, config, MIXED, jumps=False)
    together, single = Simulator(config, MIXED), Simulator(config, MIXED, jumps=False)
    for simulator in (together, single):
        for number, request in enumerate(requests[:8]):
            if len(request.prompt) + request.num_output <= (config.num_blocks or 0) * config.block_size:
                simulator.add(number, request)
    while not together.idle:
        ended = together.step()
        while single.steps < together.steps:
            found = single.step()
        assert found == ended
        assert (single.seconds, single.work, single.used_blocks) == (
            together.seconds,
            together.work,
            together.used_blocks,
        )
        assert vars(single._pool) == vars(together._pool)
        together.check()


def test_preemptions_are_simulated() -> None:
    requests = [SimulatedRequest.of_lengths(i, 4, 20) for i in range(3)]
    done = simulate(requests, replace(CONFIG, num_blocks=10, prefix_caching=False), PER_TOKEN)
    assert done.preemptions > 0
    assert done.computed_tokens > done.rows * (4 + 19)


def test_what_never_fits_is_refused_and_counted() -> None:
    requests = [SimulatedRequest((1,) * 10, 10), SimulatedRequest((1,) * 10, 3), SimulatedRequest((1,) * 10, 400)]
    done = simulate(requests, replace(CONFIG, max_model_len=15), PER_TOKEN)
    assert (done.rows, done.refused, done.output_tokens) == (1, 2, 3)
    assert [math.isfinite(end) for end in done.ends] == [False, True, False]
    assert simulate(requests[2:], CONFIG, PER_TOKEN).refused == 1


def test_drafts_shorten_an_output_by_what_is_accepted() -> None:
    works: list[Work] = []
    request = SimulatedRequest((1,) * 3, 12, drafts=Drafts(((2, 1), (3, 2), (0, 0))))
    done = simulate([request], CONFIG, PER_TOKEN, works=works)
    # The first step verifies two tokens behind the prompt. 2, 3, 1 tokens come of three steps, over and over.
    assert [(work.tokens, work.rows) for work in works] == [(5, 3), (4, 4), (1, 1), (3, 3), (4, 4), (1, 1)]
    assert done.output_tokens == 12


def test_a_draft_is_no_longer_than_what_is_left() -> None:
    works: list[Work] = []
    simulate([SimulatedRequest((1,) * 3, 4, drafts=Drafts(((0, 0), (9, 1))))], CONFIG, PER_TOKEN, works=works)
    assert [work.tokens for work in works] == [3, 3, 1]


def test_one_answer_guesses_and_the_other_does_not() -> None:
    drafts = Drafts(((0, 0), (1, 1)))
    requests = [SimulatedRequest((number,) * 3, 9, drafts=each) for number, each in ((1, None), (2, drafts))]
    done = simulate(requests, replace(CONFIG, max_sequences=2, token_budget=64), PER_TOKEN)
    assert (done.steps, done.output_tokens) == (9, 18)
    assert done.ends[1] < done.ends[0]


def test_bad_values_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="num_blocks"):
        simulate([], EngineConfig(), PER_TOKEN)
    with pytest.raises(InvalidRequest, match="shared=6"):
        SimulatedRequest.of_lengths(0, 5, 1, shared=6)
    with pytest.raises(InvalidRequest, match="num_output"):
        SimulatedRequest((1,), 0)
    with pytest.raises(InvalidRequest, match="prompt"):
        SimulatedRequest((), 1)
    for steps in ((), ((1, 2),), ((1, -1),)):
        with pytest.raises(InvalidRequest, match="accepted"):
            Drafts(steps)
