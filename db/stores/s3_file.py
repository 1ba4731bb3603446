"""An object as a file for random reads: ranges of one version, a bounded piece in memory."""

from __future__ import annotations

import io
import time
from typing import Any

from db.errors import InvalidDataset
from db.stores.errors import NotThere, OtherVersion, StorageUnavailable
from db.stores.places import S3Path
from db.stores.s3_client import ATTEMPTS, WIRE_ERRORS, S3Client

TAIL_BYTES = 64 << 10  # read when the file is opened: with most footers in it
LEAST_BYTES = 128 << 10  # of one request


class S3File(io.RawIOBase):
    """Opens the object with its first request. Raises InvalidDataset (`not_a_file`, `changed`), StorageUnavailable."""

    def __init__(self, client: S3Client, place: S3Path) -> None:
        self._client = client
        self._place = place
        self._position = 0
        self.version = ""
        self._start, self._piece = 0, b""
        self._tail, self.num_bytes = self._open()

    def _open(self) -> tuple[bytes, int]:
        head = self._found("head_object")
        self.num_bytes, self.version = int(head["ContentLength"]), str(head["ETag"])
        return self._fetch(max(0, self.num_bytes - TAIL_BYTES), self.num_bytes), self.num_bytes

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self.num_bytes}[whence]
        self._position = max(0, base + offset)
        return self._position

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        data = self._at(self._position, min(self._position + len(view), self.num_bytes))
        view[: len(data)] = data
        self._position += len(data)
        return len(data)

    def readall(self) -> bytes:
        data = self._at(self._position, self.num_bytes)
        self._position += len(data)
        return data

    def _at(self, start: int, stop: int) -> bytes:
        """Bytes [start, stop), from the tail, the last piece, or the store."""
        if start >= stop:
            return b""
        first = self.num_bytes - len(self._tail)
        if start >= first:
            return self._tail[start - first : stop - first]
        if not self._start <= start <= stop <= self._start + len(self._piece):
            self._piece = self._fetch(start, min(max(stop, start + LEAST_BYTES), self.num_bytes))
            self._start = start
        return self._piece[start - self._start : stop - self._start]

    def _fetch(self, start: int, stop: int) -> bytes:
        """The client retries a request, and not the reading of its answer: that is done here."""
        if start >= stop:
            return b""
        for attempt in range(ATTEMPTS):
            answer = self._found("get_object", Range=f"bytes={start}-{stop - 1}", IfMatch=self.version)
            try:
                with answer["Body"] as body:
                    data: bytes = body.read()
            except (*WIRE_ERRORS, OSError):
                time.sleep(min(0.1 * 2**attempt, 5.0))
                continue
            if len(data) == stop - start:
                return data
        raise StorageUnavailable(self._place, "the object store's answers break off")

    def _found(self, operation: str, **parameters: Any) -> dict[str, Any]:
        try:
            return self._client.call(operation, self._place, Key=self._place.key, **parameters)
        except NotThere:
            code = "changed" if self.version else "not_a_file"
            raise InvalidDataset(code, str(self._place), "does not exist") from None
        except OtherVersion:
            reason = "was replaced while it was read"
            raise InvalidDataset("changed", str(self._place), reason) from None
