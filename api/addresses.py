"""Where the service may send webhooks: public addresses by https, unless the operator allows others too.

A name is resolved when something is sent, every address that it has is looked at, and the connection goes to one that
was looked at: a name that changes its mind in between (DNS rebinding) gains nothing.
"""

from __future__ import annotations

import ipaddress
import logging
import socket
from dataclasses import dataclass
from urllib.parse import SplitResult, urlsplit

from db.errors import InvalidWebhook

log = logging.getLogger(__name__)
PORTS = {"https": 443, "http": 80}


class AddressRefused(Exception):
    """A webhook's name does not lead anywhere that may be reached."""


@dataclass(frozen=True, slots=True)
class Target:
    """A checked address: `url` names it by number, `host` is what to ask for there."""

    url: str
    host: str  # with the port, where it is not the scheme's own: the Host header
    name: str  # without: what a certificate must be for


def check_url(url: str, private: bool) -> SplitResult:
    """The parts of a webhook's URL. `private`: other addresses than public ones are allowed. Raises InvalidWebhook."""
    try:
        parts = urlsplit(url)
        port, name = parts.port, _name(parts)
    except ValueError as error:
        raise InvalidWebhook("url", f"is no URL: {error}") from error
    schemes = ("https", "http") if private else ("https",)
    if parts.scheme not in schemes:
        raise InvalidWebhook("url", f"must begin with {' or '.join(f'{name}://' for name in schemes)}")
    if not name or port == 0 or any(char <= " " or char == "\\" for char in url):
        raise InvalidWebhook("url", "has no host that could be asked")
    if parts.username is not None or parts.password is not None:
        raise InvalidWebhook("url", "must not carry a name or password; deliveries are signed")
    if any(not " " < char <= "~" for char in "".join((name, *parts[2:]))):
        raise InvalidWebhook("url", "must be printable ASCII after the host: write other characters as %XX")
    if not private and _is_number(name) and not _is_public(name):
        raise InvalidWebhook("url", f"{name} is no public address")
    return parts


def target(url: str, private: bool) -> Target:
    """Resolve a webhook's URL. Raises InvalidWebhook, and AddressRefused when any of its addresses may not be used."""
    parts = check_url(url, private)
    name = _name(parts)
    port = parts.port or PORTS[parts.scheme]
    try:
        found = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise AddressRefused(f"{name} cannot be resolved: {error}") from error
    addresses = [str(entry[4][0]) for entry in found]
    for address in addresses:
        if not private and not _is_public(address):
            # Which one is not the tenant's to know: it would be told how the network inside is laid out.
            log.warning("%s leads to %s, and nothing is sent there", name, address)
            raise AddressRefused(f"{name} leads to an address that is not public")
    numbered = f"[{addresses[0]}]" if ":" in addresses[0] else addresses[0]
    path = f"{parts.path or '/'}{'?' + parts.query if parts.query else ''}"
    shown = f"[{name}]" if ":" in name else name
    host = shown if port == PORTS[parts.scheme] else f"{shown}:{port}"
    return Target(f"{parts.scheme}://{numbered}:{port}{path}", host, name)


def _name(parts: SplitResult) -> str:
    """The host as headers and resolvers take it: international names in ASCII. Raises UnicodeError."""
    return (parts.hostname or "").encode("idna").decode()


def _is_number(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _is_public(address: str) -> bool:
    """Also of an IPv6 address that stands for an IPv4 one."""
    found = ipaddress.ip_address(address.partition("%")[0])
    mapped = getattr(found, "ipv4_mapped", None) or getattr(found, "sixtofour", None)
    return found.is_global and not found.is_multicast and (mapped is None or mapped.is_global)
