"""Tracks the web app windows that people have open, and the panels in them.

A window is listed while it is connected. Its inventory, the list of its panels, is kept in memory
and never stored.

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

from retinue.domain.ports import Clock, IdSource
from retinue.domain.storable_text import is_storable
from retinue.tools.errors import (
    NoWindowOpen,
    PanelNotFound,
    TooManyWindows,
    WindowBusy,
    WindowClosed,
    WindowCommandFailed,
    WindowInventoryInvalid,
    WindowNotFound,
    WindowRenamed,
    WindowTimeout,
)
from retinue.tools.errors import WindowFailed as WindowFailed  # re-exported

WINDOWS_MAX = 20  # per person
PANELS_MAX = 50  # per window
NAME_LENGTH_MAX = 64  # of an id, a type or a binding
TITLE_LENGTH_MAX = 200
CONTEXT_BYTES_MAX = 4_096  # per panel, as JSON
LAYOUT_BYTES_MAX = 16_384
PENDING_COMMANDS_MAX = 20  # per window
COMMAND_TIMEOUT_S = 10.0
REASON_LENGTH_MAX = 200  # of a window's error text

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:/-]*")
_encode = msgspec.json.Encoder().encode


class Panel(Struct, frozen=True, kw_only=True):
    """One panel in a window of the web app.

    `binding` is the session that the panel shows, if any. `context` describes its content.
    """

    id: str
    type: str
    title: str = ""
    visible: bool = True
    binding: str | None = None
    context: dict[str, Any] = field(default_factory=dict[str, Any])


class WindowInventory(Struct, frozen=True, kw_only=True):
    """The panels of a browser window. `layout` is in the web app's own format."""

    panels: tuple[Panel, ...] = ()
    selected: str | None = None
    layout: Any = None


SendCommand = Callable[[dict[str, Any]], None]


class Window(Struct, eq=False):
    """One open window of the web app.

    `send` sends a command over its connection; `pending` contains the unanswered commands.
    """

    person: str
    id: str
    send: SendCommand
    inventory: WindowInventory = WindowInventory()
    updated_seq: int = 0  # position of its last inventory update, counted over all windows
    pending: dict[str, asyncio.Future[str]] = field(default_factory=dict[str, asyncio.Future[str]])


class WindowRegistry:
    """All open windows of the web app, of all people."""

    def __init__(self, clock: Clock, ids: IdSource) -> None:
        self._clock = clock
        self._ids = ids
        self._open: dict[tuple[str, str], Window] = {}
        self._update_count = 0

    # --- for the API ---

    def update_window(
        self, person: str, id_: str, inventory: WindowInventory, *, send: SendCommand, window: Window | None
    ) -> Window:
        """Update the inventory of a window, and register the window if it is new.

        `window` is what an earlier call returned for the same connection. Another connection with
        the same id replaces the earlier one.
        """
        _validate_inventory(id_, inventory)
        if window is not None and window.id != id_:
            raise WindowRenamed(before=window.id)
        if window is None or self._open.get((person, id_)) is not window:
            window = self._add_window(person, id_, send)
        self._update_count += 1
        window.inventory, window.updated_seq = inventory, self._update_count
        return window

    def _add_window(self, person: str, id_: str, send: SendCommand) -> Window:
        if (before := self._open.get((person, id_))) is not None:
            self.remove_window(before)
        elif len(self._find_windows(person)) >= WINDOWS_MAX:
            raise TooManyWindows(windows_max=WINDOWS_MAX)
        window = self._open[person, id_] = Window(person, id_, send)
        return window

    def remove_window(self, window: Window) -> None:
        """Remove a window that disconnected, and fail its pending commands."""
        if self._open.get((window.person, window.id)) is window:
            del self._open[window.person, window.id]
        for answer in window.pending.values():
            if not answer.done():
                answer.set_exception(WindowClosed())
        window.pending.clear()

    def finish_command(self, window: Window, command: str, *, ok: bool, error: str = "", panel: str = "") -> None:
        """Record the result of a command. A late result, after the timeout, is ignored."""
        answer = window.pending.get(command)
        if answer is None or answer.done():
            return
        if ok:
            answer.set_result(panel[:NAME_LENGTH_MAX] if _NAME.fullmatch(panel) else "")
        else:
            why = " ".join("".join(c if c.isprintable() else " " for c in error).split())[:REASON_LENGTH_MAX]
            answer.set_exception(WindowCommandFailed(because=why))

    # --- for tools ---

    def list_windows(self, person: str) -> Sequence[Window]:
        """Return a person's windows, the most recently updated first."""
        return sorted(self._find_windows(person), key=lambda window: -window.updated_seq)

    def _find_windows(self, person: str) -> list[Window]:
        return [window for window in self._open.values() if window.person == person]

    def find_window(self, person: str, *, window: str = "", panel: str = "") -> Window:
        """Return the window with the given id, or the one that shows a panel, or else the most recently updated one."""
        here = self.list_windows(person)
        if not here:
            raise NoWindowOpen(person)
        found = [each for each in here if window in ("", each.id)]
        if not found:
            raise WindowNotFound(window[:NAME_LENGTH_MAX], known=[each.id for each in here])
        if not panel:
            return found[0]
        for each in found:
            if any(panel == shown.id for shown in each.inventory.panels):
                return each
        raise PanelNotFound(panel[:NAME_LENGTH_MAX])

    async def send_command(self, window: Window, action: str, **fields: Any) -> str:
        """Send a command to a window and wait for its confirmation. Returns the id of the new
        panel, if any.
        """
        if len(window.pending) >= PENDING_COMMANDS_MAX:
            raise WindowBusy(commands_max=PENDING_COMMANDS_MAX)
        id_ = self._ids.new()
        answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        window.pending[id_] = answer

        def too_late() -> None:
            if not answer.done():
                answer.set_exception(WindowTimeout(timeout_s=COMMAND_TIMEOUT_S))

        cancel_timeout = self._clock.call_later(COMMAND_TIMEOUT_S, too_late)
        try:
            window.send({"command": id_, "window": window.id, "action": action, **fields})
            return await answer
        finally:
            cancel_timeout()
            window.pending.pop(id_, None)


def _validate_inventory(id_: str, inventory: WindowInventory) -> None:
    """Refuse a window's list of panels that exceeds a limit, before the list is kept."""
    names = [id_, *(text for panel in inventory.panels for text in (panel.id, panel.type))]
    names += [panel.binding for panel in inventory.panels if panel.binding is not None]
    names += [inventory.selected] if inventory.selected is not None else []
    if any(len(name) > NAME_LENGTH_MAX or not _NAME.fullmatch(name) for name in names):
        raise WindowInventoryInvalid(
            because=f"an id, type or binding must have 1 to {NAME_LENGTH_MAX} letters, digits and .:/_-"
        )
    if len(inventory.panels) > PANELS_MAX:
        raise WindowInventoryInvalid(because=f"the limit is {PANELS_MAX} panels")
    if len({panel.id for panel in inventory.panels}) < len(inventory.panels):
        raise WindowInventoryInvalid(because="two panels have the same id")
    for panel in inventory.panels:
        if len(panel.title) > TITLE_LENGTH_MAX or not is_storable(panel.title):
            raise WindowInventoryInvalid(because=f"a title must be text of at most {TITLE_LENGTH_MAX} characters")
        if len(_encode(panel.context)) > CONTEXT_BYTES_MAX:
            raise WindowInventoryInvalid(
                because=f"the context of a panel must have at most {CONTEXT_BYTES_MAX:,} bytes as JSON"
            )
    if len(_encode(inventory.layout)) > LAYOUT_BYTES_MAX:
        raise WindowInventoryInvalid(because=f"the layout must have at most {LAYOUT_BYTES_MAX:,} bytes as JSON")
