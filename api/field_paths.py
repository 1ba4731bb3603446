"""From where pydantic found a mistake to the field as a client spells it."""

from __future__ import annotations

from collections.abc import Sequence

SOURCES = ("body", "query", "path", "header")


def field_path(location: Sequence[str | int]) -> str:
    """`recipe.labels`, `recipe.format.pattern`, `sampling.top_p`.

    Without where the value stood (body, query, …) and without what pydantic says about a value that may be of several
    types: the kind behind `recipe`, the type behind `recipe.format`, and the names of plain types at the end.
    """
    parts = [str(part) for part in location]
    if parts[0] in SOURCES and len(parts) > 1:
        del parts[0]
    at = 1 if parts[0] == "job" and len(parts) > 1 else 0  # the job of a schedule
    if parts[at] == "recipe":
        del parts[at + 1 : at + 2]
    if parts[at : at + 2] == ["recipe", "format"]:
        del parts[at + 2 : at + 3]
    if parts[-1] == "constrained-str" or parts[-1].startswith("tuple["):
        del parts[-1]
    return ".".join(parts)
