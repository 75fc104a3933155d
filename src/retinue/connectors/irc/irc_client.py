"""A registered connection to an IRC server: handles and dispatches the messages of the server."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeVar

from retinue.connectors.base import Incoming
from retinue.connectors.irc.delivery_ack import REFUSALS, Proof
from retinue.connectors.irc.irc_inbound import heard
from retinue.connectors.irc.irc_message import Line, encoded
from retinue.connectors.irc.irc_transport import Wire
from retinue.connectors.irc.registration import ECHO, LABELS, Arrival, lost

T = TypeVar("T")
log = logging.getLogger(__name__)

NO_ENTRY = ("403", "405", "437", "471", "473", "474", "475", "476", "477", "489", "520")
_WHOIS_ENDS = ("318", "401")


class LineBroke(ConnectionError):
    """The connection ended during an operation on it."""


@dataclass(slots=True)
class Inquiry:
    """A WHOIS query: who has a nick now."""

    nick: str
    answered: asyncio.Future[None]
    user_at_host: str = ""
    account: str = ""


@dataclass(slots=True, eq=False)
class Presence:
    """One connection. `token` identifies it and is unique."""

    wire: Wire
    token: str
    wanted_nick: str
    arrival: Arrival
    rooms: set[str]  # that we should be in, case-folded
    on_turned_out: Callable[[str], None]  # called for a channel that removed us or refused our JOIN
    inside: set[str] = field(default_factory=set[str])
    lines_heard: int = 0  # of any kind: proof of life
    proof: Proof | None = None
    inquiry: Inquiry | None = None
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    moved: asyncio.Event = field(default_factory=asyncio.Event)  # set when we have joined a channel
    _said: int = 0

    @property
    def nick(self) -> str:
        return self.arrival.nick

    def fold(self, name: str) -> str:
        return self.arrival.manners.fold(name)

    def granted(self, ability: str) -> bool:
        return ability in self.arrival.granted

    async def while_up(self, waiting: Awaitable[T]) -> T:
        """Await something. Raises `IrcConnectionBroke` if the connection ends first."""
        wanted = asyncio.ensure_future(waiting)
        end = asyncio.ensure_future(self.ended.wait())
        try:
            await asyncio.wait((wanted, end), return_when=asyncio.FIRST_COMPLETED)
            if wanted.done():
                return wanted.result()
            raise LineBroke("the line to the server broke")
        finally:
            wanted.cancel()
            end.cancel()

    def prove(self, target: str, lines: tuple[str, ...]) -> Proof:
        self._said += 1
        self.proof = Proof(
            target=target,
            token=f"{self.token}-{self._said}",
            lines=lines,
            manners=self.arrival.manners,
            echoes=self.granted(ECHO),
            labels=self.granted(LABELS),
        )
        return self.proof

    # --- messages from the server ---

    def read(self, line: Line) -> Incoming | None:
        """Handle one message. A person's message is returned; everything else is handled here."""
        self.lines_heard += 1
        match line.command:
            case "PING":
                self.wire.write(encoded("PONG", last=line.last))
            case "PONG" if self.proof is not None:
                self.proof.pong(line)
            case "PRIVMSG" | "NOTICE":
                return self._message(line)
            case "NICK" if self._is_us(line):
                self.arrival.nick = line.word(0)
                self.arrival.prefix = f"{self.nick}!{line.source.partition('!')[2]}"
            case "JOIN" if self._is_us(line):
                self.arrival.prefix = line.source
                self.inside.add(self.fold(line.word(0)))
                self.moved.set()
            case "PART" if self._is_us(line):
                self._turned_out(line.word(0))
            case "KICK" if self.fold(line.word(1)) == self.fold(self.nick):
                self._turned_out(line.word(0))
            case "ERROR":
                raise lost("the server closed the line", line)
            case _:
                self._numeric(line)
        return None

    def _message(self, line: Line) -> Incoming | None:
        if self._is_us(line):
            if self.proof is not None and line.command == "PRIVMSG":
                self.proof.echo(line)
            return None
        return heard(
            line,
            own_nicks=(self.nick, self.wanted_nick),
            granted=frozenset(self.arrival.granted),
            manners=self.arrival.manners,
            otherwise_id=f"{self.token}-{self.lines_heard}",
        )

    def _numeric(self, line: Line) -> None:
        about = self.fold(line.word(1))
        if self.inquiry is not None and about == self.fold(self.inquiry.nick):
            self._answer(self.inquiry, line)
            return
        if line.command in REFUSALS and self.proof is not None:
            self.proof.refusal(line)
        if line.command in NO_ENTRY and about in self.rooms and about not in self.inside:
            log.warning("a room did not let us in", extra={"room": about, "numeric": line.command})
            self.on_turned_out(about)

    def _answer(self, inquiry: Inquiry, line: Line) -> None:
        match line.command:
            case "311":
                inquiry.user_at_host = f"{line.word(2)}@{line.word(3)}"
            case "330":
                inquiry.account = line.word(2)
            case command if command in _WHOIS_ENDS and not inquiry.answered.done():
                inquiry.answered.set_result(None)
            case _:
                pass

    def _turned_out(self, room: str) -> None:
        self.inside.discard(self.fold(room))
        if self.fold(room) in self.rooms:
            self.on_turned_out(self.fold(room))

    def _is_us(self, line: Line) -> bool:
        return self.fold(line.nick) == self.fold(self.nick)
