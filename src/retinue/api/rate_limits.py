"""Limits per caller: addresses that guess secrets are locked out, and each principal has rate limits.

Only a limited number of addresses and principals is kept in memory.
"""

from __future__ import annotations

import ipaddress
from collections import OrderedDict
from collections.abc import Callable

from msgspec import Struct

from retinue.api.errors import AddressLockedOut, TooManyRequests
from retinue.policy.limits.token_bucket import TokenBuckets

ADDRESSES_MAX = 4096
VALID_SECRETS_MAX = 1024
PRINCIPALS_MAX = 4096
IPV6_NETWORK_BITS = 64  # one customer has a whole /64 network to guess from


class _Failures(Struct):
    count: int = 0
    since: float = 0.0
    locked_until: float = 0.0


class Lockout:
    """Locks out IP addresses that sent too many wrong secrets.

    From a locked-out address, a secret is still accepted if it was valid from the same address before.
    """

    def __init__(self, now: Callable[[], float], *, attempts_max: int, lockout_s: float) -> None:
        self._now = now
        self.attempts_max = attempts_max
        self.lockout_s = lockout_s
        self._failures: OrderedDict[str, _Failures] = OrderedDict()
        self._valid_secrets: OrderedDict[tuple[str, str], None] = OrderedDict()

    def check(self, remote: str, token_hash: str) -> None:
        """Raise an error if the address is locked out. Call this method before looking up the secret.

        It raises no error for a secret that was valid from this address before.
        """
        if not self._failures or (known := self._failures.get(_lockout_key(remote))) is None:
            return
        left_s = known.locked_until - self._now()
        if left_s > 0 and (remote, token_hash) not in self._valid_secrets:
            raise AddressLockedOut(attempts_max=self.attempts_max, retry_after_s=left_s)

    def record_failure(self, remote: str) -> bool:
        """Record a wrong secret. Returns whether its address is now locked out."""
        key, now = _lockout_key(remote), self._now()
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

    def record_success(self, remote: str, token_hash: str) -> None:
        """Record that a secret from this address was valid.

        The failures of the address still count, because other clients may share the address.
        """
        self._valid_secrets[remote, token_hash] = None
        self._valid_secrets.move_to_end((remote, token_hash))
        if len(self._valid_secrets) > VALID_SECRETS_MAX:
            self._valid_secrets.popitem(last=False)


def _lockout_key(address: str) -> str:
    if ":" not in address:
        return address
    try:
        return str(ipaddress.ip_network((address, IPV6_NETWORK_BITS), strict=False))
    except ValueError:
        return address


class PrincipalRateLimit:
    """Limits the number of requests of each principal per minute."""

    def __init__(self, now: Callable[[], float], per_minute: int, noun: str) -> None:
        self._now = now
        self._noun = noun
        self._buckets = TokenBuckets(per_minute, PRINCIPALS_MAX)

    def set_rate(self, per_minute: int) -> None:
        self._buckets.per_minute = per_minute

    def use(self, principal: str) -> None:
        wait_s = self._buckets.take(principal, self._now())
        if wait_s:
            raise TooManyRequests(
                self._noun, sender=principal, per_minute=self._buckets.per_minute, retry_after_s=wait_s
            )
