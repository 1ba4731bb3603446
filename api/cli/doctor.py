"""`nightmill doctor`: what this machine has, what the engine makes of it, and what to do where something is wrong."""

from __future__ import annotations

import typer

from api.cli.friendly import EPILOG, Json, friendly, out, print_json
from api.cli.run import Exit
from db.settings import Settings

app = typer.Typer()
STYLES = {"ok": "green", "warning": "bold yellow", "error": "bold red"}


@app.command(epilog=EPILOG)
@friendly
def doctor(json: Json = False) -> None:
    """Check processor, compiler, memory, disk, model, database, broker and GPU; exit with 4 if jobs cannot run."""
    from api.checks import State, checks  # Imported where used: a fifth of the other commands' start.

    found = []
    for check in checks(Settings()):
        found.append(check)
        if not json:
            out.print(f"{check.state.value:8}", style=STYLES[check.state], end="")
            out.print(f"{check.name:12} {check.found}", markup=False, highlight=False, soft_wrap=True)
            if check.advice:
                out.print(f"{'':8}{'':12} -> {check.advice}", markup=False, highlight=False, soft_wrap=True)
    healthy = all(check.state is not State.ERROR for check in found)
    if json:
        print_json({"healthy": healthy, "checks": [check._asdict() for check in found]})
    raise typer.Exit(Exit.OK if healthy else Exit.UNAVAILABLE)
