"""Keyset pagination for queries that match only a few of many rows, sorted by time, newest first.

For each page, an index is scanned in windows of growing size. The number of scanned rows is limited
even if few of them match. The next page resumes where the scan stopped.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from msgspec import Struct

T = TypeVar("T")

WINDOW_GROWTH = 4  # factor by which each window is larger than the one before
AFTER_ALL_IDS = "g"  # sorts after every id: ids are hex digits


class KeysetPosition(Struct, frozen=True):
    """Keyset position: resume after (timestamp, id)."""

    ms: int = 2**62
    id: str = AFTER_ALL_IDS


# Arguments: position, window size, maximum matches. Returns the matches and, if there is more, where to resume.
FetchWindow = Callable[[KeysetPosition, int, int], tuple[list[T], KeysetPosition | None]]


def paginate(
    window: FetchWindow[T], *, after: KeysetPosition, limit: int, scanned_max: int
) -> tuple[list[T], KeysetPosition | None]:
    """Return one page, and the position of the next page or None.

    Windows are read until the page is full, no rows are left, or `scanned_max` rows were scanned.
    """
    shown: list[T] = []
    width, looked = limit + 1, 0
    while True:
        found, place = window(after, width, limit - len(shown))
        shown += found
        looked, width = looked + width, width * WINDOW_GROWTH
        if place is None or len(shown) == limit or looked >= scanned_max:
            return shown, place
        after = place
