"""The IRC connector: keeps one connection to an IRC server."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Coroutine
from typing import Any

from retinue.connectors.base import (
    PATIENT_ATTEMPTS_MAX,
    Abilities,
    Accept,
    Delivery,
    DeliveryFailed,
    FailureKind,
    Finding,
    Incoming,
    LineLost,
    Parcel,
    Surroundings,
    Unit,
)
from retinue.connectors.irc.casemapping import Manners, Whom, whom
from retinue.connectors.irc.irc_client import Inquiry, LineBroke, Presence
from retinue.connectors.irc.irc_formatting import sayable, text_bytes_max
from retinue.connectors.irc.irc_message import encoded
from retinue.connectors.irc.irc_transport import Pace, is_here, opened, within
from retinue.connectors.irc.registration import Arrival, Credentials
from retinue.connectors.irc.settings import IrcSettings
from retinue.domain.errors import RetinueError

log = logging.getLogger(__name__)

ARRIVAL_S_MAX = 60.0
LINE_WAIT_S_MAX = 10.0  # how long a delivery waits for a connection
REJOIN_S = 5.0
REJOIN_S_MAX = 600.0
OFFER_S = 0.5
OFFER_S_MAX = 30.0
HEARD_MAX = 1000  # Messages that are not accepted yet. At the limit we stop reading, which makes the server wait.
TARGET_BYTES_MAX = 200
TOKEN_BITS = 48
GOODBYE = "goodbye"


class IrcConnector:
    """Connects one IRC server. A server keeps no messages for absent users."""

    repeats_safely = False
    attempts_max = PATIENT_ATTEMPTS_MAX

    def __init__(self, settings: IrcSettings, surroundings: Surroundings) -> None:
        self.instance = surroundings.instance
        self._settings = settings
        self._surroundings = surroundings
        self._clock = surroundings.clock
        self._pace = Pace(self._clock, lines=settings.flood_lines, window_s=settings.flood_window_s)
        self._one_delivery = asyncio.Lock()
        self._present: Presence | None = None
        self._arrived = asyncio.Event()
        # survives a reconnect: a message that was read is passed until it is accepted
        self._heard: deque[Incoming] = deque()
        self._changed = asyncio.Event()
        self._nicks: dict[str, str] = {}  # the nick that an account last used

    @property
    def abilities(self) -> Abilities:
        """The text length depends on our prefix, which the server may change."""
        present = self._present
        manners = present.arrival.manners if present else Manners()
        prefix = present.arrival.prefix if present else ""
        return Abilities(text_max=text_bytes_max(prefix, manners), unit=Unit.BYTES, lines=False)

    @property
    def is_in(self) -> bool:
        """Whether there is a connection and all configured channels are joined."""
        return self._present is not None and self._present.rooms <= self._present.inside

    @property
    def inside(self) -> frozenset[str]:
        """The channels that are joined now."""
        return frozenset(self._present.inside) if self._present else frozenset()

    # --- inbound ---

    async def listen(self, accept: Accept) -> None:
        await _first_to_end(self._hold_the_line(), self._hand_in(accept))

    async def _hand_in(self, accept: Accept) -> None:
        while True:
            while self._heard:
                await self._until_taken(self._heard[0], accept)
                self._heard.popleft()  # only now: a message that was not accepted is passed again
                self._changed.set()
            self._changed.clear()
            await self._changed.wait()

    async def _until_taken(self, incoming: Incoming, accept: Accept) -> None:
        """Pass a message until it is accepted, and keep the connection meanwhile: messages sent to
        a disconnected client are lost."""
        wait_s = OFFER_S
        while True:
            try:
                await self._remember(incoming)
                await accept(incoming)
                return
            except Exception as error:  # noqa: BLE001 - whatever it was, the connection is not the cause
                log.warning("the house could not take what was said", extra={"error": type(error).__name__})
            await self._clock.sleep(wait_s)
            wait_s = min(wait_s * 2, OFFER_S_MAX)

    async def _remember(self, incoming: Incoming) -> None:
        """Remember the nick of an account, because IRC delivers only to nicks."""
        person = whom(incoming.room) if incoming.peer else None
        if person is None or not person.account or self._nicks.get(person.account) == incoming.speaker.name:
            return
        await self._surroundings.shelf.put(f"nick-of:{person.account}", incoming.speaker.name)
        self._nicks[person.account] = incoming.speaker.name

    async def _hold_the_line(self) -> None:
        present = await self._arrive()
        self._surroundings.stands()
        self._present = present
        self._arrived.set()
        try:
            if self._settings.rooms:
                await self._enter(present, *self._settings.rooms)
            await _first_to_end(self._read(present), self._watch(present))
        except BaseException as ending:
            if isinstance(ending, asyncio.CancelledError):
                present.wire.write(encoded("QUIT", last=GOODBYE))
                present.wire.close()
            raise
        finally:
            self._present = None
            self._arrived.clear()
            present.ended.set()
            if not present.wire.is_closed:
                present.wire.drop()

    async def _arrive(self) -> Presence:
        arrival = Arrival(self._credentials())
        own = self._settings
        try:
            return await within(self._clock, ARRIVAL_S_MAX, self._come_in(arrival))
        except TimeoutError:
            raise LineLost(f"{own.host} port {own.port} did not let us in", because="it took too long") from None

    async def _come_in(self, arrival: Arrival) -> Presence:
        own = self._settings
        wire = await opened(own.host, own.port, tls=own.tls, ca_file=own.tls_ca_file)
        try:
            wire.write(*arrival.begin())
            while not arrival.done:
                wire.write(*arrival.read(await wire.read()))
        except BaseException:
            wire.drop()
            raise
        rejoining: set[str] = set()
        present = Presence(
            wire=wire,
            token=f"{self._surroundings.chance.getrandbits(TOKEN_BITS):012x}",
            wanted_nick=own.nick,
            arrival=arrival,
            rooms={arrival.manners.fold(room.partition(" ")[0]) for room in own.rooms},
            on_turned_out=lambda room: self._come_back(present, room, rejoining),
        )
        return present

    def _credentials(self) -> Credentials:
        own, secret = self._settings, self._surroundings.secret
        password = secret("password") if own.password_env or own.password_file else ""
        account_password = secret("account_password") if own.account else ""
        if (password or account_password) and not own.tls and not is_here(own.host):
            raise LineLost(
                "no password is sent over a line that others can read",
                because="`tls` is off, and the server is another machine",
                try_this="set `tls = true` for this connector, with the port that the server has for it",
                needs_owner=True,
            )
        return Credentials(
            nick=own.nick,
            username=own.username or own.nick,
            real_name=own.real_name,
            password=password,
            account=own.account,
            account_password=account_password,
        )

    async def _enter(self, present: Presence, *rooms: str) -> None:
        for room in rooms:
            name, _, key = room.partition(" ")
            await present.while_up(self._pace.take())
            present.wire.write(encoded("JOIN", name, *([key] if key else [])))

    def _come_back(self, present: Presence, room: str, rejoining: set[str], wait_s: float = REJOIN_S) -> None:
        """Try to join again later, with exponential back-off: the channel may have banned us for
        good."""
        if room in rejoining or present.ended.is_set():
            return
        rejoining.add(room)

        def knock() -> None:
            rejoining.discard(room)
            if present.ended.is_set() or room in present.inside:
                return
            written = next(each for each in self._settings.rooms if present.fold(each.partition(" ")[0]) == room)
            name, _, key = written.partition(" ")
            present.wire.write(encoded("JOIN", name, *([key] if key else [])))
            self._come_back(present, room, rejoining, min(wait_s * 2, REJOIN_S_MAX))

        self._clock.later(wait_s, knock)

    async def _read(self, present: Presence) -> None:
        while True:
            while len(self._heard) >= HEARD_MAX:
                self._changed.clear()
                await self._changed.wait()
            said = present.read(await present.wire.read())
            if said is not None:
                self._heard.append(said)
                self._changed.set()

    async def _watch(self, present: Presence) -> None:
        """Detect a half-open connection: send a PING after a silence, and raise if it is not
        answered."""
        while True:
            before = present.lines_heard
            await self._clock.sleep(self._settings.silence_s)
            if present.fold(present.nick) != present.fold(present.wanted_nick):
                present.wire.write(encoded("NICK", present.wanted_nick))  # its other user may have left
            if present.lines_heard != before or len(self._heard) >= HEARD_MAX:
                continue  # it is alive, or we do not read at the moment
            present.wire.write(encoded("PING", last=present.token))
            await self._clock.sleep(self._settings.answer_s)
            if present.lines_heard == before:
                raise LineLost("the server does not answer any more", because="the line is only half there")

    # --- outbound ---

    async def deliver(self, parcel: Parcel) -> Delivery:
        async with self._one_delivery:  # so that an error of the server can only be about this delivery
            present = await self._line()
            target = await self._target(present, parcel.room)
            manners = present.arrival.manners
            lines = sayable(parcel.text, text_bytes_max(present.arrival.prefix, manners, target=target))
            if not lines:
                raise DeliveryFailed("there is nothing to say", kind=FailureKind.SEND_FAILED, permanent=True)
            return await self._say(present, target, tuple(lines))

    async def _line(self) -> Presence:
        try:
            await within(self._clock, LINE_WAIT_S_MAX, self._arrived.wait())
        except TimeoutError:
            pass
        if self._present is None or self._present.wire.is_closed:
            raise DeliveryFailed("there is no line to the server at the moment")
        return self._present

    async def _say(self, present: Presence, target: str, lines: tuple[str, ...]) -> Delivery:
        proof = present.prove(target, lines)
        sent = 0
        try:
            for number, line in enumerate(lines):
                await present.while_up(self._pace.take())
                if present.wire.is_closed:
                    raise LineBroke("the line to the server broke")
                tags = {"label": proof.label(number)} if proof.labels else None
                present.wire.write(encoded("PRIVMSG", target, last=line, tags=tags))
                sent += 1
            await present.while_up(self._pace.take())
            present.wire.write(encoded("PING", last=proof.token))
            return await within(self._clock, self._settings.answer_s, present.while_up(proof.settled))
        except LineBroke:
            if not sent:
                raise DeliveryFailed("the line to the server broke before anything was sent") from None
            raise
        except TimeoutError:
            present.wire.drop()  # the server does not read or does not answer: a new connection may be better
            raise
        finally:
            present.proof = None

    async def _target(self, present: Presence, room: str) -> str:
        """The nick or channel to write to. In a private channel, the nick must still belong to the
        same user."""
        manners = present.arrival.manners
        if len(room.encode()) > TARGET_BYTES_MAX:
            raise _nobody(room, "no name on IRC is that long")
        if manners.is_room(room):
            await self._until_inside(present, manners.fold(room))
            return room
        person = whom(room)
        if person is None:
            raise _nobody(room, "it is no name of a room or of somebody on IRC")
        if person.account:
            known = self._nicks.get(person.account)
            kept = known or await self._surroundings.shelf.get(f"nick-of:{person.account}")
            person = Whom(account=person.account, nick=kept or person.account)
        if person.account or person.user_at_host:
            await self._make_sure(present, person, room)
        return person.nick

    async def _until_inside(self, present: Presence, room: str) -> None:
        """Wait until a configured channel is joined: joining may be in progress, or we were just
        removed."""
        while room in present.rooms and room not in present.inside:
            present.moved.clear()
            try:
                await within(self._clock, LINE_WAIT_S_MAX, present.while_up(present.moved.wait()))
            except (LineBroke, TimeoutError):
                raise DeliveryFailed(
                    f"we are not in {room} at the moment",
                    because="it has put us out, or does not let us in",
                    retry_after_s=REJOIN_S,
                ) from None

    async def _make_sure(self, present: Presence, person: Whom, room: str) -> None:
        inquiry = Inquiry(person.nick, asyncio.get_running_loop().create_future())
        present.inquiry = inquiry
        try:
            await present.while_up(self._pace.take())
            present.wire.write(encoded("WHOIS", person.nick))
            await within(self._clock, self._settings.answer_s, present.while_up(inquiry.answered))
        except (LineBroke, TimeoutError):
            raise DeliveryFailed("the server did not say who has that nick now") from None
        finally:
            present.inquiry = None
        fold = present.fold
        if person.account and fold(inquiry.account) != fold(person.account):
            raise _nobody(room, f"the nick {person.nick} is not that account's at the moment")
        if person.user_at_host and fold(inquiry.user_at_host) != fold(person.user_at_host):
            raise _nobody(room, f"the nick {person.nick} is gone, or somebody else's now")

    # --- check ---

    async def check(self) -> Finding:
        if self._present is not None:
            return Finding(ok=True, account=self._present.nick, sentence=f"we are on {self._settings.host}")
        try:
            present = await self._arrive()
        except RetinueError as lost:
            return Finding(ok=False, account="", sentence=lost.sentence, because=lost.because, try_this=lost.try_this)
        present.wire.write(encoded("QUIT", last=GOODBYE))
        present.wire.close()
        return Finding(ok=True, account=present.nick, sentence=f"{self._settings.host} lets us in")


def _nobody(room: str, because: str) -> DeliveryFailed:
    return DeliveryFailed(
        f"{room!r} cannot be written to", kind=FailureKind.INVALID_ADDRESS, permanent=True, because=because
    )


async def _first_to_end(*works: Coroutine[Any, Any, None]) -> None:
    """Run all coroutines until one ends, then cancel the rest. Raises what the first one raised."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            if task in done:
                task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
