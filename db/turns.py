"""Whose turn it is: which shard a worker should take up next."""

from __future__ import annotations

from sqlalchemy import ColumnElement, and_, func, or_, select
from sqlalchemy.orm import Session

from db.models import STOPPING, Job, JobStatus, Shard, ShardStatus
from db.session import db_now

WORKING = (JobStatus.RUNNING, *STOPPING)  # a worker may take up a shard


def choose(session: Session) -> int | None:
    """The shard that should be taken up next, whatever message woke the worker; None: none is free and was sent.

    Highest priority first; among equals the tenant with the fewest shards at work, so that one with many jobs starves
    nobody; then its job with the fewest, so that a large one starves no other; then the oldest.
    Another worker may be quicker: then `claim` gives nothing and the next call another shard.
    """
    alive = and_(Shard.status == ShardStatus.RUNNING, Shard.lease_until >= db_now())
    at_work = select(func.count()).where(Shard.job_id == Job.id, alive).scalar_subquery()
    first = (
        select(Shard.id)
        .where(Shard.job_id == Job.id, Shard.dispatched_at > 0.0, free())
        .order_by(Shard.index)
        .limit(1)
        .scalar_subquery()
    )
    jobs = (
        select(Job.id, Job.tenant, Job.priority, Job.created_at, at_work.label("at_work"), first.label("first"))
        .where(Job.status.in_(WORKING))
        .cte("working")
        .c
    )
    # Over all of a tenant's jobs, also those that have no free shard left.
    of_tenant = func.sum(jobs.at_work).over(partition_by=jobs.tenant).label("of_tenant")
    turns = select(*jobs, of_tenant).subquery().c
    order = (turns.priority.desc(), turns.of_tenant, turns.at_work, turns.created_at, turns.id)
    return session.scalar(select(turns.first).where(turns.first.is_not(None)).order_by(*order).limit(1))


def free() -> ColumnElement[bool]:
    """Pending and not pausing after a broken attempt, or its lease is dead."""
    ready = and_(Shard.status == ShardStatus.PENDING, Shard.not_before <= db_now())
    return or_(ready, and_(Shard.status == ShardStatus.RUNNING, Shard.lease_until < db_now()))
