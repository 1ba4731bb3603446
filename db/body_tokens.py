"""The answer tokens that OpenAI request bodies ask for, each of its own; db.quotas counts them.

A batch's lines are counted while they are checked. The bodies of any other job lie in a column, which is read for it:
nothing in the specification tells what they ask for. Reading is bounded, and what is larger is refused, as a guess at
the rest could be led astray.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from db import parquet
from db.datasets import Dataset
from db.errors import InvalidJob
from db.openai_body import COMPLETIONS, MAX_ANSWERS, CompletionBody
from db.specs import OpenAI

ANSWER_TOKENS = 256  # of an answer without a limit
MOST_BODIES = 100_000
MOST_BYTES = 256 << 20


def of_body(endpoint: str, body: object) -> int:
    """`n` times the limit. A body in which these are no numbers is refused by name elsewhere, and runs nothing."""
    if not isinstance(body, Mapping):
        return 0
    limits = [_number(body.get(name)) for name in ("max_tokens", "max_completion_tokens")]
    default = CompletionBody.model_fields["max_tokens"].default if endpoint == COMPLETIONS else ANSWER_TOKENS
    return min(_number(body.get("n")) or 1, MAX_ANSWERS) * (max(limits) or default)


def _number(value: object) -> int:
    return value if isinstance(value, int) and value > 0 else 0


def of_rows(recipe: OpenAI, dataset: Dataset, num_rows: int) -> int:
    """Those of the first `num_rows` rows. Raises InvalidDataset, and InvalidJob where it is too much to read."""
    if num_rows > MOST_BODIES:
        raise _too_much(f"{num_rows:,} rows")
    found = num_bytes = 0
    for file in dataset.files:
        stop = min(file.num_rows, num_rows)
        num_rows -= stop
        constants = dataset.partitions.values(file.path)
        for batch in parquet.read(file.path, 0, stop, [recipe.column], constants=constants):
            for text in batch.column(0).to_pylist():
                num_bytes += len(text or "")
                found += of_body(recipe.endpoint, _decoded(text))
            if num_bytes > MOST_BYTES:
                raise _too_much(f"more than {num_bytes:,} bytes")
    return found


def _decoded(text: str | None) -> object:
    try:
        return json.loads(text or "null")
    except (ValueError, RecursionError):
        return None


def _too_much(what: str) -> InvalidJob:
    most = f"{MOST_BODIES:,} rows of together {MOST_BYTES:,} bytes"
    reason = f"has {what}; where tokens have a quota, request bodies are counted of {most} at most: give a part"
    return InvalidJob("input", reason)
