"""The IRC connector: keeps one connection to an IRC server."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Coroutine
from typing import Any

from retinue.connectors.base import (
    REMOTE_ATTEMPTS_MAX,
    Accept,
    ConnectionLost,
    ConnectorCapabilities,
    ConnectorCheckResult,
    ConnectorContext,
    Delivery,
    DeliveryFailed,
    DeliveryPart,
    FailureKind,
    InboundMessage,
    LengthUnit,
)
from retinue.connectors.irc.casemapping import IrcServerFeatures, IrcUser, parse_user
from retinue.connectors.irc.irc_client import IrcClient, IrcConnectionBroke, WhoisQuery
from retinue.connectors.irc.irc_formatting import split_lines, text_bytes_max
from retinue.connectors.irc.irc_message import encode_message
from retinue.connectors.irc.irc_transport import LineRateLimit, connect, is_loopback, wait_within
from retinue.connectors.irc.registration import IrcCredentials, IrcRegistration
from retinue.connectors.irc.settings import IrcSettings
from retinue.domain.errors import RetinueError

log = logging.getLogger(__name__)

REGISTRATION_S_MAX = 60.0
CONNECTION_WAIT_S_MAX = 10.0  # how long a delivery waits for a connection
REJOIN_S = 5.0
REJOIN_S_MAX = 600.0
ACCEPT_RETRY_S = 0.5
ACCEPT_RETRY_S_MAX = 30.0
PENDING_MAX = 1000  # Messages that are not accepted yet. At the limit we stop reading, which makes the server wait.
TARGET_BYTES_MAX = 200
TOKEN_BITS = 48
GOODBYE = "goodbye"


class IrcConnector:
    """Connects to one IRC server. IRC servers keep no messages for users who are not connected."""

    repeats_safely = False
    attempts_max = REMOTE_ATTEMPTS_MAX

    def __init__(self, settings: IrcSettings, context: ConnectorContext) -> None:
        self.name = context.name
        self._settings = settings
        self._context = context
        self._clock = context.clock
        self._rate_limit = LineRateLimit(self._clock, lines=settings.flood_lines, window_s=settings.flood_window_s)
        self._delivery_lock = asyncio.Lock()
        self._client: IrcClient | None = None
        self._connected = asyncio.Event()
        # kept during a reconnect: each message that was read is passed again until it is accepted
        self._pending: deque[InboundMessage] = deque()
        self._pending_changed = asyncio.Event()
        self._nicks: dict[str, str] = {}  # the nick that an account last used

    @property
    def capabilities(self) -> ConnectorCapabilities:
        """The capabilities of this connector.

        The maximum length of the text depends on the bot's prefix, which the server may change.
        """
        present = self._client
        manners = present.registration.features if present else IrcServerFeatures()
        prefix = present.registration.prefix if present else ""
        return ConnectorCapabilities(
            text_max=text_bytes_max(prefix, manners), unit=LengthUnit.BYTES, can_break_lines=False
        )

    @property
    def is_ready(self) -> bool:
        """Whether there is a connection and all configured channels are joined."""
        return self._client is not None and self._client.channels <= self._client.joined_channels

    @property
    def joined_channels(self) -> frozenset[str]:
        """The channels that are joined now."""
        return frozenset(self._client.joined_channels) if self._client else frozenset()

    # --- inbound ---

    async def listen(self, accept: Accept) -> None:
        await _run_until_first_ends(self._run_connection(), self._accept_pending(accept))

    async def _accept_pending(self, accept: Accept) -> None:
        while True:
            while self._pending:
                await self._accept_with_retry(self._pending[0], accept)
                self._pending.popleft()  # only after the message was accepted: until then it is passed again
                self._pending_changed.set()
            self._pending_changed.clear()
            await self._pending_changed.wait()

    async def _accept_with_retry(self, incoming: InboundMessage, accept: Accept) -> None:
        """Pass a message to the server, and retry until it is accepted.

        The IRC connection stays open meanwhile, because messages sent to a disconnected client are lost.
        """
        wait_s = ACCEPT_RETRY_S
        while True:
            try:
                await self._remember_nick(incoming)
                await accept(incoming)
                return
            except Exception as error:  # noqa: BLE001 - whatever it was, the connection is not the cause
                log.warning("message not accepted, retrying", extra={"error": type(error).__name__})
            await self._clock.sleep(wait_s)
            wait_s = min(wait_s * 2, ACCEPT_RETRY_S_MAX)

    async def _remember_nick(self, incoming: InboundMessage) -> None:
        """Remember which nick an account uses, because IRC delivers only to nicks."""
        person = parse_user(incoming.channel) if incoming.peer else None
        if person is None or not person.account or self._nicks.get(person.account) == incoming.sender.name:
            return
        await self._context.state.put(f"nick-of:{person.account}", incoming.sender.name)
        self._nicks[person.account] = incoming.sender.name

    async def _run_connection(self) -> None:
        present = await self._connect()
        self._context.on_connected()
        self._client = present
        self._connected.set()
        try:
            if self._settings.channels:
                await self._join(present, *self._settings.channels)
            await _run_until_first_ends(self._read_messages(present), self._watch_liveness(present))
        except BaseException as ending:
            if isinstance(ending, asyncio.CancelledError):
                present.transport.write(encode_message("QUIT", trailing=GOODBYE))
                present.transport.close()
            raise
        finally:
            self._client = None
            self._connected.clear()
            present.ended.set()
            if not present.transport.is_closed:
                present.transport.abort()

    async def _connect(self) -> IrcClient:
        arrival = IrcRegistration(self._read_credentials())
        own = self._settings
        try:
            return await wait_within(self._clock, REGISTRATION_S_MAX, self._register(arrival))
        except TimeoutError:
            raise ConnectionLost(f"cannot log in at {own.host} port {own.port}", because="it timed out") from None

    async def _register(self, registration: IrcRegistration) -> IrcClient:
        own = self._settings
        wire = await connect(own.host, own.port, tls=own.tls, ca_file=own.tls_ca_file)
        try:
            wire.write(*registration.start())
            while not registration.is_done:
                wire.write(*registration.handle(await wire.read()))
        except BaseException:
            wire.abort()
            raise
        rejoining: set[str] = set()
        present = IrcClient(
            transport=wire,
            token=f"{self._context.random.getrandbits(TOKEN_BITS):012x}",
            wanted_nick=own.nick,
            registration=registration,
            channels={registration.features.fold(room.partition(" ")[0]) for room in own.channels},
            on_removed=lambda room: self._schedule_rejoin(present, room, rejoining),
        )
        return present

    def _read_credentials(self) -> IrcCredentials:
        own, secret = self._settings, self._context.read_secret
        password = secret("password") if own.password_env or own.password_file else ""
        account_password = secret("account_password") if own.account else ""
        if (password or account_password) and not own.tls and not is_loopback(own.host):
            raise ConnectionLost(
                "cannot send the password over an unencrypted connection",
                because="`tls` is off, and the server is on another machine",
                try_this="set `tls = true` for this connector, and `port` to the TLS port of the server",
                needs_owner=True,
            )
        return IrcCredentials(
            nick=own.nick,
            username=own.username or own.nick,
            real_name=own.real_name,
            password=password,
            account=own.account,
            account_password=account_password,
        )

    async def _join(self, client: IrcClient, *channels: str) -> None:
        for channel in channels:
            name, _, key = channel.partition(" ")
            await client.wait_while_connected(self._rate_limit.acquire())
            client.transport.write(encode_message("JOIN", name, *([key] if key else [])))

    def _schedule_rejoin(self, client: IrcClient, channel: str, rejoining: set[str], wait_s: float = REJOIN_S) -> None:
        """Try to join a channel again later, with exponential back-off, because a ban may be permanent."""
        if channel in rejoining or client.ended.is_set():
            return
        rejoining.add(channel)

        def knock() -> None:
            rejoining.discard(channel)
            if client.ended.is_set() or channel in client.joined_channels:
                return
            written = next(each for each in self._settings.channels if client.fold(each.partition(" ")[0]) == channel)
            name, _, key = written.partition(" ")
            client.transport.write(encode_message("JOIN", name, *([key] if key else [])))
            self._schedule_rejoin(client, channel, rejoining, min(wait_s * 2, REJOIN_S_MAX))

        self._clock.call_later(wait_s, knock)

    async def _read_messages(self, client: IrcClient) -> None:
        while True:
            while len(self._pending) >= PENDING_MAX:
                self._pending_changed.clear()
                await self._pending_changed.wait()
            message = client.handle(await client.transport.read())
            if message is not None:
                self._pending.append(message)
                self._pending_changed.set()

    async def _watch_liveness(self, client: IrcClient) -> None:
        """Detect a half-open connection.

        After a silence, this sends a PING and raises an error if the server does not answer.
        """
        while True:
            before = client.messages_received
            await self._clock.sleep(self._settings.ping_after_s)
            if client.fold(client.nick) != client.fold(client.wanted_nick):
                client.transport.write(encode_message("NICK", client.wanted_nick))  # it may be free now
            if client.messages_received != before or len(self._pending) >= PENDING_MAX:
                continue  # it is alive, or we are not reading at the moment
            client.transport.write(encode_message("PING", trailing=client.token))
            await self._clock.sleep(self._settings.answer_timeout_s)
            if client.messages_received == before:
                raise ConnectionLost("the server stopped answering", because="it did not answer a ping in time")

    # --- outbound ---

    async def deliver(self, part: DeliveryPart) -> Delivery:
        async with self._delivery_lock:  # so that an error of the server can only be about this delivery
            present = await self._wait_for_client()
            target = await self._resolve_target(present, part.channel)
            manners = present.registration.features
            lines = split_lines(part.text, text_bytes_max(present.registration.prefix, manners, target=target))
            if not lines:
                raise DeliveryFailed(
                    "the message is empty",
                    kind=FailureKind.SEND_FAILED,
                    permanent=True,
                    try_this="send a message with text",
                )
            return await self._send(present, target, tuple(lines))

    async def _wait_for_client(self) -> IrcClient:
        try:
            await wait_within(self._clock, CONNECTION_WAIT_S_MAX, self._connected.wait())
        except TimeoutError:
            pass
        if self._client is None or self._client.transport.is_closed:
            raise DeliveryFailed(
                "not connected to the IRC server",
                try_this=f"wait for the automatic retry, or test the connector: retinue connector test {self.name}",
            )
        return self._client

    async def _send(self, client: IrcClient, target: str, lines: tuple[str, ...]) -> Delivery:
        proof = client.expect_ack(target, lines)
        sent = 0
        try:
            for number, line in enumerate(lines):
                await client.wait_while_connected(self._rate_limit.acquire())
                if client.transport.is_closed:
                    raise IrcConnectionBroke("the connection to the IRC server broke")
                tags = {"label": proof.make_label(number)} if proof.labels else None
                client.transport.write(encode_message("PRIVMSG", target, trailing=line, tags=tags))
                sent += 1
            await client.wait_while_connected(self._rate_limit.acquire())
            client.transport.write(encode_message("PING", trailing=proof.token))
            return await wait_within(
                self._clock, self._settings.answer_timeout_s, client.wait_while_connected(proof.result)
            )
        except IrcConnectionBroke:
            if not sent:
                raise DeliveryFailed("the connection to the IRC server broke before anything was sent") from None
            raise
        except TimeoutError:
            client.transport.abort()  # the server is not reading or not answering: a new connection may help
            raise
        finally:
            client.pending_ack = None

    async def _resolve_target(self, client: IrcClient, channel: str) -> str:
        """Return the nick or IRC channel to write to.

        In a private channel, the nick must still belong to the same user.
        """
        manners = client.registration.features
        if len(channel.encode()) > TARGET_BYTES_MAX:
            raise _invalid_address(channel, f"it is longer than {TARGET_BYTES_MAX} bytes")
        if manners.is_channel(channel):
            await self._wait_until_joined(client, manners.fold(channel))
            return channel
        person = parse_user(channel)
        if person is None:
            raise _invalid_address(channel, "it is not the name of an IRC channel or user")
        if person.account:
            known = self._nicks.get(person.account)
            kept = known or await self._context.state.get(f"nick-of:{person.account}")
            person = IrcUser(account=person.account, nick=kept or person.account)
        if person.account or person.user_at_host:
            await self._verify_user(client, person, channel)
        return person.nick

    async def _wait_until_joined(self, client: IrcClient, channel: str) -> None:
        """Wait until a configured channel is joined.

        The JOIN may be in progress, or the bot may just have been removed.
        """
        while channel in client.channels and channel not in client.joined_channels:
            client.joined.clear()
            try:
                await wait_within(self._clock, CONNECTION_WAIT_S_MAX, client.wait_while_connected(client.joined.wait()))
            except (IrcConnectionBroke, TimeoutError):
                raise DeliveryFailed(
                    f"the bot is not in the IRC channel {channel}",
                    because="it was removed from the channel, or may not join it",
                    retry_after_s=REJOIN_S,
                ) from None

    async def _verify_user(self, client: IrcClient, user: IrcUser, channel: str) -> None:
        inquiry = WhoisQuery(user.nick, asyncio.get_running_loop().create_future())
        client.pending_whois = inquiry
        try:
            await client.wait_while_connected(self._rate_limit.acquire())
            client.transport.write(encode_message("WHOIS", user.nick))
            await wait_within(
                self._clock, self._settings.answer_timeout_s, client.wait_while_connected(inquiry.answered)
            )
        except (IrcConnectionBroke, TimeoutError):
            raise DeliveryFailed("the IRC server did not report who uses this nick") from None
        finally:
            client.pending_whois = None
        fold = client.fold
        if user.account and fold(inquiry.account) != fold(user.account):
            raise _invalid_address(channel, f"the nick {user.nick} does not belong to that account now")
        if user.user_at_host and fold(inquiry.user_at_host) != fold(user.user_at_host):
            raise _invalid_address(channel, f"the nick {user.nick} is gone, or belongs to another user now")

    # --- check ---

    async def check(self) -> ConnectorCheckResult:
        if self._client is not None:
            return ConnectorCheckResult(
                ok=True, account=self._client.nick, sentence=f"connected to {self._settings.host}"
            )
        try:
            present = await self._connect()
        except RetinueError as lost:
            return ConnectorCheckResult(
                ok=False, account="", sentence=lost.sentence, because=lost.because, try_this=lost.try_this
            )
        present.transport.write(encode_message("QUIT", trailing=GOODBYE))
        present.transport.close()
        return ConnectorCheckResult(ok=True, account=present.nick, sentence=f"the login at {self._settings.host} works")


def _invalid_address(channel: str, because: str) -> DeliveryFailed:
    return DeliveryFailed(
        f"cannot send to {channel!r}",
        kind=FailureKind.INVALID_ADDRESS,
        permanent=True,
        because=because,
        try_this="check the address of the channel",
    )


async def _run_until_first_ends(*coroutines: Coroutine[Any, Any, None]) -> None:
    """Run the coroutines until the first one ends, then cancel the others. Raises what the first one raised."""
    tasks = [asyncio.ensure_future(work) for work in coroutines]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            if task in done:
                task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
