"""Checkpoints: the finished rows of a shard that is not done yet, so that a crash costs moments and not the shard.

Every attempt appends to a journal of its own under the output folder's `_tmp`, named for the shard and the fence; the
next attempt reads what the earlier ones left. On a disk that is a file, whose bytes survive the end of the process at
once and a power cut mostly; in a bucket it is one object per append. Each frame has a checksum, and reading ends at the
first frame that is not whole.

A frame is either some results, or a mark that a range of rows is about to be computed alone (worker.suspects).
"""

from __future__ import annotations

import re
import struct
import time
import zlib
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import BinaryIO

import pyarrow as pa

from db.columns import TOKEN_COLUMNS
from db.stores import TEMP, Journal, Place, store_of
from worker.parts import part_name, to_batch
from worker.rows import Result

HEAD = struct.Struct("<qqII")  # first row, one past the last, bytes that follow, CRC-32 of the rest
NAME = re.compile(r"part-\d+\.parquet\.\d{8}\.rows(\.\d+)?")
ROW = pa.field("row", pa.int64())


@dataclass(frozen=True, slots=True)
class Frame:
    """Where some results lie. Rows are counted over the whole job."""

    path: Place
    offset: int
    num_bytes: int
    first: int
    stop: int


@dataclass(slots=True)
class Checkpoint:
    """What one attempt has finished. One thread adds. `schema`: of the added columns."""

    path: Place
    schema: pa.Schema
    prefix: str
    seconds: float
    _rows: list[int] = field(default_factory=list)
    _results: list[Result] = field(default_factory=list)
    _flushed_at: float = 0.0
    _begun: bool = False  # a range is marked
    _journal: Journal | None = None

    def add(self, row: int, result: Result) -> None:
        self._rows.append(row)
        self._results.append(result)
        if time.monotonic() - self._flushed_at >= self.seconds:
            self.flush()

    def flush(self) -> None:
        """Write what was added since the last time."""
        if not self._rows:
            return
        rows = pa.RecordBatch.from_arrays([pa.array(self._rows, pa.int64())], [ROW.name])
        batch = to_batch(rows, self._results, pa.schema([ROW, *self.schema]), self.prefix)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as stream:
            stream.write_batch(batch)
        self._append(min(self._rows), max(self._rows) + 1, sink.getvalue().to_pybytes())
        self._rows, self._results, self._flushed_at = [], [], time.monotonic()

    def begin(self, first: int, stop: int) -> None:
        """Mark that these rows, as far as they are not finished, are about to be computed alone."""
        self.flush()
        self._append(first, stop, b"")
        self._begun = True

    def withdraw(self) -> None:
        """What was marked last is not to blame: the attempt ends for another reason."""
        if self._begun:
            self._append(0, 0, b"")  # an empty range takes its place

    def close(self) -> None:
        try:
            self.flush()
        finally:
            if self._journal is not None:
                self._journal.close()

    def _append(self, first: int, stop: int, body: bytes) -> None:
        if self._journal is None:
            self._journal = store_of(self.path).journal(self.path)
        crc = zlib.crc32(body, zlib.crc32(struct.pack("<qq", first, stop)))
        self._journal.append(HEAD.pack(first, stop, len(body), crc) + body)


class Saved:
    """What the earlier attempts at a shard have finished. Rows are asked for in ascending order."""

    def __init__(self, frames: list[Frame], begun: list[tuple[int, int]], marks: int) -> None:
        self._frames = deque(sorted(frames, key=lambda frame: frame.first))
        self._open: list[tuple[Frame, dict[int, Result]]] = []
        self.begun = begun  # by attempt, the last range that was about to be computed alone; empty: none was to blame
        self.marks = marks  # frames of either kind: they grow whenever an attempt gets on

    @classmethod
    def find(cls, folder: Place, shard: int, fence: int) -> Saved:
        """Of the attempts with a smaller fence. An attempt marks a group when the one before is finished, so that only
        its last one can have ended it. A journal may be of several files."""
        frames: list[Frame] = []
        begun: dict[int, tuple[int, int]] = {}
        marks = 0
        for path in _files(folder, shard):
            if _fence(path) < fence:
                for frame in _scan(path):
                    marks += 1
                    if frame.num_bytes:
                        frames.append(frame)
                    else:
                        begun[_fence(path)] = frame.first, frame.stop
        return cls(frames, list(begun.values()), marks)

    def results(self, first: int, stop: int, prefix: str) -> dict[int, Result]:
        """Results of rows [first, stop). Where two attempts finished a row, the earlier one's; nothing comes twice."""
        self._open = [(frame, results) for frame, results in self._open if frame.stop > first]
        while self._frames and self._frames[0].first < stop:
            frame = self._frames.popleft()
            if frame.stop > first:
                self._open.append((frame, _read(frame, prefix)))
        found: dict[int, Result] = {}
        for _, results in sorted(self._open, key=lambda item: _age(item[0])):
            for row, result in results.items():
                if first <= row < stop:
                    found.setdefault(row, result)
        return found

    def open_rows(self, first: int, stop: int) -> list[int]:
        """The rows of [first, stop) that no attempt has finished. Reads every frame."""
        done = {row for frame in self._frames for row in _table(frame).column(0).to_pylist()}
        return [row for row in range(first, stop) if row not in done]

    @property
    def empty(self) -> bool:
        """Whether no row was finished; before `results` was asked."""
        return not self._frames


def checkpoint_path(folder: Place, shard: int, fence: int) -> Place:
    return folder / TEMP / f"{part_name(shard)}.{fence:08d}.rows"


def forget(folder: Place, shard: int) -> None:
    """Remove the checkpoints of a shard whose part is published."""
    store_of(folder).remove(_files(folder, shard))


def _files(folder: Place, shard: int) -> list[Place]:
    """By fence, and where a journal is of several files, in their order."""
    inside = folder / TEMP
    found = (entry.place for entry in store_of(inside).walk(inside, f"{part_name(shard)}."))
    return sorted((place for place in found if NAME.fullmatch(place.name)), key=lambda place: place.name)


def _fence(path: Place) -> int:
    return int(path.name.split(".")[2])


def _age(frame: Frame) -> tuple[int, str, int]:
    return _fence(frame.path), frame.path.name, frame.offset


def _open(path: Place) -> BinaryIO:
    file, _ = store_of(path).open(path)
    return file


def _scan(path: Place) -> Iterator[Frame]:
    with _open(path) as file:
        while len(head := file.read(HEAD.size)) == HEAD.size:
            first, stop, size, crc = HEAD.unpack(head)
            offset = file.tell()
            body = file.read(size)
            if len(body) < size or zlib.crc32(body, zlib.crc32(head[:16])) != crc:
                return
            yield Frame(path, offset, size, first, stop)


def _table(frame: Frame) -> pa.Table:
    with _open(frame.path) as file:
        file.seek(frame.offset)
        body = file.read(frame.num_bytes)
    with pa.ipc.open_stream(body) as stream:
        return stream.read_all()


def _read(frame: Frame, prefix: str) -> dict[int, Result]:
    table = _table(frame)
    # By position: an added column may be called as ours is.
    rows, added = table.column(0).to_pylist(), table.remove_column(0).to_pylist()
    named = ({name.removeprefix(prefix): value for name, value in row.items()} for row in added)
    return {int(row or 0): _result(values) for row, values in zip(rows, named, strict=True)}


def _result(row: dict[str, object]) -> Result:
    error = row.pop("error")
    assert error is None or isinstance(error, dict)
    reason, logprobs = row.pop("finish_reason"), row.pop("logprobs", None)
    counts = {name: row.pop(name) for name in TOKEN_COLUMNS}
    problem = None if error is None else (error["code"], error["message"])
    return Result(row, str(reason), problem, **counts, logprobs=logprobs)  # type: ignore[arg-type]
