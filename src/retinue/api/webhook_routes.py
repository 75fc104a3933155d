"""Inbound webhooks: POST /hooks/CONNECTOR/PATH, authenticated by a secret, answered after the envelope is stored."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from urllib.parse import unquote

import msgspec

from retinue.api.host_check import HOOKS
from retinue.api.request_limits import Lockout, TooMany
from retinue.connectors.webhook.settings import HookKind
from retinue.domain.errors import Invalid, NotFound
from retinue.domain.token import hash_of
from retinue.intake.external_callbacks import Unsigned
from retinue.intake.inbound_webhooks import Came, Requests
from retinue.policy.limits.token_bucket import Buckets

FAILURES_MAX = 5  # wrong secrets from one address before it is locked
LOCKOUT_S = 60.0
INSTANCES_MAX = 256
PATH_CHARS_MAX = 100
HEADERS_MAX = 100
IGNORED = 200

_encode = msgspec.json.Encoder().encode

ReadBody = Callable[[int], Awaitable[bytes]]
"""Reads so many bytes of a body, and refuses one that has more."""


class RequestDoor:
    """Receives webhook requests within limits.

    Addresses that guess secrets are locked out. The rate limit per connector counts only
    authenticated requests, so that others cannot use it up.
    """

    def __init__(self, requests: Requests, now: Callable[[], float]) -> None:
        self._requests = requests
        self._now = now
        self._lockout = Lockout(now, attempts_max=FAILURES_MAX, lockout_s=LOCKOUT_S)
        self._rates: dict[str, Buckets] = {}

    async def take(
        self, path: str, query: bytes, headers: Mapping[bytes, bytes], remote: str, body: ReadBody
    ) -> tuple[int, bytes]:
        """Process one request and return the status and body of the response."""
        instance, below = _parts(path)
        if b"token=" in query or b"secret=" in query:
            raise Invalid(
                "no secret is taken from an address",
                because="addresses end up in logs",
                try_this="send it as a header: Authorization: Bearer SECRET",
                code="webhook.secret-in-address",
            )
        said = {
            name.decode("latin-1"): value.decode("latin-1").strip()
            for name, value in list(headers.items())[:HEADERS_MAX]
        }
        shown = hash_of(f"{instance}/{said.get('authorization', '')}")
        self._lockout.check(remote, shown)
        connector = self._requests.find(instance)
        came = Came(path=below, headers=said, body=await body(connector.settings.body_bytes_max))
        try:
            key = self._requests.prove(connector, came)
        except Unsigned:
            self._lockout.failed(remote)
            raise
        if "authorization" in said:
            self._lockout.succeeded(remote, shown)
        self._check_rate(instance, connector.settings.requests_per_minute)
        taken = await self._requests.take(connector, key, came)
        if taken.receipt is None:
            return IGNORED, _encode({"status": "ignored"})
        kept = {
            "status": "accepted",
            "envelope": taken.receipt.envelope,
            "session": taken.receipt.session,
            "duplicate": taken.receipt.duplicate,
        }
        return 200 if taken.kind is HookKind.WAKE else 202, _encode(kept)

    def _check_rate(self, instance: str, per_minute: int) -> None:
        if len(self._rates) >= INSTANCES_MAX and instance not in self._rates:
            self._rates.clear()
        rate = self._rates.setdefault(instance, Buckets(per_minute, 1))
        rate.per_minute = per_minute
        if wait_s := rate.take(instance, self._now()):
            raise TooMany(
                "too many requests",
                because=f"{instance} takes {per_minute} in a minute",
                try_this=f"wait {max(1, round(wait_s))} seconds and send it again",
                retry_after_s=wait_s,
            )


def _parts(path: str) -> tuple[str, str]:
    instance, slash, below = path.removeprefix(HOOKS).partition("/")
    below = unquote(below)
    if not instance or not slash or not below or "/" in below or len(below) > PATH_CHARS_MAX:
        raise NotFound(
            f"nothing is served at {path[:200]}",
            because=f"requests come to {HOOKS}INSTANCE/PATH",
            try_this=f"{HOOKS}INSTANCE/agent, {HOOKS}INSTANCE/wake, or the name of a mapping",
            code="route.not-found",
        )
    return instance, below
