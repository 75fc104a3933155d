"""HTTP settings, and the check of Host, Origin and forwarded headers that comes before everything
else.

A browser tab of another site can send requests to this machine, but cannot choose their Host or
Origin. These two headers therefore identify such requests. A foreign name that resolves to this
machine (DNS rebinding) is not one of our hosts.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from urllib.parse import urlsplit

from msgspec import Struct

from retinue.domain.errors import Invalid, NotAllowed, RetinueError

MIB = 1024 * 1024
LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]", "::1"})
HOOKS = "/hooks/"  # path prefix of inbound webhooks
FORWARDED_MAX = 32  # addresses read from one header

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class Misdirected(RetinueError):
    """The request's Host is not one of our host names."""

    code = "request.foreign-host"


@dataclass(frozen=True, kw_only=True)
class Door:
    """HTTP settings. The Unix socket is always open; these are for TCP, and the limits."""

    enabled: bool = True
    host: str = "127.0.0.1"
    port: int = 7717
    public_url: str | None = None
    allowed_hosts: tuple[str, ...] = ()
    trusted_proxies: tuple[str, ...] = ()
    body_bytes_max: int = 16 * MIB
    requests_per_minute: int = 600
    envelopes_per_minute: int = 60
    sign_in_attempts_max: int = 5
    lockout_s: float = 900.0
    websockets_max: int = 64
    connections_max: int = 512
    request_wait_s: float = 15.0

    @cached_property
    def public(self) -> tuple[str, str] | None:
        """Scheme and authority of `public_url`, if set."""
        if self.public_url is None:
            return None
        parts = urlsplit(self.public_url.lower())
        return parts.scheme, parts.netloc

    @cached_property
    def names(self) -> frozenset[str]:
        """Our host names, without port."""
        known = LOCAL_NAMES | {_bracketed(name.lower()) for name in self.allowed_hosts}
        return known | {_without_port(self.public[1])} if self.public else known

    @cached_property
    def proxies(self) -> tuple[Network, ...]:
        return tuple(ipaddress.ip_network(text) for text in self.trusted_proxies)

    @cached_property
    def is_exposed(self) -> bool:
        """Whether other machines can reach the listen address."""
        return not is_loopback(self.host)

    def check(self) -> None:
        """Raise an error if the address is exposed without a TLS proxy and its address."""
        if self.enabled and self.is_exposed and not (self.public and self.public[0] == "https" and self.proxies):
            raise Invalid(
                f"the house does not listen on {self.host}",
                because="whoever can reach this address could read along: there is no TLS in front of it",
                try_this="put a TLS proxy in front, set public_url (https) and trusted_proxies; or listen on 127.0.0.1",
                code="listen.exposed",
            )


class Visit(Struct, frozen=True):
    """How a request arrived.

    `remote_address` is the most reliable client address; empty on the Unix socket.
    """

    local: bool
    remote: str = ""
    secure: bool = False
    origin: str = ""


ON_THE_SOCKET = Visit(local=True)


def visit(door: Door, scope: Mapping[str, Any], headers: Mapping[bytes, bytes]) -> Visit:
    """Check Host, Origin and proxy headers, and return how the request arrived."""
    server = scope.get("server")
    local = server is not None and server[1] is None
    if local and b"origin" not in headers:
        return ON_THE_SOCKET
    peer = "" if local else _peer(scope)
    trusted = bool(peer) and _is_proxy(door, peer)
    if door.is_exposed and not local and not trusted and not is_loopback(peer):
        raise NotAllowed(
            "this is not the way in",
            because="the house speaks to other machines only through its proxy",
            try_this=f"use {door.public_url}",
            code="request.past-the-proxy",
        )
    remote = _forwarded_for(door, headers, peer) if trusted else peer
    secure = trusted and headers.get(b"x-forwarded-proto", b"").strip().lower() == b"https"
    host = _host(scope, headers, trusted=trusted)
    if _without_port(host) not in door.names:
        raise Misdirected(
            "no house of that name is served here",
            because="the request's Host is neither this machine, nor public_url, nor one of allowed_hosts",
            try_this="add the name to allowed_hosts if it is yours",
        )
    origin = headers.get(b"origin", b"").decode("latin-1").lower()
    if origin and not _is_own(door, origin, host, secure=secure):
        raise _foreign_origin()
    if headers.get(b"sec-fetch-site", b"") in (b"cross-site", b"same-site") and scope["path"].startswith("/api/"):
        raise _foreign_origin()
    return Visit(local=local, remote=remote, secure=secure, origin=origin)


def is_loopback(text: str) -> bool:
    try:
        return ipaddress.ip_address(text).is_loopback
    except ValueError:
        return text.lower() == "localhost"


def _foreign_origin() -> NotAllowed:
    return NotAllowed(
        "pages of other sites may not ask anything here",
        because="the request comes from a page that is not ours",
        try_this="open the house's own page; behind a proxy, set public_url to the address that people use",
        code="request.foreign-origin",
    )


def _peer(scope: Mapping[str, Any]) -> str:
    client = scope.get("client")
    if client is None:
        raise Invalid(
            "who knocks?",
            because="the connection has no other end",
            try_this="connect by TCP or by the unix socket",
            code="request.no-peer",
        )
    return _plain(str(client[0]))


def _host(scope: Mapping[str, Any], headers: Mapping[bytes, bytes], *, trusted: bool) -> str:
    """Return the Host of a request. A request with several Host headers is an attack."""
    if sum(1 for name, _ in scope["headers"] if name == b"host") != 1:
        raise Invalid(
            "this request must name one Host",
            because="it names none, or several",
            try_this="send one Host header",
            code="request.host-count",
        )
    forwarded = headers.get(b"x-forwarded-host", b"") if trusted else b""
    return (forwarded or headers[b"host"]).decode("latin-1").strip().lower()


def _is_own(door: Door, origin: str, host: str, *, secure: bool) -> bool:
    scheme, _, authority = origin.partition("://")
    if door.public and (scheme, authority) == door.public:
        return True
    return scheme == ("https" if secure else "http") and _same_authority(authority, host, scheme)


def _same_authority(one: str, other: str, scheme: str) -> bool:
    default = ":443" if scheme == "https" else ":80"
    return one.removesuffix(default) == other.removesuffix(default)


def _is_proxy(door: Door, text: str) -> bool:
    try:
        found = ipaddress.ip_address(text)
    except ValueError:
        return False
    return any(found.version == network.version and found in network for network in door.proxies)


def _forwarded_for(door: Door, headers: Mapping[bytes, bytes], peer: str) -> str:
    """Return the last forwarded address that is not one of our proxies.

    Clients can forge the earlier ones.
    """
    chain = headers.get(b"x-forwarded-for", b"").decode("latin-1").split(",")
    for text in reversed(chain[-FORWARDED_MAX:]):
        try:
            known = _plain(str(ipaddress.ip_address(text.strip())))
        except ValueError:
            return peer
        if not _is_proxy(door, known):
            return known
    return peer


def _plain(text: str) -> str:
    """Return the IPv4 address of a connection that arrived on an IPv6 socket."""
    return text.removeprefix("::ffff:") if text.startswith("::ffff:") and "." in text else text


def _without_port(authority: str) -> str:
    if authority.startswith("["):
        return authority.partition("]")[0] + "]"
    return authority.rpartition(":")[0] if authority.count(":") == 1 else authority


def _bracketed(name: str) -> str:
    return f"[{name}]" if ":" in name and not name.startswith("[") else name
