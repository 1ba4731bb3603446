"""From a specification to a job that can run: what the input's footers and the output's place tell, and nothing more.

What only the worker can know (tokenizer, chat template, model) is checked there, before the first row runs.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from sqlalchemy.orm import Session

from db import columns, datasets, files, jobs, model_files, quotas, uris
from db.errors import InvalidJob
from db.models import Job
from db.settings import Settings
from db.specs import JobSpec
from db.stores import Place, S3Path, store_of
from db.stores.places import contains
from db.tenants import Folders

Naming = Callable[[str], AbstractContextManager[None]]


@dataclass(frozen=True, slots=True)
class Plan:
    """What a valid job needs besides its specification. `num_rows` is after max_rows."""

    output: Place
    num_rows: int
    input_version: str
    num_tokens: int = 0  # an estimate, where the tenant has a quota of them

    def create(
        self,
        session: Session,
        spec: JobSpec,
        *,
        tenant: str,
        job_id: str,
        key: str | None = None,
        retry_of: str | None = None,
    ) -> tuple[Job, bool]:
        """Insert the job that was planned. See db.jobs.create."""
        return jobs.create(
            session,
            spec,
            tenant=tenant,
            job_id=job_id,
            output_uri=str(self.output),
            num_rows=self.num_rows,
            idempotency_key=key,
            num_tokens=self.num_tokens,
            retry_of=retry_of,
            input_version=self.input_version,
        )


def unnamed(field: str) -> AbstractContextManager[None]:
    return nullcontext()


def plan(
    spec: JobSpec,
    job_id: str,
    folders: Folders,
    settings: Settings,
    naming: Naming = unnamed,
    answer_tokens: int | None = None,
) -> Plan:
    """Check the input's footers against the specification, and the output's place. `folders` are the tenant's.

    `naming(field)` is entered around what checks that field of the job. `answer_tokens`: see quotas.estimate_tokens.
    Raises DatasetRefused, UploadNotFound, InvalidDataset and InvalidJob.
    """
    if model_files.is_path(spec.model):
        with naming("model"):
            # A worker opens models under the service's own roots alone, so a tenant's must be among them.
            mine = [root for root in folders.roots if root in settings.roots]
            model_files.check_place(spec.model, settings, mine)
    with naming("input"):
        source = files.resolve_input(spec.input, folders)
        dataset = datasets.inspect(source)
    for field, check in columns.input_checks(spec):
        with naming(field):
            check(dataset)
    columns.output_schema(spec, dataset.schema)
    num_rows = min(dataset.num_rows, spec.max_rows or dataset.num_rows)
    if num_rows > settings.max_job_rows:
        raise InvalidJob("input", f"{num_rows} rows are more than this server's limit of {settings.max_job_rows}")
    num_tokens = 0
    if folders.counts_tokens:
        with naming("input"):
            num_tokens = quotas.estimate_tokens(spec, dataset, num_rows, answer_tokens)
    return Plan(_output(spec, job_id, source, folders, naming), num_rows, dataset.version, num_tokens)


def _output(spec: JobSpec, job_id: str, source: Place, folders: Folders, naming: Naming) -> Place:
    if spec.output is None:
        return folders.data / job_id
    with naming("output"):
        output = uris.resolve_output(spec.output, folders.roots)
        folder = datasets.base_of(source)
        if contains(folder, output):
            raise InvalidJob("output", f"{output} lies inside the input folder {folder}")
        if isinstance(output, S3Path):  # which may turn out to be a store that no job can write to safely
            store_of(output).prepare(output)
    return output
