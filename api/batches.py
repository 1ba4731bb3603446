"""Batches: a client for JSONL files of OpenAI requests. Other programs use the `openai` package for this."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from api.client import Client


class Batches:
    """The batches of a service, over a client's connection. Answers are as docs/openai.md has them."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self._transport = client._transport

    def send(self, path: Path) -> str:
        """Send a file of requests; returns its id."""
        with path.open("rb") as file:
            sent = {"file": (path.with_suffix(".jsonl").name, file)}
            return str(self._json("POST", "/v1/files", files=sent, data={"purpose": "batch"})["id"])

    def create(self, file_id: str, endpoint: str, window: str = "24h") -> dict[str, Any]:
        asked = {"input_file_id": file_id, "endpoint": endpoint, "completion_window": window}
        return self._json("POST", "/v1/batches", json=asked, headers={"Idempotency-Key": f"once-{file_id}"})

    def get(self, batch_id: str) -> dict[str, Any]:
        return self._json("GET", f"/v1/batches/{batch_id}")

    def cancel(self, batch_id: str) -> dict[str, Any]:
        return self._json("POST", f"/v1/batches/{batch_id}/cancel")

    def lines(self, file_id: str) -> Iterator[bytes]:
        """The lines of a file, without their ends. It is fetched whole first, onto the disk."""
        with tempfile.TemporaryDirectory() as folder:
            path = self._transport.fetch(f"/v1/files/{file_id}/content", Path(folder) / "lines.jsonl", None)
            with path.open("rb") as file:
                for line in file:
                    yield line.rstrip(b"\n")

    def _json(self, method: str, path: str, **options: Any) -> dict[str, Any]:
        found: dict[str, Any] = self._transport.call(method, path, **options).json()
        return found
