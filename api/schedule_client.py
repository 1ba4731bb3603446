"""The part of the Python client that handles schedules: `client.schedules.create(…)`."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from datetime import date
from typing import Any

from api.schedule_schemas import BackfillView, RunPage, RunView, ScheduleList, ScheduleRequest, ScheduleView
from api.transport import Transport

PATH = "/v1/schedules"


class Schedules:
    """Schedules by name. Every call may be sent twice and does its work once, as those of the client do."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def create(self, schedule: ScheduleRequest | Mapping[str, Any]) -> ScheduleView:
        """`{"name": "nightly", "cron": "30 2 * * *", "job": {"input": "/data/{{ ds }}", "recipe": …}}`."""
        body = schedule
        if isinstance(schedule, ScheduleRequest):
            body = schedule.model_dump(mode="json", exclude_none=True)
        return ScheduleView.model_validate(self._transport.call("POST", PATH, json=dict(body)).json())

    def list(self) -> list[ScheduleView]:
        return ScheduleList.model_validate(self._transport.call("GET", PATH).json()).schedules

    def get(self, name: str) -> ScheduleView:
        return ScheduleView.model_validate(self._transport.call("GET", f"{PATH}/{name}").json())

    def pause(self, name: str) -> ScheduleView:
        return ScheduleView.model_validate(self._transport.call("POST", f"{PATH}/{name}/pause").json())

    def resume(self, name: str) -> ScheduleView:
        return ScheduleView.model_validate(self._transport.call("POST", f"{PATH}/{name}/resume").json())

    def run(self, name: str) -> RunView:
        """A run now."""
        headers = {"Idempotency-Key": str(uuid.uuid4())}
        return RunView.model_validate(self._transport.call("POST", f"{PATH}/{name}/run", headers=headers).json())

    def backfill(self, name: str, first: date, last: date, *, parallel: int = 1) -> BackfillView:
        """A run for every fire time on these dates, both included, that has none; asking again adds nothing."""
        body = {"first": first.isoformat(), "last": last.isoformat(), "parallel": parallel}
        answer = self._transport.call("POST", f"{PATH}/{name}/backfill", json=body)
        return BackfillView.model_validate(answer.json())

    def runs(self, name: str, *, limit: int | None = None) -> Iterator[RunView]:
        """The history, newest first; pages are fetched as they are read."""
        before: float | None = None
        left = limit
        while left is None or left > 0:
            query = {"limit": min(200, left or 200), **({} if before is None else {"before": before})}
            page = RunPage.model_validate(self._transport.call("GET", f"{PATH}/{name}/runs", params=query).json())
            yield from page.runs
            before = page.next
            left = None if left is None else left - len(page.runs)
            if before is None:
                return

    def delete(self, name: str) -> None:
        """The schedule and its history go; its jobs stay."""
        self._transport.call("DELETE", f"{PATH}/{name}")
