"""Links that a tenant puts into the output of its own job: no route shows what lies behind them."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fastapi.testclient import TestClient
from sqlalchemy import update

from api import result_files
from db.models import Job, JobStatus
from tests.api.gate import Gate
from tests.api.ledger import summarize, write

CANARY = "canary of bolt"


@pytest.fixture
def job(gate: Gate) -> str:
    """A job of acme whose failed rows are, by a link, a file of bolt."""
    theirs, mine = gate.folder / "bolt" / "out", gate.folder / "acme" / "out"
    theirs.mkdir()
    error = {"code": CANARY, "message": CANARY}
    table = pa.table({"text": [CANARY], "nightmill_error": [error], "output": [CANARY], "error": [error]})
    pq.write_table(table, theirs / "part-00000.parquet")
    job_id: str = gate.submit("acme submit", output=str(mine))["id"]
    mine.mkdir()
    (mine / "_errors").symlink_to(theirs)
    (mine / "part-00000.parquet").symlink_to(theirs / "part-00000.parquet")
    with gate.sessions.begin() as session:
        session.execute(update(Job).where(Job.id == job_id).values(status=JobStatus.COMPLETED_WITH_ERRORS))
    return job_id


@pytest.mark.parametrize("kind", ["errors", "results"])
def test_a_file_behind_a_link_is_none(gate: Gate, job: str, kind: str) -> None:
    found = gate.call("acme read", "GET", f"/v1/jobs/{job}/{kind}/part-00000.parquet")
    none = gate.call("acme read", "GET", f"/v1/jobs/{job}/{kind}/part-00001.parquet")
    assert (found.status_code, found.json()["code"]) == (404, "result_not_found")
    assert found.text == none.text.replace("part-00001", "part-00000")


@pytest.mark.parametrize("linked", ["out/part-00000.parquet", "out"])
@pytest.mark.parametrize(
    ("asked", "found"), [(None, (200, b"acme")), ("bytes=1-2", (206, b"cm")), ("bytes=9-", (416, b""))]
)
def test_a_link_that_comes_before_the_answer_is_sent(
    tmp_path: Path, linked: str, asked: str | None, found: tuple[int, bytes]
) -> None:
    for name in ("acme", "bolt"):
        (tmp_path / name / "out").mkdir(parents=True)
        (tmp_path / name / "out" / "part-00000.parquet").write_bytes(name.encode())
    response = result_files.answer(tmp_path / "acme" / "out" / "part-00000.parquet", asked, {})
    assert response is not None
    (tmp_path / "acme" / linked).rename(tmp_path / "moved")
    (tmp_path / "acme" / linked).symlink_to(tmp_path / "bolt" / linked)
    answer = TestClient(response).get("/", headers={} if asked is None else {"Range": asked})
    assert (answer.status_code, answer.content) == found


def test_the_page_of_the_job_shows_nothing_of_it(gate: Gate, job: str) -> None:
    page = gate.call("acme read", "GET", f"/jobs/{job}")
    assert page.status_code == 200, page.text
    assert CANARY not in page.text


def test_failed_rows_behind_a_link_are_not_tried_again(gate: Gate, job: str) -> None:
    answer = gate.call("acme submit", "POST", f"/v1/jobs/{job}/retry")
    assert (answer.status_code, answer.json()["code"]) == (422, "changed")
    assert CANARY not in answer.text


def test_results_in_a_folder_that_the_operator_reaches_by_a_link(gate: Gate) -> None:
    data = gate.services.settings.data_folder
    job = gate.call("default submit", "POST", "/v1/jobs", json=summarize(write(data / "in.parquet", 3))).json()
    data.rename(data.parent / "disk")
    data.symlink_to(data.parent / "disk")
    (data / job["id"]).mkdir()
    (data / job["id"] / "_SUCCESS").touch()
    assert gate.call("default read", "GET", f"/v1/jobs/{job['id']}/results/_SUCCESS").status_code == 200
