"""What a route of the OpenAI face may ask for beside api.deps: whose files and batches it is about, and the keeper."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Request

from api.deps import CallerDep
from api.openai.keeper import Keeper


def _tenant(caller: CallerDep) -> str:
    return caller.tenant


def _keeper(request: Request) -> Keeper:
    keeper: Keeper = request.app.state.keeper
    return keeper


# The caller's tenant, to look at what it has.
TenantDep = Annotated[str, Depends(_tenant)]
KeeperDep = Annotated[Keeper, Depends(_keeper)]
