"""Proves that a server accepted our lines.

IRC has no receipts, but a server processes a connection in order. So its answer to a PING that we
sent after the lines proves that it read them. Any error about them arrives before that answer.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from retinue.connectors.base import Delivery, DeliveryFailed, FailureKind
from retinue.connectors.irc.casemapping import Manners
from retinue.connectors.irc.irc_formatting import plain
from retinue.connectors.irc.irc_message import Line

RETRY_S = 30.0  # servers that throttle do not say for how long
SERVER_WORDS_MAX = 200

_NO_SUCH_ROOM = ("401", "402", "403", "406")
_NOT_FROM_US = ("404", "407", "408", "477", "482", "486", "487", "489", "494", "531", "716", "718")
_TOO_LONG = ("417",)
_PATIENCE = ("263", "437", "439")
REFUSALS = (*_NO_SUCH_ROOM, *_NOT_FROM_US, *_TOO_LONG, *_PATIENCE)


class HalfSaid(ConnectionError):
    """Some lines were accepted and some were not: sending all again would duplicate some."""


@dataclass(slots=True, eq=False)
class Proof:
    """Tracks the server's answers to `lines` sent to one target."""

    target: str
    token: str
    lines: tuple[str, ...]
    manners: Manners
    echoes: bool  # the server echoes our own messages, which proves that it accepted them
    labels: bool
    settled: asyncio.Future[Delivery] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    _refused: list[Line] = field(default_factory=list[Line])
    _echoed: list[str] = field(default_factory=list[str])
    _ponged: bool = False

    def label(self, number: int) -> str:
        return f"{self.token}-{number}"

    def pong(self, line: Line) -> None:
        if line.last == self.token:
            self._ponged = True
            self._settle()

    def refusal(self, line: Line) -> None:
        if self._concerns(line):
            self._refused.append(line)

    def _concerns(self, line: Line) -> bool:
        if self.labels and (label := line.tags.get("label")):
            return label.startswith(f"{self.token}-")
        about = self.manners.fold(line.word(1))
        return about == self.manners.fold(self.target) or about.upper() == "PRIVMSG"

    def echo(self, line: Line) -> None:
        number = len(self._echoed)
        if number >= len(self.lines):
            return
        if label := line.tags.get("label"):
            ours = label == self.label(number)
        else:
            same_room = self.manners.fold(line.word(0)) == self.manners.fold(self.target)
            ours = same_room and line.last == self.lines[number]
        if ours:
            self._echoed.append(line.tags.get("msgid", ""))
            self._settle()

    def _settle(self) -> None:
        if self.settled.done() or not self._ponged:
            return
        if len(self._refused) >= len(self.lines):
            self.settled.set_exception(refused(self._refused[-1], self.target))
        elif self._refused:
            self.settled.set_exception(HalfSaid("the server took only some of the lines"))
        elif not self.echoes or len(self._echoed) == len(self.lines):
            named = self._echoed[-1] if self._echoed else ""
            self.settled.set_result(Delivery(named or f"pong:{self.token}"))
        # Otherwise the lines were read but not echoed yet, so the result is unknown. The caller has
        # a timeout.


def refused(line: Line, target: str) -> DeliveryFailed:
    code = line.command
    said = plain(line.last)[:SERVER_WORDS_MAX]
    because = f"the server said: {said}" if said else ""
    if code in _PATIENCE:
        return DeliveryFailed(
            "the server asks for patience", kind=FailureKind.THROTTLED, retry_after_s=RETRY_S, because=because
        )
    if code in _NO_SUCH_ROOM:
        return DeliveryFailed(
            f"nobody and no room there is called {target!r}",
            kind=FailureKind.INVALID_ADDRESS,
            permanent=True,
            because=because,
        )
    kind = FailureKind.TOO_LARGE if code in _TOO_LONG else FailureKind.INVALID_SENDER
    return DeliveryFailed("the server did not take it from us", kind=kind, permanent=True, because=because)
