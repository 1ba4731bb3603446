"""What is due: once each, in order, within the window, and again when it was lost."""

from __future__ import annotations

import pytest
from sqlalchemy import func, select, update

from db import control, dispatch, jobs, phases, shards
from db.dispatch import Wakeup
from db.models import Job, JobStatus, Shard, ShardStatus
from db.session import db_now
from tests.db.ledger import SPEC, Sessions, add_job, claim, expire, finish, take, together


def due(sessions: Sessions, window: int = 4, limit: int = 200, lying: int = 0) -> list[Wakeup]:
    with sessions.begin() as session:
        return dispatch.due(session, window=window, redispatch_seconds=60, limit=limit, lying=lying)


def runs(ids: list[int]) -> list[Wakeup]:
    return [Wakeup("run", shard_id) for shard_id in ids]


def age(sessions: Sessions, seconds: float) -> None:
    """Make everything that was sent as old as that."""
    with sessions.begin() as session:
        for table in (Job, Shard):
            session.execute(update(table).where(table.dispatched_at > 0).values(dispatched_at=db_now() - seconds))


def validating(sessions: Sessions, job_id: str) -> None:
    with sessions.begin() as session:
        jobs.create(
            session,
            SPEC,
            tenant="default",
            job_id=job_id,
            output_uri=f"/out/{job_id}",
            num_rows=1,
            idempotency_key=None,
        )


def test_new_jobs_are_split_once_oldest_first_and_again_when_lost(sessions: Sessions) -> None:
    for job_id in ("b", "a"):
        validating(sessions, job_id)
    assert due(sessions, limit=1) == [Wakeup("split", "b")]
    assert due(sessions) == [Wakeup("split", "a")]
    assert due(sessions) == []
    age(sessions, 20)
    assert due(sessions) == []
    age(sessions, 61)
    assert due(sessions) == [Wakeup("split", "b"), Wakeup("split", "a")]


def test_nothing_is_sent_again_while_enough_messages_lie_in_the_broker(sessions: Sessions) -> None:
    """No worker is there, for hours: each round of messages would stay. What is new is sent all the same."""
    validating(sessions, "a")
    ids = add_job(sessions, "b", num_shards=3)
    assert due(sessions, lying=dispatch.ENOUGH) == [Wakeup("split", "a"), *runs(ids)]
    age(sessions, 9999)
    validating(sessions, "c")
    assert due(sessions, lying=dispatch.ENOUGH) == [Wakeup("split", "c")]
    assert due(sessions, lying=dispatch.ENOUGH) == []
    assert due(sessions, lying=dispatch.ENOUGH - 1) == [Wakeup("split", "a"), *runs(ids)]


def test_few_of_many_queued_jobs_have_a_message_out(sessions: Sessions, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "MOST_SPLITS", 2)
    for name in "abc":
        validating(sessions, name)
    assert due(sessions) == [Wakeup("split", "a"), Wakeup("split", "b")]
    assert due(sessions) == []
    with sessions.begin() as session:
        assert control.cancel(session, "a", "default").status is JobStatus.CANCELLED
    assert due(sessions) == [Wakeup("split", "c")]


def test_a_split_under_way_is_not_sent_again(sessions: Sessions) -> None:
    validating(sessions, "a")
    due(sessions)
    age(sessions, 61)
    with sessions.begin() as session:
        begun = phases.begin_split(session, "a", 3, lease_seconds=60)
        assert begun is not None
    assert due(sessions) == []
    with sessions.begin() as session:
        phases.beat(session, begun, lease_seconds=-1)
    assert due(sessions) == [Wakeup("split", "a")]


def test_the_window_bounds_what_is_sent_and_slides(sessions: Sessions) -> None:
    ids = add_job(sessions, num_shards=10)
    assert due(sessions) == runs(ids[:4])
    assert due(sessions) == []
    taken = [take(sessions, shard_id) for shard_id in ids[:2]]
    assert due(sessions) == runs(ids[4:6])  # what workers hold is not in the queue, however many they are
    assert due(sessions) == []
    finish(sessions, taken[1])
    assert due(sessions) == []
    assert due(sessions, window=6) == runs(ids[6:8])
    assert due(sessions, window=2) == []


def test_lost_messages_keep_their_place_in_the_window(sessions: Sessions) -> None:
    ids = add_job(sessions, num_shards=10)
    assert due(sessions) == runs(ids[:4])
    for _ in range(3):
        age(sessions, 61)
        assert due(sessions) == runs(ids[:4])
        assert due(sessions) == []


def test_a_dead_lease_is_sent_at_once_and_then_at_the_usual_pace(sessions: Sessions) -> None:
    ids = add_job(sessions, num_shards=3)
    due(sessions, window=3)
    age(sessions, 5)
    taken = take(sessions, ids[0])
    assert due(sessions, window=2) == []
    expire(sessions, taken.shard_id)
    assert due(sessions, window=2) == runs(ids[:1])
    assert due(sessions, window=2) == []
    age(sessions, 61)
    assert due(sessions, window=2) == runs(ids)


def test_a_released_shard_is_sent_before_later_ones(sessions: Sessions) -> None:
    ids = add_job(sessions, num_shards=4)
    due(sessions, window=2)
    taken = take(sessions, ids[1])
    with sessions.begin() as session:
        shards.release(session, taken)
    assert due(sessions, window=2) == runs([ids[1]])


def test_what_the_broker_refused_is_due_again_at_once(sessions: Sessions) -> None:
    validating(sessions, "a")
    ids = add_job(sessions, num_shards=2)
    found = due(sessions)
    assert found == [Wakeup("split", "a"), *runs(ids)]
    with sessions.begin() as session:
        dispatch.unsent(session, found[:2])
    assert due(sessions) == found[:2]


def test_the_limit_holds_over_all_kinds(sessions: Sessions) -> None:
    validating(sessions, "a")
    first = add_job(sessions, "j1", num_shards=3)
    second = add_job(sessions, "j2", num_shards=3)
    assert due(sessions, limit=3) == [Wakeup("split", "a"), *runs(first[:2])]
    assert due(sessions, limit=3) == runs([first[2], *second[:2]])
    assert due(sessions, limit=3) == runs([second[2]])


def test_sweepers_that_look_at_once_send_everything_once(sessions: Sessions) -> None:
    for number in range(4):
        validating(sessions, f"v{number}")
    ids = [add_job(sessions, f"j{number}", num_shards=6) for number in range(4)]
    dead = take(sessions, ids[0][0])
    expire(sessions, dead.shard_id)
    sent = [wakeup for found in together(6, lambda _: due(sessions)) for wakeup in found]
    sent += due(sessions)  # a sweeper leaves out what another one holds at that moment
    # The dead shard comes beside the four of its job that wait.
    expected = runs([shard_id for shards in ids for shard_id in shards[:4]] + ids[0][4:5])
    expected += [Wakeup("split", f"v{number}") for number in range(4)]
    assert sorted(sent, key=str) == sorted(expected, key=str)


def test_workers_and_sweepers_together_never_exceed_the_window(sessions: Sessions) -> None:
    """Six that send, claim what they were sent and finish it, until the job is done; looked at after each sending."""
    ids = add_job(sessions, num_shards=24, shard_rows=1)
    sent: list[Wakeup] = []
    open_at_once: list[int] = []
    placed = select(func.count()).where(Shard.status == ShardStatus.PENDING, Shard.dispatched_at > 0)

    def work(number: int) -> None:
        while len(sent) < 25:
            with sessions.begin() as session:
                found = dispatch.due(session, window=3, redispatch_seconds=60)
                open_at_once.append(session.scalar(placed) or 0)
            sent.extend(found)
            for wakeup in found:
                if wakeup.task == "run" and (taken := claim(sessions, int(wakeup.id))) is not None:
                    finish(sessions, taken)

    together(6, work)
    assert sorted(sent, key=str) == sorted([*runs(ids), Wakeup("merge", "j")], key=str)
    assert max(open_at_once) == 3
