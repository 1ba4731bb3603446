"""Webhooks: where a tenant wants to hear of its jobs and batches, and the deliveries that are due. The caller owns the
transaction.

A delivery is taken by compare-and-set: `next_at` moves to when the attempt counts as lost, so that two processes
deliver once, and one that dies leaves the delivery to the next.
"""

from __future__ import annotations

import base64
import secrets
from collections.abc import Collection

from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

from db import quotas
from db.errors import DomainError
from db.models import Job
from db.openai_models import Batch, Delivery, Webhook
from db.session import db_now

BATCH_EVENTS = ("batch.completed", "batch.failed", "batch.expired", "batch.cancelled")
# The last one: a job of which some rows failed and others did not.
JOB_EVENTS = ("job.completed", "job.failed", "job.expired", "job.cancelled", "job.completed_with_errors")
EVENTS = (*BATCH_EVENTS, *JOB_EVENTS)
# Seconds from an attempt to the next; after the last one the delivery has failed (Standard Webhooks' own schedule).
PAUSES = (5, 300, 1800, 7200, 18_000, 36_000, 50_400, 72_000, 86_400)
ATTEMPT_SECONDS = 60.0
MOST = 20  # of a tenant: each is told of every one of its jobs


class WebhooksExceeded(DomainError):
    """The tenant has as many webhooks as one may have."""

    code = "webhooks_exceeded"

    def __init__(self, limit: int) -> None:
        super().__init__(f"a tenant has {limit} webhooks at most; delete one that is not needed any more")
        self.limit = limit


def create(session: Session, tenant: str, url: str, events: list[str]) -> Webhook:
    """Raises WebhooksExceeded."""
    quotas.hold(session, tenant)
    if (session.scalar(select(func.count()).where(Webhook.tenant == tenant)) or 0) >= MOST:
        raise WebhooksExceeded(MOST)
    webhook = Webhook(id=f"wh_{secrets.token_hex(12)}", tenant=tenant, url=url, enabled=True)
    webhook.secret = "whsec_" + base64.b64encode(secrets.token_bytes(32)).decode()
    webhook.events, webhook.created_at = {"types": events}, db_now()
    session.add(webhook)
    session.flush()
    session.refresh(webhook)
    return webhook


def get(session: Session, tenant: str, webhook_id: str) -> Webhook | None:
    return session.scalar(select(Webhook).where(Webhook.id == webhook_id, Webhook.tenant == tenant))


def listing(session: Session, tenant: str) -> list[Webhook]:
    return list(session.scalars(select(Webhook).where(Webhook.tenant == tenant).order_by(Webhook.created_at)))


def disable(session: Session, webhook_id: str) -> None:
    """Its receiver wants no more events; what is pending fails."""
    session.execute(update(Webhook).where(Webhook.id == webhook_id).values(enabled=False))
    pending = update(Delivery).where(Delivery.webhook_id == webhook_id, Delivery.status == "pending")
    session.execute(pending.values(status="failed"))


def deliveries(session: Session, webhook_id: str, *, limit: int, before: int | None = None) -> list[Delivery]:
    """Newest first."""
    query = select(Delivery).where(Delivery.webhook_id == webhook_id).order_by(Delivery.id.desc()).limit(limit)
    return list(session.scalars(query if before is None else query.where(Delivery.id < before)))


def announce_job(session: Session, job: Job) -> None:
    """A job has ended. That of a batch is told as the batch, once its files are there."""
    of_batch = select(Batch.id).where(Batch.job_id == job.id).limit(1)
    if session.scalar(of_batch) is None:
        announce(session, job.tenant, f"job.{job.status.value}", job.id)


def announce(session: Session, tenant: str, type: str, object_id: str) -> None:
    """Make an event due for every webhook of the tenant that wants it."""
    event_id = f"evt_{secrets.token_hex(12)}"
    for webhook in listing(session, tenant):
        wanted = webhook.events["types"]
        if webhook.enabled and (not wanted or type in wanted):
            session.add(
                Delivery(
                    webhook_id=webhook.id, event_id=event_id, type=type, object_id=object_id, status="pending",
                    attempts=0, next_at=db_now(), created_at=db_now(),
                )
            )  # fmt: skip
    session.flush()


def take_due(session: Session, busy: Collection[str] = ()) -> tuple[Delivery, Webhook] | None:
    """The delivery that is due longest, taken: the caller attempts it and says how it went. `busy`: tenants whose turn
    it is not."""
    query = select(Delivery).where(Delivery.status == "pending", Delivery.next_at <= db_now())
    if busy:
        query = query.where(Delivery.webhook_id.not_in(select(Webhook.id).where(Webhook.tenant.in_(busy))))
    found = session.scalar(query.order_by(Delivery.next_at).limit(1).with_for_update(skip_locked=True))
    if found is None:
        return None
    found.attempts += 1
    found.next_at = db_now() + ATTEMPT_SECONDS
    session.flush()
    session.refresh(found)
    webhook = session.get(Webhook, found.webhook_id)
    assert webhook is not None, "a delivery goes with its webhook"
    return found, webhook


def settle(session: Session, delivery: Delivery, *, delivered: bool, status: int | None, error: str | None) -> bool:
    """How the attempt went. False when another attempt was begun meanwhile: that one's word counts."""
    values: dict[str, object] = {"response_status": status, "error": None if error is None else error[:1024]}
    if delivered:
        values |= {"status": "delivered", "delivered_at": db_now()}
    elif delivery.attempts > len(PAUSES):
        values |= {"status": "failed"}
    else:
        values |= {"next_at": db_now() + PAUSES[delivery.attempts - 1]}
    held = (Delivery.id == delivery.id, Delivery.attempts == delivery.attempts, Delivery.status == "pending")
    written = session.execute(
        update(Delivery).where(*held).values(**values).returning(Delivery.id),
        execution_options={"synchronize_session": False},
    )
    return written.first() is not None
