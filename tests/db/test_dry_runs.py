"""Dry runs: sent once, taken up by one worker, tried again, ended once, and forgotten."""

from __future__ import annotations

import pytest
from sqlalchemy import update

from db import dispatch, dry_runs
from db.dispatch import Wakeup
from db.dry_runs import DryRun, DryRunStatus
from db.errors import PlanNotFound
from db.session import db_now
from tests.db.ledger import SPEC, Sessions


def add(sessions: Sessions) -> DryRun:
    with sessions.begin() as session:
        return dry_runs.create(session, SPEC, tenant="default", num_rows=10, input_version="v", sample_rows=8)


def begin(sessions: Sessions, plan_id: str, *, attempts: int = 2) -> DryRun | None:
    with sessions.begin() as session:
        return dry_runs.begin(session, plan_id, attempts, lease_seconds=60)


def taken(sessions: Sessions, plan_id: str) -> DryRun:
    run = begin(sessions, plan_id)
    assert run is not None
    return run


def read(sessions: Sessions, plan_id: str) -> DryRun:
    with sessions.begin() as session:
        return dry_runs.get(session, plan_id, "default")


def change(sessions: Sessions, plan_id: str, **values: object) -> None:
    with sessions.begin() as session:
        session.execute(update(DryRun).where(DryRun.id == plan_id).values(**values))


def due(sessions: Sessions) -> list[Wakeup]:
    with sessions.begin() as session:
        return dispatch.due(session, window=4, redispatch_seconds=60)


def test_two_are_sent_at_a_time_once_and_again_when_lost(sessions: Sessions) -> None:
    first, second, third = (add(sessions).id for _ in range(3))
    assert due(sessions) == [Wakeup("plan", first), Wakeup("plan", second)]
    assert due(sessions) == []
    run = taken(sessions, first)
    with sessions.begin() as session:
        assert dry_runs.finish(session, run, {"x": 1}, rows_done=5)
    assert due(sessions) == [Wakeup("plan", third)]
    for plan_id in (second, third):
        change(sessions, plan_id, dispatched_at=db_now() - 61)
    assert due(sessions) == [Wakeup("plan", second), Wakeup("plan", third)]
    with sessions.begin() as session:
        dispatch.unsent(session, [Wakeup("plan", third)])
    assert due(sessions) == [Wakeup("plan", third)]


def test_those_at_work_count_however_long_they_take(sessions: Sessions) -> None:
    first, second, third = (add(sessions).id for _ in range(3))
    due(sessions)
    for plan_id in (first, second):
        taken(sessions, plan_id)
        change(sessions, plan_id, dispatched_at=db_now() - 61, lease_until=db_now() + 3600)
    assert due(sessions) == []
    change(sessions, second, lease_until=db_now() - 1)  # its worker is gone
    assert due(sessions) == [Wakeup("plan", second)]
    change(sessions, second, dispatched_at=0.0, status=DryRunStatus.WAITING, lease_until=db_now() + 3600)
    assert due(sessions) == [Wakeup("plan", third)]  # one that pauses after a broken attempt keeps no thread


def test_one_worker_takes_it_up_and_what_it_found_stays(sessions: Sessions) -> None:
    plan_id = add(sessions).id
    run = taken(sessions, plan_id)
    assert (run.status, run.attempts, run.fence) == (DryRunStatus.RUNNING, 1, 1)
    assert begin(sessions, plan_id) is None
    with sessions.begin() as session:
        assert dry_runs.beat(session, run, lease_seconds=60, rows_done=3)
    assert read(sessions, plan_id).rows_done == 3
    with sessions.begin() as session:
        assert dry_runs.finish(session, run, {"x": 1}, rows_done=5)
        assert not dry_runs.finish(session, run, {"x": 2}, rows_done=6)
        assert not dry_runs.beat(session, run, lease_seconds=60, rows_done=4)
    done = read(sessions, plan_id)
    assert (done.status, done.result, done.rows_done, done.error_code) == (DryRunStatus.DONE, {"x": 1}, 5, None)
    assert begin(sessions, plan_id) is None


def test_a_worker_whose_lease_is_dead_changes_nothing(sessions: Sessions) -> None:
    plan_id = add(sessions).id
    late = taken(sessions, plan_id)
    change(sessions, plan_id, lease_until=db_now() - 1)
    mine = taken(sessions, plan_id)
    with sessions.begin() as session:
        assert not dry_runs.beat(session, late, lease_seconds=60, rows_done=1)
        assert not dry_runs.finish(session, late, {"late": True}, rows_done=8)
        assert not dry_runs.fail(session, late, code="c", message="m")
        assert not dry_runs.retry(session, late, code="c", message="m", max_attempts=2, pause=0)
        assert not dry_runs.give_back(session, late)
        assert dry_runs.finish(session, mine, {}, rows_done=8)
    assert read(sessions, plan_id).result == {}


def test_it_is_tried_again_and_fails_in_the_end(sessions: Sessions) -> None:
    plan_id = add(sessions).id
    first = taken(sessions, plan_id)
    with sessions.begin() as session:
        assert dry_runs.retry(session, first, code="io_error", message="no", max_attempts=2, pause=60)
    waiting = read(sessions, plan_id)
    assert (waiting.status, waiting.error_code, due(sessions)) == (DryRunStatus.WAITING, "io_error", [])
    change(sessions, plan_id, lease_until=None)
    assert due(sessions) == [Wakeup("plan", plan_id)]
    second = taken(sessions, plan_id)
    with sessions.begin() as session:
        assert dry_runs.retry(session, second, code="io_error", message="no\0", max_attempts=2, pause=60)
    failed = read(sessions, plan_id)
    assert (failed.status, failed.error_code, failed.error_message) == (DryRunStatus.FAILED, "io_error", "no\ufffd")
    assert due(sessions) == []


def test_workers_that_vanish_fail_it_in_the_end(sessions: Sessions) -> None:
    plan_id = add(sessions).id
    for _ in range(2):
        taken(sessions, plan_id)
        change(sessions, plan_id, lease_until=db_now() - 1)
    assert begin(sessions, plan_id) is None
    failed = read(sessions, plan_id)
    assert (failed.error_code, failed.error_message) == ("worker_lost", "the plan broke off 2 times: its worker ended")


def test_given_back_it_has_lost_no_attempt(sessions: Sessions) -> None:
    plan_id = add(sessions).id
    due(sessions)
    run = taken(sessions, plan_id)
    with sessions.begin() as session:
        assert dry_runs.give_back(session, run)
    assert (read(sessions, plan_id).attempts, due(sessions)) == (0, [Wakeup("plan", plan_id)])


def test_another_tenant_is_told_of_none(sessions: Sessions) -> None:
    plan_id = add(sessions).id
    with sessions.begin() as session, pytest.raises(PlanNotFound, match=plan_id):
        dry_runs.get(session, plan_id, "other")


def test_what_ended_a_week_ago_is_forgotten(sessions: Sessions) -> None:
    old, open_ = add(sessions).id, add(sessions).id
    run = taken(sessions, old)
    with sessions.begin() as session:
        assert dry_runs.fail(session, run, code="c", message="m")
    change(sessions, old, finished_at=db_now() - dry_runs.KEEP_SECONDS - 1)
    change(sessions, open_, created_at=db_now() - dry_runs.KEEP_SECONDS - 1)
    add(sessions)
    assert read(sessions, open_).status is DryRunStatus.WAITING
    with pytest.raises(PlanNotFound):
        read(sessions, old)
