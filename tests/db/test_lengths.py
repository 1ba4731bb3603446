"""Lengths of shards: read where the input is small, from row groups where it is large, 0 where it cannot be read."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from db import datasets, lengths
from db.plans import plan_shards


def sizes(place: Path, columns: list[str], shard_rows: int) -> list[int]:
    dataset = datasets.inspect(place)
    return [plan.num_bytes for plan in lengths.measured(dataset, plan_shards(dataset, shard_rows), columns)]


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    """512 rows of one letter and 512 of 100, beside a column that no recipe reads."""
    text = pa.array(["x"] * 512 + ["x" * 100] * 512, pa.large_string())
    table = pa.table({"text": text, "other": ["y" * 1000] * 1024})
    pq.write_table(table, tmp_path / "in.parquet", row_group_size=1024)
    return tmp_path / "in.parquet"


def test_small_inputs_are_read(texts: Path) -> None:
    """An offset of a large string has 8 bytes."""
    found = sizes(texts, ["text"], 512)
    assert found == [512 * 9, 512 * 108]
    halves = sizes(texts, ["text"], 256)
    assert halves == [found[0] // 2, found[0] // 2, found[1] // 2, found[1] // 2]
    assert sum(sizes(texts, ["text"], 300)) == sum(found)


def test_of_large_inputs_the_footers_tell(texts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lengths, "MOST_BYTES", 0)
    first, second = sizes(texts, ["text"], 512)
    assert first == second > 0  # a row group is taken to be even
    table = pq.read_table(texts)
    pq.write_table(table, texts, row_group_size=512, use_dictionary=False)
    first, second = sizes(texts, ["text"], 512)
    assert second > 10 * first > 0


def test_several_files_and_keys_of_folders(tmp_path: Path) -> None:
    for name, letters in (("a", 10), ("b", 90)):
        (tmp_path / f"k={name}").mkdir()
        pq.write_table(pa.table({"text": ["x" * letters] * 8}), tmp_path / f"k={name}" / "in.parquet")
    assert sizes(tmp_path, ["text", "k"], 8) == [8 * 14, 8 * 94]


def test_what_cannot_be_read_is_not_known(texts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = datasets.inspect(texts)
    texts.write_bytes(b"PAR1 no more")
    plans = list(lengths.measured(dataset, plan_shards(dataset, 512), ["text"]))
    assert [(plan.num_rows, plan.num_bytes) for plan in plans] == [(512, 0), (512, 0)]
    monkeypatch.setattr(lengths, "MOST_FILES", 0)
    assert [plan.num_bytes for plan in lengths.measured(dataset, plan_shards(dataset, 512), ["text"])] == [0, 0]
