"""Retention: the Parquet datasets that batches' files were converted to go when nothing reads them any more.

What a batch answers is written from the parts of its job; only lines of requests that the job never came to are written
from the dataset. So it goes some days after the batch's end, and in such a batch not before its error file.
"""

from __future__ import annotations

from sqlalchemy import func, or_, select
from sqlalchemy.orm import Session, aliased

from db import files, openai_files
from db.models import TERMINAL, Job, Upload
from db.openai_models import Batch, BatchStatus, OpenAIFile
from db.session import db_now
from db.settings import Settings

DAY = 86_400.0
ENDED = tuple(status for status in BatchStatus if status.terminal)


def remove_datasets(session: Session, settings: Settings, limit: int = 100) -> int:
    """Remove at most `limit` of them; returns how many. One that an open job reads as its input stays."""
    source, other = Job.spec["input"].as_string(), aliased(Job)
    upload_id = func.substr(source, len(files.SCHEME) + 1)
    whole = Job.rows_succeeded + Job.rows_failed == Job.num_rows
    error_file = select(OpenAIFile.id).where(OpenAIFile.id == Batch.error_file_id, openai_files.lasting())
    readers = select(other.id).where(other.status.not_in(TERMINAL), other.spec["input"].as_string() == source)
    due = (
        select(Upload.id, Upload.tenant)
        .select_from(Batch)
        .join(Job, Job.id == Batch.job_id)
        .join(Upload, Upload.id == upload_id)
        .where(Batch.status.in_(ENDED), Batch.ended_at < db_now() - settings.openai_dataset_days * DAY)
        .where(or_(whole, ~error_file.exists()), ~readers.exists())
    )
    found = session.execute(due.limit(limit)).all()
    for each, tenant in found:
        files.remove_upload(session, settings, each, tenant)
    return len(found)
