"""Commands about webhooks: who is told when a job or a batch has ended."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.table import Table

from api.cli import serving
from api.cli.friendly import EPILOG, Json, Url, answer, friendly, out, print_json
from db.settings import Settings

app = typer.Typer(help="Addresses that are told when a job or a batch has ended.", no_args_is_help=True)


@app.command(epilog=EPILOG)
@friendly
def create(
    target: Annotated[str, typer.Argument(metavar="URL", help="Where events are sent, by https.")],
    event: Annotated[list[str] | None, typer.Option(help="Type of event, any number of times; none: all.")] = None,
    json: Json = False,
    url: Url = None,
) -> None:
    """Register an address, and print its secret. It is told this once."""
    with serving.connected(Settings(), url) as client:
        made = client.create_webhook(target, event or [])
    answer(json, made, f"{made.id} {made.secret}")


@app.command("list", epilog=EPILOG)
@friendly
def listing(json: Json = False, url: Url = None) -> None:
    """Show the registered addresses."""
    with serving.connected(Settings(), url) as client:
        found = client.webhooks()
    if json:
        print_json(found)
        return
    table = Table("webhook", "address", "events", "enabled")
    for each in found.webhooks:
        table.add_row(each.id, each.url, ", ".join(each.events) or "all", "yes" if each.enabled else "no")
    out.print(table)


@app.command(epilog=EPILOG)
@friendly
def delete(webhook_id: Annotated[str, typer.Argument(metavar="WEBHOOK")], json: Json = False, url: Url = None) -> None:
    """Forget an address."""
    with serving.connected(Settings(), url) as client:
        client.delete_webhook(webhook_id)
    if json:
        print_json({"deleted": webhook_id})


@app.command(epilog=EPILOG)
@friendly
def deliveries(
    webhook_id: Annotated[str, typer.Argument(metavar="WEBHOOK")], json: Json = False, url: Url = None
) -> None:
    """Show how the latest events were delivered."""
    with serving.connected(Settings(), url) as client:
        found = client.webhook_deliveries(webhook_id)
    if json:
        print_json(found)
        return
    table = Table("event", "type", "about", "status", "attempts", "answer", "error")
    for each in found.deliveries:
        answer = "" if each.response_status is None else str(each.response_status)
        table.add_row(
            each.event_id, each.type, each.object_id, each.status, str(each.attempts), answer, each.error or ""
        )
    out.print(table)
