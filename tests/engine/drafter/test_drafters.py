"""Drafters: what each guesses."""

from __future__ import annotations

import pytest

from engine import EngineConfig, Format, InvalidRequest, Request
from engine.drafter import Context, ForcedDrafter, HistoryDrafter, ModelDrafter, PromptDrafter
from engine.drafter import history as history_module
from engine.drafter.drafter import NONE
from engine.request import FinishReason
from engine.sequence import Sequence
from tests.engine.fakes import HashModel, continuation
from tests.engine.grammar.languages import RECORD, encode, grammars, text_of


def sequence(prompt: tuple[int, ...], output: tuple[int, ...] = (), group: object = None, name: object = 1) -> Sequence:
    made = Sequence(Request(name, prompt, group=group))  # type: ignore[arg-type]
    made.append(output)
    return made


def guess(drafter: PromptDrafter | HistoryDrafter, context: Context) -> tuple[list[int], list[int]]:
    (made,) = drafter.guess([context])
    return made.tokens, made.kinds


def learn(drafter: HistoryDrafter, output: tuple[int, ...], group: object = None) -> None:
    ended = sequence((1,), output, group)
    ended.finish(FinishReason.STOP)
    drafter.finish(ended)


@pytest.mark.parametrize(
    ("prompt", "tokens", "kind"),
    [
        ((1, 2, 3, 9, 8, 1, 2, 3), [9, 8, 1, 2], 2),
        ((5, 2, 3, 9, 8, 7, 2, 3), [9, 8, 7, 2], 1),
        ((5, 4, 3, 9, 8, 7, 6, 3), [9, 8, 7, 6], 0),
        ((1, 2, 3, 4, 9, 1, 2, 3, 4), [9, 1, 2, 3], 3),
        ((0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1, 2, 3, 4, 5, 6, 7, 8), [9, 0, 1, 2], 4),
        ((1, 2, 7, 1, 2, 8, 1, 2), [8, 1, 2], 1),  # the latest place counts
        ((1, 2, 3), [], None),
    ],
)
def test_prompt_lookup_copies_what_followed_before(
    prompt: tuple[int, ...], tokens: list[int], kind: int | None
) -> None:
    found, kinds = guess(PromptDrafter(), Context(sequence(prompt), 4))
    assert found == tokens
    assert kinds == [kind] * len(tokens)


def test_prompt_lookup_sees_output_and_draft() -> None:
    drafter = PromptDrafter()
    grown = sequence((1, 2, 3, 4))
    assert guess(drafter, Context(grown, 4))[0] == []
    grown.append([7, 8, 9, 7, 8])
    assert guess(drafter, Context(grown, 2))[0] == [9, 7]
    context = Context(grown, 2)
    context.draft = [9, 1, 2]
    assert guess(drafter, context)[0] == [3, 4]


def test_history_continues_as_earlier_outputs_of_the_group_did() -> None:
    drafter = HistoryDrafter()
    assert drafter.guess([Context(sequence((1,)), 4)]) == [NONE]
    for _ in range(3):
        learn(drafter, (10, 11, 12, 13, 14), "job")
    found, kinds = guess(drafter, Context(sequence((5, 6), group="job"), 3))
    assert (found, kinds) == ([10, 11, 12], [3, 3, 3])  # from its very beginning, whatever the prompt
    assert guess(drafter, Context(sequence((5, 6), (10, 11), "job"), 9))[0] == [12, 13, 14]
    assert guess(drafter, Context(sequence((5, 6), (99, 12), "job"), 9))[0] == [13, 14]
    assert guess(drafter, Context(sequence((5, 6), (10, 11), "other"), 9))[0] == []


def test_history_prefers_what_came_most_often() -> None:
    drafter = HistoryDrafter()
    learn(drafter, (10, 11))
    for last in (12, 13, 12, 12):
        learn(drafter, (10, 11, last))
    found, kinds = guess(drafter, Context(sequence((5,), (10, 11)), 1))
    assert found == [12]
    assert kinds == [2]  # three of four


def test_history_learns_from_whole_outputs_alone() -> None:
    drafter = HistoryDrafter()
    aborted = sequence((1,), (10, 11))
    aborted.finish(FinishReason.CANCELLED)
    drafter.finish(aborted)
    assert drafter.guess([Context(sequence((1,)), 4)]) == [NONE]


def test_history_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history_module, "MOST_RUNS", 300)
    monkeypatch.setattr(history_module, "MOST_GROUPS", 2)
    drafter = HistoryDrafter()
    for i in range(200):
        learn(drafter, tuple(range(i, i + 10)), "job")
        assert len(drafter._groups["job"]) <= 330
    assert guess(drafter, Context(sequence((5,), (205, 206), "job"), 2))[0] == [207, 208]
    learn(drafter, (1, 2), "second")
    learn(drafter, (1, 2), "third")
    assert list(drafter._groups) == ["second", "third"]


def test_forced_text_is_guessed_and_what_a_longer_token_could_cover_is_marked() -> None:
    backend = grammars()
    made = Sequence(Request(1, (1,)), grammar=backend.start(Format.schema(RECORD)))
    (found,) = ForcedDrafter(backend).guess([Context(made, 16)])
    assert text_of(found.tokens) == '{"name": "'
    assert found.tokens == encode('{"name": "')
    certain = made.grammar.forced() if made.grammar else []
    assert found.kinds == [0] * len(certain) + [1] * (len(found.tokens) - len(certain))
    assert ForcedDrafter(backend).guess([Context(sequence((1,)), 16)]) == [NONE]


def test_a_draft_model_runs_ahead_greedily_and_remembers_what_it_computed() -> None:
    model = HashModel()
    config = EngineConfig(num_blocks=40, block_size=4, num_threads=1)
    drafter = ModelDrafter(model, config, vocab_size=model.config.vocab_size)
    first, second = sequence((1, 2, 3), name="a"), sequence((4, 5, 6, 7, 8), name="b")
    one, other = drafter.guess([Context(first, 9), Context(second, 2)])
    assert one.tokens == list(continuation((1, 2, 3), 4))
    assert other.tokens == list(continuation((4, 5, 6, 7, 8), 2))
    assert (one.chances, one.planned) == ([], 0)
    assert model.batches == [8, 2, 1, 1]
    first.append([one.tokens[0], one.tokens[1], 50])
    assert drafter.guess([Context(first, 4)])[0].tokens == list(continuation(tuple(first.tokens), 4))
    assert model.batches[4:] == [1, 1, 1, 1]  # two of its own tokens were right, so only the new one is computed
    drafter.finish(first)
    drafter.finish(second)
    drafter._pool.check([])


def test_a_draft_model_without_room_guesses_nothing_or_forgets_the_oldest() -> None:
    model = HashModel(max_position=30)
    drafter = ModelDrafter(model, EngineConfig(num_blocks=6, block_size=4), vocab_size=model.config.vocab_size)
    rows = [sequence(tuple(range(i, i + 12)), name=i) for i in range(3)]
    assert [bool(found.tokens) for found in drafter.guess([Context(row, 4) for row in rows])] == [True, False, False]
    assert drafter.guess([Context(rows[2], 4)])[0].tokens == list(continuation(tuple(range(2, 14)), 4))
    assert drafter.guess([Context(sequence(tuple(range(27)), name=9), 4)])[0] == NONE


def test_a_draft_model_of_another_vocabulary_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="vocabulary"):
        ModelDrafter(HashModel(), EngineConfig(num_blocks=4), vocab_size=5)
