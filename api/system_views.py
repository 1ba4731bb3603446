"""What the service says of itself: models, workers, health."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pydantic import Field

from api.schemas import View, as_time
from db.models import Worker


class ModelView(View):
    """A model that a job may name. `installed` is about the API's machine, which may not be the worker's."""

    name: str
    title: str
    installed: bool
    bytes: int | None


class OpenAIModel(View):
    """A model as OpenAI clients read it."""

    id: str
    object: str = "model"
    created: int = 0  # not known
    owned_by: str = "nightmill"


class ModelList(View):
    """`models` say more; `object` and `data` are for OpenAI clients, and have the other names of models as well."""

    default: str
    models: list[ModelView]
    object: str = "list"
    data: list[OpenAIModel] = Field(default=[])


class WorkerView(View):
    """A worker process as it last reported itself."""

    name: str
    model: str | None
    started_at: datetime
    seen_seconds_ago: float
    stats: dict[str, Any]

    @classmethod
    def of(cls, worker: Worker, now: float) -> WorkerView:
        return cls(
            name=worker.name,
            model=worker.model,
            started_at=as_time(worker.started_at),
            seen_seconds_ago=max(0.0, now - worker.seen_at),
            stats=worker.stats,
        )


class WorkerList(View):
    workers: list[WorkerView]


class Health(View):
    """`checks` maps what the service depends on to `ok` or to what is wrong with it."""

    status: str
    version: str
    checks: dict[str, str] = Field(default={})
