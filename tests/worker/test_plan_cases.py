"""Plans of inputs unlike the others: many equal rows, small files, blocks of long rows, answers by chance."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from db import datasets
from db.plan_results import PlanResult
from db.workers import worker_seen
from engine.request import Request
from tests.worker.factories import Office, spec_of, write_texts
from tests.worker.test_dry_run import ask, made, read
from worker import dry_run, forecast, frame
from worker.forecast import Known, Seat
from worker.plans import Plan
from worker.recipes import Row
from worker.rows import Asking

# What is planned is the same on every database.
pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


def test_rows_with_many_equals_count_as_often_as_there_are(office: Office, tmp_path: Path) -> None:
    """An answer is as long as its text: nearly all are of one token, and the few distinct ones of 80."""
    source = write_texts(tmp_path / "in.parquet", ["x"] * 990 + [f"{i:03d}" + "y" * 80 for i in range(10)])
    plan = made(office, spec_of(source))
    office.submit(spec_of(source), tmp_path / "out")
    office.work()
    assert plan.output_tokens.low == plan.output_tokens.value == office.job().output_tokens


def test_rows_that_fail_alike_are_all_counted(office: Office, tmp_path: Path) -> None:
    source = write_texts(tmp_path / "in.parquet", ["not json"] * 190 + [f'{{"a": {i}}}' for i in range(10)])
    recipe = {"kind": "generate", "template": "{{ text }}", "columns": ["text"], "format": {"type": "json_object"}}
    spec = spec_of(source, recipe=recipe)
    plan = made(office, spec)
    office.submit(spec, tmp_path / "out")
    office.work()
    assert plan.rows.failing.value == plan.rows.failing.high == office.job().rows_failed == 190


def test_small_files_are_work_for_all_workers(office: Office, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for name in range(40):
        write_texts(tmp_path / "in" / f"{name:02}.parquet", [f"row {name} {i}" for i in range(5)])
    with office.sessions.begin() as session:
        for owner in "abcd":
            worker_seen(session, owner, None, {})
    plan = made(office, spec_of(tmp_path / "in", shard_rows=100))
    assert plan.workers == 4
    assert dry_run._most_rows([5] * 40, 4) == 50
    assert dry_run._most_rows([100, 1, 1, 1, 100], 2) == 103
    assert dry_run._most_rows([7], 1) == 7


def test_a_block_of_long_rows_is_less_certain_than_long_rows_anywhere(office: Office, tmp_path: Path) -> None:
    """`fake:small` refuses them. The one interval takes the runs of neighbours into account that are read."""
    counts = []
    for name, long in (("block", range(4000, 4500)), ("anywhere", range(7, 10_000, 20))):
        texts = ["x" * 80 if i in long else "short" for i in range(10_000)]
        source = write_texts(tmp_path / f"{name}.parquet", texts)
        spec = spec_of(source, model="fake:small", sampling={"max_tokens": 8}, reuse=False)
        counts.append(made(office, spec, 8).rows.too_long)
    widths = [count.high - count.low for count in counts]
    assert widths[0] > 3 * widths[1]
    assert counts[0].low <= 500 <= counts[0].high


def test_a_second_attempt_finds_nothing_of_the_first_in_the_cache(
    office: Office, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    owners, made_by = list[set[object]](), forecast.forecast

    def broken_once(known: Known, seat: Seat, draw: random.Random) -> PlanResult:
        asked = (row.asking for row in known.frame.rows)
        owners.append({request.owner for asking in asked if asking for request in asking.requests})
        if len(owners) == 1:
            raise OSError("the disk went away")
        return made_by(known, seat, draw)

    monkeypatch.setattr(dry_run, "forecast", broken_once)
    plan_id = ask(office, spec_of(write_texts(tmp_path / "in.parquet", [f"row {i}" for i in range(20)])))
    office.work()
    office.work()
    assert read(office, plan_id).attempts == 2
    assert owners[0].isdisjoint(owners[1])


def test_no_more_tokens_are_held_than_a_row_has_beyond_the_bound(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Maker:
        def text(self, row: Row) -> str:
            return ""

        def asking(self, index: int, row: Row, text: str) -> Asking:
            return Asking((Request(index, (1,) * 1000),))

    class Read:
        maker = Maker()
        layout = type("Layout", (), {"read": ("text",)})

    monkeypatch.setattr(frame, "MOST_TOKENS", 10_000)
    dataset = datasets.inspect(write_texts(tmp_path / "in.parquet", ["a"] * 64))
    made_plan: Plan = Read()  # type: ignore[assignment]
    found = frame.look(dataset, 64, made_plan, random.Random(1), lambda: None)
    assert (len(found.rows), found.whole) == (11, False)


def test_answers_that_chance_decides_are_not_known_by_having_been_computed(office: Office, tmp_path: Path) -> None:
    source = write_texts(tmp_path / "in.parquet", [f"row {i}" * (1 + i % 5) for i in range(40)])
    plan = made(office, spec_of(source, sampling={"temperature": 1.0}), 64)
    assert plan.output_tokens.low < plan.output_tokens.value < plan.output_tokens.high
    plan = made(office, spec_of(source, sampling={"temperature": 1.0, "seed": 3}), 64)
    assert plan.output_tokens.low == plan.output_tokens.value


def test_reading_takes_its_time_where_nothing_is_computed(office: Office, tmp_path: Path) -> None:
    plan = made(office, spec_of(write_texts(tmp_path / "in.parquet", [None] * 50)))
    assert 0 < plan.seconds.low < plan.seconds.value < plan.seconds.high
    assert plan.limit == "host"
