"""Remembers the email threads with each correspondent, so that an answer goes to the right thread."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict

import msgspec
from msgspec import Struct

from retinue.connectors.base import Shelf
from retinue.connectors.email.email_addresses import digest
from retinue.connectors.email.message_builder import NEW_THREAD, Thread

THREADS_MAX = 50  # per correspondent; the least recently used is dropped first
IDS_MAX = 20  # per thread
CORRESPONDENTS_MAX = 256  # in memory; the connector state has the others
KEPT_CHARS_MAX = 60_000  # per correspondent: the connector state refuses much longer values
WHO_CHARS_MAX = 200  # in a key

log = logging.getLogger(__name__)


class _Kept(Struct, frozen=True, array_like=True):
    thread: str
    subject: str
    ids: tuple[str, ...]


_encode = msgspec.json.Encoder().encode
_decoder = msgspec.json.Decoder(tuple[_Kept, ...])


class Threads:
    """The threads with each correspondent, cached in memory and stored by `save`.

    A sender who is not admitted leaves nothing in the store: call `save` after the email was
    accepted.
    """

    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf
        self._known: OrderedDict[str, tuple[_Kept, ...]] = OrderedDict()
        self._lock = asyncio.Lock()

    async def meet(self, who: str) -> None:
        """Load a correspondent into memory."""
        if who in self._known:
            self._known.move_to_end(who)
            return
        kept = _read(await self._shelf.get(_key(who)))
        self._known.setdefault(who, kept)  # an entry added meanwhile is newer
        while len(self._known) > CORRESPONDENTS_MAX:
            self._known.popitem(last=False)

    def thread_of(self, who: str, ids: tuple[str, ...]) -> str | None:
        """The thread that emails with these ids belong to, by the newest known id; None if none is
        known."""
        for each in reversed(ids):
            for kept in self._known.get(who, ()):
                if each in kept.ids:
                    return kept.thread
        return None

    def thread(self, who: str, thread: str) -> Thread:
        for kept in self._known.get(who, ()):
            if kept.thread == thread:
                return Thread(subject=kept.subject, ids=kept.ids)
        return NEW_THREAD

    def add(self, who: str, thread: str, subject: str, ids: tuple[str, ...]) -> None:
        """Add emails to a thread, in memory only: an answer may be sent before anything is stored."""
        known = self._known.get(who, ())
        before = next((kept for kept in known if kept.thread == thread), _Kept(thread, subject, ()))
        all_ids = tuple(dict.fromkeys((*before.ids, *ids)))
        if len(all_ids) > IDS_MAX:
            all_ids = (all_ids[0], *all_ids[-(IDS_MAX - 1) :])
        rest = tuple(kept for kept in known if kept.thread != thread)
        self._known[who] = (*rest, _Kept(thread, before.subject or subject, all_ids))[-THREADS_MAX:]

    async def keep(self, who: str) -> None:
        async with self._lock:
            await self._shelf.put(_key(who), _written(self._known.get(who, ())))


def _written(known: tuple[_Kept, ...]) -> str:
    """Encode as many threads as fit, the latest ones."""
    fitting: list[_Kept] = []
    left = KEPT_CHARS_MAX
    for kept in reversed(known):
        left -= len(_encode(kept).decode()) + 1
        if left < 0:
            break
        fitting.append(kept)
    return _encode(fitting[::-1]).decode()


def _key(who: str) -> str:
    return f"threads/{who if len(who) <= WHO_CHARS_MAX else digest(who, 32)}"


def _read(value: str | None) -> tuple[_Kept, ...]:
    if value is None:
        return ()
    try:
        return _decoder.decode(value)
    except msgspec.MsgspecError:
        log.warning("threads forgotten", extra={"because": "what the shelf has of them cannot be read"})
        return ()
