"""Request and response models of schedules."""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import Annotated

from pydantic import Field

from api.schemas import JobRequest, View
from db.models import Job
from db.schedule_models import Schedule, ScheduleRun, Trigger
from db.schedule_specs import ScheduleSpec
from db.spec_fields import Spec

ScheduleName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")]


class ScheduleRequest(ScheduleSpec):
    """A schedule as a client sends it: a ScheduleSpec with a name, whose job's model may be left to the server."""

    name: ScheduleName = Field(description="Letters, digits and ._-; it stands for the schedule in every other call.")
    job: JobRequest = Field(description="What runs each time.")


class BackfillRequest(Spec):
    """Dates of the schedule's zone, both included."""

    first: date = Field(description="The oldest date.")
    last: date = Field(description="The newest date.")
    parallel: int = Field(default=1, ge=1, le=16, description="How many of the runs may be at work at once.")


class RunView(View):
    """A fire time and what became of it. `status` is the job's where there is one.

    A `waiting` run will start; a `skipped` one was kept from it by a policy; `failed` without a job: no input came.
    """

    id: str
    fire_at: datetime
    logical_date: str = Field(description="In the schedule's zone.")
    trigger: Trigger
    status: str
    reason: str | None
    job_id: str | None
    rows: int | None = Field(default=None, description="Rows that its job computes.")
    rows_succeeded: int | None = None
    rows_failed: int | None = None
    rows_input: int | None = Field(default=None, description="only_new: rows of the input, known once it is split.")
    rows_skipped: int | None = Field(default=None, description="only_new: rows that earlier runs have computed.")
    finished_at: datetime | None = None

    @classmethod
    def of(cls, run: ScheduleRun, job: Job | None, spec: ScheduleSpec) -> RunView:
        rows = {} if job is None else {"rows": job.num_rows, "rows_succeeded": job.rows_succeeded}
        return cls(
            id=run.id,
            fire_at=_time(run.fire_at),
            logical_date=spec.timetable.local(run.fire_at).date().isoformat(),
            trigger=run.trigger,
            status=(run.status if job is None else job.status).value,
            reason=run.reason,
            job_id=run.job_id,
            **rows,
            rows_failed=None if job is None else job.rows_failed,
            rows_input=run.rows_input,
            rows_skipped=run.rows_skipped,
            finished_at=None if job is None or job.finished_at is None else _time(job.finished_at),
        )


class ScheduleView(View):
    """A schedule, when it fires next, and its runs counted by their status."""

    id: str
    name: str
    paused: bool
    next_at: datetime | None = Field(description="None: it never fires again.")
    created_at: datetime
    runs: dict[str, int]
    spec: ScheduleSpec

    @classmethod
    def of(cls, schedule: Schedule, runs: dict[str, int]) -> ScheduleView:
        return cls(
            id=schedule.id,
            name=schedule.name,
            paused=schedule.paused,
            next_at=None if schedule.next_at is None else _time(schedule.next_at),
            created_at=_time(schedule.created_at),
            runs=runs,
            spec=ScheduleSpec.model_validate(schedule.spec),
        )


class ScheduleList(View):
    schedules: list[ScheduleView]


class RunPage(View):
    """Newest fire time first. `next` goes into the next request's `before`; none at the end."""

    runs: list[RunView]
    next: float | None


class BackfillView(View):
    """The runs that were added, oldest first, and how many fire times had one already."""

    runs: list[RunView]
    known: int


def _time(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, tz=UTC)
