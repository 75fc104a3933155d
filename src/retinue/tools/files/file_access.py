"""Shared state of the file tools: withheld paths, trust labels of files and a lock for each file."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar
from weakref import WeakValueDictionary

from retinue.domain.permission import Withheld
from retinue.domain.ports import Clock
from retinue.domain.times import to_ms
from retinue.domain.trust import Trust
from retinue.store.agents import file_trust
from retinue.store.core.connection import Store
from retinue.store.envelopes.attachment_files import Files
from retinue.tools.base import Scene
from retinue.tools.files.file_snapshot import Looked

T = TypeVar("T")

HASHED_AT_ONCE_BYTES = 64 * 1024  # faster than starting a thread


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """Shared by all file tools of a server.

    The lock per file ensures that no other tool call comes between a write and its trust label.
    """

    store: Store
    clock: Clock
    files: Files
    withheld: Withheld
    mask: Callable[[str], str] = str  # redacts secrets in partial output
    _locks: WeakValueDictionary[str, asyncio.Lock] = field(
        default_factory=WeakValueDictionary[str, asyncio.Lock], repr=False
    )

    @asynccontextmanager
    async def alone_with(self, real: str) -> AsyncGenerator[None]:
        lock = self._locks.setdefault(real, asyncio.Lock())
        async with lock:
            yield

    async def trust_of(self, real: str, looked: Looked) -> Trust:
        hash_ = (
            looked.hash if len(looked.data) <= HASHED_AT_ONCE_BYTES else await asyncio.to_thread(lambda: looked.hash)
        )
        return await self.store.read(partial(file_trust.label, path=real, ctime_ms=looked.ctime_ms, content=hash_))

    async def below(self, folder: str) -> file_trust.Labels:
        return await self.store.scan(partial(file_trust.below, folder=folder))

    async def mark_untrusted(self, paths: Sequence[str], scene: Scene) -> None:
        at_ms = to_ms(self.clock.now())
        await self.store.write(
            partial(file_trust.mark_untrusted, paths=paths, at_ms=at_ms, run=scene.run), point="label"
        )

    async def mark_clean(self, real: str, scene: Scene, *, ctime_ms: int) -> None:
        """Remove an untrusted label. Costs one read, and a commit only if a label exists."""
        if await self.store.read(partial(file_trust.is_needed, path=real)):
            body = partial(file_trust.mark_clean, path=real, ctime_ms=ctime_ms, run=scene.run)
            await self.store.write(body, point="label")


async def done_in_thread(call: Callable[[], T]) -> T:
    """Run a call in a thread, and wait for its end even if cancelled.

    Otherwise the thread could change the file after another caller has locked it.
    """
    working = asyncio.ensure_future(asyncio.to_thread(call))
    try:
        return await asyncio.shield(working)
    except asyncio.CancelledError:
        await asyncio.wait([working])
        if working.done() and not working.cancelled():
            working.exception()  # retrieve the exception so that asyncio does not log it
        raise
