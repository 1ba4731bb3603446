"""Accuracy, calibration error and ROUGE against values worked out by hand."""

from __future__ import annotations

from collections import Counter

import pytest

from api.cli.scores import calibration_error, lead, longest_common_subsequence, rouge, score_labels


def test_labels() -> None:
    found = score_labels(["a", "a", "b", "a"], ["a", "b", "b", None], [0.9, 0.6, 0.7, None])
    assert found.labels == ("a", "b")
    assert found.confusion == Counter({("a", "a"): 1, ("a", "b"): 1, ("b", "b"): 1, ("a", ""): 1})
    assert (found.accuracy, found.majority) == (0.5, 0.75)
    assert found.confidence == pytest.approx(2.2 / 3)


def test_calibration_error() -> None:
    """Two bins: 0.95 and 0.95 with one right (gap 0.9), 0.55 with one right (gap 0.45); 1.35 over three rows."""
    assert calibration_error([(0.95, True), (0.95, False), (0.55, True)]) == pytest.approx(0.45)
    assert calibration_error([(1.0, True)]) == 0.0
    assert calibration_error([]) == 0.0


def test_rouge() -> None:
    """police killed the gunman / police kill the gunman: 3 of 4 words, 1 of 3 pairs, common subsequence of 3."""
    found = rouge("Police kill the gunman!", "police killed the gunman")
    assert found == pytest.approx({"ROUGE-1": 0.75, "ROUGE-2": 1 / 3, "ROUGE-L": 0.75})
    assert rouge("the gunman kill police", "police killed the gunman")["ROUGE-L"] == 0.5
    assert rouge("a a a", "a")["ROUGE-1"] == 0.5
    assert rouge("", "words") == {"ROUGE-1": 0.0, "ROUGE-2": 0.0, "ROUGE-L": 0.0}


def test_lead_and_subsequence() -> None:
    assert lead("one two\nthree four", 3) == "one two three"
    assert longest_common_subsequence("abcbdab", "bdcaba") == 4
