"""What is true of a job and its shards after every transition, whichever it was."""

from __future__ import annotations

from db import jobs
from db.models import Job, JobStatus, Shard, ShardStatus
from db.progress import Progress

STOPS = frozenset({JobStatus.CANCELLING, JobStatus.CANCELLED, JobStatus.EXPIRING, JobStatus.EXPIRED, JobStatus.FAILED})
# Where a job may go from each state in one transition; a step of the machine is one transition.
LEGAL = {
    JobStatus.VALIDATING: {JobStatus.RUNNING, JobStatus.PAUSED} | STOPS,
    JobStatus.RUNNING: {JobStatus.FINALIZING, JobStatus.PAUSED} | STOPS,
    JobStatus.PAUSED: {JobStatus.VALIDATING, JobStatus.RUNNING, JobStatus.FINALIZING} | STOPS,
    JobStatus.FINALIZING: {JobStatus.COMPLETED, JobStatus.COMPLETED_WITH_ERRORS, JobStatus.FAILED},
    JobStatus.CANCELLING: {JobStatus.CANCELLED, JobStatus.FAILED},
    JobStatus.EXPIRING: {JobStatus.EXPIRED, JobStatus.FAILED},
}


def check_job(job: Job, owned: list[Shard], before: JobStatus) -> None:
    """`owned`: the job's shards. `before`: its status one transition ago."""
    assert job.status is before or job.status in LEGAL[before], f"{before} -> {job.status}"
    done = [shard for shard in owned if shard.status is ShardStatus.DONE]
    open_ = [shard for shard in owned if shard.status in jobs.OPEN_SHARD]
    for name in Progress().as_columns():
        assert getattr(job, name) == sum(getattr(shard, name) for shard in done), f"{name} does not add up"
    assert job.shards_done == len(done)
    assert job.rows_succeeded + job.rows_failed <= job.num_rows
    assert job.num_shards is None or job.num_shards == len(owned)
    for shard in owned:
        assert (shard.owner is not None) == (shard.status is ShardStatus.RUNNING) == (shard.lease_until is not None)
        assert (shard.part is not None) == (shard.status is ShardStatus.DONE)
    if job.status.terminal or job.status is JobStatus.FINALIZING:
        assert not open_, f"{job.status} with open shards"
    if job.status in (JobStatus.FINALIZING, JobStatus.COMPLETED, JobStatus.COMPLETED_WITH_ERRORS):
        assert job.rows_succeeded + job.rows_failed == job.num_rows
    assert (job.finished_at is not None) == job.status.terminal
