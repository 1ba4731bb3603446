"""One file of a result as an answer, from a disk or from a bucket, whole or the range that was asked for."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from fastapi import HTTPException
from fastapi.responses import FileResponse, Response, StreamingResponse

from db.stores import Place, S3Path, store_of

CHUNK_BYTES = 1 << 20
MEDIA_TYPES = {"parquet": "application/vnd.apache.parquet", "json": "application/json"}
RANGE = re.compile(r"bytes=(\d*)-(\d*)")


def answer(place: Place, asked: str | None, headers: dict[str, str]) -> Response | None:
    """The file, or the part of it that the Range header `asked` names; None when there is no such file.

    The address of the bucket is not given away: the bytes go through this process.
    """
    media_type = MEDIA_TYPES.get(place.name.rpartition(".")[2], "text/plain")
    if isinstance(place, Path):
        # No link that something else put there, at any part of the path. Asked first: what it leads to is not told.
        if os.path.realpath(place) != str(place) or not place.is_file():
            return None
        return FileResponse(place, media_type=media_type, filename=place.name, headers=headers)
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
