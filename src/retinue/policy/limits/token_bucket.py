"""Rate limit per key: one token bucket each, refilled at a rate per minute.

In memory, with a maximum number of buckets. The bucket that was created first is dropped first, and
starts full again.
"""

from __future__ import annotations

from collections import OrderedDict

from msgspec import Struct, field

MINUTE_S = 60.0


class _Bucket(Struct):
    left: float
    at_s: float


class Buckets(Struct):
    per_minute: int
    remembered_max: int
    _of: OrderedDict[str, _Bucket] = field(default_factory=OrderedDict[str, _Bucket])

    def take(self, who: str, now_s: float) -> float:
        """Take a token and return 0; if there is none, return the seconds until there is."""
        bucket = self._of.get(who)
        if bucket is None:
            bucket = self._of[who] = _Bucket(float(self.per_minute), now_s)
            if len(self._of) > self.remembered_max:
                self._of.popitem(last=False)
        passed_s = max(0.0, now_s - bucket.at_s)  # a wall clock may jump back
        bucket.left = min(float(self.per_minute), bucket.left + passed_s * self.per_minute / MINUTE_S)
        bucket.at_s = now_s
        if bucket.left < 1:
            return (1 - bucket.left) * MINUTE_S / self.per_minute
        bucket.left -= 1
        return 0.0
