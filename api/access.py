"""Routes of who may do what: keys, tenants, and the audit log. For admins; across tenants for the operator alone.

Folders of tenants are not given here but on the server's own command line: a stolen key must not open new ones.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from api.access_schemas import (
    AuditPage,
    AuditView,
    KeyCreated,
    KeyList,
    KeyRequest,
    KeyView,
    TenantChange,
    TenantList,
    TenantRequest,
    TenantView,
)
from api.auth import Caller, Forbidden
from api.deps import AdminDep, Before, OperatorAdminDep, ServicesDep
from db import audit, keys, tenants

router = APIRouter(prefix="/v1", tags=["access"])
OfTenant = Annotated[str | None, Query(description="Of this tenant alone; another than one's own, for the operator.")]


@router.post("/keys", status_code=201)
def create_key(request: KeyRequest, services: ServicesDep, caller: AdminDep) -> KeyCreated:
    """Make a key of the caller's tenant, or, for the operator, of any. The answer is the only place that shows it."""
    tenant = _tenant(caller, request.tenant) or caller.tenant
    with services.sessions.begin() as session:
        made = keys.create(
            session, tenant, role=request.role, name=request.name, expires_seconds=request.expires_seconds
        )
        audit.record(session, caller.actor, "key.create", made.key.id, tenant=tenant, role=request.role.value)
    return KeyCreated(key=KeyView.of(made.key), secret=made.secret)


@router.get("/keys")
def list_keys(services: ServicesDep, caller: AdminDep, tenant: OfTenant = None) -> KeyList:
    """Keys of the caller's tenant, revoked ones included; for the operator of all, or of the named one."""
    with services.sessions.begin() as session:
        return KeyList(keys=[KeyView.of(key) for key in keys.listing(session, _tenant(caller, tenant))])


@router.post("/keys/{key_id}/revoke")
def revoke_key(key_id: str, services: ServicesDep, caller: AdminDep) -> KeyView:
    """End a key: the next request with it is refused. Again is fine."""
    with services.sessions.begin() as session:
        key = keys.revoke(session, key_id, _tenant(caller, None))
        audit.record(session, caller.actor, "key.revoke", key_id)
        return KeyView.of(key)


@router.post("/tenants", status_code=201)
def create_tenant(request: TenantRequest, services: ServicesDep, caller: OperatorAdminDep) -> TenantView:
    """Add a tenant with a folder of its own under the home."""
    changes = tenants.Changes(request.model_dump(exclude={"name"}, exclude_unset=True))
    with services.sessions.begin() as session:
        tenant = tenants.create(session, services.settings, request.name, changes)
        audit.record(session, caller.actor, "tenant.create", tenant.name, **changes.given)
        return TenantView.of(tenant)


@router.get("/tenants")
def list_tenants(services: ServicesDep, caller: OperatorAdminDep) -> TenantList:
    """All tenants, by name."""
    with services.sessions.begin() as session:
        return TenantList(tenants=[TenantView.of(tenant) for tenant in tenants.listing(session)])


@router.patch("/tenants/{name}")
def change_tenant(name: str, request: TenantChange, services: ServicesDep, caller: OperatorAdminDep) -> TenantView:
    """Set what the request names, null for no limit. The keys of a disabled tenant are refused; its jobs go on."""
    changes = tenants.Changes(request.model_dump(exclude_unset=True))
    with services.sessions.begin() as session:
        tenant = tenants.change(session, services.settings, name, changes)
        audit.record(session, caller.actor, "tenant.change", tenant.name, **changes.given)
        return TenantView.of(tenant)


@router.get("/audit")
def audit_log(
    services: ServicesDep,
    caller: AdminDep,
    tenant: OfTenant = None,
    limit: Annotated[int, Query(ge=1, le=1000, description="Most entries of a page.")] = 100,
    before: Before = None,
) -> AuditPage:
    """Who did what, newest first: in the caller's tenant; for the operator in all, or in the named one."""
    with services.sessions.begin() as session:
        found = audit.listing(session, _tenant(caller, tenant), limit=limit + 1, before=before)
        entries = [AuditView.of(entry) for entry in found[:limit]]
    return AuditPage(entries=entries, next=entries[-1].id if len(found) > limit else None)


def _tenant(caller: Caller, named: str | None) -> str | None:
    """The tenant that a request is about; None: all. Raises Forbidden for another than the caller's own."""
    if caller.operator:
        return named
    if named not in (None, caller.tenant):
        raise Forbidden(caller.role, "a key of the tenant 'default'")
    return caller.tenant
