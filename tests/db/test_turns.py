"""Whose turn it is: priority, then the tenant with the fewest shards at work, then its job with the fewest."""

from __future__ import annotations

from sqlalchemy import update

from db import turns
from db.accounts import Tenant
from db.models import Job, Shard
from db.session import db_now
from tests.db.ledger import Sessions, add_job, take


def add(sessions: Sessions, job_id: str, tenant: str, num_shards: int = 5, priority: int = 0) -> None:
    add_job(sessions, job_id, num_shards=num_shards)
    with sessions.begin() as session:
        if session.get(Tenant, tenant) is None:
            session.add(Tenant(name=tenant, roots=[], created_at=db_now()))
            session.flush()
        session.execute(update(Job).where(Job.id == job_id).values(tenant=tenant, priority=priority))
        session.execute(update(Shard).values(dispatched_at=db_now()))


def order(sessions: Sessions, count: int) -> str:
    """The jobs of the next `count` shards that are taken up, one letter each."""
    found = ""
    for _ in range(count):
        with sessions.begin() as session:
            shard_id = turns.choose(session)
        if shard_id is None:
            return found
        found += take(sessions, shard_id).job_id
    return found


def test_tenants_take_turns_however_many_jobs_each_has(sessions: Sessions) -> None:
    for job_id in "abc":
        add(sessions, job_id, "many")
    add(sessions, "z", "one")
    assert order(sessions, 8) == "azbzczaz"


def test_a_tenants_own_jobs_take_turns(sessions: Sessions) -> None:
    add(sessions, "a", "one")
    add(sessions, "b", "one", num_shards=2)
    assert order(sessions, 9) == "ababaaa"


def test_a_job_without_a_free_shard_still_counts_for_its_tenant(sessions: Sessions) -> None:
    add(sessions, "a", "many", num_shards=3)
    assert order(sessions, 3) == "aaa"
    add(sessions, "b", "many")
    add(sessions, "z", "one")
    assert order(sessions, 5) == "zzzbz"


def test_priority_goes_before_fairness(sessions: Sessions) -> None:
    add(sessions, "a", "many", priority=1)
    add(sessions, "z", "one")
    assert order(sessions, 7) == "aaaaazz"


def test_nothing_free_is_nobodys_turn(sessions: Sessions) -> None:
    assert order(sessions, 1) == ""
    add(sessions, "a", "one", num_shards=1)
    assert order(sessions, 2) == "a"
