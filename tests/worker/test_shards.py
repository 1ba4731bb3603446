"""Shards: parts in row order, columns unchanged, bounded windows, adoption, and no part when the work stops."""

from __future__ import annotations

import contextlib
import hashlib
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from db import datasets
from db.errors import InvalidDataset
from db.progress import Progress
from db.settings import Settings
from db.shards import Claim, PartFile
from db.specs import JobSpec
from engine.request import Request
from tests.worker.factories import spec_of, write_texts
from tests.worker.fakes import FakeEngine, FakeModel
from worker.checkpoints import Checkpoint, Saved, checkpoint_path, forget
from worker.parts import Counts, PartConflict, Tally
from worker.plans import plan
from worker.runner import Runner
from worker.shards import ShardWork, Window, adopt, make
from worker.sources import EngineFailed, Stopped
from worker.suspects import Suspects

WINDOW = Window(4)


def never() -> bool:
    return False


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture
def runner(engine: FakeEngine) -> Iterator[Runner]:
    made = Runner(lambda name: FakeModel(engine))  # type: ignore[arg-type,return-value]
    yield made
    made.close()


def flip_last_byte(path: Path, column: pq.ColumnChunkMetaData) -> None:
    """Of the column's last page, the last bit of its data."""
    data = bytearray(path.read_bytes())
    start = column.data_page_offset if column.dictionary_page_offset is None else column.dictionary_page_offset
    data[start + column.total_compressed_size - 1] ^= 1
    path.write_bytes(data)


def claim_of(spec: JobSpec, start: int, stop: int, first: int = 0) -> Claim:
    return Claim(1, "job", 3, spec.input, start, stop, first, 1, 1, spec, "out", "default")


def attempt(
    runner: Runner,
    folder: Path,
    claim: Claim,
    *,
    window: Window = WINDOW,
    stop: object = never,
    careful: bool = False,
) -> tuple[PartFile, Counts]:
    """As worker.run does it: what an earlier attempt left is taken over, and a published part needs no checkpoint."""
    schema = datasets.inspect(Path(claim.file)).schema
    saved = Saved.find(folder, claim.index, claim.fence)
    open_rows = saved.open_rows(claim.first_row, claim.first_row + claim.num_rows) if saved.begun else []
    suspects = Suspects.among(open_rows, saved.begun, careful)
    with runner.use("fake", never) as model:
        made = plan(claim.spec, model, Settings(), schema, {}, claim.job_id, claim.tenant)
        path = checkpoint_path(folder, claim.index, claim.fence)
        checkpoint = Checkpoint(path, made.layout.added, made.layout.prefix, 0.01)
        tally = Tally()
        work = ShardWork(
            claim,
            made.layout,
            made.maker,
            model,
            window,
            stop,  # type: ignore[arg-type]
            tally,
            saved,
            checkpoint,
            suspects,
        )
        try:
            finished = make(folder, claim, work.write, tally)
        finally:
            checkpoint.close()
    forget(folder, claim.index)
    with contextlib.suppress(FileNotFoundError):
        (folder / "_tmp").rmdir()
    return finished.part, finished.counts


def parts(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name != "_tmp")


def test_requests_are_of_the_job_and_belong_to_its_tenant(runner: Runner, tmp_path: Path) -> None:
    spec = spec_of(write_texts(tmp_path / "in.parquet", ["a"]))
    schema = datasets.inspect(Path(spec.input)).schema
    with runner.use("fake", never) as model:
        request = plan(spec, model, Settings(), schema, {}, "job", "ada").maker.ask(0, (1,))
    assert (request.group, request.owner) == ("job", "ada")


def test_rows_come_out_in_order(runner: Runner, tmp_path: Path) -> None:
    spec = spec_of(write_texts(tmp_path / "in.parquet", (f"row {i}" for i in range(1000))))
    part, counts = attempt(runner, tmp_path / "out", claim_of(spec, 150, 950, first=150))
    path = tmp_path / "out" / "part-00003.parquet"
    assert part == PartFile(path.name, path.stat().st_size, hashlib.sha256(path.read_bytes()).hexdigest())
    table = pq.read_table(path)
    assert table["id"].to_pylist() == list(range(150, 950))
    assert table["output"].to_pylist() == [f"ROW {i}" for i in range(150, 950)]
    assert counts.progress == Progress(800, 0, 800 * 10, 0, 800 * 7)  # 3 tokens of the chat template
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["part-00003.parquet"]


def test_schema(runner: Runner, tmp_path: Path) -> None:
    spec = spec_of(write_texts(tmp_path / "in.parquet", ["a", None, ""]), output_prefix="m_")
    attempt(runner, tmp_path / "out", claim_of(spec, 0, 3))
    table = pq.read_table(tmp_path / "out" / "part-00003.parquet")
    error = pa.struct([("code", pa.string()), ("message", pa.string())])
    assert table.schema.remove_metadata() == pa.schema(
        [
            ("id", pa.int64()),
            ("text", pa.string()),
            ("m_output", pa.large_string()),
            ("m_finish_reason", pa.string()),
            ("m_error", error),
            *((f"m_{name}_tokens", pa.int32()) for name in ("prompt", "cached", "output", "truncated")),
        ]
    )
    assert table.drop_columns(["id", "text"]).to_pylist() == [
        {
            "m_output": "A",
            "m_finish_reason": "stop",
            "m_error": None,
            "m_prompt_tokens": 4,
            "m_cached_tokens": 0,
            "m_output_tokens": 1,
            "m_truncated_tokens": 0,
        },
        *(
            {
                "m_output": None,
                "m_finish_reason": "error",
                "m_error": {"code": code, "message": message},
                "m_prompt_tokens": 0,
                "m_cached_tokens": 0,
                "m_output_tokens": 0,
                "m_truncated_tokens": 0,
            }
            for code, message in (
                ("template_error", "the template prints a null; write {{ column or '' }} where that is meant"),
                ("empty_text", "the template gives an empty text"),
            )
        ),
    ]


def test_label_columns(runner: Runner, tmp_path: Path) -> None:
    recipe = {"kind": "label", "labels": ["good", "bad"]}
    spec = spec_of(write_texts(tmp_path / "in.parquet", ["so bad", "good"]), recipe=recipe, keep_columns=["id"])
    attempt(runner, tmp_path / "out", claim_of(spec, 0, 2))
    table = pq.read_table(tmp_path / "out" / "part-00003.parquet")
    assert table.schema.names[:4] == ["id", "output", "label", "confidence"]
    assert table["label"].to_pylist() == ["bad", "good"]
    assert table["confidence"].to_pylist() == pytest.approx([0.8699, 0.8909], abs=1e-4)


def test_page_checksums_and_compression(runner: Runner, tmp_path: Path) -> None:
    spec = spec_of(write_texts(tmp_path / "in.parquet", ["some text that can be found"] * 300))
    attempt(runner, tmp_path / "out", claim_of(spec, 0, 300))
    path = tmp_path / "out" / "part-00003.parquet"
    column = pq.read_metadata(path).row_group(0).column(0)
    assert column.compression == "ZSTD"
    flip_last_byte(path, column)
    with pytest.raises(OSError, match=r"CRC|checksum|Corrupt"):
        pq.read_table(path, page_checksum_verification=True)


def test_row_groups_are_bounded(runner: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worker.parts.ROW_GROUP_ROWS", 200)
    spec = spec_of(write_texts(tmp_path / "in.parquet", ["x"] * 1000))
    attempt(runner, tmp_path / "out", claim_of(spec, 0, 1000))
    metadata = pq.read_metadata(tmp_path / "out" / "part-00003.parquet")
    assert [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)] == [200] * 5


def test_no_rows_is_a_typed_empty_part(runner: Runner, tmp_path: Path) -> None:
    spec = spec_of(write_texts(tmp_path / "in.parquet", []))
    _, counts = attempt(runner, tmp_path / "out", claim_of(spec, 0, 0))
    table = pq.read_table(tmp_path / "out" / "part-00003.parquet")
    assert (table.num_rows, table.schema.field("output").type) == (0, pa.large_string())
    assert counts.progress == Progress()


def test_no_input_column_at_all(runner: Runner, tmp_path: Path) -> None:
    spec = spec_of(
        write_texts(tmp_path / "in.parquet", ["x"] * 300),
        recipe={"kind": "generate", "template": "hi"},
        keep_columns=[],
    )
    attempt(runner, tmp_path / "out", claim_of(spec, 0, 300))
    table = pq.read_table(tmp_path / "out" / "part-00003.parquet")
    assert table.schema.names[0] == "output"
    assert table["output"].to_pylist() == ["HI"] * 300


def test_a_slow_row_bounds_how_far_reading_runs_ahead(
    runner: Runner, engine: FakeEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Row 0 stays in the engine until two chunks of 100 rows are open and nothing else moves; not a row more comes."""
    monkeypatch.setattr("worker.shard_rows.READ_ROWS", 100)
    ahead: list[int] = []
    step = engine.step

    def stubborn() -> list[object]:
        wait = len(engine.running) > 1 or len(engine.added) < 200
        engine.running = [(r, 2 if r.id[1] == 0 and wait else n) for r, n in engine.running]  # type: ignore[index]
        outputs = step()
        if any(request.id[1] == 0 for request, _ in engine.running):  # type: ignore[index]
            ahead.append(len(engine.added))
        return outputs  # type: ignore[return-value]

    engine.step = stubborn  # type: ignore[assignment,method-assign]
    spec = spec_of(write_texts(tmp_path / "in.parquet", (f"row {i}" for i in range(1000))))
    attempt(runner, tmp_path / "out", claim_of(spec, 0, 1000), window=Window(2))
    assert max(ahead) == 200
    table = pq.read_table(tmp_path / "out" / "part-00003.parquet")
    assert table["output"].to_pylist() == [f"ROW {i}" for i in range(1000)]


def grouped(num_rows: int) -> list[str]:
    """Rows that share one of 20 long beginnings with every twentieth other one."""
    return [f"{i % 20} {'long ' * 40} row {i}" for i in range(num_rows)]


@pytest.mark.parametrize("reorder", [True, False])
def test_rows_that_begin_alike_are_computed_together_and_come_out_in_order(
    runner: Runner, engine: FakeEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reorder: bool
) -> None:
    monkeypatch.setattr("worker.shard_rows.READ_ROWS", 50)
    texts = grouped(500)
    texts[23], texts[120] = "", "  "  # refused before they are put in order
    spec = spec_of(write_texts(tmp_path / "in.parquet", texts), sampling={"max_tokens": 400}, reorder=reorder)
    _, counts = attempt(runner, tmp_path / "out", claim_of(spec, 0, 500), window=Window(8, 4))
    table = pq.read_table(tmp_path / "out" / "part-00003.parquet")
    assert table["id"].to_pylist() == list(range(500))
    assert table["output"].to_pylist() == [text.upper() if text.strip() else None for text in texts]
    assert counts.errors == {"empty_text": 2}
    rows = [request_id[1] for request_id in engine.added]  # type: ignore[index]
    passes = [range(200), range(200, 400), range(400, 500)]
    ordered = [row for each in passes for first in each[:20] for row in sorted(range(first, each.stop, 20), key=str)]
    expected = ordered if reorder else list(range(500))
    assert rows == [row for row in expected if row not in (23, 120)]


def test_a_pass_ends_early_where_rows_are_large(
    runner: Runner, engine: FakeEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.shard_rows.READ_ROWS", 50)
    monkeypatch.setattr("worker.shards.MOST_BYTES", 50 * 400)  # two batches, of about 220 bytes a row
    spec = spec_of(write_texts(tmp_path / "in.parquet", grouped(200)), sampling={"max_tokens": 400})
    attempt(runner, tmp_path / "out", claim_of(spec, 0, 200), window=Window(8, 4))
    rows = [request_id[1] for request_id in engine.added]  # type: ignore[index]
    assert [sorted(rows[:100]), sorted(rows[100:])] == [list(range(100)), list(range(100, 200))]
    assert rows[:5] == [0, 20, 40, 60, 80]


def test_a_careful_attempt_keeps_to_the_inputs_order(runner: Runner, engine: FakeEngine, tmp_path: Path) -> None:
    spec = spec_of(write_texts(tmp_path / "in.parquet", grouped(100)), sampling={"max_tokens": 400})
    attempt(runner, tmp_path / "out", claim_of(spec, 0, 100), window=Window(8, 4), careful=True)
    assert [request_id[1] for request_id in engine.added] == list(range(100))  # type: ignore[index]


def test_window_keeps_the_engine_full() -> None:
    sizes = (1, 64, 256, 257, 1024)
    assert [Window.of(n, reorder=False) for n in sizes] == [Window(chunks, 1) for chunks in (4, 4, 4, 5, 16)]
    assert [Window.of(n, reorder=True) for n in sizes] == [Window(2 * chunks, chunks) for chunks in (4, 4, 4, 5, 16)]


def test_adoption(runner: Runner, tmp_path: Path) -> None:
    spec = spec_of(write_texts(tmp_path / "in.parquet", ["a", None, "c"]))
    claim, folder = claim_of(spec, 0, 3), tmp_path / "out"
    assert adopt(folder, claim) is None
    made = attempt(runner, folder, claim)
    adopted = adopt(folder, claim)
    assert adopted is not None
    assert (adopted.part, adopted.counts) == made
    assert (made[1].progress, made[1].errors) == (Progress(2, 1, 8, 0, 2), {"template_error": 1})
    assert made[1].engine["steps"] > 0


@pytest.mark.parametrize(
    "other", [{"job_id": "another"}, {"index": 4}, {"stop_row": 2}], ids=["job", "shard", "number of rows"]
)
def test_a_foreign_part_is_not_adopted(runner: Runner, tmp_path: Path, other: dict[str, object]) -> None:
    spec = spec_of(write_texts(tmp_path / "in.parquet", ["a", "b", "c"]))
    claim, folder = claim_of(spec, 0, 3), tmp_path / "out"
    attempt(runner, folder, claim)
    stranger = replace(claim, **other)  # type: ignore[arg-type]
    (folder / "part-00004.parquet").write_bytes((folder / "part-00003.parquet").read_bytes())
    with pytest.raises(PartConflict, match=r"part-0000\d.parquet: not the part of shard"):
        adopt(folder, stranger)


def test_a_file_that_is_no_parquet_is_not_adopted(tmp_path: Path) -> None:
    spec = spec_of(write_texts(tmp_path / "in.parquet", ["a"]))
    (tmp_path / "part-00003.parquet").write_bytes(b"PAR1")
    with pytest.raises(PartConflict, match="not a readable Parquet file"):
        adopt(tmp_path, claim_of(spec, 0, 1))


def test_the_first_of_two_writers_wins(runner: Runner, tmp_path: Path) -> None:
    spec = spec_of(write_texts(tmp_path / "in.parquet", ["a", "b"]))
    claim, folder = claim_of(spec, 0, 2), tmp_path / "out"
    first = attempt(runner, folder, claim)
    before = (folder / "part-00003.parquet").stat()
    assert attempt(runner, folder, claim) == first
    after = (folder / "part-00003.parquet").stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_stop_leaves_no_file(runner: Runner, engine: FakeEngine, tmp_path: Path) -> None:
    engine.step_seconds = 0.001
    stop = threading.Event()
    threading.Timer(0.2, stop.set).start()
    spec = spec_of(write_texts(tmp_path / "in.parquet", ["x"] * 20_000))
    with pytest.raises(Stopped):
        attempt(runner, tmp_path / "out", claim_of(spec, 0, 20_000), stop=stop.is_set)
    assert parts(tmp_path / "out") == []


def test_stop_among_rows_that_never_reach_the_engine(runner: Runner, tmp_path: Path) -> None:
    spec = spec_of(write_texts(tmp_path / "in.parquet", [None] * 5000))
    calls = iter(range(10))
    with pytest.raises(Stopped):
        attempt(runner, tmp_path / "out", claim_of(spec, 0, 5000), stop=lambda: next(calls) == 9)
    assert parts(tmp_path / "out") == []


def test_a_broken_engine_leaves_no_file(runner: Runner, engine: FakeEngine, tmp_path: Path) -> None:
    engine.crash_at = 3
    spec = spec_of(write_texts(tmp_path / "in.parquet", ["x"] * 500))
    with pytest.raises(EngineFailed, match="the fake engine broke"):
        attempt(runner, tmp_path / "out", claim_of(spec, 0, 500))
    assert parts(tmp_path / "out") == []


def test_a_broken_input_is_named_and_leaves_no_file(runner: Runner, tmp_path: Path) -> None:
    path = write_texts(tmp_path / "in.parquet", (f"{i}" * 50 for i in range(500)), write_page_checksum=True)
    column = pq.read_metadata(path).row_group(3).column(1)
    flip_last_byte(path, column)
    with pytest.raises(InvalidDataset, match=r"in.parquet: row group 3 cannot be read") as caught:
        attempt(runner, tmp_path / "out", claim_of(spec_of(path), 0, 500))
    assert caught.value.code == "corrupt_data"
    assert parts(tmp_path / "out") == []


LONG = "A sentence of some words. " * 40


@pytest.mark.parametrize("careful", [False, True])
def test_long_rows_are_asked_for_level_by_level(
    runner: Runner, engine: FakeEngine, tmp_path: Path, careful: bool
) -> None:
    """Row 1 in 14 chunks, whose summaries have two chunks, whose are one. Rows around it are as ever."""
    engine.max_model_len = 100
    asked: list[tuple[int, tuple[int, ...]]] = []
    add = engine.add

    def note(request: Request) -> None:
        row = request.id[1]  # type: ignore[index]
        if isinstance(row, tuple) and row[0] == 1:
            asked.append((row[1], request.prompt))
        add(request)

    engine.add = note  # type: ignore[method-assign]
    recipe = {"kind": "summarize", "instruction": "S"}
    source = write_texts(tmp_path / "in.parquet", ["one", LONG, None, "two", *["three"] * 20])
    how = {"recipe": recipe, "on_long": "map_reduce", "sampling": {"max_tokens": 10}, "reuse": False}
    spec = spec_of(source, **how, keep_columns=["id"])
    _, counts = attempt(runner, tmp_path / "out", claim_of(spec, 0, 24), careful=careful)
    rows = pq.read_table(tmp_path / "out" / "part-00003.parquet").to_pylist()
    assert [row["id"] for row in rows] == list(range(24))
    assert [(row["output"], row["chunks"], row["finish_reason"]) for row in rows[:5]] == [
        ("ONE", 1, "stop"),
        ("A SENTENCE", 14, "length"),
        (None, None, "error"),
        ("TWO", 1, "stop"),
        ("THREE", 1, "stop"),
    ]
    assert [place for place, _ in asked] == list(range(17))
    assert b"".join(bytes(prompt[4:-2]) for _, prompt in asked[:14]).decode() == LONG
    long = rows[1]
    assert (long["truncated_tokens"], long["cached_tokens"]) == (0, 0)
    assert long["prompt_tokens"] == sum(len(prompt) for _, prompt in asked)
    assert counts.progress.rows_succeeded == 23
    assert counts.progress.prompt_tokens == sum(row["prompt_tokens"] for row in rows)


def test_a_long_row_whose_every_request_is_known_is_reused(runner: Runner, engine: FakeEngine, tmp_path: Path) -> None:
    engine.max_model_len = 100
    recipe = {"kind": "summarize", "instruction": "S"}
    source = write_texts(tmp_path / "in.parquet", [LONG, LONG])
    spec = spec_of(source, recipe=recipe, on_long="map_reduce", sampling={"max_tokens": 10})
    _, counts = attempt(runner, tmp_path / "out", claim_of(spec, 0, 2))
    assert counts.engine["rows_reused"] == 1
    table = pq.read_table(tmp_path / "out" / "part-00003.parquet")
    assert table["output"].to_pylist() == ["A SENTENCE"] * 2
