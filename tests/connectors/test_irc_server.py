"""Test the IRC connector with ngIRCd, an independent server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from datetime import datetime
from pathlib import Path

import pytest
from connectors.irc_instance import listen_in_background, make_irc_connector, wait_until_true

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
async def irc_server(tmp_path: Path) -> AsyncGenerator[NgircdServer]:
    irc_server = NgircdServer(tmp_path)
    await irc_server.open()
    yield irc_server
    await irc_server.close()


@pytest.fixture
async def maria(irc_server: NgircdServer) -> AsyncGenerator[IrcPerson]:
    person = IrcPerson(irc_server.port)
    await person.connect(ROOM)
    yield person
    await person.disconnect()


@pytest.fixture
async def mallory(irc_server: NgircdServer) -> AsyncGenerator[IrcPerson]:
    person = IrcPerson(irc_server.port, nick="mallory")
    await person.connect()
    yield person
    await person.disconnect()


def make_delivery_part(channel: str, text: str, number: int = 1) -> DeliveryPart:
    return build_part("kit", channel, text, number=number)


async def test_a_message_in_an_irc_channel_is_received_and_answered_there(
    irc_server: NgircdServer, maria: IrcPerson, tmp_path: Path
) -> None:
    connector = make_irc_connector(tmp_path, irc_server.port, channels=(ROOM,))
    async with listen_in_background(connector) as server:
        await maria.say("#Home", "retinue: what is on today?")
        await wait_until_true(lambda: bool(server.committed))
        delivery = await connector.deliver(make_delivery_part(ROOM, "Lunch with Noor."))
        await maria.wait_until_read()

    [received] = server.committed
    assert (received.channel, received.text, received.mentioned, received.peer) == (ROOM, "what is on today?", True, "")
    assert received.sender.name == "maria"
    assert received.sender.id.startswith("maria!")
    assert not received.sender.is_verified
    assert received.context.chat_type is ChatType.GROUP
    assert delivery.receipt
    assert [text for _, room, text in maria.received if room == ROOM] == ["Lunch with Noor."]


async def test_a_direct_irc_message_is_received_and_answered_privately(
    irc_server: NgircdServer, maria: IrcPerson, tmp_path: Path
) -> None:
    connector = make_irc_connector(tmp_path, irc_server.port, channels=(ROOM,))
    async with listen_in_background(connector) as server:
        await maria.say("retinue", "psst")
        await wait_until_true(lambda: bool(server.committed))
        [received] = server.committed
        await connector.deliver(make_delivery_part(received.channel, "yes?"))
        await maria.wait_until_read()

    assert received.channel == received.peer == received.sender.id
    assert received.context.chat_type is ChatType.DIRECT
    assert [(room, text) for _, room, text in maria.received] == [("maria", "yes?")]


async def test_an_irc_answer_is_not_sent_to_another_user_who_took_the_nick(
    irc_server: NgircdServer, maria: IrcPerson, mallory: IrcPerson, tmp_path: Path
) -> None:
    connector = make_irc_connector(tmp_path, irc_server.port)
    async with listen_in_background(connector) as server:
        await maria.say("retinue", "my secret")
        await wait_until_true(lambda: bool(server.committed))
        maria.send_lines("NICK mia")
        await maria.wait_until_read()
        mallory.send_lines("NICK maria")
        await mallory.wait_until_read()

        with pytest.raises(DeliveryFailed) as failed:
            await connector.deliver(make_delivery_part(server.committed[0].channel, "your secret"))
        await mallory.wait_until_read()

    assert failed.value.permanent
    assert failed.value.kind is FailureKind.INVALID_ADDRESS
    assert mallory.received == []


@pytest.mark.parametrize("channel", ["#nowhere", "nobody", "nobody!n@host"])
async def test_delivery_to_a_missing_irc_user_or_channel_is_a_permanent_failure(
    irc_server: NgircdServer, tmp_path: Path, channel: str
) -> None:
    connector = make_irc_connector(tmp_path, irc_server.port)
    async with listen_in_background(connector):
        with pytest.raises(DeliveryFailed) as failed:
            await connector.deliver(make_delivery_part(channel, "hello"))

    assert failed.value.permanent


@pytest.mark.parametrize("channel", ["#home,#garden", "maria,noor", "$*", "#a b", "#" + "x" * 300])
async def test_delivery_to_an_ambiguous_irc_target_is_a_permanent_failure(
    irc_server: NgircdServer, maria: IrcPerson, tmp_path: Path, channel: str
) -> None:
    connector = make_irc_connector(tmp_path, irc_server.port, channels=(ROOM,))
    async with listen_in_background(connector):
        with pytest.raises(DeliveryFailed) as failed:
            await connector.deliver(make_delivery_part(channel, "hello"))
        await maria.wait_until_read()

    assert failed.value.permanent
    assert maria.received == []


async def test_text_that_looks_like_irc_commands_is_sent_as_text(
    irc_server: NgircdServer, maria: IrcPerson, tmp_path: Path
) -> None:
    connector = make_irc_connector(tmp_path, irc_server.port, channels=(ROOM,))
    async with listen_in_background(connector):
        await connector.deliver(make_delivery_part(ROOM, "a\r\nQUIT :bye\nb\x00\x01VERSION\x01"))
        await connector.deliver(make_delivery_part(ROOM, "still here", 2))
        await maria.wait_until_read()

    assert [text for _, _, text in maria.received] == ["a", "QUIT :bye", "bVERSION", "still here"]


async def test_a_long_answer_arrives_in_full_over_several_irc_lines(
    irc_server: NgircdServer, maria: IrcPerson, tmp_path: Path
) -> None:
    words = " ".join(f"wörd{number}" for number in range(200))
    connector = make_irc_connector(tmp_path, irc_server.port, channels=(ROOM,))
    async with listen_in_background(connector):
        assert connector.capabilities.unit is LengthUnit.BYTES
        as_wide_as_it_says = "x" * connector.capabilities.text_max
        await connector.deliver(make_delivery_part(ROOM, words))
        await connector.deliver(make_delivery_part(ROOM, as_wide_as_it_says, 2))
        await maria.wait_until_read()

    *long, wide = [text for _, _, text in maria.received]
    assert " ".join(long) == words
    assert len(long) > 1
    assert wide == as_wide_as_it_says


async def test_irc_ctcp_actions_are_received_and_other_ctcp_requests_are_ignored(
    irc_server: NgircdServer, maria: IrcPerson, tmp_path: Path
) -> None:
    connector = make_irc_connector(tmp_path, irc_server.port, channels=(ROOM,))
    async with listen_in_background(connector) as server:
        for text in ("\x01VERSION\x01", "\x01PING 1\x01", "\x01ACTION waves at retinue\x01", "\x03" + "4red"):
            await maria.say(ROOM, text)
        await wait_until_true(lambda: len(server.committed) == 2)
        await maria.wait_until_read()

    assert [each.text for each in server.committed] == ["* maria waves at retinue", "red"]
    assert server.committed[0].mentioned
    assert maria.received == []  # the connector does not reply to client requests


async def test_the_sender_of_an_irc_notice_is_marked_as_a_program(
    irc_server: NgircdServer, maria: IrcPerson, tmp_path: Path
) -> None:
    connector = make_irc_connector(tmp_path, irc_server.port, channels=(ROOM,))
    async with listen_in_background(connector) as server:
        maria.send_lines(f"NOTICE {ROOM} :retinue: I am a machine")
        await wait_until_true(lambda: bool(server.committed))

    assert server.committed[0].sender.is_program


async def test_a_taken_irc_nick_gets_a_suffix_and_is_reclaimed_when_free(
    irc_server: NgircdServer, tmp_path: Path
) -> None:
    other = IrcPerson(irc_server.port, nick="retinue")
    await other.connect(ROOM)
    connector = make_irc_connector(tmp_path, irc_server.port, channels=(ROOM,), ping_after_s=1.0)
    async with listen_in_background(connector) as server:
        assert (await connector.check()).account == "retinue_"
        await other.say(ROOM, "retinue_: hello")
        await wait_until_true(lambda: bool(server.committed))
        await other.disconnect()
        await wait_until_true(lambda: has_nick(connector, "retinue"))
        assert connector.capabilities.text_max > 400

    assert server.connections_lost == 0


async def has_nick(connector: IrcConnector, nick: str) -> bool:
    return (await connector.check()).account == nick


async def test_the_irc_connector_rejoins_a_channel_after_a_kick(
    irc_server: NgircdServer, maria: IrcPerson, tmp_path: Path
) -> None:
    connector = make_irc_connector(tmp_path, irc_server.port, channels=(ROOM,))
    async with listen_in_background(connector) as server:
        maria.send_lines(f"KICK {ROOM} retinue :out")
        await wait_until_true(lambda: not connector.is_ready)
        outcome = await server.send(connector, make_delivery_part(ROOM, "back again"))
        await maria.wait_until_read()

    assert outcome is SendOutcome.DELIVERED
    assert server.connections_lost == 0
    assert [text for _, _, text in maria.received] == ["back again"]


async def test_identical_irc_messages_get_unique_ids_across_connections(
    irc_server: NgircdServer, maria: IrcPerson, tmp_path: Path
) -> None:
    connector = make_irc_connector(tmp_path, irc_server.port, channels=(ROOM,))
    names: list[str] = []
    for _ in range(2):
        async with listen_in_background(connector) as server:
            await maria.say(ROOM, "again")
            await maria.say(ROOM, "again")
            await wait_until_true(lambda: len(server.committed) == 2)
        names += [each.message_id for each in server.committed]

    assert len(set(names)) == 4


async def test_outgoing_irc_lines_are_rate_limited(irc_server: NgircdServer, maria: IrcPerson, tmp_path: Path) -> None:
    connector = make_irc_connector(tmp_path, irc_server.port, channels=(ROOM,))
    clock = RecordingClock(connector._clock)
    connector._rate_limit = LineRateLimit(clock, lines=2, window_s=2.0)
    async with listen_in_background(connector) as server:
        for number in range(3):
            await server.send(connector, make_delivery_part(ROOM, f"line {number}", number + 1))
        await maria.wait_until_read()

    assert [text for _, _, text in maria.received] == ["line 0", "line 1", "line 2"]
    # One to join the channel, and two for each answer: its text, and the check that it was read.
    assert clock.requested_delays == [2.0] * 7


class RecordingClock:
    """A clock that records requested delays."""

    def __init__(self, inner: Clock) -> None:
        self._inner = inner
        self.requested_delays: list[float] = []

    def now(self) -> datetime:
        return self._inner.now()

    async def sleep(self, seconds: float) -> None:
        await self._inner.sleep(seconds)

    def call_later(self, seconds: float, call: Callable[[], None]) -> Callable[[], None]:
        self.requested_delays.append(seconds)
        return self._inner.call_later(seconds, call)


async def test_the_rate_limit_of_outgoing_irc_lines_blocks_until_its_window_has_passed() -> None:
    clock = FakeClock()
    pace = LineRateLimit(clock, lines=2, window_s=10.0)
    for _ in range(2):
        await pace.acquire()
    third = asyncio.create_task(pace.acquire())

    await clock.advance(9.0)
    assert not third.done()
    await clock.advance(1.0)
    assert third.done()


async def test_the_irc_check_reports_the_nick_and_disconnects(
    irc_server: NgircdServer, maria: IrcPerson, tmp_path: Path
) -> None:
    finding = await make_irc_connector(tmp_path, irc_server.port).check()

    assert finding.ok and finding.account == "retinue"
    maria.send_lines("WHOIS retinue")
    await maria.wait_for(lambda: any(" 401 " in line or " 318 " in line for line in maria.lines))


async def test_the_irc_check_reports_an_unreachable_server(tmp_path: Path) -> None:
    finding = await make_irc_connector(tmp_path, 1).check()

    assert not finding.ok
    assert "cannot reach" in finding.sentence


async def test_an_irc_password_is_not_sent_unencrypted_to_a_remote_host(tmp_path: Path) -> None:
    connector = make_irc_connector(tmp_path, 6667, host="192.0.2.1", password_env="PASSWORD")

    finding = await connector.check()

    assert not finding.ok
    assert "unencrypted connection" in finding.sentence
