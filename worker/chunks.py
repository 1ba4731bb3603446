"""Chunks: where a long text is cut, so that every token of it is in exactly one chunk.

A cut lies between two tokens at which both sides read as the same tokens again, so that a chunk's text has the tokens
that it has in the document, and no character is cut in two. Among those in the last quarter of a chunk the best is
taken: the end of a paragraph, of a line, of a sentence, of a word.
"""

from __future__ import annotations

from collections.abc import Sequence

from engine.tokenizer import Tokenizer

NEAR = 16  # tokens on either side of a cut that must read the same
SENTENCE_ENDS = (".", "!", "?", "…", "。", "！", "？")
BROKEN = "\N{REPLACEMENT CHARACTER}"  # what decoding shows of a character that was cut in two


def cut(tokenizer: Tokenizer, ids: Sequence[int], start: int, most: int) -> int | None:
    """Where a chunk ends that begins at `start` and has at most `most` tokens; None: no character ends in there."""
    if len(ids) - start <= most:
        return len(ids)
    last = start + most
    ranks = {place: _rank(tokenizer, ids, place) for place in range(last - most // 4, last + 1)}
    best_first = sorted(ranks, key=lambda place: (ranks[place], place), reverse=True)
    found = next((place for place in best_first if _clean(tokenizer, ids, place)), None)
    if found is not None:
        return found
    # Text that the tokenizer does not read back as it was: then at least its characters stay whole.
    return next((place for place in range(last, start, -1) if _whole(tokenizer, ids, place)), None)


def _rank(tokenizer: Tokenizer, ids: Sequence[int], place: int) -> int:
    """How good a place between two tokens is."""
    before = tokenizer.decode(ids[place - 1 : place])
    # Read after the other: some tokenizers leave out the blank that a text would begin with.
    after = tokenizer.decode(ids[place - 1 : place + 1]).removeprefix(before)
    if before.endswith("\n"):
        return 4 if before.endswith("\n\n") else 3
    if not after[:1].isspace():
        return 0
    return 2 if before.endswith(SENTENCE_ENDS) else 1


def _clean(tokenizer: Tokenizer, ids: Sequence[int], place: int) -> bool:
    """Whether the text on either side has its tokens again. A look farther away than the cut is felt: what reaches into
    a neighbouring character there is not compared."""
    before, after = list(ids[max(0, place - 2 * NEAR) : place]), list(ids[place : place + 2 * NEAR])
    again = tokenizer.encode(tokenizer.decode(before)), tokenizer.encode(tokenizer.decode(after))
    return again[0][-NEAR:] == before[-NEAR:] and again[1][:NEAR] == after[:NEAR]


def _whole(tokenizer: Tokenizer, ids: Sequence[int], place: int) -> bool:
    """Whether no character is cut there."""
    before, after = ids[max(0, place - NEAR) : place], ids[place : place + NEAR]
    return not (tokenizer.decode(before).endswith(BROKEN) or tokenizer.decode(after).startswith(BROKEN))
