"""An S3 service inside the test's own process, with buckets that no other test has seen."""

from __future__ import annotations

import logging
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

from db.settings import Settings
from db.stores import S3Path, S3Service, store_of

KEYS = {"AWS_ACCESS_KEY_ID": "tester", "AWS_SECRET_ACCESS_KEY": "tester-secret", "AWS_EC2_METADATA_DISABLED": "true"}


@contextmanager
def moto() -> Iterator[str]:
    """The address of a server that forgets everything at its end."""
    from moto.moto_server.threaded_moto_server import ThreadedMotoServer  # Imported where used: it takes a second.

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        yield f"http://{host}:{port}"
    finally:
        server.stop()


def new_bucket(endpoint: str, scratch: Path) -> S3Path:
    """An empty bucket of its own, as a place."""
    place = S3Path(f"bucket-{uuid.uuid4().hex[:16]}", "", S3Service(endpoint, "us-east-1", scratch))
    with mock.patch.dict(os.environ, KEYS):
        store_of(place)._client._client.create_bucket(Bucket=place.bucket)  # type: ignore[attr-defined]
    return place


def keys(folder: S3Path) -> list[str]:
    """The names below a folder, in order."""
    return sorted(entry.place.key[len(folder.prefix) :] for entry in store_of(folder).walk(folder))


def put(place: S3Path, data: bytes) -> S3Path:
    """Write, or write over, an object."""
    client = store_of(place)._client  # type: ignore[attr-defined]
    client.call("put_object", place, Key=place.key, Body=data)
    return place


def get(place: S3Path) -> bytes:
    file, _ = store_of(place).open(place)
    with file:
        return file.read()


def settings_on(bucket: S3Path, home: Path, **values: object) -> Settings:
    """A private home whose data roots are `home` itself and the bucket's `data`."""
    given = {"s3_endpoint": bucket.service.endpoint, "data_roots": (home, f"{bucket}/data"), **values}
    return Settings(home=home / "home", **given)  # type: ignore[arg-type]
