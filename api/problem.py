"""Problem: what an error response says."""

from __future__ import annotations

from pydantic import Field

from api.schemas import View


class FieldProblem(View):
    field: str
    message: str


class Problem(View):
    """RFC 9457 problem details. `code` is stable and made for programs; `field` names what in the request was wrong."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str
    code: str
    field: str | None = None
    errors: list[FieldProblem] = Field(default=[])
    uri: str | None = None
    file: str | None = None
    column: str | None = None
    row: int | None = None
