"""Limits the rate of log lines that outsiders can cause, so that a flood of messages does not flood the log."""

from __future__ import annotations

import logging
from collections import Counter

from retinue.domain.ports import Clock
from retinue.policy.limits.token_bucket import TokenBuckets

LINES_PER_MINUTE = 30  # log lines with the same phrase and connector
REMEMBERED_MAX = 1_000  # pairs of phrase and connector


class LogThrottle:
    """Logs at a limited rate. The field `left_out` counts skipped lines with the same phrase and connector."""

    def __init__(self, log: logging.Logger, clock: Clock) -> None:
        self._log = log
        self._clock = clock
        self._rates = TokenBuckets(per_minute=LINES_PER_MINUTE, buckets_max=REMEMBERED_MAX)
        self._left_out: Counter[str] = Counter()

    def info(self, phrase: str, connector: str, **fields: str) -> None:
        self._log_limited(logging.INFO, phrase, connector, fields)

    def warning(self, phrase: str, connector: str, **fields: str) -> None:
        self._log_limited(logging.WARNING, phrase, connector, fields)

    def _log_limited(self, level: int, phrase: str, connector: str, fields: dict[str, str]) -> None:
        kind = f"{connector}/{phrase}"
        if self._rates.take(kind, self._clock.now().timestamp()):
            self._left_out[kind] += 1
            return
        left_out = self._left_out.pop(kind, 0)
        extra = {"connector": connector, **fields, **({"left_out": left_out} if left_out else {})}
        self._log.log(level, phrase, extra=extra)
