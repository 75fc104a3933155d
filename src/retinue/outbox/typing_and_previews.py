"""Shows progress of a run in its channel before the answer: an acknowledging reaction, the typing
indicator, a preview.

All of this is cosmetic. Each step is tried once, with a timeout, concurrently with the run. A
failure is ignored, and none of it is a delivery.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Coroutine, Mapping
from typing import Any

from msgspec import Struct

from retinue.connectors.base import Connector, abilities_of, edits_of, reacts_of, types_of
from retinue.domain.address import Address
from retinue.domain.errors import RetinueError
from retinue.domain.event import Delta, DeltaKind
from retinue.domain.ids import RunId
from retinue.domain.ports import Clock, Tell
from retinue.domain.reply_delivery import AckScope, Stream, Typing, Words
from retinue.domain.session_keys import ChatType
from retinue.text.chunking import clipped

log = logging.getLogger(__name__)

TYPING_EVERY_S = 4.0  # platforms show it for about five seconds
TYPING_S_MAX = 120.0  # without any activity of the run
PREVIEW_EVERY_S = 1.5
SIDE_S_MAX = 10.0  # for one call
ATTENDED_MAX = 200  # concurrent tasks
SILENT = ("NO_REPLY", "[[SILENT_REPLY]]")


class Asked(Struct, frozen=True, kw_only=True):
    """The message that a run answers, as far as a channel can show it."""

    room: Address
    message_id: str = ""
    chat_type: ChatType | None = None


class Presence:
    """Starts progress displays. Knows the connectors and the running tasks."""

    def __init__(self, clock: Clock, connectors: Mapping[str, Connector]) -> None:
        self._clock = clock
        self._connectors = connectors
        self._tasks: set[asyncio.Task[None]] = set()

    def attend(self, run: RunId, asked: Asked, words: Words) -> Attendance | None:
        """None if there is nothing to show, or the limit is reached."""
        connector = self._connectors.get(asked.room.name)
        if connector is None or abilities_of(connector) is None or len(self._tasks) >= ATTENDED_MAX:
            return None
        return Attendance(self, self._clock, connector, run, asked, words)

    def on_the_side(self, work: Coroutine[Any, Any, None], what: str) -> asyncio.Task[None]:
        task = asyncio.create_task(work, name=what)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def abandon(self) -> None:
        for task in self._tasks:
            task.cancel()


class Attendance:
    """The progress display of one run."""

    def __init__(
        self, presence: Presence, clock: Clock, connector: Connector, run: RunId, asked: Asked, words: Words
    ) -> None:
        self._presence = presence
        self._clock = clock
        self._connector = connector
        self._run = run
        self._asked = asked
        self._words = words
        self._alive = 0  # activity counter
        self._thinks = asyncio.Event()
        self._speaks = asyncio.Event()
        self._changed = asyncio.Event()
        self._turn = 0
        self._text = ""
        self._shown = ""
        self._acked: asyncio.Task[None] | None = None
        self._tasks: list[asyncio.Task[None]] = []

    def begin(self) -> None:
        room = self._asked.room.rest
        if self._is_acked:
            # It continues if the run ends at once: the message was received all the same.
            self._acked = self._presence.on_the_side(self._react(self._words.ack), f"ack for {self._run}")
        if self._words.typing is not Typing.NEVER and types_of(self._connector) is not None:
            self._side(self._type(room), "typing")
        if self._words.stream is Stream.PREVIEW and edits_of(self._connector) is not None:
            self._side(self._preview(room), "preview")

    def delta(self, delta: Delta) -> None:
        self._alive += 1
        self._thinks.set()
        if delta.kind is not DeltaKind.TEXT:
            return
        if delta.turn != self._turn or not delta.offset:
            self._turn, self._text = delta.turn, ""
        self._text += delta.text
        if not _may_be_silent(self._text):
            self._speaks.set()
            self._changed.set()

    def called(self) -> None:
        self._alive += 1
        self._thinks.set()

    def end(self) -> None:
        """The run ended or was suspended: remove what was shown."""
        for task in self._tasks:
            task.cancel()
        if self._shown or (self._acked is not None and self._words.ack_removed):
            self._presence.on_the_side(self._clear(), "after a run")

    def _side(self, work: Coroutine[Any, Any, None], what: str) -> None:
        self._tasks.append(self._presence.on_the_side(work, f"{what} for {self._run}"))

    # --- acknowledgement ---

    @property
    def _is_acked(self) -> bool:
        words, asked = self._words, self._asked
        if not words.ack or not asked.message_id or reacts_of(self._connector) is None:
            return False
        in_group = asked.chat_type in (ChatType.GROUP, ChatType.THREAD)
        match words.ack_scope:
            case AckScope.OFF:
                return False
            case AckScope.DIRECT:
                return not in_group
            case AckScope.GROUP_MENTIONS | AckScope.GROUP_ALL:
                return in_group
            case AckScope.ALL:
                return True

    async def _react(self, emoji: str) -> None:
        connector = reacts_of(self._connector)
        if connector is not None:
            await self._try(connector.react(self._asked.room.rest, self._asked.message_id, emoji), "reaction")

    # --- typing indicator ---

    async def _type(self, room: str) -> None:
        match self._words.typing:
            case Typing.THINKING:
                await self._thinks.wait()
            case Typing.MESSAGE:
                await self._speaks.wait()
            case _:
                pass
        quiet_s, seen = 0.0, self._alive
        connector = types_of(self._connector)
        while connector is not None and quiet_s < TYPING_S_MAX:
            if not await self._try(connector.type_in(room), "typing"):
                return
            await self._clock.sleep(TYPING_EVERY_S)
            quiet_s = quiet_s + TYPING_EVERY_S if self._alive == seen else 0.0
            seen = self._alive

    # --- preview ---

    async def _preview(self, room: str) -> None:
        connector, able = edits_of(self._connector), abilities_of(self._connector)
        shown_text = ""
        while connector is not None and able is not None:
            await self._changed.wait()
            self._changed.clear()
            # Without the last token: it may be half of a secret, which is redacted only when it is
            # complete.
            whole_words = self._text.rpartition(" ")[0]
            text = clipped(whole_words, able.text_max, unit=able.unit)
            if text.strip() and text != shown_text:
                quote = self._asked.message_id if able.quotes else ""
                shown = await self._try(connector.preview(room, text, shown=self._shown, quote=quote), "preview")
                if shown is None:
                    return
                self._shown, shown_text = str(shown), text
            await self._clock.sleep(PREVIEW_EVERY_S)

    async def _clear(self) -> None:
        connector = edits_of(self._connector)
        if self._shown and connector is not None:
            await self._try(connector.take_back(self._asked.room.rest, self._shown), "preview")
        if self._acked is not None and self._words.ack_removed:
            await asyncio.wait({self._acked})
            await self._react("")

    async def _try(self, courtesy: Awaitable[Any], what: str) -> Any:
        """The result of the call, or True if it has none; None if it failed."""
        try:
            async with asyncio.timeout(SIDE_S_MAX):
                return await courtesy or True
        except Exception as error:  # whatever a connector raises, the run continues
            log.info(
                "a courtesy failed",
                exc_info=None if isinstance(error, RetinueError | OSError) else error,
                extra={"what": what, "connector": self._connector.instance, "error": type(error).__name__},
            )
            return None


class Attended:
    """Passes live events to the subscribers and to the progress display."""

    def __init__(self, tell: Tell, attendance: Attendance) -> None:
        self._tell = tell
        self._attendance = attendance

    def delta(self, delta: Delta) -> None:
        self._tell.delta(delta)
        self._attendance.delta(delta)

    def called(self, run: RunId, tool: str) -> None:
        self._tell.called(run, tool)
        self._attendance.called()


def _may_be_silent(text: str) -> bool:
    """Whether the text so far may still become one of the markers for no reply."""
    words = text.strip()
    return any(token.startswith(words) for token in SILENT)
