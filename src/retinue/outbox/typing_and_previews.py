"""Shows the progress of a run in its channel: an acknowledging reaction, a typing indicator and a preview.

This is cosmetic. Each call to the platform is made once, with a timeout, while the run continues. A
failure is only logged.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Coroutine, Mapping
from typing import Any

from msgspec import Struct

from retinue.connectors.base import (
    Connector,
    get_capabilities,
    get_preview_support,
    get_reaction_support,
    get_typing_support,
)
from retinue.domain.address import Address
from retinue.domain.errors import RetinueError
from retinue.domain.event import Delta, DeltaKind
from retinue.domain.ids import RunId
from retinue.domain.ports import Clock, RunObserver
from retinue.domain.reply_delivery import AckScope, ReplyDelivery, StreamMode, TypingMode
from retinue.domain.session_keys import ChatType
from retinue.text.chunking import truncate_text

log = logging.getLogger(__name__)

TYPING_EVERY_S = 4.0  # platforms show the typing indicator for about five seconds
TYPING_IDLE_S_MAX = 120.0  # stop the typing indicator after this time without any activity of the run
PREVIEW_EVERY_S = 1.5
CALL_TIMEOUT_S = 10.0  # for one call
TASKS_MAX = 200  # concurrent tasks
NO_REPLY_MARKERS = ("NO_REPLY", "[[SILENT_REPLY]]")


class AnsweredMessage(Struct, frozen=True, kw_only=True):
    """The message that a run answers. The progress of the run is shown in its channel."""

    channel: Address
    message_id: str = ""
    chat_type: ChatType | None = None


class ProgressDisplays:
    """Creates the progress displays of runs, and keeps track of their tasks."""

    def __init__(self, clock: Clock, connectors: Mapping[str, Connector]) -> None:
        self._clock = clock
        self._connectors = connectors
        self._tasks: set[asyncio.Task[None]] = set()

    def create(self, run: RunId, message: AnsweredMessage, reply_delivery: ReplyDelivery) -> RunProgress | None:
        """Return a progress display for a run. None if the connector cannot show one, or too many tasks are active."""
        connector = self._connectors.get(message.channel.name)
        if connector is None or get_capabilities(connector) is None or len(self._tasks) >= TASKS_MAX:
            return None
        return RunProgress(self, self._clock, connector, run, message, reply_delivery)

    def start_task(self, coroutine: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = asyncio.create_task(coroutine, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def abandon(self) -> None:
        for task in self._tasks:
            task.cancel()


class RunProgress:
    """Shows the progress of one run in the channel of the message that it answers."""

    def __init__(
        self,
        displays: ProgressDisplays,
        clock: Clock,
        connector: Connector,
        run: RunId,
        message: AnsweredMessage,
        reply_delivery: ReplyDelivery,
    ) -> None:
        self._displays = displays
        self._clock = clock
        self._connector = connector
        self._run = run
        self._message = message
        self._reply_delivery = reply_delivery
        self._activity = 0  # activity counter
        self._has_started = asyncio.Event()
        self._has_text = asyncio.Event()
        self._changed = asyncio.Event()
        self._turn = 0
        self._text = ""
        self._preview_id = ""
        self._ack_task: asyncio.Task[None] | None = None
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        channel = self._message.channel.rest
        if self._should_ack:
            # Not cancelled if the run ends at once: the message was received in any case.
            self._ack_task = self._displays.start_task(self._react(self._reply_delivery.ack), f"ack for {self._run}")
        if self._reply_delivery.typing is not TypingMode.NEVER and get_typing_support(self._connector) is not None:
            self._start(self._show_typing(channel), "typing")
        if self._reply_delivery.stream is StreamMode.PREVIEW and get_preview_support(self._connector) is not None:
            self._start(self._show_preview(channel), "preview")

    def delta(self, delta: Delta) -> None:
        self._activity += 1
        self._has_started.set()
        if delta.kind is not DeltaKind.TEXT:
            return
        if delta.turn != self._turn or not delta.offset:
            self._turn, self._text = delta.turn, ""
        self._text += delta.text
        if not _may_be_no_reply(self._text):
            self._has_text.set()
            self._changed.set()

    def called(self) -> None:
        self._activity += 1
        self._has_started.set()

    def end(self) -> None:
        """Remove the preview and, if configured, the reaction, because the run ended or was suspended."""
        for task in self._tasks:
            task.cancel()
        if self._preview_id or (self._ack_task is not None and self._reply_delivery.remove_ack):
            self._displays.start_task(self._remove(), "after a run")

    def _start(self, coroutine: Coroutine[Any, Any, None], name: str) -> None:
        self._tasks.append(self._displays.start_task(coroutine, f"{name} for {self._run}"))

    # --- acknowledgement ---

    @property
    def _should_ack(self) -> bool:
        words, asked = self._reply_delivery, self._message
        if not words.ack or not asked.message_id or get_reaction_support(self._connector) is None:
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
        connector = get_reaction_support(self._connector)
        if connector is not None:
            await self._try(connector.react(self._message.channel.rest, self._message.message_id, emoji), "reaction")

    # --- typing indicator ---

    async def _show_typing(self, channel: str) -> None:
        match self._reply_delivery.typing:
            case TypingMode.THINKING:
                await self._has_started.wait()
            case TypingMode.MESSAGE:
                await self._has_text.wait()
            case _:
                pass
        quiet_s, seen = 0.0, self._activity
        connector = get_typing_support(self._connector)
        while connector is not None and quiet_s < TYPING_IDLE_S_MAX:
            if not await self._try(connector.show_typing(channel), "typing"):
                return
            await self._clock.sleep(TYPING_EVERY_S)
            quiet_s = quiet_s + TYPING_EVERY_S if self._activity == seen else 0.0
            seen = self._activity

    # --- preview ---

    async def _show_preview(self, channel: str) -> None:
        connector, able = get_preview_support(self._connector), get_capabilities(self._connector)
        shown_text = ""
        while connector is not None and able is not None:
            await self._changed.wait()
            self._changed.clear()
            # Leave out the last word: it may be half of a secret, and only a complete secret is
            # redacted.
            whole_words = self._text.rpartition(" ")[0]
            text = truncate_text(whole_words, able.text_max, unit=able.unit)
            if text.strip() and text != shown_text:
                quote = self._message.message_id if able.can_quote else ""
                shown = await self._try(
                    connector.preview(channel, text, preview_id=self._preview_id, quoted_message_id=quote), "preview"
                )
                if shown is None:
                    return
                self._preview_id, shown_text = str(shown), text
            await self._clock.sleep(PREVIEW_EVERY_S)

    async def _remove(self) -> None:
        connector = get_preview_support(self._connector)
        if self._preview_id and connector is not None:
            await self._try(connector.delete_preview(self._message.channel.rest, self._preview_id), "preview")
        if self._ack_task is not None and self._reply_delivery.remove_ack:
            await asyncio.wait({self._ack_task})
            await self._react("")

    async def _try(self, call: Awaitable[Any], what: str) -> Any:
        """Await a call to the platform. Returns its result, True if the result is empty, or None if the call failed."""
        try:
            async with asyncio.timeout(CALL_TIMEOUT_S):
                return await call or True
        except Exception as error:  # whatever a connector raises, the run continues
            log.info(
                "typing or preview failed",
                exc_info=None if isinstance(error, RetinueError | OSError) else error,
                extra={"what": what, "connector": self._connector.name, "error": type(error).__name__},
            )
            return None


class ProgressTell:
    """Passes the live events of a run to the event subscribers and to the progress display."""

    def __init__(self, tell: RunObserver, attendance: RunProgress) -> None:
        self._tell = tell
        self._progress = attendance

    def on_delta(self, delta: Delta) -> None:
        self._tell.on_delta(delta)
        self._progress.delta(delta)

    def on_tool_call(self, run: RunId, tool: str) -> None:
        self._tell.on_tool_call(run, tool)
        self._progress.called()


def _may_be_no_reply(text: str) -> bool:
    """Whether the text streamed so far is the beginning of a marker that means "send no reply"."""
    words = text.strip()
    return any(token.startswith(words) for token in NO_REPLY_MARKERS)
