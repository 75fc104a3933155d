"""One outbound request: the host name is resolved once, checked, and contacted at exactly that
address.

Hosts of the local network, and ports other than 80 and 443, are allowed only if the settings name
them.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from msgspec import Struct

from retinue.connectors.base import DeliveryFailed, FailureKind
from retinue.policy.access import ip_ranges

if TYPE_CHECKING:
    from aiohttp.abc import AbstractResolver

ANSWER_BYTES_MAX = 2_000  # of an error response: enough to see the cause
QUOTED_CHARS_MAX = 200
RETRY_AFTER_DIGITS_MAX = 6
PORTS = {"http": 80, "https": 443}
LATER = frozenset({408, 425, 429})  # a retry may succeed

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]


async def resolve_by_system(host: str, port: int) -> Sequence[str]:
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(where[0]) for *_, where in found]


class Target(Struct, frozen=True, kw_only=True):
    """A URL and its checked addresses."""

    url: str
    host: str
    port: int
    found: tuple[str, ...]


async def judged(url: str, *, private: Sequence[str], resolve: Resolve = resolve_by_system) -> Target:
    """Resolve and check a URL.

    Raises `DeliveryFailed`: permanent if the target is forbidden, temporary if its name cannot be
    resolved.
    """
    try:
        parts = urlsplit(url)
        port = parts.port or PORTS.get(parts.scheme, 0)
    except ValueError:
        raise _refused("its address cannot be read") from None
    host = ip_ranges.plain_host(parts.hostname or "")
    if not host or parts.scheme not in PORTS or parts.username is not None:
        raise _refused("it must be http or https, to a host, and name nobody")
    named = {each.casefold() for each in private}
    shown = f"[{host}]" if ":" in host else host
    own = f"{shown}:{port}" in named or (port in PORTS.values() and (host in named or shown in named))
    if not own:
        if port not in PORTS.values():
            raise _refused(f"its port is {port}, and `private_hosts` does not name it")
        if because := ip_ranges.refused_host(host):
            raise _refused(f"{because}, and `private_hosts` does not name it")
    try:
        found = (host,) if ip_ranges.is_address(host) else tuple(await resolve(host, port))
    except OSError as error:
        raise DeliveryFailed(f"its name cannot be resolved: {error.strerror or type(error).__name__}") from None
    for each in found:
        if (because := ip_ranges.refused(each)) and not (own and ip_ranges.is_lan(each)):
            raise _refused(because)
    if not found:
        raise DeliveryFailed("its name has no address")
    return Target(url=url, host=host, port=port, found=found)


async def post(target: Target, body: bytes, *, headers: Mapping[str, str], timeout_s: float) -> int:
    """Post the body. Returns the status if it is a 2xx.

    Raises `DeliveryFailed` if it was not accepted, and `ConnectionError` if the result is unknown.
    """
    import aiohttp

    connector = aiohttp.TCPConnector(resolver=_pinned(target), use_dns_cache=False, force_close=True, limit=1)
    try:
        async with (
            asyncio.timeout(timeout_s),
            aiohttp.ClientSession(
                connector=connector, cookie_jar=aiohttp.DummyCookieJar(), trust_env=False, auto_decompress=False
            ) as session,
            session.post(target.url, data=body, headers=headers, allow_redirects=False) as response,
        ):
            said = b"" if response.ok else await response.content.read(ANSWER_BYTES_MAX)
            status, asked = response.status, response.headers.get("retry-after", "")
    except aiohttp.ClientConnectorError as error:
        raise DeliveryFailed(f"it cannot be reached: {error.os_error.strerror or 'no connection'}") from None
    except TimeoutError:
        raise ConnectionError(f"it did not answer within {timeout_s:g} seconds") from None
    except (aiohttp.ClientError, ValueError, OSError) as error:
        raise ConnectionError(f"the connection broke off ({type(error).__name__})") from None
    if 200 <= status < 300:
        return status
    raise failure(status, said, retry_after=asked)


def failure(status: int, said: bytes, *, retry_after: str) -> DeliveryFailed:
    """The delivery failure for a response that is not 2xx. Pure."""
    sentence = f"it answered with HTTP {status}"
    if 300 <= status < 400:
        sentence += ", which leads elsewhere; messages go where the settings say and no further"
    if quoted := " ".join(said.decode(errors="replace").split())[:QUOTED_CHARS_MAX]:
        sentence += f": {quoted!r}"
    asked = retry_after.strip()
    waits = asked.isascii() and asked.isdigit() and len(asked) <= RETRY_AFTER_DIGITS_MAX
    return DeliveryFailed(
        sentence,
        kind=_kind(status),
        permanent=status < 500 and status not in LATER,
        retry_after_s=float(asked) if waits else None,
    )


def _kind(status: int) -> FailureKind:
    match status:
        case 429:
            return FailureKind.THROTTLED
        case 413:
            return FailureKind.TOO_LARGE
        case 401 | 403:
            return FailureKind.INVALID_SENDER
        case 404 | 410:
            return FailureKind.INVALID_ADDRESS
        case _:
            return FailureKind.SEND_FAILED


def _refused(because: str) -> DeliveryFailed:
    return DeliveryFailed(f"messages do not go there: {because}", kind=FailureKind.INVALID_ADDRESS, permanent=True)


def _pinned(target: Target) -> AbstractResolver:
    """A resolver that knows one name and returns the checked addresses."""
    from aiohttp.abc import AbstractResolver, ResolveResult

    class Pinned(AbstractResolver):
        async def resolve(
            self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
        ) -> list[ResolveResult]:
            if ip_ranges.plain_host(host) != target.host:
                raise OSError(f"{host} was not judged")
            return [
                ResolveResult(
                    hostname=host,
                    host=each,
                    port=port,
                    family=socket.AF_INET6 if ":" in each else socket.AF_INET,
                    proto=socket.IPPROTO_TCP,
                    flags=socket.AI_NUMERICHOST,
                )
                for each in target.found
            ]

        async def close(self) -> None:
            pass

    return Pinned()
