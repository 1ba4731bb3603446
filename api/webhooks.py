"""Routes of webhooks: who is told when a job or a batch has ended, signed by the Standard Webhooks scheme."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from sqlalchemy.orm import Session

from api.addresses import check_url
from api.deps import AdminDep, Before, CallerDep, ServicesDep, count_submission
from api.webhook_views import DeliveryPage, DeliveryView, WebhookList, WebhookRequest, WebhookView
from db import audit, webhooks
from db.errors import InvalidWebhook, WebhookNotFound
from db.openai_models import Webhook

router = APIRouter(prefix="/v1/webhooks", tags=["webhooks"])


@router.post("", status_code=201)
def create(request: WebhookRequest, services: ServicesDep, caller: AdminDep) -> WebhookView:
    """Register an address for the tenant's jobs and batches. The answer has the secret that signs, this once."""
    count_submission(caller, services)
    unknown = sorted(set(request.events) - set(webhooks.EVENTS))
    if unknown:
        raise InvalidWebhook("events", f"there is no event {unknown[0]!r}: there are {', '.join(webhooks.EVENTS)}")
    host = check_url(request.url, services.settings.webhook_private_addresses).hostname
    with services.sessions.begin() as session:
        webhook = webhooks.create(session, caller.tenant, request.url, request.events)
        # The rest of an address may be a secret, as that of many a chat's hook is.
        audit.record(session, caller.actor, "webhook.create", webhook.id, host=host)
        return WebhookView.of(webhook, webhook.secret)


@router.get("")
def listing(services: ServicesDep, caller: CallerDep) -> WebhookList:
    """The tenant's webhooks, oldest first."""
    with services.sessions.begin() as session:
        return WebhookList(webhooks=[WebhookView.of(each) for each in webhooks.listing(session, caller.tenant)])


@router.delete("/{webhook_id}", status_code=204)
def delete(webhook_id: str, services: ServicesDep, caller: AdminDep) -> None:
    """Forget a webhook and its log; what is not delivered yet is not delivered any more."""
    with services.sessions.begin() as session:
        session.delete(_get(session, caller.tenant, webhook_id))
        audit.record(session, caller.actor, "webhook.delete", webhook_id)


@router.get("/{webhook_id}/deliveries")
def deliveries(
    webhook_id: str,
    services: ServicesDep,
    caller: CallerDep,
    limit: Annotated[int, Query(ge=1, le=200, description="Most entries of a page.")] = 50,
    before: Before = None,
) -> DeliveryPage:
    """How the events were delivered, newest first."""
    with services.sessions.begin() as session:
        _get(session, caller.tenant, webhook_id)
        found = webhooks.deliveries(session, webhook_id, limit=limit + 1, before=before)
        shown = [DeliveryView.of(each) for each in found[:limit]]
    return DeliveryPage(deliveries=shown, next=shown[-1].id if len(found) > limit else None)


def _get(session: Session, tenant: str, webhook_id: str) -> Webhook:
    webhook = webhooks.get(session, tenant, webhook_id)
    if webhook is None:
        raise WebhookNotFound(webhook_id)
    return webhook
