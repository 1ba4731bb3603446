"""What the ledger and the datasets raise on purpose. Every error carries the wrong value and a stable code."""

from __future__ import annotations


class DomainError(Exception):
    """Any error that a client or an operator can act on."""

    code = "error"


class JobNotFound(DomainError):
    code = "job_not_found"

    def __init__(self, job_id: str) -> None:
        super().__init__(f"there is no job {job_id!r}")
        self.job_id = job_id


class PlanNotFound(DomainError):
    code = "plan_not_found"

    def __init__(self, plan_id: str) -> None:
        super().__init__(f"there is no plan {plan_id!r}")
        self.plan_id = plan_id


class IdempotencyConflict(DomainError):
    """The idempotency key was used before, for another specification."""

    code = "idempotency_conflict"

    def __init__(self, key: str) -> None:
        super().__init__(f"idempotency key {key!r} was used before for another job specification")
        self.key = key


class JobNotCancellable(DomainError):
    """The job is past the point where a cancel could change anything."""

    code = "job_not_cancellable"

    def __init__(self, job_id: str, status: str) -> None:
        super().__init__(f"job {job_id!r} is {status}: it can no longer be cancelled")
        self.job_id = job_id
        self.status = status


class WrongState(DomainError):
    """What is asked for cannot be done to the job in the state that it is in."""

    code = "wrong_state"

    def __init__(self, job_id: str, status: str, wanted: str) -> None:
        super().__init__(f"job {job_id!r} is {status}: it cannot be {wanted}")
        self.job_id = job_id
        self.status = status


class NothingToRetry(DomainError):
    code = "nothing_to_retry"

    def __init__(self, job_id: str) -> None:
        super().__init__(f"job {job_id!r} has no failed row that is written: there is nothing to try again")
        self.job_id = job_id


class InvalidJob(DomainError):
    """A field of the specification cannot be what it says."""

    code = "invalid_job"

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"{field}: {reason}")
        self.field = field
        self.reason = reason


class ScheduleNotFound(DomainError):
    code = "schedule_not_found"

    def __init__(self, name: str) -> None:
        super().__init__(f"there is no schedule {name!r}")
        self.name = name


class ScheduleExists(DomainError):
    code = "schedule_exists"

    def __init__(self, name: str) -> None:
        super().__init__(f"there is a schedule {name!r} already; delete it, or choose another name")
        self.name = name


class InvalidSchedule(DomainError):
    """A field of a schedule, or of what is asked of one, cannot be what it says."""

    code = "invalid_schedule"

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"{field}: {reason}")
        self.field = field
        self.reason = reason


class DatasetRefused(DomainError):
    """A dataset URI is malformed, of another scheme, outside the data roots, or names nothing usable."""

    code = "dataset_refused"

    def __init__(self, uri: str, reason: str) -> None:
        super().__init__(f"{uri!r} {reason}")
        self.uri = uri
        self.reason = reason


class InvalidDataset(DomainError):
    """A dataset's files, schema or bytes are not what a job can read.

    `code` says which: invalid_parquet (the footer), corrupt_data (bytes found broken while reading), changed (the file
    is not the one that was checked), not_a_file, not_a_folder (one that cannot be listed), empty_folder, nested_folder,
    file_name, duplicate_column, schema_mismatch, partition_mismatch, partition_conflict, no_column, wrong_type,
    ledger_missing (a schedule's earlier run has no list of its rows). `row` counts from 0 within the file.
    """

    def __init__(self, code: str, file: str, reason: str, column: str | None = None, row: int | None = None) -> None:
        super().__init__(f"{file}: {reason}")
        self.code = code
        self.file = file
        self.reason = reason
        self.column = column
        self.row = row


class UploadNotFound(DomainError):
    code = "upload_not_found"

    def __init__(self, upload_id: str) -> None:
        super().__init__(f"there is no upload {upload_id!r}")
        self.upload_id = upload_id


class UploadTooLarge(DomainError):
    code = "upload_too_large"

    def __init__(self, filename: str, limit: int) -> None:
        super().__init__(f"{filename}: more than the {limit:,} bytes that an upload may have")
        self.filename = filename
        self.limit = limit


class ModelMissing(DomainError):
    """The named model is not on this machine, or is not a model."""

    code = "model_missing"

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"model {name!r}: {reason}")
        self.name = name
        self.reason = reason


class LinkUnsupported(DomainError):
    """The file system cannot make hard links, so that no writer could be the first one for certain."""

    code = "link_unsupported"

    def __init__(self, folder: str, reason: str) -> None:
        super().__init__(f"{folder}: this file system has no hard links ({reason}); choose another output folder")
        self.folder = folder
        self.reason = reason


class TenantNotFound(DomainError):
    code = "tenant_not_found"

    def __init__(self, name: str) -> None:
        super().__init__(f"there is no tenant {name!r}")
        self.name = name


class KeyNotFound(DomainError):
    code = "key_not_found"

    def __init__(self, key_id: str) -> None:
        super().__init__(f"there is no key {key_id!r}")
        self.key_id = key_id


class InvalidTenant(DomainError):
    """A property of a tenant cannot be what it says."""

    code = "invalid_tenant"

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"{field}: {reason}")
        self.field = field
        self.reason = reason


class QuotaExceeded(DomainError):
    """The tenant's open jobs and this one together are more than it may have waiting, or running."""

    code = "quota_exceeded"

    def __init__(self, what: str, queued: int, added: int, limit: int) -> None:
        both = f"this job's {added:,} {what} and the {queued:,} that wait already"
        if what == "jobs":
            both = f"this job and the {queued:,} that run already"
        super().__init__(
            f"{both} are more than the tenant's quota of {limit:,}; wait until jobs have ended, or ask the operator"
        )
        self.what = what
        self.limit = limit


class RateExceeded(DomainError):
    """The key submits too often. `seconds` from now it may again."""

    code = "rate_exceeded"

    def __init__(self, per_minute: int, seconds: int) -> None:
        super().__init__(f"a key may submit {per_minute} times a minute; try again in {seconds} s")
        self.per_minute = per_minute
        self.seconds = seconds


class InvalidKey(DomainError):
    """A property of a key to be made cannot be what it says."""

    code = "invalid_key"

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"{field}: {reason}")
        self.field = field
        self.reason = reason


class WebhookNotFound(DomainError):
    code = "webhook_not_found"

    def __init__(self, webhook_id: str) -> None:
        super().__init__(f"there is no webhook {webhook_id!r}")
        self.webhook_id = webhook_id


class InvalidWebhook(DomainError):
    """An address or an event that no webhook can have."""

    code = "invalid_webhook"

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"{field}: {reason}")
        self.field = field
        self.reason = reason
