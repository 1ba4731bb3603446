"""Commands about who may do what: keys, tenants, audit. They work on the ledger itself, without a running service.

Whoever may run them on the server may do everything anyway, and the first key must come from somewhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from sqlalchemy.orm import Session

from api.access_schemas import AuditView, KeyCreated, KeyList, KeyView, TenantList, TenantView
from api.cli.friendly import EPILOG, Json, answer, console, friendly, out, print_json
from db import audit, keys, s3_uris, tenants
from db.accounts import DEFAULT, Role, Tenant
from db.audit import Actor
from db.session import connect, migrate, session_factory
from db.settings import Settings

keys_app = typer.Typer(help="API keys.", no_args_is_help=True)
tenants_app = typer.Typer(help="Tenants: their folders and quotas.", no_args_is_help=True)
app = typer.Typer()
DAY = 86_400.0

Roots = Annotated[
    list[str] | None,
    typer.Option("--root", help="Folder or s3://bucket/prefix for its datasets; again for each further one."),
]
Rows = Annotated[int | None, typer.Option(min=-1, help="Most rows of its open jobs; -1: no limit.")]
Tokens = Annotated[int | None, typer.Option(min=-1, help="Most tokens of its open jobs, as estimated; -1: no limit.")]
Jobs = Annotated[int | None, typer.Option(min=-1, help="Most of its jobs that run at once; -1: no limit.")]
Name = Annotated[str, typer.Argument(help="Name of the tenant.")]
OfTenant = Annotated[str | None, typer.Option(help="Only of this tenant.")]


@contextmanager
def _ledger() -> Iterator[tuple[Session, Settings]]:
    """One transaction on the database that the settings name, brought up to date before."""
    settings = Settings()
    database = connect(settings.database)
    try:
        migrate(database)
        with session_factory(database).begin() as session:
            yield session, settings
    finally:
        database.dispose()


def _here(tenant: str) -> Actor:
    return Actor(tenant, None, "command line")


@keys_app.command("create", epilog=EPILOG)
@friendly
def create_key(
    name: Annotated[str, typer.Argument(help="What the key is for, in words.")],
    role: Annotated[Role, typer.Option(help="What it may do.")] = Role.SUBMIT,
    tenant: Annotated[str, typer.Option(help="Whose key it is.")] = DEFAULT,
    days: Annotated[float | None, typer.Option(min=0, help="Days until it expires; default: never.")] = None,
    json: Json = False,
) -> None:
    """Make a key and print it. It is shown this once: only its hash is kept."""
    with _ledger() as (session, _):
        expires = None if days is None else days * DAY
        made = keys.create(session, tenant, role=role, name=name, expires_seconds=expires)
        audit.record(session, _here(tenant), "key.create", made.key.id, tenant=tenant, role=role.value)
    console.print(f"{made.key.id}: {role} of tenant {tenant}; send it as: Authorization: Bearer …", highlight=False)
    answer(json, KeyCreated(key=KeyView.of(made.key), secret=made.secret), made.secret)


@keys_app.command("list", epilog=EPILOG)
@friendly
def list_keys(tenant: OfTenant = None, json: Json = False) -> None:
    """List the keys, revoked and expired ones included."""
    with _ledger() as (session, _):
        found = keys.listing(session, tenant)
    if json:
        print_json(KeyList(keys=[KeyView.of(key) for key in found]))
        return
    table = Table("key", "begins with", "tenant", "role", "name", "made", "last used", "ends")
    for key in found:
        ends = "revoked" if key.revoked_at is not None else _day(key.expires_at)
        made, used = _day(key.created_at), _day(key.used_at)
        table.add_row(key.id, key.prefix, key.tenant, key.role.value, key.name, made, used, ends)
    out.print(table)


@keys_app.command("revoke", epilog=EPILOG)
@friendly
def revoke_key(key_id: Annotated[str, typer.Argument(help="Id of the key: key_….")], json: Json = False) -> None:
    """End a key: the next request with it is refused."""
    with _ledger() as (session, _):
        key = keys.revoke(session, key_id, None)
        audit.record(session, _here(key.tenant), "key.revoke", key_id)
    console.print(f"{key_id} is revoked", highlight=False)
    if json:
        print_json(KeyView.of(key))


@tenants_app.command("create", epilog=EPILOG)
@friendly
def create_tenant(
    name: Name, root: Roots = None, rows: Rows = None, tokens: Tokens = None, jobs: Jobs = None, json: Json = False
) -> None:
    """Add a tenant. Besides the folders given here it has one of its own under the home."""
    changes = _changes(root, rows, tokens, jobs)
    with _ledger() as (session, settings):
        made = tenants.create(session, settings, name, changes)
        audit.record(session, _here(name), "tenant.create", name, **changes.given)
    console.print(f"tenant {name} is there; make it a key: nightmill keys create --tenant {name} …", highlight=False)
    if json:
        print_json(TenantView.of(made))


@tenants_app.command("set", epilog=EPILOG)
@friendly
def set_tenant(
    name: Name, root: Roots = None, rows: Rows = None, tokens: Tokens = None, jobs: Jobs = None, json: Json = False
) -> None:
    """Change folders and quotas; what is not given stays. Folders given here replace the earlier ones."""
    _change(name, _changes(root, rows, tokens, jobs), json)


@tenants_app.command("disable", epilog=EPILOG)
@friendly
def disable_tenant(name: Name, json: Json = False) -> None:
    """Refuse its keys from the next request on. Its jobs go on."""
    _change(name, tenants.Changes({"disabled": True}), json)


@tenants_app.command("enable", epilog=EPILOG)
@friendly
def enable_tenant(name: Name, json: Json = False) -> None:
    """Let its keys in again."""
    _change(name, tenants.Changes({"disabled": False}), json)


@tenants_app.command("list", epilog=EPILOG)
@friendly
def list_tenants(json: Json = False) -> None:
    """List the tenants with their folders and quotas."""
    table = Table("tenant", "rows", "tokens", "running jobs", "folders", "")
    with _ledger() as (session, settings):
        found = tenants.listing(session)
        for tenant in found:
            folders = tenants.folders(session, settings, tenant.name)
            limits = ("-" if limit is None else f"{limit:,}" for limit in _limits(tenant))
            state = "" if tenant.disabled_at is None else "disabled"
            table.add_row(tenant.name, *limits, "\n".join(map(str, folders.roots)), state)
    if json:
        print_json(TenantList(tenants=[TenantView.of(tenant) for tenant in found]))
    else:
        out.print(table)


@app.command("audit", epilog=EPILOG)
@friendly
def audit_log(
    tenant: OfTenant = None,
    limit: Annotated[int, typer.Option(min=1, help="Most entries to show.")] = 50,
    json: Json = False,
) -> None:
    """Show who did what to which object, when, with which key and from which address; newest first."""
    with _ledger() as (session, _):
        found = audit.listing(session, tenant, limit=limit)
    if json:
        print_json({"entries": [AuditView.of(entry) for entry in found]})
        return
    table = Table("when (UTC)", "tenant", "key", "address", "action", "object", "details")
    for entry in found:
        when = datetime.fromtimestamp(entry.at, tz=UTC).strftime("%Y-%m-%d %H:%M:%S")
        details = " ".join(f"{name}={value}" for name, value in entry.details.items())
        who = (entry.tenant, entry.key_id or "-", entry.address)
        table.add_row(when, *who, entry.action, entry.thing, details)
    out.print(table)


def _change(name: str, changes: tenants.Changes, json: bool) -> None:
    with _ledger() as (session, settings):
        changed = tenants.change(session, settings, name, changes)
        audit.record(session, _here(name), "tenant.change", name, **changes.given)
    console.print(f"tenant {name} is changed", highlight=False)
    if json:
        print_json(TenantView.of(changed))


def _changes(roots: list[str] | None, rows: int | None, tokens: int | None, jobs: int | None) -> tenants.Changes:
    given: dict[str, Any] = {"max_queued_rows": rows, "max_queued_tokens": tokens, "max_running_jobs": jobs}
    given = {name: None if value == -1 else value for name, value in given.items() if value is not None}
    return tenants.Changes(given | ({"roots": list(map(_absolute, roots))} if roots else {}))


def _absolute(root: str) -> str:
    return root if s3_uris.is_s3(root) else str(Path(root).absolute())


def _limits(tenant: Tenant) -> tuple[int | None, ...]:
    return tenant.max_queued_rows, tenant.max_queued_tokens, tenant.max_running_jobs


def _day(seconds: float | None) -> str:
    return "-" if seconds is None else datetime.fromtimestamp(seconds, tz=UTC).strftime("%Y-%m-%d")
