"""Examples: a few of the answers that a plan has computed."""

from __future__ import annotations

from collections.abc import Mapping

from db.plan_results import PlanExample
from worker.rows import Result

EXAMPLES = 3
EXAMPLE_CHARACTERS = 2000


def examples_of(results: Mapping[int, Result]) -> list[PlanExample]:
    """The first, the middle and the last row of the sample."""
    order = sorted(results)
    places = sorted({place * (len(order) - 1) // (EXAMPLES - 1) for place in range(EXAMPLES)}) if order else []
    found = []
    for index in (order[place] for place in places):
        result = results[index]
        output = result.values.get("output")
        found.append(
            PlanExample(
                row=index,
                output=None if output is None else str(output)[:EXAMPLE_CHARACTERS],
                finish_reason=result.finish_reason,
                error=None if result.error is None else f"{result.error[0]}: {result.error[1]}",
            )
        )
    return found
