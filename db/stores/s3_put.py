"""Putting a finished file under a name that must be free, by one request or, where it is too large, in pieces.

An answer may get lost after the store has done what was asked, and the retry then finds the name taken. So every put
carries a word of its own in the object's metadata: a name that is taken by that word is this writer's own success.

Who is first with pieces is settled by a small object beside them, the claim, which is put once all pieces are there and
tells how to put them together: whoever finds one does that, for its writer may be dead. The store's own condition on
putting pieces together is not enough: of six writers at once, SeaweedFS 4.48 let two succeed.
"""

from __future__ import annotations

import json
import logging
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, BinaryIO

from db.stores.errors import Conflict, NotThere, StorageRefused, StorageUnavailable, Taken
from db.stores.places import S3Path
from db.stores.s3_client import S3Client
from db.stores.store import TEMP

log = logging.getLogger(__name__)
WORD, SHA256 = "nightmill-put", "nightmill-sha256"
WHOLE_BYTES = 1 << 30  # most that is put by one request; stores take 5 GiB
PIECE_BYTES = 64 << 20
MOST_PIECES = 10_000
CONFLICTS = 8


@dataclass(slots=True)
class Put:
    """One file on its way. `whole_bytes`: larger ones go in pieces."""

    client: S3Client
    place: S3Path
    file: BinaryIO
    num_bytes: int
    sha256: str
    whole_bytes: int = WHOLE_BYTES
    word: str = field(default_factory=lambda: uuid.uuid4().hex)

    def send(self) -> bool:
        """False when the name is another writer's."""
        for attempt in range(CONFLICTS):
            try:
                if self.num_bytes <= self.whole_bytes:
                    self._whole()
                else:
                    self._in_pieces()
            except Taken:
                return self._is_own()
            except Conflict:
                time.sleep(min(0.05 * 2**attempt, 2.0))
            else:
                return True
        raise StorageUnavailable(self.place, "other writers are putting the same name all the time")

    def _call(self, operation: str, place: S3Path | None = None, **parameters: Any) -> dict[str, Any]:
        place = place or self.place
        return self.client.call(operation, place, Key=place.key, **parameters)

    @property
    def _metadata(self) -> dict[str, str]:
        return {WORD: self.word, SHA256: self.sha256}

    def _is_own(self) -> bool:
        try:
            head = self._call("head_object")
        except NotThere:
            raise StorageUnavailable(self.place, "the name was taken, and nothing is there now") from None
        own = bool(head.get("Metadata", {}).get(WORD) == self.word)
        if own:
            log.info("%s was put already: the store's answer had been lost", self.place)
        return own

    def _whole(self) -> None:
        self.file.seek(0)
        body = self.file if self.num_bytes else b""
        self._call("put_object", Body=body, ContentLength=self.num_bytes, IfNoneMatch="*", Metadata=self._metadata)

    # -- in pieces ---------------------------------------------------------------------------------------------------

    def _in_pieces(self) -> None:
        upload = self._call("create_multipart_upload", Metadata=self._metadata)["UploadId"]
        try:
            claim = self._claim({"upload": upload, "parts": list(self._pieces(upload))})
        except BaseException:
            self._abort(upload)
            raise
        own = claim["upload"] == upload
        try:
            self._put_together(claim)
        finally:
            if not own:
                self._abort(upload)
        if not own:
            raise Taken

    def _pieces(self, upload: str) -> Iterator[dict[str, Any]]:
        size = max(min(PIECE_BYTES, self.whole_bytes), -(-self.num_bytes // MOST_PIECES))
        self.file.seek(0)
        number = 0
        while piece := self.file.read(size):
            number += 1
            answer = self._call("upload_part", UploadId=upload, PartNumber=number, Body=piece)
            yield {"PartNumber": number, "ETag": answer["ETag"], **_checksums(answer)}

    @property
    def _claim_place(self) -> S3Path:
        return self.place.parent / TEMP / f"{self.place.name}.claim"

    def _claim(self, own: dict[str, Any]) -> dict[str, Any]:
        """The claim that holds: this one, or the one that was there before."""
        try:
            self._call("put_object", self._claim_place, Body=json.dumps(own).encode(), IfNoneMatch="*")
        except Taken:
            try:
                with self._call("get_object", self._claim_place)["Body"] as body:
                    found: dict[str, Any] = json.loads(body.read())
            except NotThere:
                raise Conflict from None  # its writer is done with it: what it made will be found
            return found
        return own

    def _put_together(self, claim: dict[str, Any]) -> None:
        """Whoever comes second finds the upload gone, and the object there."""
        parts = {"Parts": claim["parts"]}
        gone = False
        try:
            self._call("complete_multipart_upload", UploadId=claim["upload"], MultipartUpload=parts, IfNoneMatch="*")
        except (NotThere, Taken):
            gone = True
        self._call("delete_object", self._claim_place)
        if gone:
            self._is_own()  # raises when there is nothing
            self._abort(claim["upload"])
            raise Taken

    def _abort(self, upload: str) -> None:
        with suppress(NotThere, StorageRefused, StorageUnavailable, Conflict):
            self._call("abort_multipart_upload", UploadId=upload)


def _checksums(answer: dict[str, Any]) -> dict[str, Any]:
    """What the store says of a piece's bytes must be repeated when the pieces are put together."""
    return {name: value for name, value in answer.items() if name.startswith("Checksum") and name != "ChecksumType"}
