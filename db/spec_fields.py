"""What specifications are made of: frozen models that refuse unknown fields, names, and texts."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Name = Annotated[str, Field(min_length=1, max_length=512)]
Text = Annotated[str, Field(max_length=100_000)]


class Spec(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")
