"""Encoded records as the turns of a conversation, for the formats in which these must alternate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from retinue.domain.record import Record, RecordKind

# Said for the user before a conversation that begins with the model, and after one that ends with it.
OPENING = "[The conversation goes on here.]"
GO_ON = "[Go on.]"

_ASSISTANT, _TOOL = RecordKind.ASSISTANT, RecordKind.TOOL  # looked up once: this is run over for every request
_CLOSE = b"]}"
_CLOSE_AND = b"]},"


class Sides(NamedTuple):
    """How a format begins what the user says, and what the model says; and what the user is made to say."""

    user: bytes
    model: bytes
    opening: bytes
    go_on: bytes


def turns(
    records: Sequence[Record], wires: Sequence[bytes], sides: Sides, *, may_end_with_model: bool = False
) -> tuple[list[bytes], list[int]]:
    """Turns that alternate, from the user to the user, as pieces of a list; and which pieces end the user's turns.

    A record without bytes is left out. The results of calls come first in their turn, in their order: nothing may stand
    between a call and its result.
    """
    out: list[bytes] = []
    ends: list[int] = []
    by_model: bool | None = None
    words_at = -1  # in a turn of the user, where something begins that is no result
    to_user, to_model = _CLOSE_AND + sides.user, _CLOSE_AND + sides.model
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
                out += (sides.user, sides.opening)
            ends.append(len(out) - 1)
            out.append(to_model)
            by_model = True
        else:
            out.append(sides.user if by_model is None else to_user)
            by_model, words_at = False, -1
        if words_at < 0 and kind is not _TOOL and not by_model:
            words_at = len(out)
        out.append(wire)
    if by_model is None:
        out += (sides.user, sides.opening)
    elif by_model and not may_end_with_model:
        out += (to_user, sides.go_on)
        by_model = False
    if not by_model:
        ends.append(len(out) - 1)
    out.append(_CLOSE)
    return out, ends
