"""Bitmasks, sampling, log-probabilities, acceptance and the preparation of inputs."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from engine.philox import philox
from kernels import reference
from kernels.gpu import sampling, steps
from kernels.gpu.bitmask import apply_token_bitmask
from kernels.gpu.sampling import STREAM, sample, token_logprobs


@pytest.mark.parametrize("vocab", [31, 64, 2100])
def test_apply_token_bitmask(vocab: int):
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(5, vocab, generator=generator)
    mask = torch.randint(-(2**31), 2**31, (3, -(-vocab // 32)), generator=generator).int()
    rows = torch.tensor([4, 0, 2])
    expected = logits.clone()
    reference.apply_token_bitmask(expected, rows, mask)
    apply_token_bitmask(logits, rows, mask)
    assert torch.equal(logits, expected)


def noise(seeds: Tensor, positions: Tensor, vocab: int) -> Tensor:
    """Gumbel numbers from engine.philox, in fp64."""
    shape = (len(seeds), vocab)

    def spread(values: np.ndarray) -> np.ndarray:
        return np.broadcast_to(values[:, None], shape)

    seed, position = (part.numpy().view(np.uint64) for part in (seeds, positions))
    low, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    tokens = np.broadcast_to(np.arange(vocab, dtype=np.uint64), shape)
    stream = np.full(shape, STREAM, np.uint64)
    counter = (spread(position & low), spread(position >> half), stream, tokens)
    bits = philox(counter, (spread(seed & low), spread(seed >> half)))[0]
    return torch.from_numpy(-np.log(-np.log1p(-(bits.astype(np.float64) + 0.5) * 2.0**-32))).float()


def options(num_rows: int, **given: list[float]) -> dict[str, Tensor]:
    columns = {"temperatures": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
    made = {name: torch.tensor(given.get(name, [default] * num_rows)) for name, default in columns.items()}
    return {name: values.int() if name == "top_k" else values.float() for name, values in made.items()}


FILTERS = {
    "greedy": {"temperatures": [0.0] * 6},
    "plain": {"temperatures": [1.0, 0.7, 2.0, 0.1, 1.0, 0.0]},
    "top_k": {"top_k": [1, 2, 5, 50, 1000, 0]},
    "top_p": {"top_p": [0.1, 0.5, 0.9, 0.99, 1.0, 1e-9]},
    "min_p": {"min_p": [0.1, 0.5, 0.9, 1.0, 0.01, 0.0]},
    "all": {"temperatures": [0.5, 1.5] * 3, "top_k": [10, 40] * 3, "top_p": [0.7, 0.9] * 3, "min_p": [0.05] * 6},
}


@pytest.mark.parametrize("name", FILTERS)
def test_sample(name: str, monkeypatch: pytest.MonkeyPatch):
    """The very tokens of the reference, for seeds and positions of all sizes; several blocks, the last one short."""
    monkeypatch.setattr(sampling, "BLOCK", 256)
    vocab, repeats = 300, 1
    logits = 2 * torch.randn(6 * repeats, vocab, generator=torch.Generator().manual_seed(1))
    logits[:, 7] = -torch.inf
    seeds = torch.tensor([0, 1, 2**40 + 3, -5, 7, 2**63 - 1]).repeat(repeats)
    positions = torch.arange(6 * repeats) + torch.tensor([0, 5, 2**33, 1, 2, 3]).repeat(repeats)
    given = {key: values.repeat(repeats) for key, values in options(6, **FILTERS[name]).items()}
    found = sample(logits, **given, seeds=seeds, positions=positions)
    expected = reference.gumbel_sample(logits, **given, noise=noise(seeds, positions, vocab))
    assert found.tolist() == expected.tolist()
    assert name == "greedy" or (found != logits.argmax(-1)).any()


def test_equal_logits_pass_a_filter_together():
    logits = torch.tensor([[0.0, 3.0, 1.0, 3.0]]).repeat(8, 1)
    seeds, positions = torch.arange(8), torch.zeros(8, dtype=torch.int64)
    for filters in ({"top_k": [1] * 8}, {"top_p": [0.1] * 8}):
        drawn = sample(logits, **options(8, **filters), seeds=seeds, positions=positions)
        assert set(drawn.tolist()) == {1, 3}
    first = sample(logits, **options(8, temperatures=[0.0] * 8), seeds=seeds, positions=positions)
    assert first.tolist() == [1] * 8


def test_drawn_tokens_have_the_softmax_distribution():
    logits = torch.tensor([[2.0, 1.0, 0.0, -1.0]])
    count = 200
    seeds = torch.arange(count)
    drawn = sample(logits.repeat(count, 1), **options(count), seeds=seeds, positions=seeds * 3)
    expected = logits[0].softmax(0) * count
    observed = torch.bincount(drawn, minlength=4)
    assert float(((observed - expected) ** 2 / expected).sum()) < 16.3  # chi-square, 3 degrees, 0.1 %


@pytest.mark.parametrize("vocab", [5, 300])
def test_token_logprobs(vocab: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sampling, "BLOCK", 128)
    logits = 4 * torch.randn(7, vocab, generator=torch.Generator().manual_seed(0))
    logits[2, 1:] = -torch.inf
    tokens = torch.tensor([0, 4, 0, 1, 2, 3, 4])
    expected = logits.log_softmax(-1).gather(-1, tokens[:, None])[:, 0]
    torch.testing.assert_close(token_logprobs(logits, tokens), expected, atol=1e-5, rtol=1e-5)


def test_accept(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(steps, "MOST_DRAFTED", 4)
    lengths = [1, 2, 2, 5, 0, 9, 10, 1]
    differs = [None, 0, None, 2, None, 7, None, None]  # the place where draft and choice part
    chosen = torch.arange(sum(lengths))
    drafted = chosen.clone()
    starts = torch.tensor([0, *torch.tensor(lengths).cumsum(0)], dtype=torch.int32)
    for first, place in zip(starts.tolist(), differs, strict=False):
        if place is not None:
            drafted[first + place] = -1
    found = steps.accept(chosen, drafted, starts)
    assert found.tolist() == [0, 0, 1, 2, 0, 7, 9, 0]
    assert found.tolist() == reference.accept(chosen, drafted, starts).tolist()


@pytest.mark.parametrize("spare", [0, 5, 200])
def test_prepare_inputs(spare: int, monkeypatch: pytest.MonkeyPatch):
    """A decode, a prompt, the middle of a prompt, a draft, a part of a draft; longer than is prepared at a time."""
    monkeypatch.setattr(steps, "TOKENS", 16)
    counts, contexts, owned = [1, 40, 6, 4, 2], [33, 40, 20, 13, 30], [33, 40, 50, 10, 26]
    logits = [1, 1, 0, 4, 2]
    starts, logit_starts = (
        torch.tensor([0, *torch.tensor(part).cumsum(0)], dtype=torch.int32) for part in (counts, logits)
    )
    tables = torch.randperm(40, generator=torch.Generator().manual_seed(0)).reshape(5, 8).int()
    index = (starts, torch.tensor(contexts).int(), torch.tensor(owned).int(), logit_starts, tables, 8)
    tokens, rows, last = torch.arange(53).int(), torch.tensor([3, 0, 6, 1, 2]).int(), torch.arange(100, 107)
    tokens[[0, 50]] = -1  # in the slices of the rows 3 and 1
    fed = (tokens, rows, last)
    token_ids, positions, slots, logit_rows = steps.prepare_inputs(*index, *fed, 53 + spare, 8 + spare)
    expected = reference.prepare_inputs(*index)
    assert token_ids.tolist() == [103, *range(1, 50), 101, 51, 52] + [0] * spare
    assert token_ids[:53].tolist() == reference.fed_tokens(starts, *fed).tolist()
    assert positions[:53].tolist() == expected[0].tolist()
    assert slots[:53].tolist() == expected[1].tolist()
    assert logit_rows.tolist() == expected[2].tolist() + [0] * spare
    assert positions[53:].tolist() == [0] * spare
    assert slots[53:].tolist() == [-1] * spare
