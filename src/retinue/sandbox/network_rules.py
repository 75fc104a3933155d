"""The hosts that one command may reach. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from msgspec import Struct

from retinue.config.sandbox import split_port
from retinue.policy.access.ip_ranges import is_lan, plain_host, refused, refused_host
from retinue.sandbox.base import Network

WEB_PORTS = frozenset({80, 443})


class Pattern(Struct, frozen=True):
    """A parsed `HOST`, `*.HOST` or `HOST:PORT`."""

    name: str
    below: bool = False  # matches subdomains, not the name itself
    port: int | None = None

    def fits(self, host: str, port: int) -> bool:
        named = host.endswith(f".{self.name}") if self.below else host == self.name
        return named and (port in WEB_PORTS if self.port is None else port == self.port)


@dataclass(frozen=True, slots=True)
class Reach:
    """The network rules of a command: first by host name, then by each resolved address."""

    allowed: tuple[Pattern, ...]
    private: frozenset[str] = frozenset()
    injected: tuple[tuple[Pattern, Mapping[str, str]], ...] = field(default=(), repr=False)

    @classmethod
    def of(cls, network: Network) -> Reach:
        injected = tuple((_pattern(host), headers) for host, headers in network.injected.items())
        private = frozenset(plain_host(host) for host in network.private_hosts) - {""}
        return cls(_patterns(network.hosts), private, tuple((p, h) for p, h in injected if p.name))

    def refusal(self, host: str, port: int) -> str:
        """Return why a host may not be reached by name, or an empty string. `host` is normalized."""
        if not host:
            return "it is no host name"
        if not any(pattern.fits(host, port) for pattern in self.allowed):
            return "no rule of this command allows it"
        return "" if host in self.private else refused_host(host)

    def refusal_of_address(self, host: str, address: str) -> str:
        """Return why a resolved address of a host may not be connected to, or an empty string."""
        because = refused(address)
        return "" if because and host in self.private and is_lan(address) else because

    def headers_for(self, host: str, port: int) -> Mapping[str, str]:
        """Return the headers to add to a request. Later rules win."""
        found: dict[str, str] = {}
        for pattern, headers in self.injected:
            if pattern.fits(host, port):
                found |= headers
        return found


def _patterns(hosts: Iterable[str]) -> tuple[Pattern, ...]:
    return tuple(pattern for pattern in map(_pattern, hosts) if pattern.name)


def _pattern(text: str) -> Pattern:
    """Parse a pattern. An invalid one matches nothing."""
    name, port = split_port(text)
    below = name.startswith("*.")
    plain = plain_host(name.removeprefix("*."))
    if (below and "." not in plain) or (port is not None and port <= 0):
        return Pattern("")
    return Pattern(plain, below, port)


def covered(asked: Iterable[str], allowed: Iterable[str]) -> tuple[str, ...]:
    """Return the requested patterns that are allowed. A pattern wider than every allowed one is
    not.
    """
    known = _patterns(allowed)
    return tuple(text for text in asked if _is_within(_pattern(text), known))


def _is_within(asked: Pattern, allowed: Iterable[Pattern]) -> bool:
    return bool(asked.name) and any(_covers(pattern, asked) for pattern in allowed)


def _covers(pattern: Pattern, asked: Pattern) -> bool:
    ports = asked.port == pattern.port or (pattern.port is None and asked.port in WEB_PORTS)
    if pattern.below:
        return ports and (asked.name.endswith(f".{pattern.name}") or (asked.below and asked.name == pattern.name))
    return ports and not asked.below and asked.name == pattern.name
