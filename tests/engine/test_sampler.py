"""Sampler: every parameter against a plain computation, drafts, scores, and independence of the batch."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from engine.batch import NOTHING, Batch, Sampled, Slice
from engine.choices import ChoiceTree, Scoring
from engine.request import Request, SamplingParams
from engine.sampler import Sampler
from engine.sequence import Sequence

EOS = 0
VOCAB = 12


def make(prompt: tuple[int, ...], output: tuple[int, ...] = (), **sampling: object) -> Sequence:
    """A sequence at rest: all but its last token computed."""
    params = SamplingParams(**sampling)  # type: ignore[arg-type]
    sequence = Sequence(Request("r", prompt, params), seed=5, eos_token_ids=frozenset({EOS}))
    sequence.append(output)
    sequence.computed = len(sequence.tokens) - 1
    return sequence


def whole(sequence: Sequence) -> Slice:
    return Slice(sequence, sequence.computed, sequence.num_known)


def sample(logits: Tensor, *sequences: Sequence) -> list[Sampled]:
    return Sampler().sample(logits.clone(), Batch(tuple(map(whole, sequences))))


def rows(*values: dict[int, float]) -> Tensor:
    """Logits of -1 but for the given ones."""
    logits = torch.full((len(values), VOCAB), -1.0)
    for row, given in enumerate(values):
        for token, value in given.items():
            logits[row, token] = value
    return logits


def test_greedy_takes_the_best_and_the_lowest_id_of_equals() -> None:
    assert sample(rows({3: 2.0}, {7: 1.0, 5: 1.0}), make((1,)), make((2,))) == [Sampled([3]), Sampled([5])]


def test_a_slice_short_of_its_last_token_says_nothing() -> None:
    long = Sequence(Request("r", (1, 2, 3, 4)))
    other = make((1,))
    batch = Batch((Slice(long, 0, 3), whole(other)))
    assert Sampler().sample(rows({4: 1.0}), batch) == [NOTHING, Sampled([4])]
    assert Sampler().sample(torch.empty(0, VOCAB), Batch((Slice(long, 0, 3),))) == [NOTHING]


@pytest.mark.parametrize(
    ("draft", "best", "accepted"),
    [
        ((4, 5, 6), (4, 5, 6, 7), [4, 5, 6, 7]),
        ((4, 5, 6), (4, 9, 6, 7), [4, 9]),
        ((4, 5, 6), (8, 5, 6, 7), [8]),
        ((), (3,), [3]),
    ],
)
def test_a_draft_holds_as_far_as_the_model_agrees(
    draft: tuple[int, ...], best: tuple[int, ...], accepted: list[int]
) -> None:
    sequence = make((1, 2))
    sequence.draft.extend(draft)
    assert sample(rows(*({token: 1.0} for token in best)), sequence) == [Sampled(accepted)]


def test_a_draft_cut_by_the_budget_is_verified_as_far_as_it_was_computed() -> None:
    sequence = make((1, 2))
    sequence.draft.extend((4, 5, 6))
    cut = Batch((Slice(sequence, 1, 3),))
    assert Sampler().sample(rows({4: 1.0}, {5: 1.0}), cut) == [Sampled([4, 5])]


@pytest.mark.parametrize("draft", [(4, 5), (3, 5)])
def test_sampled_tokens_are_the_same_with_and_without_a_draft(draft: tuple[int, ...]) -> None:
    torch.manual_seed(3)
    logits = torch.randn(3, VOCAB)
    plain = make((1, 2), temperature=1.0, frequency_penalty=1.0)
    alone: list[int] = []
    for row in range(3):
        [sampled] = sample(logits[row : row + 1], plain)
        plain.append(sampled.tokens)
        plain.computed = len(plain.tokens) - 1
        alone += sampled.tokens
    drafted = make((1, 2), temperature=1.0, frequency_penalty=1.0)
    drafted.draft.extend((alone[0], *draft[1:]) if draft[0] == 4 else draft)
    [sampled] = sample(logits, drafted)
    assert sampled.tokens == alone[: len(sampled.tokens)]
    assert len(sampled.tokens) >= (2 if draft[0] == 4 else 1)
    assert drafted.history is not None
    assert list(drafted.history.counts) == [0, 0], "verifying left no trace"


def adjusted(logprobs_of: Sequence, logits: Tensor) -> dict[int, float]:
    """The adjusted log-probabilities of all tokens, through the sampler's own report."""
    [sampled] = sample(logits, logprobs_of)
    assert sampled.logprobs is not None
    return dict(sampled.logprobs[0].top)


@pytest.mark.parametrize(
    ("sampling", "change"),
    [
        ({}, {}),
        ({"repetition_penalty": 2.0}, {1: 1.5, 2: -4.0, 4: 2.0}),
        ({"presence_penalty": 0.75}, {2: -2.75, 4: 3.25}),
        ({"frequency_penalty": 0.5}, {2: -3.0, 4: 3.5}),
        (
            {"repetition_penalty": 2.0, "presence_penalty": 0.75, "frequency_penalty": -0.5},
            {1: 1.5, 2: -4.0 - 0.75 + 1.0, 4: 2.0 - 0.75 + 0.5},
        ),
    ],
)
def test_penalties(sampling: dict[str, object], change: dict[int, float]) -> None:
    logits = rows({1: 3.0, 2: -2.0, 4: 4.0})
    found = adjusted(make((1, 1), (2, 4, 2), logprobs=VOCAB, **sampling), logits)
    for token, value in change.items():
        logits[0, token] = value
    wanted = logits[0].log_softmax(-1)
    assert [found[token] for token in range(VOCAB)] == pytest.approx(wanted.tolist(), abs=1e-6)


def test_penalties_count_the_draft_before_each_row() -> None:
    sequence = make((1,), (2,), presence_penalty=2.0)
    sequence.draft.extend((3, 4))
    same = {3: 1.0, 4: 0.5, 5: 0.25}
    assert sample(rows(same, same, same), sequence) == [Sampled([3, 4, 5])]


def test_nothing_ends_an_output_before_min_tokens() -> None:
    logits = rows({EOS: 9.0, 6: 8.0, 3: 1.0})
    assert sample(logits, make((1,), min_tokens=1)) == [Sampled([6])]
    assert sample(logits, make((1,), min_tokens=1, stop_token_ids=(6,))) == [Sampled([3])]
    assert sample(logits, make((1,), min_tokens=1, ignore_eos=True)) == [Sampled([EOS])]
    assert sample(logits, make((1,), (3,), min_tokens=1)) == [Sampled([EOS])]
    drafted = make((1,), min_tokens=1)
    drafted.draft.append(6)
    assert sample(rows({EOS: 9.0, 6: 8.0}, {EOS: 9.0}), drafted) == [Sampled([6, EOS])]


def test_logprobs_of_the_chosen_and_the_best() -> None:
    logits = rows({3: 2.0, 5: 1.0}, {3: 2.0, 5: 1.0}, {})
    none, zero, two = make((1,), logprobs=None), make((1,), logprobs=0), make((1,), logprobs=2, temperature=5.0, seed=1)
    table = logits[0].log_softmax(-1)
    first, second, third = sample(logits[[0, 1, 0]], none, zero, two)
    assert first.logprobs is None
    assert second.logprobs is not None
    assert (second.logprobs[0].token, second.logprobs[0].top) == (3, ())
    assert second.logprobs[0].logprob == pytest.approx(table[3].item())
    assert third.logprobs is not None
    [chosen] = third.logprobs
    assert chosen.token == third.tokens[0]
    assert chosen.logprob == pytest.approx(table[chosen.token].item()), "before temperature"
    assert [token for token, _ in chosen.top] == [3, 5]
    assert [value for _, value in chosen.top] == pytest.approx([table[3].item(), table[5].item()])


def test_more_logprobs_than_tokens_are_all_of_them() -> None:
    [sampled] = sample(rows({3: 2.0}), make((1,), logprobs=100))
    assert sampled.logprobs is not None
    assert len(sampled.logprobs[0].top) == VOCAB


def test_a_seed_repeats_whatever_else_is_in_the_batch() -> None:
    torch.manual_seed(1)
    logits = torch.randn(5, VOCAB)
    sampling: dict[str, object] = {"temperature": 1.0, "seed": 42}
    [alone] = sample(logits[:1], make((1, 2), **sampling))
    others = [make((3,)), make((4, 4), temperature=0.8, top_k=4), make((5,), min_tokens=2), make((1,), temperature=2.0)]
    for place in range(5):
        sequences = [*others[:place], make((1, 2), **sampling), *others[place:]]
        order = [*range(1, place + 1), 0, *range(place + 1, 5)]
        assert sample(logits[order], *sequences)[place] == alone


def test_unequal_seeds_and_positions_draw_differently() -> None:
    logits = torch.zeros(1, 1000)

    def token(seed: int, length: int) -> int:
        [sampled] = sample(logits, make((1,) * length, temperature=1.0, seed=seed))
        return sampled.tokens[0]

    assert len({token(seed, 1) for seed in range(20)} | {token(0, length) for length in range(2, 20)}) > 34


def test_logits_that_are_no_numbers_spoil_only_their_own_row() -> None:
    logits = rows({3: 1.0}, {4: torch.nan}, {5: torch.inf}, {6: 1.0})
    logits[3] = -torch.inf
    sequences = [make((1,)), make((1,), temperature=1.0, logprobs=2), make((1,)), make((1,))]
    bad = Sampled([], valid=False)
    assert sample(logits, *sequences) == [Sampled([3]), bad, bad, bad]


def test_scores_are_exact_log_probabilities() -> None:
    torch.manual_seed(2)
    logits = torch.randn(4, VOCAB)
    tree = ChoiceTree(((1, 2), (1, 3), (4, 5), (6,)))
    sequence = Sequence(Request("c", (7, 8), choices=tree.choices), scoring=Scoring(tree))
    sequence.computed = 1
    # A greedy neighbour on either side; the path (1,) needs the rows of the prompt's end and of its own token.
    batch = Batch((whole(make((1,))), whole(sequence), whole(make((1,)))))
    results = Sampler().sample(logits.clone(), batch)
    assert results[1] == NOTHING
    assert results[2] == Sampled([int(logits[3].argmax())])
    assert sequence.scoring is not None
    sequence.computed = 3
    sequence.walk()
    assert (sequence.draft, sequence.computed) == ([4], 2)
    more = torch.randn(1, VOCAB)
    Sampler().sample(more.clone(), Batch((whole(sequence),)))
    sequence.computed = 3
    sequence.walk()
    first, second, third = logits[1].log_softmax(-1), logits[2].log_softmax(-1), more[0].log_softmax(-1)
    wanted = [first[1] + second[2], first[1] + second[3], first[4] + third[5], first[6]]
    assert sequence.scoring.totals() == pytest.approx([value.item() for value in wanted], abs=1e-5)
