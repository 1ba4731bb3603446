"""The life of jobs and shards as a state machine: any order of transitions, by holders of leases and by zombies.

Whoever held a lease once may write again at any time, as a process does that was frozen or cut off. What the ledger
says is compared after every step with the rules of docs/architecture.md; at the end all that is open must be able to
end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from sqlalchemy import delete, select, update

from db import control, dispatch, jobs, phases, shards, turns
from db.errors import JobNotCancellable, WrongState
from db.models import STOPPING, Job, JobStatus, Shard, ShardStatus
from db.plans import ShardPlan
from db.progress import Progress
from db.shards import Beat, Claim, PartFile
from tests.db.ledger import SPEC, Sessions
from tests.db.rules import check_job

WINDOW, ATTEMPTS, LEASE, TENANT = 2, 3, 3600.0, "default"
BEATS = {JobStatus.PAUSED: Beat.PAUSE, JobStatus.CANCELLING: Beat.CANCEL, JobStatus.EXPIRING: Beat.EXPIRE}
Snapshot = dict[str, Any]


def columns(row: Any) -> Snapshot:
    return {column.name: getattr(row, column.name) for column in row.__table__.columns}


@dataclass(frozen=True)
class Phase:
    """A split or merge that was begun once, and the job as it was then."""

    kind: str
    job: Job


class Life(RuleBasedStateMachine):
    def __init__(self, sessions: Sessions) -> None:
        super().__init__()
        self.sessions = sessions
        with sessions.begin() as session:
            session.execute(delete(Shard))
            session.execute(delete(Job))
        self.claims: list[Claim] = []  # all that were ever given
        self.phases: list[Phase] = []
        self.job_ids: list[str] = []
        self.given: set[tuple[int, int]] = set()  # shard and fence of every lease
        self.seen: dict[str, JobStatus] = {}
        self.ended: dict[str, Snapshot] = {}
        self.done: dict[int, Snapshot] = {}

    # -- looking -----------------------------------------------------------------------------------------------------

    def shard(self, shard_id: int) -> Snapshot:
        with self.sessions.begin() as session:
            return columns(session.get_one(Shard, shard_id))

    def job(self, job_id: str) -> Job:
        with self.sessions.begin() as session:
            return jobs.get(session, job_id, TENANT)

    def holds(self, claim: Claim) -> bool:
        now = self.shard(claim.shard_id)
        return (now["fence"], now["status"]) == (claim.fence, ShardStatus.RUNNING)

    def leads(self, phase: Phase) -> bool:
        now = self.job(phase.job.id)
        return now.fence == phase.job.fence and now.lease_until is not None

    # -- a job and its phases ----------------------------------------------------------------------------------------

    @precondition(lambda self: len(self.job_ids) < 3)
    @rule(num_shards=st.integers(1, 3), priority=st.integers(0, 2), split=st.sampled_from([True, True, False]))
    def create(self, num_shards: int, priority: int, split: bool) -> None:
        job_id = f"j{len(self.job_ids)}"
        spec = SPEC.model_copy(update={"priority": priority})
        with self.sessions.begin() as session:
            given = {"tenant": TENANT, "num_rows": 3 * num_shards, "idempotency_key": job_id}
            for name, expected in ((job_id, True), ("other", False)):  # the second time under the same key
                made, created = jobs.create(session, spec, job_id=name, output_uri=f"/{name}", **given)
                assert (made.id, created) == (job_id, expected)
        self.job_ids.append(job_id)
        if split:  # at once, so that most steps are about shards
            with self.sessions.begin() as session:
                begun = phases.begin_split(session, job_id, ATTEMPTS)
                assert begun is not None
                assert self._end_phase(session, Phase("split", begun), "finish")
                dispatch.due(session, window=WINDOW, redispatch_seconds=60.0)

    @precondition(lambda self: self.job_ids)
    @rule(data=st.data(), kind=st.sampled_from(["split", "merge"]))
    def begin_phase(self, data: st.DataObject, kind: str) -> None:
        job_id = data.draw(st.sampled_from(self.job_ids))
        before = self.job(job_id)
        begin = phases.begin_split if kind == "split" else phases.begin_merge
        with self.sessions.begin() as session:
            job = begin(session, job_id, ATTEMPTS, lease_seconds=LEASE)
        if job is not None:
            assert before.lease_until is None or before.lease_until < job.lease_until - LEASE / 2, "two hold one phase"
            assert job.fence == before.fence + 1
            self.phases.append(Phase(kind, job))

    @precondition(lambda self: self.phases)
    @rule(data=st.data(), how=st.sampled_from(["finish", "finish", "retry", "give_back", "beat", "fail"]))
    def end_phase(self, data: st.DataObject, how: str) -> None:
        phase = data.draw(st.sampled_from(self.phases))
        leads, before = self.leads(phase), columns(self.job(phase.job.id))
        with self.sessions.begin() as session:
            accepted = self._end_phase(session, phase, how)
        if phase.kind == "merge" and how == "finish":
            return  # jobs.complete asks the state, not the fence: the first manifest stays, whoever published it
        assert accepted == leads, (how, before)
        if not leads:
            assert columns(self.job(phase.job.id)) == before, "a zombie changed the job"

    def _end_phase(self, session: Any, phase: Phase, how: str) -> bool:
        if how == "retry":
            return phases.retry(session, phase.job, code="x", message="x", max_attempts=ATTEMPTS, pause=-1.0)
        if how == "give_back":
            return phases.give_back(session, phase.job)
        if how == "beat":
            return phases.beat(session, phase.job, lease_seconds=LEASE)
        if how == "fail":
            return phases.fail(session, phase.job, code="x", message="x")
        if phase.kind == "merge":
            return jobs.complete(session, phase.job.id) is not None
        plans = [ShardPlan(i, "/in", 3 * i, 3 * i + 3, 3 * i) for i in range(phase.job.num_rows // 3)]
        return phases.finish_split(session, phase.job, prepared={}, shards=plans)

    @precondition(lambda self: self.job_ids)
    @rule(data=st.data(), what=st.sampled_from(["cancel", "pause", "resume", "expire"]))
    def control(self, data: st.DataObject, what: str) -> None:
        job_id = data.draw(st.sampled_from(self.job_ids))
        before = self.job(job_id).status
        try:
            with self.sessions.begin() as session:
                if what == "expire":
                    control.expire(session, job_id)
                else:
                    getattr(control, what)(session, job_id, TENANT)
        except (JobNotCancellable, WrongState):
            assert before not in control.ALIVE

    # -- shards ------------------------------------------------------------------------------------------------------

    @rule(lost=st.booleans())
    def sweep(self, lost: bool) -> None:
        with self.sessions.begin() as session:
            before = {job_id: self._sent(session, job_id) for job_id in self.job_ids}
            found = dispatch.due(session, window=WINDOW, redispatch_seconds=60.0)
            assert dispatch.due(session, window=WINDOW, redispatch_seconds=60.0) == []
            if lost:
                dispatch.unsent(session, found)
            for job_id in self.job_ids:
                assert self._sent(session, job_id) <= max(WINDOW, before[job_id])

    def _sent(self, session: Any, job_id: str) -> int:
        return int(session.scalar(select(dispatch._num_sent(job_id))) or 0)

    @rule(owner=st.sampled_from("ab"))
    def claim(self, owner: str) -> None:
        with self.sessions.begin() as session:
            shard_id = turns.choose(session)
            if shard_id is None:
                return
            before = session.get_one(Shard, shard_id)
            assert before.lease_until is None or before.lease_until == 1.0, "a live lease was taken away"
            claim = shards.claim(session, shard_id, owner=owner, lease_seconds=LEASE, max_attempts=ATTEMPTS)
        if claim is not None:
            assert (claim.shard_id, claim.fence) not in self.given, "one lease was given twice"
            self.given.add((claim.shard_id, claim.fence))
            self.claims.append(claim)

    @precondition(lambda self: self.claims)
    @rule(data=st.data(), how=st.sampled_from(["finish", "finish", "beat", "release", "retry", "got_on", "cancelled"]))
    def write(self, data: st.DataObject, how: str) -> None:
        """By a holder or by a zombie. Refused for the latter, whatever it is, and without a trace."""
        claim = data.draw(st.sampled_from(self.claims[-4:]))
        holds, before, job = self.holds(claim), self.shard(claim.shard_id), self.job(claim.job_id)
        failed = data.draw(st.integers(0, 3))
        with self.sessions.begin() as session:
            accepted = self._write(session, claim, how, failed)
        may = holds and (how != "cancelled" or job.status in STOPPING)
        assert accepted == may or (how == "cancelled" and may), (how, before)
        if not may:
            assert self.shard(claim.shard_id) == before, "a zombie changed the shard"

    def _write(self, session: Any, claim: Claim, how: str, failed: int) -> bool:
        progress = Progress(claim.num_rows - failed, failed, 10, 4, 2)
        if how == "finish":
            part = PartFile(f"part-{claim.index}-{claim.fence}", 1, "a" * 64)
            return shards.finish(session, claim, progress=progress, part=part).accepted
        if how == "beat":
            beat = shards.beat(session, claim, lease_seconds=LEASE, progress=progress)
            status = session.get_one(Job, claim.job_id).status
            assert beat is Beat.LOST or beat is BEATS.get(status, Beat.OK)
            return beat is not Beat.LOST
        if how == "retry":
            return shards.retry(session, claim, code="x", message="x", max_attempts=ATTEMPTS)
        if how == "got_on":
            return shards.got_on(session, claim, claim.marks + 1) is not None
        return shards.release(session, claim) if how == "release" else shards.cancelled(session, claim)

    @precondition(lambda self: self.claims or self.phases)
    @rule(data=st.data())
    def lose_lease(self, data: st.DataObject) -> None:
        """Its holder is dead, frozen or cut off; whichever, the lease is over."""
        ids = sorted({claim.shard_id for claim in self.claims if self.holds(claim)})
        with self.sessions.begin() as session:
            if ids:
                shard_id = data.draw(st.sampled_from(ids))
                over = update(Shard).where(Shard.id == shard_id, Shard.status == ShardStatus.RUNNING)
                session.execute(over.values(lease_until=1.0, dispatched_at=0.5))
            session.execute(update(Job).where(Job.lease_until.is_not(None)).values(lease_until=1.0, dispatched_at=0.0))

    # -- what always holds -------------------------------------------------------------------------------------------

    @invariant()
    def rules_hold(self) -> None:
        with self.sessions.begin() as session:
            for job in session.scalars(select(Job)):
                owned = list(session.scalars(select(Shard).where(Shard.job_id == job.id).order_by(Shard.index)))
                check_job(job, owned, self.seen.get(job.id, job.status))
                self.seen[job.id] = job.status
                if job.id in self.ended:
                    assert columns(job) == self.ended[job.id], "a job changed after its end"
                if job.status.terminal:
                    self.ended[job.id] = columns(job)
                for shard in owned:
                    if shard.id in self.done:
                        assert columns(shard) == self.done[shard.id], "a shard was done twice"
                    if shard.status is ShardStatus.DONE:
                        self.done[shard.id] = columns(shard)

    def teardown(self) -> None:
        """A worker that lives and makes no mistake brings every job to its end: nothing can be stuck."""
        if self.claims or self.phases:
            with self.sessions.begin() as session:
                session.execute(update(Shard).where(Shard.status == ShardStatus.RUNNING).values(lease_until=1.0))
                session.execute(update(Job).where(Job.lease_until.is_not(None)).values(lease_until=1.0))
        for job_id in self.job_ids:
            if self.job(job_id).status is JobStatus.PAUSED:
                with self.sessions.begin() as session:
                    control.resume(session, job_id, TENANT)
        self.rules_hold()
        for _ in range(100):
            if all(self.job(job_id).status.terminal for job_id in self.job_ids):
                return
            self._work()
        raise AssertionError(f"stuck: {[self.job(job_id).status for job_id in self.job_ids]}")

    def _work(self) -> None:
        with self.sessions.begin() as session:
            found = dispatch.due(session, window=WINDOW, redispatch_seconds=-1.0)
        for wakeup in found:
            with self.sessions.begin() as session:
                self._do(session, wakeup)
            self.rules_hold()

    def _do(self, session: Any, wakeup: dispatch.Wakeup) -> None:
        if wakeup.task == "run":
            shard_id = turns.choose(session)
            claim = shard_id and shards.claim(session, shard_id, owner="c", lease_seconds=LEASE, max_attempts=99)
            if claim:
                self._write(session, claim, "finish", 0)
            return
        begin = phases.begin_split if wakeup.task == "split" else phases.begin_merge
        job = begin(session, str(wakeup.id), 99)
        if job:
            self._end_phase(session, Phase(wakeup.task, job), "finish")
