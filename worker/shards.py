"""Shards: a row range of the input goes through the engine and comes out as one part file, in row order."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass, field
from typing import BinaryIO, TypeAlias

import pyarrow as pa
import structlog

from db.publish import digest, publish
from db.shards import Claim, PartFile
from db.stores import Place, store_of
from engine.request import Output, Request
from worker.asked import AskedRows
from worker.cells import read_rows
from worker.checkpoints import Checkpoint, Saved
from worker.open_model import OpenModel
from worker.open_rows import Chunk, Unasked
from worker.order import arranged
from worker.parts import Counts, PartWriter, Tally, part_name, read_counts, to_batch
from worker.recipes import RowRefused
from worker.rows import Result, RowMaker, poisonous, refused
from worker.shard_rows import READ_ROWS, read_shard
from worker.sources import Stop, Stopped
from worker.suspects import Suspects

log = structlog.get_logger()
Requests: TypeAlias = tuple[Request, ...]  # of one row
LEAST_CHUNKS = 4
MOST_BYTES = 64 << 20  # of the rows that are put in order together; one batch may be larger


@dataclass(frozen=True, slots=True)
class Layout:
    """Which columns a shard reads and writes."""

    read: tuple[str, ...]  # what the recipe reads
    kept: tuple[str, ...]
    schema: pa.Schema  # of the part
    prefix: str  # of the added columns

    @property
    def added(self) -> pa.Schema:
        """Of the columns beside the kept ones."""
        return pa.schema(list(self.schema)[len(self.kept) :])

    @property
    def columns(self) -> list[str]:
        """Every input column that is needed, once."""
        return list(dict.fromkeys([*self.kept, *self.read]))


@dataclass(frozen=True, slots=True)
class Window:
    """How many rows may be open at once, from the first unfinished one to the last one read."""

    num_chunks: int
    together: int = 1  # chunks whose rows are read together and put in order

    @classmethod
    def of(cls, max_sequences: int, *, reorder: bool) -> Window:
        """Enough that one long answer does not keep the engine's other places empty. Rows that are put in order are as
        many, and as many again, so that the next ones can follow while the last of these are computed."""
        num_chunks = max(LEAST_CHUNKS, -(-4 * max_sequences // READ_ROWS))
        return cls(2 * num_chunks, num_chunks) if reorder else cls(num_chunks)


@dataclass(slots=True)
class ShardWork:
    """One attempt at a shard. Memory is bounded by the window, whatever the shard's size."""

    claim: Claim
    layout: Layout
    maker: RowMaker
    model: OpenModel
    window: Window
    stop: Stop
    tally: Tally
    saved: Saved
    checkpoint: Checkpoint
    suspects: Suspects
    waits: Callable[[bool], None] = lambda waiting: None  # told before the engine is waited for, and after
    _chunks: deque[Chunk] = field(default_factory=deque)  # open ones, in row order
    _places: dict[int, tuple[Chunk, int, float]] = field(default_factory=dict)  # of asked rows, and when they were
    _asked: AskedRows = field(init=False)

    def __post_init__(self) -> None:
        self._asked = AskedRows(self.maker)

    def write(self, sink: BinaryIO) -> None:
        """Compute the shard into `sink`. Raises Stopped, EngineFailed, InvalidDataset."""
        writer = PartWriter(sink, self.layout.schema)
        requests = self._asked.with_further(self._requests(writer))
        reuse = self.claim.tenant if self.claim.spec.reuse else None
        outputs = self.model.run(requests, self.stop, self.claim.job_id, self.checkpoint.flush, reuse=reuse)
        try:
            with contextlib.closing(outputs), contextlib.closing(requests):  # the latter may have the engine alone
                for output in outputs:
                    self._take(output)
                    self._flush(writer)
            self.tally.engine = self.model.counters(self.claim.job_id)
            writer.finish(self.claim.job_id, self.claim.index, self.tally.counts)
        except BaseException:
            writer.abandon()
            raise
        rows = writer.num_rows
        assert rows == self.claim.num_rows, f"shard {self.claim.shard_id} has {rows} of {self.claim.num_rows} rows"

    def _requests(self, writer: PartWriter) -> Generator[Request | None, None, None]:
        """The rows' first requests, in the order to compute them; None while the window is full."""
        batches = read_shard(self.claim, self.layout.columns)
        while together := self._read(batches):
            while len(self._chunks) + len(together) > self.window.num_chunks:
                yield None
            rows = (row for first, batch in together for row in self._open(first, batch))
            if self.suspects.careful:
                yield from self._carefully(self._ask(rows))
            else:
                for _, own in self._ask(self._ordered(rows) if self.claim.spec.reorder else rows):
                    yield from own
            self._flush(writer)

    def _read(self, batches: Iterator[tuple[int, pa.RecordBatch]]) -> list[tuple[int, pa.RecordBatch]]:
        """The next batches whose rows are put in order together. Empty: there are none."""
        read: list[tuple[int, pa.RecordBatch]] = []
        size = 0
        for first, batch in batches:
            if self.stop():
                raise Stopped
            read.append((first, batch))
            size += batch.nbytes
            if len(read) >= self.window.together or size >= MOST_BYTES or self.suspects.careful:
                break
        return read

    def _ordered(self, rows: Iterable[Unasked]) -> list[Unasked]:
        unasked = list(rows)
        return [unasked[place] for place in arranged([self.maker.beginning(each.row, each.text) for each in unasked])]

    def _open(self, first: int, batch: pa.RecordBatch) -> Iterator[Unasked]:
        """The rows of a new chunk that are to be computed; the other ones are settled here."""
        chunk = Chunk.of(batch.select(list(self.layout.kept)))
        self._chunks.append(chunk)
        saved = self.saved.results(first, first + batch.num_rows, self.layout.prefix)
        for offset, row in enumerate(read_rows(batch, self.layout.read)):
            index = first + offset
            if index in saved:
                self._put(chunk, offset, saved[index])
                continue
            if index in self.suspects.poison:
                log.error("row set aside", row=index)
                self._put(chunk, offset, poisonous(), index)
                continue
            try:
                if isinstance(row, RowRefused):
                    raise row
                text = self.maker.text(row)
            except RowRefused as error:
                self._put(chunk, offset, refused(error), index)
            else:
                yield Unasked(index, chunk, offset, row, text)

    def _ask(self, rows: Iterable[Unasked]) -> Iterator[tuple[int, Requests]]:
        """Row and requests of the rows, made one by one as they are wanted."""
        for row in rows:
            try:
                asking = self.maker.asking(row.index, row.row, row.text)
            except RowRefused as error:
                self._put(row.chunk, row.offset, refused(error), row.index)
            else:
                self._places[row.index] = row.chunk, row.offset, time.perf_counter()
                yield row.index, self._asked.ask(row.index, asking)

    def _carefully(self, requests: Iterator[tuple[int, Requests]]) -> Iterator[Request | None]:
        """The requests group by group, each with the engine to itself and marked before."""
        left = dict(requests)
        if left:
            self.waits(True)
        while left:
            group = self.suspects.next_group(list(left))
            with self.model.alone(self.stop):
                self.waits(False)
                log.warning("rows tried with the engine to themselves", row=group[0], rows=len(group))
                self.checkpoint.begin(group[0], group[-1] + 1)
                try:
                    for row in group:
                        yield from left.pop(row)
                    while any(row in self._asked for row in group):
                        yield None
                finally:
                    self.checkpoint.flush()  # others have the engine next, and their rows may end the process
                if left:
                    self.waits(True)  # before another one has it alone

    def _take(self, output: Output) -> None:
        if output.times is not None:
            self.tally.measures.note(output, output.times)
        answered = self._asked.take(output)
        if answered is not None:
            self.tally.rows_reused += answered.reused
            chunk, offset, began = self._places.pop(answered.row)
            self._put(chunk, offset, answered.result, answered.row)
            self.tally.measures.end(began)

    def _put(self, chunk: Chunk, offset: int, result: Result, new: int | None = None) -> None:
        """`new`: the row, if its result should be kept for an attempt after this one."""
        chunk.put(offset, result)
        self.tally.add(result)
        if new is not None:
            if result.error is not None:
                log.debug("row failed", row=new, code=result.error[0])
            self.checkpoint.add(new, result)

    def _flush(self, writer: PartWriter) -> None:
        while self._chunks and not self._chunks[0].missing:
            chunk = self._chunks.popleft()
            results = [result for result in chunk.results if result is not None]
            writer.write(to_batch(chunk.kept, results, self.layout.schema, self.layout.prefix))


@dataclass(frozen=True, slots=True)
class Made:
    """A published part."""

    part: PartFile
    counts: Counts


def adopt(folder: Place, claim: Claim) -> Made | None:
    """The part of this shard that an earlier attempt published before it died; None when there is none.

    Raises PartConflict when the file is not this shard's.
    """
    path = folder / part_name(claim.index)
    if store_of(path).look(path) is None:
        return None
    counts = read_counts(path, claim.job_id, claim.index, claim.num_rows)
    return Made(PartFile(path.name, *digest(path)), counts)


def make(folder: Place, claim: Claim, write: Callable[[BinaryIO], None], tally: Tally) -> Made:
    """Write the part and publish it. Another attempt may have been first: then its part is the one."""
    name = part_name(claim.index)
    published = publish(folder, name, write)
    counts = tally.counts
    if not published.created:
        counts = read_counts(folder / name, claim.job_id, claim.index, claim.num_rows)
    return Made(PartFile(name, published.num_bytes, published.sha256), counts)
