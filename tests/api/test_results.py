"""Routes of results: listing and download."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from api.deps import Services
from api.result_schemas import ResultFile, RowRange, joined
from tests.api.ledger import finish, merge, split, summarize


@pytest.fixture
def job(http: TestClient, tweets: Path, services: Services) -> str:
    """Finished, of three parts."""
    job_id: str = http.post("/v1/jobs", json=summarize(tweets)).json()["id"]
    for claim in split(services, job_id, (1, 1, 1)):
        finish(services, claim, f"part {claim.index}".encode())
    merge(services, job_id)
    return job_id


def test_listing(http: TestClient, job: str) -> None:
    page = http.get(f"/v1/jobs/{job}/results").json()
    assert (page["status"], page["complete"], page["next"]) == ("completed", True, None)
    assert page["manifest_url"] == f"/v1/jobs/{job}/results/_manifest.json"
    assert (page["partial"], page["ranges"]) == (False, [{"first": 0, "stop": 3}])
    assert page["files"] == [
        {
            "name": f"part-0000{i}.parquet",
            "rows": 1,
            "first_row": i,
            "stop_row": i + 1,
            "bytes": 6,
            "sha256": hashlib.sha256(f"part {i}".encode()).hexdigest(),
            "url": f"/v1/jobs/{job}/results/part-0000{i}.parquet",
        }
        for i in range(3)
    ]


def test_pages(http: TestClient, job: str) -> None:
    first = http.get(f"/v1/jobs/{job}/results?limit=2").json()
    assert [file["name"] for file in first["files"]] == ["part-00000.parquet", "part-00001.parquet"]
    second = http.get(f"/v1/jobs/{job}/results?limit=2&after={first['next']}").json()
    assert [file["name"] for file in second["files"]] == ["part-00002.parquet"]
    assert second["next"] is None


def test_a_running_job_lists_what_is_finished(http: TestClient, tweets: Path, services: Services) -> None:
    job_id = http.post("/v1/jobs", json=summarize(tweets)).json()["id"]
    claims = split(services, job_id, (2, 1))
    answer = http.get(f"/v1/jobs/{job_id}/results")
    assert (answer.headers["nightmill-partial"], answer.json()["ranges"]) == ("true", [])
    finish(services, claims[1], b"x")
    answer = http.get(f"/v1/jobs/{job_id}/results")
    page = answer.json()
    assert (page["complete"], page["manifest_url"], [file["rows"] for file in page["files"]]) == (False, None, [1])
    assert (page["partial"], page["ranges"]) == (True, [{"first": 2, "stop": 3}])
    answer = http.get(page["files"][0]["url"])
    assert (answer.content, answer.headers["nightmill-partial"]) == (b"x", "true")
    finish(services, claims[0], b"y")
    assert http.get(f"/v1/jobs/{job_id}/results").json()["ranges"] == [{"first": 0, "stop": 3}]
    merge(services, job_id)
    answer = http.get(f"/v1/jobs/{job_id}/results")
    assert (answer.headers["nightmill-partial"], answer.json()["complete"]) == ("false", True)


def test_ranges_leave_out_what_is_missing() -> None:
    def file(first: int, stop: int) -> ResultFile:
        return ResultFile(name="", rows=stop - first, first_row=first, stop_row=stop, bytes=0, sha256="", url="")

    made = joined([file(0, 0), file(0, 5), file(5, 6), file(9, 12), file(12, 13)])
    assert made == [RowRange(first=0, stop=6), RowRange(first=9, stop=13)]


def test_failed_rows(http: TestClient, tweets: Path, services: Services) -> None:
    job_id = http.post("/v1/jobs", json=summarize(tweets)).json()["id"]
    claims = split(services, job_id, (2, 1))
    finish(services, claims[1], b"x")
    finish(services, claims[0], b"x", failed=2)
    letters = services.settings.data_folder / job_id / "_errors"
    letters.mkdir()
    (letters / "part-00000.parquet").write_bytes(b"letters")
    page = http.get(f"/v1/jobs/{job_id}/errors").json()
    url = f"/v1/jobs/{job_id}/errors/part-00000.parquet"
    assert page == {
        "job_id": job_id,
        "status": "finalizing",
        "partial": True,
        "files": [{"name": "part-00000.parquet", "rows": 2, "url": url}],
        "next": None,
    }
    assert http.get(url).content == b"letters"
    for name in ("part-00001.parquet", "_manifest.json", "..%2Fpart-00001.parquet"):
        assert http.get(f"/v1/jobs/{job_id}/errors/{name}").status_code == 404
    letters.joinpath("part-00002.parquet").symlink_to(tweets)
    assert http.get(f"/v1/jobs/{job_id}/errors/part-00002.parquet").status_code == 404
    assert http.get("/v1/jobs/none/errors").status_code == 404


def test_download(http: TestClient, job: str) -> None:
    answer = http.get(f"/v1/jobs/{job}/results/part-00001.parquet")
    assert (answer.status_code, answer.content) == (200, b"part 1")
    assert answer.headers["content-type"] == "application/vnd.apache.parquet"
    answer = http.get(f"/v1/jobs/{job}/results/part-00001.parquet", headers={"Range": "bytes=5-"})
    assert (answer.status_code, answer.content) == (206, b"1")
    answer = http.get(f"/v1/jobs/{job}/results/_manifest.json")
    assert (answer.status_code, answer.json()) == (200, {})


@pytest.mark.parametrize("name", ["part-00003.parquet", "other.txt", "..%2F..%2Ftest.db", "_tmp", "link"])
def test_no_such_file(http: TestClient, job: str, services: Services, name: str) -> None:
    (services.settings.data_folder / job / "other.txt").write_text("not a result")
    answer = http.get(f"/v1/jobs/{job}/results/{name}")
    assert answer.status_code == 404
    assert answer.json()["code"] in ("result_not_found", "not_found")


def test_a_link_is_not_followed(http: TestClient, job: str, services: Services, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret")
    (services.settings.data_folder / job / "part-00009.parquet").symlink_to(secret)
    answer = http.get(f"/v1/jobs/{job}/results/part-00009.parquet")
    assert (answer.status_code, answer.json()["code"]) == (404, "result_not_found")
