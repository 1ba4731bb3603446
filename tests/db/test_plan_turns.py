"""Whose plans are made next: no tenant's wait for all of another's."""

from __future__ import annotations

from db import dispatch, dry_runs
from db.accounts import Tenant
from db.session import db_now
from tests.db.ledger import SPEC, Sessions


def add(sessions: Sessions, tenant: str, count: int) -> list[str]:
    ids = []
    for _ in range(count):
        with sessions.begin() as session:
            if session.get(Tenant, tenant) is None:
                session.add(Tenant(name=tenant, roots=[], created_at=db_now()))
                session.flush()
            run = dry_runs.create(session, SPEC, tenant=tenant, num_rows=10, input_version="v", sample_rows=8)
            ids.append(run.id)
    return ids


def sent(sessions: Sessions) -> set[str | int]:
    with sessions.begin() as session:
        return {wakeup.id for wakeup in dispatch.due(session, window=4, redispatch_seconds=60)}


def end(sessions: Sessions, plan_id: str | int) -> None:
    with sessions.begin() as session:
        run = dry_runs.begin(session, str(plan_id), 3, lease_seconds=60)
        assert run is not None
        assert dry_runs.finish(session, run, {}, rows_done=8)


def test_a_tenant_with_one_plan_does_not_wait_for_anothers_many(sessions: Sessions) -> None:
    many, (single,) = add(sessions, "acme", 5), add(sessions, "bolt", 1)
    assert sent(sessions) == {many[0], single}
    end(sessions, single)
    assert sent(sessions) == {many[1]}
    (later,) = add(sessions, "bolt", 1)
    end(sessions, many[0])
    assert sent(sessions) == {later}  # acme has one at work
    end(sessions, many[1])
    end(sessions, later)
    assert sent(sessions) == {many[2], many[3]}


def test_two_tenants_with_many_plans_do_not_keep_a_third_one_waiting(sessions: Sessions) -> None:
    for tenant in ("acme", "bolt"):
        add(sessions, tenant, 20)
    (single,) = add(sessions, "coil", 1)
    for _ in range(19):  # each time two of the three are taken
        found = sent(sessions)
        if single in found:
            return
        for plan_id in found:
            end(sessions, plan_id)
    raise AssertionError("never sent")
