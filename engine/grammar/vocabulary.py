"""The tokenizer as the grammar library sees it."""

from __future__ import annotations

from collections.abc import Iterable

from llguidance import LLTokenizer


def vocabulary(tokenizer_json: str, vocab_size: int, eos_token_ids: Iterable[int]) -> LLTokenizer:
    """From a tokenizer in the `tokenizers` library's JSON. Takes about half a second for 49,152 tokens.

    `vocab_size` is the model's: ids beyond the tokenizer's are never allowed. The slices are what strings in JSON hold:
    masks inside strings, which allow nearly everything, are put together from them instead of walking all tokens.
    """
    return LLTokenizer(
        tokenizer_json, n_vocab=vocab_size, eos_token=sorted(eos_token_ids), slices=LLTokenizer.json_slices()
    )
