"""Decides which hosts one command may reach. Has no side effects."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from msgspec import Struct

from retinue.config.sandbox import split_host_and_port
from retinue.policy.access.ip_ranges import (
    explain_refused_address,
    explain_refused_host,
    is_private_address,
    normalize_host,
)
from retinue.sandbox.base import NetworkAccess

WEB_PORTS = frozenset({80, 443})


class HostPattern(Struct, frozen=True):
    """A parsed host pattern: `HOST`, `*.HOST` or `HOST:PORT`."""

    name: str
    matches_subdomains: bool = False  # matches subdomains, not the name itself
    port: int | None = None

    def matches(self, host: str, port: int) -> bool:
        named = host.endswith(f".{self.name}") if self.matches_subdomains else host == self.name
        return named and (port in WEB_PORTS if self.port is None else port == self.port)


@dataclass(frozen=True, slots=True)
class HostRules:
    """Checks which hosts a command may reach: first the host name, then each resolved address."""

    allowed: tuple[HostPattern, ...]
    private_hosts: frozenset[str] = frozenset()
    injected: tuple[tuple[HostPattern, Mapping[str, str]], ...] = field(default=(), repr=False)

    @classmethod
    def from_network(cls, network: NetworkAccess) -> HostRules:
        injected = tuple((_parse_pattern(host), headers) for host, headers in network.injected.items())
        private = frozenset(normalize_host(host) for host in network.private_hosts) - {""}
        return cls(_parse_patterns(network.hosts), private, tuple((p, h) for p, h in injected if p.name))

    def find_host_refusal(self, host: str, port: int) -> str:
        """Return why a host name is refused, or an empty string. `host` must be normalized."""
        if not host:
            return "it is not a valid host name"
        if not any(pattern.matches(host, port) for pattern in self.allowed):
            return "the network rules of this command do not allow it"
        return "" if host in self.private_hosts else explain_refused_host(host)

    def find_address_refusal(self, host: str, address: str) -> str:
        """Return why a resolved address of a host is refused, or an empty string."""
        because = explain_refused_address(address)
        return "" if because and host in self.private_hosts and is_private_address(address) else because

    def find_headers(self, host: str, port: int) -> Mapping[str, str]:
        """Return the headers that the proxy adds to a request to this host.

        If several rules set the same header, the last rule wins.
        """
        found: dict[str, str] = {}
        for pattern, headers in self.injected:
            if pattern.matches(host, port):
                found |= headers
        return found


def _parse_patterns(hosts: Iterable[str]) -> tuple[HostPattern, ...]:
    return tuple(pattern for pattern in map(_parse_pattern, hosts) if pattern.name)


def _parse_pattern(text: str) -> HostPattern:
    """Parse a host pattern. An invalid pattern matches nothing."""
    name, port = split_host_and_port(text)
    below = name.startswith("*.")
    plain = normalize_host(name.removeprefix("*."))
    if (below and "." not in plain) or (port is not None and port <= 0):
        return HostPattern("")
    return HostPattern(plain, below, port)


def filter_allowed(requested: Iterable[str], allowed: Iterable[str]) -> tuple[str, ...]:
    """Return the requested host patterns that are allowed.

    A pattern is allowed if one of the allowed patterns includes all hosts and ports that it
    matches.
    """
    known = _parse_patterns(allowed)
    return tuple(text for text in requested if _is_allowed(_parse_pattern(text), known))


def _is_allowed(requested: HostPattern, allowed: Iterable[HostPattern]) -> bool:
    return bool(requested.name) and any(_covers(pattern, requested) for pattern in allowed)


def _covers(pattern: HostPattern, requested: HostPattern) -> bool:
    ports = requested.port == pattern.port or (pattern.port is None and requested.port in WEB_PORTS)
    if pattern.matches_subdomains:
        return ports and (
            requested.name.endswith(f".{pattern.name}")
            or (requested.matches_subdomains and requested.name == pattern.name)
        )
    return ports and not requested.matches_subdomains and requested.name == pattern.name
