"""Encoded records as the turns of a conversation, for the formats in which these must alternate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from retinue.domain.record import Record, RecordKind

# Said for the user before a conversation that begins with the model, and after one that ends with it.
OPENING = "[The conversation goes on here.]"
GO_ON = "[Go on.]"


class Turn(NamedTuple):
    """What one side said before the other did, record by record."""

    by_model: bool
    wires: list[bytes]


def turns(records: Sequence[Record], wires: Sequence[bytes]) -> list[Turn]:
    """Turns that alternate, each with at least one record in it. A record without bytes is left out.

    The results of calls come first in their turn: nothing may stand between a call and its result.
    """
    found: list[Turn] = []
    by_model: bool | None = None
    said: list[bytes] = []
    results = 0
    for record, wire in zip(records, wires, strict=True):
        if not wire:
            continue
        kind = record.kind
        if (kind is RecordKind.ASSISTANT) is not by_model:
            by_model = kind is RecordKind.ASSISTANT
            said, results = [], 0
            found.append(Turn(by_model, said))
        if kind is RecordKind.TOOL:
            said.insert(results, wire)
            results += 1
        else:
            said.append(wire)
    return found
