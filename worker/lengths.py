"""Lengths of prompts or answers as a person says them: numbers, per cents of rows, or a column of a Parquet file."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from db import model_files
from db.errors import ModelMissing
from db.settings import Settings
from engine import InvalidRequest
from engine.simulation.lengths import Lengths
from engine.tokenizer import load_tokenizer

MOST_TEXTS = 2000  # of a column, that are tokenised


def lengths(text: str, option: str, model: str, settings: Settings) -> Lengths:
    """`512`, `50:300,90:800`, or `FILE.parquet:COLUMN`: numbers of tokens, or texts that the model's tokenizer counts.

    Raises InvalidRequest, ModelMissing, ModelError.
    """
    file, parquet, column = text.partition(".parquet")
    if not parquet:
        return Lengths.parse(text, option)
    if not column.startswith(":") or column == ":":
        raise InvalidRequest(option, text, "names no column; say FILE.parquet:COLUMN")
    try:
        with pq.ParquetFile(file + parquet) as source:
            kind, values = source.schema_arrow.field(column[1:]).type, _spread(source, column[1:])
    except (OSError, KeyError, pa.ArrowException) as error:
        raise InvalidRequest(option, text, f"cannot be read: {error}") from error
    if not values:
        raise InvalidRequest(option, text, "has no values")
    if pa.types.is_integer(kind):
        return Lengths.of([max(count, 1) for count in values])
    if not pa.types.is_string(kind) and not pa.types.is_large_string(kind):
        raise InvalidRequest(option, text, f"is a column of {kind}, neither numbers of tokens nor texts")
    try:
        tokenizer = load_tokenizer(model_files.find(model, settings))
    except ModelMissing as error:
        reason = f"has texts, and the tokenizer that counts them is not here ({error.reason}); give numbers of tokens"
        raise InvalidRequest(option, text, reason) from error
    return Lengths.of([max(len(tokenizer.encode(each)), 1) for each in values])


def _spread(source: pq.ParquetFile, column: str) -> list[Any]:
    """Values from all over a column, 2,000 or a few more of as many as there may be; memory is that of a batch."""
    step, row = max(source.metadata.num_rows // MOST_TEXTS, 1), 0
    found: list[Any] = []
    for batch in source.iter_batches(columns=[column]):
        found += [batch.column(0)[place].as_py() for place in range(-row % step, len(batch), step)]
        row += len(batch)
    return [value for value in found if value is not None]
