"""Structured outputs through the whole engine, against masked decoding without any engine."""

from __future__ import annotations

import json
from collections.abc import Sequence as Items

import jsonschema
import pytest

from engine import Engine, EngineConfig, FinishReason, Format, InvalidRequest, Output, Request, SamplingParams
from engine import UnsupportedFormat as Refused
from engine.drafter import ForcedDrafter, HistoryDrafter, PromptDrafter, Speculation, StepCosts
from tests.engine.fakes import HashModel
from tests.engine.grammar.languages import END, RECORD, grammars, held_continuation, text_of, texts, vocab_size

FREE = StepCosts(((1, 1.0), (1000, 1.001)))  # verifying costs next to nothing
FORMAT = Format.schema(RECORD)
BACKEND = grammars()


def build(*, speculate: bool = False, **sizes: object) -> Engine:
    given = {"num_blocks": 400, "block_size": 4, "max_sequences": 8, "token_budget": 64, "num_threads": 1} | sizes
    drafters = [ForcedDrafter(BACKEND), HistoryDrafter(), PromptDrafter()]
    return Engine(
        HashModel(vocab_size()),
        EngineConfig(**given),  # type: ignore[arg-type]
        eos_token_ids=frozenset({END}),
        token_bytes=texts(),
        grammars=BACKEND,
        speculation=Speculation(drafters, lambda: FREE) if speculate else None,
    )


def run(engine: Engine, requests: Items[Request]) -> dict[object, Output]:
    outputs = {output.id: output for output in engine.generate(requests)}
    engine.check()
    assert engine.stats().blocks_used == 0
    assert engine.idle
    return outputs


def prompt(i: int) -> tuple[int, ...]:
    return tuple((7 * i + 3 * j) % vocab_size() for j in range(5 + i % 11))


@pytest.mark.parametrize("speculate", [False, True])
@pytest.mark.parametrize(("num_blocks", "preempts"), [(400, False), (40, True)])
def test_greedy_outputs_are_those_of_masked_decoding(speculate: bool, num_blocks: int, preempts: bool) -> None:
    engine = build(speculate=speculate, num_blocks=num_blocks)
    outputs = run(engine, [Request(i, prompt(i), SamplingParams(max_tokens=90), format=FORMAT) for i in range(16)])
    for i, output in outputs.items():
        assert isinstance(i, int)
        expected = held_continuation(BACKEND, prompt(i), FORMAT, 90)
        assert output.tokens == expected
        if len(expected) < 90:
            assert output.finish_reason is FinishReason.STOP
            assert output.stopped_by is None
            assert output.num_output_tokens == len(expected)
            jsonschema.validate(json.loads(text_of(output.tokens)), RECORD)
    assert (engine.stats().preemptions > 0) == preempts


def test_sampled_outputs_are_valid_and_speculation_changes_none() -> None:
    requests = [
        Request(i, prompt(i), SamplingParams(temperature=1.0, seed=i, max_tokens=120), format=FORMAT) for i in range(40)
    ]
    alone, speculated = run(build(), requests), run(build(speculate=True), requests)
    finished = [output for output in alone.values() if output.finish_reason is FinishReason.STOP]
    assert len(finished) > 20
    for output in finished:
        jsonschema.validate(json.loads(text_of(output.tokens)), RECORD)
    assert {i: output.tokens for i, output in alone.items()} == {i: output.tokens for i, output in speculated.items()}


def test_speculation_takes_fewer_steps_and_counts_by_drafter() -> None:
    requests = [Request(i, prompt(i), SamplingParams(max_tokens=90), format=FORMAT) for i in range(8)]
    plain, speculated = build(), build(speculate=True)
    run(plain, requests)
    run(speculated, requests)
    assert speculated.stats().steps < 0.8 * plain.stats().steps
    assert plain.stats().drafts == ()
    forced = speculated.stats().drafts[0]
    assert forced.name == "grammar"
    assert 0 < forced.accepted <= forced.proposed
    assert forced.steps > 0
    assert speculated.stats().output_tokens == plain.stats().output_tokens


def test_output_cut_by_max_tokens_says_so() -> None:
    output = run(build(), [Request(1, prompt(1), SamplingParams(max_tokens=6), format=FORMAT)])[1]
    assert output.finish_reason is FinishReason.LENGTH
    assert output.num_output_tokens == 6
    with pytest.raises(json.JSONDecodeError):
        json.loads(text_of(output.tokens))


def test_output_that_is_whole_with_its_last_token_is_not_cut() -> None:
    format = Format.choice(["ab"])
    size = len(held_continuation(BACKEND, (5,), format, 10))
    output = run(build(), [Request(1, (5,), SamplingParams(max_tokens=size), format=format)])[1]
    assert (output.finish_reason, text_of(output.tokens)) == (FinishReason.STOP, "ab")


def test_free_and_structured_rows_share_a_step() -> None:
    requests = [
        Request(i, prompt(i), SamplingParams(max_tokens=60), format=(None, FORMAT, Format.choice(["yes", "no"]))[i % 3])
        for i in range(12)
    ]
    together = run(build(speculate=True), requests)
    for request in requests:
        assert run(build(), [request])[request.id].tokens == together[request.id].tokens
    assert {text_of(together[i].tokens) for i in (2, 5, 8, 11)} <= {"yes", "no"}


@pytest.mark.parametrize("speculate", [False, True])
def test_committed_tokens_are_the_forced_ones(speculate: bool) -> None:
    engine = build(speculate=speculate)
    requests = [Request(i, prompt(i), SamplingParams(max_tokens=90), format=FORMAT, forced="commit") for i in range(8)]
    outputs = run(engine, requests)
    start = BACKEND.start(FORMAT).forced()
    for output in outputs.values():
        assert list(output.tokens[: len(start)]) == start
        if output.finish_reason is FinishReason.STOP:
            jsonschema.validate(json.loads(text_of(output.tokens)), RECORD)
    stats = engine.stats()
    assert stats.forced_tokens >= 8 * len(start)
    assert stats.output_tokens == sum(output.num_output_tokens for output in outputs.values())


def test_an_output_that_is_forced_whole_needs_no_step() -> None:
    engine = build()
    engine.add(Request(1, prompt(1), format=Format.choice(["Q"]), forced="commit"))
    (output,) = engine.step()
    assert (text_of(output.tokens), output.finish_reason) == ("Q", FinishReason.STOP)
    assert engine.stats().steps == 0
    assert engine.idle


def test_commit_keeps_within_max_tokens() -> None:
    format = Format.choice(["yes sir", "yes madam"])
    output = run(build(), [Request(1, prompt(1), SamplingParams(max_tokens=1), format=format, forced="commit")])[1]
    assert output.num_output_tokens == 1
    assert output.finish_reason is FinishReason.LENGTH


def test_formats_are_refused_when_they_are_added() -> None:
    with pytest.raises(Refused) as caught:
        build().add(Request(1, (1,), format=Format.schema({"uniqueItems": True})))
    assert caught.value.keyword == "uniqueItems"
    (output,) = build().generate([Request(1, (1,), format=Format.schema({"not": {}}))])
    assert (output.finish_reason, output.error_code) == (FinishReason.ERROR, "unsupported_format")


def test_an_engine_without_grammars_says_so() -> None:
    engine = Engine(HashModel(), EngineConfig(num_blocks=10), eos_token_ids=frozenset())
    with pytest.raises(InvalidRequest, match="no grammars"):
        engine.add(Request(1, (1,), SamplingParams(max_tokens=5), format=FORMAT))


def test_a_grammar_that_gives_up_is_an_error_of_its_row_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    import llguidance

    from engine.grammar import compiler

    tight = llguidance.LLParserLimits(step_max_items=300, max_items_in_row=300)
    original = llguidance.LLMatcher
    monkeypatch.setattr(compiler, "LLMatcher", lambda *args, **options: original(*args, limits=tight, **options))
    hard = Format("lark", f'start: {"a " * 20}\na: "x" a a | "x" | a a')  # type: ignore[arg-type]
    engine = build()
    monkeypatch.setattr(engine._admission, "_grammars", grammars())
    engine._computation._masks._backend = engine._admission._grammars  # type: ignore[union-attr,assignment]
    outputs = run(
        engine,
        [
            Request("hard", (1,), SamplingParams(max_tokens=60), format=hard),
            Request("easy", prompt(1), SamplingParams(max_tokens=60), format=Format.choice(["yes", "no"])),
        ],
    )
    assert (outputs["hard"].finish_reason, outputs["hard"].error_code) == (FinishReason.ERROR, "grammar_error")
    assert "Too many items" in (outputs["hard"].error or "")
    assert outputs["easy"].finish_reason is FinishReason.STOP


def test_logprobs_are_those_among_the_allowed_tokens() -> None:
    request = Request(1, prompt(1), SamplingParams(logprobs=3), format=Format.choice(["yes", "no"]))
    output = run(build(), [request])[1]
    assert output.logprobs is not None
    assert len(output.logprobs) == len(output.tokens)
    assert output.logprobs[-1].logprob <= 0
    assert output.logprobs[0].top[0][0] == output.tokens[0]
