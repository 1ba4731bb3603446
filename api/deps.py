"""What a route may ask for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import sqlalchemy
from fastapi import Depends, Query, Request, Security
from fastapi.security import HTTPBearer
from sqlalchemy.orm import Session, sessionmaker

from api.auth import Caller, Forbidden, authenticate
from api.metrics import Metrics
from api.queue import Queue
from api.sweeper import Sweeper
from db import rates
from db.accounts import Role
from db.settings import Settings


@dataclass(frozen=True, slots=True)
class Services:
    """The process's actors, made in the app's lifespan. A route opens its own transactions on `sessions`."""

    settings: Settings
    database: sqlalchemy.Engine
    sessions: sessionmaker[Session]
    queue: Queue
    sweeper: Sweeper
    metrics: Metrics


# A dependency that waits for nothing is a coroutine: a plain function would be sent to a thread and back.
async def _services(request: Request) -> Services:
    services: Services = request.app.state.services
    return services


ServicesDep = Annotated[Services, Depends(_services)]


# Of a listing by numbers: no larger ones than a database has.
Before = Annotated[int | None, Query(ge=0, lt=2**63, description="The `next` of the page before.")]

# It only describes: what the header means is api.auth's to say, and with authentication off it may be missing.
_bearer = HTTPBearer(auto_error=False, description="An API key: nm_…")


def _caller(request: Request, services: ServicesDep, _: Annotated[object, Security(_bearer)]) -> Caller:
    address = "" if request.client is None else request.client.host
    return authenticate(services.settings, services.sessions, request.headers.get("authorization"), address)


# Any key of the tenant; and those of a role that may do more.
CallerDep = Annotated[Caller, Depends(_caller)]


async def _submitter(caller: CallerDep) -> Caller:
    caller.need(Role.SUBMIT)
    return caller


SubmitterDep = Annotated[Caller, Depends(_submitter)]


def count_submission(caller: Caller, services: Services) -> None:
    """What makes work or takes up space is counted, whether it is accepted or not. Raises RateExceeded."""
    if caller.key_id is not None:
        with services.sessions.begin() as session:
            rates.submit(session, caller.key_id, services.settings.submissions_per_minute)


def _submission(caller: SubmitterDep, services: ServicesDep) -> Caller:
    count_submission(caller, services)
    return caller


async def _admin(caller: CallerDep) -> Caller:
    caller.need(Role.ADMIN)
    return caller


async def _operator(caller: CallerDep) -> Caller:
    if not caller.operator:
        raise Forbidden(caller.role, "a key of the tenant 'default'")
    return caller


OperatorDep = Annotated[Caller, Depends(_operator)]


async def _operator_admin(caller: OperatorDep) -> Caller:
    caller.need(Role.ADMIN)
    return caller


# As SubmitterDep, and counted against the key's rate.
SubmissionDep = Annotated[Caller, Depends(_submission)]
AdminDep = Annotated[Caller, Depends(_admin)]
OperatorAdminDep = Annotated[Caller, Depends(_operator_admin)]
