"""The lines of the house: made as the settings say, kept listening, and honest about how they fare."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest

from retinue.config.access import AccessSettings
from retinue.config.connectors import ConnectorSettings, UnparsedConnectorSettings
from retinue.config.setting_metadata import setting
from retinue.connectors.base import (
    Accept,
    ConnectionLost,
    Connector,
    ConnectorCheckResult,
    ConnectorContext,
    InboundMessage,
    Platform,
    PlatformUser,
    RemoteFile,
    get_attempts_max,
)
from retinue.connectors.connector_registry import PlatformRegistry
from retinue.connectors.email.connector import EmailConnector
from retinue.connectors.irc.connector import IrcConnector
from retinue.connectors.supervisor.connector_health import (
    BACKOFF_MAX_S,
    HEALTHY_AFTER_S,
    NEEDS_OWNER_RETRY_S,
    RETRY_AFTER_MAX_S,
    ConnectionStatus,
    ConnectorHealth,
    reconnect_delay_s,
)
from retinue.connectors.supervisor.connector_supervisor import (
    MESSAGE_ATTEMPTS_MAX,
    ConnectorSupervisor,
    SupervisorServices,
)
from retinue.connectors.supervisor.poison_messages import from_json, to_json
from retinue.connectors.telegram.connector import TelegramConnector
from retinue.domain.envelope import Outcome, Receipt
from retinue.domain.errors import Invalid, StoreError
from retinue.domain.structs import replace
from retinue.store.channels import connector_state, poison_messages
from retinue.testing.fake_connector import FakeConnector
from retinue.testing.local_instance import LocalInstance, LocalServer
from retinue.testing.wait_conditions import wait_until


@dataclass(frozen=True, slots=True, kw_only=True)
class PigeonSettings:
    """A loft."""

    birds: int = setting(1, "How many.", least=1)
    token_env: str = setting("", "The variable with the token.")
    token_file: str = setting("", "The file with the token.")


@dataclass(eq=False)
class Pigeon(FakeConnector):
    """A place of which a test says what befalls each time someone listens there."""

    settings: PigeonSettings = field(default_factory=PigeonSettings)
    around: ConnectorContext | None = None
    befalls: list[Callable[[], None]] = field(default_factory=list[Callable[[], None]])
    times: int = 0
    listeners: int = 0
    leaving: bool = False
    lingers: asyncio.Event | None = None  # set: when it lets go of its line, once it is asked to
    attempts_max: int | None = None

    async def listen(self, accept: Accept) -> None:
        self.times += 1
        self.listeners += 1
        try:
            if self.befalls:
                self.befalls.pop(0)()
            await super().listen(partial(self._heard, accept))
        finally:
            self.leaving = True
            if self.lingers is not None:
                await self.lingers.wait()
            self.listeners -= 1

    async def _heard(self, accept: Accept, incoming: InboundMessage) -> Receipt | None:
        if incoming.text == "CUT":
            self._offered.popleft()
            raise ConnectionResetError("cut")
        return await accept(incoming)

    def hang_up(self) -> None:
        self.offer_text("CUT")

    async def check(self) -> ConnectorCheckResult:
        assert self.around is not None
        return ConnectorCheckResult(ok=True, account=f"@{self.around.read_secret('token')}", sentence="it knows us")


def loft(made: list[Pigeon], weather: list[Callable[[], None]]) -> Platform:
    def make(settings: PigeonSettings, around: ConnectorContext) -> Connector:
        made.append(Pigeon(around.clock, name=around.name, settings=settings, around=around, befalls=weather))
        return made[-1]

    return Platform(name="pigeon", title="Pigeons", settings=PigeonSettings, make_connector=make)


def line(**own: Any) -> ConnectorSettings:
    return ConnectorSettings(kind="pigeon", own=UnparsedConnectorSettings(table=own))


@pytest.fixture
def made() -> list[Pigeon]:
    return []


@pytest.fixture
def weather() -> list[Callable[[], None]]:
    """What befalls whoever listens next, one after the other."""
    return []


@pytest.fixture
def household(tmp_path: Path, made: list[Pigeon], weather: list[Callable[[], None]]) -> LocalInstance:
    return LocalInstance(tmp_path, platforms={"pigeon": loft(made, weather)})


Weather = list[Callable[[], None]]


def health(house: LocalServer, instance: str = "loft") -> ConnectorHealth:
    return next(each for each in house.supervisor.health() if each.name == instance)


async def until(holds: Callable[[], Any]) -> None:
    await wait_until(holds, "it holds", poll_s=0.002)


async def turned_until(household: LocalInstance, by_s: float, holds: Callable[[], Any]) -> None:
    """Turn the clock until something holds: someone who has still to write something down sleeps only after that."""

    async def held() -> bool:
        if not (found := bool(holds())):
            await household.clock.advance(by_s)
        return found

    await wait_until(held, "it holds", poll_s=0.002)


def lost(**kw: Any) -> Callable[[], None]:
    def befall() -> None:
        raise ConnectionLost("the loft is shut", because="it rains", try_this="wait", **kw)

    return befall


# --- how long to wait ---


def test_a_wait_grows_to_its_bound_and_chance_shortens_it() -> None:
    assert [reconnect_delay_s(breaks, random_share=0.0) for breaks in (1, 2, 3, 4, 99)] == [
        1.0,
        2.0,
        4.0,
        8.0,
        BACKOFF_MAX_S,
    ]
    for breaks in range(1, 40):
        longest, shortest = reconnect_delay_s(breaks, random_share=0.0), reconnect_delay_s(breaks, random_share=1.0)
        assert 0 < shortest < longest <= BACKOFF_MAX_S


def test_two_houses_that_were_thrown_out_together_do_not_come_back_together() -> None:
    waits = {reconnect_delay_s(5, random_share=Random(seed).random()) for seed in range(50)}
    assert len(waits) == 50


def test_a_place_that_says_when_to_come_again_is_not_asked_before() -> None:
    for seed in range(50):
        assert reconnect_delay_s(1, random_share=Random(seed).random(), retry_after_s=30.0) >= 30.0
    assert (
        reconnect_delay_s(1, random_share=0.0, retry_after_s=1e9) == RETRY_AFTER_MAX_S
    )  # nor is it believed without end
    assert reconnect_delay_s(3, random_share=0.0, retry_after_s=-5.0) == reconnect_delay_s(3, random_share=0.0)


def test_where_waiting_does_not_help_it_is_tried_seldom() -> None:
    assert reconnect_delay_s(1, random_share=0.0, needs_owner=True) == NEEDS_OWNER_RETRY_S > BACKOFF_MAX_S


# --- lines ---


@pytest.mark.spec("D60")
async def test_two_instances_of_one_kind_keep_apart(household: LocalInstance, made: list[Pigeon]) -> None:
    household.connector_settings = {"home": line(birds=2), "away": line(birds=3)}
    async with household.run() as house:
        home, away = made
        assert (home.name, home.settings.birds, away.name, away.settings.birds) == ("home", 2, "away", 3)
        assert home.around is not None and away.around is not None
        await home.around.state.put("offset", "17")
        assert (await home.around.state.get("offset"), await away.around.state.get("offset")) == ("17", None)
        for each in made:
            each.offer_text("hello", channel="7", message_id="1")
        found = await house.wait_for(
            lambda conn: rows if len(rows := sorted(senders(conn))) == 2 else None, what="two letters from two channels"
        )
        assert found == ["channel:away:7", "channel:home:7"]  # one room and one id, and yet two messages
        assert house.supervisor.get_platform_name("home") == house.supervisor.get_platform_name("away") == "pigeon"


def senders(conn: Any) -> set[str]:
    rows = conn.exec_driver_sql("SELECT sender FROM envelopes WHERE sender LIKE 'channel:%'")
    return {row[0] for row in rows}


@pytest.mark.spec("D57")
async def test_how_far_a_connector_has_heard_outlives_the_house(household: LocalInstance, made: list[Pigeon]) -> None:
    household.connector_settings = {"loft": line()}
    async with household.run() as house:
        assert made[0].around is not None
        await made[0].around.state.put("offset", "17")
        await made[0].around.state.put("offset", "18")
        house.crash()
    async with household.run():
        assert made[1].around is not None
        assert await made[1].around.state.get("offset") == "18"
        with pytest.raises(Invalid) as refused:
            await made[1].around.state.put("offset", "1" * (connector_state.VALUE_CHARS_MAX + 1))
        assert refused.value.code == "connector.state_invalid"
        assert await made[1].around.state.get("offset") == "18"


async def test_a_broken_line_is_taken_up_again_and_says_so_meanwhile(
    household: LocalInstance, made: list[Pigeon], weather: Weather
) -> None:
    household.connector_settings = {"loft": line()}
    weather += [lost(), lost(), lost()]
    async with household.run() as house:
        assert (
            health(house).status is ConnectionStatus.LISTENING and health(house).is_healthy
        )  # nothing speaks against it yet
        await until(lambda: health(house).status is ConnectionStatus.WAITING)
        now = health(house)
        assert (now.failures, now.because, now.try_this) == (1, "the loft is shut: it rains", "wait")
        assert now.retry_at is not None and now.retry_at > household.clock.now() and not now.is_healthy
        for times in (2, 3, 4):
            await household.clock.advance(4.0)
            await until(lambda times=times: made[0].times >= times)
        assert (health(house).status, health(house).failures) == (ConnectionStatus.TRYING, 3)
        await made[0].send_inbound("hello")
        well = health(house)
        assert (well.status, well.failures, well.because) == (ConnectionStatus.LISTENING, 0, "")
        assert well.last_received_at == household.clock.now()


async def test_a_line_that_stands_again_says_so_at_once_and_is_not_trusted_yet(
    household: LocalInstance, made: list[Pigeon], weather: Weather
) -> None:
    household.connector_settings = {"loft": line()}
    weather.append(lost())
    async with household.run() as house:
        await until(lambda: health(house).status is ConnectionStatus.WAITING)
        around = made[0].around
        assert around is not None
        around.on_connected()  # too late: it broke since
        assert health(house).status is ConnectionStatus.WAITING
        await household.clock.advance(1.0)
        await until(lambda: made[0].times == 2)
        assert health(house).status is ConnectionStatus.TRYING
        around.on_connected()
        now = health(house)
        assert (now.status, now.because, now.try_this) == (ConnectionStatus.LISTENING, "", "")
        assert now.failures == 1  # if it breaks again, it is left alone for longer


async def test_a_line_that_holds_for_a_while_is_well_though_nothing_is_said(
    household: LocalInstance, made: list[Pigeon], weather: Weather
) -> None:
    household.connector_settings = {"loft": line()}
    weather.append(lost())
    async with household.run() as house:
        await until(lambda: health(house).status is ConnectionStatus.WAITING)
        await household.clock.advance(1.0)
        await until(lambda: made[0].times == 2)
        assert health(house).status is ConnectionStatus.TRYING
        await household.clock.advance(HEALTHY_AFTER_S)
        assert (health(house).status, health(house).failures) == (ConnectionStatus.LISTENING, 0)


async def test_a_place_that_names_a_time_is_left_alone_until_then(
    household: LocalInstance, made: list[Pigeon], weather: Weather
) -> None:
    household.connector_settings = {"loft": line()}
    weather.append(lost(retry_after_s=300.0))
    async with household.run() as house:
        await until(lambda: health(house).status is ConnectionStatus.WAITING)
        await household.clock.advance(299.0)
        assert made[0].times == 1
        await household.clock.advance(2.0)
        await until(lambda: made[0].times == 2)


async def test_the_owner_is_told_once_of_a_trouble_that_only_they_can_end(
    household: LocalInstance, made: list[Pigeon], weather: Weather
) -> None:
    household.connector_settings = {"loft": line()}
    weather += [lost(needs_owner=True)] * 40
    async with household.run() as house:
        await until(lambda: health(house).status is ConnectionStatus.NEEDS_OWNER)
        for times in (2, 3):
            await turned_until(household, NEEDS_OWNER_RETRY_S, lambda times=times: made[0].times >= times)
            await until(lambda: health(house).status is ConnectionStatus.NEEDS_OWNER)
        told = await house.list_envelopes_to("owner")
        assert [letter.text for letter in told] == [
            "The connector 'loft' needs your help: the loft is shut.\nbecause: it rains\ntry: wait"
        ]
        house.crash()
    async with household.run() as house:
        await until(lambda: health(house).status is ConnectionStatus.NEEDS_OWNER)
        assert len(await house.list_envelopes_to("owner")) == 1  # it is the same trouble


async def test_a_trouble_that_comes_after_the_last_was_over_is_told_anew(
    household: LocalInstance, made: list[Pigeon], weather: Weather
) -> None:
    household.connector_settings = {"loft": line()}
    weather += [lost(needs_owner=True)]
    async with household.run() as house:
        await until(lambda: health(house).status is ConnectionStatus.NEEDS_OWNER)
        await turned_until(household, NEEDS_OWNER_RETRY_S, lambda: made[0].times == 2)
        await made[0].send_inbound("hello")  # the owner has seen to it
        weather += [lost(needs_owner=True)]
        made[0].hang_up()
        await until(lambda: health(house).status is ConnectionStatus.WAITING)
        await household.clock.advance(BACKOFF_MAX_S)
        await until(lambda: health(house).status is ConnectionStatus.NEEDS_OWNER)
        await house.wait_for(lambda conn: letters(conn) == 2, what="a second letter")


def letters(conn: Any) -> int:
    return conn.exec_driver_sql("SELECT count(*) FROM envelopes WHERE recipient = 'person:owner'").scalar_one()


# --- as the settings say ---


async def test_only_what_changed_is_opened_anew_and_the_old_one_is_gone_before(
    household: LocalInstance, made: list[Pigeon]
) -> None:
    household.connector_settings = {"a": line(), "b": line()}
    async with household.run() as house:
        await until(lambda: [each.times for each in made] == [1, 1])
        await house.supervisor.sync({"a": line(), "b": line(birds=5)})
        assert [each.name for each in made] == ["a", "b", "b"]
        assert made[1].listeners == 0
        await until(lambda: made[2].times == 1)
        assert (made[0].times, made[0].listeners) == (1, 1)
        assert household.connectors["b"] is made[2]


async def test_what_is_sent_while_a_line_is_opened_anew_waits_and_does_not_die(
    household: LocalInstance, made: list[Pigeon]
) -> None:
    household.connector_settings = {"a": line()}
    async with household.run() as house:
        await until(lambda: made[0].times == 1)
        made[0].lingers = asyncio.Event()
        fitting = asyncio.create_task(house.supervisor.sync({"a": line(birds=5)}))
        await until(lambda: made[0].leaving)
        sent = await house.send("still here?", sender="agent:ada", recipient="channel:a:7")
        await until(lambda: house.outbox.waiting_count > 0)
        made[0].lingers.set()
        await fitting
        await household.clock.advance(5.0)
        assert (await house.wait_for_outcome(sent.envelope)).outcome is Outcome.DELIVERED
        assert made[1].list_texts("7") == ["still here?"]


async def test_a_house_that_is_closing_takes_no_line_down_that_still_has_something_to_send(
    household: LocalInstance, made: list[Pigeon]
) -> None:
    household.connector_settings = {"a": line()}
    async with household.run() as house:
        await until(lambda: made[0].times == 1)
        await house.supervisor.stop()
        await house.supervisor.sync({})
        sent = await house.send("the last word", sender="agent:ada", recipient="channel:a:7")
        assert (await house.wait_for_outcome(sent.envelope)).outcome is Outcome.DELIVERED


async def test_what_the_settings_turn_off_or_no_longer_name_is_closed(
    household: LocalInstance, made: list[Pigeon]
) -> None:
    household.connector_settings = {"a": line(), "b": line()}
    async with household.run() as house:
        await until(lambda: [each.times for each in made] == [1, 1])
        await house.supervisor.sync({"a": replace(line(), enabled=False)})
        assert [each.listeners for each in made] == [0, 0]
        assert {each.name: each.status for each in house.supervisor.health()} == {"a": ConnectionStatus.OFF}
        assert not {"a", "b"} & set(household.connectors)


async def test_who_may_talk_changes_without_the_line_being_dropped(
    household: LocalInstance, made: list[Pigeon]
) -> None:
    household.connector_settings = {"a": line()}
    async with household.run() as house:
        await until(lambda: made[0].times == 1)
        await house.supervisor.sync({"a": replace(line(), door=AccessSettings(allow_from=("4711",)))})
        assert len(made) == 1 and made[0].listeners == 1


async def test_one_that_cannot_be_made_says_why_and_keeps_nobody_from_opening(
    household: LocalInstance, made: list[Pigeon]
) -> None:
    household.connector_settings = {"a": line(), "b": line(bords=1), "c": ConnectorSettings(kind="whatsapp")}
    async with household.run() as house:
        found = {each.name: each for each in house.supervisor.health()}
        assert found["a"].status is ConnectionStatus.LISTENING
        assert found["b"].status is ConnectionStatus.FAILED and "connectors.b.bords" in found["b"].because
        assert found["c"].status is ConnectionStatus.FAILED and "whatsapp" in found["c"].because
        sent = await house.send("hello?", sender="agent:ada", recipient="channel:b:7")
        # What is for it waits, as it would for a line that is down: it may be mended in time.
        await until(lambda: house.outbox.active_count == 0)
        assert (await house.get_envelope(sent.envelope)).status == "pending"
        household.connector_settings = {"a": line(), "b": line(birds=1)}
        await house.supervisor.sync(household.connector_settings)
        assert health(house, "b").status is ConnectionStatus.LISTENING


async def test_what_was_being_sent_when_the_house_fell_is_not_sent_again_by_a_line_that_could_not_be_made(
    household: LocalInstance, made: list[Pigeon]
) -> None:
    household.connector_settings = {"a": line()}
    async with household.run() as house:
        await until(lambda: made[0].times == 1)
        made[0].will_be_slow(60)
        sent = await house.send("pay Noor", sender="agent:ada", recipient="channel:a:7")
        await until(lambda: bool(made[0].attempted_envelopes))
        house.crash()
    household.connector_settings = {"a": line(bords=1)}
    async with household.run() as house:
        # Whether that place knows a letter again, nobody here can say.
        assert (await house.wait_for_outcome(sent.envelope)).outcome is Outcome.INTERRUPTED


@pytest.mark.parametrize("place", [TelegramConnector, EmailConnector, IrcConnector])
async def test_an_answer_outlasts_a_place_that_cannot_be_reached_for_minutes(
    household: LocalInstance, made: list[Pigeon], place: type[Any]
) -> None:
    household.connector_settings = {"a": line()}
    async with household.run() as house:
        await until(lambda: made[0].times == 1)
        made[0].attempts_max = get_attempts_max(place)
        made[0].will_fail(times=12)
        sent = await house.send("still here?", sender="agent:ada", recipient="channel:a:7")
        await turned_until(household, 30.0, lambda: made[0].list_texts("7"))
        assert (await house.wait_for_outcome(sent.envelope)).outcome is Outcome.DELIVERED


async def test_a_letter_waits_for_a_line_that_could_not_be_made_until_it_is_mended(
    household: LocalInstance, made: list[Pigeon]
) -> None:
    household.connector_settings = {"a": line(bords=1)}
    async with household.run() as house:
        sent = await house.send("still here?", sender="agent:ada", recipient="channel:a:7")
        for _ in range(10):
            await until(lambda: house.outbox.waiting_count > 0)
            await household.clock.advance(61.0)
        await house.supervisor.sync({"a": line()})
        await turned_until(household, 30.0, lambda: made[0].list_texts("7"))
        assert (await house.wait_for_outcome(sent.envelope)).outcome is Outcome.DELIVERED


async def test_a_plug_in_takes_the_place_of_nothing_that_the_house_delivers_by(
    household: LocalInstance, tmp_path: Path
) -> None:
    async with household.run() as house:
        own = FakeConnector(household.clock, name="completion")
        brought = [FakeConnector(household.clock, name=name) for name in ("completion", "pigeons")]
        ready: dict[str, Connector] = {each.name: each for each in brought}
        lines: dict[str, Connector] = {own.name: own}
        needs = SupervisorServices(
            store=house.store,
            clock=household.clock,
            ids=household.ids,
            random=Random(0),
            accept=house.connector_intake.accept,
            data_dir=tmp_path,
            environment={},
            get_attachment_path=lambda _: tmp_path,
            platforms=PlatformRegistry(),
            get_plugin_connectors=lambda: ready,
        )
        board = ConnectorSupervisor(needs, lines)
        await board.sync({})
        assert lines == {"completion": own, "pigeons": brought[1]}
        ready.clear()
        await board.sync({})
        assert lines == {"completion": own}


async def test_a_kind_that_raises_whatever_it_likes_is_not_here_and_the_house_is(household: LocalInstance) -> None:
    def make(settings: PigeonSettings, around: ConnectorContext) -> Connector:
        raise KeyError("secret words")

    household.platforms["pigeon"] = Platform(name="pigeon", title="x", settings=PigeonSettings, make_connector=make)
    household.connector_settings = {"loft": line()}
    async with household.run() as house:
        assert (health(house).status, health(house).because) == (ConnectionStatus.FAILED, "KeyError")


async def test_a_connector_is_told_its_secrets_from_where_the_settings_say(
    household: LocalInstance, made: list[Pigeon]
) -> None:
    file = household.root / "secrets" / "loft-token"
    file.parent.mkdir()
    file.write_text("coo\n")
    file.chmod(0o600)
    household.environment = {"LOFT": "grr"}
    household.connector_settings = {
        "env": line(token_env="LOFT"),
        "file": line(token_file="secrets/loft-token"),
        "none": line(),
        "both": line(token_env="LOFT", token_file="secrets/loft-token"),
    }
    async with household.run() as house:
        board = house.supervisor
        assert (await board.check("env")).account == "@grr"
        assert (await board.check("file")).account == "@coo"
        for instance in ("none", "both"):
            found = await board.check(instance)
            assert not found.ok and "token" in found.sentence and found.because
        tried = await board.check_settings("new", line(token_env="LOFT"))
        assert tried.ok and "new" not in {each.name for each in board.health()}


# --- what the house stumbles over ---


class Stumbling:
    """A doorway that falls over some messages."""

    def __init__(self, house: LocalServer) -> None:
        self.accept = house.connector_intake.accept
        self.over = {"bad"}
        self.error: Exception = ValueError("a secret word")
        self.tries = 0

    async def __call__(self, instance: str, incoming: InboundMessage) -> Receipt | None:
        if incoming.text in self.over:
            self.tries += 1
            raise self.error
        return await self.accept(instance, incoming)


async def stumbling(house: LocalServer) -> Stumbling:
    found = Stumbling(house)
    supervisor: Any = house.supervisor
    services = supervisor._services
    supervisor._services = type(services)(
        **{name: getattr(services, name) for name in services.__struct_fields__} | {"accept": found}
    )
    return found


async def test_a_message_that_is_poison_is_set_aside_and_the_next_is_heard(household: LocalInstance) -> None:
    quiet = household.connectors["quiet"] = FakeConnector(household.clock)
    async with household.run() as house:
        over = await stumbling(house)
        bad = quiet.offer_text("bad", channel="7", message_id="13")
        good = quiet.offer_text("good", channel="7", message_id="14")
        await turned_until(household, BACKOFF_MAX_S, lambda: bad.confirmed.done() and good.confirmed.done())
        assert bad.confirmed.result() is None  # confirmed, or it would come for ever
        assert good.confirmed.result() is not None
        assert over.tries == MESSAGE_ATTEMPTS_MAX
        [kept] = await house.store.read(poison_messages.list_messages)
        assert (kept.connector, kept.channel, kept.message_id, kept.attempts) == (
            "quiet",
            "7",
            "13",
            MESSAGE_ATTEMPTS_MAX,
        )
        assert kept.because == "ValueError"  # what such an error says may be anything

        over.over.clear()
        assert await house.supervisor.retry_poison_message(kept.id) is not None
        assert await house.store.read(poison_messages.list_messages) == []
        [done] = await house.store.read(lambda conn: poison_messages.list_messages(conn, include_closed=True))
        assert (done.state, done.body) == ("done", "")  # the words are in an envelope now, and only there


async def test_what_the_store_could_not_take_is_never_set_aside(household: LocalInstance) -> None:
    quiet = household.connectors["quiet"] = FakeConnector(household.clock)
    async with household.run() as house:
        over = await stumbling(house)
        over.error = StoreError("the disk is full")
        said = quiet.offer_text("bad")
        for times in range(1, MESSAGE_ATTEMPTS_MAX * 3):
            await until(lambda times=times: over.tries >= times)
            await household.clock.advance(BACKOFF_MAX_S)
        assert not said.confirmed.done()
        assert await house.store.read(poison_messages.list_messages) == []
        over.over.clear()
        await household.clock.advance(BACKOFF_MAX_S)
        async with asyncio.timeout(120):
            assert await said.confirmed is not None


def test_a_message_that_was_set_aside_is_read_back_as_it_was_heard() -> None:
    async def fetch() -> AsyncIterator[bytes]:
        yield b""

    heard = InboundMessage(
        room="7",
        message_id="13",
        text="look",
        speaker=PlatformUser(id="4711", name="Maria"),
        peer="4711",
        mentioned=True,
        files=(RemoteFile(name="a.png", media_type="image/png", size_bytes=1, fetch=lambda: fetch()),),
    )
    again = from_json(to_json(heard))
    assert again.text == "look\n[left out: 1 files, which were not downloaded]"
    assert (again.speaker, again.peer, again.mentioned, again.files) == (heard.speaker, "4711", True, ())


async def test_a_flood_of_poison_does_not_fill_the_store(
    household: LocalInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(poison_messages, "WAITING_MAX", 3)
    monkeypatch.setattr(poison_messages, "_beyond", poison_messages._beyond.offset(3))  # pyright: ignore[reportPrivateUsage]
    async with household.run() as house:
        for number in range(10):
            await house.store.write(
                lambda conn, n=number: poison_messages.upsert(
                    conn,
                    id_=f"{n:032x}",
                    connector="quiet",
                    channel="7",
                    message_id=str(n),
                    body="{}",
                    because="no",
                    tries=3,
                    at_ms=n,
                ),
                point="test",
            )
        waiting = await house.store.read(poison_messages.list_messages)
        assert [each.message_id for each in waiting] == ["9", "8", "7"]
