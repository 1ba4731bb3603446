"""Who looks at the dashboard: an API key in a cookie, and a token in every form that no other site can know."""

from __future__ import annotations

import hmac
import secrets
from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request, Response

from api.auth import Caller, Forbidden, Unauthenticated, authenticate
from api.deps import ServicesDep
from api.middleware import is_foreign
from db.accounts import Role

KEY_COOKIE, FORM_COOKIE, FORM_FIELD = "nightmill_key", "nightmill_form", "form_token"


class SignInNeeded(Exception):
    """Sent to the sign-in page."""


class ForeignForm(Exception):
    """A form that this dashboard did not show."""

    def __init__(self) -> None:
        super().__init__("the form was not sent from a page of this dashboard; load the page again and repeat")


@dataclass(frozen=True, slots=True)
class Viewer:
    """The caller, and the token that the forms of this browser carry. `writes`: the key may do more than look."""

    caller: Caller
    form_token: str

    @property
    def writes(self) -> bool:
        return self.caller.role.allows(Role.SUBMIT)

    def need_submit(self) -> None:
        """Raises Forbidden."""
        if not self.writes:
            raise Forbidden(self.caller.role, f"{Role.SUBMIT.value!r}")


def _viewer(request: Request, services: ServicesDep) -> Viewer:
    key = request.cookies.get(KEY_COOKIE, "")
    try:
        address = "" if request.client is None else request.client.host
        caller = authenticate(services.settings, services.sessions, f"Bearer {key}", address)
    except Unauthenticated:
        raise SignInNeeded from None
    return Viewer(caller, request.cookies.get(FORM_COOKIE) or secrets.token_urlsafe(24))


ViewerDep = Annotated[Viewer, Depends(_viewer)]


def keep(request: Request, response: Response, name: str, value: str) -> None:
    """A cookie that no script reads and no other site sends."""
    secure = request.url.scheme == "https"
    response.set_cookie(name, value, httponly=True, samesite="strict", secure=secure, path="/")


def check_form(request: Request, token: object) -> None:
    """Raises ForeignForm unless the form was shown to this very browser, by this very site."""
    check_origin(request)
    kept = request.cookies.get(FORM_COOKIE, "")
    if not (kept and isinstance(token, str) and hmac.compare_digest(kept.encode(), token.encode())):
        raise ForeignForm


def check_origin(request: Request) -> None:
    """Raises ForeignForm for what a browser sends on behalf of another site."""
    if is_foreign(request.headers):
        raise ForeignForm
