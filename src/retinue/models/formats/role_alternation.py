"""Joins encoded records into turns, for formats in which roles must alternate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from retinue.domain.record import Record, RecordKind

# User text before a conversation that begins with the model, and after one that ends with it.
OPENING_TEXT = "[The conversation goes on here.]"
CONTINUE_TEXT = "[Go on.]"

_ASSISTANT, _TOOL = RecordKind.ASSISTANT, RecordKind.TOOL  # looked up once: used for every request
_CLOSE = b"]}"
_CLOSE_AND_CONTINUE = b"]},"


MARKED_TURNS_MAX = 2  # user turns from the end that a format may mark; some providers accept at most four breakpoints
MERGED_PIECES_MIN = 64  # minimum number of pieces to merge at once


class JoinedPieces:
    """The pieces of an encoded message list.

    Pieces that no longer change are merged, so that the whole history is not iterated for every request.
    """

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self._merged_count = 1  # the first stays separate: a format may have to remove its comma

    def add(self, records: Sequence[Record], encoded: Sequence[bytes]) -> None:
        self.pieces += filter(None, encoded)
        self.merge_until(len(self.pieces))

    def merge_until(self, end: int) -> int:
        """Merge the pieces before `end`, which no longer change. Returns by how many pieces the list has shrunk."""
        if end - self._merged_count < MERGED_PIECES_MIN:
            return 0
        slab = b"".join(self.pieces[self._merged_count : end])
        gone = end - self._merged_count - 1
        self.pieces[self._merged_count : end] = (slab,)
        self._merged_count += 1
        return gone


class RoleTemplates(NamedTuple):
    """The bytes that begin a user or model turn in a format, and the user texts that are inserted between turns."""

    user: bytes
    model: bytes
    opening: bytes
    continuation: bytes


class AlternatingTurns:
    """Builds alternating turns that begin and end with the user, as pieces of a message list.

    Records can be added incrementally. A record whose encoding is empty is skipped. Tool results
    come first in their turn, in order, because nothing may be between a call and its result.
    """

    def __init__(self, templates: RoleTemplates) -> None:
        self._templates = templates
        self._to_user, self._to_model = _CLOSE_AND_CONTINUE + templates.user, _CLOSE_AND_CONTINUE + templates.model
        self._joined = JoinedPieces()
        self._pieces = self._joined.pieces
        self._user_turn_ends: list[int] = []  # the last pieces of the user turns that are complete
        self._is_model_turn: bool | None = None
        self._text_index = -1  # in a user turn, where the first piece that is not a tool result begins

    def add(self, records: Sequence[Record], encoded: Sequence[bytes]) -> None:
        out, ends, by_model, words_at = self._pieces, self._user_turn_ends, self._is_model_turn, self._text_index
        for record, wire in zip(records, encoded, strict=True):
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
                    out += (self._templates.user, self._templates.opening)
                ends.append(len(out) - 1)
                out.append(self._to_model)
                by_model = True
            else:
                out.append(self._templates.user if by_model is None else self._to_user)
                by_model, words_at = False, -1
            if words_at < 0 and kind is not _TOOL and not by_model:
                words_at = len(out)
            out.append(wire)
        self._is_model_turn, self._text_index = by_model, words_at
        self._merge_old_pieces()

    def close_turns(self, *, can_end_with_model: bool = False) -> tuple[list[bytes], list[int]]:
        """Return the pieces of all turns, and the index of the last piece of each recent user turn.

        The last turn is closed, but only in the returned list: more records can be added.
        """
        out, ends = list(self._pieces), list(self._user_turn_ends)
        by_model = self._is_model_turn
        if by_model is None:
            out += (self._templates.user, self._templates.opening)
        elif by_model and not can_end_with_model:
            out += (self._to_user, self._templates.continuation)
            by_model = False
        if not by_model:
            ends.append(len(out) - 1)
        out.append(_CLOSE)
        return out, ends

    def _merge_old_pieces(self) -> None:
        """Merge the pieces before the turns that may still get a cache breakpoint."""
        if len(self._user_turn_ends) <= MARKED_TURNS_MAX:
            return
        del self._user_turn_ends[:-MARKED_TURNS_MAX]
        gone = self._joined.merge_until(self._user_turn_ends[0])
        if gone:
            self._user_turn_ends = [end - gone for end in self._user_turn_ends]
            self._text_index = self._text_index - gone if self._text_index >= 0 else -1
