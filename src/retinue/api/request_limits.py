"""Limits per caller: lockout of addresses that guess secrets, and rate limits per principal.

Memory is bounded.
"""

from __future__ import annotations

import ipaddress
from collections import OrderedDict
from collections.abc import Callable

from msgspec import Struct

from retinue.domain.errors import RetinueError
from retinue.policy.limits.token_bucket import Buckets

ADDRESSES_MAX = 4096
GOOD_KEYS_MAX = 1024
PRINCIPALS_MAX = 4096
IPV6_HOUSEHOLD_BITS = 64  # one customer has a whole /64 network to guess from


class TooMany(RetinueError):
    """Too many requests. `retry_after_s` is the time to wait."""

    code = "rate.too-many"

    def __init__(
        self, sentence: str, *, because: str = "", try_this: str = "", code: str | None = None, retry_after_s: float
    ) -> None:
        super().__init__(sentence, because=because, try_this=try_this, code=code)
        self.retry_after_s = retry_after_s


class _Failures(Struct):
    count: int = 0
    since: float = 0.0
    locked_until: float = 0.0


class Lockout:
    """Locks out addresses that sent wrong secrets.

    A secret that was valid from an address keeps working from it.
    """

    def __init__(self, now: Callable[[], float], *, attempts_max: int, lockout_s: float) -> None:
        self._now = now
        self.attempts_max = attempts_max
        self.lockout_s = lockout_s
        self._failures: OrderedDict[str, _Failures] = OrderedDict()
        self._good: OrderedDict[tuple[str, str], None] = OrderedDict()

    def check(self, remote: str, token_hash: str) -> None:
        """Refuse a locked address, before the secret is looked up, unless that secret was valid from there."""
        if not self._failures or (known := self._failures.get(_household(remote))) is None:
            return
        left_s = known.locked_until - self._now()
        if left_s > 0 and (remote, token_hash) not in self._good:
            raise TooMany(
                "too many wrong tokens or codes came from your address",
                because=f"after {self.attempts_max} of them, none is looked at for a while",
                try_this=f"wait {left_s:.0f} seconds, or use the socket on the house's own machine",
                code="auth.locked-out",
                retry_after_s=left_s,
            )

    def failed(self, remote: str) -> bool:
        """Record a wrong secret. Returns whether its address is now locked."""
        key, now = _household(remote), self._now()
        known = self._failures.pop(key, None)
        if known is None or now - known.since > self.lockout_s:
            known = _Failures(since=now)
        known.count += 1
        self._failures[key] = known
        if len(self._failures) > ADDRESSES_MAX:
            self._failures.popitem(last=False)
        if known.count < self.attempts_max:
            return False
        known.locked_until = now + self.lockout_s
        known.since = known.locked_until
        known.count = 0
        return True

    def succeeded(self, remote: str, token_hash: str) -> None:
        """Record a valid secret.

        It does not clear the address's failures: other clients may share it.
        """
        self._good[remote, token_hash] = None
        self._good.move_to_end((remote, token_hash))
        if len(self._good) > GOOD_KEYS_MAX:
            self._good.popitem(last=False)


def _household(remote: str) -> str:
    if ":" not in remote:
        return remote
    try:
        return str(ipaddress.ip_network((remote, IPV6_HOUSEHOLD_BITS), strict=False))
    except ValueError:
        return remote


class Rate:
    """Rate limit per minute and principal."""

    def __init__(self, now: Callable[[], float], per_minute: int, what: str) -> None:
        self._now = now
        self._what = what
        self._buckets = Buckets(per_minute, PRINCIPALS_MAX)

    def resize(self, per_minute: int) -> None:
        self._buckets.per_minute = per_minute

    def take(self, principal: str) -> None:
        wait_s = self._buckets.take(principal, self._now())
        if wait_s:
            raise TooMany(
                f"too many {self._what}",
                because=f"{principal} may have {self._buckets.per_minute} in a minute",
                try_this=f"wait {max(1, round(wait_s))} seconds and ask again",
                retry_after_s=wait_s,
            )
