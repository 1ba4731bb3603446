"""A schedule as specified and stored, and what it makes of a fire time: the specification of that run's job."""

from __future__ import annotations

import re
from datetime import datetime
from itertools import islice, pairwise
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from db.errors import InvalidSchedule
from db.spec_fields import Spec
from db.specs import JobSpec
from db.timetable import Timetable, dates, timetable

NAME = re.compile(r"\{\{\s*([A-Za-z_]+)\s*\}\}")
LEFT_OVER = re.compile(r"\{\{|\}\}|\{%|\{#")
LOOKAHEAD = 50  # fire times that a new schedule is tried with


def _aware(moment: datetime) -> datetime:
    if moment.tzinfo is None:
        raise ValueError("give the time with its offset, as in 2026-01-31T00:00:00+01:00")
    return moment


Moment = Annotated[datetime, AfterValidator(_aware)]


class ScheduleSpec(Spec):
    """When a job runs, and the job; its `input` and `output` may name dates, as in `/data/{{ ds }}/in.parquet`."""

    cron: Annotated[str, Field(max_length=256)] = Field(description="Five fields, as in `30 2 * * *`.")
    timezone: Annotated[str, Field(max_length=64)] = Field(default="UTC", description="As in `Europe/Berlin`.")
    job: JobSpec = Field(description="What runs each time.")
    misfire: Literal["coalesce", "skip", "all"] = Field(
        default="coalesce",
        description="What is made of fire times that were missed by more than a minute: one run for the newest, of the "
        "last 24 hours; none; or one for each of the newest 10.",
    )
    overlap: Literal["skip", "queue", "cancel_previous"] = Field(
        default="skip", description="What happens to a run that is due while an earlier one goes on."
    )
    start_at: Moment | None = Field(default=None, description="It does not fire before.")
    end_at: Moment | None = Field(default=None, description="It does not fire after.")
    grace_seconds: float = Field(
        default=3600.0, ge=0, le=30 * 86_400, description="How long a run waits for an input that is not there yet."
    )
    window_seconds: float | None = Field(
        default=None, gt=0, description="Time after which the job is paused until the schedule fires again."
    )

    @property
    def timetable(self) -> Timetable:
        return Timetable(self.cron, self.timezone)

    def first_after(self, moment: float) -> float | None:
        """The next fire time within start and end."""
        begin = moment if self.start_at is None else max(moment, self.start_at.timestamp() - 1)
        fire = self.timetable.next(begin)
        ended = fire is not None and self.end_at is not None and fire > self.end_at.timestamp()
        return None if ended else fire

    def job_at(self, fire: float) -> JobSpec:
        """The job of the run of this fire time. Raises InvalidSchedule naming the job's field."""
        named = dates(self.timetable, fire)
        values = {
            field: render(f"job.{field}", text, named)
            for field, text in (("input", self.job.input), ("output", self.job.output))
            if text is not None
        }
        return self.job.model_copy(update=values)


def render(field: str, text: str, named: dict[str, str]) -> str:
    """The text with its dates. Raises InvalidSchedule for a name that is none, and for any other template syntax."""

    def value(found: re.Match[str]) -> str:
        if found[1] not in named:
            raise InvalidSchedule(field, f"there is no {found[1]!r}; there are {', '.join(sorted(named))}")
        return named[found[1]]

    if LEFT_OVER.search(NAME.sub("", text)):
        raise InvalidSchedule(
            field, f"{text!r}: dates are written as {{{{ ds }}}}, and no other template syntax is read"
        )
    return NAME.sub(value, text)


def check(spec: ScheduleSpec, now: float) -> None:
    """Raises InvalidSchedule for what can never work: expression, zone, names of dates, outputs that meet, window."""
    made = timetable(spec.cron, spec.timezone)
    if spec.start_at is not None and spec.end_at is not None and spec.end_at <= spec.start_at:
        raise InvalidSchedule("end_at", "comes before start_at")
    if spec.first_after(now) is None:
        raise InvalidSchedule("end_at", "lies before the first fire time")
    fires = list(islice(made.after(now), LOOKAHEAD))
    outputs = [spec.job_at(fire).output for fire in fires]
    if spec.job.output is not None and len(set(outputs)) < len(outputs):
        reason = f"{spec.job.output!r} is the same folder for several runs; add {{{{ ds }}}}, or {{{{ ts_nodash }}}}"
        raise InvalidSchedule("job.output", reason)
    shortest = min((later - earlier for earlier, later in pairwise(fires)), default=None)
    if spec.window_seconds is not None and shortest is not None and spec.window_seconds >= shortest:
        reason = f"{spec.window_seconds:,g} is not less than the {shortest:,g} seconds between two fire times"
        raise InvalidSchedule("window_seconds", reason)
