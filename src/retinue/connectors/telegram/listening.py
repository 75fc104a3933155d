"""Hearing what is said: questions for news that stay open, and an offset that waits until the house has it all."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence

import msgspec
from msgspec import Raw, Struct

from retinue.connectors.base import Accept, Incoming
from retinue.connectors.telegram import updates
from retinue.connectors.telegram.api import Api, NoAnswer
from retinue.connectors.telegram.wire import ALLOWED_UPDATES, Update, UpdateId, User
from retinue.domain.ports import Clock

UPDATES_AT_ONCE = 100
ALBUM_WAIT_S = 0.4  # the parts of an album come one by one, within moments
ALBUM_LOOKS_MAX = 5

log = logging.getLogger(__name__)

News = Sequence[Update | UpdateId]


class Said(Struct, frozen=True, kw_only=True):
    """One thing that was said, and the updates that told it."""

    incoming: Incoming
    update_ids: tuple[int, ...]


async def news(api: Api, offset: int | None, *, poll_s: int) -> News:
    """What there is from an offset on, at most a hundred; asking so confirms whatever was before it."""
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
    return list({each.update_id: each for each in told}.values())  # what is told twice would be an album of two


async def with_whole_albums(api: Api, batch: News, clock: Clock) -> News:
    """The same news once no album in them grows any more. They are asked for again from their first one on, so
    that nothing is confirmed by it."""
    for _ in range(ALBUM_LOOKS_MAX):
        albums = _albums(batch)
        if not albums:
            return batch
        await clock.sleep(ALBUM_WAIT_S)
        again = await news(api, batch[0].update_id, poll_s=0)
        if len(again) < len(batch):
            return batch  # a server that tells nothing twice
        batch = again
        if _albums(batch) == albums:
            break
    return _without_cut_album(batch)


def _albums(batch: News) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for each in batch:
        if album := _album_of(each):
            sizes[album] = sizes.get(album, 0) + 1
    return sizes


def _album_of(update: Update | UpdateId) -> str:
    return update.message.media_group_id if isinstance(update, Update) and update.message is not None else ""


def _without_cut_album(batch: News) -> News:
    """A full batch may end in the middle of an album, which then is left for the next one."""
    album = _album_of(batch[-1]) if len(batch) == UPDATES_AT_ONCE else ""
    if not album:
        return batch
    first = next(at for at, each in enumerate(batch) if _album_of(each) == album)
    return batch[:first] or batch


def said_in(batch: News, *, me: User, fetch: updates.Fetch, instance: str) -> list[Said]:
    """What was said in them, in order; the parts of an album as one, where its first part stands."""
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


async def hand_in(
    said: Sequence[Said], accept: Accept, first: Callable[[Incoming], Awaitable[None]]
) -> tuple[set[int], BaseException | None]:
    """Offer it to the house: each room in its order, and the rooms side by side. Gives back the updates that it did not
    take, and why it did not take the first of them."""
    rooms: dict[str, list[Said]] = {}
    for each in said:
        rooms.setdefault(each.incoming.room, []).append(each)
    taken: set[int] = set()

    async def room(letters: Iterable[Said]) -> None:
        for letter in letters:
            await first(letter.incoming)
            await accept(letter.incoming)
            taken.update(letter.update_ids)

    ended = await asyncio.gather(*map(room, rooms.values()), return_exceptions=True)
    left = {update_id for each in said for update_id in each.update_ids} - taken
    return left, next((each for each in ended if each is not None), None)


def next_offset(batch: News, left: set[int]) -> int:
    """The first update that is not confirmed: one that the house did not take, or the next that comes."""
    return min(left, default=max(each.update_id for each in batch) + 1)
