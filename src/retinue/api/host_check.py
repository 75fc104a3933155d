"""HTTP settings, and the check of the Host, Origin and forwarded headers. Every request passes this check first.

A page of another site in a browser can send requests to this machine, but it cannot choose their Host and Origin
headers. These headers therefore show where a request comes from. The check also refuses a foreign host name that
resolves to this machine (DNS rebinding), because it is not one of the server's host names.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from urllib.parse import urlsplit

from msgspec import Struct

from retinue.api.errors import (
    ForeignOrigin,
    HostHeaderInvalid,
    ListenAddressExposed,
    MisdirectedRequest,
    PeerAddressMissing,
    ProxyBypassed,
)

MIB = 1024 * 1024
LOCAL_HOST_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]", "::1"})
WEBHOOK_PREFIX = "/hooks/"  # path prefix of inbound webhooks
FORWARDED_ADDRESSES_MAX = 32  # addresses read from one header

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


@dataclass(frozen=True, kw_only=True)
class HttpSettings:
    """Settings of the TCP listener, and limits on HTTP requests. The Unix socket is always open."""

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
    def public_origin(self) -> tuple[str, str] | None:
        """The scheme and authority of `public_url`, if it is set."""
        if self.public_url is None:
            return None
        parts = urlsplit(self.public_url.lower())
        return parts.scheme, parts.netloc

    @cached_property
    def host_names(self) -> frozenset[str]:
        """The host names of this server, without port."""
        known = LOCAL_HOST_NAMES | {_bracketed(name.lower()) for name in self.allowed_hosts}
        return known | {_without_port(self.public_origin[1])} if self.public_origin else known

    @cached_property
    def proxy_networks(self) -> tuple[Network, ...]:
        return tuple(ipaddress.ip_network(text) for text in self.trusted_proxies)

    @cached_property
    def is_exposed(self) -> bool:
        """Whether other machines can reach the listen address."""
        return not is_loopback(self.host)

    def check_exposure(self) -> None:
        """Raise an error if other machines can reach the listen address and no proxy with TLS is configured."""
        if (
            self.enabled
            and self.is_exposed
            and not (self.public_origin and self.public_origin[0] == "https" and self.proxy_networks)
        ):
            raise ListenAddressExposed(self.host)


class RequestSource(Struct, frozen=True):
    """How a request arrived: over TCP or the Unix socket, and from which address.

    `remote_address` is the client's address as the server or the owner's proxy sees it. It is empty on the Unix socket.
    """

    is_local: bool
    remote_address: str = ""
    is_secure: bool = False
    origin: str = ""


UNIX_SOCKET_SOURCE = RequestSource(is_local=True)


def check_source(settings: HttpSettings, scope: Mapping[str, Any], headers: Mapping[bytes, bytes]) -> RequestSource:
    """Check Host, Origin and proxy headers, and return how the request arrived."""
    server = scope.get("server")
    local = server is not None and server[1] is None
    if local and b"origin" not in headers:
        return UNIX_SOCKET_SOURCE
    peer = "" if local else _peer_address(scope)
    trusted = bool(peer) and _is_proxy(settings, peer)
    if settings.is_exposed and not local and not trusted and not is_loopback(peer):
        raise ProxyBypassed(settings.public_url)
    remote = _client_address(settings, headers, peer) if trusted else peer
    secure = trusted and headers.get(b"x-forwarded-proto", b"").strip().lower() == b"https"
    host = _read_host(scope, headers, is_trusted=trusted)
    if _without_port(host) not in settings.host_names:
        raise MisdirectedRequest
    origin = headers.get(b"origin", b"").decode("latin-1").lower()
    if origin and not _is_own_origin(settings, origin, host, is_secure=secure):
        raise ForeignOrigin
    if headers.get(b"sec-fetch-site", b"") in (b"cross-site", b"same-site") and scope["path"].startswith("/api/"):
        raise ForeignOrigin
    return RequestSource(is_local=local, remote_address=remote, is_secure=secure, origin=origin)


def is_loopback(text: str) -> bool:
    try:
        return ipaddress.ip_address(text).is_loopback
    except ValueError:
        return text.lower() == "localhost"


def _peer_address(scope: Mapping[str, Any]) -> str:
    client = scope.get("client")
    if client is None:
        raise PeerAddressMissing
    return _unmap_ipv4(str(client[0]))


def _read_host(scope: Mapping[str, Any], headers: Mapping[bytes, bytes], *, is_trusted: bool) -> str:
    """Return the Host header of a request. Raises an error unless there is exactly one such header."""
    if sum(1 for name, _ in scope["headers"] if name == b"host") != 1:
        raise HostHeaderInvalid
    forwarded = headers.get(b"x-forwarded-host", b"") if is_trusted else b""
    return (forwarded or headers[b"host"]).decode("latin-1").strip().lower()


def _is_own_origin(settings: HttpSettings, origin: str, host: str, *, is_secure: bool) -> bool:
    scheme, _, authority = origin.partition("://")
    if settings.public_origin and (scheme, authority) == settings.public_origin:
        return True
    return scheme == ("https" if is_secure else "http") and _same_authority(authority, host, scheme)


def _same_authority(one: str, other: str, scheme: str) -> bool:
    default = ":443" if scheme == "https" else ":80"
    return one.removesuffix(default) == other.removesuffix(default)


def _is_proxy(settings: HttpSettings, text: str) -> bool:
    try:
        found = ipaddress.ip_address(text)
    except ValueError:
        return False
    return any(found.version == network.version and found in network for network in settings.proxy_networks)


def _client_address(settings: HttpSettings, headers: Mapping[bytes, bytes], peer: str) -> str:
    """Return the last address in `x-forwarded-for` that is not one of the owner's proxies.

    The addresses before that address may be forged by the client.
    """
    chain = headers.get(b"x-forwarded-for", b"").decode("latin-1").split(",")
    for text in reversed(chain[-FORWARDED_ADDRESSES_MAX:]):
        try:
            known = _unmap_ipv4(str(ipaddress.ip_address(text.strip())))
        except ValueError:
            return peer
        if not _is_proxy(settings, known):
            return known
    return peer


def _unmap_ipv4(text: str) -> str:
    """Return the IPv4 address that an IPv6 socket reports in mapped form (`::ffff:…`).

    Other addresses are returned unchanged.
    """
    return text.removeprefix("::ffff:") if text.startswith("::ffff:") and "." in text else text


def _without_port(authority: str) -> str:
    if authority.startswith("["):
        return authority.partition("]")[0] + "]"
    return authority.rpartition(":")[0] if authority.count(":") == 1 else authority


def _bracketed(name: str) -> str:
    return f"[{name}]" if ":" in name and not name.startswith("[") else name
