"""Uploads: Parquet files that clients sent, kept in a folder of their tenant, and named by upload://<id> in a job."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from sqlalchemy.orm import Session, sessionmaker

from db import audit, datasets, tenants, uris
from db.audit import Actor
from db.errors import InvalidDataset, UploadNotFound, UploadTooLarge
from db.models import Upload
from db.publish import publish
from db.session import db_now
from db.settings import Settings
from db.stores import Place
from db.tenants import Folders

SCHEME = "upload://"
ID = re.compile(r"[A-Za-z0-9_-]{1,40}")


@dataclass(frozen=True, slots=True)
class Stored:
    """An upload whose file is there and whose row is not."""

    id: str
    filename: str
    path: Path
    num_bytes: int
    num_rows: int


def store_upload(uploads: Path, *, upload_id: str, filename: str, chunks: Iterable[bytes], max_bytes: int) -> Stored:
    """Store a Parquet file chunk by chunk in a tenant's uploads, and check its footer. `upload_id` is a new id.

    Raises UploadTooLarge, and InvalidDataset naming `filename`; then nothing is kept.
    """
    name = _display_name(filename)
    found: list[datasets.Dataset] = []

    def fill(file: BinaryIO) -> None:
        size = 0
        for chunk in chunks:
            size += len(chunk)
            if size > max_bytes:
                raise UploadTooLarge(name, max_bytes)
            file.write(chunk)
        file.flush()
        found.append(_inspect(Path(os.path.realpath(file.name)), name))

    path = upload_path(uploads, upload_id)
    published = publish(path.parent, path.name, fill)
    assert published.created, f"upload id {upload_id} was used before"
    return Stored(upload_id, name, path, published.num_bytes, found[0].num_rows)


def record_upload(sessions: sessionmaker[Session], stored: Stored, actor: Actor) -> Upload:
    """Record a stored file, of the actor's tenant. Where that fails the file goes too: no one has been told its id."""
    try:
        with sessions.begin() as session:
            upload = Upload(id=stored.id, tenant=actor.tenant, filename=stored.filename, num_bytes=stored.num_bytes)
            upload.num_rows, upload.created_at = stored.num_rows, db_now()
            session.add(upload)
            session.flush()
            session.refresh(upload)
            audit.record(session, actor, "upload.create", upload.id, bytes=upload.num_bytes)
    except BaseException:
        stored.path.unlink(missing_ok=True)
        raise
    return upload


def _display_name(filename: str) -> str:
    """The last component of what the client called its file, as text that every database takes."""
    last = re.split(r"[/\\]", filename)[-1]
    kept = "".join(char for char in last if char.isprintable())[:1024]
    return kept or "upload.parquet"


def _inspect(path: Path, name: str) -> datasets.Dataset:
    """Errors name the client's file: where it lies here is not the client's concern."""
    try:
        return datasets.inspect(path)
    except InvalidDataset as error:
        raise InvalidDataset(error.code, name, error.reason, error.column, error.row) from error


def upload_path(uploads: Path, upload_id: str) -> Path:
    """Where the upload's file lies, or would lie, in a folder that the operator may have put a link in the place of.

    Raises UploadNotFound for what cannot be an id.
    """
    if not ID.fullmatch(upload_id):
        raise UploadNotFound(upload_id)
    return Path(os.path.realpath(uploads)) / f"{upload_id}.parquet"


def get_upload(session: Session, upload_id: str, tenant: str) -> Upload:
    """Raises UploadNotFound, also for an upload of another tenant."""
    upload = session.get(Upload, upload_id)
    if upload is None or upload.tenant != tenant:
        raise UploadNotFound(upload_id)
    return upload


def remove_upload(session: Session, settings: Settings, upload_id: str, tenant: str) -> None:
    """Forget an upload and its bytes. Raises UploadNotFound."""
    session.delete(get_upload(session, upload_id, tenant))
    folders = tenants.folders(session, settings, tenant)
    upload_path(folders.uploads, upload_id).unlink(missing_ok=True)


def resolve_input(uri: str, folders: Folders) -> Place:
    """What a job's `input` names: upload://<id>, or what db.uris resolves under a root of the tenant.

    Raises UploadNotFound or DatasetRefused.
    """
    if not uri.startswith(SCHEME):
        return uris.resolve(uri, folders.roots)
    upload_id = uri[len(SCHEME) :]
    path = Path(os.path.realpath(upload_path(folders.uploads, upload_id)))
    if not path.is_file():
        raise UploadNotFound(upload_id)
    return path
