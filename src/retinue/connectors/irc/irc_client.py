"""A registered connection to an IRC server, which handles the messages from the server."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeVar

from retinue.connectors.base import InboundMessage
from retinue.connectors.irc.delivery_ack import REFUSALS, DeliveryAck
from retinue.connectors.irc.irc_inbound import to_inbound
from retinue.connectors.irc.irc_message import IrcMessage, encode_message
from retinue.connectors.irc.irc_transport import IrcTransport
from retinue.connectors.irc.registration import ECHO_MESSAGE, LABELED_RESPONSE, IrcRegistration, build_connection_lost

T = TypeVar("T")
log = logging.getLogger(__name__)

JOIN_REFUSALS = ("403", "405", "437", "471", "473", "474", "475", "476", "477", "489", "520")
_WHOIS_ENDS = ("318", "401")


class IrcConnectionBroke(ConnectionError):
    """The connection to the IRC server ended while an operation was using it."""


@dataclass(slots=True)
class WhoisQuery:
    """A WHOIS query, which asks who uses a nick now."""

    nick: str
    answered: asyncio.Future[None]
    user_at_host: str = ""
    account: str = ""


@dataclass(slots=True, eq=False)
class IrcClient:
    """One registered connection to an IRC server. `token` identifies the connection and is unique."""

    transport: IrcTransport
    token: str
    wanted_nick: str
    registration: IrcRegistration
    channels: set[str]  # the channels that we should be in, case-folded
    on_removed: Callable[[str], None]  # called for a channel that removed us or refused our JOIN
    joined_channels: set[str] = field(default_factory=set[str])
    messages_received: int = 0  # of any kind: each one shows that the server is alive
    pending_ack: DeliveryAck | None = None
    pending_whois: WhoisQuery | None = None
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    joined: asyncio.Event = field(default_factory=asyncio.Event)  # set when we have joined a channel
    _deliveries: int = 0

    @property
    def nick(self) -> str:
        return self.registration.nick

    def fold(self, name: str) -> str:
        return self.registration.features.fold(name)

    def has_capability(self, capability: str) -> bool:
        return capability in self.registration.granted

    async def wait_while_connected(self, awaitable: Awaitable[T]) -> T:
        """Await `awaitable`. Raises `IrcConnectionBroke` if the connection ends before it is done."""
        wanted = asyncio.ensure_future(awaitable)
        end = asyncio.ensure_future(self.ended.wait())
        try:
            await asyncio.wait((wanted, end), return_when=asyncio.FIRST_COMPLETED)
            if wanted.done():
                return wanted.result()
            raise IrcConnectionBroke("the connection to the IRC server broke")
        finally:
            wanted.cancel()
            end.cancel()

    def expect_ack(self, target: str, lines: tuple[str, ...]) -> DeliveryAck:
        self._deliveries += 1
        self.pending_ack = DeliveryAck(
            target=target,
            token=f"{self.token}-{self._deliveries}",
            lines=lines,
            features=self.registration.features,
            echoes=self.has_capability(ECHO_MESSAGE),
            labels=self.has_capability(LABELED_RESPONSE),
        )
        return self.pending_ack

    # --- messages from the server ---

    def handle(self, message: IrcMessage) -> InboundMessage | None:
        """Handle one message from the server. Returns an inbound message if a user wrote it, or else None."""
        self.messages_received += 1
        match message.command:
            case "PING":
                self.transport.write(encode_message("PONG", trailing=message.last_param))
            case "PONG" if self.pending_ack is not None:
                self.pending_ack.on_pong(message)
            case "PRIVMSG" | "NOTICE":
                return self._handle_message(message)
            case "NICK" if self._is_own(message):
                self.registration.nick = message.get_param(0)
                self.registration.prefix = f"{self.nick}!{message.source.partition('!')[2]}"
            case "JOIN" if self._is_own(message):
                self.registration.prefix = message.source
                self.joined_channels.add(self.fold(message.get_param(0)))
                self.joined.set()
            case "PART" if self._is_own(message):
                self._leave_channel(message.get_param(0))
            case "KICK" if self.fold(message.get_param(1)) == self.fold(self.nick):
                self._leave_channel(message.get_param(0))
            case "ERROR":
                raise build_connection_lost("the server closed the connection", message)
            case _:
                self._handle_numeric(message)
        return None

    def _handle_message(self, message: IrcMessage) -> InboundMessage | None:
        if self._is_own(message):
            if self.pending_ack is not None and message.command == "PRIVMSG":
                self.pending_ack.on_echo(message)
            return None
        return to_inbound(
            message,
            own_nicks=(self.nick, self.wanted_nick),
            granted=frozenset(self.registration.granted),
            features=self.registration.features,
            fallback_id=f"{self.token}-{self.messages_received}",
        )

    def _handle_numeric(self, message: IrcMessage) -> None:
        about = self.fold(message.get_param(1))
        if self.pending_whois is not None and about == self.fold(self.pending_whois.nick):
            self._handle_whois(self.pending_whois, message)
            return
        if message.command in REFUSALS and self.pending_ack is not None:
            self.pending_ack.on_refusal(message)
        if message.command in JOIN_REFUSALS and about in self.channels and about not in self.joined_channels:
            log.warning("join refused", extra={"channel": about, "numeric": message.command})
            self.on_removed(about)

    def _handle_whois(self, query: WhoisQuery, message: IrcMessage) -> None:
        match message.command:
            case "311":
                query.user_at_host = f"{message.get_param(2)}@{message.get_param(3)}"
            case "330":
                query.account = message.get_param(2)
            case command if command in _WHOIS_ENDS and not query.answered.done():
                query.answered.set_result(None)
            case _:
                pass

    def _leave_channel(self, channel: str) -> None:
        self.joined_channels.discard(self.fold(channel))
        if self.fold(channel) in self.channels:
            self.on_removed(self.fold(channel))

    def _is_own(self, message: IrcMessage) -> bool:
        return self.fold(message.nick) == self.fold(self.nick)
