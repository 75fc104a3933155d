"""Decides which hosts and IP addresses are public. Agents may send requests only to these.

All other addresses belong to this machine or its network, or are reserved.

No other module decides which addresses are public. Every outbound request of an agent is checked:
first the host name, then each address that the name resolves to.
"""

from __future__ import annotations

import re
import unicodedata
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

HOST_LENGTH_MAX = 253
LABEL_LENGTH_MAX = 63

# From the IANA special-purpose address registries, and stricter for ranges that cannot contain a public site.
_NON_PUBLIC_V4: tuple[tuple[IPv4Network, str], ...] = tuple(
    (IPv4Network(network), because)
    for network, because in (
        ("0.0.0.0/8", "it is the address of this machine"),
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
_NON_PUBLIC_V6: tuple[tuple[IPv6Network, str], ...] = tuple(
    (IPv6Network(network), because)
    for network, because in (
        ("::/128", "it is the address of this machine"),
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
_V6_GLOBAL = IPv6Network("2000::/3")  # nothing else has been allocated
_NAT64 = IPv6Network("64:ff9b::/96")
_V4_COMPATIBLE = IPv6Network("::/96")
_ISATAP = (0x00005EFE, 0x02005EFE)

# Ranges that an owner may use locally and name in the settings. Link-local is excluded: cloud
# metadata services, which serve credentials, are there.
_LAN_V4 = tuple(
    map(
        IPv4Network,
        ("10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16"),
    )
)
_LAN_V6 = (IPv6Network("fc00::/7"), IPv6Network("::1/128"))

_LOCAL_NAMES = ("localhost", "localdomain", "local", "internal", "intranet", "lan", "home.arpa")
_UNICODE_DOTS = re.compile(r"[\u3002\uff0e\uff61]")
_LABEL = re.compile(r"[a-z0-9_](?:[a-z0-9_-]*[a-z0-9_])?")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")


def explain_refused_address(address: str) -> str:
    """Return why agents may not send requests to an address, or an empty string if the address is public.

    If the address embeds another one, as tunnel and NAT64 addresses do, the embedded address is checked.
    """
    parsed = _parse_address(address)
    if parsed is None:
        return "it is not an IP address"
    return _explain_refused_v4(parsed) if isinstance(parsed, IPv4Address) else _explain_refused_v6(parsed)


def explain_refused_host(name: str) -> str:
    """Return why agents may not send requests to a host, judged by the host's name alone.

    Returns an empty string if the name is allowed. The caller then checks each address that the name
    resolves to. `name` can also be an IP address, with or without brackets.
    """
    host = normalize_host(name)
    if not host:
        return "it is not a valid host name"
    if _parse_address(host) is not None:
        return explain_refused_address(host)
    if any(host == local or host.endswith(f".{local}") for local in _LOCAL_NAMES):
        return "it is a name of this machine or of its network"
    return ""


def is_private_address(address: str) -> bool:
    """Whether the address is private, loopback or shared behind a carrier's NAT.

    The owner can allow these addresses in the settings, and no other non-public addresses.
    """
    parsed = _parse_address(address)
    if isinstance(parsed, IPv6Address):
        if parsed.ipv4_mapped is None:
            return any(parsed in network for network in _LAN_V6)
        parsed = parsed.ipv4_mapped
    return parsed is not None and any(parsed in network for network in _LAN_V4)


def is_ip_address(host: str) -> bool:
    return _parse_address(host) is not None


def normalize_host(name: str) -> str:
    """Return the canonical form of a host: lower-case ASCII, no trailing dot, no brackets.

    Returns an empty string if the name is not a valid host.

    Numeric forms other than a dotted quad (`2130706433`, `0x7f.1`, `0177.0.0.1`, `127.1`) are rejected: resolvers
    disagree about their meaning.
    """
    if name.startswith("[") or ":" in name:
        parsed = _parse_address(name.removeprefix("[").removesuffix("]") if name.startswith("[") else name)
        return str(parsed) if isinstance(parsed, IPv6Address) else ""
    host = _to_ascii(name).removesuffix(".")
    if not host or len(host) > HOST_LENGTH_MAX:
        return ""
    labels = host.split(".")
    if not all(len(label) <= LABEL_LENGTH_MAX and _LABEL.fullmatch(label) for label in labels):
        return ""
    if _NUMBER.fullmatch(labels[-1]):
        return host if isinstance(_parse_address(host), IPv4Address) else ""
    return host


def _to_ascii(name: str) -> str:
    """Return the ASCII name that a resolver looks up, or an empty string if there is none.

    Full-width letters and dots are replaced with their ASCII forms. Soft hyphens are removed.
    """
    if name.isascii():
        return name.lower()
    if len(name) > HOST_LENGTH_MAX:  # normalization is slow for long names
        return ""
    folded = unicodedata.normalize("NFKC", _UNICODE_DOTS.sub(".", name))
    try:
        return folded.encode("idna").decode("ascii").lower()
    except UnicodeError:
        return ""


def _parse_address(address: str) -> IPv4Address | IPv6Address | None:
    if "%" in address:  # a zone id is meaningful on one machine only
        return None
    try:
        return ip_address(address)
    except ValueError:
        return None


def _explain_refused_v4(address: IPv4Address) -> str:
    return next((because for network, because in _NON_PUBLIC_V4 if address in network), "")


def _explain_refused_v6(address: IPv6Address) -> str:
    if address.ipv4_mapped is not None:
        return _explain_refused_v4(address.ipv4_mapped)
    if address in _NAT64:
        return _explain_refused_v4(IPv4Address(int(address) & 0xFFFFFFFF))
    if address.teredo is not None:
        server, client = address.teredo
        return _explain_refused_v4(server) or _explain_refused_v4(client)
    if address.sixtofour is not None:
        return _explain_refused_v4(address.sixtofour)
    if because := next((because for network, because in _NON_PUBLIC_V6 if address in network), ""):
        return because
    if address in _V4_COMPATIBLE or address not in _V6_GLOBAL:
        return "it is reserved"
    if (int(address) >> 32) & 0xFFFFFFFF in _ISATAP:
        return _explain_refused_v4(IPv4Address(int(address) & 0xFFFFFFFF))
    return ""
