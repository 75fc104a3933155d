"""Proves that an IRC server accepted the lines of a delivery.

IRC has no receipts, but a server processes the commands of a connection in order. So if it answers a
PING that was sent after the lines, it has processed the lines. Any error about the lines arrives
before that answer.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from retinue.connectors.base import Delivery, DeliveryFailed, FailureKind
from retinue.connectors.irc.casemapping import IrcServerFeatures
from retinue.connectors.irc.irc_formatting import strip_formatting
from retinue.connectors.irc.irc_message import IrcMessage

THROTTLE_RETRY_S = 30.0  # servers that throttle do not say for how long
SERVER_TEXT_CHARS_MAX = 200

_NO_SUCH_TARGET = ("401", "402", "403", "406")
_SENDER_REFUSED = ("404", "407", "408", "477", "482", "486", "487", "489", "494", "531", "716", "718")
_TOO_LONG = ("417",)
_THROTTLED = ("263", "437", "439")
REFUSALS = (*_NO_SUCH_TARGET, *_SENDER_REFUSED, *_TOO_LONG, *_THROTTLED)


class PartlySent(ConnectionError):
    """Some lines of a message were accepted and others were not, so sending all lines again would duplicate some."""


@dataclass(slots=True, eq=False)
class DeliveryAck:
    """Tracks the server's answers to `lines` sent to one target."""

    target: str
    token: str
    lines: tuple[str, ...]
    features: IrcServerFeatures
    echoes: bool  # the server echoes our own messages, which proves that it accepted them
    labels: bool
    result: asyncio.Future[Delivery] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    _refused: list[IrcMessage] = field(default_factory=list[IrcMessage])
    _echoed: list[str] = field(default_factory=list[str])
    _has_pong: bool = False

    def make_label(self, number: int) -> str:
        return f"{self.token}-{number}"

    def on_pong(self, message: IrcMessage) -> None:
        if message.last_param == self.token:
            self._has_pong = True
            self._settle()

    def on_refusal(self, message: IrcMessage) -> None:
        if self._concerns(message):
            self._refused.append(message)

    def _concerns(self, message: IrcMessage) -> bool:
        if self.labels and (label := message.tags.get("label")):
            return label.startswith(f"{self.token}-")
        about = self.features.fold(message.get_param(1))
        return about == self.features.fold(self.target) or about.upper() == "PRIVMSG"

    def on_echo(self, message: IrcMessage) -> None:
        number = len(self._echoed)
        if number >= len(self.lines):
            return
        if label := message.tags.get("label"):
            ours = label == self.make_label(number)
        else:
            same_room = self.features.fold(message.get_param(0)) == self.features.fold(self.target)
            ours = same_room and message.last_param == self.lines[number]
        if ours:
            self._echoed.append(message.tags.get("msgid", ""))
            self._settle()

    def _settle(self) -> None:
        if self.result.done() or not self._has_pong:
            return
        if len(self._refused) >= len(self.lines):
            self.result.set_exception(build_delivery_failed(self._refused[-1], self.target))
        elif self._refused:
            self.result.set_exception(PartlySent("the server accepted only some of the lines"))
        elif not self.echoes or len(self._echoed) == len(self.lines):
            named = self._echoed[-1] if self._echoed else ""
            self.result.set_result(Delivery(named or f"pong:{self.token}"))
        # Otherwise the lines were read but not echoed yet, so the result is unknown. The caller has
        # a timeout.


def build_delivery_failed(message: IrcMessage, target: str) -> DeliveryFailed:
    code = message.command
    answer = strip_formatting(message.last_param)[:SERVER_TEXT_CHARS_MAX]
    because = f"the server answered: {answer}" if answer else ""
    if code in _THROTTLED:
        return DeliveryFailed(
            "the IRC server throttles this connection",
            kind=FailureKind.THROTTLED,
            retry_after_s=THROTTLE_RETRY_S,
            because=because,
        )
    if code in _NO_SUCH_TARGET:
        return DeliveryFailed(
            f"no IRC user or channel named {target!r}",
            kind=FailureKind.INVALID_ADDRESS,
            permanent=True,
            because=because,
        )
    kind = FailureKind.TOO_LARGE if code in _TOO_LONG else FailureKind.INVALID_SENDER
    return DeliveryFailed("the IRC server did not accept the message", kind=kind, permanent=True, because=because)
