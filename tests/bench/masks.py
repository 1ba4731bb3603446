"""Masks for 512 structured rows in one step on the demo model's vocabulary, and the memory of the grammar cache.

    python -m tests.bench.masks [--rows 512] [--schemas 10000]

Rows stand at random places of 64 different outputs in 8 schemas, without drafts and with 4 drafted tokens each. Exits 1
when a fill without drafts takes more than 250 ms, or when 10,000 distinct schemas, each compiled and used, take more
than 192 MiB. Prints the milliseconds per step last.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time

import numpy as np
import psutil
import torch

from db.model_files import find
from db.settings import Settings
from engine import Format
from engine.grammar import Grammars, vocabulary
from engine.grammar.grammar import Fill
from engine.tokenizer import Tokenizer, load_tokenizer
from kernels.sampling import apply_token_bitmask

REPETITIONS = 20
MOST_MS = 250.0
MOST_MIB = 192.0
DRAFTED = 4


def schema(number: int) -> dict[str, object]:
    properties = {
        f"name_{number}": {"type": "string", "maxLength": 40},
        "category": {"enum": ["library", "application", "documentation", "other"]},
        "size": {"type": "integer", "minimum": 0, "maximum": 9_999_999},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 12}, "maxItems": 3},
    }
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def document(number: int, kind: int) -> str:
    text = f"package {number} of the {'very ' * (number % 3)}last"
    values = {f"name_{kind}": text, "category": "library", "size": 37 * number, "tags": ["new", f"no{number}"]}
    return json.dumps(values)


def fills(backend: Grammars, tokenizer: Tokenizer, rows: int, drafted: int) -> list[Fill]:
    dice = np.random.default_rng(0)
    made = []
    for row in range(rows):
        kind = row % 8
        tokens = tokenizer.encode(document(row % 64, kind))
        place = int(dice.integers(0, len(tokens) - drafted))
        grammar = backend.start(Format.schema(schema(kind)))
        assert grammar.accept(tokens[:place]) == place
        made.append(Fill(grammar, row * (drafted + 1), tokens[place : place + drafted]))
    return made


def milliseconds(backend: Grammars, wanted: list[Fill], vocab_size: int, drafted: int) -> tuple[float, float]:
    """Medians of filling the masks and of applying them to logits."""
    rows = len(wanted) * (drafted + 1)
    mask = np.empty((rows, -(-vocab_size // 32)), np.int32)
    logits, lines = torch.zeros(rows, vocab_size), torch.arange(rows)
    filling, applying = [], []
    for _ in range(REPETITIONS):
        start = time.perf_counter()
        backend.fill(wanted, mask)
        filled = time.perf_counter()
        apply_token_bitmask(logits, lines, torch.from_numpy(mask))
        filling.append(1e3 * (filled - start))
        applying.append(1e3 * (time.perf_counter() - filled))
    return statistics.median(filling), statistics.median(applying)


def cache_mib(backend: Grammars, tokenizer: Tokenizer, vocab_size: int, schemas: int) -> float:
    """Growth of this process while so many distinct schemas are compiled and used."""
    process = psutil.Process()
    mask = np.empty((1, -(-vocab_size // 32)), np.int32)
    before = process.memory_info().rss
    for number in range(schemas):
        grammar = backend.start(Format.schema(schema(1000 + number)))
        grammar.accept(tokenizer.encode(document(number, 1000 + number))[:6])
        backend.fill([Fill(grammar, 0, [])], mask)
    return (process.memory_info().rss - before) / 2**20


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=512)
    parser.add_argument("--schemas", type=int, default=10_000)
    options = parser.parse_args()
    tokenizer = load_tokenizer(find("smollm2-135m", Settings()))
    backend = Grammars(vocabulary(tokenizer.to_json(), tokenizer.vocab_size, tokenizer.eos_token_ids))
    memory = cache_mib(backend, tokenizer, tokenizer.vocab_size, options.schemas)
    plain = fills(backend, tokenizer, options.rows, 0)
    fill, apply = milliseconds(backend, plain, tokenizer.vocab_size, 0)
    with_drafts = fills(backend, tokenizer, options.rows // (DRAFTED + 1), DRAFTED)
    drafted, _ = milliseconds(backend, with_drafts, tokenizer.vocab_size, DRAFTED)
    print(f"{options.rows} rows: fill {fill:.1f} ms, apply {apply:.1f} ms")
    print(f"{len(with_drafts)} rows with {DRAFTED} drafted tokens each: fill {drafted:.1f} ms")
    print(f"{options.schemas} distinct schemas: {memory:.0f} MiB, {backend.num_compiled} kept")
    print(f"mask time per step of {options.rows} structured rows: {fill:.1f} ms")
    return int(fill > MOST_MS or memory > MOST_MIB)


if __name__ == "__main__":
    sys.exit(main())
