"""Sends one outbound webhook request to a checked address.

The host name is resolved once, its addresses are checked, and the connection is made only to these addresses. Hosts in
the local network, and ports other than 80 and 443, are allowed only if the settings list them.
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

RESPONSE_BYTES_MAX = 2_000  # size of an error response to read: enough to see the cause
QUOTED_CHARS_MAX = 200
RETRY_AFTER_DIGITS_MAX = 6
PORTS = {"http": 80, "https": 443}
RETRYABLE_STATUSES = frozenset({408, 425, 429})  # a retry may succeed

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]


async def resolve_with_system(host: str, port: int) -> Sequence[str]:
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(where[0]) for *_, where in found]


class WebhookTarget(Struct, frozen=True, kw_only=True):
    """A URL and its checked addresses."""

    url: str
    host: str
    port: int
    addresses: tuple[str, ...]


async def check_target(
    url: str, *, private_hosts: Sequence[str], resolve: Resolve = resolve_with_system
) -> WebhookTarget:
    """Resolve the host of a URL and check its addresses.

    Raises `DeliveryFailed`: permanent if the target is forbidden, temporary if the host name cannot be resolved.
    """
    try:
        parts = urlsplit(url)
        port = parts.port or PORTS.get(parts.scheme, 0)
    except ValueError:
        raise _build_target_refused("the URL is invalid") from None
    host = ip_ranges.normalize_host(parts.hostname or "")
    if not host or parts.scheme not in PORTS or parts.username is not None:
        raise _build_target_refused("the URL must be http or https, with a host and without a username")
    named = {each.casefold() for each in private_hosts}
    shown = f"[{host}]" if ":" in host else host
    own = f"{shown}:{port}" in named or (port in PORTS.values() and (host in named or shown in named))
    if not own:
        if port not in PORTS.values():
            raise _build_target_refused(f"port {port} is not listed in `private_hosts`")
        if because := ip_ranges.explain_refused_host(host):
            raise _build_target_refused(f"{because}, and `private_hosts` does not list it")
    try:
        found = (host,) if ip_ranges.is_ip_address(host) else tuple(await resolve(host, port))
    except OSError as error:
        raise DeliveryFailed(
            f"cannot resolve the host of the webhook: {error.strerror or type(error).__name__}"
        ) from None
    for each in found:
        if (because := ip_ranges.explain_refused_address(each)) and not (own and ip_ranges.is_private_address(each)):
            raise _build_target_refused(because)
    if not found:
        raise DeliveryFailed("the host of the webhook has no address")
    return WebhookTarget(url=url, host=host, port=port, addresses=found)


async def post(target: WebhookTarget, body: bytes, *, headers: Mapping[str, str], timeout_s: float) -> int:
    """Post the body to the target. Returns the HTTP status if it is 2xx.

    Raises `DeliveryFailed` if the receiver did not accept the body, and `ConnectionError` if the result is unknown.
    """
    import aiohttp

    connector = aiohttp.TCPConnector(
        resolver=_make_pinned_resolver(target), use_dns_cache=False, force_close=True, limit=1
    )
    try:
        async with (
            asyncio.timeout(timeout_s),
            aiohttp.ClientSession(
                connector=connector, cookie_jar=aiohttp.DummyCookieJar(), trust_env=False, auto_decompress=False
            ) as session,
            session.post(target.url, data=body, headers=headers, allow_redirects=False) as response,
        ):
            answer = b"" if response.ok else await response.content.read(RESPONSE_BYTES_MAX)
            status, asked = response.status, response.headers.get("retry-after", "")
    except aiohttp.ClientConnectorError as error:
        raise DeliveryFailed(f"cannot reach the webhook: {error.os_error.strerror or 'no connection'}") from None
    except TimeoutError:
        raise ConnectionError(f"the webhook timed out after {timeout_s:g} s") from None
    except (aiohttp.ClientError, ValueError, OSError) as error:
        raise ConnectionError(f"the connection to the webhook broke ({type(error).__name__})") from None
    if 200 <= status < 300:
        return status
    raise build_delivery_failed(status, answer, retry_after=asked)


def build_delivery_failed(status: int, body: bytes, *, retry_after: str) -> DeliveryFailed:
    """Return the delivery failure for a response whose status is not 2xx."""
    sentence = f"the webhook answered with HTTP {status}"
    if 300 <= status < 400:
        sentence += ", a redirect, which is not followed"
    if quoted := " ".join(body.decode(errors="replace").split())[:QUOTED_CHARS_MAX]:
        sentence += f": {quoted!r}"
    asked = retry_after.strip()
    waits = asked.isascii() and asked.isdigit() and len(asked) <= RETRY_AFTER_DIGITS_MAX
    return DeliveryFailed(
        sentence,
        kind=_get_failure_kind(status),
        permanent=status < 500 and status not in RETRYABLE_STATUSES,
        retry_after_s=float(asked) if waits else None,
    )


def _get_failure_kind(status: int) -> FailureKind:
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


def _build_target_refused(because: str) -> DeliveryFailed:
    return DeliveryFailed(
        f"the webhook URL is not allowed: {because}", kind=FailureKind.INVALID_ADDRESS, permanent=True
    )


def _make_pinned_resolver(target: WebhookTarget) -> AbstractResolver:
    """Return a resolver that resolves only the checked host, to its checked addresses."""
    from aiohttp.abc import AbstractResolver, ResolveResult

    class PinnedResolver(AbstractResolver):
        async def resolve(
            self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
        ) -> list[ResolveResult]:
            if ip_ranges.normalize_host(host) != target.host:
                raise OSError(f"{host} was not checked")
            return [
                ResolveResult(
                    hostname=host,
                    host=each,
                    port=port,
                    family=socket.AF_INET6 if ":" in each else socket.AF_INET,
                    proto=socket.IPPROTO_TCP,
                    flags=socket.AI_NUMERICHOST,
                )
                for each in target.addresses
            ]

        async def close(self) -> None:
            pass

    return PinnedResolver()
