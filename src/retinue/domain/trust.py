"""How far words can be believed, by who they came from. Kept with every envelope, record, result and file."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum


class Trust(StrEnum):
    OWNER = "owner"
    PERSON = "person"
    AGENT = "agent"
    PRIVATE = "private"  # the house's own: its files, its tools, its notices
    UNTRUSTED = "untrusted"  # from outside, or made from something that was


_FROM_BEST = tuple(Trust)
_RANK = {trust: rank for rank, trust in enumerate(_FROM_BEST)}


def least(trusts: Iterable[Trust], *, default: Trust = Trust.PRIVATE) -> Trust:
    """What something made of all of these is: no better than the worst of them."""
    return max(trusts, key=_RANK.__getitem__, default=default)
