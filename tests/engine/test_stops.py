"""Stops: end-of-sequence, stop tokens, stop strings across token boundaries, lengths."""

from __future__ import annotations

import pytest

from engine.batch import Sampled
from engine.request import FinishReason, Request, SamplingParams, TokenLogprobs
from engine.sequence import Sequence
from engine.stops import Stops

EOS = 9
TEXT = [b"a", b"b", b"ab", b"END", b"EN", b"D.", b"\xc3", b"\xa9", b" ", b"<eos>"]


def run(tokens: list[int], **sampling: object) -> Sequence:
    """Feed tokens one by one until the sequence ends."""
    params = SamplingParams(**sampling)  # type: ignore[arg-type]
    sequence = Sequence(Request("r", (0,), params), eos_token_ids=frozenset({EOS}))
    stops = Stops(TEXT)
    for token in tokens:
        if sequence.finish_reason is None:
            stops.accept(sequence, Sampled([token]))
    return sequence


@pytest.mark.parametrize(
    ("tokens", "sampling", "taken", "reason", "by"),
    [
        ([0, 1, EOS, 2], {}, [0, 1, EOS], FinishReason.STOP, EOS),
        ([0, EOS, 1], {"ignore_eos": True, "max_tokens": 3}, [0, EOS, 1], FinishReason.LENGTH, None),
        ([0, 1, 2, 3], {"stop_token_ids": (2,)}, [0, 1, 2], FinishReason.STOP, 2),
        ([0, EOS], {"stop_token_ids": (2,)}, [0, EOS], FinishReason.STOP, EOS),
        ([0, EOS, 2], {"stop_token_ids": (2,), "ignore_eos": True}, [0, EOS, 2], FinishReason.STOP, 2),
        ([0, 1, 2], {"max_tokens": 2}, [0, 1], FinishReason.LENGTH, None),
        ([0, EOS], {"max_tokens": 2}, [0, EOS], FinishReason.STOP, EOS),
        ([0, 3, 1], {"stop": ("END",)}, [0, 3], FinishReason.STOP, "END"),
        ([0, 4, 5, 1], {"stop": ("END",)}, [0, 4, 5], FinishReason.STOP, "END"),
        ([4, 4, 5, 1], {"stop": ("END.",)}, [4, 4, 5], FinishReason.STOP, "END."),
        ([0, 6, 7, 1], {"stop": ("é",)}, [0, 6, 7], FinishReason.STOP, "é"),
        ([2, 8, 2], {"stop": ("b", "ab")}, [2], FinishReason.STOP, "ab"),
        ([2, 8, 2], {"stop": ("b ", "zz")}, [2, 8], FinishReason.STOP, "b "),
        ([1, 0, 0, 1], {"stop": ("b",), "min_tokens": 2}, [1, 0, 0, 1], FinishReason.STOP, "b"),
        ([0, 8, 0], {"stop": (" ",)}, [0, 8], FinishReason.STOP, " "),
    ],
)
def test_where_an_output_ends(
    tokens: list[int], sampling: dict[str, object], taken: list[int], reason: FinishReason, by: object
) -> None:
    sequence = run(tokens, **sampling)
    assert (sequence.tokens[1:], sequence.finish_reason, sequence.stopped_by) == (taken, reason, by)


def test_several_tokens_at_once_end_at_the_first_that_stops() -> None:
    sequence = Sequence(Request("r", (0,), SamplingParams(logprobs=0)), eos_token_ids=frozenset({EOS}))
    logprobs = [TokenLogprobs(token, -1.0) for token in (1, EOS, 2)]
    Stops(TEXT).accept(sequence, Sampled([1, EOS, 2], logprobs))
    assert sequence.tokens == [0, 1, EOS]
    assert sequence.logprobs == logprobs[:2]


def test_the_text_kept_for_a_stop_string_stays_short() -> None:
    sequence = run([0] * 200, stop=("abcdef", "xy"), max_tokens=256)
    assert sequence.finish_reason is None
    assert sequence.tail == b"aaaaa"
