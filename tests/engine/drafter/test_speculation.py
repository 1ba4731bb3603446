"""Speculation: drafts put together from several drafters, learnt rates, pauses."""

from __future__ import annotations

from collections.abc import Sequence as Items

from engine import Format, Request, SamplingParams
from engine.drafter import Context, ForcedDrafter, Guess, Speculation, StepCosts
from engine.drafter.acceptance import Acceptance
from engine.drafter.budget import Load
from engine.drafter.speculation import PATIENCE
from engine.sequence import Sequence
from tests.engine.grammar.languages import RECORD, encode, grammars, text_of

FREE = StepCosts(((1, 1.0), (1000, 1.001)))
DEAR = StepCosts(((1, 1.0), (2, 100.0), (1000, 99_900.0)))
BUSY = Load(8, 8)


class Fixed:
    """Always guesses the same tokens behind an empty draft, or behind any."""

    def __init__(self, name: str, tokens: list[int], prior: float = 0.9, *, always: bool = False) -> None:
        self.name = name
        self.costly = False
        self.priors = (prior,)
        self.tokens = tokens
        self.always = always
        self.asked = 0
        self.finished: list[Sequence] = []

    def guess(self, contexts: Items[Context]) -> list[Guess]:
        self.asked += len(contexts)
        fits = [self.always or not context.draft for context in contexts]
        return [Guess(self.tokens, [0] * len(self.tokens)) if fit else Guess([], []) for fit in fits]

    def finish(self, sequence: Sequence) -> None:
        self.finished.append(sequence)


def sequence(*, structured: bool = False, max_tokens: int = 50) -> Sequence:
    format = Format.schema(RECORD) if structured else None
    request = Request(1, (1, 2), SamplingParams(max_tokens=max_tokens), format=format)
    grammar = grammars().start(format) if format is not None else None
    return Sequence(request, eos_token_ids=frozenset({2}), grammar=grammar)


def test_the_first_drafter_with_a_guess_is_taken_and_the_next_goes_on_behind_it() -> None:
    first, second = Fixed("first", [5, 6]), Fixed("second", [7, 8, 9], always=True)
    one = sequence()
    Speculation([first, second], lambda: FREE, longest=7).propose([one], BUSY)
    assert one.draft == [5, 6, 7, 8, 9, 7, 8]
    assert one.origins == [0, 0, 1, 1, 1, 1, 1]


def test_drafts_keep_within_what_the_output_has_room_for() -> None:
    one = sequence(max_tokens=3)
    Speculation([Fixed("a", [5, 6, 7, 8])], lambda: FREE).propose([one], BUSY)
    assert one.draft == [5, 6]
    last = sequence(max_tokens=1)
    Speculation([Fixed("a", [5, 6, 7, 8])], lambda: FREE).propose([last], BUSY)
    assert last.draft == []


def test_drafts_end_before_a_token_that_ends_the_output() -> None:
    one = sequence()
    Speculation([Fixed("a", [5, 2, 7])], lambda: FREE).propose([one], BUSY)
    assert one.draft == [5]


def test_a_draft_is_cut_where_the_grammar_refuses_it_and_the_grammar_does_not_move() -> None:
    one = sequence(structured=True)
    wrong = Fixed("a", encode('{"name": "x", "type": 1}'))
    Speculation([wrong], lambda: FREE, longest=30).propose([one], BUSY)
    assert text_of(one.draft) == '{"name": "x", "'
    assert one.grammar is not None
    assert one.grammar.forced_text() == b'{"name": "'


def test_forced_text_goes_on_behind_a_guess() -> None:
    backend = grammars()
    one = sequence(structured=True)
    one.grammar = backend.start(Format.schema(RECORD))
    start = encode('{"name": "')
    name = Fixed("a", [*encode('ab", "')], always=True)
    Speculation([ForcedDrafter(backend), name], lambda: FREE, longest=24).propose([one], BUSY)
    assert text_of(one.draft).startswith('{"name": "ab", "kind": "')
    assert one.origins[: len(start) + 1][-1] == 2  # the drafter behind the grammar's two kinds


def test_what_is_not_worth_it_is_not_proposed_and_guessing_pauses() -> None:
    drafter = Fixed("a", [5, 6])
    speculation = Speculation([drafter], lambda: DEAR)
    for _ in range(PATIENCE):
        one = sequence()
        speculation.propose([one], BUSY)
        assert one.draft == []
    asked = drafter.asked
    speculation.propose([sequence()], BUSY)
    assert drafter.asked == asked  # paused
    speculation.propose([sequence()], Load(1, 1))
    assert drafter.asked > asked  # far fewer rows: another situation


def test_costs_are_measured_once_and_only_when_there_is_a_draft() -> None:
    measured = []

    def measure() -> StepCosts:
        measured.append(1)
        return FREE

    silent = Speculation([Fixed("a", [])], measure)
    silent.propose([sequence()], BUSY)
    assert measured == []
    speaking = Speculation([Fixed("a", [5])], measure)
    speaking.propose([sequence()], BUSY)
    speaking.propose([sequence()], BUSY)
    assert measured == [1]


def test_rates_are_learnt_by_origin_from_what_was_really_tested() -> None:
    acceptance = Acceptance([Fixed("a", [], 0.5), Fixed("b", [], 0.5)])
    acceptance.record([0, 1, 1, 1], 2)  # the third token was wrong, the fourth says nothing
    rates = acceptance.rates()
    assert rates == [(4 + 1) / 9, (4 + 1) / 10]
    a, b = acceptance.stats()
    assert (a.name, a.proposed, a.accepted, a.steps, a.tokens_per_step) == ("a", 1, 1, 1, 1.0)
    assert (b.name, b.proposed, b.accepted, b.steps) == ("b", 3, 1, 1)
    for _ in range(2000):
        acceptance.record([0], 0)
    assert acceptance.rates()[0] < 0.01
    for _ in range(600):
        acceptance.record([0], 1)
    assert acceptance.rates()[0] > 0.5  # old observations fade


def test_ended_sequences_are_told_to_every_drafter() -> None:
    first, second = Fixed("a", []), Fixed("b", [])
    one = sequence()
    Speculation([first, second], lambda: FREE).finish(one)
    assert first.finished == second.finished == [one]
