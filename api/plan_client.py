"""What the Python client does with plans."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

from api.plain import body_of
from api.plan_views import SAMPLE_ROWS, PlanView
from api.schemas import JobRequest
from api.transport import Transport


class Plans:
    """`client.plans`: what a job will take, before it is submitted."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def make(self, job: JobRequest | Mapping[str, Any], *, sample_rows: int = SAMPLE_ROWS) -> PlanView:
        """Ask for a plan; no job is made. `watch` follows it."""
        query = {"dry_run": True, "sample_rows": sample_rows}
        answer = self._transport.call("POST", "/v1/jobs", json=body_of(job), params=query)
        return PlanView.model_validate(answer.json())

    def get(self, plan_id: str) -> PlanView:
        return PlanView.model_validate(self._transport.call("GET", f"/v1/plans/{plan_id}").json())

    def watch(self, plan_id: str, *, interval: float = 0.5) -> Iterator[PlanView]:
        """The plan every `interval` seconds, the last time when it is done or has failed."""
        while True:
            plan = self.get(plan_id)
            yield plan
            if plan.status.terminal:
                return
            time.sleep(interval)
