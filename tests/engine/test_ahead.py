"""A device gets its next step before the last one's tokens are read: the outputs are those of the plain loop, whatever
ends, is preempted, aborted or shared in between."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

pytest.importorskip("triton")

from engine import Engine, EngineConfig, FinishReason, Format, Output, Request, SamplingParams
from engine.drafter import Context, Guess, Speculation, StepCosts
from engine.sequence import Sequence
from tests.engine import device
from tests.engine.fakes import VOCAB, HashModel, continuation
from tests.engine.grammar.languages import END, RECORD, grammars, texts, vocab_size

CONFIG = EngineConfig(
    device="interpret", num_blocks=200, block_size=4, max_sequences=8, token_budget=32, num_threads=1, speculation=False
)
TEXT = [bytes([65 + token % 26]) for token in range(VOCAB)]
EOS = frozenset(range(0, VOCAB, 9))  # about every ninth token ends an output


@pytest.fixture(autouse=True)
def _device(monkeypatch: pytest.MonkeyPatch) -> None:
    device.install(monkeypatch)


def build(config: EngineConfig = CONFIG, **options: object) -> Engine:
    given: dict[str, object] = {"eos_token_ids": EOS, "token_bytes": TEXT}
    model = options.pop("model", None) or HashModel()
    return Engine(model, config, **(given | options))  # type: ignore[arg-type]


def mixed(count: int, seed: int = 0) -> list[Request]:
    """Greedy and sampled rows, some of which need the host; every second prompt begins like the first."""
    dice = random.Random(seed)
    made = []
    for i in range(count):
        prompt = tuple(dice.randrange(VOCAB) for _ in range(dice.randint(1, 40)))
        if i % 2 and made:
            prompt = made[0].prompt[:21] + prompt
        length = dice.randint(1, 30)
        kinds = (
            SamplingParams(max_tokens=length),
            SamplingParams(max_tokens=length, ignore_eos=True),
            SamplingParams(max_tokens=length, temperature=0.8, top_p=0.9, seed=i),
            SamplingParams(max_tokens=length, temperature=1.2, top_k=20, min_p=0.01, seed=i, ignore_eos=True),
            SamplingParams(max_tokens=length, stop=("AB", "Q")),
            SamplingParams(max_tokens=length, repetition_penalty=1.3),
            SamplingParams(max_tokens=length, logprobs=2, temperature=0.5, seed=i),
        )
        made.append(Request(i, prompt, kinds[dice.choice((0, 0, 1, 2, 2, 3, 4) if seed % 2 else range(7))]))
    return made


def run(engine: Engine, requests: list[Request]) -> tuple[dict[object, Output], int]:
    """The outputs, and how many steps were begun before the last one had ended."""
    outputs: dict[object, Output] = {}
    waiting, ahead = list(requests), 0
    while waiting or not engine.idle:
        while waiting and engine.has_room:
            engine.add(waiting.pop(0))
        for output in engine.step():
            assert output.id not in outputs
            outputs[output.id] = output
        engine.check()
        ahead += engine._flight is not None
    stats = engine.stats()
    assert (stats.running, stats.waiting, stats.blocks_used) == (0, 0, 0)
    generated = [output for output in outputs.values() if output.choice_logprobs is None]
    assert stats.output_tokens == sum(output.num_output_tokens for output in generated)
    return outputs, ahead


def plain(requests: list[Request], **options: object) -> dict[object, Output]:
    """What the loop of the CPU gives."""
    outputs, ahead = run(build(replace(CONFIG, device="cpu"), **options), requests)
    assert ahead == 0
    return outputs


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("num_blocks", "preempts"), [(200, False), (26, True)])
def test_outputs_are_those_of_the_plain_loop(seed: int, num_blocks: int, preempts: bool) -> None:
    requests = mixed(40, seed)
    engine = build(replace(CONFIG, num_blocks=num_blocks))
    outputs, ahead = run(engine, requests)
    expected = plain(requests)
    assert {i: replace(output, num_cached_tokens=0) for i, output in outputs.items()} == {
        i: replace(output, num_cached_tokens=0) for i, output in expected.items()
    }
    assert len(outputs) == 40
    assert ahead > 5
    assert (engine.stats().preemptions > 0) == preempts


def test_every_step_but_the_first_is_begun_ahead() -> None:
    """And no token is computed in vain where lengths alone end outputs."""
    requests = [Request(i, (i, 3), SamplingParams(max_tokens=6, ignore_eos=True)) for i in range(8)]
    engine = build()
    outputs, ahead = run(engine, requests)
    assert {i: output.tokens for i, output in outputs.items()} == {i: continuation((i, 3), 6) for i in range(8)}
    stats = engine.stats()
    assert (stats.steps, ahead, stats.computed_tokens) == (6, 5, 8 * (2 + 5))


def test_a_token_behind_the_end_is_thrown_away() -> None:
    tokens = continuation((5, 6), 30)
    last = next(i for i, token in enumerate(tokens) if i > 2 and token not in tokens[:i])
    engine = build(eos_token_ids=frozenset({tokens[last]}))
    outputs, _ = run(engine, [Request("ends", (5, 6), SamplingParams(max_tokens=30))])
    assert outputs["ends"].tokens == tokens[:last]
    assert outputs["ends"].num_output_tokens == last + 1
    assert engine.stats().computed_tokens == 2 + last + 1  # one more than is needed


def test_an_abort_between_steps() -> None:
    engine = build(replace(CONFIG, num_blocks=30))
    requests = [Request(i, (i, 3), SamplingParams(max_tokens=12, ignore_eos=True)) for i in range(6)]
    for request in requests:
        engine.add(request)
    for _ in range(4):
        assert engine.step() == []
    assert engine._flight is not None
    assert engine.abort(2)
    engine.check()
    engine.add(Request("late", (2, 3), SamplingParams(max_tokens=12, ignore_eos=True)))  # takes the row and the blocks
    outputs, _ = run(engine, [])
    assert outputs[2].finish_reason == FinishReason.CANCELLED
    assert outputs[2].tokens == continuation((2, 3), 4)
    for i in (0, 1, 3, 4, 5):
        assert outputs[i].tokens == continuation((i, 3), 12)
    assert outputs["late"].tokens == continuation((2, 3), 12)


def test_formats_and_choices_wait_for_the_host() -> None:
    """Steps with them end before the next is planned; the others go ahead."""
    model, backend = HashModel(vocab_size()), grammars()
    requests = [
        *(Request(f"json {i}", (9, i), SamplingParams(max_tokens=40), format=Format.schema(RECORD)) for i in range(4)),
        Request("labels", (30, 31), choices=((5, 6, 7), (5, 6, 8), (9,))),
        *(Request(i, (i, 7), SamplingParams(max_tokens=60, ignore_eos=True)) for i in range(6)),
    ]
    options = {"model": model, "eos_token_ids": frozenset({END}), "token_bytes": texts(), "grammars": backend}
    outputs, ahead = run(build(**options), requests)
    assert outputs == plain(requests, **options)
    assert ahead > 10


class Wrong:
    """Guesses that are never right."""

    name = "wrong"
    costly = False
    priors = (0.9,)

    def __init__(self) -> None:
        self.asked = 0

    def guess(self, contexts: list[Context]) -> list[Guess]:
        self.asked += 1
        return [Guess([1, 2, 3], [0] * 3) if self.asked < 20 else Guess([], []) for _ in contexts]

    def finish(self, sequence: Sequence) -> None:
        """Nothing is kept."""


def test_steps_go_ahead_while_guessing_rests() -> None:
    requests = [Request(i, (i, 3), SamplingParams(max_tokens=200, ignore_eos=True)) for i in range(8)]
    drafter = Wrong()
    speculation = Speculation([drafter], lambda: StepCosts(((1, 1.0), (1000, 1.001))))
    outputs, ahead = run(build(speculation=speculation), requests)
    assert {i: output.tokens for i, output in outputs.items()} == {i: continuation((i, 3), 200) for i in range(8)}
    assert 20 < drafter.asked < 60
    assert ahead > 120
