"""Trust: how far the server trusts content, depending on its source.

The trust is stored with every envelope, record, tool result and file.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum


class Trust(StrEnum):
    OWNER = "owner"
    PERSON = "person"
    AGENT = "agent"
    PRIVATE = "private"  # content of the server: its files, tools and notices
    UNTRUSTED = "untrusted"  # from outside, or derived from something that was


_BEST_FIRST = tuple(Trust)
_RANK = {trust: rank for rank, trust in enumerate(_BEST_FIRST)}


def least_trust(trusts: Iterable[Trust], *, default: Trust = Trust.PRIVATE) -> Trust:
    """Return the trust of content that is derived from several sources: the lowest trust of any source."""
    return max(trusts, key=_RANK.__getitem__, default=default)
