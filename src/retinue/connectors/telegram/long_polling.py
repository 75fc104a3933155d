"""Receives updates by long polling. The offset advances only past updates that the server has accepted.

While the server is still processing a message (for example a long download), polling continues from
the same offset. The message stays unconfirmed, and messages in other channels do not wait.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

import msgspec
from msgspec import Raw, Struct

from retinue.connectors.base import Accept, ConnectionLost, InboundMessage
from retinue.connectors.telegram import updates
from retinue.connectors.telegram.api_types import ALLOWED_UPDATES, TelegramUpdate, TelegramUser, UndecodedUpdate
from retinue.connectors.telegram.bot_api import BotApi, TelegramNoAnswer
from retinue.domain.ports import Clock

UPDATES_MAX = 100
ALBUM_WAIT_S = 0.4  # the parts of an album arrive separately, moments apart
ALBUM_POLLS_MAX = 5
ACCEPT_WAIT_S = 0.3  # Time for the server to accept one message before the next one of the same channel is passed too.
FINISH_S = 5.0  # for the messages of other channels, after a message failed

log = logging.getLogger(__name__)

UpdateBatch = Sequence[TelegramUpdate | UndecodedUpdate]
GetUpdates = Callable[[int | None, int], Awaitable[UpdateBatch]]
"""Requests updates, beginning at an offset. The second argument is the maximum time to wait, in seconds."""


class PolledMessage(Struct, frozen=True, kw_only=True):
    """One received message, and the updates that it consists of."""

    incoming: InboundMessage
    update_ids: tuple[int, ...]


class _EarlierMessageFailed(Exception):
    """An earlier message of the same channel was not accepted, so the later message must wait."""


async def get_updates(api: BotApi, offset: int | None, *, poll_s: int) -> UpdateBatch:
    """Return at most 100 updates, beginning at the offset. The request confirms all earlier updates."""
    arguments: dict[str, object] = {
        "timeout": poll_s,
        "limit": UPDATES_MAX,
        "allowed_updates": ALLOWED_UPDATES,
    }
    if offset is not None:
        arguments["offset"] = offset
    found = await api.call("getUpdates", arguments, result=list[Raw], wait_s=poll_s)
    try:
        parsed = [updates.parse_update(each) for each in found]
    except msgspec.MsgspecError:
        raise TelegramNoAnswer("getUpdates", because="an update has no id") from None
    return list({each.update_id: each for each in parsed}.values())  # a repeated update would look like an album of two


class LongPoller:
    """Polls Telegram and passes the messages to the server, until the connection breaks."""

    def __init__(
        self,
        get_updates: GetUpdates,
        me: TelegramUser,
        *,
        accept: Accept,
        before_accept: Callable[[InboundMessage], Awaitable[None]],
        confirm: Callable[[int], Awaitable[None]],
        fetch: updates.FetchFile,
        clock: Clock,
        connector_name: str,
        poll_s: int,
    ) -> None:
        """`before_accept` is called with each message before the server accepts it. `confirm` stores an offset."""
        self._get_updates = get_updates
        self._me = me
        self._accept = accept
        self._before_accept = before_accept
        self._confirm = confirm
        self._fetch = fetch
        self._clock = clock
        self._connector_name = connector_name
        self._poll_s = poll_s
        self._tasks: dict[int, asyncio.Task[None]] = {}  # by update id, until all updates before it are confirmed
        self._channel_tasks: dict[str, asyncio.Task[None]] = {}  # the latest task of each channel

    async def run(self, offset: int | None) -> None:
        """Poll until the connection breaks or `accept` raises an error. Only accepted messages are confirmed."""
        try:
            while True:
                batch = await self._get_updates(offset, self._poll_s if not self._tasks else 0)
                if offset is None and batch:
                    offset = batch[0].update_id
                if fresh := await self._wait_for_albums(self._find_new_updates(batch), offset):
                    self._start_accepting(fresh)
                offset = await self._confirm_accepted(offset)
        finally:
            await self._cancel_tasks()

    def _find_new_updates(self, batch: UpdateBatch) -> UpdateBatch:
        return [each for each in batch if each.update_id not in self._tasks]

    async def _wait_for_albums(self, batch: UpdateBatch, offset: int | None) -> UpdateBatch:
        """Poll again until the albums in the batch stop growing, and return the complete batch."""
        for _ in range(ALBUM_POLLS_MAX):
            albums = _count_albums(batch)
            if not albums:
                return batch
            await self._clock.sleep(ALBUM_WAIT_S)
            again = self._find_new_updates(await self._get_updates(offset, 0))
            if len(again) < len(batch):
                return batch  # this server does not send unconfirmed updates again
            batch = again
            if _count_albums(batch) == albums:
                break
        return _drop_incomplete_album(batch, is_full=len(batch) + len(self._tasks) >= UPDATES_MAX)

    def _start_accepting(self, batch: UpdateBatch) -> None:
        """Pass the messages to the server: channels concurrently, the messages of each channel in order."""
        for message in read_messages(batch, me=self._me, fetch=self._fetch, connector_name=self._connector_name):
            channel = message.incoming.channel
            task = asyncio.create_task(
                self._accept_in_order(message.incoming, self._channel_tasks.get(channel)), name=channel
            )
            self._channel_tasks[channel] = task
            self._tasks |= dict.fromkeys(message.update_ids, task)
        nothing = asyncio.create_task(asyncio.sleep(0))
        self._tasks |= {each.update_id: nothing for each in self._find_new_updates(batch)}

    async def _accept_in_order(self, incoming: InboundMessage, previous: asyncio.Task[None] | None) -> None:
        """Accept a message after the previous one from the same chat."""
        if previous is not None:
            await asyncio.wait([previous], timeout=ACCEPT_WAIT_S)
            if _has_failed(previous):
                raise _EarlierMessageFailed
        await self._before_accept(incoming)
        await self._accept(incoming)

    async def _confirm_accepted(self, offset: int | None) -> int | None:
        """Wait briefly for messages in progress. Then confirm accepted updates, and return the new offset.

        All updates before the first one that is not accepted are confirmed.
        """
        tasks = set(self._tasks.values())
        if not tasks:
            return offset
        await asyncio.wait(tasks, timeout=ACCEPT_WAIT_S, return_when=asyncio.FIRST_EXCEPTION)
        failed = [each for each in tasks if _has_failed(each)]
        if failed:
            await self._stop_failed_channels(failed)
        left = [number for number, task in self._tasks.items() if not _has_succeeded(task)]
        reached = min(left, default=max(self._tasks) + 1)
        if reached != offset:
            await self._confirm(reached)
        self._tasks = {number: task for number, task in self._tasks.items() if number >= reached}
        self._channel_tasks = {channel: task for channel, task in self._channel_tasks.items() if not task.done()}
        if failed:
            raise _find_cause(failed)
        return reached

    async def _stop_failed_channels(self, failed: Sequence[asyncio.Task[None]]) -> None:
        """Stop accepting messages after a failure.

        No message may overtake the failed message in its channel. Tasks of other channels may finish, so
        that a message that always fails does not block the other channels forever.
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
        await self._cancel_tasks()

    async def _cancel_tasks(self) -> None:
        """Cancel the tasks of all messages in progress."""
        tasks = set(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _has_succeeded(task: asyncio.Task[None]) -> bool:
    return task.done() and not task.cancelled() and task.exception() is None


def _has_failed(task: asyncio.Task[None]) -> bool:
    return task.done() and not _has_succeeded(task)


def _find_cause(failed: Sequence[asyncio.Task[None]]) -> BaseException:
    """Return the error that the server raised, not an error of a later message that had to wait."""
    for each in failed:
        if (
            not each.cancelled()
            and (error := each.exception()) is not None
            and not isinstance(error, _EarlierMessageFailed)
        ):
            return error
    return ConnectionLost(
        "a message was not stored", because="the server was stopping", try_this="wait until Telegram delivers it again"
    )


def read_messages(
    batch: UpdateBatch, *, me: TelegramUser, fetch: updates.FetchFile, connector_name: str
) -> list[PolledMessage]:
    """Return the messages in a batch, in order.

    The parts of an album become one message, at the place of the first part.
    """
    found: dict[str, list[tuple[int, InboundMessage]]] = {}
    for update in batch:
        if not isinstance(update, TelegramUpdate):
            log.warning("invalid update", extra={"connector": connector_name, "update": update.update_id})
            continue
        incoming = updates.to_inbound(update, me=me, fetch=fetch)
        if incoming is not None:
            album = f"{incoming.channel} {_get_album_id(update)}" if _get_album_id(update) else f"#{update.update_id}"
            found.setdefault(album, []).append((update.update_id, incoming))
    return [
        PolledMessage(
            incoming=updates.merge_album([incoming for _, incoming in parts]),
            update_ids=tuple(update_id for update_id, _ in parts),
        )
        for parts in found.values()
    ]


def _count_albums(batch: UpdateBatch) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for each in batch:
        if album := _get_album_id(each):
            sizes[album] = sizes.get(album, 0) + 1
    return sizes


def _get_album_id(update: TelegramUpdate | UndecodedUpdate) -> str:
    return update.message.media_group_id if isinstance(update, TelegramUpdate) and update.message is not None else ""


def _drop_incomplete_album(batch: UpdateBatch, *, is_full: bool) -> UpdateBatch:
    """Remove an album at the end of a full batch, because its other parts may be in the next batch."""
    album = _get_album_id(batch[-1]) if is_full else ""
    if not album:
        return batch
    first = next(at for at, each in enumerate(batch) if _get_album_id(each) == album)
    return batch[:first] or batch
