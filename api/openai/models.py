"""/v1/models for OpenAI clients. The list itself is api.system's: one answer has both spellings."""

from __future__ import annotations

from fastapi import APIRouter

from api.deps import CallerDep, ServicesDep
from api.openai.errors import OpenAIRoute, not_found
from api.system import models as list_models
from api.system_views import OpenAIModel

router = APIRouter(prefix="/v1/models", tags=["openai"], route_class=OpenAIRoute)


@router.get("/{model:path}")
def read(model: str, services: ServicesDep, caller: CallerDep) -> OpenAIModel:
    """One of the models that the list has."""
    found = next((each for each in list_models(services, caller).data if each.id == model), None)
    if found is None:
        raise not_found("model", model)
    return found
