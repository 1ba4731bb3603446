"""Files that clients of the OpenAI face sent, and the parts of those that come in pieces. The bytes lie on the disk.

The caller owns the transaction. Bytes are published before their row is there and go after it: a row always has bytes.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from sqlalchemy import delete, select, tuple_, update
from sqlalchemy.orm import Session

from db.errors import UploadTooLarge
from db.openai_models import Batch, OpenAIFile, OpenAIPart, OpenAIUpload
from db.publish import publish
from db.session import db_now
from db.settings import Settings

CHUNK_BYTES = 1 << 20
Row = TypeVar("Row", OpenAIFile, Batch)


def new_id(prefix: str) -> str:
    return f"{prefix}{secrets.token_hex(12)}"


def now(session: Session) -> float:
    return float(session.scalar(select(db_now())) or 0.0)


def file_path(settings: Settings, file_id: str) -> Path:
    return settings.files / file_id


def parts_folder(settings: Settings, upload_id: str) -> Path:
    return settings.files / "parts" / upload_id


def store(folder: Path, name: str, chunks: Iterable[bytes], *, most: int, shown: str) -> int:
    """Publish bytes as folder/name; returns how many. Raises UploadTooLarge naming `shown`; then nothing is kept."""

    def fill(file: BinaryIO) -> None:
        size = 0
        for chunk in chunks:
            size += len(chunk)
            if size > most:
                raise UploadTooLarge(shown, most)
            file.write(chunk)

    # The operator may have put a link in the place of the service's own folder.
    published = publish(Path(os.path.realpath(folder)), name, fill)
    assert published.created, f"the id {name} was used before"
    return published.num_bytes


def read(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            yield chunk


def create(session: Session, tenant: str, file: OpenAIFile, expires_seconds: int | None) -> OpenAIFile:
    """Record a file whose bytes are there, if it has any of its own."""
    file.tenant, file.created_at = tenant, db_now()
    file.expires_at = None if expires_seconds is None else db_now() + expires_seconds
    session.add(file)
    session.flush()
    session.refresh(file)
    return file


def get(session: Session, tenant: str, file_id: str) -> OpenAIFile | None:
    """None also for a file of another tenant, or one whose time is over."""
    query = select(OpenAIFile).where(OpenAIFile.id == file_id, OpenAIFile.tenant == tenant, lasting())
    return session.scalar(query)


def lasting() -> Any:
    """The condition that a file's time is not over."""
    return OpenAIFile.expires_at.is_(None) | (OpenAIFile.expires_at > db_now())


def listing(
    session: Session, tenant: str, *, purpose: str | None, limit: int, after: OpenAIFile | None, ascending: bool
) -> list[OpenAIFile]:
    query = select(OpenAIFile).where(OpenAIFile.tenant == tenant, lasting())
    if purpose is not None:
        query = query.where(OpenAIFile.purpose == purpose)
    return list(session.scalars(page(query, OpenAIFile, limit=limit, after=after, ascending=ascending)))


def page(query: Any, table: type[Row], *, limit: int, after: Row | None, ascending: bool) -> Any:
    """By age, then by id; those behind `after` alone."""
    key = tuple_(table.created_at, table.id)
    if after is not None:
        cursor = tuple_(after.created_at, after.id)
        query = query.where(key > cursor if ascending else key < cursor)
    order = (table.created_at, table.id) if ascending else (table.created_at.desc(), table.id.desc())
    return query.order_by(*order).limit(limit)


def remove(session: Session, settings: Settings, file: OpenAIFile) -> None:
    session.delete(file)
    session.flush()
    file_path(settings, file.id).unlink(missing_ok=True)


def expire(session: Session, settings: Settings, limit: int = 100) -> None:
    """Remove files and unfinished uploads whose time is over."""
    due = select(OpenAIFile).where(OpenAIFile.expires_at <= db_now()).limit(limit).with_for_update(skip_locked=True)
    for file in session.scalars(due).all():
        remove(session, settings, file)
    late = select(OpenAIUpload).where(OpenAIUpload.status == "pending", OpenAIUpload.expires_at <= db_now())
    for upload in session.scalars(late.limit(limit).with_for_update(skip_locked=True)).all():
        close_upload(session, settings, upload, "expired")


# -- uploads in parts --------------------------------------------------------------------------------------------------


def get_upload(session: Session, tenant: str, upload_id: str) -> OpenAIUpload | None:
    """Locked: its parts are added and joined one after the other."""
    query = select(OpenAIUpload).where(OpenAIUpload.id == upload_id, OpenAIUpload.tenant == tenant)
    return session.scalar(query.with_for_update())


def parts(session: Session, upload_id: str) -> dict[str, int]:
    """Sizes of the parts that have come, by id."""
    rows = session.execute(select(OpenAIPart.id, OpenAIPart.num_bytes).where(OpenAIPart.upload_id == upload_id))
    return {part_id: int(size) for part_id, size in rows}


def close_upload(session: Session, settings: Settings, upload: OpenAIUpload, status: str) -> None:
    """The upload is over; its parts go."""
    session.execute(update(OpenAIUpload).where(OpenAIUpload.id == upload.id).values(status=status))
    session.execute(delete(OpenAIPart).where(OpenAIPart.upload_id == upload.id))
    session.refresh(upload)
    shutil.rmtree(parts_folder(settings, upload.id), ignore_errors=True)
