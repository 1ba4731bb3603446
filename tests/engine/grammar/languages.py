"""Formats by a tiny tokenizer, and what follows from them without any engine."""

from __future__ import annotations

import functools
import json
import re
from pathlib import Path

import numpy as np
import tokenizers
import torch

from engine.format import Format
from engine.grammar import Grammar, Grammars, vocabulary
from engine.grammar.grammar import Bitmask, Fill
from engine.tokenizer.vocabulary import token_bytes
from tests.engine.fakes import next_logits
from tests.engine.tiny_tokenizers import byte_level

END = 2  # <|im_end|>
RECORD = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "kind": {"enum": ["library", "application", "font"]},
        "size": {"type": "integer", "minimum": 0, "maximum": 9999},
        "tags": {"type": "array", "items": {"enum": ["old", "new"]}, "maxItems": 2},
    },
    "required": ["name", "kind", "size", "tags"],
    "additionalProperties": False,
}


@functools.cache
def tokenizer() -> tokenizers.Tokenizer:
    made = byte_level()
    made.encode_special_tokens = True
    return made


@functools.cache
def texts() -> list[bytes]:
    """The bytes of every token."""
    return token_bytes(tokenizer(), Path("tiny"))


def vocab_size() -> int:
    return len(texts())


def grammars(**options: int) -> Grammars:
    return Grammars(vocabulary(tokenizer().to_str(), vocab_size(), [END]), num_threads=1, **options)


def encode(text: str) -> list[int]:
    ids: list[int] = tokenizer().encode(text, add_special_tokens=False).ids
    return ids


def text_of(tokens: list[int] | tuple[int, ...]) -> str:
    return b"".join(texts()[token] for token in tokens).decode()


def matches(backend: Grammars, format: Format, text: str) -> bool:
    """Whether a whole text is in a format."""
    grammar, tokens = backend.start(format), encode(text)
    return grammar.accept(tokens) == len(tokens) and (grammar.finished or END in allowed(backend, grammar))


def allowed(backend: Grammars, grammar: Grammar) -> set[int]:
    """The tokens that may follow."""
    return set(bits(filled(backend, grammar, [])[0]))


def filled(backend: Grammars, grammar: Grammar, draft: list[int]) -> Bitmask:
    mask = np.zeros((len(draft) + 1, -(-vocab_size() // 32)), np.int32)
    backend.fill([Fill(grammar, 0, draft)], mask)
    return mask


def bits(row: np.ndarray) -> list[int]:
    found: list[int] = np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little")).tolist()
    return found


def held_continuation(backend: Grammars, prompt: tuple[int, ...], format: Format, most: int) -> tuple[int, ...]:
    """The greedy continuation under a format, one token at a time, by the fake model's formula and no engine."""
    grammar = backend.start(format)
    tokens = list(prompt)
    for _ in range(most):
        fitting = sorted(allowed(backend, grammar))
        logits = torch.full((vocab_size(),), -torch.inf)
        logits[fitting] = next_logits(tokens, vocab_size())[fitting]
        token = int(logits.argmax())
        if token == END:
            break
        tokens.append(token)
        assert grammar.accept([token]) == 1
        if grammar.finished:
            break
    return tuple(tokens[len(prompt) :])


def canonical(schema: str, data: str) -> str:
    """Data as JSON, whole numbers without a fraction, and properties in the order in which the schema's text
    first names them."""
    names = {name: rank for rank, name in reversed(list(enumerate(re.findall(r'"(?:[^"\\]|\\.)*"', schema))))}

    def ordered(value: object) -> object:
        if isinstance(value, dict):
            ranked = sorted(value, key=lambda name: names.get(json.dumps(name), len(schema)))
            return {name: ordered(value[name]) for name in ranked}
        if isinstance(value, float) and value.is_integer():
            return int(value)
        return [ordered(each) for each in value] if isinstance(value, list) else value

    return json.dumps(ordered(json.loads(data)), ensure_ascii=False)
