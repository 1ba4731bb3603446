"""Small makers for the worker's tests."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from sqlalchemy.orm import Session, sessionmaker

from db import datasets, jobs, uris
from db.dispatch import Wakeup
from db.models import Job
from db.session import connect, migrate, session_factory
from db.settings import Settings
from db.specs import JobSpec
from db.stores import Place
from tests.worker.fakes import build
from worker.dry_run import dry_run
from worker.merge import merge
from worker.process import Process
from worker.run import run
from worker.runner import Runner
from worker.split import split

ECHO = {"kind": "generate", "template": "{{ text }}", "columns": ["text"]}


def write_texts(path: Path, texts: Iterable[str | None], **more: object) -> Path:
    """A Parquet file with the columns id and text, in row groups of 100 rows."""
    texts = list(texts)
    table = pa.table({"id": pa.array(range(len(texts)), pa.int64()), "text": pa.array(texts, pa.string())})
    pq.write_table(table, path, row_group_size=100, **more)
    return path


def spec_of(source: Place, **values: object) -> JobSpec:
    given = {"input": str(source), "recipe": ECHO, "model": "fake", "sampling": {"max_tokens": 100}}
    return JobSpec.model_validate({**given, **values})


class Office:
    """A process without a queue: what it sends lies in `sent` until `work` does it."""

    def __init__(self, settings: Settings) -> None:
        database = connect(settings.database)
        migrate(database)
        self.sessions: sessionmaker[Session] = session_factory(database)
        self.sent: list[Wakeup] = []
        self.lying = 0  # what the broker would say
        runner = Runner(lambda name: build(name, settings))  # type: ignore[arg-type,return-value]
        self.process = Process(settings, self.sessions, runner, self.sent.append, lambda: self.lying, "office")
        self.database = database

    def submit(self, spec: JobSpec, output: Place, job_id: str = "job") -> Job:
        """The API's checks are left out, and with them the data roots of a local input."""
        remote = spec.input.startswith("s3://")
        place = uris.resolve(spec.input, self.process.settings.roots) if remote else Path(spec.input)
        dataset = datasets.inspect(place)
        num_rows = min(dataset.num_rows, spec.max_rows or dataset.num_rows)
        with self.sessions.begin() as session:
            job, _ = jobs.create(
                session,
                spec,
                tenant="default",
                job_id=job_id,
                output_uri=str(output),
                num_rows=num_rows,
                idempotency_key=None,
                input_version=dataset.version,
            )
        return job

    def work(self, until: Callable[[Wakeup], bool] = lambda wakeup: False) -> list[str]:
        """Do what is due until nothing is, or `until` says stop before a task. Returns the tasks' names."""
        done = []
        self.process.dispatch(again=True)
        while self.sent:
            if until(self.sent[0]):
                return done
            wakeup = self.sent.pop(0)
            self.do(wakeup)
            done.append(wakeup.task)
            self.process.dispatch(again=True)
        return done

    def do(self, wakeup: Wakeup) -> None:
        if wakeup.task == "split":
            split(self.process, str(wakeup.id))
        elif wakeup.task == "run":
            run(self.process)
        elif wakeup.task == "plan":
            dry_run(self.process, str(wakeup.id))
        else:
            merge(self.process, str(wakeup.id))

    def job(self, job_id: str = "job") -> Job:
        with self.sessions.begin() as session:
            return jobs.get(session, job_id, "default")

    def close(self) -> None:
        self.process.runner.close()
        self.database.dispose()
