"""What a route may ask for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import sqlalchemy
from fastapi import Depends, Request
from sqlalchemy.orm import Session, sessionmaker

from api.metrics import Metrics
from api.queue import Queue
from api.sweeper import Sweeper
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


def _services(request: Request) -> Services:
    services: Services = request.app.state.services
    return services


ServicesDep = Annotated[Services, Depends(_services)]
