"""Fire times over changes of the clocks, leap days, and what an expression may be."""

from __future__ import annotations

from datetime import UTC, date, datetime
from itertools import islice, pairwise
from zoneinfo import ZoneInfo

import pytest

from db.errors import InvalidSchedule
from db.timetable import dates, timetable

BERLIN, NEW_YORK, LORD_HOWE, KOLKATA = "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kolkata"
LONDON, SANTIAGO, APIA, CASABLANCA = "Europe/London", "America/Santiago", "Pacific/Apia", "Africa/Casablanca"

# Expression, zone, the local time after which is looked, and the fire times that come then, with their offsets.
TABLE = [
    # Spring: a time that is skipped fires once, at the first moment after the gap.
    ("30 2 * * *", BERLIN, "2026-03-28T12:00", ["2026-03-29T03:00+02:00", "2026-03-30T02:30+02:00"]),
    ("0 2 * * *", BERLIN, "2026-03-28T12:00", ["2026-03-29T03:00+02:00", "2026-03-30T02:00+02:00"]),
    ("30 3 * * *", BERLIN, "2026-03-28T12:00", ["2026-03-29T03:30+02:00", "2026-03-30T03:30+02:00"]),
    ("30 1 * * *", BERLIN, "2026-03-28T12:00", ["2026-03-29T01:30+01:00", "2026-03-30T01:30+02:00"]),
    ("0 * * * *", BERLIN, "2026-03-29T00:30",
     ["2026-03-29T01:00+01:00", "2026-03-29T03:00+02:00", "2026-03-29T04:00+02:00"]),
    ("*/30 * * * *", BERLIN, "2026-03-29T01:20", ["2026-03-29T01:30+01:00", "2026-03-29T03:00+02:00"]),
    ("30 2 * * *", NEW_YORK, "2026-03-07T12:00", ["2026-03-08T03:00-04:00", "2026-03-09T02:30-04:00"]),
    ("0 0 * * *", SANTIAGO, "2026-09-05T12:00", ["2026-09-06T01:00-03:00", "2026-09-07T00:00-03:00"]),
    ("15 2 * * *", LORD_HOWE, "2026-10-03T12:00", ["2026-10-04T02:30+11:00", "2026-10-05T02:15+11:00"]),
    ("30 1 * * *", LONDON, "2026-03-28T12:00", ["2026-03-29T02:00+01:00", "2026-03-30T01:30+01:00"]),
    ("30 2 * * 0", BERLIN, "2026-03-28T12:00", ["2026-03-29T03:00+02:00", "2026-04-05T02:30+02:00"]),
    # Autumn: a time that comes twice fires the first time; hours pass as they do.
    ("30 2 * * *", BERLIN, "2026-10-24T12:00", ["2026-10-25T02:30+02:00", "2026-10-26T02:30+01:00"]),
    ("0 2 * * *", BERLIN, "2026-10-24T12:00", ["2026-10-25T02:00+02:00", "2026-10-26T02:00+01:00"]),
    ("0 3 * * *", BERLIN, "2026-10-24T12:00", ["2026-10-25T03:00+01:00", "2026-10-26T03:00+01:00"]),
    ("0 * * * *", BERLIN, "2026-10-25T01:30",
     ["2026-10-25T02:00+02:00", "2026-10-25T02:00+01:00", "2026-10-25T03:00+01:00"]),
    ("*/30 * * * *", BERLIN, "2026-10-25T02:20",
     ["2026-10-25T02:30+02:00", "2026-10-25T02:00+01:00", "2026-10-25T02:30+01:00"]),
    ("30 1 * * *", NEW_YORK, "2026-10-31T12:00", ["2026-11-01T01:30-04:00", "2026-11-02T01:30-05:00"]),
    ("45 1 * * *", LORD_HOWE, "2026-04-04T12:00", ["2026-04-05T01:45+11:00", "2026-04-06T01:45+10:30"]),
    ("30 23 * * *", SANTIAGO, "2026-04-04T12:00", ["2026-04-04T23:30-03:00", "2026-04-05T23:30-04:00"]),
    ("30 1 * * *", LONDON, "2026-10-24T12:00", ["2026-10-25T01:30+01:00", "2026-10-26T01:30+00:00"]),
    ("0 1,2,3 * * *", BERLIN, "2026-10-25T00:30",
     ["2026-10-25T01:00+02:00", "2026-10-25T02:00+02:00", "2026-10-25T03:00+01:00"]),
    # Looked for from within the hour that comes twice: never a moment that has passed.
    ("30 2 * * *", BERLIN, "2026-10-25T02:10+01:00", ["2026-10-26T02:30+01:00"]),
    # Zones without a change, with one during Ramadan, and with a day that never was.
    ("30 2 * * *", KOLKATA, "2026-03-28T12:00", ["2026-03-29T02:30+05:30", "2026-03-30T02:30+05:30"]),
    ("30 2 * * *", "UTC", "2026-10-24T12:00", ["2026-10-25T02:30+00:00", "2026-10-26T02:30+00:00"]),
    ("30 2 * * *", CASABLANCA, "2026-02-14T12:00", ["2026-02-15T02:30+01:00", "2026-02-16T02:30+00:00"]),
    ("0 9 * * *", APIA, "2011-12-29T12:00", ["2011-12-31T00:00+14:00", "2011-12-31T09:00+14:00"]),
    # Leap days and ends of months.
    ("0 2 29 2 *", BERLIN, "2026-01-01T00:00", ["2028-02-29T02:00+01:00", "2032-02-29T02:00+01:00"]),
    ("0 2 * 2 *", BERLIN, "2028-02-28T03:00", ["2028-02-29T02:00+01:00", "2029-02-01T02:00+01:00"]),
    ("0 2 L * *", NEW_YORK, "2028-02-01T00:00", ["2028-02-29T02:00-05:00", "2028-03-31T02:00-04:00"]),
    ("0 2 31 * *", "UTC", "2026-02-01T00:00", ["2026-03-31T02:00+00:00", "2026-05-31T02:00+00:00"]),
    ("0 2 1 3 *", LORD_HOWE, "2100-02-27T00:00", ["2100-03-01T02:00+11:00"]),
]  # fmt: skip


def moment(text: str, zone: str) -> float:
    told = datetime.fromisoformat(text)
    return (told if told.tzinfo else told.replace(tzinfo=ZoneInfo(zone))).timestamp()


@pytest.mark.parametrize(("cron", "zone", "after", "expected"), TABLE)
def test_the_changes_of_the_clocks(cron: str, zone: str, after: str, expected: list[str]) -> None:
    made = timetable(cron, zone)
    found = list(islice(made.after(moment(after, zone)), len(expected)))
    assert [made.local(fire).isoformat(timespec="minutes") for fire in found] == expected


@pytest.mark.parametrize("cron", ["30 2 * * *", "*/20 * * * *", "0 1,2 * * *"])
@pytest.mark.parametrize("zone", [BERLIN, LORD_HOWE, SANTIAGO])
def test_one_fire_time_after_the_other_is_the_list(cron: str, zone: str) -> None:
    """A scheduler asks for the next one from the last one, over both changes; that must skip and double nothing."""
    made = timetable(cron, zone)
    for begin in ("2026-03-27T12:00", "2026-04-03T12:00", "2026-10-02T12:00", "2026-10-23T12:00"):
        listed = list(islice(made.after(moment(begin, zone)), 300))
        assert listed == sorted(set(listed))
        for earlier, later in pairwise(listed):
            assert made.next(earlier) == later
            assert made.next(later - 1) == later


def test_the_newest_of_a_span() -> None:
    made = timetable("*/5 * * * *", BERLIN)
    until = moment("2026-10-25T02:07+01:00", BERLIN)
    assert [made.local(fire).isoformat(timespec="minutes") for fire in made.newest(0, until, 3)] == [
        "2026-10-25T02:55+02:00", "2026-10-25T02:00+01:00", "2026-10-25T02:05+01:00",
    ]  # fmt: skip
    assert made.newest(until - 100, until, 3) == []
    assert made.newest(until - 120, until - 120, 3) == [until - 120]
    yearly = timetable("0 0 29 2 *", "UTC")
    found = yearly.newest(0, moment("2026-01-01", "UTC"), 2)
    assert [yearly.local(fire).date() for fire in found] == [date(2020, 2, 29), date(2024, 2, 29)]


def test_fire_times_of_dates() -> None:
    made = timetable("30 2 * * *", BERLIN)
    found = made.of_dates(date(2026, 3, 28), date(2026, 3, 30), 10)
    assert [made.local(fire).isoformat(timespec="minutes") for fire in found] == [
        "2026-03-28T02:30+01:00", "2026-03-29T03:00+02:00", "2026-03-30T02:30+02:00",
    ]  # fmt: skip
    assert len(made.of_dates(date(2026, 1, 1), date(2026, 12, 31), 10)) == 10


def test_dates_of_a_fire_time_are_the_zone_s() -> None:
    made = timetable("30 0 * * *", "Asia/Tokyo")
    assert dates(made, moment("2026-03-01T00:30", "Asia/Tokyo")) == {
        "ds": "2026-03-01",
        "ds_nodash": "20260301",
        "logical_date": "2026-03-01T00:30:00+09:00",
        "ts_nodash": "20260228T153000Z",
        "prev_ds": "2026-02-28",
        "prev_ds_nodash": "20260228",
        "prev_logical_date": "2026-02-28T00:30:00+09:00",
        "prev_ts_nodash": "20260227T153000Z",
    }


def test_the_date_before_a_leap_day_s_first_time() -> None:
    made = timetable("0 2 29 2 *", "UTC")
    assert dates(made, moment("2028-02-29T02:00", "UTC"))["prev_ds"] == "2024-02-29"


@pytest.mark.parametrize(
    ("cron", "zone", "field", "reason"),
    [
        ("30 2 * * *", "Europe/Atlantis", "timezone", "'Europe/Atlantis' is no time zone"),
        ("30 2 * * *", "../../etc/passwd", "timezone", "is no time zone"),
        ("30 2 * * *", "", "timezone", "is no time zone"),
        ("30 2 * *", "UTC", "cron", "has five fields"),
        ("0 30 2 * * *", "UTC", "cron", "has five fields"),
        ("@daily", "UTC", "cron", "has five fields"),
        ("61 2 * * *", "UTC", "cron", "bad minute"),
        ("30 2 * * MOON", "UTC", "cron", "bad day-of-week"),
        ("0 0 30 2 *", "UTC", "cron", "bad day-of-month"),
    ],
)
def test_what_is_refused(cron: str, zone: str, field: str, reason: str) -> None:
    with pytest.raises(InvalidSchedule, match=f"^{field}: ") as caught:
        timetable(cron, zone)
    assert reason in caught.value.reason
    assert caught.value.field == field


def test_utc_is_the_same_everywhere() -> None:
    made = timetable("0 12 * * *", "UTC")
    assert made.next(datetime(2026, 1, 1, tzinfo=UTC).timestamp()) == datetime(2026, 1, 1, 12, tzinfo=UTC).timestamp()
