"""How good the demo's answers are: accuracy, calibration and ROUGE, small enough to be read."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LabelScores:
    """`confusion[truth, answer]` counts rows; an unanswered row has the answer "" and counts as wrong."""

    labels: tuple[str, ...]
    confusion: Counter[tuple[str, str]]
    accuracy: float
    majority: float  # accuracy of always answering the most frequent label
    confidence: float  # mean over the answered rows
    calibration_error: float


def score_labels(
    truth: Sequence[str], answers: Sequence[str | None], confidences: Sequence[float | None]
) -> LabelScores:
    """Scores of the answers against people's labels. The sequences are equally long and not empty."""
    confusion = Counter((true, answer or "") for true, answer in zip(truth, answers, strict=True))
    right = [true == answer for true, answer in zip(truth, answers, strict=True)]
    answered = [(c, r) for c, r in zip(confidences, right, strict=True) if c is not None]
    return LabelScores(
        labels=tuple(sorted(set(truth))),
        confusion=confusion,
        accuracy=sum(right) / len(right),
        majority=max(Counter(truth).values()) / len(truth),
        confidence=sum(c for c, _ in answered) / max(1, len(answered)),
        calibration_error=calibration_error(answered),
    )


def calibration_error(answered: Sequence[tuple[float, bool]], num_bins: int = 10) -> float:
    """Expected calibration error (Guo et al. 2017): |confidence - accuracy| per bin, weighted by the bin's rows."""
    bins: dict[int, list[tuple[float, bool]]] = {}
    for confidence, right in answered:
        bins.setdefault(min(num_bins - 1, int(confidence * num_bins)), []).append((confidence, right))
    gaps = (abs(sum(c for c, _ in rows) - sum(r for _, r in rows)) for rows in bins.values())
    return sum(gaps) / max(1, len(answered))


def rouge(answer: str, reference: str) -> dict[str, float]:
    """ROUGE-1, ROUGE-2 and ROUGE-L as F1 (Lin 2004) over lower-case runs of letters and digits, without stemming."""
    a, b = words(answer), words(reference)
    overlap = {f"ROUGE-{n}": _f1(*_ngram_overlap(a, b, n)) for n in (1, 2)}
    return {**overlap, "ROUGE-L": _f1(longest_common_subsequence(a, b), len(a), len(b))}


def words(text: str) -> list[str]:
    return re.findall(r"[a-z0-9]+", text.lower())


def lead(text: str, num_words: int) -> str:
    """The first words of a text: the baseline that a summary should beat."""
    return " ".join(text.split()[:num_words])


def longest_common_subsequence(a: Sequence[str], b: Sequence[str]) -> int:
    """Its length, row by row of the usual table: time len(a) * len(b), memory len(b)."""
    previous = [0] * (len(b) + 1)
    for word in a:
        current = [0]
        for j, other in enumerate(b):
            current.append(previous[j] + 1 if word == other else max(previous[j + 1], current[j]))
        previous = current
    return previous[-1]


def _ngram_overlap(a: Sequence[str], b: Sequence[str], n: int) -> tuple[int, int, int]:
    grams = [Counter(tuple(side[i : i + n]) for i in range(len(side) - n + 1)) for side in (a, b)]
    return sum((grams[0] & grams[1]).values()), sum(grams[0].values()), sum(grams[1].values())


def _f1(shared: int, num_a: int, num_b: int) -> float:
    return 2 * shared / (num_a + num_b) if shared else 0.0
