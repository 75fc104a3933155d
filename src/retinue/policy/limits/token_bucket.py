"""Rate limits: one token bucket per key, refilled at a rate per minute.

The buckets are kept in memory, and their number is limited. If there are too many, the oldest bucket
is dropped. The next request with its key then starts with a full bucket.
"""

from __future__ import annotations

from collections import OrderedDict

from msgspec import Struct, field

MINUTE_S = 60.0


class _Bucket(Struct):
    tokens: float
    updated_s: float


class TokenBuckets(Struct):
    per_minute: int
    buckets_max: int
    _buckets: OrderedDict[str, _Bucket] = field(default_factory=OrderedDict[str, _Bucket])

    def take(self, key: str, now_s: float) -> float:
        """Take a token from the key's bucket and return 0.

        If the bucket is empty, return the number of seconds until its next token.
        """
        bucket = self._buckets.get(key)
        if bucket is None:
            bucket = self._buckets[key] = _Bucket(float(self.per_minute), now_s)
            if len(self._buckets) > self.buckets_max:
                self._buckets.popitem(last=False)
        passed_s = max(0.0, now_s - bucket.updated_s)  # a wall clock may jump back
        bucket.tokens = min(float(self.per_minute), bucket.tokens + passed_s * self.per_minute / MINUTE_S)
        bucket.updated_s = now_s
        if bucket.tokens < 1:
            return (1 - bucket.tokens) * MINUTE_S / self.per_minute
        bucket.tokens -= 1
        return 0.0
