"""PlanView: a plan as a client sees it."""

from __future__ import annotations

from datetime import datetime

from pydantic import Field

from api.schemas import JobError, View, as_time
from db.dry_runs import DryRun, DryRunStatus
from db.plan_results import Limit, PlanResult
from db.specs import JobSpec

SAMPLE_ROWS = 64
LIMITS: dict[Limit, str] = {
    "weights": "loading the weights: more sequences at once would cost little",
    "kv_memory": "keys and values: reading them, or having no room for more",
    "prefill_compute": "computing prompts",
    "decode_compute": "computing answers",
    "host": "the work beside the model",
}


class PlanView(View):
    """A plan that is being made, or is there. It is forgotten a week after its end."""

    id: str
    status: DryRunStatus
    model: str
    recipe: str
    rows: int = Field(description="Of the job.")
    sample_rows: int = Field(description="To be computed, at most.")
    rows_done: int = Field(description="Of these, so far.")
    created_at: datetime
    finished_at: datetime | None
    error: JobError | None
    result: PlanResult | None

    @classmethod
    def of(cls, run: DryRun) -> PlanView:
        spec = JobSpec.model_validate(run.spec)
        error = JobError(code=run.error_code or "", message=run.error_message or "")
        return cls(
            id=run.id,
            status=run.status,
            model=spec.model,
            recipe=spec.recipe.kind,
            rows=run.num_rows,
            sample_rows=run.sample_rows,
            rows_done=run.rows_done,
            created_at=as_time(run.created_at),
            finished_at=None if run.finished_at is None else as_time(run.finished_at),
            error=error if run.status is DryRunStatus.FAILED else None,
            result=None if run.result is None else PlanResult.model_validate(run.result),
        )
