"""The workloads of the benchmarks.

w1: labelling, 256 prompts of 126 to 173 tokens that share 84, up to 8 tokens each. w2: summarising, 64 prompts of 169
to 638 tokens, exactly 64 each. w3: extraction, 64 prompts of 137 to 224 tokens, JSON by a schema, at most 96 tokens.
"""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

DATA = Path(__file__).parent / "data"
NAMES = ("w1", "w2", "w3")


@dataclass(frozen=True, slots=True)
class Item:
    """One prompt. `schema` is a JSON Schema or None; with `ignore_eos` exactly max_tokens are generated."""

    id: str
    prompt_ids: tuple[int, ...]
    max_tokens: int
    ignore_eos: bool
    schema: dict[str, Any] | None = None


def load(name: str) -> list[Item]:
    with gzip.open(DATA / f"{name}.jsonl.gz", "rt") as lines:
        rows = [json.loads(line) for line in lines]
    return [Item(**{**row, "prompt_ids": tuple(row["prompt_ids"])}) for row in rows]


def salted(items: list[Item], salt: int) -> list[Item]:
    """The same prompts with one more token near their start, the same in all: nothing that an earlier repetition left
    in a prefix cache is of use, while sharing inside the repetition stays."""
    token = 1000 + salt * 37
    return [replace(item, prompt_ids=(*item.prompt_ids[:3], token, *item.prompt_ids[3:])) for item in items]


def valid(item: Item, text: str) -> bool:
    """Whether an answer to a w3 item is JSON with exactly the keys that its schema asks for."""
    try:
        return item.schema is not None and set(json.loads(text)) == set(item.schema["properties"])
    except (ValueError, TypeError):
        return False
