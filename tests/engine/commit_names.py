"""A store that records the names of its commits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from retinue.store.core.connection import AfterCommit, Store, TransactionBody


class CommitRecordingStore:
    """A store that records the point of each write, and can call a function before it."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.points: list[str] = []
        self.before: Callable[[str], None] = lambda point: None
        self.read = store.read
        self.scan = store.scan
        self.on_commit = store.on_commit
        self.close = store.close

    async def write(self, body: TransactionBody[Any], *, point: str, then: AfterCommit[Any] | None = None) -> Any:
        self.before(point)
        done = await self._store.write(body, point=point, then=then)
        self.points.append(point)
        return done
