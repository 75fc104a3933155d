"""An in-memory cache with a TTL and limits on the number and size of entries."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from datetime import datetime, timedelta
from typing import Generic, TypeVar

from retinue.domain.ports import Clock

CACHE_TTL_S = 15 * 60.0
CACHE_ENTRIES_MAX = 100
CACHE_SIZE_MAX = 32 * 1024 * 1024

T = TypeVar("T")


class TtlCache(Generic[T]):
    """A cache that removes entries older than `ttl_s`. Beyond a limit, it removes the least recently used entries."""

    def __init__(
        self,
        clock: Clock,
        *,
        ttl_s: float = CACHE_TTL_S,
        entries_max: int = CACHE_ENTRIES_MAX,
        size_max: int = CACHE_SIZE_MAX,
    ) -> None:
        self._clock = clock
        self._ttl = timedelta(seconds=ttl_s)
        self._entries_max = entries_max
        self._size_max = size_max
        self._entries: OrderedDict[Hashable, tuple[datetime, int, T]] = OrderedDict()
        self._size = 0

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: Hashable) -> T | None:
        entry = self._entries.get(key)
        if entry is None:
            return None
        at, _, value = entry
        # If the clock was set back, the entry would look new for too long.
        if not timedelta() <= self._clock.now() - at < self._ttl:
            self._remove(key)
            return None
        self._entries.move_to_end(key)
        return value

    def put(self, key: Hashable, value: T, *, size: int = 0) -> None:
        self._remove(key)
        if size > self._size_max:
            return
        self._entries[key] = (self._clock.now(), size, value)
        self._size += size
        while len(self._entries) > self._entries_max or self._size > self._size_max:
            self._remove(next(iter(self._entries)))

    def _remove(self, key: Hashable) -> None:
        if (entry := self._entries.pop(key, None)) is not None:
            self._size -= entry[1]
