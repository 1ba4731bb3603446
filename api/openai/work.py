"""Requests as jobs: a dataset of request bodies is stored as an upload, and a job with the recipe openai runs it."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import BinaryIO

from sqlalchemy.orm import Session

from api import submission
from api.deps import Services
from api.schemas import JobRequest
from db import datasets, files, tenants
from db.audit import Actor
from db.errors import UploadNotFound
from db.files import Stored
from db.models import Job
from db.publish import publish
from db.tenants import Folders

HIGHEST = 100


@dataclass(frozen=True, slots=True)
class Order:
    """What is to be run, and for whom. `model` is the name that the requests have, `answer_tokens` what they ask for
    together."""

    actor: Actor
    endpoint: str
    model: str
    source: Stored
    deadline_seconds: float
    answer_tokens: int
    priority: int = 0


def store(services: Services, tenant: str, filename: str, write: Callable[[BinaryIO], None]) -> Stored:
    """Publish a Parquet file among the tenant's uploads; `write` fills it. Its row comes with the job."""
    upload_id = f"upl_{secrets.token_hex(12)}"
    path = files.upload_path(_folders(services, tenant).uploads, upload_id)
    published = publish(path.parent, path.name, write)
    return Stored(upload_id, filename, path, published.num_bytes, datasets.inspect(path).num_rows)


def _folders(services: Services, tenant: str) -> Folders:
    with services.sessions.begin() as session:
        return tenants.folders(session, services.settings, tenant)


def _discard(services: Services, order: Order) -> None:
    """Nobody was told of the dataset: its row goes, if it has one, and its bytes."""
    with services.sessions.begin() as session, suppress(UploadNotFound):
        files.remove_upload(session, services.settings, order.source.id, order.actor.tenant)
    order.source.path.unlink(missing_ok=True)


def submit(services: Services, order: Order, also: Callable[[Session, Job], bool] = lambda session, job: True) -> Job:
    """Create the job. `also` runs in its transaction and may call it off by False: then CalledOff is raised and
    nothing is kept. Raises DomainError for what cannot be run."""
    settings = services.settings
    try:
        files.record_upload(services.sessions, order.source, order.actor)
        request = JobRequest.model_validate(
            {
                "input": f"upload://{order.source.id}",
                "recipe": {"kind": "openai", "endpoint": order.endpoint},
                "model": settings.openai_models.get(order.model, order.model),
                "keep_columns": ["custom_id"],
                "deadline_seconds": order.deadline_seconds,
                "priority": order.priority,
            }
        )
        spec = submission.specify(request, settings)
        job_id = f"job_{secrets.token_hex(12)}"
        folders = _folders(services, order.actor.tenant)
        plan = submission.plan(spec, job_id, folders, settings, order.answer_tokens)
        with services.sessions.begin() as session:
            job, _ = plan.create(session, spec, tenant=order.actor.tenant, job_id=job_id)
            if not also(session, job):
                raise CalledOff
    except BaseException:
        _discard(services, order)
        raise
    services.sweeper.nudge()
    return job


class CalledOff(Exception):
    """Somebody else has the work by now, or it was cancelled."""
