"""What a route of the OpenAI face may ask for beside api.deps: whose files and batches it is about, and the keeper."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Request

from api.deps import CallerDep, SubmissionDep, SubmitterDep
from api.openai.keeper import Keeper


def _tenant(caller: CallerDep) -> str:
    return caller.tenant


def _submitting(caller: SubmitterDep) -> str:
    return caller.tenant


def _counted(caller: SubmissionDep) -> str:
    return caller.tenant


def _keeper(request: Request) -> Keeper:
    keeper: Keeper = request.app.state.keeper
    return keeper


# The caller's tenant: to look at what it has, to change something there, and to make what the key's rate bounds.
TenantDep = Annotated[str, Depends(_tenant)]
SubmittingDep = Annotated[str, Depends(_submitting)]
CountedDep = Annotated[str, Depends(_counted)]
KeeperDep = Annotated[Keeper, Depends(_keeper)]
