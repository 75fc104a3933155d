"""Reads earlier messages of the owner that a summary has replaced in the context."""

from __future__ import annotations

from functools import partial

from msgspec import Struct

from retinue.domain.ids import SessionId
from retinue.domain.record import Record, Summary
from retinue.store.core.connection import Store
from retinue.store.sessions import records

OWNER_TURNS_MAX = 200  # owner turns behind a summary that still count for provenance


class EarlierOwnerTurns(Struct, frozen=True):
    """Reads the owner's messages that a summary replaced.

    They are needed to determine provenance: a model wrote the summary, but the original messages
    are the owner's text.
    """

    store: Store

    async def __call__(self, session: SessionId, context: list[Record]) -> list[Record]:
        summary = next((record.body for record in context[:1] if isinstance(record.body, Summary)), None)
        if summary is None:
            return []
        read = partial(records.list_owner_turns, session=session, before=summary.kept_from, limit=OWNER_TURNS_MAX)
        return await self.store.scan(read)
