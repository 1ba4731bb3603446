"""Quotas: how much of a tenant may wait and run at once. Those of waiting rows and tokens are checked at submission;
that of running jobs is kept by db.dispatch, which lets jobs wait, and checked where one that was begun is resumed.

Tokens are estimated from what is known then, without reading a row. The prompt: the size, before compression, of the
columns that the recipe reads, which the footers tell, and the recipe's own words in every row, at four bytes a token,
as English takes with the tokenizers of today. The answer: `max_tokens`, or else ANSWER_TOKENS; for a label, one; with
`multi_label` both answers about each label, which the engine computes behind one prompt. Request bodies say each for
itself how much they ask for, so these are read (db.body_tokens).
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Float, and_, cast, func, or_, select
from sqlalchemy.orm import Session

from db.accounts import Tenant
from db.body_tokens import ANSWER_TOKENS, of_rows
from db.columns import read_columns
from db.datasets import Dataset
from db.errors import QuotaExceeded
from db.footers import open_parquet
from db.models import TERMINAL, Job, JobStatus
from db.specs import JobSpec, Label, OpenAI
from db.stores import Place
from db.turns import WORKING

BYTES_PER_TOKEN = 4
VERDICT_TOKENS = 3  # behind a label: a colon, and then yes and no
RUNNING = (*WORKING, JobStatus.FINALIZING)  # what counts against a quota of running jobs
MOST_TOKENS = 2**62  # a `max_tokens` may be any number, a column not


def estimate_tokens(spec: JobSpec, dataset: Dataset, num_rows: int, answer_tokens: int | None = None) -> int:
    """Prompt and answer tokens of the first `num_rows` rows. `answer_tokens`: of request bodies, if counted already.

    Raises as db.body_tokens.of_rows.
    """
    if num_rows == 0:
        return 0
    read = sum(_column_bytes(file.path, read_columns(spec)) for file in dataset.files)
    words = len(spec.recipe.model_dump_json(exclude_defaults=True))
    prompt = (read / dataset.num_rows + words) / BYTES_PER_TOKEN
    match spec.recipe:
        case OpenAI() as recipe:
            answers = of_rows(recipe, dataset, num_rows) if answer_tokens is None else answer_tokens
        case Label(multi_label=True, labels=labels):
            # The prompt is computed once, however many labels are asked about behind it (engine.choices).
            each = sum(len(label.encode()) / BYTES_PER_TOKEN + VERDICT_TOKENS for label in labels)
            answers = round(each * num_rows)
        case Label():
            answers = num_rows
        case _:
            answers = (spec.sampling.max_tokens or ANSWER_TOKENS) * num_rows
    return min(round(prompt * num_rows) + answers, MOST_TOKENS)


def _column_bytes(path: Place, names: Sequence[str]) -> int:
    """Encoded size of the columns before compression. A dictionary counts once, so repeated texts count less."""
    with open_parquet(path) as source:
        metadata = source.parquet.metadata
        groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
        chunks = [group.column(i) for group in groups for i in range(group.num_columns)]
        return sum(max(0, c.total_uncompressed_size) for c in chunks if c.path_in_schema.split(".")[0] in names)


def check(session: Session, tenant: str, num_rows: int, num_tokens: int) -> None:
    """Hold the tenant until the transaction ends, so that two submissions are counted one after the other.

    Raises QuotaExceeded.
    """
    row = hold(session, tenant)
    if row is None or (row.max_queued_rows is None and row.max_queued_tokens is None):
        return
    rows, tokens = _queued(session, tenant)
    for what, queued, added, limit in (
        ("rows", rows, num_rows, row.max_queued_rows),
        ("tokens", tokens, num_tokens, row.max_queued_tokens),
    ):
        if limit is not None and queued + added > limit:
            raise QuotaExceeded(what, queued, added, limit)


def check_running(session: Session, tenant: str) -> None:
    """Hold the tenant as `check` does, and see whether one more of its jobs may run. Raises QuotaExceeded."""
    row = hold(session, tenant)
    if row is None or row.max_running_jobs is None:
        return
    running = num_running(session, tenant)
    if running >= row.max_running_jobs:
        raise QuotaExceeded("jobs", running, 1, row.max_running_jobs)


def num_running(session: Session, tenant: str) -> int:
    """Jobs of a tenant that run, or may begin at any moment as their split was sent."""
    begun = and_(Job.status == JobStatus.VALIDATING, Job.dispatched_at > 0.0)
    running = and_(Job.tenant == tenant, or_(Job.status.in_(RUNNING), begun))
    return session.scalar(select(func.count()).select_from(Job).where(running)) or 0


def hold(session: Session, tenant: str) -> Tenant | None:
    """The tenant, nobody else's until the transaction ends: what it has is counted by one at a time."""
    query = select(Tenant).where(Tenant.name == tenant).with_for_update(key_share=True)
    return session.scalar(query, execution_options={"populate_existing": True})


def _queued(session: Session, tenant: str) -> tuple[int, int]:
    """Rows of the open jobs that are in no finished part yet, and their share of the estimated tokens."""
    left = Job.num_rows - Job.rows_succeeded - Job.rows_failed
    share = cast(Job.num_tokens, Float) * left / func.nullif(Job.num_rows, 0)
    query = select(func.sum(left), func.sum(share)).where(Job.tenant == tenant, Job.status.not_in(TERMINAL))
    rows, tokens = session.execute(query).one()
    return int(rows or 0), round(tokens or 0)
