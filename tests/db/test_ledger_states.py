"""Random sequences of every transition, on SQLite: states stay legal and numbers add up after each step."""

from __future__ import annotations

import tempfile
from functools import lru_cache
from pathlib import Path

import pytest
from hypothesis import event, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from sqlalchemy import select, update

from db import control, dispatch, jobs, phases, shards
from db.errors import JobNotCancellable
from db.models import STOPPING, Job, JobStatus, Shard, ShardStatus
from db.plans import ShardPlan
from db.progress import Progress, progress
from db.session import connect, db_now, migrate, session_factory
from db.shards import Beat, Claim, PartFile
from tests.db.ledger import SPEC

NUM_SHARDS, ROWS, MAX_ATTEMPTS, WINDOW = 2, 4, 3, 1
OPEN = (ShardStatus.PENDING, ShardStatus.RUNNING)
LATE = (JobStatus.FINALIZING, JobStatus.COMPLETED, JobStatus.COMPLETED_WITH_ERRORS)
EXPIRY = (JobStatus.EXPIRING, JobStatus.EXPIRED)
PICK = st.integers(0, 2)
STOPS = (
    *(JobStatus.CANCELLING, JobStatus.CANCELLED),
    *(JobStatus.EXPIRING, JobStatus.EXPIRED, JobStatus.FAILED),
)
BEATS = {
    JobStatus.PAUSED: Beat.PAUSE,
    JobStatus.CANCELLING: Beat.CANCEL,
    JobStatus.EXPIRING: Beat.EXPIRE,
}
# Where a job may go from each state in one transition; a step of the machine is one transition.
LEGAL = {
    JobStatus.VALIDATING: {JobStatus.RUNNING, JobStatus.PAUSED, *STOPS},
    JobStatus.RUNNING: {JobStatus.FINALIZING, JobStatus.PAUSED, *STOPS},
    JobStatus.PAUSED: {JobStatus.VALIDATING, JobStatus.RUNNING, JobStatus.FINALIZING, *STOPS},
    JobStatus.FINALIZING: {JobStatus.COMPLETED, JobStatus.COMPLETED_WITH_ERRORS, JobStatus.FAILED},
    JobStatus.CANCELLING: {JobStatus.CANCELLED, JobStatus.FAILED},
    JobStatus.EXPIRING: {JobStatus.EXPIRED, JobStatus.FAILED},
}


@lru_cache(maxsize=1)
def migrated() -> bytes:
    """An empty database, made once."""
    with tempfile.TemporaryDirectory() as folder:
        database = Path(folder) / "a.db"
        engine = connect(f"sqlite:///{database}")
        migrate(engine)
        engine.dispose()  # the last connection brings everything into the one file
        return database.read_bytes()


class Ledger(RuleBasedStateMachine):
    """One job after the other, and workers that hold claims which may be stale."""

    def __init__(self) -> None:
        super().__init__()
        self._folder = tempfile.TemporaryDirectory()
        database = Path(self._folder.name) / "a.db"
        database.write_bytes(migrated())
        self._engine = connect(f"sqlite:///{database}")
        self._sessions = session_factory(self._engine)
        self._seen: dict[str, JobStatus] = {}
        self._fences: dict[int, int] = {}
        self._claims: list[Claim] = []
        self._done: dict[int, tuple[int, int]] = {}  # shard id -> rows succeeded and failed

    def teardown(self) -> None:
        self._engine.dispose()
        self._folder.cleanup()

    def _status(self) -> JobStatus | None:
        """Of the newest job."""
        return next(reversed(self._seen.values()), None)

    @property
    def _job_id(self) -> str:
        return f"j{len(self._seen) - 1}"

    def _claim(self, pick: int) -> tuple[Claim, bool]:
        """One of the last claims, and whether it still holds its shard."""
        claim = self._claims[-1 - pick % min(len(self._claims), 3)]
        with self._sessions.begin() as session:
            query = select(Shard.fence).where(Shard.id == claim.shard_id, Shard.status == ShardStatus.RUNNING)
            return claim, session.scalar(query) == claim.fence

    @precondition(lambda self: self._status() is None or self._status().terminal)
    @rule()
    def create(self) -> None:
        job_id, num_rows = f"j{len(self._seen)}", NUM_SHARDS * ROWS
        with self._sessions.begin() as session:
            jobs.create(
                session, SPEC, tenant="default", job_id=job_id, output_uri="/o", num_rows=num_rows, idempotency_key=None
            )
        self._seen[job_id] = JobStatus.VALIDATING

    @precondition(lambda self: self._status() is JobStatus.VALIDATING)
    @rule(dies=st.booleans())
    def split(self, dies: bool) -> None:
        plans = [ShardPlan(i, "/f", i * ROWS, (i + 1) * ROWS, i * ROWS) for i in range(NUM_SHARDS)]
        with self._sessions.begin() as session:
            begun = phases.begin_split(session, self._job_id, MAX_ATTEMPTS, lease_seconds=-1 if dies else 60)
            if begun and not dies:
                assert phases.finish_split(session, begun, prepared={}, shards=plans)

    @precondition(lambda self: self._status() not in (None, JobStatus.VALIDATING))
    @rule(index=st.integers(0, NUM_SHARDS - 1))
    def claim(self, index: int) -> None:
        with self._sessions.begin() as session:
            query = select(Shard.id).where(Shard.job_id == self._job_id, Shard.index == index)
            shard_id = session.scalar(query) or 0
            claim = shards.claim(session, shard_id, owner="w", lease_seconds=60, max_attempts=MAX_ATTEMPTS)
        if claim is not None:
            assert claim.stopping in (None, self._status())
            assert self._status() in (JobStatus.RUNNING, *STOPPING)
            assert claim.fence > self._fences.get(shard_id, 0)
            assert claim.attempts <= MAX_ATTEMPTS
            self._fences[shard_id] = claim.fence
            self._claims.append(claim)

    @precondition(lambda self: self._claims)
    @rule(pick=PICK, done=st.integers(0, ROWS), failed=st.integers(0, ROWS))
    def beat(self, pick: int, done: int, failed: int) -> None:
        claim, holds = self._claim(pick)
        counts = Progress(done, min(failed, ROWS - done), 7, 3, 2)
        with self._sessions.begin() as session:
            beat = shards.beat(session, claim, lease_seconds=60, progress=counts)
        assert (beat is not Beat.LOST) == holds
        if holds:
            assert beat is BEATS.get(self._seen[claim.job_id], Beat.OK)

    @precondition(lambda self: self._claims)
    @rule(pick=PICK, failed=st.integers(0, ROWS), undone=st.integers(0, ROWS))
    def finish(self, pick: int, failed: int, undone: int) -> None:
        """A stopping job may leave rows undone."""
        claim, holds = self._claim(pick)
        done = ROWS - undone if self._seen[claim.job_id] in STOPPING else ROWS
        failed = min(failed, done)
        counts = Progress(done - failed, failed, 7, 3, 2)
        with self._sessions.begin() as session:
            ended = shards.finish(session, claim, progress=counts, part=PartFile("p", 1, "0" * 64))
        assert ended.accepted == holds
        if holds:
            self._done[claim.shard_id] = (done - failed, failed)

    @precondition(lambda self: self._claims)
    @rule(pick=PICK, how=st.sampled_from(["release", "retry", "stop"]))
    def give_back(self, pick: int, how: str) -> None:
        claim, holds = self._claim(pick)
        with self._sessions.begin() as session:
            if how == "retry":
                assert shards.retry(session, claim, code="c", message="m", max_attempts=MAX_ATTEMPTS) == holds
            elif how == "release":
                assert shards.release(session, claim) == holds
            elif self._seen[claim.job_id] not in STOPPING:
                assert not shards.cancelled(session, claim)
            else:
                shards.cancelled(session, claim)

    @precondition(lambda self: self._claims)
    @rule()
    def leases_end(self) -> None:
        with self._sessions.begin() as session:
            session.execute(update(Shard).where(Shard.status == ShardStatus.RUNNING).values(lease_until=db_now() - 1))

    @precondition(lambda self: self._seen)
    @rule(rarely=st.integers(0, 3))
    def cancel_or_fail(self, rarely: int) -> None:
        status = self._status()
        with self._sessions.begin() as session:
            if rarely == 2:
                assert jobs.fail_job(session, self._job_id, code="c", message="m") == (not status.terminal)
            if rarely == 3 and status in (*LATE, *EXPIRY, JobStatus.FAILED):
                with pytest.raises(JobNotCancellable):
                    control.cancel(session, self._job_id, "default")
            elif rarely == 3:
                control.cancel(session, self._job_id, "default")

    @precondition(lambda self: self._status() in (JobStatus.VALIDATING, JobStatus.RUNNING, JobStatus.PAUSED))
    @rule(how=st.sampled_from(["pause", "resume", "expire"]))
    def control(self, how: str) -> None:
        with self._sessions.begin() as session:
            if how == "expire":
                control.expire(session, self._job_id)
            else:
                {"pause": control.pause, "resume": control.resume}[how](session, self._job_id, "default")

    @precondition(lambda self: self._seen)
    @rule()
    def complete(self) -> None:
        with self._sessions.begin() as session:
            jobs.complete(session, self._job_id)

    @rule(lost=st.booleans())
    def sweep(self, lost: bool) -> None:
        with self._sessions.begin() as session:
            found = dispatch.due(session, window=WINDOW, redispatch_seconds=60)
            assert len(set(found)) == len(found)
            assert dispatch.due(session, window=WINDOW, redispatch_seconds=60) == []
            if lost:
                dispatch.unsent(session, found)

    @invariant()
    def all_is_well(self) -> None:
        with self._sessions.begin() as session:
            counted = progress(session, list(self._seen))
            found = list(session.scalars(select(Shard)))
            for job in session.scalars(select(Job)):
                of_job = [shard for shard in found if shard.job_id == job.id]
                self._is_legal(job, of_job)
                self._adds_up(job, of_job, counted[job.id])
        for shard in found:
            running, idle = shard.status is ShardStatus.RUNNING, shard.status is not ShardStatus.DONE
            assert running == (shard.lease_until is not None) == (shard.owner is not None)
            assert running or not idle or shard.rows_succeeded + shard.rows_failed == 0

    def _is_legal(self, job: Job, of_job: list[Shard]) -> None:
        before, now = self._seen[job.id], job.status
        assert now is before or now in LEGAL[before], f"{before} -> {now}"
        assert (job.finished_at is not None) == now.terminal
        if now.terminal or now is JobStatus.FINALIZING:
            assert not any(shard.status in OPEN for shard in of_job)
        self._seen[job.id] = now
        event(now)

    def _adds_up(self, job: Job, of_job: list[Shard], counted: Progress) -> None:
        done = [shard for shard in of_job if shard.status is ShardStatus.DONE]
        assert [(shard.rows_succeeded, shard.rows_failed) for shard in done] == [self._done[shard.id] for shard in done]
        assert job.shards_done == len(done)
        assert job.rows_succeeded == sum(shard.rows_succeeded for shard in done)
        assert job.rows_failed == sum(shard.rows_failed for shard in done)
        assert job.prompt_tokens == 7 * len(done)
        assert job.rows_succeeded + job.rows_failed <= counted.rows <= job.num_rows
        if job.status in LATE:
            assert job.rows_succeeded + job.rows_failed == job.num_rows


Ledger.TestCase.settings = settings(max_examples=20, stateful_step_count=50, deadline=None)
TestLedger = Ledger.TestCase
