"""Random walks through grammars: whatever they let finish must be valid."""

from __future__ import annotations

import json

import jsonschema
import numpy as np
import pyarrow.parquet as pq

from engine.errors import UnsupportedFormat
from engine.format import Format, FormatKind
from engine.grammar import Grammars
from tests.engine.grammar.languages import END, allowed, grammars, texts
from tests.engine.grammar.suite import SUITE

STEPS = 60


def count_invalid(walks: int, seed: int) -> tuple[list[tuple[str, bytes]], int]:
    """The invalid outputs with their schemas, and the number of valid ones."""
    backend = grammars()
    dice = np.random.default_rng(seed)
    invalid: list[tuple[str, bytes]] = []
    valid = 0
    for schema in sorted(set(pq.read_table(SUITE).column("schema").to_pylist())):
        format = Format(FormatKind.JSON_SCHEMA, schema)
        try:
            backend.check(format)
        except UnsupportedFormat:
            continue
        validator = jsonschema.Draft202012Validator(json.loads(schema))
        for _ in range(walks):
            text = _walk(backend, format, dice)
            if text is None:
                continue
            if validator.is_valid(json.loads(text)):
                valid += 1
            else:
                invalid.append((schema, text))
    return invalid, valid


def _walk(backend: Grammars, format: Format, dice: np.random.Generator) -> bytes | None:
    """A random output, mostly of short tokens; None: it did not come to an end."""
    grammar = backend.start(format)
    text = b""
    for _ in range(STEPS):
        choices = allowed(backend, grammar)
        if END in choices and (len(choices) == 1 or dice.random() < 0.5):
            return text
        fitting = sorted(choices - {END})
        short = [token for token in fitting if len(texts()[token]) <= 2]
        token = int(dice.choice(short if short and dice.random() < 0.7 else fitting))
        assert grammar.accept([token]) == 1
        text += texts()[token]
        if grammar.finished:
            return text
    return None
