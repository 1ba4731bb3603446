"""Chunks: every token of a text is in one chunk, and cuts lie where a reader would make them."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import decoders, models, pre_tokenizers

from tests.worker.fakes import FakeTokenizer
from worker.chunks import cut


class BytePairs:
    """Byte-level pairs as GPT-2 has them: a word takes its blank along, and common pairs are one token."""

    def __init__(self) -> None:
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        vocabulary = {character: place for place, character in enumerate(sorted(alphabet))}
        pairs = [("t", "h"), ("th", "e"), ("Ġ", "the"), ("e", "r"), ("Ċ", "Ċ"), ("Ã", "©")]
        for left, right in pairs:
            vocabulary[left + right] = len(vocabulary)
        self._tokenizer = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=pairs))
        self._tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        self._tokenizer.decoder = decoders.ByteLevel()

    def encode(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text).ids)

    def decode(self, ids: list[int]) -> str:
        return str(self._tokenizer.decode(ids))


def chunks(tokenizer: object, text: str, most: int) -> list[str]:
    """The texts of the chunks."""
    ids, found, start = tokenizer.encode(text), [], 0  # type: ignore[attr-defined]
    while start < len(ids):
        stop = cut(tokenizer, ids, start, most)  # type: ignore[arg-type]
        assert stop is not None
        assert start < stop <= start + most
        found.append(tokenizer.decode(ids[start:stop]))  # type: ignore[attr-defined]
        start = stop
    return found


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("One two. Six ten\n\nEnd of it all", ["One two. Six ten\n\n", "End of it all"]),
        ("One two, six t.\nen End of it all", ["One two, six t.\n", "en End of it all"]),
        ("One two, six ten. End of it all.", ["One two, six ten.", " End of it all."]),
        ("One two, six ten End of it all", ["One two, six ten End", " of it all"]),
        ("Onetwosixtenendofitallandmore", ["Onetwosixtenendofita", "llandmore"]),
        ("No cut at all", ["No cut at all"]),
    ],
    ids=["paragraph", "line", "sentence", "word", "nowhere better", "short"],
)
def test_where_it_is_cut(text: str, pieces: list[str]) -> None:
    assert chunks(FakeTokenizer(), text, 20) == pieces


def test_an_early_place_is_not_taken() -> None:
    """The paragraph ends before the last quarter of the chunk."""
    assert chunks(FakeTokenizer(), "One two.\n\nSix ten end of it all", 20) == ["One two.\n\nSix ten", " end of it all"]


def test_words_are_kept_where_a_text_is_read_without_the_blank_that_it_begins_with() -> None:
    """As SentencePiece's vocabularies do: a token by itself does not show that a word begins with it."""

    class Stripping(FakeTokenizer):
        def encode(self, text: str) -> list[int]:
            return super().encode(" " + text)

        def decode(self, ids: Sequence[int]) -> str:
            return super().decode(ids).removeprefix(" ")

    assert chunks(Stripping(), "One two, six ten End of it all", 20) == ["One two, six ten", "End of it all"]


def test_no_character_is_cut() -> None:
    assert chunks(FakeTokenizer(), "ééé😀😀", 5) == ["éé", "é", "😀", "😀"]


def test_no_room_for_a_character() -> None:
    assert cut(FakeTokenizer(), list("😀😀".encode()), 0, 3) is None  # type: ignore[arg-type]


@given(text=st.text(st.sampled_from("the er.é😀\n"), max_size=200), most=st.integers(8, 40))
def test_every_token_is_in_one_chunk(text: str, most: int) -> None:
    """Read again chunk by chunk, a text has the tokens that it has as a whole."""
    tokenizer = BytePairs()
    pieces = chunks(tokenizer, text, most)
    assert "".join(pieces) == text
    assert [token for piece in pieces for token in tokenizer.encode(piece)] == tokenizer.encode(text)


def test_text_that_reads_as_other_tokens_again_is_cut_between_characters() -> None:
    """A tokenizer that has other tokens for whatever it reads again."""

    class Forgetful(FakeTokenizer):
        def encode(self, text: str) -> list[int]:
            return [260]

    ids = list("aé".encode() * 4)
    assert cut(Forgetful(), ids, 0, 5) == 4  # type: ignore[arg-type]
