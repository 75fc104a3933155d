"""So many in a minute: a bucket for each one who asks, which fills at that rate and never beyond it.

Kept in memory and bounded: whoever asked longest ago for the first time is forgotten first, and begins with a full one.
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
        """0 where one may be had now, and it is taken; otherwise how many seconds to wait for it."""
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
