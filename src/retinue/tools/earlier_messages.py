"""What was said before, and does not stand in a context any more."""

from __future__ import annotations

from functools import partial

from msgspec import Struct

from retinue.domain.ids import SessionId
from retinue.domain.record import Record, Summary
from retinue.store.core.connection import Store
from retinue.store.sessions import records

OWNER_TURNS_MAX = 200  # that a summary stands for, and which still explain


class EarlierWords(Struct, frozen=True):
    """What the owner said before a summary took its place. The summary is a model's; these are still theirs."""

    store: Store

    async def __call__(self, session: SessionId, context: list[Record]) -> list[Record]:
        summary = next((record.body for record in context[:1] if isinstance(record.body, Summary)), None)
        if summary is None:
            return []
        read = partial(records.owner_turns, session=session, before=summary.kept_from, limit=OWNER_TURNS_MAX)
        return await self.store.scan(read)
