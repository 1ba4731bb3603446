"""Fleet: jobs of several tenants on many workers, simulated: the ledger's own rules under a clock that runs ahead.

What is sent, which shard is taken up next and when a job begins is decided by db.dispatch, db.turns and db.phases on a
ledger in memory; a worker is its task threads and an engine that is a matter of rates (engine.simulation.shared).
Nothing fails here, and split, merge, reading and writing take no time.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from sqlalchemy import select

from db import dispatch, jobs, phases, shards
from db.accounts import Tenant
from db.dispatch import Wakeup
from db.models import Job
from db.plans import ShardPlan
from db.progress import Progress
from db.settings import Settings
from db.shards import Claim, PartFile
from db.specs import JobSpec, Summarize
from db.virtual import VirtualLedger
from worker.fleet_jobs import FleetCourse, FleetJob, JobCourse, TenantShare

FOREVER = 1e12  # a lease that outlasts everything: nobody dies here
PART = PartFile("simulated", 0, "")


class Engine(Protocol):
    """See engine.simulation.shared.SharedEngine."""

    @property
    def busy(self) -> float: ...
    @property
    def next_event(self) -> float: ...
    def add(self, key: Hashable, kind: int, rows: int) -> None: ...
    def advance(self, to: float) -> list[Hashable]: ...


@dataclass(slots=True)
class _Worker:
    name: str
    engine: Engine
    claims: dict[Hashable, Claim] = field(default_factory=dict)
    last: float = 0.0  # when it last had work


class Fleet:
    def __init__(
        self, wanted: Sequence[FleetJob], workers: int, make_engine: Callable[[], Engine], settings: Settings
    ) -> None:
        """Job names are unique; every job has rows."""
        self._settings, self._ledger = settings, VirtualLedger()
        self._wanted = {job.name: job for job in wanted}
        self._to_submit = deque(sorted(wanted, key=lambda job: job.at))
        self._workers = [_Worker(f"worker {number}", make_engine()) for number in range(workers)]
        self._idle = deque(worker for _ in range(settings.worker_threads) for worker in self._workers)  # task threads
        self._phases: deque[Wakeup] = deque()  # messages; those of shards name none, so that they are counted
        self._runs = 0
        self._due = False  # a sweep would find something, for all that is known
        self._sweep = math.inf
        self._open: Counter[str] = Counter()  # jobs, by tenant
        self._at_work: Counter[str] = Counter()  # shards, by tenant
        self._shares: dict[str, TenantShare] = {job.tenant: TenantShare() for job in wanted}
        self._contested = 0.0

    def run(self) -> FleetCourse:
        """From the first submission to the end of the last job."""
        with self._ledger.sessions.begin() as session:
            session.add_all(Tenant(name=name, roots=[], created_at=0.0) for name in self._shares)
        while (then := self._next()) < math.inf:
            self._account(then - self._ledger.now)
            self._ledger.now = then
            for worker in self._workers:
                self._ended(worker, worker.engine.advance(then))
            while self._to_submit and self._to_submit[0].at <= then:
                self._submit(self._to_submit.popleft())
            if then >= self._sweep:
                self._due = False
                self._dispatch()
            self._deliver()
            # Every worker sweeps, and an API process; a sweep while all threads are busy would change nothing.
            pause = self._settings.sweep_seconds / (len(self._workers) + 1)
            self._sweep = then + pause if self._due and self._idle else math.inf
        return self._course()

    def _next(self) -> float:
        submission = self._to_submit[0].at if self._to_submit else math.inf
        return min(submission, self._sweep, *(worker.engine.next_event for worker in self._workers))

    def _account(self, seconds: float) -> None:
        tenants, working = [name for name, count in self._open.items() if count], self._at_work.total()
        if len(tenants) < 2 or not working:
            return
        self._contested += seconds
        for name in tenants:
            self._shares[name].share += seconds * self._at_work[name] / working
            self._shares[name].equal += seconds / len(tenants)

    def _submit(self, job: FleetJob) -> None:
        spec = JobSpec(input="/simulated", recipe=Summarize(), model="simulated", priority=job.priority)
        with self._ledger.sessions.begin() as session:
            jobs.create(
                session, spec, tenant=job.tenant, job_id=job.name, output_uri=f"/{job.name}", num_rows=job.rows,
                idempotency_key=None,
            )  # fmt: skip
        self._open[job.tenant] += 1
        self._dispatch()

    def _dispatch(self) -> None:
        """As worker.process.Process.dispatch."""
        settings = self._settings
        with self._ledger.sessions.begin() as session:
            found = dispatch.due(session, window=settings.shard_window, redispatch_seconds=settings.redispatch_seconds)
        self._due = self._due or bool(found)
        self._phases.extend(each for each in found if each.task != "run")
        self._runs += sum(each.task == "run" for each in found)

    def _deliver(self) -> None:
        """Messages to idle threads: splits and merges first, which take no time."""
        while self._idle and (self._phases or self._runs):
            if self._phases:
                self._phase(self._phases.popleft())
            elif not self._take(self._idle[0]):
                self._runs = 0  # nor would the next message find a shard
            else:
                self._runs -= 1
                self._idle.popleft()

    def _phase(self, wakeup: Wakeup) -> None:
        """As worker.split and worker.merge; after a merge, it is the sweep that finds what it made due."""
        assert isinstance(wakeup.id, str)
        job, settings = self._wanted[wakeup.id], self._settings
        self._due = True
        with self._ledger.sessions.begin() as session:
            if wakeup.task == "split":
                begun = phases.begin_split(session, job.name, settings.max_attempts)
                if begun is not None:
                    phases.finish_split(session, begun, prepared={}, shards=_plans(job))
            elif phases.begin_merge(session, job.name, settings.max_attempts) is not None:
                jobs.complete(session, job.name)
                self._open[job.tenant] -= 1
        if wakeup.task == "split":
            self._dispatch()

    def _take(self, worker: _Worker) -> bool:
        """As worker.run."""
        sessions, most = self._ledger.sessions, self._settings.max_attempts
        claim = shards.take(sessions, owner=worker.name, lease_seconds=FOREVER, max_attempts=most)
        if claim is None:
            return False
        worker.engine.add(claim.shard_id, self._wanted[claim.job_id].kind, claim.num_rows)
        worker.claims[claim.shard_id] = claim
        self._at_work[claim.tenant] += 1
        return True

    def _ended(self, worker: _Worker, keys: list[Hashable]) -> None:
        for key in keys:
            claim = worker.claims.pop(key)
            with self._ledger.sessions.begin() as session:
                shards.finish(session, claim, progress=Progress(claim.num_rows), part=PART)
            self._at_work[claim.tenant] -= 1
            self._idle.append(worker)
            worker.last = self._ledger.now
            self._dispatch()

    def _course(self) -> FleetCourse:
        began = min(job.at for job in self._wanted.values())
        with self._ledger.sessions.begin() as session:
            rows = session.scalars(select(Job)).all()
            found = [self._job_course(job) for job in sorted(rows, key=lambda job: job.created_at)]
        end = max(job.ended for job in found)
        for share in self._shares.values():
            share.share, share.equal = (part / max(self._contested, 1e-9) for part in (share.share, share.equal))
        seconds = max(end - began, 1e-9)
        return FleetCourse(
            seconds=seconds,
            rows_per_second=sum(job.rows for job in found) / seconds,
            jobs=found,
            tenants=self._shares,
            contested_seconds=self._contested,
            utilisation=[worker.engine.busy / seconds for worker in self._workers],
            tail_seconds=max(end - max(min(worker.last for worker in self._workers), began), 0.0),
        )

    def _job_course(self, job: Job) -> JobCourse:
        assert job.running_at is not None, "every job has been at work"
        assert job.finished_at is not None, "and has ended"
        began, ended = (self._ledger.seconds(time) for time in (job.running_at, job.finished_at))
        rate = job.num_rows / max(ended - began, 1e-9)
        at = self._wanted[job.id].at
        return JobCourse(job.id, job.tenant, job.num_rows, job.priority, at, began, ended, rate)


def _plans(job: FleetJob) -> Iterator[ShardPlan]:
    for index, start in enumerate(range(0, job.rows, job.shard_rows)):
        yield ShardPlan(index, "/simulated", start, min(start + job.shard_rows, job.rows), start)
