"""One file of a result as an answer, from a disk or from a bucket, whole or the range that was asked for."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from fastapi import HTTPException
from fastapi.responses import FileResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from db.errors import InvalidDataset
from db.stores import Place, S3Path, store_of

CHUNK_BYTES = 1 << 20
MEDIA_TYPES = {"parquet": "application/vnd.apache.parquet", "json": "application/json"}
RANGE = re.compile(r"bytes=(\d*)-(\d*)")


class OpenFile(FileResponse):
    """Sends the file that was opened, wherever its name may lead by then."""

    def __init__(self, file: BinaryIO, name: str, media_type: str, headers: dict[str, str]) -> None:
        self._file = file
        number = file.fileno()
        super().__init__(
            f"/dev/fd/{number}", headers=headers, media_type=media_type, filename=name, stat_result=os.fstat(number)
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._file:
            await super().__call__(scope, receive, send)


def answer(place: Place, asked: str | None, headers: dict[str, str]) -> Response | None:
    """The file, or the part of it that the Range header `asked` names; None when there is no such file.

    The address of the bucket is not given away: the bytes go through this process.
    """
    media_type = MEDIA_TYPES.get(place.name.rpartition(".")[2], "text/plain")
    if isinstance(place, Path):
        try:
            file, _ = store_of(place).open(place)  # no link that something else put there, at any part of the path
        except InvalidDataset:
            return None
        return OpenFile(file, place.name, media_type, headers)
    return _from_bucket(place, asked, {**headers, "Accept-Ranges": "bytes"}, media_type)


def _from_bucket(place: S3Path, asked: str | None, headers: dict[str, str], media_type: str) -> Response | None:
    entry = store_of(place).look(place)
    if entry is None or entry.is_folder:
        return None
    size = entry.num_bytes
    start, stop, status = 0, size, 200
    if (found := _range(asked, size)) is not None:
        start, stop, status = *found, 206
        headers["Content-Range"] = f"bytes {start}-{stop - 1}/{size}"
    headers["Content-Length"] = str(stop - start)
    headers["Content-Disposition"] = f'attachment; filename="{place.name}"'
    file, _ = store_of(place).open(place)
    return StreamingResponse(_pieces(file, start, stop), status, headers, media_type)


def _range(asked: str | None, size: int) -> tuple[int, int] | None:
    """The one range that a header names; None where the whole file is the answer: without one, or with several."""
    match = RANGE.fullmatch(asked.strip()) if asked else None
    if match is None or match[0] == "bytes=-":
        return None
    first, last = match[1], match[2]
    if not first:
        start, stop = max(0, size - int(last)), size
    else:
        start, stop = int(first), min(int(last) + 1, size) if last else size
    if start >= stop:
        raise HTTPException(416, "there are no such bytes", {"Content-Range": f"bytes */{size}"})
    return start, stop


def _pieces(file: BinaryIO, start: int, stop: int) -> Iterator[bytes]:
    with file:
        file.seek(start)
        while start < stop:
            piece = file.read(min(CHUNK_BYTES, stop - start))
            assert piece, "the file is of the size that it was opened with"
            start += len(piece)
            yield piece
