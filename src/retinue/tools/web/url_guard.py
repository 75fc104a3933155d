"""Decides which hosts and addresses agents may reach. Every web request of an agent is checked
here.

A name is resolved once. Its addresses are checked, and the connection is made to exactly these. So
a name that resolves differently a moment later (DNS rebinding) leads nowhere else.
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
from retinue.domain.permission import WEB, Permission
from retinue.policy.access import ip_ranges
from retinue.tools.base import Scene, ToolFailed

URL_CHARS_MAX = 4_000
ADDRESSES_MAX = 16
PORTS = frozenset({80, 443})
_DEFAULT_PORTS = {"http": 80, "https": 443}
_UNWRITABLE = re.compile(r"[\s\x00-\x20\x7f-\x9f\\\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]")

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""Returns the addresses of a host name as text."""


class WebRefused(ToolFailed):
    """An address that agents may not reach."""

    code = "web.refused"


class WebFailed(ToolFailed):
    """The server could not be reached, or did not answer correctly."""

    code = "web.failed"


class Target(Struct, frozen=True, kw_only=True):
    """A parsed URL, in the normalized form in which it was checked."""

    url: str
    scheme: str
    host: str  # a name, or an IP address without brackets
    port: int


async def resolve_by_system(host: str, port: int) -> Sequence[str]:
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(where[0]) for *_, where in found]


class Guard:
    """Decides where a connection may go. `private_hosts` are in the owner's network, as HOST or
    HOST:PORT.

    `allowed_networks` are treated as public. This is for tests, which have only loopback.
    """

    def __init__(
        self,
        *,
        ports: Iterable[int] = PORTS,
        private: Iterable[str] = (),
        allowed_networks: Iterable[IPv4Network | IPv6Network] = (),
        resolve: Resolve = resolve_by_system,
    ) -> None:
        self._ports = frozenset(ports)
        self._private = frozenset(map(_plain_private, private))
        self._allowed = tuple(allowed_networks)
        self._resolve = resolve

    def target(self, url: str) -> Target:
        """Parse and check a URL. Raises `WebRefused` if its text alone shows that it may not be
        reached.
        """
        text = url.strip()
        shown = repr(text[:200])
        if because := _unreadable(text):
            raise _refusal(shown, because, "give a whole address, such as https://example.com/page")
        try:
            parts = urlsplit(text)
            port = parts.port
        except ValueError:
            raise _refusal(shown, "it is no address", "give a whole address, such as https://example.com/") from None
        scheme = parts.scheme.lower()
        if scheme not in _DEFAULT_PORTS or not parts.netloc:
            raise _refusal(shown, "only http and https can be reached", "begin it with https://")
        if "@" in parts.netloc:
            raise _refusal(shown, "it has a name or a password in it", "leave out what is before the @")
        host = ip_ranges.plain_host(_host_of(parts.netloc))
        if not host:
            raise _refusal(shown, "its host is written in a way that can mean more than one thing", "use its name")
        port = _DEFAULT_PORTS[scheme] if port is None else port
        self.check(host, port)
        netloc = f"[{host}]" if ":" in host else host
        if port != _DEFAULT_PORTS[scheme]:
            netloc += f":{port}"
        plain = urlunsplit((scheme, netloc, parts.path or "/", parts.query, ""))
        return Target(url=plain, scheme=scheme, host=host, port=port)

    def check(self, host: str, port: int) -> None:
        """Check a host and port. Raises `WebRefused`."""
        private = self._is_private(host, port)
        if port not in self._ports and f"{host}:{port}" not in self._private:
            ports = ", ".join(map(str, sorted(self._ports))) or "none"
            raise _refusal(
                f"port {port} of '{host}'",
                f"these ports may be reached: {ports}",
                "an owner can add to `ports` of [web], or name HOST:PORT in its `private_hosts`",
            )
        if not private and not self._in_allowed(host) and (because := ip_ranges.refused_host(host)):
            raise _private_refusal(host, because)

    async def addresses(self, host: str, port: int) -> tuple[str, ...]:
        """Resolve a host once and return its addresses, to connect to exactly these. Raises
        `WebRefused`.

        One forbidden address refuses the host, because such a name was made to mislead.
        """
        self.check(host, port)
        found = (host,) if ip_ranges.is_address(host) else await self._resolved(host, port)
        for address in found:
            if self._in_allowed(address) or (self._is_private(host, port) and ip_ranges.is_lan(address)):
                continue
            if because := ip_ranges.refused(address):
                raise _private_refusal(host, because)
        return found

    async def _resolved(self, host: str, port: int) -> tuple[str, ...]:
        try:
            found = await self._resolve(host, port)
        except (OSError, UnicodeError) as error:
            because = getattr(error, "strerror", None) or "its name cannot be resolved"
            raise WebFailed(f"'{host}' was not found", because=because, try_this="see that the name is right") from None
        unique = tuple(dict.fromkeys(found))[:ADDRESSES_MAX]
        if not unique:
            raise WebFailed(f"'{host}' was not found", because="its name has no address")
        return unique

    def _is_private(self, host: str, port: int) -> bool:
        return bool(self._private) and (host in self._private or f"{host}:{port}" in self._private)

    def _in_allowed(self, address: str) -> bool:
        if not self._allowed or not ip_ranges.is_address(address):
            return False
        return any(ip_address(address) in network for network in self._allowed)


def guard_from(
    settings: WebSettings,
    *,
    allowed_networks: Sequence[IPv4Network | IPv6Network] = (),
    resolve: Resolve = resolve_by_system,
) -> Guard:
    return Guard(
        ports=settings.ports, private=settings.private_hosts, allowed_networks=allowed_networks, resolve=resolve
    )


def missing(scene: Scene) -> tuple[Permission, ...]:
    """Return the web permission if the agent lacks it."""
    return () if scene.rights.web else (WEB,)


def require_web(scene: Scene) -> None:
    """Check the web permission at the point of use, regardless of earlier checks."""
    if missing(scene):
        raise ToolFailed(
            f"{scene.agent.name} may not reach the web",
            because="it was not given the permission `web`",
            try_this="ask for it with request_permission",
            code="permission.missing",
        )


def _unreadable(text: str) -> str:
    if len(text) > URL_CHARS_MAX:
        return f"it is longer than {URL_CHARS_MAX} characters"
    if _UNWRITABLE.search(text):
        return "it has a blank, a backslash or a character that cannot be seen in it"
    return ""


def _host_of(netloc: str) -> str:
    """Return the host without its port. Only an address in brackets contains colons."""
    if netloc.startswith("["):
        return netloc[: netloc.rfind("]") + 1]
    return netloc.partition(":")[0]


def _plain_private(entry: str) -> str:
    """Normalize to `HOST` or `HOST:PORT`, with addresses without brackets."""
    host, colon, port = entry.rpartition(":")
    if colon and port.isdigit() and (host.startswith("[") or ":" not in host):
        return f"{ip_ranges.plain_host(host)}:{int(port)}"
    return ip_ranges.plain_host(entry)


def _refusal(what: str, because: str, try_this: str) -> WebRefused:
    return WebRefused(f"{what} is not reached from here", because=because, try_this=try_this)


def _private_refusal(host: str, because: str) -> WebRefused:
    return _refusal(f"'{host[:200]}'", because, "an owner can name it in `private_hosts` of [web]")
