"""Philox and draw: known answers, and the distribution that every filter leaves, by chi-square at fixed seeds."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from engine import draw as drawing
from engine.draw import draw
from engine.philox import philox, uniform
from engine.request import SamplingParams


def words(*values: int) -> tuple[np.ndarray, ...]:
    return tuple(np.array([value], np.uint64) for value in values)


# Random123's kat_vectors for philox4x32-10: counter, key, answer.
KNOWN = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("counter", "key", "answer"), KNOWN)
def test_philox_known_answers(counter: tuple[int, ...], key: tuple[int, ...], answer: tuple[int, ...]) -> None:
    assert tuple(int(word[0]) for word in philox(words(*counter), words(*key))) == answer  # type: ignore[arg-type]


def test_uniform_numbers_depend_on_seed_and_position_alone() -> None:
    seeds = np.array([1, 2, 1, 2**63 - 1], np.uint64)
    positions = np.array([5, 5, 6, 2**40], np.uint64)
    numbers = uniform(seeds, positions)
    assert len(set(numbers.tolist())) == 4
    for i in (3, 0):
        assert uniform(seeds[i : i + 1], positions[i : i + 1])[0] == numbers[i]


def test_uniform_numbers_are_uniform() -> None:
    numbers = uniform(np.full(20_000, 7, np.uint64), np.arange(20_000, dtype=np.uint64))
    assert numbers.min() >= 0
    assert numbers.max() < 1
    counts = np.histogram(numbers, bins=50, range=(0, 1))[0]
    assert chi_square(counts, np.full(50, 400.0)) < limit(49)


def chi_square(counts: np.ndarray, expected: np.ndarray) -> float:
    return float(((counts - expected) ** 2 / expected).sum())


def limit(freedom: int) -> float:
    """The value that chi-square passes once in 10,000 times (Wilson and Hilferty 1931)."""
    return freedom * (1 - 2 / (9 * freedom) + 3.719 * math.sqrt(2 / (9 * freedom))) ** 3


LOGITS = torch.tensor([2.0, 1.0, 0.5, 0.0, -1.0, 1.5, -3.0, 0.25])
NUM_DRAWS = 20_000


def expected(params: SamplingParams) -> Tensor:
    """The distribution that the parameters leave, by the book, token by token."""
    probs = (LOGITS.double() / params.temperature).softmax(-1)
    order = probs.argsort(descending=True).tolist()
    if params.top_k:
        order = order[: params.top_k]
    mass = sum(probs[token].item() for token in order)
    kept, seen = [], 0.0
    for token in order:
        if kept and seen >= params.top_p * mass:
            break
        kept.append(token)
        seen += probs[token].item()
    kept = [token for token in kept if probs[token] >= params.min_p * probs.max()]
    filtered = torch.zeros_like(probs)
    filtered[kept] = probs[kept]
    return filtered / filtered.sum()


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=1.0),
        SamplingParams(temperature=0.5),
        SamplingParams(temperature=2.5),
        SamplingParams(temperature=1.0, top_k=3),
        SamplingParams(temperature=1.0, top_k=1),
        SamplingParams(temperature=1.0, top_k=100),
        SamplingParams(temperature=1.0, top_p=0.7),
        SamplingParams(temperature=1.0, top_p=0.01),
        SamplingParams(temperature=1.0, min_p=0.3),
        SamplingParams(temperature=1.5, top_k=5, top_p=0.8),
        SamplingParams(temperature=2.0, top_k=6, top_p=0.9, min_p=0.4),
        SamplingParams(temperature=1e-6),
        SamplingParams(temperature=1e-300),
    ],
    ids=str,
)
@pytest.mark.parametrize("nucleus", [2, 256])
def test_the_distribution_is_the_models(params: SamplingParams, nucleus: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drawing, "NUCLEUS", nucleus)
    numbers = torch.from_numpy(uniform(np.full(NUM_DRAWS, 11, np.uint64), np.arange(NUM_DRAWS, dtype=np.uint64)))
    tokens = draw(LOGITS.expand(NUM_DRAWS, -1), [params] * NUM_DRAWS, numbers)
    counts = torch.bincount(tokens, minlength=8).numpy()
    wanted = expected(params).numpy() * NUM_DRAWS
    possible = wanted > 0
    assert counts[~possible].sum() == 0
    if possible.sum() > 1:
        assert chi_square(counts[possible], wanted[possible]) < limit(int(possible.sum()) - 1)


def test_rows_with_different_parameters_do_not_disturb_each_other() -> None:
    torch.manual_seed(0)
    logits = torch.randn(6, 1000)
    params = [
        SamplingParams(temperature=1.0),
        SamplingParams(temperature=1.0, top_k=5),
        SamplingParams(temperature=3.0, top_p=0.9),
        SamplingParams(temperature=0.7, min_p=0.1),
        SamplingParams(temperature=3.0, top_k=400, top_p=0.99),
        SamplingParams(temperature=1.0, top_p=0.5, min_p=0.2),
    ]
    numbers = torch.tensor([0.1, 0.9, 0.99, 0.5, 0.7, 0.3], dtype=torch.float64)
    together = draw(logits, params, numbers).tolist()
    alone = [int(draw(logits[i : i + 1], params[i : i + 1], numbers[i : i + 1])) for i in range(6)]
    assert together == alone


@pytest.mark.parametrize("number", [0.0, 1 - 2**-53])
def test_the_ends_of_the_unit_interval_give_possible_tokens(number: float) -> None:
    logits = torch.full((1, 50_000), -torch.inf)
    logits[0, 17], logits[0, 40_000] = 1.0, 1.0
    for params in (SamplingParams(temperature=1.0), SamplingParams(temperature=1.0, top_p=0.999)):
        token = int(draw(logits, [params], torch.tensor([number], dtype=torch.float64)))
        assert token in (17, 40_000)
