"""Engine: outputs against a computation without any engine, whatever the batch, the cache and the memory."""

from __future__ import annotations

import collections
import itertools
import random
import time
import tracemalloc
from collections.abc import Iterator
from collections.abc import Sequence as Items

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine import Engine, EngineConfig, FinishReason, InvalidRequest, Output, Request, RequestTooLong, SamplingParams
from engine.drafter import Context, Guess, Speculation, StepCosts
from engine.sequence import Sequence
from tests.engine.fakes import VOCAB, HashModel, continuation, next_logits

FREE = StepCosts(((1, 1.0), (1000, 1.001)))  # verifying costs next to nothing
TEXT = [bytes([65 + token % 26]) for token in range(VOCAB)]


def build(
    *, eos: frozenset[int] = frozenset(), drafter: Oracle | None = None, model: HashModel | None = None, **sizes: object
) -> Engine:
    given_sizes = {"num_blocks": 200, "block_size": 4, "max_sequences": 8, "token_budget": 32, "num_threads": 1} | sizes
    config = EngineConfig(**given_sizes)  # type: ignore[arg-type]
    speculation = Speculation([drafter], lambda: FREE) if drafter else None
    return Engine(model or HashModel(), config, eos_token_ids=eos, token_bytes=TEXT, speculation=speculation)


def prompts(count: int, seed: int = 0) -> list[tuple[int, ...]]:
    """Of mixed length; every second one begins like the first."""
    dice = random.Random(seed)
    made = [tuple(dice.randrange(VOCAB) for _ in range(dice.randint(1, 50))) for _ in range(count)]
    return [made[0][:21] + prompt if i % 2 else prompt for i, prompt in enumerate(made)]


def run(engine: Engine, requests: Items[Request]) -> dict[object, Output]:
    outputs = {output.id: output for output in engine.generate(requests)}
    engine.check()
    stats = engine.stats()
    assert (stats.running, stats.waiting, stats.blocks_used) == (0, 0, 0)
    assert engine.idle
    return outputs


class Oracle:
    """Drafts that are right with a given probability, token by token."""

    name = "oracle"
    costly = False
    priors = (0.9,)

    def __init__(self, right: float) -> None:
        self.right = right
        self.dice = random.Random(5)

    def guess(self, contexts: Items[Context]) -> list[Guess]:
        drafts = []
        for context in contexts:
            draft = list(continuation((*context.sequence.tokens, *context.draft), 5)) if not context.draft else []
            tokens = [token if self.dice.random() < self.right else (token + 1) % VOCAB for token in draft]
            drafts.append(Guess(tokens, [0] * len(tokens)))
        return drafts

    def finish(self, sequence: Sequence) -> None:
        """Nothing is kept."""


@pytest.mark.parametrize("max_sequences", [1, 7, 64])
@pytest.mark.parametrize("prefix_caching", [True, False])
@pytest.mark.parametrize(("num_blocks", "preempts"), [(500, False), (24, True)])
def test_greedy_outputs_are_the_models_own(
    max_sequences: int, prefix_caching: bool, num_blocks: int, preempts: bool
) -> None:
    engine = build(max_sequences=max_sequences, token_budget=64, prefix_caching=prefix_caching, num_blocks=num_blocks)
    wanted = prompts(30)
    outputs = run(engine, [Request(i, prompt, SamplingParams(max_tokens=20)) for i, prompt in enumerate(wanted)])
    for i, prompt in enumerate(wanted):
        assert outputs[i].tokens == continuation(prompt, 20)
        assert (outputs[i].finish_reason, outputs[i].num_output_tokens) == (FinishReason.LENGTH, 20)
    stats = engine.stats()
    assert (stats.preemptions > 0) == (preempts and max_sequences > 1)
    assert (stats.cached_tokens > 0) == prefix_caching
    assert (stats.prompt_tokens, stats.output_tokens) == (sum(map(len, wanted)), 600)
    assert stats.cached_tokens == sum(output.num_cached_tokens for output in outputs.values())


@pytest.mark.parametrize("right", [0.0, 0.6, 1.0])
@pytest.mark.parametrize(("num_blocks", "budget"), [(500, 200), (24, 12)])
def test_drafts_change_no_output(right: float, num_blocks: int, budget: int) -> None:
    model = HashModel()
    engine = build(drafter=Oracle(right), num_blocks=num_blocks, token_budget=budget, eos=frozenset({3}), model=model)
    wanted = prompts(12)
    sampling = [SamplingParams(max_tokens=20), SamplingParams(max_tokens=20, temperature=0.3, seed=4, top_p=0.9)]
    requests = [Request(i, prompt, sampling[i % 3 == 0]) for i, prompt in enumerate(wanted)]
    outputs = run(engine, requests)
    plain = run(build(eos=frozenset({3})), requests)
    assert {i: output.tokens for i, output in outputs.items()} == {i: output.tokens for i, output in plain.items()}
    assert {output.finish_reason for output in outputs.values()} == {FinishReason.LENGTH, FinishReason.STOP}
    if right == 1.0 and num_blocks == 500:
        assert engine.stats().steps < 30, "six tokens a step"


@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_any_mix_of_requests_gives_what_each_gives_alone(data: st.DataObject) -> None:
    engine = build(
        num_blocks=data.draw(st.integers(14, 40)),
        block_size=data.draw(st.sampled_from([1, 3, 4])) if data.draw(st.booleans()) else 4,
        max_sequences=data.draw(st.integers(1, 6)),
        token_budget=data.draw(st.integers(6, 30)),
        prefix_caching=data.draw(st.booleans()),
        drafter=Oracle(0.7) if data.draw(st.booleans()) else None,
    )
    tokens = st.lists(st.integers(0, 1), min_size=1, max_size=8).map(tuple)
    wanted = data.draw(st.lists(tokens, min_size=1, max_size=8))
    requests = [Request(i, prompt, SamplingParams(max_tokens=6)) for i, prompt in enumerate(wanted)]
    outputs = run(engine, requests)
    for i, prompt in enumerate(wanted):
        assert outputs[i].tokens == continuation(prompt, 6)


def test_a_seed_repeats_in_any_company() -> None:
    seeded = Request("s", prompts(1)[0], SamplingParams(max_tokens=20, temperature=1.0, seed=9))
    alone = run(build(), [seeded])["s"].tokens
    crowd = [
        Request(i, prompt, SamplingParams(max_tokens=9, temperature=1.0, top_k=i % 5))
        for i, prompt in enumerate(prompts(15))
    ]
    assert run(build(num_blocks=30), [*crowd[:7], seeded, *crowd[7:]])["s"].tokens == alone
    assert (
        run(build(), [Request("s", seeded.prompt, SamplingParams(max_tokens=20, temperature=1.0, seed=8))])["s"].tokens
        != alone
    )


def test_without_a_seed_outputs_differ() -> None:
    sampling = SamplingParams(max_tokens=20, temperature=1.0)
    outputs = run(build(), [Request(i, (1, 2, 3), sampling) for i in range(4)])
    assert len({output.tokens for output in outputs.values()}) == 4


def test_stop_token_is_counted_and_left_out() -> None:
    greedy = continuation((1, 2, 3), 20)
    stop = greedy[7]
    first = greedy.index(stop)
    output = run(build(), [Request("a", (1, 2, 3), SamplingParams(stop_token_ids=(stop,), logprobs=1))])["a"]
    assert (output.tokens, output.stopped_by) == (greedy[:first], stop)
    assert (output.num_output_tokens, output.finish_reason) == (first + 1, FinishReason.STOP)
    assert output.logprobs is not None
    assert [each.token for each in output.logprobs] == list(output.tokens)


def test_stop_string_keeps_the_token_that_completes_it() -> None:
    greedy = continuation((1, 2, 3), 20)
    text = b"".join(TEXT[token] for token in greedy).decode()
    stop = text[4:7]
    end = text.index(stop) + 3
    output = run(build(), [Request("a", (1, 2, 3), SamplingParams(stop=("zzz", stop)))])["a"]
    assert (output.tokens, output.stopped_by) == (greedy[:end], stop)


def brute_force(prompt: tuple[int, ...], choices: Items[tuple[int, ...]]) -> list[float]:
    scores = []
    for choice in choices:
        total, tokens = 0.0, list(prompt)
        for token in choice:
            total += next_logits(tokens).log_softmax(-1)[token].item()
            tokens.append(token)
        scores.append(total)
    return scores


@pytest.mark.parametrize("num_blocks", [200, 16])
@pytest.mark.parametrize("budget", [8, 64])
def test_choices_are_scored_exactly(num_blocks: int, budget: int) -> None:
    lists = [
        ((1,), (2,), (3,)),
        ((1, 2, 3), (1, 2, 4), (1, 5), (6, 7, 8, 9), (6,)),
        tuple((a, b) for a in range(4) for b in range(4)),
    ]
    engine = build(num_blocks=num_blocks, token_budget=budget)
    wanted = prompts(12)
    requests = [Request(i, prompt[:40], choices=lists[i % 3]) for i, prompt in enumerate(wanted)]
    generating = [Request(f"g{i}", prompt[:30], SamplingParams(max_tokens=12)) for i, prompt in enumerate(wanted)]
    outputs = run(engine, [each for pair in zip(requests, generating, strict=True) for each in pair])
    for request in requests:
        output = outputs[request.id]
        scores = brute_force(request.prompt, request.choices)
        assert output.choice_logprobs == pytest.approx(scores, abs=1e-4)
        assert output.tokens == request.choices[scores.index(max(scores))]
        assert (output.finish_reason, output.num_output_tokens) == (FinishReason.STOP, len(output.tokens))
    for request in generating:
        assert outputs[request.id].tokens == continuation(request.prompt, 12)
    assert (engine.stats().preemptions > 0) == (num_blocks == 16)


def test_single_token_choices_take_one_step_and_no_token_more_than_the_prompt() -> None:
    engine = build()
    run(engine, [Request("a", (1, 2, 3), choices=((4,), (5,)))])
    assert (engine.stats().steps, engine.stats().computed_tokens) == (1, 3)


def test_choices_with_shared_beginnings_compute_each_inner_node_once() -> None:
    engine = build()
    run(engine, [Request("a", (1, 2, 3), choices=((4, 5, 6), (4, 5, 7), (4, 8, 9), (2, 1)))])
    assert engine.stats().computed_tokens == 3 + 4  # (4), (4, 5), (4, 8), (2)


def test_generate_pulls_only_as_there_is_room() -> None:
    """An endless source is pulled a little ahead, however long it goes on."""
    pulled = 0

    def endless() -> Iterator[Request]:
        nonlocal pulled
        for pulled in itertools.count(1):
            yield Request(pulled, (pulled % VOCAB, 1, 2), SamplingParams(max_tokens=3))

    engine = build(max_sequences=4)
    outputs = engine.generate(endless())
    most = 0
    for done, output in enumerate(itertools.islice(outputs, 500), 1):
        assert output.tokens == continuation((int(str(output.id)) % VOCAB, 1, 2), 3)
        most = max(most, pulled - done)
        assert len(engine._sequences) <= 8
    assert most <= 12
    outputs.close()
    assert not engine._sequences
    assert {output.finish_reason for output in engine.step()} <= {FinishReason.CANCELLED}
    assert engine.idle
    engine.check()


def test_memory_does_not_grow_with_the_number_of_requests() -> None:
    engine = build(num_blocks=40)
    outputs = engine.generate(Request(i, (i % VOCAB, 1), SamplingParams(max_tokens=2)) for i in itertools.count())
    collections.deque(itertools.islice(outputs, 100), maxlen=0)
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        collections.deque(itertools.islice(outputs, 1000), maxlen=0)
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    outputs.close()
    assert after - before < 50_000


def test_abort_of_running_waiting_and_unknown_requests() -> None:
    engine = build(max_sequences=1)
    engine.add(Request("a", (1, 2, 3)))
    engine.add(Request("b", (4, 5)))
    assert engine.step() == []
    assert engine.abort("a")
    assert engine.abort("b")
    assert not engine.abort("a")
    assert not engine.abort("c")
    assert not engine.idle
    outputs = {output.id: output for output in engine.step()}
    assert {output.finish_reason for output in outputs.values()} == {FinishReason.CANCELLED}
    assert outputs["a"].tokens == continuation((1, 2, 3), 1)
    assert (outputs["b"].tokens, outputs["b"].num_prompt_tokens) == ((), 2)
    assert engine.idle
    assert engine.step() == []
    engine.check()


def test_an_id_may_be_used_again_when_its_request_is_over() -> None:
    engine = build()
    engine.add(Request("a", (1,)))
    with pytest.raises(InvalidRequest, match="id='a': is in flight already"):
        engine.add(Request("a", (2,)))
    engine.abort("a")
    engine.add(Request("a", (2,), SamplingParams(max_tokens=1)))
    assert [(output.id, output.finish_reason) for output in engine.step()] == [
        ("a", FinishReason.CANCELLED),
        ("a", FinishReason.LENGTH),
    ]


def test_what_can_never_fit_is_refused_at_once() -> None:
    engine = build(max_model_len=20, num_blocks=4)  # 16 tokens of cache
    with pytest.raises(RequestTooLong) as caught:
        engine.add(Request("a", (1,) * 11, SamplingParams(max_tokens=10)))
    assert (caught.value.num_tokens, caught.value.limit, caught.value.limit_name) == (21, 20, "max_model_len")
    with pytest.raises(RequestTooLong) as caught:
        engine.add(Request("a", (1,) * 10, SamplingParams(max_tokens=8)))
    assert (caught.value.num_tokens, caught.value.limit, caught.value.limit_name) == (17, 16, "the whole cache")
    with pytest.raises(RequestTooLong):
        engine.add(Request("a", (1,) * 14, choices=((1, 2, 3, 4), (5,))))
    assert engine.idle
    fits = Request("a", (1,) * 10, SamplingParams(max_tokens=7))
    assert run(engine, [fits])["a"].tokens == continuation(fits.prompt, 7)


@pytest.mark.parametrize(
    ("request_", "field", "value"),
    [
        (Request("a", (1, VOCAB)), "prompt", VOCAB),
        (Request("a", (-1, 1)), "prompt", -1),
        (Request("a", (1,), choices=((1,), (2, VOCAB + 5))), "choices", VOCAB + 5),
        (Request("a", (1,), SamplingParams(stop_token_ids=(VOCAB,))), "stop_token_ids", VOCAB),
    ],
)
def test_tokens_that_the_model_does_not_have_are_refused(request_: Request, field: str, value: int) -> None:
    engine = build()
    with pytest.raises(InvalidRequest) as caught:
        engine.add(request_)
    assert (caught.value.field, caught.value.value) == (field, value)
    assert engine.idle


def test_stop_strings_need_the_tokens_text() -> None:
    engine = Engine(HashModel(), EngineConfig(num_blocks=10), eos_token_ids=frozenset())
    with pytest.raises(InvalidRequest, match="does not know the text of its tokens"):
        engine.add(Request("a", (1,), SamplingParams(max_tokens=9, stop=("x",))))


def test_generate_turns_refusals_into_outputs() -> None:
    engine = build(max_model_len=20)
    outputs = run(
        engine,
        [
            Request("long", (1,) * 30),
            Request("bad", (VOCAB,), SamplingParams(max_tokens=2)),
            Request("good", (1,), SamplingParams(max_tokens=2)),
        ],
    )
    assert (outputs["long"].finish_reason, outputs["long"].error_code) == (FinishReason.ERROR, "request_too_long")
    assert outputs["long"].error == "286 tokens (prompt and output) exceed max_model_len of 20"
    assert (outputs["bad"].finish_reason, outputs["bad"].error_code) == (FinishReason.ERROR, "invalid_request")
    assert outputs["good"].tokens == continuation((1,), 2)


def test_a_model_shorter_than_asked_for_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="is more than the model's 64"):
        build(model=HashModel(max_position=64), max_model_len=65)
    assert build(model=HashModel(max_position=64)).max_model_len == 64


class Poisoned(HashModel):
    """Says nonsense after token 13."""

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        made = super().logits(hidden)
        made[hidden[:, 0] == 14] = torch.nan
        return made


@pytest.mark.parametrize("choices", [(), ((1, 2), (3,))])
def test_logits_that_are_no_numbers_fail_one_request_alone(choices: tuple[tuple[int, ...], ...]) -> None:
    engine = build(model=Poisoned())
    outputs = run(engine, [Request("bad", (13,), choices=choices), Request("good", (1,), SamplingParams(max_tokens=3))])
    assert (outputs["bad"].finish_reason, outputs["bad"].error_code) == (FinishReason.ERROR, "invalid_logits")
    assert outputs["bad"].tokens == ()
    assert outputs["good"].tokens == continuation((1,), 3)


def test_has_room_keeps_the_queue_short() -> None:
    engine = build(max_sequences=2)
    for i in range(2):
        assert engine.has_room
        engine.add(Request(i, (1,)))
    assert not engine.has_room
    engine.step()
    assert engine.has_room


def test_no_step_computes_more_than_the_budget() -> None:
    model = HashModel()
    engine = build(model=model, token_budget=16)
    run(engine, [Request(i, prompt, SamplingParams(max_tokens=4)) for i, prompt in enumerate(prompts(12))])
    assert max(model.batches) == 16
    assert sum(model.batches) == engine.stats().computed_tokens
    engine.close()


def test_times_of_a_request() -> None:
    """One waits for the other; nothing of the time that the engine was asked for is counted twice."""
    engine = build(max_sequences=1, token_budget=8)
    sampling = SamplingParams(max_tokens=5, ignore_eos=True)
    began = time.perf_counter()
    for name in "ab":
        engine.add(Request(name, prompts(1)[0][:20], sampling))
    outputs: dict[object, Output] = {}
    while not engine.idle:
        outputs |= {output.id: output for output in engine.step()}
    seconds = time.perf_counter() - began
    first, second = outputs["a"].times, outputs["b"].times
    assert first is not None
    assert second is not None
    assert min(first.prefill, first.decode, second.prefill, second.decode) > 0
    assert second.waited >= first.prefill + first.decode > first.waited >= 0
    assert sum(first) <= sum(second) <= seconds


def test_what_never_ran_has_no_times() -> None:
    engine = build(max_sequences=1)
    sampling = SamplingParams(max_tokens=5, ignore_eos=True)
    for name in "ab":
        engine.add(Request(name, (1, 2, 3), sampling))
    engine.step()
    engine.abort("b")
    (aborted,) = engine.step()
    assert (aborted.id, aborted.finish_reason, aborted.times) == ("b", FinishReason.CANCELLED, None)


@pytest.mark.parametrize("num_blocks", [200, 9])
def test_choices_and_preempted_requests_have_times(num_blocks: int) -> None:
    engine = build(num_blocks=num_blocks, prefix_caching=False)
    plain = [Request(n, prompts(4)[n][:12], SamplingParams(max_tokens=12, ignore_eos=True)) for n in range(4)]
    outputs = run(engine, [*plain, Request("c", (1, 2, 3), choices=((4, 5), (4, 6)))])
    assert (engine.stats().preemptions > 0) == (num_blocks == 9)
    assert all(output.times is not None and min(output.times) >= 0 for output in outputs.values())
