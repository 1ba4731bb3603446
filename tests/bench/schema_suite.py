"""The JSON Schema test suite (1,257 cases of draft 2020-12) through the engine's grammars.

    python -m tests.bench.schema_suite

An instance is given in canonical form: whole numbers without a fraction, properties in the schema's order.
Exits 1 when an invalid instance is accepted, or a schema is refused without naming a keyword. Prints the share of valid
instances accepted among those of schemas that can be enforced last.
"""

from __future__ import annotations

import sys

from rich.console import Console
from rich.table import Table

from tests.engine.grammar.languages import grammars
from tests.engine.grammar.suite import judge


def main() -> int:
    verdicts = judge(grammars())
    console = Console()
    table = Table("keyword named in the refusal", "cases")
    for keyword, count in verdicts.refused.most_common():
        table.add_row(keyword, str(count))
    console.print(table)
    accepted, rejected = verdicts.accepted, verdicts.rejected
    console.print(f"cases of {len(verdicts.refused_schemas)} refused schemas: {sum(verdicts.refused.values())}")
    console.print(f"valid: {accepted[True]} accepted, {rejected[True]} rejected")
    console.print(f"invalid: {accepted[False]} accepted, {rejected[False]} rejected")
    for case in verdicts.wrong:
        console.print(f"accepted though invalid: {case}")
    share = accepted[True] / (accepted[True] + rejected[True])
    print(f"invalid instances accepted: {accepted[False]}; share of valid ones accepted: {share:.3f}")
    return int(accepted[False] > 0 or "" in verdicts.refused)


if __name__ == "__main__":
    sys.exit(main())
