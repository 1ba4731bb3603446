"""Files, uploads and batches as clients see them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from db.models import Job, JobStatus
from db.openai_models import Batch, BatchStatus, OpenAIFile, OpenAIUpload
from db.progress import Progress

# What a batch is while its job is so. A job that has ended is settled first: its files are counted.
STATUSES = {
    JobStatus.VALIDATING: "validating",
    JobStatus.RUNNING: "in_progress",
    JobStatus.PAUSED: "in_progress",
    JobStatus.CANCELLING: "cancelling",
    JobStatus.CANCELLED: "cancelling",
}


def seconds(time: float | None) -> int | None:
    return None if time is None else int(time)


def page(items: Sequence[dict[str, Any]], limit: int) -> dict[str, Any]:
    """A list of one page; `items` has one more than the limit where there is another page."""
    shown = items[:limit]
    return {
        "object": "list",
        "data": shown,
        "first_id": shown[0]["id"] if shown else None,
        "last_id": shown[-1]["id"] if shown else None,
        "has_more": len(items) > limit,
    }


def file(row: OpenAIFile) -> dict[str, Any]:
    return {
        "id": row.id,
        "object": "file",
        "bytes": row.num_bytes,
        "created_at": int(row.created_at),
        "expires_at": seconds(row.expires_at),
        "filename": row.filename,
        "purpose": row.purpose,
        "status": "processed",
        "status_details": None,
    }


def upload(row: OpenAIUpload, made: OpenAIFile | None = None) -> dict[str, Any]:
    return {
        "id": row.id,
        "object": "upload",
        "bytes": row.num_bytes,
        "created_at": int(row.created_at),
        "filename": row.filename,
        "purpose": row.purpose,
        "status": row.status,
        "expires_at": int(row.expires_at),
        "file": None if made is None else file(made),
    }


def batch(row: Batch, job: Job | None, progress: Progress) -> dict[str, Any]:
    """`progress` is the job's, nothing without one."""
    status = _status(row, job)
    ended = {name: int(row.ended_at) if row.ended_at and row.status == name else None for name in _ENDINGS}
    total = job.num_rows if job is not None and status != "validating" else 0
    over = BatchStatus(row.status).terminal and job is not None
    failed = total - progress.rows_succeeded if over else progress.rows_failed
    return {
        "id": row.id,
        "object": "batch",
        "endpoint": row.endpoint,
        "model": row.model,
        "errors": row.errors,
        "input_file_id": row.input_file_id,
        "completion_window": row.completion_window,
        "status": status,
        "output_file_id": row.output_file_id if row.output_lines else None,
        "error_file_id": row.error_file_id if row.error_lines else None,
        "created_at": int(row.created_at),
        "in_progress_at": None if job is None else seconds(job.running_at),
        "expires_at": int(row.expires_at),
        "finalizing_at": seconds(row.finalizing_at),
        "completed_at": ended["completed"],
        "failed_at": ended["failed"],
        "expired_at": ended["expired"],
        "cancelling_at": seconds(row.cancelling_at),
        "cancelled_at": ended["cancelled"],
        "request_counts": {"total": total, "completed": progress.rows_succeeded, "failed": failed},
        "usage": _usage(progress),
        "metadata": row.labels,
        "nightmill": {
            "job_id": row.job_id,
            "job_status": None if job is None else job.status.value,
            "partial_output_file_id": row.output_file_id,
            "partial_error_file_id": row.error_file_id,
        },
    }


_ENDINGS = ("completed", "failed", "expired", "cancelled")


def _status(row: Batch, job: Job | None) -> str:
    if row.status != BatchStatus.RUNNING or job is None:
        return row.status
    if job.status is JobStatus.FAILED:  # not settled yet
        return "validating" if job.running_at is None else "in_progress"
    return STATUSES.get(job.status, "finalizing")


def _usage(progress: Progress) -> dict[str, Any]:
    return {
        "input_tokens": progress.prompt_tokens,
        "input_tokens_details": {"cached_tokens": progress.cached_tokens},
        "output_tokens": progress.output_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": progress.prompt_tokens + progress.output_tokens,
    }
