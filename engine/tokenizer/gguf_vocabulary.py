"""A tokenizer from the metadata of a GGUF file, built with the `tokenizers` library."""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers

from engine.errors import ModelError, UnsupportedModel
from engine.gguf_file import GGUFFile
from engine.tokenizer.pretokenizers import COMPOSED, PATTERNS, WHOLE_WORDS, byte_level

SPACE = "▁"  # SentencePiece's visible space


class TokenType(IntEnum):
    """tokenizer.ggml.token_type, as far as it matters here."""

    NORMAL = 1
    CONTROL = 3
    USER_DEFINED = 4


def build(file: GGUFFile) -> tokenizers.Tokenizer:
    """Build the tokenizer that the metadata describes.

    Raises UnsupportedModel for an unknown kind of vocabulary or pre-tokenizer, ModelError for contradictory metadata.
    """
    fields = file.fields
    kind = fields.text("tokenizer.ggml.model")
    tokens = [str(token) for token in fields.items("tokenizer.ggml.tokens")]
    if not tokens:
        raise ModelError(file.path, "tokenizer.ggml.tokens is missing")
    if kind == "gpt2":
        tokenizer = _byte_pair(file, tokens)
    elif kind == "llama":
        tokenizer = _sentence_piece(file, tokens)
    else:
        raise UnsupportedModel(file.path, f"tokenizer.ggml.model {kind}; supported are gpt2, llama")
    added = [
        AddedToken(token, special=token_type == TokenType.CONTROL, normalized=False)
        for token, token_type in zip(tokens, _types(file, tokens), strict=True)
        if token_type in (TokenType.CONTROL, TokenType.USER_DEFINED)
    ]
    tokenizer.add_tokens(added)
    return tokenizer


def _types(file: GGUFFile, tokens: list[str]) -> list[int]:
    types = file.fields.items("tokenizer.ggml.token_type") or [TokenType.NORMAL] * len(tokens)
    if len(types) != len(tokens):
        raise ModelError(file.path, f"tokenizer.ggml.token_type has {len(types)} entries for {len(tokens)} tokens")
    return types


def _byte_pair(file: GGUFFile, tokens: list[str]) -> tokenizers.Tokenizer:
    """GPT-2's kind: merges over bytes."""
    name = file.fields.text("tokenizer.ggml.pre", "default")
    if name not in PATTERNS:
        raise UnsupportedModel(file.path, f"tokenizer.ggml.pre {name}; supported are {', '.join(PATTERNS)}")
    # A token may itself start with a space, hence the search from the second character on.
    merges = [
        (merge[: (cut := merge.find(" ", 1))], merge[cut + 1 :])
        for merge in map(str, file.fields.items("tokenizer.ggml.merges"))
    ]
    tokenizer = tokenizers.Tokenizer(_bpe(file, tokens, merges, ignore_merges=name in WHOLE_WORDS))
    if name in COMPOSED:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = byte_level(name)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _sentence_piece(file: GGUFFile, tokens: list[str]) -> tokenizers.Tokenizer:
    """SentencePiece's byte-pair kind: the adjacent pair that makes the best-scored token is merged first."""
    scores = file.fields.items("tokenizer.ggml.scores")
    if len(scores) != len(tokens):
        raise ModelError(file.path, f"tokenizer.ggml.scores has {len(scores)} entries for {len(tokens)} tokens")
    i_unknown = min(file.fields.token_ids("tokenizer.ggml.unknown_token_id"), default=0)
    if i_unknown >= len(tokens):
        raise ModelError(file.path, f"tokenizer.ggml.unknown_token_id={i_unknown}, but there are {len(tokens)} tokens")
    merges = _merges(tokens, scores, _types(file, tokens))
    model = _bpe(file, tokens, merges, unk_token=tokens[i_unknown], fuse_unk=True, byte_fallback=True)
    tokenizer = tokenizers.Tokenizer(model)
    spaces: list[normalizers.Normalizer] = [normalizers.Replace(" ", SPACE)]
    steps: list[decoders.Decoder] = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if file.fields.flag("tokenizer.ggml.add_space_prefix", True):
        spaces.insert(0, normalizers.Prepend(SPACE))
        steps.append(decoders.Strip(" ", 1, 0))
    tokenizer.normalizer = normalizers.Sequence(spaces)
    tokenizer.decoder = decoders.Sequence(steps)
    return tokenizer


def _merges(tokens: list[str], scores: list[float], types: list[int]) -> list[tuple[str, str]]:
    """Every way to make a token of two others, best-scored token first; equals in the order of the ids.

    Only ordinary tokens are made: merging must never spell a control or byte token.
    """
    ids = {token: i_token for i_token, token in enumerate(tokens)}
    found = []
    for i_token, token in enumerate(tokens):
        if types[i_token] != TokenType.NORMAL:
            continue
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in ids and right in ids:
                found.append((-scores[i_token], i_token, ids[left], ids[right], left, right))
    return [(left, right) for *_, left, right in sorted(found)]


def _bpe(file: GGUFFile, tokens: list[str], merges: list[tuple[str, str]], **options: Any) -> models.BPE:
    vocabulary = {token: i_token for i_token, token in enumerate(tokens)}
    if len(vocabulary) != len(tokens):
        raise ModelError(file.path, "tokenizer.ggml.tokens holds a token twice")
    try:
        return models.BPE(vocab=vocabulary, merges=merges, **options)
    except Exception as error:  # the library raises nothing more specific
        raise ModelError(file.path, f"tokenizer.ggml.merges do not fit the tokens: {error}") from error
