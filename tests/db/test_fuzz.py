"""Mutated Parquet files and templates: only typed errors, no crash, no hang, no memory without end."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jinja2 import TemplateError

from db import datasets, parquet
from db.errors import DomainError, InvalidJob
from db.templates import renderer, variables
from tests.db.bad_parquet import BadFiles

MOST_GROWTH = 400 << 20  # bytes of resident memory over the whole run
MOST_CHARS = 10_000
SMALL = settings(max_examples=60, deadline=5_000, suppress_health_check=list(HealthCheck), print_blob=True)
LARGE = settings(SMALL, max_examples=5_000)
SIZES = pytest.mark.parametrize("size", [SMALL, pytest.param(LARGE, marks=pytest.mark.slow)], ids=["small", "large"])
BASES = ("ok_tiny_pages", "ok_extra_types", "ok_many_row_groups", "ok_dictionary_type", "ok_page_index_checksum",
         "ok_delta_byte_array", "ok_data_page_v2", "ok_odd_names")  # fmt: skip

# Where, counted from the end, as most of what a reader trusts lies there; and what is done to it.
EDITS = st.lists(
    st.tuples(
        st.one_of(st.integers(0, 600), st.integers(0, 200_000)),
        st.sampled_from(["flip", "set", "cut", "double", "drop"]),
        st.integers(0, 255),
    ),
    min_size=1,
    max_size=6,
)
PIECES = (
    "{{ text }}", "{{", "}}", "{%", "%}", "{#", "#}", " for x in range(n) ", " for c in text ", " endfor ", " if n ",
    " else ", " endif ", " set x = ", "x ~ x", "text * n", "n ** n", "n * 9", "text.split()", "text.format(x)", "|join",
    "|replace('a', text)", "|upper", "|tojson", "|sort", "|attr('__class__')", ".__class__", "[0]", "loop.index",
    "items", "range(9999)", "'%s' % x", "{{ x }}", "namespace()", "caller()", "import", "include 'x'", "macro f()",
    "\n", " - ", "-", "1e308", "é", "\x00", "''", '"', "~", "|", "(", ")", "not", "in", "none", "lipsum()", "self",
    "cycler", "[x, x]",
)  # fmt: skip
ROW = {"text": "a few words", "n": 7, "x": None, "items": [1, {"a": "b"}], "c": 2.5}


def peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def mutated(data: bytes, edits: list[tuple[int, str, int]]) -> bytes:
    made = bytearray(data)
    for from_end, what, value in edits:
        place = max(len(made) - 1 - from_end, 0)
        if not made:
            break
        if what == "flip":
            made[place] ^= 1 << value % 8
        elif what == "set":
            made[place] = value
        elif what == "cut":
            del made[place:]
        elif what == "drop":
            del made[place : place + value]
        else:
            made[place:place] = made[place : place + value]
    return bytes(made)


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("bases")
    BadFiles(folder).write()
    return {name: (folder / f"{name}.parquet").read_bytes() for name in BASES}


@SIZES
def test_parquet(bases: dict[str, bytes], tmp_path: Path, size: settings) -> None:
    """A mutated file is refused, by name, or as many rows are read as its footer promises."""
    path, before = tmp_path / "in.parquet", peak()

    @size
    @given(name=st.sampled_from(BASES), edits=EDITS)
    def check(name: str, edits: list[tuple[int, str, int]]) -> None:
        path.write_bytes(mutated(bases[name], edits))
        try:
            num_rows = datasets.inspect(path).num_rows
            read = sum(batch.num_rows for batch in parquet.read(path, 0, min(num_rows, 2_000)))
        except DomainError as error:
            assert "in.parquet" in str(error)  # noqa: PT017 - a file that can be read is as good
        else:
            assert read == min(num_rows, 2_000)

    check()
    assert peak() - before < MOST_GROWTH


@SIZES
def test_templates(size: settings) -> None:
    """Refused at the submission, or rendered within its bounds, or refused for the row: nothing else."""
    before = peak()

    @settings(size, max_examples=3 * size.max_examples)
    @given(pieces=st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=4)), max_size=14))
    def check(pieces: list[str]) -> None:
        template = "".join(pieces)
        try:
            names = variables(template)
        except InvalidJob:
            return
        assert "work spent" not in names
        try:
            text = renderer(template, MOST_CHARS)(ROW)
        except TemplateError:
            return
        assert len(text) <= MOST_CHARS

    check()
    assert peak() - before < MOST_GROWTH
