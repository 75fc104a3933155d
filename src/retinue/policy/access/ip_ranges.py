"""Which hosts and addresses are out in the world, and which are the machine's own, its network's, or nobody's.

Pure, and the only place that says so: whatever reaches out on an agent's word asks here, once for the name and once for
each address that the name turned out to have.
"""

from __future__ import annotations

import re
import unicodedata
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

HOST_LENGTH_MAX = 253
LABEL_LENGTH_MAX = 63

# By the registries of IANA for addresses of special purpose, and stricter where nobody keeps a page.
_V4: tuple[tuple[IPv4Network, str], ...] = tuple(
    (IPv4Network(network), because)
    for network, because in (
        ("0.0.0.0/8", "it means this machine itself"),
        ("10.0.0.0/8", "it is private"),
        ("100.64.0.0/10", "it is shared behind a carrier's NAT"),
        ("127.0.0.0/8", "it is loopback"),
        ("169.254.0.0/16", "it is link-local"),
        ("172.16.0.0/12", "it is private"),
        ("192.0.0.0/24", "it is reserved"),
        ("192.0.2.0/24", "it is for documentation"),
        ("192.88.99.0/24", "it is reserved"),
        ("192.168.0.0/16", "it is private"),
        ("198.18.0.0/15", "it is for benchmarks"),
        ("198.51.100.0/24", "it is for documentation"),
        ("203.0.113.0/24", "it is for documentation"),
        ("224.0.0.0/4", "it is multicast"),
        ("240.0.0.0/4", "it is reserved"),
    )
)
_V6: tuple[tuple[IPv6Network, str], ...] = tuple(
    (IPv6Network(network), because)
    for network, because in (
        ("::/128", "it means this machine itself"),
        ("::1/128", "it is loopback"),
        ("fc00::/7", "it is private"),
        ("fe80::/10", "it is link-local"),
        ("fec0::/10", "it is private"),
        ("ff00::/8", "it is multicast"),
        ("2001:db8::/32", "it is for documentation"),
        ("3fff::/20", "it is for documentation"),
        ("2001::/23", "it is reserved"),
    )
)
_V6_GLOBAL = IPv6Network("2000::/3")  # nothing else has been given out
_NAT64 = IPv6Network("64:ff9b::/96")
_COMPATIBLE = IPv6Network("::/96")
_ISATAP = (0x00005EFE, 0x02005EFE)

# What an owner may have in the house, and may name in the settings. Link-local is not among it: there, clouds keep
# the keys of their machines.
_LAN = tuple(
    map(
        IPv4Network,
        ("10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16"),
    )
)
_LAN_V6 = (IPv6Network("fc00::/7"), IPv6Network("::1/128"))

_LOCAL_NAMES = ("localhost", "localdomain", "local", "internal", "intranet", "lan", "home.arpa")
_DOTS = re.compile(r"[\u3002\uff0e\uff61]")
_LABEL = re.compile(r"[a-z0-9_](?:[a-z0-9_-]*[a-z0-9_])?")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")


def refused(address: str) -> str:
    """Why an address is not to be reached; empty where it is public.

    An address that carries another one inside, to be unpacked on the way, is as public as that.
    """
    parsed = _parsed(address)
    if parsed is None:
        return "it is no address"
    return _refused_v4(parsed) if isinstance(parsed, IPv4Address) else _refused_v6(parsed)


def refused_host(name: str) -> str:
    """Why a host is not to be asked for, by its name alone; empty where its addresses decide.

    Also for an address as a host, in brackets or without.
    """
    host = plain_host(name)
    if not host:
        return "it is no host name"
    if _parsed(host) is not None:
        return refused(host)
    if any(host == local or host.endswith(f".{local}") for local in _LOCAL_NAMES):
        return "it names this machine, or its network"
    return ""


def is_lan(address: str) -> bool:
    """Whether it is one that an owner can have at home: such a host can be named in the settings."""
    parsed = _parsed(address)
    if isinstance(parsed, IPv6Address):
        if parsed.ipv4_mapped is None:
            return any(parsed in network for network in _LAN_V6)
        parsed = parsed.ipv4_mapped
    return parsed is not None and any(parsed in network for network in _LAN)


def is_address(host: str) -> bool:
    return _parsed(host) is not None


def plain_host(name: str) -> str:
    """The one way to write a host: small ASCII letters, no dot at the end, no brackets. Empty where it is no host.

    Whatever some resolver would read as a number (`2130706433`, `0x7f.1`, `0177.0.0.1`, `127.1`) is none: the same
    text means another address to each of them.
    """
    if name.startswith("[") or ":" in name:
        parsed = _parsed(name.removeprefix("[").removesuffix("]") if name.startswith("[") else name)
        return str(parsed) if isinstance(parsed, IPv6Address) else ""
    host = _ascii(name).removesuffix(".")
    if not host or len(host) > HOST_LENGTH_MAX:
        return ""
    labels = host.split(".")
    if not all(len(label) <= LABEL_LENGTH_MAX and _LABEL.fullmatch(label) for label in labels):
        return ""
    if _NUMBER.fullmatch(labels[-1]):
        return host if isinstance(_parsed(host), IPv4Address) else ""
    return host


def _ascii(name: str) -> str:
    """As a name is asked for. Full-width letters and dots, soft hyphens and the like are gone after it."""
    if name.isascii():
        return name.lower()
    if len(name) > HOST_LENGTH_MAX:  # what makes names plain is slow with long ones
        return ""
    folded = unicodedata.normalize("NFKC", _DOTS.sub(".", name))
    try:
        return folded.encode("idna").decode("ascii").lower()
    except UnicodeError:
        return ""


def _parsed(address: str) -> IPv4Address | IPv6Address | None:
    if "%" in address:  # a zone: what it means is known to one machine alone
        return None
    try:
        return ip_address(address)
    except ValueError:
        return None


def _refused_v4(address: IPv4Address) -> str:
    return next((because for network, because in _V4 if address in network), "")


def _refused_v6(address: IPv6Address) -> str:
    if address.ipv4_mapped is not None:
        return _refused_v4(address.ipv4_mapped)
    if address in _NAT64:
        return _refused_v4(IPv4Address(int(address) & 0xFFFFFFFF))
    if address.teredo is not None:
        server, client = address.teredo
        return _refused_v4(server) or _refused_v4(client)
    if address.sixtofour is not None:
        return _refused_v4(address.sixtofour)
    if because := next((because for network, because in _V6 if address in network), ""):
        return because
    if address in _COMPATIBLE or address not in _V6_GLOBAL:
        return "it is reserved"
    if (int(address) >> 32) & 0xFFFFFFFF in _ISATAP:
        return _refused_v4(IPv4Address(int(address) & 0xFFFFFFFF))
    return ""
