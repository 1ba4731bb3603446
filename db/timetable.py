"""When a schedule fires: a cron expression read in a time zone. Times are seconds since 1970 (UTC).

The rules at the changes of the clocks are Debian cron's, by cronsim: a time of day that the change skips fires once, at
the first moment after it; one that comes twice fires the first time only; `*` and `*/n` fire through both hours.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from db.errors import InvalidSchedule

HOUR = 3600.0
WIDER = 8.0  # each look back for fire times goes this many times as far as the one before


@dataclass(frozen=True, slots=True)
class Timetable:
    cron: str
    timezone: str

    def after(self, moment: float) -> Iterator[float]:
        """The fire times after `moment`, without end unless none comes within 50 years."""
        begun = datetime.fromtimestamp(int(moment), ZoneInfo(self.timezone))
        last = moment
        for fire in CronSim(self.cron, begun):
            found = fire.timestamp()
            if found > last:  # begun in an hour that comes twice, cronsim names a moment of the first one
                yield (last := found)

    def next(self, moment: float) -> float | None:
        return next(self.after(moment), None)

    def newest(self, since: float, until: float, most: int) -> list[float]:
        """The last `most` fire times in [since, until], in order; time spent does not grow with the span."""
        span = HOUR
        while True:
            begin = max(since, until - span)
            found: deque[float] = deque(maxlen=most)
            for fire in self.after(begin - 1):
                if fire > until:
                    break
                if fire >= begin:
                    found.append(fire)
            if len(found) == most or begin <= since:
                return list(found)
            span *= WIDER

    def of_dates(self, first: date, last: date, most: int) -> list[float]:
        """The fire times on the dates first to last of the zone, in order, at most `most`."""
        zone = ZoneInfo(self.timezone)
        found: list[float] = []
        for fire in self.after(datetime.combine(first, time(), zone).timestamp() - 1):
            if datetime.fromtimestamp(fire, zone).date() > last or len(found) == most:
                break
            found.append(fire)
        return found

    def local(self, moment: float) -> datetime:
        return datetime.fromtimestamp(moment, ZoneInfo(self.timezone))


def zone(name: str) -> ZoneInfo:
    """Raises InvalidSchedule naming `timezone`."""
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):  # unknown; not a name at all; a folder of zones
        reason = f"{name!r} is no time zone; write one like Europe/Berlin, or UTC"
        raise InvalidSchedule("timezone", reason) from None


def timetable(cron: str, timezone: str) -> Timetable:
    """Raises InvalidSchedule naming `timezone` or `cron`."""
    zone(timezone)
    if len(cron.split()) != 5:
        reason = "has five fields (minute, hour, day of month, month, day of week), as in '30 2 * * *'"
        raise InvalidSchedule("cron", f"{cron!r}: an expression {reason}")
    try:
        CronSim(cron, datetime.now(UTC))
    except CronSimError as error:
        raise InvalidSchedule("cron", f"{cron!r}: {str(error).lower()}") from None
    made = Timetable(cron, timezone)
    if made.next(datetime.now(UTC).timestamp()) is None:
        raise InvalidSchedule("cron", f"{cron!r} names no date that ever comes")
    return made


def dates(made: Timetable, fire: float) -> dict[str, str]:
    """What a template may name, by its name. The logical date of a run is that of its fire time, in the zone."""
    before = next(iter(made.newest(fire - 50 * 366 * 86_400, fire - 1, 1)), None)
    earlier = made.local(before) if before is not None else made.local(fire) - timedelta(days=1)
    return {**_names(made.local(fire), ""), **_names(earlier, "prev_")}


def _names(moment: datetime, prefix: str) -> dict[str, str]:
    utc = moment.astimezone(UTC)
    named = {
        "ds": f"{moment:%Y-%m-%d}",
        "ds_nodash": f"{moment:%Y%m%d}",
        "logical_date": moment.isoformat(timespec="seconds"),
        "ts_nodash": f"{utc:%Y%m%dT%H%M%SZ}",
    }
    return {prefix + name: value for name, value in named.items()}
