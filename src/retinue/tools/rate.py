"""How often an agent may use its tools: a bucket that fills by the minute. In memory: a restart fills it."""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass, field
from datetime import datetime

from retinue.domain.ports import Clock

AGENTS_REMEMBERED_MAX = 10_000
MINUTE_S = 60.0


@dataclass(slots=True)
class _Bucket:
    left: float
    at: datetime


@dataclass(slots=True)
class CallRate:
    clock: Clock
    per_minute: int
    _buckets: OrderedDict[str, _Bucket] = field(default_factory=OrderedDict[str, _Bucket])

    def take(self, agent: str) -> int:
        """0 where a call may be made now; otherwise how many seconds to wait."""
        now = self.clock.now()
        bucket = self._buckets.get(agent)
        if bucket is None:
            bucket = self._buckets[agent] = _Bucket(float(self.per_minute), now)
            if len(self._buckets) > AGENTS_REMEMBERED_MAX:
                self._buckets.popitem(last=False)
        passed_s = max(0.0, (now - bucket.at).total_seconds())
        bucket.left, bucket.at = min(float(self.per_minute), bucket.left + passed_s * self.per_minute / MINUTE_S), now
        if bucket.left < 1:
            return math.ceil((1 - bucket.left) * MINUTE_S / self.per_minute)
        bucket.left -= 1
        return 0
