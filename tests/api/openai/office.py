"""The OpenAI face and a worker in one process, one step at a time: what a batch looks like at every moment."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI
from fastapi.testclient import TestClient
from sqlalchemy import update

from api.deps import Services
from api.openai.keeper import Keeper
from db.dispatch import Wakeup
from db.models import Job
from db.openai_models import Batch
from tests.api.openai.rig import eventually, jsonl
from tests.worker.factories import Office

ENDPOINT = "/v1/chat/completions"


@dataclass
class Desk:
    http: TestClient
    app: FastAPI
    office: Office

    @property
    def services(self) -> Services:
        services: Services = self.app.state.services
        return services

    @property
    def keeper(self) -> Keeper:
        keeper: Keeper = self.app.state.keeper
        return keeper

    def send(self, requests: list[Any], filename: str = "in.jsonl") -> str:
        answer = self.http.post("/v1/files", files={"file": (filename, jsonl(requests))}, data={"purpose": "batch"})
        assert answer.status_code == 200, answer.text
        return str(answer.json()["id"])

    def create(self, file_id: str, **more: Any) -> dict[str, Any]:
        """The batch as it is answered; its file may not be checked yet."""
        asked = {"input_file_id": file_id, "endpoint": ENDPOINT, "completion_window": "24h", **more}
        answer = self.http.post("/v1/batches", json=asked)
        assert answer.status_code == 200, answer.text
        created: dict[str, Any] = answer.json()
        return created

    def start(self, requests: list[Any], **more: Any) -> dict[str, Any]:
        """A batch whose file is checked: it has a job, or has failed."""
        return self.checked(self.create(self.send(requests), **more)["id"])

    def checked(self, batch_id: str) -> dict[str, Any]:
        """The batch once the keeper, its thread or this one, has looked at its file."""

        def moved() -> dict[str, Any] | None:
            self.keeper.keep()
            now = self.read(batch_id)
            return now if now["nightmill"]["job_id"] or now["status"] != "validating" else None

        found: dict[str, Any] = eventually(moved, "the file is checked")
        return found

    def read(self, batch_id: str) -> dict[str, Any]:
        found: dict[str, Any] = self.http.get(f"/v1/batches/{batch_id}").json()
        return found

    def work(self, until: Callable[[Wakeup], bool] = lambda wakeup: False) -> None:
        self.services.sweeper.sweep()
        self.office.work(until)

    def finish(self, batch_id: str) -> dict[str, Any]:
        """Do all that is due, and close the batch."""
        self.work()

        def closed() -> dict[str, Any] | None:
            self.keeper.keep()
            now = self.read(batch_id)
            return now if now["status"] in ("completed", "failed", "expired", "cancelled") else None

        found: dict[str, Any] = eventually(closed, "the batch is closed")
        return found

    def run(self, requests: list[Any], **more: Any) -> dict[str, Any]:
        return self.finish(self.start(requests, **more)["id"])

    def job(self, batch: dict[str, Any]) -> Job:
        return self.office.job(batch["nightmill"]["job_id"])

    def pass_deadline(self, batch: dict[str, Any]) -> None:
        with self.office.sessions.begin() as session:
            session.execute(update(Job).where(Job.id == batch["nightmill"]["job_id"]).values(expires_at=1.0))
            session.execute(update(Batch).where(Batch.id == batch["id"]).values(expires_at=1.0))

    def lines(self, file_id: str, offset: int = 0) -> tuple[list[dict[str, Any]], dict[str, str]]:
        """The lines of a file, and the answer's headers."""
        answer = self.http.get(f"/v1/files/{file_id}/content", params={"offset": offset} if offset else {})
        assert answer.status_code == 200, answer.text
        return [json.loads(line) for line in answer.text.splitlines()], dict(answer.headers)
