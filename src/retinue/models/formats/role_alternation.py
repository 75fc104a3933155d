"""Joins encoded records into turns, for formats in which roles must alternate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from retinue.domain.record import Record, RecordKind

# User text before a conversation that begins with the model, and after one that ends with it.
OPENING = "[The conversation goes on here.]"
GO_ON = "[Go on.]"

_ASSISTANT, _TOOL = RecordKind.ASSISTANT, RecordKind.TOOL  # looked up once: used for every request
_CLOSE = b"]}"
_CLOSE_AND = b"]},"


MARKED_MAX = 2  # user turns from the end that a format may mark; some providers accept at most four breakpoints
SETTLED_MIN = 64  # pieces that are joined at once


class Joined:
    """Pieces of a list. Pieces that no longer change are merged, so that old history is not iterated again."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self._settled = 1  # the first stays separate: a format may have to remove its comma

    def add(self, records: Sequence[Record], wires: Sequence[bytes]) -> None:
        self.pieces += filter(None, wires)
        self.settle(len(self.pieces))

    def settle(self, end: int) -> int:
        """Merge the pieces before `end`, which no longer change. Returns how many fewer there are now."""
        if end - self._settled < SETTLED_MIN:
            return 0
        slab = b"".join(self.pieces[self._settled : end])
        gone = end - self._settled - 1
        self.pieces[self._settled : end] = (slab,)
        self._settled += 1
        return gone


class Sides(NamedTuple):
    """The bytes that begin a user or model turn in a format, and the inserted user texts."""

    user: bytes
    model: bytes
    opening: bytes
    go_on: bytes


class Turns:
    """Alternating turns that begin and end with the user, as pieces of a list.

    Records can be added incrementally.

    A record without bytes is skipped. Tool results come first in their turn, in order: nothing may
    be between a call and its result.
    """

    def __init__(self, sides: Sides) -> None:
        self._sides = sides
        self._to_user, self._to_model = _CLOSE_AND + sides.user, _CLOSE_AND + sides.model
        self._joined = Joined()
        self._out = self._joined.pieces
        self._ends: list[int] = []  # the last pieces of the user turns that are complete
        self._by_model: bool | None = None
        self._words_at = -1  # in a user turn, where the first piece that is not a tool result begins

    def add(self, records: Sequence[Record], wires: Sequence[bytes]) -> None:
        out, ends, by_model, words_at = self._out, self._ends, self._by_model, self._words_at
        for record, wire in zip(records, wires, strict=True):
            if not wire:
                continue
            kind = record.kind
            if (kind is _ASSISTANT) is by_model:
                if kind is _TOOL and words_at >= 0:
                    out[words_at:words_at] = (wire, b",")
                    words_at += 2
                    continue
                out.append(b",")
            elif kind is _ASSISTANT:
                if by_model is None:
                    out += (self._sides.user, self._sides.opening)
                ends.append(len(out) - 1)
                out.append(self._to_model)
                by_model = True
            else:
                out.append(self._sides.user if by_model is None else self._to_user)
                by_model, words_at = False, -1
            if words_at < 0 and kind is not _TOOL and not by_model:
                words_at = len(out)
            out.append(wire)
        self._by_model, self._words_at = by_model, words_at
        self._settle()

    def told(self, *, may_end_with_model: bool = False) -> tuple[list[bytes], list[int]]:
        """Return all turns so far, closed, and the indices of the pieces that end user turns (at least the last)."""
        out, ends = list(self._out), list(self._ends)
        by_model = self._by_model
        if by_model is None:
            out += (self._sides.user, self._sides.opening)
        elif by_model and not may_end_with_model:
            out += (self._to_user, self._sides.go_on)
            by_model = False
        if not by_model:
            ends.append(len(out) - 1)
        out.append(_CLOSE)
        return out, ends

    def _settle(self) -> None:
        """Merge what comes before the turns that may still be marked."""
        if len(self._ends) <= MARKED_MAX:
            return
        del self._ends[:-MARKED_MAX]
        gone = self._joined.settle(self._ends[0])
        if gone:
            self._ends = [end - gone for end in self._ends]
            self._words_at = self._words_at - gone if self._words_at >= 0 else -1
