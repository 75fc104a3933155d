"""The open web app windows of people, and the panels in them.

A window exists while it is connected. Its inventory is kept in memory and never stored.

The API registers windows, updates their inventory and sends them commands. Tools read the inventory
and send commands. A command is done only when the window confirms it.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from msgspec import Struct, field

from retinue.domain.errors import Conflict, Invalid, NotFound, RetinueError, TooLarge
from retinue.domain.ports import Clock, Ids
from retinue.domain.storable_text import is_storable

WINDOWS_MAX = 20  # per person
PANELS_MAX = 50  # per window
NAME_LENGTH_MAX = 64  # of an id, a type or a binding
TITLE_LENGTH_MAX = 200
CONTEXT_BYTES_MAX = 4_096  # per panel, as JSON
LAYOUT_BYTES_MAX = 16_384
COMMANDS_WAITING_MAX = 20  # per window
ANSWERED_WITHIN_S = 10.0
REASON_LENGTH_MAX = 200  # of a window's error text

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:/-]*")
_encode = msgspec.json.Encoder().encode


class WindowFailed(RetinueError):
    """The window reported a failure, or did not answer in time."""

    code = "window.failed"


class Panel(Struct, frozen=True, kw_only=True):
    """One panel. `binding` is the session it shows, if any. `context` describes its content."""

    id: str
    type: str
    title: str = ""
    visible: bool = True
    binding: str | None = None
    context: dict[str, Any] = field(default_factory=dict[str, Any])


class Inventory(Struct, frozen=True, kw_only=True):
    """The panels of a window. `layout` is in the web app's own format."""

    panels: tuple[Panel, ...] = ()
    selected: str | None = None
    layout: Any = None


Say = Callable[[dict[str, Any]], None]


class Window(Struct, eq=False):
    """One open window. `send` sends a command over its connection; `pending` holds unanswered
    commands.
    """

    person: str
    id: str
    say: Say
    inventory: Inventory = Inventory()
    told: int = 0  # position of its last inventory update, counted over all windows
    waiting: dict[str, asyncio.Future[str]] = field(default_factory=dict[str, asyncio.Future[str]])


class Windows:
    """All open windows of all people."""

    def __init__(self, clock: Clock, ids: Ids) -> None:
        self._clock = clock
        self._ids = ids
        self._open: dict[tuple[str, str], Window] = {}
        self._count = 0

    # --- for the API ---

    def show(self, person: str, id_: str, inventory: Inventory, *, say: Say, window: Window | None) -> Window:
        """Update the inventory of a window, and register the window if it is new.

        `window` is what an earlier call returned for the same connection. Another connection with
        the same id replaces the earlier one.
        """
        _check(id_, inventory)
        if window is not None and window.id != id_:
            raise Invalid(
                "this connection is another window",
                because=f"it called itself {window.id} before",
                try_this="open a connection for each window",
                code="window.renamed",
            )
        if window is None or self._open.get((person, id_)) is not window:
            window = self._join(person, id_, say)
        self._count += 1
        window.inventory, window.told = inventory, self._count
        return window

    def _join(self, person: str, id_: str, say: Say) -> Window:
        if (before := self._open.get((person, id_))) is not None:
            self.leave(before)
        elif len(self._of(person)) >= WINDOWS_MAX:
            raise TooLarge(
                f"you have {WINDOWS_MAX} windows open",
                because="that is the most for one person",
                try_this="close one",
                code="window.too-many",
            )
        window = self._open[person, id_] = Window(person, id_, say)
        return window

    def leave(self, window: Window) -> None:
        """Remove a window that disconnected, and fail its pending commands."""
        if self._open.get((window.person, window.id)) is window:
            del self._open[window.person, window.id]
        for answer in window.waiting.values():
            if not answer.done():
                answer.set_exception(_failed("the window was closed before it answered", "it is no longer connected"))
        window.waiting.clear()

    def done(self, window: Window, command: str, *, ok: bool, error: str = "", panel: str = "") -> None:
        """Record the result of a command. A late result, after the timeout, is ignored."""
        answer = window.waiting.get(command)
        if answer is None or answer.done():
            return
        if ok:
            answer.set_result(panel[:NAME_LENGTH_MAX] if _NAME.fullmatch(panel) else "")
        else:
            why = " ".join("".join(c if c.isprintable() else " " for c in error).split())[:REASON_LENGTH_MAX]
            answer.set_exception(_failed("the window could not do it", why or "it does not say why"))

    # --- for tools ---

    def of(self, person: str) -> Sequence[Window]:
        """Return a person's windows, the most recently updated first."""
        return sorted(self._of(person), key=lambda window: -window.told)

    def _of(self, person: str) -> list[Window]:
        return [window for window in self._open.values() if window.person == person]

    def find(self, person: str, *, window: str = "", panel: str = "") -> Window:
        """Return the named window, or the one that shows a panel, or else the most recently updated
        one.
        """
        here = self.of(person)
        if not here:
            raise NotFound(
                "no window is open",
                because=f"{person} has no page connected at the moment",
                try_this="say it in your answer instead",
                code="window.none-open",
            )
        found = [each for each in here if window in ("", each.id)]
        if not found:
            raise NotFound(
                f"there is no window {window[:NAME_LENGTH_MAX]}",
                because=f"open are {', '.join(each.id for each in here)}",
                try_this="leave `window` out for the one last used",
                code="window.not-found",
            )
        if not panel:
            return found[0]
        for each in found:
            if any(panel == shown.id for shown in each.inventory.panels):
                return each
        raise NotFound(
            f"no window shows a panel {panel[:NAME_LENGTH_MAX]}",
            because="it was closed, or never open",
            try_this="look at panels_list",
            code="panel.not-found",
        )

    async def command(self, window: Window, do: str, **what: Any) -> str:
        """Send a command to a window and wait for its confirmation. Returns the id of the new
        panel, if any.
        """
        if len(window.waiting) >= COMMANDS_WAITING_MAX:
            raise Conflict(
                "this window has enough to do",
                because=f"it has not answered {COMMANDS_WAITING_MAX} commands yet",
                try_this="wait until it has",
                code="window.busy",
            )
        id_ = self._ids.new()
        answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        window.waiting[id_] = answer

        def too_late() -> None:
            if not answer.done():
                because = f"it has {ANSWERED_WITHIN_S:g} seconds for it"
                answer.set_exception(_failed("the window did not answer", because))

        take_back = self._clock.later(ANSWERED_WITHIN_S, too_late)
        try:
            window.say({"command": id_, "window": window.id, "do": do, **what})
            return await answer
        finally:
            take_back()
            window.waiting.pop(id_, None)


def _failed(sentence: str, because: str) -> WindowFailed:
    return WindowFailed(sentence, because=because, try_this="say it in your answer instead")


def _check(id_: str, inventory: Inventory) -> None:
    """Refuse an inventory that exceeds a limit, before anything is stored."""
    names = [id_, *(text for panel in inventory.panels for text in (panel.id, panel.type))]
    names += [panel.binding for panel in inventory.panels if panel.binding is not None]
    names += [inventory.selected] if inventory.selected is not None else []
    if any(len(name) > NAME_LENGTH_MAX or not _NAME.fullmatch(name) for name in names):
        raise _unusable(f"an id, type or binding has 1 to {NAME_LENGTH_MAX} letters, digits and .:/_-")
    if len(inventory.panels) > PANELS_MAX:
        raise _unusable(f"a window has {PANELS_MAX} panels at most")
    if len({panel.id for panel in inventory.panels}) < len(inventory.panels):
        raise _unusable("two panels have the same id")
    for panel in inventory.panels:
        if len(panel.title) > TITLE_LENGTH_MAX or not is_storable(panel.title):
            raise _unusable(f"a title has {TITLE_LENGTH_MAX} characters at most")
        if len(_encode(panel.context)) > CONTEXT_BYTES_MAX:
            raise _unusable(f"the context of a panel has {CONTEXT_BYTES_MAX:,} bytes at most, as JSON")
    if len(_encode(inventory.layout)) > LAYOUT_BYTES_MAX:
        raise _unusable(f"a layout has {LAYOUT_BYTES_MAX:,} bytes at most, as JSON")


def _unusable(because: str) -> Invalid:
    return Invalid(
        "this window cannot be shown to agents",
        because=because,
        try_this="send less of it; what was sent before counts until then",
        code="window.inventory-invalid",
    )
