"""From a batch's JSONL file to a Parquet dataset of requests: every line is checked, and one bad line fails the batch.

Memory holds one line, a row group, and a digest of every custom_id; a file has a bounded number of lines.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

import pyarrow as pa
import pyarrow.parquet as pq

from db import body_tokens
from db.openai_body import BodyRefused, parse

SCHEMA = pa.schema({"custom_id": pa.string(), "body": pa.large_string()})
GROUP_ROWS = 1000
GROUP_BYTES = 16 << 20
MAX_ERRORS = 100
MAX_CUSTOM_ID = 512
FIELDS = ("custom_id", "method", "url", "body")


class LineRefused(Exception):
    """What is wrong with a line. `param` is the path inside the line."""

    def __init__(self, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.param = param


class FileRefused(Exception):
    """The file cannot be a batch; `errors` are as the batch shows them."""

    def __init__(self, errors: list[dict[str, Any]]) -> None:
        super().__init__(f"{len(errors)} errors")
        self.errors = errors


@dataclass(slots=True)
class Conversion:
    """One file on its way. `beat` is called every few hundred lines and may raise."""

    endpoint: str
    max_requests: int
    max_line_bytes: int
    beat: Callable[[], None]
    model: str | None = None
    num_rows: int = 0
    answer_tokens: int = 0
    _seen: set[bytes] = field(default_factory=set)
    _errors: list[dict[str, Any]] = field(default_factory=list)
    _num_errors: int = 0

    def write(self, source: Path, sink: BinaryIO) -> None:
        """Write the dataset into `sink`. Raises FileRefused."""
        with source.open("rb") as file, pq.ParquetWriter(sink, SCHEMA, compression="zstd") as writer:
            ids: list[str] = []
            bodies: list[str] = []
            size = 0
            for custom_id, body in self._rows(file):
                ids.append(custom_id)
                bodies.append(body)
                size += len(body)
                if len(ids) == GROUP_ROWS or size >= GROUP_BYTES:
                    writer.write_table(pa.table([ids, bodies], schema=SCHEMA))
                    ids, bodies, size = [], [], 0
            if ids:
                writer.write_table(pa.table([ids, bodies], schema=SCHEMA))
        if self._num_errors > MAX_ERRORS:
            more = f"{self._num_errors - MAX_ERRORS} more lines are not valid."
            self._errors.append(_error(LineRefused("more_errors", more), None))
        if not self._errors and not self.num_rows:
            self._errors.append(_error(LineRefused("empty_file", "The file has no requests."), None))
        if self._errors:
            raise FileRefused(self._errors)

    def _rows(self, file: BinaryIO) -> Iterator[tuple[str, str]]:
        """Good lines until the first bad one; after that, lines are only checked."""
        number = 0
        while line := file.readline(self.max_line_bytes + 1):
            number += 1
            if number % 500 == 0:
                self.beat()
            if not line.strip():
                continue
            try:
                row = self._row(line)
                if not self._num_errors:
                    yield row
            except LineRefused as refusal:
                self._num_errors += 1
                if self._num_errors <= MAX_ERRORS:
                    self._errors.append(_error(refusal, number))
                if len(line) > self.max_line_bytes or self.num_rows >= self.max_requests:
                    return

    def _row(self, line: bytes) -> tuple[str, str]:
        if len(line) > self.max_line_bytes:
            raise LineRefused("line_too_long", f"This line has more than {self.max_line_bytes:,} bytes.")
        if self.num_rows >= self.max_requests:
            raise LineRefused("too_many_requests", f"A batch has at most {self.max_requests:,} requests.")
        self.num_rows += 1
        request = _decoded(line)
        custom_id = self._custom_id(request)
        for name in ("method", "url", "body"):
            if request.get(name) is None:
                raise LineRefused("missing_required_parameter", f"Missing required parameter: '{name}'.", name)
        for name in request:
            if name not in FIELDS:
                raise LineRefused("unknown_parameter", f"Unknown parameter: '{name}'.", name)
        if request["method"] != "POST":
            raise LineRefused("invalid_method", "The method of a request must be POST.", "method")
        if request["url"] != self.endpoint:
            reason = "The URL provided for this request does not match the batch endpoint."
            raise LineRefused("invalid_url", reason, "url")
        self._check_body(request["body"])
        self.answer_tokens += body_tokens.of_body(self.endpoint, request["body"])
        return custom_id, json.dumps(request["body"], separators=(",", ":"))

    def _custom_id(self, request: dict[str, Any]) -> str:
        custom_id = request.get("custom_id")
        if custom_id is None:
            raise LineRefused("missing_required_parameter", "Missing required parameter: 'custom_id'.", "custom_id")
        if not (isinstance(custom_id, str) and 0 < len(custom_id) <= MAX_CUSTOM_ID and _is_text(custom_id)):
            reason = f"'custom_id' must be a string of 1 to {MAX_CUSTOM_ID} characters."
            raise LineRefused("invalid_custom_id", reason, "custom_id")
        digest = hashlib.blake2b(custom_id.encode(), digest_size=16).digest()
        if digest in self._seen:
            raise LineRefused("duplicate_custom_id", f"The custom_id '{custom_id}' was used before.", "custom_id")
        self._seen.add(digest)
        return custom_id

    def _check_body(self, body: object) -> None:
        try:
            parsed = parse(self.endpoint, body)
        except BodyRefused as refusal:
            message = refusal.message
            if refusal.code == "streaming_unsupported":
                name = "Chat Completions" if "chat" in self.endpoint else "Completions"
                message = f"{name}: Streaming is not supported in the Batch API."
            raise LineRefused(refusal.code, message, f"body.{refusal.param}" if refusal.param else "body") from refusal
        self.model = self.model or parsed.model
        if parsed.model != self.model:
            reason = f"A batch has one model: this request names '{parsed.model}', the first one '{self.model}'."
            raise LineRefused("mismatched_model", reason, "body.model")


def _decoded(line: bytes) -> dict[str, Any]:
    try:
        request = json.loads(line.decode(), parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        request = None
    if not isinstance(request, dict):
        raise LineRefused("invalid_json_line", "This line is not parseable as valid JSON.")
    return request


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


def _is_text(value: str) -> bool:
    """JSON can spell half a surrogate pair, which no file takes."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _error(refusal: LineRefused, line: int | None) -> dict[str, Any]:
    return {"code": refusal.code, "message": refusal.message, "param": refusal.param, "line": line}
