"""Plans: what a job will take, asked before it is submitted. Made by POST /v1/jobs?dry_run=true, read here."""

from __future__ import annotations

import secrets

from fastapi import APIRouter

from api import submission
from api.auth import Caller
from api.deps import CallerDep, Services, ServicesDep
from api.plan_views import PlanView
from db import audit, dry_runs, quotas, tenants
from db.specs import JobSpec

router = APIRouter(prefix="/v1/plans", tags=["jobs"])


@router.get("/{plan_id}")
def read_plan(plan_id: str, services: ServicesDep, caller: CallerDep) -> PlanView:
    """A plan: how far it is, and once its status is `done` what the job will take; `failed` has an error."""
    with services.sessions.begin() as session:
        return PlanView.of(dry_runs.get(session, plan_id, caller.tenant))


def make(spec: JobSpec, sample_rows: int, services: Services, caller: Caller) -> PlanView:
    """Check a job as its submission would, and write it down for a worker to plan. Raises what the submission does."""
    with services.sessions.begin() as session:
        folders = tenants.folders(session, services.settings, caller.tenant)
    checked = submission.plan(spec, f"job_{secrets.token_hex(12)}", folders, services.settings)
    rows = min(sample_rows, checked.num_rows)
    tokens = checked.num_tokens * rows // max(checked.num_rows, 1)
    with services.sessions.begin() as session:
        quotas.check(session, caller.tenant, rows, tokens)
        run = dry_runs.create(
            session,
            spec,
            tenant=caller.tenant,
            num_rows=checked.num_rows,
            input_version=checked.input_version,
            sample_rows=sample_rows,
        )
        audit.record(session, caller.actor, "plan.create", run.id, rows=run.num_rows)
        view = PlanView.of(run)
    services.sweeper.nudge()
    return view
