"""Webhooks and their deliveries, as requests and answers have them."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from api.schemas import View, as_time
from db.openai_models import Delivery, Webhook
from db.webhooks import EVENTS


class WebhookRequest(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    url: Annotated[str, Field(min_length=1, max_length=2048)] = Field(description="What is told, by https.")
    events: list[str] = Field(
        default=[], max_length=32, description=f"Types of events, of {', '.join(EVENTS)}; none: all of them."
    )


class WebhookView(View):
    id: str
    url: str
    events: list[str]
    enabled: bool = Field(description="False once the address answered 410: it wants no more.")
    created_at: datetime
    secret: str | None = Field(default=None, description="Told once, in the answer that makes the webhook.")

    @classmethod
    def of(cls, webhook: Webhook, secret: str | None = None) -> WebhookView:
        return cls(
            id=webhook.id,
            url=webhook.url,
            events=webhook.events["types"],
            enabled=webhook.enabled,
            created_at=as_time(webhook.created_at),
            secret=secret,
        )


class WebhookList(View):
    webhooks: list[WebhookView]


class DeliveryView(View):
    """`status` is pending, delivered or failed; `error` and `response_status` are of the last attempt."""

    id: int
    event_id: str
    type: str
    object_id: str
    status: str
    attempts: int
    response_status: int | None
    error: str | None
    created_at: datetime
    next_at: datetime | None
    delivered_at: datetime | None

    @classmethod
    def of(cls, row: Delivery) -> DeliveryView:
        return cls(
            id=row.id,
            event_id=row.event_id,
            type=row.type,
            object_id=row.object_id,
            status=row.status,
            attempts=row.attempts,
            response_status=row.response_status,
            error=row.error,
            created_at=as_time(row.created_at),
            next_at=as_time(row.next_at) if row.status == "pending" else None,
            delivered_at=None if row.delivered_at is None else as_time(row.delivered_at),
        )


class DeliveryPage(View):
    """Newest first. `next` goes into the next request's `before`."""

    deliveries: list[DeliveryView]
    next: int | None
