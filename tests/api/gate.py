"""The API with keys, and what callers of several tenants ask of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
from fastapi.testclient import TestClient

from api.deps import Services
from db import keys
from db.accounts import Role, Tenant
from db.session import db_now
from tests.api.ledger import summarize, write

MISSING = "job_000000000000000000000000"

ROUTES = [
    ("GET", "/v1/jobs"),
    ("POST", "/v1/jobs"),
    ("GET", f"/v1/jobs/{MISSING}"),
    ("POST", f"/v1/jobs/{MISSING}/cancel"),
    ("POST", f"/v1/jobs/{MISSING}/pause"),
    ("POST", f"/v1/jobs/{MISSING}/resume"),
    ("POST", f"/v1/jobs/{MISSING}/retry"),
    ("GET", f"/v1/jobs/{MISSING}/results"),
    ("GET", f"/v1/jobs/{MISSING}/results/_SUCCESS"),
    ("GET", "/v1/plans/plan_000000000000000000000000"),
    ("POST", "/v1/uploads"),
    ("GET", "/v1/models"),
    ("GET", "/v1/workers"),
    ("GET", "/metrics"),
    ("GET", "/v1/keys"),
    ("POST", "/v1/keys"),
    ("POST", "/v1/keys/key_1/revoke"),
    ("GET", "/v1/tenants"),
    ("POST", "/v1/tenants"),
    ("PATCH", "/v1/tenants/acme"),
    ("GET", "/v1/audit"),
]


class Gate:
    """The API with keys, and a key of each role of the tenants acme and bolt and of the default one."""

    def __init__(self, http: TestClient, services: Services, folder: Path) -> None:
        self.http, self.services, self.folder = http, services, folder
        self.sessions = sessions = services.sessions
        self.per_minute = services.settings.submissions_per_minute
        self.secrets: dict[str, str] = {}
        for tenant in ("acme", "bolt", "default"):
            (folder / tenant).mkdir(parents=True)
            with sessions.begin() as session:
                if tenant != "default":
                    session.add(Tenant(name=tenant, roots=[str(folder / tenant)], created_at=db_now()))
                    session.flush()
                for role in Role:
                    made = keys.create(session, tenant, role=role, name="test")
                    self.secrets[f"{tenant} {role}"] = made.secret

    def call(self, who: str | None, method: str, path: str, **more: Any) -> httpx.Response:
        headers = more.pop("headers", {})
        if who is not None:
            headers["Authorization"] = f"Bearer {self.secrets[who]}"
        return self.http.request(method, path, headers=headers, **more)

    def submit(self, who: str, **more: Any) -> dict[str, Any]:
        path = self.folder / who.split()[0] / "in.parquet"
        answer = self.call(who, "POST", "/v1/jobs", json=summarize(path if path.exists() else write(path, 3), **more))
        assert answer.status_code == 202, answer.text
        job: dict[str, Any] = answer.json()
        return job
