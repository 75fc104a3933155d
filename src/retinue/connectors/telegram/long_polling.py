"""Receives updates by long polling. The offset advances only over updates that the server has
accepted.

While the server is still processing a message (a long download, or coalescing), polling continues
from the same offset. That confirms nothing, and messages in other channels do not wait.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

import msgspec
from msgspec import Raw, Struct

from retinue.connectors.base import Accept, Incoming, LineLost
from retinue.connectors.telegram import updates
from retinue.connectors.telegram.api_types import ALLOWED_UPDATES, Update, UpdateId, User
from retinue.connectors.telegram.bot_api import Api, NoAnswer
from retinue.domain.ports import Clock

UPDATES_AT_ONCE = 100
ALBUM_WAIT_S = 0.4  # the parts of an album arrive separately, moments apart
ALBUM_LOOKS_MAX = 5
PATIENCE_S = 0.3  # Time for the server to accept one message before the next one of the same channel is passed too.
FINISH_S = 5.0  # for the other channels, after a message of one failed

log = logging.getLogger(__name__)

News = Sequence[Update | UpdateId]
Ask = Callable[[int | None, int], Awaitable[News]]
"""Asks for news from an offset on, and says how long Telegram may keep us waiting for them, in seconds."""


class Said(Struct, frozen=True, kw_only=True):
    """One received message, and the updates that it consists of."""

    incoming: Incoming
    update_ids: tuple[int, ...]


class _NotOffered(Exception):
    """An earlier message of the same channel was not accepted, so this one has to wait for it."""


async def news(api: Api, offset: int | None, *, poll_s: int) -> News:
    """The updates from an offset on, at most one hundred. The request confirms all updates before
    the offset."""
    arguments: dict[str, object] = {
        "timeout": poll_s,
        "limit": UPDATES_AT_ONCE,
        "allowed_updates": ALLOWED_UPDATES,
    }
    if offset is not None:
        arguments["offset"] = offset
    found = await api.call("getUpdates", arguments, result=list[Raw], wait_s=poll_s)
    try:
        told = [updates.read(each) for each in found]
    except msgspec.MsgspecError:
        raise NoAnswer("Telegram told news that are none", because="one has no number") from None
    return list({each.update_id: each for each in told}.values())  # a repeated update would look like an album of two


class Listening:
    """Polls and accepts messages on one connection, from the first request until it breaks."""

    def __init__(
        self,
        ask: Ask,
        me: User,
        *,
        accept: Accept,
        first: Callable[[Incoming], Awaitable[None]],
        confirm: Callable[[int], Awaitable[None]],
        fetch: updates.Fetch,
        clock: Clock,
        instance: str,
        poll_s: int,
    ) -> None:
        """`before_accept` is called with each message before the server accepts it. `confirm`
        stores an offset."""
        self._ask = ask
        self._me = me
        self._accept = accept
        self._first = first
        self._confirm = confirm
        self._fetch = fetch
        self._clock = clock
        self._instance = instance
        self._poll_s = poll_s
        self._tasks: dict[int, asyncio.Task[None]] = {}  # by update id, until all before it are confirmed
        self._rooms: dict[str, asyncio.Task[None]] = {}  # the latest task of each channel

    async def hear(self, offset: int | None) -> None:
        """Poll until the connection breaks or `accept` raises. Messages that were not accepted are
        not confirmed."""
        try:
            while True:
                batch = await self._ask(offset, self._poll_s if not self._tasks else 0)
                if offset is None and batch:
                    offset = batch[0].update_id
                if fresh := await self._whole(self._unknown(batch), offset):
                    self._hand_in(fresh)
                offset = await self._settled(offset)
        finally:
            await self._let_go()

    def _unknown(self, batch: News) -> News:
        return [each for each in batch if each.update_id not in self._tasks]

    async def _whole(self, batch: News, offset: int | None) -> News:
        """The batch, polled again until no album in it grows any more."""
        for _ in range(ALBUM_LOOKS_MAX):
            albums = _albums(batch)
            if not albums:
                return batch
            await self._clock.sleep(ALBUM_WAIT_S)
            again = self._unknown(await self._ask(offset, 0))
            if len(again) < len(batch):
                return batch  # a server that sends nothing twice
            batch = again
            if _albums(batch) == albums:
                break
        return _without_cut_album(batch, full=len(batch) + len(self._tasks) >= UPDATES_AT_ONCE)

    def _hand_in(self, batch: News) -> None:
        """Pass the messages to the server: channels concurrently, and each channel in order."""
        for said in said_in(batch, me=self._me, fetch=self._fetch, instance=self._instance):
            room = said.incoming.room
            task = asyncio.create_task(self._offer(said.incoming, self._rooms.get(room)), name=room)
            self._rooms[room] = task
            self._tasks |= dict.fromkeys(said.update_ids, task)
        nothing = asyncio.create_task(asyncio.sleep(0))
        self._tasks |= {each.update_id: nothing for each in self._unknown(batch)}

    async def _offer(self, incoming: Incoming, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await asyncio.wait([before], timeout=PATIENCE_S)
            if _is_failed(before):
                raise _NotOffered
        await self._first(incoming)
        await self._accept(incoming)

    async def _settled(self, offset: int | None) -> int | None:
        """Wait briefly for messages in progress. Confirm those accepted, up to the first that is
        not."""
        tasks = set(self._tasks.values())
        if not tasks:
            return offset
        await asyncio.wait(tasks, timeout=PATIENCE_S, return_when=asyncio.FIRST_EXCEPTION)
        failed = [each for each in tasks if _is_failed(each)]
        if failed:
            await self._end_after(failed)
        left = [number for number, task in self._tasks.items() if not _is_taken(task)]
        reached = min(left, default=max(self._tasks) + 1)
        if reached != offset:
            await self._confirm(reached)
        self._tasks = {number: task for number, task in self._tasks.items() if number >= reached}
        self._rooms = {room: task for room, task in self._rooms.items() if not task.done()}
        if failed:
            raise _why(failed)
        return reached

    async def _end_after(self, failed: Sequence[asyncio.Task[None]]) -> None:
        """Stop after a failure.

        Nothing may overtake the failed message in its channel. Tasks of other channels may finish,
        so that one message that always fails does not block them forever.
        """
        rooms = {each.get_name() for each in failed}
        others: set[asyncio.Task[None]] = set()
        for task in set(self._tasks.values()):
            if task.get_name() in rooms:
                task.cancel()
            else:
                others.add(task)
        if others:
            await asyncio.wait(others, timeout=FINISH_S)
        await self._let_go()

    async def _let_go(self) -> None:
        """Cancel all messages in progress."""
        tasks = set(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _is_taken(task: asyncio.Task[None]) -> bool:
    return task.done() and not task.cancelled() and task.exception() is None


def _is_failed(task: asyncio.Task[None]) -> bool:
    return task.done() and not _is_taken(task)


def _why(failed: Sequence[asyncio.Task[None]]) -> BaseException:
    """The error that the server raised, not one that followed from it."""
    for each in failed:
        if not each.cancelled() and (error := each.exception()) is not None and not isinstance(error, _NotOffered):
            return error
    return LineLost("the house let go of what was said", because="it was interrupted, and will be offered it again")


def said_in(batch: News, *, me: User, fetch: updates.Fetch, instance: str) -> list[Said]:
    """The messages in a batch, in order. The parts of an album become one message, at the place of
    the first part."""
    found: dict[str, list[tuple[int, Incoming]]] = {}
    for update in batch:
        if not isinstance(update, Update):
            log.warning("update not understood", extra={"connector": instance, "update": update.update_id})
            continue
        incoming = updates.heard(update, me=me, fetch=fetch)
        if incoming is not None:
            album = f"{incoming.room} {_album_of(update)}" if _album_of(update) else f"#{update.update_id}"
            found.setdefault(album, []).append((update.update_id, incoming))
    return [
        Said(
            incoming=updates.as_one([incoming for _, incoming in parts]),
            update_ids=tuple(update_id for update_id, _ in parts),
        )
        for parts in found.values()
    ]


def _albums(batch: News) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for each in batch:
        if album := _album_of(each):
            sizes[album] = sizes.get(album, 0) + 1
    return sizes


def _album_of(update: Update | UpdateId) -> str:
    return update.message.media_group_id if isinstance(update, Update) and update.message is not None else ""


def _without_cut_album(batch: News, *, full: bool) -> News:
    """Remove an album at the end of a full batch: its other parts may be in the next one."""
    album = _album_of(batch[-1]) if full else ""
    if not album:
        return batch
    first = next(at for at, each in enumerate(batch) if _album_of(each) == album)
    return batch[:first] or batch
