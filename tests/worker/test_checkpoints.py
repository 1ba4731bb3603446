"""Checkpoints: what an attempt finished is found by the next one, whole or not at all, and computed once."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pytest

from db.columns import ERROR, PROBABILITY, TOKEN_COLUMNS
from worker.checkpoints import Checkpoint, Saved, checkpoint_path, forget
from worker.rows import Result

SCHEMA = pa.schema(
    [
        pa.field("m_output", pa.large_string()),
        pa.field("m_row", pa.dictionary(pa.int32(), pa.string())),
        pa.field("m_label_probs", pa.list_(PROBABILITY)),
        pa.field("m_finish_reason", pa.string()),
        pa.field("m_error", ERROR),
        *(pa.field(f"m_{name}", pa.int32()) for name in TOKEN_COLUMNS),
    ]
)


def result(text: str, error: tuple[str, str] | None = None) -> Result:
    values = {"output": text, "row": "a", "label_probs": [{"label": "a", "prob": 0.25}]}
    return Result(values, "stop", error, 5, 4, 3, 2)


def checkpoint(folder: Path, fence: int, seconds: float = 3600.0) -> Checkpoint:
    return Checkpoint(checkpoint_path(folder, 3, fence), SCHEMA, "m_", seconds)


def find(folder: Path, fence: int = 99) -> Saved:
    return Saved.find(folder, 3, fence)


def test_results_come_back_as_they_were(tmp_path: Path) -> None:
    made = {17: result("x"), 12: result("é\0", ("too_long", "why")), 300: result("z")}
    writer = checkpoint(tmp_path, 1)
    for row, one in made.items():
        writer.add(row, one)
    writer.close()
    saved = find(tmp_path)
    assert not saved.empty
    assert saved.results(0, 17, "m_") == {12: made[12]}
    assert saved.results(17, 256, "m_") == {17: made[17]}
    assert saved.results(256, 400, "m_") == {300: made[300]}
    assert saved.results(400, 500, "m_") == {}


def test_the_earlier_of_two_attempts_counts_and_later_fences_are_not_looked_at(tmp_path: Path) -> None:
    for fence in (2, 10, 11):
        writer = checkpoint(tmp_path, fence)
        writer.add(1, result(f"of {fence}"))
        writer.add(fence, result("own"))
        writer.close()
    found = find(tmp_path, fence=11).results(0, 256, "m_")
    assert {row: one.values["output"] for row, one in found.items()} == {1: "of 2", 2: "own", 10: "own"}
    assert Saved.find(tmp_path, 4, 99).empty


@pytest.mark.parametrize("cut", [1, 10, 200])
def test_a_frame_that_was_not_written_whole_ends_the_file(tmp_path: Path, cut: int) -> None:
    writer = checkpoint(tmp_path, 1, seconds=0.0)
    for row in range(3):
        writer.add(row, result("x"))
    writer.close()
    path = checkpoint_path(tmp_path, 3, 1)
    os.truncate(path, path.stat().st_size - cut)
    assert find(tmp_path).results(0, 9, "m_").keys() == {0, 1}
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1  # in the second frame
    path.write_bytes(data)
    assert find(tmp_path).results(0, 9, "m_").keys() == {0}


def test_marks_grow_with_everything_that_was_finished_or_begun_alone(tmp_path: Path) -> None:
    writer = checkpoint(tmp_path, 1, seconds=0.0)
    assert find(tmp_path).marks == 0
    writer.add(0, result("x"))
    writer.begin(5, 9)
    writer.begin(5, 6)
    saved = find(tmp_path)
    assert (saved.marks, saved.begun) == (3, [(5, 6)])  # the last one alone can have died
    assert saved.open_rows(0, 3) == [1, 2]
    writer.close()


def test_each_attempt_has_one_range_that_can_have_died(tmp_path: Path) -> None:
    for fence, ranges in ((1, [(0, 8), (8, 16)]), (2, []), (10, [(8, 12)])):
        writer = checkpoint(tmp_path, fence)
        for first, stop in ranges:
            writer.begin(first, stop)
            writer.add(first, result("x"))
        writer.close()
    saved = find(tmp_path)
    assert (saved.marks, saved.begun) == (6, [(8, 16), (8, 12)])


def test_what_was_marked_last_can_be_withdrawn(tmp_path: Path) -> None:
    writer = checkpoint(tmp_path, 1)
    writer.begin(0, 8)
    writer.begin(8, 16)
    writer.withdraw()
    writer.close()
    saved = find(tmp_path)
    assert (saved.marks, saved.begun) == (3, [(0, 0)])  # the attempt has got on all the same


def test_an_attempt_that_finishes_nothing_leaves_no_file(tmp_path: Path) -> None:
    writer = checkpoint(tmp_path, 1)
    writer.withdraw()
    writer.close()
    assert list(tmp_path.iterdir()) == []


def test_forget(tmp_path: Path) -> None:
    for shard, fence in ((3, 1), (3, 2), (4, 1)):
        writer = Checkpoint(checkpoint_path(tmp_path, shard, fence), SCHEMA, "m_", 0.0)
        writer.add(0, result("x"))
        writer.close()
    forget(tmp_path, 3)
    assert [path.name for path in (tmp_path / "_tmp").iterdir()] == ["part-00004.parquet.00000001.rows"]
