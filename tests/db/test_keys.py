"""API keys in the ledger: never kept as they are, found by what a client sends, of one tenant."""

from __future__ import annotations

import pytest
from sqlalchemy import text

from db import keys
from db.accounts import Role, Tenant
from db.errors import InvalidKey, KeyNotFound, TenantNotFound
from db.session import db_now
from tests.db.ledger import Sessions


def test_a_key_is_shown_once_and_kept_as_its_digest(sessions: Sessions) -> None:
    with sessions.begin() as session:
        made = keys.create(session, "default", role=Role.SUBMIT, name="nightly")
    assert keys.SECRET.fullmatch(made.secret)
    assert (made.key.prefix, made.key.digest) == (made.secret[:11], keys.digest(made.secret))
    with sessions.begin() as session:
        row = session.execute(text("SELECT * FROM api_keys")).one()
        assert not any(made.secret in str(value) for value in row)
        found = keys.find(session, made.secret)
        assert found is not None
        assert (found.id, found.tenant, found.role) == (made.key.id, "default", Role.SUBMIT)
        assert keys.find(session, keys.MARK + "A" * 43) is None
        assert keys.find(session, made.secret + "\0") is None
        assert found.used_at is None  # as it was found
        session.refresh(found)
        assert found.used_at is not None


def test_keys_of_two_calls_differ(sessions: Sessions) -> None:
    with sessions.begin() as session:
        made = [keys.create(session, "default", role=Role.READ, name="n") for _ in range(3)]
        assert len({new.secret for new in made}) == len({new.key.id for new in made}) == 3
        assert {key.id for key in keys.listing(session, "default")} == {new.key.id for new in made}


def test_a_key_is_revoked_by_its_tenant_or_the_operator(sessions: Sessions) -> None:
    with sessions.begin() as session:
        session.add(Tenant(name="acme", roots=[], created_at=db_now()))
        session.flush()
        made = keys.create(session, "acme", role=Role.READ, name="n")
        with pytest.raises(KeyNotFound):
            keys.revoke(session, made.key.id, "default")
        with pytest.raises(KeyNotFound):
            keys.revoke(session, "key_none", None)
        first = keys.revoke(session, made.key.id, "acme").revoked_at
        assert first is not None
        assert keys.revoke(session, made.key.id, None).revoked_at == first
        assert keys.find(session, made.secret) is None
        assert [key.id for key in keys.listing(session, None)] == [made.key.id]
        assert keys.listing(session, "default") == []


@pytest.mark.parametrize("name", ["", "n" * 256, "a\nb", "a\0b"])
def test_a_key_without_a_usable_name_is_refused(sessions: Sessions, name: str) -> None:
    with sessions.begin() as session, pytest.raises(InvalidKey, match="name"):
        keys.create(session, "default", role=Role.READ, name=name)


def test_a_key_of_no_tenant_is_refused(sessions: Sessions) -> None:
    with sessions.begin() as session, pytest.raises(TenantNotFound, match="nobody"):
        keys.create(session, "nobody", role=Role.READ, name="n")
