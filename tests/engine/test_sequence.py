"""Sequence and History: known, computed, drafts, and what the penalties count."""

from __future__ import annotations

from engine.history import History
from engine.request import Request, SamplingParams
from engine.sequence import Sequence


def test_known_tokens_are_prompt_output_and_draft() -> None:
    sequence = Sequence(Request("a", (1, 2, 3)))
    sequence.append([4])
    sequence.draft.extend([5, 6])
    assert (sequence.num_known, sequence.num_output, sequence.pending) == (6, 1, 6)
    assert sequence.known(0, 6) == [1, 2, 3, 4, 5, 6]
    assert sequence.known(1, 3) == [2, 3]
    assert sequence.known(3, 5) == [4, 5]
    assert sequence.known(5, 6) == [6]


def test_append_settles_the_draft_and_moves_computed_back() -> None:
    sequence = Sequence(Request("a", (1, 2, 3)))
    sequence.draft.extend([5, 6])
    sequence.computed = 5
    sequence.append([5, 9])
    assert (sequence.tokens, sequence.draft, sequence.computed, sequence.pending) == ([1, 2, 3, 5, 9], [], 4, 1)


def test_a_draft_has_room_for_all_but_the_last_token() -> None:
    sequence = Sequence(Request("a", (1,), SamplingParams(max_tokens=4)))
    assert sequence.draft_room == 3
    sequence.append([5, 5])
    assert sequence.draft_room == 1


def test_the_requests_seed_comes_first() -> None:
    assert Sequence(Request("a", (1,), SamplingParams(seed=3)), seed=8).seed == 3
    assert Sequence(Request("a", (1,)), seed=8).seed == 8


def test_history_counts_outputs_and_remembers_the_prompt() -> None:
    history = History((5, 6, 5))
    for token in (6, 7, 7):
        history.add(token)
    assert (list(history.ids), list(history.counts)) == ([5, 6, 7], [0, 1, 2])
    history.add(8)
    assert 8 in history
    history.undo(8, new=True)
    history.undo(7, new=False)
    assert (list(history.ids), list(history.counts)) == ([5, 6, 7], [0, 1, 1])
    assert 8 not in history


def test_only_penalised_sequences_keep_a_history() -> None:
    assert Sequence(Request("a", (1,))).history is None
    penalised = Sequence(Request("a", (1,), SamplingParams(presence_penalty=0.5)))
    penalised.append([2, 2])
    assert penalised.history is not None
    assert list(penalised.history.counts) == [0, 2]
