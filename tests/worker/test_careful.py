"""A careful attempt that ends by no row's fault: no healthy row is set aside, and the engine is not called broken."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sqlalchemy import update

from db.models import JobStatus, Shard, ShardStatus
from tests.worker.factories import Office, spec_of
from worker import suspects

# The two databases do the same here; see tests/db.
pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


def begin(office: Office, folder: Path, texts: list[str], group: int, model: str = "fake") -> None:
    """A job whose one shard is to be taken up by a careful attempt: the first one's process died. `group`: rows of a
    row group."""
    table = pa.table({"id": range(len(texts)), "text": texts})
    pq.write_table(table, folder / "in.parquet", row_group_size=group)
    office.submit(spec_of(folder / "in.parquet", model=model, shard_rows=len(texts)), folder / "out")
    office.work(until=lambda wakeup: wakeup.task == "run")
    with office.sessions.begin() as session:
        dead = {"status": ShardStatus.RUNNING, "owner": "dead", "attempts": 1, "fence": 1, "lease_until": 0.0}
        session.execute(update(Shard).values(**dead))


def rows(folder: Path) -> list[tuple[int, str | None, str | None]]:
    """Id, output and error code."""
    found = pq.read_table(folder / "out" / "part-00000.parquet").to_pylist()
    return [(row["id"], row["output"], row["error"] and row["error"]["code"]) for row in found]


def test_rows_that_were_alone_by_chance_and_finished_do_not_make_the_engine_broken(
    office: Office, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each batch is one row; the one that ends the engine comes after more of them than may die."""
    monkeypatch.setattr(suspects, "MOST_ALONE", 2)
    poison = 3
    texts = [f"row {i}" if i != poison else "raise" for i in range(5)]
    begin(office, tmp_path, texts, 1, "fake:poison")
    office.work()
    assert office.job().status is JobStatus.COMPLETED_WITH_ERRORS
    assert rows(tmp_path) == [
        (i, None, "engine_crash") if i == poison else (i, f"ROW {i}", None) for i in range(len(texts))
    ]
