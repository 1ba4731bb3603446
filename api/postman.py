"""The threads that deliver webhooks, by the Standard Webhooks scheme: signed, tried again with growing pauses, logged.

One tenant's receivers never keep another's waiting for long: an attempt has an end whatever the receiver does, and
a process makes one at a time for a tenant.

Any number of processes may do so at once: a delivery is taken by compare-and-set (db.webhooks). A receiver may still
get an event twice, when a process dies between delivery and record; the event's id tells.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import logging
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
from sqlalchemy.orm import Session, sessionmaker

from api.addresses import AddressRefused, Target, target
from db import webhooks
from db.errors import InvalidWebhook
from db.openai_models import Delivery, Webhook
from db.settings import Settings

log = logging.getLogger(__name__)
SECONDS = 10.0  # for all of one attempt, however slowly its bytes come
AT_ONCE = 4
GONE = 410  # the receiver wants no more of it


class Undelivered(Exception):
    """An attempt that did not succeed, and what was answered."""

    def __init__(self, reason: str, status: int | None = None) -> None:
        super().__init__(reason)
        self.status = status


class Postman(threading.Thread):
    """AT_ONCE threads that look every `sweep_seconds`. Errors are logged and never fatal."""

    def __init__(self, settings: Settings, sessions: sessionmaker[Session], seconds: float = SECONDS) -> None:
        super().__init__(name="postman", daemon=True)
        self._settings = settings
        self._sessions = sessions
        self._seconds = seconds
        self._over = threading.Event()
        self._taking = threading.Lock()
        self._busy: set[str] = set()  # tenants that a thread of this process delivers for

    def run(self) -> None:
        # Each goes its own way: none waits for the slowest of the others.
        with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="postman") as pool:
            list(pool.map(lambda _: self._deliver(), range(AT_ONCE)))

    def _deliver(self) -> None:
        while not self._over.wait(self._settings.sweep_seconds):
            try:
                while not self._over.is_set() and self.deliver_one():
                    pass
            except Exception as error:  # The thread must outlive every failure of the database.
                log.warning("webhooks are not delivered, and it is tried again: %s", error)

    def stop(self) -> None:
        self._over.set()
        if self.is_alive():
            self.join(timeout=SECONDS)

    def deliver_one(self) -> bool:
        """Attempt what is due longest; False when nothing is due, but for tenants that are being served."""
        with self._taking:
            with self._sessions.begin() as session:
                taken = webhooks.take_due(session, self._busy)
            if taken is None:
                return False
            delivery, webhook = taken
            self._busy.add(webhook.tenant)
        try:
            self._attempt(delivery, webhook)
        finally:
            with self._taking:
                self._busy.discard(webhook.tenant)
        return True

    def _attempt(self, delivery: Delivery, webhook: Webhook) -> None:
        status: int | None = None
        reason: str | None = None
        try:
            status = self._send(delivery, webhook)
        except Undelivered as failure:
            status, reason = failure.status, str(failure)
        except Exception:  # What one webhook does to us must not keep the others from theirs.
            log.exception("delivery %d broke off, and is tried again", delivery.id)
            reason = "could not be sent"
        with self._sessions.begin() as session:
            webhooks.settle(session, delivery, delivered=reason is None, status=status, error=reason)
            if status == GONE:
                webhooks.disable(session, webhook.id)

    def _send(self, delivery: Delivery, webhook: Webhook) -> int:
        """The status of a delivery that was taken. Raises Undelivered."""
        body = payload(delivery)
        headers = {**signed(webhook.secret, delivery.event_id, int(time.time()), body), "user-agent": "nightmill"}
        try:
            where = target(webhook.url, self._settings.webhook_private_addresses)
            headers["host"] = where.host
            status = asyncio.run(_post(where, headers, body, self._seconds))
        except (TimeoutError, httpx.TimeoutException) as error:
            raise Undelivered(f"no answer within {self._seconds:g} s") from error
        except (InvalidWebhook, AddressRefused, httpx.HTTPError) as error:
            raise Undelivered(str(error) or type(error).__name__) from error
        if not httpx.codes.is_success(status):
            raise Undelivered(f"answered {status}", status)
        return status


async def _post(where: Target, headers: dict[str, str], body: bytes, seconds: float) -> int:
    """The status that is answered. The client's own timeout begins anew with every byte. Raises TimeoutError."""
    async with (
        asyncio.timeout(seconds),
        httpx.AsyncClient(timeout=seconds, follow_redirects=False, trust_env=False) as client,
    ):
        about = {"sni_hostname": where.name}
        request = client.build_request("POST", where.url, content=body, headers=headers, extensions=about)
        answer = await client.send(request, stream=True)  # what it says is not read
        await answer.aclose()
        return answer.status_code


def payload(delivery: Delivery) -> bytes:
    event = {
        "id": delivery.event_id,
        "object": "event",
        "created_at": int(delivery.created_at),
        "type": delivery.type,
        "data": {"id": delivery.object_id},
    }
    return json.dumps(event, separators=(",", ":")).encode()


def signed(secret: str, event_id: str, timestamp: int, body: bytes) -> dict[str, str]:
    """The headers of a delivery. `secret` is whsec_ and base64."""
    key = base64.b64decode(secret.removeprefix("whsec_"))
    digest = hmac.digest(key, f"{event_id}.{timestamp}.".encode() + body, hashlib.sha256)
    return {
        "content-type": "application/json",
        "webhook-id": event_id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": f"v1,{base64.b64encode(digest).decode()}",
    }
