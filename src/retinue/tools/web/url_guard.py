"""Decides which hosts and addresses agents may reach. Every web request of an agent is checked here.

A name is resolved once. Its addresses are checked, and the connection is made to exactly these
addresses. So a name that resolves differently a moment later (DNS rebinding) cannot lead elsewhere.
"""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Awaitable, Callable, Iterable, Sequence
from ipaddress import IPv4Network, IPv6Network, ip_address
from urllib.parse import urlsplit, urlunsplit

from msgspec import Struct

from retinue.config.web import WebSettings
from retinue.domain.permission import WEB_PERMISSION, Permission
from retinue.policy.access import ip_ranges
from retinue.tools.base import ToolContext
from retinue.tools.web.errors import HostNotResolved, HostRefused, PortRefused, UrlInvalid, WebPermissionMissing
from retinue.tools.web.errors import WebFailed as WebFailed  # re-exported
from retinue.tools.web.errors import WebRefused as WebRefused  # re-exported

URL_CHARS_MAX = 4_000
ADDRESSES_MAX = 16
PORTS = frozenset({80, 443})
_DEFAULT_PORTS = {"http": 80, "https": 443}
_FORBIDDEN_CHARACTERS = re.compile(
    r"[\s\x00-\x20\x7f-\x9f\\\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]"
)

ResolveHost = Callable[[str, int], Awaitable[Sequence[str]]]
"""Returns the addresses of a host name as text."""


class UrlTarget(Struct, frozen=True, kw_only=True):
    """A parsed URL, in the normalized form in which it was checked."""

    url: str
    scheme: str
    host: str  # a name, or an IP address without brackets
    port: int


async def resolve_by_system(host: str, port: int) -> Sequence[str]:
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(where[0]) for *_, where in found]


class UrlGuard:
    """Decides where a connection may go. `private_hosts` are in the owner's network, as HOST or HOST:PORT.

    `allowed_networks` are treated as public. This is for tests, which have only loopback.
    """

    def __init__(
        self,
        *,
        ports: Iterable[int] = PORTS,
        private_hosts: Iterable[str] = (),
        allowed_networks: Iterable[IPv4Network | IPv6Network] = (),
        resolve: ResolveHost = resolve_by_system,
    ) -> None:
        self._ports = frozenset(ports)
        self._private_hosts = frozenset(map(_normalize_private_host, private_hosts))
        self._allowed_networks = tuple(allowed_networks)
        self._resolve = resolve

    def parse_url(self, url: str) -> UrlTarget:
        """Parse and check a URL. Raises `WebRefused` if its text alone shows that it may not be reached."""
        text = url.strip()
        if because := _find_url_error(text):
            raise UrlInvalid(text, because=because)
        try:
            parts = urlsplit(text)
            port = parts.port
        except ValueError:
            raise UrlInvalid(text, because="it is not a URL") from None
        scheme = parts.scheme.lower()
        if scheme not in _DEFAULT_PORTS or not parts.netloc:
            raise UrlInvalid(text, because="only http and https URLs are supported")
        if "@" in parts.netloc:
            raise UrlInvalid(text, because="it has a user name or password")
        host = ip_ranges.normalize_host(_split_host(parts.netloc))
        if not host:
            raise UrlInvalid(text, because="its host is ambiguous")
        port = _DEFAULT_PORTS[scheme] if port is None else port
        self.check_host(host, port)
        netloc = f"[{host}]" if ":" in host else host
        if port != _DEFAULT_PORTS[scheme]:
            netloc += f":{port}"
        plain = urlunsplit((scheme, netloc, parts.path or "/", parts.query, ""))
        return UrlTarget(url=plain, scheme=scheme, host=host, port=port)

    def check_host(self, host: str, port: int) -> None:
        """Check a host and port. Raises `WebRefused` if agents may not reach them."""
        private = self._is_private(host, port)
        if port not in self._ports and f"{host}:{port}" not in self._private_hosts:
            raise PortRefused(host, port, ports=self._ports)
        if not private and not self._is_in_allowed_network(host) and (because := ip_ranges.explain_refused_host(host)):
            raise HostRefused(host, because=because)

    async def resolve_addresses(self, host: str, port: int) -> tuple[str, ...]:
        """Resolve a host once and return its addresses. The caller must connect to exactly these addresses.

        Raises `WebRefused` if one of them is forbidden. One forbidden address is enough to refuse
        the host, because such a name is made to mislead.
        """
        self.check_host(host, port)
        found = (host,) if ip_ranges.is_ip_address(host) else await self._resolve_host(host, port)
        for address in found:
            if self._is_in_allowed_network(address) or (
                self._is_private(host, port) and ip_ranges.is_private_address(address)
            ):
                continue
            if because := ip_ranges.explain_refused_address(address):
                raise HostRefused(host, because=because)
        return found

    async def _resolve_host(self, host: str, port: int) -> tuple[str, ...]:
        try:
            found = await self._resolve(host, port)
        except (OSError, UnicodeError) as error:
            because = getattr(error, "strerror", None) or "the name cannot be resolved"
            raise HostNotResolved(host, because=because) from None
        unique = tuple(dict.fromkeys(found))[:ADDRESSES_MAX]
        if not unique:
            raise HostNotResolved(host)
        return unique

    def _is_private(self, host: str, port: int) -> bool:
        return bool(self._private_hosts) and (host in self._private_hosts or f"{host}:{port}" in self._private_hosts)

    def _is_in_allowed_network(self, address: str) -> bool:
        if not self._allowed_networks or not ip_ranges.is_ip_address(address):
            return False
        return any(ip_address(address) in network for network in self._allowed_networks)


def build_guard(
    settings: WebSettings,
    *,
    allowed_networks: Sequence[IPv4Network | IPv6Network] = (),
    resolve: ResolveHost = resolve_by_system,
) -> UrlGuard:
    return UrlGuard(
        ports=settings.ports, private_hosts=settings.private_hosts, allowed_networks=allowed_networks, resolve=resolve
    )


def missing_web_permission(context: ToolContext) -> tuple[Permission, ...]:
    """Return the permission `web` if the agent lacks it. Otherwise return an empty tuple."""
    return () if context.rights.web else (WEB_PERMISSION,)


def require_web(context: ToolContext) -> None:
    """Check that the agent has the permission `web`, directly before use and regardless of earlier checks."""
    if missing_web_permission(context):
        raise WebPermissionMissing(context.agent.name)


def _find_url_error(text: str) -> str:
    if len(text) > URL_CHARS_MAX:
        return f"it has more than {URL_CHARS_MAX:,} characters"
    if _FORBIDDEN_CHARACTERS.search(text):
        return "it has spaces, backslashes or invisible characters"
    return ""


def _split_host(netloc: str) -> str:
    """Return the host without its port. Only an address in brackets contains colons."""
    if netloc.startswith("["):
        return netloc[: netloc.rfind("]") + 1]
    return netloc.partition(":")[0]


def _normalize_private_host(entry: str) -> str:
    """Normalize an entry to `HOST` or `HOST:PORT`. An IPv6 address has no brackets."""
    host, colon, port = entry.rpartition(":")
    if colon and port.isdigit() and (host.startswith("[") or ":" not in host):
        return f"{ip_ranges.normalize_host(host)}:{int(port)}"
    return ip_ranges.normalize_host(entry)
