"""Uploads: stored whole and checked, or not at all."""

from __future__ import annotations

import io
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sqlalchemy import func, select
from sqlalchemy.exc import IntegrityError

from db import files
from db.audit import Actor
from db.errors import DatasetRefused, InvalidDataset, UploadNotFound, UploadTooLarge
from db.models import Upload
from db.settings import Settings
from db.tenants import default_folders
from tests.db.ledger import Sessions


def parquet_bytes(num_rows: int = 3) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table({"text": ["t"] * num_rows}), sink)
    return sink.getvalue()


def save(sessions: Sessions, settings: Settings, data: bytes, filename: str = "a.parquet") -> Upload:
    chunks = (data[start : start + 10] for start in range(0, len(data), 10))
    stored = files.store_upload(
        settings.uploads, upload_id="upl_1", filename=filename, chunks=chunks, max_bytes=settings.max_upload_bytes
    )
    return files.record_upload(sessions, stored, Actor("default", None, "here"))


def test_an_upload_is_stored_recorded_and_found_by_its_uri(sessions: Sessions, settings: Settings) -> None:
    data = parquet_bytes()
    saved = save(sessions, settings, data, "C:\\tables\\my table\0.parquet")
    assert (saved.filename, saved.num_bytes, saved.num_rows) == ("my table.parquet", len(data), 3)
    path = files.upload_path(settings.uploads, "upl_1")
    assert path.read_bytes() == data
    assert files.resolve_input("upload://upl_1", default_folders(settings)) == path.resolve()
    assert [path.name for path in settings.uploads.iterdir()] == ["upl_1.parquet"]
    with sessions.begin() as session:
        assert files.get_upload(session, "upl_1", "default").num_rows == 3


def test_a_file_that_is_no_parquet_is_refused_under_the_clients_name(sessions: Sessions, settings: Settings) -> None:
    with pytest.raises(InvalidDataset) as caught:
        save(sessions, settings, b"id,text\n1,hello\n", "table.csv")
    assert (caught.value.code, caught.value.file) == ("invalid_parquet", "table.csv")
    assert str(settings.home) not in str(caught.value)
    assert list(settings.uploads.iterdir()) == []
    with sessions.begin() as session:
        assert session.scalar(select(func.count()).select_from(Upload)) == 0


def test_an_upload_is_cut_off_at_the_limit(sessions: Sessions, settings: Settings) -> None:
    data = parquet_bytes()
    exact = settings.model_copy(update={"max_upload_bytes": len(data)})
    small = settings.model_copy(update={"max_upload_bytes": len(data) - 1})
    with pytest.raises(UploadTooLarge, match=r"a\.parquet") as caught:
        save(sessions, small, data)
    assert caught.value.limit == len(data) - 1
    assert list(settings.uploads.iterdir()) == []
    assert save(sessions, exact, data).num_bytes == len(data)


def test_a_client_that_breaks_off_leaves_nothing(settings: Settings) -> None:
    def chunks() -> object:
        yield parquet_bytes()[:20]
        raise ConnectionResetError("the client went away")

    with pytest.raises(ConnectionResetError):
        files.store_upload(settings.uploads, upload_id="upl_1", filename="a", chunks=chunks(), max_bytes=1000)  # type: ignore[arg-type]
    assert list(settings.uploads.iterdir()) == []


def test_a_file_that_cannot_be_recorded_does_not_stay(sessions: Sessions, settings: Settings) -> None:
    with sessions.begin() as session:
        session.add(Upload(id="upl_1", filename="another", num_bytes=1, num_rows=1, created_at=1.0))
    with pytest.raises(IntegrityError):
        save(sessions, settings, parquet_bytes())
    assert list(settings.uploads.iterdir()) == []


@pytest.mark.parametrize("upload_id", ["", "absent", "../upl_1", "a/b", "a\0", "x" * 41, "upl_1.parquet", "%2e"])
def test_ids_of_no_upload(sessions: Sessions, settings: Settings, upload_id: str) -> None:
    save(sessions, settings, parquet_bytes())
    with pytest.raises(UploadNotFound):
        files.resolve_input(f"upload://{upload_id}", default_folders(settings))
    with sessions.begin() as session, pytest.raises(UploadNotFound):
        files.get_upload(session, upload_id.replace("\0", ""), "default")


def test_other_inputs_are_paths_under_the_roots(settings: Settings, tmp_path: Path) -> None:
    (tmp_path / "in.parquet").touch()
    assert (
        files.resolve_input(f"file://{tmp_path}/in.parquet", default_folders(settings))
        == (tmp_path / "in.parquet").resolve()
    )
    with pytest.raises(DatasetRefused):
        files.resolve_input("/etc/passwd", default_folders(settings))
