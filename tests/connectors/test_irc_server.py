"""The connector against ngIRCd, a server written by others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from datetime import datetime
from pathlib import Path

import pytest
from connectors.irc_instance import connector_in, listening, until

from retinue.connectors.base import DeliveryFailed, DeliveryPart, FailureKind, LengthUnit
from retinue.connectors.irc.connector import IrcConnector
from retinue.connectors.irc.irc_transport import LineRateLimit
from retinue.domain.ports import Clock
from retinue.domain.session_keys import ChatType
from retinue.testing.fake_clock import FakeClock
from retinue.testing.fault_kit.irc_peer import IrcPerson, NgircdServer
from retinue.testing.fault_kit.kit_server import SendOutcome, build_part

ROOM = "#home"


@pytest.fixture
async def server(tmp_path: Path) -> AsyncGenerator[NgircdServer]:
    server = NgircdServer(tmp_path)
    await server.open()
    yield server
    await server.close()


@pytest.fixture
async def maria(server: NgircdServer) -> AsyncGenerator[IrcPerson]:
    person = IrcPerson(server.port)
    await person.connect(ROOM)
    yield person
    await person.disconnect()


@pytest.fixture
async def mallory(server: NgircdServer) -> AsyncGenerator[IrcPerson]:
    person = IrcPerson(server.port, nick="mallory")
    await person.connect()
    yield person
    await person.disconnect()


def parcel(room: str, text: str, number: int = 1) -> DeliveryPart:
    return build_part("kit", room, text, number=number)


async def test_a_question_in_a_room_is_heard_and_answered(
    server: NgircdServer, maria: IrcPerson, tmp_path: Path
) -> None:
    connector = connector_in(tmp_path, server.port, rooms=(ROOM,))
    async with listening(connector) as house:
        await maria.say("#Home", "house: what is on today?")
        await until(lambda: bool(house.committed))
        delivery = await connector.deliver(parcel(ROOM, "Lunch with Noor."))
        await maria.wait_until_read()

    [heard] = house.committed
    assert (heard.room, heard.text, heard.mentioned, heard.peer) == (ROOM, "what is on today?", True, "")
    assert heard.speaker.name == "maria"
    assert heard.speaker.id.startswith("maria!")
    assert not heard.speaker.vouched
    assert heard.context.chat_type is ChatType.GROUP
    assert delivery.receipt
    assert [text for _, room, text in maria.received if room == ROOM] == ["Lunch with Noor."]


async def test_somebody_writes_to_us_alone_and_is_answered_alone(
    server: NgircdServer, maria: IrcPerson, tmp_path: Path
) -> None:
    connector = connector_in(tmp_path, server.port, rooms=(ROOM,))
    async with listening(connector) as house:
        await maria.say("house", "psst")
        await until(lambda: bool(house.committed))
        [heard] = house.committed
        await connector.deliver(parcel(heard.room, "yes?"))
        await maria.wait_until_read()

    assert heard.room == heard.peer == heard.speaker.id
    assert heard.context.chat_type is ChatType.DIRECT
    assert [(room, text) for _, room, text in maria.received] == [("maria", "yes?")]


async def test_an_answer_does_not_go_to_whoever_took_the_nick(
    server: NgircdServer, maria: IrcPerson, mallory: IrcPerson, tmp_path: Path
) -> None:
    connector = connector_in(tmp_path, server.port)
    async with listening(connector) as house:
        await maria.say("house", "my secret")
        await until(lambda: bool(house.committed))
        maria.send_lines("NICK mia")
        await maria.wait_until_read()
        mallory.send_lines("NICK maria")
        await mallory.wait_until_read()

        with pytest.raises(DeliveryFailed) as failed:
            await connector.deliver(parcel(house.committed[0].room, "your secret"))
        await mallory.wait_until_read()

    assert failed.value.permanent
    assert failed.value.kind is FailureKind.INVALID_ADDRESS
    assert mallory.received == []


@pytest.mark.parametrize("room", ["#nowhere", "nobody", "nobody!n@host"])
async def test_who_and_what_is_not_there_is_refused_for_good(server: NgircdServer, tmp_path: Path, room: str) -> None:
    connector = connector_in(tmp_path, server.port)
    async with listening(connector):
        with pytest.raises(DeliveryFailed) as failed:
            await connector.deliver(parcel(room, "hello"))

    assert failed.value.permanent


@pytest.mark.parametrize("room", ["#home,#garden", "maria,noor", "$*", "#a b", "#" + "x" * 300])
async def test_a_room_that_could_mean_others_is_not_written_to(
    server: NgircdServer, maria: IrcPerson, tmp_path: Path, room: str
) -> None:
    connector = connector_in(tmp_path, server.port, rooms=(ROOM,))
    async with listening(connector):
        with pytest.raises(DeliveryFailed) as failed:
            await connector.deliver(parcel(room, "hello"))
        await maria.wait_until_read()

    assert failed.value.permanent
    assert maria.received == []


async def test_words_that_look_like_commands_are_only_words(
    server: NgircdServer, maria: IrcPerson, tmp_path: Path
) -> None:
    connector = connector_in(tmp_path, server.port, rooms=(ROOM,))
    async with listening(connector):
        await connector.deliver(parcel(ROOM, "a\r\nQUIT :bye\nb\x00\x01VERSION\x01"))
        await connector.deliver(parcel(ROOM, "still here", 2))
        await maria.wait_until_read()

    assert [text for _, _, text in maria.received] == ["a", "QUIT :bye", "bVERSION", "still here"]


async def test_a_long_answer_arrives_whole(server: NgircdServer, maria: IrcPerson, tmp_path: Path) -> None:
    words = " ".join(f"wörd{number}" for number in range(200))
    connector = connector_in(tmp_path, server.port, rooms=(ROOM,))
    async with listening(connector):
        assert connector.capabilities.unit is LengthUnit.BYTES
        as_wide_as_it_says = "x" * connector.capabilities.text_max
        await connector.deliver(parcel(ROOM, words))
        await connector.deliver(parcel(ROOM, as_wide_as_it_says, 2))
        await maria.wait_until_read()

    *long, wide = [text for _, _, text in maria.received]
    assert " ".join(long) == words
    assert len(long) > 1
    assert wide == as_wide_as_it_says


async def test_gestures_are_heard_and_what_clients_ask_is_not(
    server: NgircdServer, maria: IrcPerson, tmp_path: Path
) -> None:
    connector = connector_in(tmp_path, server.port, rooms=(ROOM,))
    async with listening(connector) as house:
        for said in ("\x01VERSION\x01", "\x01PING 1\x01", "\x01ACTION waves at house\x01", "\x03" + "4red"):
            await maria.say(ROOM, said)
        await until(lambda: len(house.committed) == 2)
        await maria.wait_until_read()

    assert [each.text for each in house.committed] == ["* maria waves at house", "red"]
    assert house.committed[0].mentioned
    assert maria.received == []  # nothing of ours answers a client


async def test_a_notice_is_from_a_program_and_never_to_be_answered(
    server: NgircdServer, maria: IrcPerson, tmp_path: Path
) -> None:
    connector = connector_in(tmp_path, server.port, rooms=(ROOM,))
    async with listening(connector) as house:
        maria.send_lines(f"NOTICE {ROOM} :house: I am a machine")
        await until(lambda: bool(house.committed))

    assert house.committed[0].speaker.is_program


async def test_a_nick_that_is_taken_is_lengthened_and_taken_back_when_it_is_free(
    server: NgircdServer, tmp_path: Path
) -> None:
    other = IrcPerson(server.port, nick="house")
    await other.connect(ROOM)
    connector = connector_in(tmp_path, server.port, rooms=(ROOM,), silence_s=1.0)
    async with listening(connector) as house:
        assert (await connector.check()).account == "house_"
        await other.say(ROOM, "house_: hello")
        await until(lambda: bool(house.committed))
        await other.disconnect()
        await until(lambda: _named(connector, "house"))
        assert connector.capabilities.text_max > 400

    assert house.connections_lost == 0


async def _named(connector: IrcConnector, nick: str) -> bool:
    return (await connector.check()).account == nick


async def test_who_is_put_out_of_a_room_comes_back(server: NgircdServer, maria: IrcPerson, tmp_path: Path) -> None:
    connector = connector_in(tmp_path, server.port, rooms=(ROOM,))
    async with listening(connector) as house:
        maria.send_lines(f"KICK {ROOM} house :out")
        await until(lambda: not connector.is_ready)
        outcome = await house.send(connector, parcel(ROOM, "back again"))
        await maria.wait_until_read()

    assert outcome is SendOutcome.DELIVERED
    assert house.connections_lost == 0
    assert [text for _, _, text in maria.received] == ["back again"]


async def test_what_is_said_is_named_apart_on_every_line(
    server: NgircdServer, maria: IrcPerson, tmp_path: Path
) -> None:
    connector = connector_in(tmp_path, server.port, rooms=(ROOM,))
    names: list[str] = []
    for _ in range(2):
        async with listening(connector) as house:
            await maria.say(ROOM, "again")
            await maria.say(ROOM, "again")
            await until(lambda: len(house.committed) == 2)
        names += [each.message_id for each in house.committed]

    assert len(set(names)) == 4


async def test_lines_go_out_at_a_measured_pace(server: NgircdServer, maria: IrcPerson, tmp_path: Path) -> None:
    connector = connector_in(tmp_path, server.port, rooms=(ROOM,))
    clock = Listed(connector._clock)
    connector._rate_limit = LineRateLimit(clock, lines=2, window_s=2.0)
    async with listening(connector) as house:
        for number in range(3):
            await house.send(connector, parcel(ROOM, f"line {number}", number + 1))
        await maria.wait_until_read()

    assert [text for _, _, text in maria.received] == ["line 0", "line 1", "line 2"]
    # To enter the room, and two for each answer: its words, and the question whether they were read.
    assert clock.asked == [2.0] * 7


class Listed:
    """A clock that keeps what was asked of it."""

    def __init__(self, inside: Clock) -> None:
        self._inside = inside
        self.asked: list[float] = []

    def now(self) -> datetime:
        return self._inside.now()

    async def sleep(self, seconds: float) -> None:
        await self._inside.sleep(seconds)

    def call_later(self, seconds: float, call: Callable[[], None]) -> Callable[[], None]:
        self.asked.append(seconds)
        return self._inside.call_later(seconds, call)


async def test_a_pace_lets_no_more_through_until_time_has_passed() -> None:
    clock = FakeClock()
    pace = LineRateLimit(clock, lines=2, window_s=10.0)
    for _ in range(2):
        await pace.acquire()
    third = asyncio.create_task(pace.acquire())

    await clock.advance(9.0)
    assert not third.done()
    await clock.advance(1.0)
    assert third.done()


async def test_a_check_says_who_we_are_and_leaves_nobody_behind(
    server: NgircdServer, maria: IrcPerson, tmp_path: Path
) -> None:
    finding = await connector_in(tmp_path, server.port).check()

    assert finding.ok and finding.account == "house"
    maria.send_lines("WHOIS house")
    await maria.wait_for(lambda: any(" 401 " in line or " 318 " in line for line in maria.lines))


async def test_a_check_of_a_server_that_is_not_there_says_so(tmp_path: Path) -> None:
    finding = await connector_in(tmp_path, 1).check()

    assert not finding.ok
    assert "cannot reach" in finding.sentence


async def test_no_password_is_sent_in_the_clear_to_another_machine(tmp_path: Path) -> None:
    connector = connector_in(tmp_path, 6667, host="192.0.2.1", password_env="PASSWORD")

    finding = await connector.check()

    assert not finding.ok
    assert "unencrypted connection" in finding.sentence
