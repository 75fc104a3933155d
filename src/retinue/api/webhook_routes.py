"""Receives inbound webhooks at POST /hooks/CONNECTOR/PATH.

Each request is authenticated by a secret, and answered after its envelope is stored.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from urllib.parse import unquote

import msgspec

from retinue.api.errors import RouteNotFound, TooManyRequests, WebhookSecretInUrl
from retinue.api.host_check import WEBHOOK_PREFIX
from retinue.api.rate_limits import Lockout
from retinue.connectors.webhook.settings import WebhookKind
from retinue.domain.token import hash_token
from retinue.intake.errors import UnsignedRequest
from retinue.intake.inbound_webhooks import RawWebhookRequest, WebhookIntake
from retinue.policy.limits.token_bucket import TokenBuckets

WRONG_SECRETS_MAX = 5  # wrong secrets from one address before it is locked out
LOCKOUT_S = 60.0
CONNECTORS_MAX = 256
PATH_CHARS_MAX = 100
HEADERS_MAX = 100
IGNORED_STATUS = 200

_encode = msgspec.json.Encoder().encode

ReadBody = Callable[[int], Awaitable[bytes]]
"""Reads a request body of at most the given number of bytes. Raises an error if the body is larger."""


class WebhookReceiver:
    """Receives webhook requests and enforces their limits.

    Addresses that guess secrets are locked out. The rate limit of a connector counts only authenticated requests, so
    that other requests cannot exhaust the limit.
    """

    def __init__(self, webhooks: WebhookIntake, now: Callable[[], float]) -> None:
        self._webhooks = webhooks
        self._now = now
        self._lockout = Lockout(now, attempts_max=WRONG_SECRETS_MAX, lockout_s=LOCKOUT_S)
        self._rates: dict[str, TokenBuckets] = {}

    async def receive(
        self, path: str, query: bytes, headers: Mapping[bytes, bytes], remote_address: str, read_body: ReadBody
    ) -> tuple[int, bytes]:
        """Process one request and return the status and body of the response."""
        name, subpath = _parse_path(path)
        if b"token=" in query or b"secret=" in query:
            raise WebhookSecretInUrl
        received_headers = {
            name.decode("latin-1"): value.decode("latin-1").strip()
            for name, value in list(headers.items())[:HEADERS_MAX]
        }
        secret_hash = hash_token(f"{name}/{received_headers.get('authorization', '')}")
        self._lockout.check(remote_address, secret_hash)
        connector = self._webhooks.find_connector(name)
        body = await read_body(connector.settings.body_bytes_max)
        request = RawWebhookRequest(path=subpath, headers=received_headers, body=body)
        try:
            key = self._webhooks.verify(connector, request)
        except UnsignedRequest:
            self._lockout.record_failure(remote_address)
            raise
        if "authorization" in received_headers:
            self._lockout.record_success(remote_address, secret_hash)
        self._check_rate(name, connector.settings.requests_per_minute)
        taken = await self._webhooks.accept(connector, key, request)
        if taken.receipt is None:
            return IGNORED_STATUS, _encode({"status": "ignored"})
        kept = {
            "status": "accepted",
            "envelope": taken.receipt.envelope,
            "session": taken.receipt.session,
            "duplicate": taken.receipt.duplicate,
        }
        return 200 if taken.kind is WebhookKind.WAKE else 202, _encode(kept)

    def _check_rate(self, connector: str, per_minute: int) -> None:
        if len(self._rates) >= CONNECTORS_MAX and connector not in self._rates:
            self._rates.clear()
        rate = self._rates.setdefault(connector, TokenBuckets(per_minute, 1))
        rate.per_minute = per_minute
        if wait_s := rate.take(connector, self._now()):
            raise TooManyRequests(
                "requests", sender=f"connector {connector}", per_minute=per_minute, retry_after_s=wait_s
            )


def _parse_path(path: str) -> tuple[str, str]:
    name, slash, subpath = path.removeprefix(WEBHOOK_PREFIX).partition("/")
    subpath = unquote(subpath)
    if not name or not slash or not subpath or "/" in subpath or len(subpath) > PATH_CHARS_MAX:
        raise RouteNotFound(
            path,
            form=f"{WEBHOOK_PREFIX}CONNECTOR/PATH",
            use=f"{WEBHOOK_PREFIX}CONNECTOR/agent, {WEBHOOK_PREFIX}CONNECTOR/wake, or the name of a mapping",
        )
    return name, subpath
