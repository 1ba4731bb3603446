"""The store of S3-compatible services."""

from __future__ import annotations

import hashlib
import io
import logging
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO, cast

from db.errors import InvalidDataset
from db.stores.errors import Conflict, NotThere, StorageRefused, StorageUnsafe, Taken
from db.stores.places import S3Path, S3Service
from db.stores.s3_client import S3Client
from db.stores.s3_file import S3File
from db.stores.s3_put import SHA256, WHOLE_BYTES, Put
from db.stores.store import TEMP, Entry, Published

log = logging.getLogger(__name__)
BUFFER_BYTES = 256 << 10
MOST_DELETED = 1000  # in one request
PROBE = "probe."


class S3Store:
    """Safe for all threads of a process."""

    def __init__(self, service: S3Service, whole_bytes: int = WHOLE_BYTES) -> None:
        self._client = S3Client(service)
        self._scratch = service.scratch
        self._whole_bytes = whole_bytes
        self._lock = threading.Lock()
        self._probed: set[str] = set()  # buckets that are known to keep the first of two writers' files

    def look(self, place: S3Path) -> Entry | None:
        head = self._head(place) if place.key else None
        if head is not None:
            return Entry(place, False, int(head["ContentLength"]), str(head["ETag"]))
        return None if next(self._keys(place, most=1), None) is None else Entry(place, True)

    def _head(self, place: S3Path) -> dict[str, Any] | None:
        try:
            return self._client.call("head_object", place, Key=place.key)
        except NotThere:
            return None

    def walk(self, folder: S3Path, prefix: str = "") -> Iterator[Entry]:
        for found in self._keys(folder, prefix):
            if not found["Key"].endswith("/"):  # consoles make such empty objects for folders
                place = S3Path(folder.bucket, found["Key"], folder.service)
                yield Entry(place, False, int(found["Size"]), str(found["ETag"]))

    def is_empty(self, folder: S3Path) -> bool:
        """What a probe left that was killed does not count, nor an object that stands for the folder."""
        trace = f"{folder.prefix}{TEMP}/{PROBE}"
        return all(
            found["Key"] == folder.prefix or found["Key"].startswith(trace) for found in self._keys(folder, most=100)
        )

    def _keys(self, folder: S3Path, prefix: str = "", most: int = 1000) -> Iterator[dict[str, Any]]:
        """The objects below a folder in the order of their keys, `most` per request."""
        more: dict[str, Any] = {}
        while True:
            start = folder.prefix + prefix
            page = self._client.call("list_objects_v2", folder, Prefix=start, MaxKeys=most, **more)
            yield from page.get("Contents", [])
            if not page.get("IsTruncated"):
                return
            more = {"ContinuationToken": page["NextContinuationToken"]}

    def open(self, place: S3Path) -> tuple[BinaryIO, str]:
        file = S3File(self._client, place)
        return cast(BinaryIO, io.BufferedReader(file, BUFFER_BYTES)), file.version

    def prepare(self, folder: S3Path) -> None:
        """Buckets have no folders to make. Raises StorageUnsafe."""
        with self._lock:
            if folder.bucket not in self._probed:
                self._probe(folder / TEMP / f"{PROBE}{uuid.uuid4().hex}")
                self._probed.add(folder.bucket)

    def _probe(self, place: S3Path) -> None:
        """Stores are tried rather than trusted: some take a condition and do not heed it, some do not keep bytes."""
        first = b"the first writer's"
        self._put(place, first)
        try:
            try:
                self._put(place, b"a second one's")
            except (Taken, Conflict):
                pass
            else:
                raise StorageUnsafe(place.parent, "takes a second put where If-None-Match forbids it")
            file, _ = self.open(place)
            with file:
                if file.read() != first:
                    raise StorageUnsafe(place.parent, "gives back other bytes than it was given")
        finally:
            self.remove([place])

    def _put(self, place: S3Path, data: bytes) -> None:
        self._client.call("put_object", place, Key=place.key, Body=data, IfNoneMatch="*")

    def create(self, place: S3Path, write: Callable[[BinaryIO], None]) -> Published:
        """The file is made on this machine first: an upload has no way back from a half."""
        self._scratch.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=self._scratch) as file:
            write(cast(BinaryIO, file))
            file.flush()
            num_bytes = file.seek(0, io.SEEK_END)
            file.seek(0)
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
            put = Put(self._client, place, cast(BinaryIO, file), num_bytes, sha256, self._whole_bytes)
            if put.send():
                return Published(True, num_bytes, sha256)
        return Published(False, *self.digest(place))

    def digest(self, place: S3Path) -> tuple[int, str]:
        """As it was told when the file was put, by us; read through where someone else put it."""
        head = self._head(place)
        if head is None:
            raise InvalidDataset("changed", str(place), "was there a moment ago, and is not now")
        sha256 = head.get("Metadata", {}).get(SHA256)
        if sha256 is None:
            file, _ = self.open(place)
            with file:
                sha256 = hashlib.file_digest(cast(io.BufferedReader, file), "sha256").hexdigest()
        return int(head["ContentLength"]), str(sha256)

    def journal(self, place: S3Path) -> S3Journal:
        return S3Journal(self._client, place)

    def remove(self, places: list[S3Path]) -> None:
        for start in range(0, len(places), MOST_DELETED):
            some = places[start : start + MOST_DELETED]
            keys = [{"Key": place.key} for place in some]
            answer = self._client.call("delete_objects", some[0], Delete={"Objects": keys, "Quiet": True})
            for failed in answer.get("Errors", []):
                raise StorageRefused(f"s3://{some[0].bucket}/{failed['Key']}", f"cannot be deleted: {failed['Code']}")

    def sweep(self, folder: S3Path, older_than: float) -> int:
        left = [
            S3Path(folder.bucket, found["Key"], folder.service)
            for found in self._keys(folder / TEMP)
            if time.time() - found["LastModified"].timestamp() >= older_than
        ]
        self.remove(left)
        try:
            return len(left) + self._abort_uploads(folder, older_than)
        except StorageRefused as error:  # a store without such lists, or no permission: nothing of a job hangs on it
            log.warning("unfinished uploads cannot be looked for: %s", error)
            return len(left)

    def _abort_uploads(self, folder: S3Path, older_than: float) -> int:
        """What of a file was sent by a writer that was killed. It is in no listing, and costs until it is aborted."""
        aborted = 0
        more: dict[str, Any] = {}
        while True:
            page = self._client.call("list_multipart_uploads", folder, Prefix=folder.prefix, **more)
            for upload in page.get("Uploads", []):
                if time.time() - upload["Initiated"].timestamp() >= older_than:
                    self._abort(folder, upload)
                    aborted += 1
            if not page.get("IsTruncated"):
                return aborted
            more = {"KeyMarker": page["NextKeyMarker"], "UploadIdMarker": page.get("NextUploadIdMarker", "")}

    def _abort(self, folder: S3Path, upload: dict[str, Any]) -> None:
        try:
            self._client.call("abort_multipart_upload", folder, Key=upload["Key"], UploadId=upload["UploadId"])
        except NotThere:
            log.info("an upload of %s ended by itself", upload["Key"])


@dataclass(slots=True)
class S3Journal:
    """Objects cannot grow, so each append is one of its own, numbered."""

    client: S3Client
    place: S3Path
    _count: int = 0

    def append(self, data: bytes) -> None:
        key = f"{self.place.key}.{self._count:06d}"
        self.client.call("put_object", self.place, Key=key, Body=data)
        self._count += 1

    def close(self) -> None:
        """Every append was finished by itself."""
