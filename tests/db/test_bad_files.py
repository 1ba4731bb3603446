"""Each of the 79 awkward and broken files ends in its rows or in an error that names what is wrong."""

from __future__ import annotations

import random
import struct
import subprocess
import sys
import textwrap
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from db import datasets, parquet
from db.errors import InvalidDataset
from tests.db.bad_parquet import BadFiles
from tests.db.hostile_footers import HOSTILE

FOOTERS = ("empty", "magic_only", "two_magics", "csv", "json", "gzip", "arrow_ipc", "bad_tail_magic", "encrypted_magic")
FOOTERS += ("truncated_1", "truncated_8", "truncated_100", "truncated_half")
FOOTERS += ("footer_len_zero", "footer_len_huge", "footer_len_short", "footer_garbage", "footer_bombs")
# What is refused from the footer alone: code and column.
REFUSED = {f"err_{name}.parquet": ("invalid_parquet", None) for name in FOOTERS} | {
    "err_directory.parquet": ("empty_folder", None),
    "schema_duplicate_text.parquet": ("duplicate_column", "text"),
}
UNFIT = {
    "schema_no_columns.parquet": ("no_column", "its columns are: none"),
    "schema_no_text.parquet": ("no_column", "its columns are: 'id', 'body'"),
    "schema_text_binary_latin1.parquet": ("wrong_type", "column 'text' is binary;"),
    "schema_text_binary_utf8.parquet": ("wrong_type", "column 'text' is binary;"),
    "schema_text_int.parquet": ("wrong_type", "column 'text' is int64;"),
    "schema_text_list.parquet": ("wrong_type", "column 'text' is list<element: string>;"),
    "schema_text_nulltype.parquet": ("wrong_type", "column 'text' is null;"),
    "schema_text_struct.parquet": ("wrong_type", "column 'text' is struct<a: string>;"),
}
# What the footer hides and reading finds: row group and column.
CORRUPT = {
    "err_head_missing.parquet": (0, "id"),
    "err_first_page_header_zero.parquet": (0, "id"),
    "err_page_bytes_flipped.parquet": (1, "text"),
    "err_invalid_utf8_in_string.parquet": (2, "text"),
}


@pytest.fixture(scope="module")
def bad(tmp_path_factory: pytest.TempPathFactory) -> BadFiles:
    files = BadFiles(tmp_path_factory.mktemp("bad"))
    files.write()
    return files


def read_all(dataset: datasets.Dataset) -> pa.Table:
    batches = [batch for file in dataset.files for batch in parquet.read(file.path, 0, file.num_rows)]
    return pa.Table.from_batches(batches, dataset.schema)


def test_every_file_has_an_expected_outcome(bad: BadFiles) -> None:
    assert Counter(bad.kinds.values()) == {"ok": 37, "error": 24, "schema": 9, "any": 9}
    named = {*REFUSED, *UNFIT, *CORRUPT, "err_invalid_utf8_valid_file.parquet"}
    assert {name for name, kind in bad.kinds.items() if kind in ("error", "schema")} == named


def test_valid_files_give_every_row_unchanged(bad: BadFiles) -> None:
    for name in (name for name, kind in bad.kinds.items() if kind == "ok"):
        path = bad.folder / name
        dataset = datasets.inspect(path)
        datasets.check_text(dataset, "text")
        found, expected = read_all(dataset), pq.read_table(path)
        assert found.num_rows == dataset.num_rows, name
        assert found.schema.equals(expected.schema), name
        # nan is not equal to itself
        assert str(found.to_pylist()) == str(expected.to_pylist()), name


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_broken_footers_are_refused_by_file(bad: BadFiles, name: str) -> None:
    with pytest.raises(InvalidDataset) as caught:
        datasets.inspect(bad.folder / name)
    assert (caught.value.code, caught.value.column) == REFUSED[name]
    assert caught.value.file == str(bad.folder / name)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("name", sorted(UNFIT))
def test_columns_that_hold_no_text_are_refused_by_name_and_type(bad: BadFiles, name: str) -> None:
    dataset = datasets.inspect(bad.folder / name)
    with pytest.raises(InvalidDataset) as caught:
        datasets.check_text(dataset, "text")
    code, words = UNFIT[name]
    assert (caught.value.code, caught.value.column) == (code, "text")
    assert caught.value.file == str(bad.folder / name)
    assert words in caught.value.reason


@pytest.mark.parametrize("name", sorted(CORRUPT))
def test_broken_pages_are_found_while_reading_and_named(bad: BadFiles, name: str) -> None:
    group, column = CORRUPT[name]
    dataset = datasets.inspect(bad.folder / name)
    seen: list[int] = []
    with pytest.raises(InvalidDataset, match=f"row group {group} cannot be read") as caught:
        seen.extend(batch.num_rows for batch in parquet.read(bad.folder / name, 0, dataset.num_rows))
    assert (caught.value.code, caught.value.column) == ("corrupt_data", column)
    assert sum(seen) == group * 250


def test_a_broken_row_group_harms_only_its_own_rows(bad: BadFiles) -> None:
    path = bad.folder / "err_page_bytes_flipped.parquet"
    rows = [*parquet.read(path, 0, 250), *parquet.read(path, 500, 1000)]
    texts = [text for batch in rows for text in batch.column("text").to_pylist()]
    assert texts == bad.texts[:250] + bad.texts[500:]


def test_text_that_is_not_utf8_in_a_sound_file_is_read_through_for_its_row_to_fail(bad: BadFiles) -> None:
    dataset = datasets.inspect(bad.folder / "err_invalid_utf8_valid_file.parquet")
    column = read_all(dataset).column("text").combine_chunks()
    raw = pa.Array.from_buffers(pa.binary(), len(column), column.buffers()).to_pylist()
    assert raw == [b"\xff\xfe\xc0\xaf" + text.encode() for text in bad.texts[:20]]


def test_damaged_files_that_may_pass_give_the_right_rows_or_an_error(bad: BadFiles) -> None:
    outcomes = Counter[str]()
    for name in (name for name, kind in bad.kinds.items() if kind == "any"):
        try:
            found = read_all(datasets.inspect(bad.folder / name)).select(["id", "text"])
        except InvalidDataset as error:
            outcomes[error.code] += 1
        else:
            assert found.to_pylist() == bad.base.to_pylist(), name
            outcomes["rows"] += 1
    assert outcomes.total() == 9
    assert outcomes["rows"] >= 1  # err_bad_head_magic


@pytest.mark.parametrize(("codec", "outcome"), [("gzip", "corrupt_data"), ("none", "other rows")])
def test_without_page_checksums_a_flipped_bit_is_found_by_the_codec_if_at_all(
    tmp_path: Path, codec: str, outcome: str
) -> None:
    """What no reader can find: a plain page carries nothing to check it against."""
    path = tmp_path / "flip.parquet"
    texts = [f"text number {i}" for i in range(1000)]
    pq.write_table(pa.table({"text": texts}), path, compression=codec, use_dictionary=False)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    try:
        found = read_all(datasets.inspect(path)).column("text").to_pylist()
    except InvalidDataset as error:
        seen = error.code
    else:
        assert len(found) == 1000
        seen = "the texts" if found == texts else "other rows"
    assert seen == outcome


LIMITED = """
    import resource, sys, time
    from pathlib import Path
    from db import datasets, parquet
    from db.errors import InvalidDataset
    resource.setrlimit(resource.RLIMIT_AS, (3 << 29, 3 << 29))
    for path in sorted(Path(sys.argv[1]).iterdir()):
        started = time.monotonic()
        try:
            dataset = datasets.inspect(path)
            rows = sum(batch.num_rows for batch in parquet.read(path, 0, dataset.num_rows))
            print("rows" if rows == dataset.num_rows else "lost")
        except InvalidDataset as error:
            print(error.code)
        assert time.monotonic() - started < 30, path
"""


def run_limited(folder: Path) -> list[str]:
    """Outcomes by file in the order of names, from a process that may have 1.5 GiB of address space."""
    command = [sys.executable, "-W", "error", "-c", textwrap.dedent(LIMITED), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert (done.stderr, done.returncode) == ("", 0)
    return done.stdout.split()


def test_hostile_footers_take_no_memory_and_no_time(tmp_path: Path) -> None:
    for name, data in HOSTILE.items():
        (tmp_path / name).write_bytes(data)
    outcomes = dict(zip(sorted(HOSTILE), run_limited(tmp_path), strict=True))
    # The column without metadata is found when its rows are read.
    late = {"a column without metadata": "corrupt_data", "a long list that nobody wants": "invalid_parquet"}
    assert outcomes == dict.fromkeys(HOSTILE, "invalid_parquet") | late


def test_300_footers_with_random_damage_neither_end_the_process_nor_lose_a_row(tmp_path: Path) -> None:
    rnd = random.Random(11)
    messages = [[{"role": "user", "content": "x"}]] * 200
    table = pa.table({"id": range(200), "text": ["some text"] * 200, "messages": messages})
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, row_group_size=70, write_page_checksum=True)
    good = sink.getvalue().to_pybytes()
    footer = len(good) - 8 - struct.unpack("<I", good[-8:-4])[0]
    for number in range(300):
        data = bytearray(good)
        for _ in range(rnd.randint(1, 3)):
            data[rnd.randrange(footer, len(good) - 8)] ^= 1 << rnd.randrange(8)
        (tmp_path / f"{number:03d}").write_bytes(data)
    outcomes = Counter(run_limited(tmp_path))
    assert outcomes.total() == 300
    assert set(outcomes) <= {"rows", "invalid_parquet", "corrupt_data", "duplicate_column"}
    assert outcomes["rows"] > 10
