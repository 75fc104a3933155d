"""State that all file tools share: withheld paths, trust labels of files and a lock for each file."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar
from weakref import WeakValueDictionary

from retinue.domain.ports import Clock
from retinue.domain.protected_paths import ProtectedPaths
from retinue.domain.times import to_ms
from retinue.domain.trust import Trust
from retinue.store.agents import file_trust
from retinue.store.core.connection import Store
from retinue.store.envelopes.attachment_files import AttachmentFiles
from retinue.tools.base import ToolContext
from retinue.tools.files.file_snapshot import FileSnapshot

T = TypeVar("T")

HASH_INLINE_BYTES_MAX = 64 * 1024  # faster than starting a thread


@dataclass(frozen=True, slots=True, kw_only=True)
class FileServices:
    """Holds what all file tools of a server share, including a lock for each file.

    The lock ensures that no other tool call comes between writing a file and storing its trust
    label.
    """

    store: Store
    clock: Clock
    files: AttachmentFiles
    withheld: ProtectedPaths
    redact: Callable[[str], str] = str  # redacts secrets in partial output
    _locks: WeakValueDictionary[str, asyncio.Lock] = field(
        default_factory=WeakValueDictionary[str, asyncio.Lock], repr=False
    )

    @asynccontextmanager
    async def lock_file(self, real: str) -> AsyncGenerator[None]:
        lock = self._locks.setdefault(real, asyncio.Lock())
        async with lock:
            yield

    async def trust_of(self, real: str, snapshot: FileSnapshot) -> Trust:
        hash_ = (
            snapshot.hash
            if len(snapshot.data) <= HASH_INLINE_BYTES_MAX
            else await asyncio.to_thread(lambda: snapshot.hash)
        )
        return await self.store.read(
            partial(file_trust.get_trust, path=real, ctime_ms=snapshot.ctime_ms, content=hash_)
        )

    async def labels_below(self, folder: str) -> file_trust.FileLabels:
        return await self.store.scan(partial(file_trust.get_directory_labels, folder=folder))

    async def mark_untrusted(self, paths: Sequence[str], context: ToolContext) -> None:
        at_ms = to_ms(self.clock.now())
        await self.store.write(
            partial(file_trust.mark_untrusted, paths=paths, at_ms=at_ms, run=context.run), point="label"
        )

    async def mark_clean(self, real: str, context: ToolContext, *, ctime_ms: int) -> None:
        """Remove the untrusted label of a file. Reads the store once, and commits only if the file has a label."""
        if await self.store.read(partial(file_trust.is_needed, path=real)):
            body = partial(file_trust.mark_clean, path=real, ctime_ms=ctime_ms, run=context.run)
            await self.store.write(body, point="label")


async def finish_in_thread(call: Callable[[], T]) -> T:
    """Run a call in a thread, and wait for its end even if the caller is cancelled.

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
