"""Pages of what is sorted by time, newest first, of which few may fit: a walk along an index in windows that widen.

However few there are that fit, a page looks at a bounded number, and the next one goes on where it has stopped.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from msgspec import Struct

T = TypeVar("T")

WIDER = 4  # times as wide is the next window
AFTER_ALL_IDS = "g"  # which comes after every hex digit


class Place(Struct, frozen=True):
    """Where one stands: behind what is of that moment and has this id."""

    ms: int = 2**62
    id: str = AFTER_ALL_IDS


# What fits behind a place, within a window of so many, at most so many of it; and where to go on, if there is more.
Window = Callable[[Place, int, int], tuple[list[T], Place | None]]


def walk(window: Window[T], *, after: Place, limit: int, looked_at_max: int) -> tuple[list[T], Place | None]:
    """A page, and where the next one begins, if there may be one. At least one window is looked at."""
    shown: list[T] = []
    width, looked = limit + 1, 0
    while True:
        found, place = window(after, width, limit - len(shown))
        shown += found
        looked, width = looked + width, width * WIDER
        if place is None or len(shown) == limit or looked >= looked_at_max:
            return shown, place
        after = place
