"""Remembers the email threads with each correspondent, so that an answer goes to the right thread."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict

import msgspec
from msgspec import Struct

from retinue.connectors.base import ConnectorState
from retinue.connectors.email.email_addresses import digest
from retinue.connectors.email.message_builder import NEW_THREAD, EmailThread

THREADS_MAX = 50  # per correspondent; the least recently used is dropped first
IDS_MAX = 20  # per thread
CORRESPONDENTS_MAX = 256  # in memory; the connector state has the others
STORED_CHARS_MAX = 60_000  # per correspondent: the connector state refuses much longer values
CORRESPONDENT_CHARS_MAX = 200  # in a key

log = logging.getLogger(__name__)


class _StoredThread(Struct, frozen=True, array_like=True):
    thread: str
    subject: str
    ids: tuple[str, ...]


_encode = msgspec.json.Encoder().encode
_decoder = msgspec.json.Decoder(tuple[_StoredThread, ...])


class ThreadCache:
    """Keeps the threads with each correspondent in memory. `save` stores them.

    Call `save` only after an email is accepted, so that a sender who is not admitted leaves nothing in the store.
    """

    def __init__(self, state: ConnectorState) -> None:
        self._state = state
        self._known: OrderedDict[str, tuple[_StoredThread, ...]] = OrderedDict()
        self._lock = asyncio.Lock()

    async def load(self, correspondent: str) -> None:
        """Read the email threads with one correspondent from the connector state, unless they are in memory."""
        if correspondent in self._known:
            self._known.move_to_end(correspondent)
            return
        kept = _decode_threads(await self._state.get(_make_state_key(correspondent)))
        self._known.setdefault(correspondent, kept)  # an entry added meanwhile is newer
        while len(self._known) > CORRESPONDENTS_MAX:
            self._known.popitem(last=False)

    def find_thread(self, correspondent: str, ids: tuple[str, ...]) -> str | None:
        """Return the thread of the newest known message among these message ids, or None if none of them is known."""
        for each in reversed(ids):
            for kept in self._known.get(correspondent, ()):
                if each in kept.ids:
                    return kept.thread
        return None

    def get_thread(self, correspondent: str, thread: str) -> EmailThread:
        for kept in self._known.get(correspondent, ()):
            if kept.thread == thread:
                return EmailThread(subject=kept.subject, ids=kept.ids)
        return NEW_THREAD

    def add(self, correspondent: str, thread: str, subject: str, ids: tuple[str, ...]) -> None:
        """Add message ids to a thread in memory. An answer may need them before `save` is called."""
        known = self._known.get(correspondent, ())
        before = next((kept for kept in known if kept.thread == thread), _StoredThread(thread, subject, ()))
        all_ids = tuple(dict.fromkeys((*before.ids, *ids)))
        if len(all_ids) > IDS_MAX:
            all_ids = (all_ids[0], *all_ids[-(IDS_MAX - 1) :])
        rest = tuple(kept for kept in known if kept.thread != thread)
        self._known[correspondent] = (*rest, _StoredThread(thread, before.subject or subject, all_ids))[-THREADS_MAX:]

    async def save(self, correspondent: str) -> None:
        async with self._lock:
            await self._state.put(_make_state_key(correspondent), _encode_threads(self._known.get(correspondent, ())))


def _encode_threads(known: tuple[_StoredThread, ...]) -> str:
    """Encode as many of the latest threads as fit into one value of the connector state."""
    fitting: list[_StoredThread] = []
    left = STORED_CHARS_MAX
    for kept in reversed(known):
        left -= len(_encode(kept).decode()) + 1
        if left < 0:
            break
        fitting.append(kept)
    return _encode(fitting[::-1]).decode()


def _make_state_key(correspondent: str) -> str:
    return f"threads/{correspondent if len(correspondent) <= CORRESPONDENT_CHARS_MAX else digest(correspondent, 32)}"


def _decode_threads(value: str | None) -> tuple[_StoredThread, ...]:
    if value is None:
        return ()
    try:
        return _decoder.decode(value)
    except msgspec.MsgspecError:
        log.warning("stored threads ignored", extra={"because": "they cannot be decoded"})
        return ()
