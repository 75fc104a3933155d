"""Connectors over operations: added with what they need, checked against their place, and honest about their lines."""

from __future__ import annotations

import json
import stat
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from operations.operations_instance import DeskHouse, agent, desk_house, person

from retinue.config import InvalidSettings, load_configuration
from retinue.config.setting_metadata import setting
from retinue.connectors.base import (
    ConnectionLost,
    Connector,
    ConnectorCheckResult,
    ConnectorContext,
    Platform,
    SettingQuestion,
)
from retinue.connectors.irc.settings import IrcSettings
from retinue.domain.agent import PermissionLevel
from retinue.domain.errors import Conflict, Invalid, NotAllowed, NotFound, RetinueError
from retinue.domain.structs import replace
from retinue.operations.config_holder import ConfigHolder
from retinue.operations.connector.connectors import parse_typed_value
from retinue.store.channels import connector_state, poison_messages
from retinue.testing.fake_connector import FakeConnector
from retinue.testing.local_instance import LocalInstance
from retinue.testing.wait_conditions import wait_until

OWNER, MARIA = person("owner"), person("maria")
TOKEN = "123456:a-very-secret-token"
SETTINGS = """\
# The house of the Smiths.
[house]
drain_s = 5.0  # not longer

[plugins.pigeons]
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class PigeonSettings:
    """A loft."""

    birds: int = setting(1, "How many.", least=1)
    token_env: str = setting("", "The variable with the token.")
    token_file: str = setting("", "The file with the token.")


class Pigeon(FakeConnector):
    around: ConnectorContext
    befalls: ConnectionLost | None = None

    async def listen(self, accept: Any) -> None:
        if self.befalls is not None:
            raise self.befalls
        await super().listen(accept)

    async def check(self) -> ConnectorCheckResult:
        if self.around.read_secret("token") != TOKEN:
            return ConnectorCheckResult(
                ok=False, account="", sentence="the loft does not know us", because="the token is wrong"
            )
        return ConnectorCheckResult(ok=True, account="@coo", sentence="the loft knows us as @coo")


def make(settings: PigeonSettings, around: ConnectorContext) -> Connector:
    made = Pigeon(around.clock, name=around.name)
    made.around = around
    return made


PIGEON = Platform(
    name="pigeon",
    title="Pigeons",
    settings=PigeonSettings,
    make_connector=make,
    questions=(
        SettingQuestion(key="token", ask="The loft's token", secret=True),
        SettingQuestion(key="birds", ask="How many?"),
    ),
    next_steps=("Let one fly.",),
)


@asynccontextmanager
async def opened(household: LocalInstance) -> AsyncGenerator[DeskHouse]:
    home = household.root / "home"
    home.mkdir(exist_ok=True)
    if not (home / "retinue.toml").exists():
        (home / "retinue.toml").write_text(SETTINGS)
    environment = {"RETINUE_HOME": str(home), "LOFT": TOKEN}
    household.platforms["pigeon"] = PIGEON
    household.environment = environment
    household.connector_settings = load_configuration(environment).settings.connectors
    async with desk_house(household) as made:
        board = made.house.supervisor
        board._services = replace(board._services, data_dir=home)  # pyright: ignore[reportPrivateUsage]
        keeper = ConfigHolder(load_configuration(environment), environment)
        made.desk = replace(
            made.desk,
            config_holder=keeper,
            settings=lambda: keeper.current.settings,
            data_dir=home,
            connector_supervisor=board,
        )
        yield made


@pytest.fixture
def household(tmp_path: Path) -> LocalInstance:
    return LocalInstance(tmp_path)


@pytest.fixture
async def house(household: LocalInstance) -> AsyncGenerator[DeskHouse]:
    async with opened(household) as made:
        yield made


async def refused(house: DeskHouse, error: type[RetinueError], operation: str, **asked: Any) -> RetinueError:
    with pytest.raises(error) as raised:
        await house.ask(OWNER, operation, **asked)
    assert TOKEN not in str(raised.value)
    return raised.value


async def add(house: DeskHouse, name: str = "loft", **more: Any) -> Any:
    return await house.ask(OWNER, "connector.add", kind="pigeon", name=name, **{"secrets": {"token": TOKEN}, **more})


async def names(house: DeskHouse) -> dict[str, str]:
    found = (await house.ask(OWNER, "connector.list"))["connectors"]
    return {each["name"]: each["state"] for each in found}


async def test_one_is_added_with_its_secret_in_a_file_and_the_comments_where_they_were(house: DeskHouse) -> None:
    made = await add(house, settings={"birds": 3})
    assert (made["account"], made["connector"]["state"], made["connector"]["dm"]) == ("@coo", "listening", "pairing")
    assert made["next"][0] == "Let one fly." and any("binding set" in step for step in made["next"])
    text = (house.desk.data_dir / "retinue.toml").read_text()
    assert text.startswith("# The house of the Smiths.") and "# not longer" in text
    assert "[connectors.loft]" in text and "birds = 3" in text and TOKEN not in text
    [file] = (house.desk.data_dir / "secrets").iterdir()
    assert file.read_text() == TOKEN and stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert f'token_file = "secrets/{file.name}"' in text
    assert await names(house) == {"loft": "listening"}
    stored = b"".join(each.read_bytes() for each in house.house.instance.root.glob("house.db*"))
    assert stored and TOKEN.encode() not in stored
    assert TOKEN not in json.dumps([made, await house.ask(OWNER, "connector.show", name="loft")])


@pytest.mark.spec("D60")
async def test_several_of_one_kind_stand_beside_each_other_and_outlive_a_restart(household: LocalInstance) -> None:
    async with opened(household) as house:
        await add(house)
        await add(house, "cote", settings={"birds": 9})
        assert (await refused(house, Conflict, "connector.add", kind="pigeon", name="loft")).code == "connector.exists"
    async with opened(household) as house:
        assert await names(house) == {"loft": "listening", "cote": "listening"}
        shown = [await house.ask(OWNER, "connector.show", name=name) for name in ("loft", "cote")]
        assert [each["settings"]["birds"] for each in shown] == [1, 9]
        assert shown[0]["settings"]["token_file"] != shown[1]["settings"]["token_file"]


async def test_what_its_place_does_not_accept_leaves_nothing_behind(house: DeskHouse) -> None:
    error = await refused(house, Invalid, "connector.add", kind="pigeon", secrets={"token": "wrong"})
    assert error.code == "connector.rejected" and error.because == "the token is wrong"
    assert list((house.desk.data_dir / "secrets").iterdir()) == []
    assert (house.desk.data_dir / "retinue.toml").read_text() == SETTINGS and await names(house) == {}
    # Whoever knows better adds it unchecked.
    made = await add(house, secrets={"token": "wrong"}, check=False)
    assert made["account"] == "" and await names(house) == {"loft": "listening"}
    tested = await house.ask(OWNER, "connector.test", name="loft")
    assert (tested["ok"], tested["because"]) == (False, "the token is wrong")


async def test_wrong_settings_are_refused_by_their_path_before_anything_is_asked(house: DeskHouse) -> None:
    error = await refused(house, InvalidSettings, "connector.add", kind="pigeon", name="loft", settings={"bords": 3})
    assert "connectors.loft.bords" in str(error)
    unknown = await refused(house, Invalid, "connector.add", kind="pigeon", secrets={"tokken": TOKEN})
    assert unknown.code == "connector.secret_unknown"
    torn = await refused(house, Invalid, "connector.add", kind="pigeon", secrets={"token": "two\nlines"})
    assert torn.code == "connector.secret_invalid"
    assert (await refused(house, Invalid, "connector.add", kind="pigeon", name="A b")).code == "connector.name_invalid"
    folder = house.desk.data_dir / "secrets"
    assert not folder.exists() or list(folder.iterdir()) == []


async def test_what_a_person_typed_is_read_as_what_it_is_for(house: DeskHouse) -> None:
    await add(house, answers={"birds": "7"})
    assert (await house.ask(OWNER, "connector.show", name="loft"))["settings"]["birds"] == 7
    error = await refused(
        house, InvalidSettings, "connector.add", kind="pigeon", name="cote", answers={"birds": "many"}
    )
    assert "connectors.cote.birds" in str(error)
    group = IrcSettings
    assert (
        parse_typed_value(group, "rooms", "#home, #away,") == ["#home", "#away"]
        and parse_typed_value(group, "tls", "No") is False
    )
    assert (
        parse_typed_value(group, "port", "6697"),
        parse_typed_value(group, "silence_s", "2.5"),
        parse_typed_value(group, "nick", "7"),
    ) == (
        6697,
        2.5,
        "7",
    )


@pytest.mark.spec("C122.whatsapp")
async def test_a_kind_that_is_not_here_is_refused_by_its_name_with_the_reason(house: DeskHouse) -> None:
    error = await refused(house, NotFound, "connector.add", kind="whatsapp")
    assert error.code == "connector.platform_not_supported" and "whatsapp_login" in error.because
    listed = await house.ask(OWNER, "connector.kinds")
    assert listed["absent"]["whatsapp"] == error.because
    pigeon = next(each for each in listed["kinds"] if each["kind"] == "pigeon")
    assert [(each["key"], each["secret"]) for each in pigeon["questions"]] == [("token", True), ("birds", False)]
    assert (await refused(house, NotFound, "connector.add", kind="pidgin")).code == "connector.platform_unknown"


async def test_a_secret_is_not_an_agents_to_give(house: DeskHouse) -> None:
    boss = agent("ada", PermissionLevel.BOSS)
    with pytest.raises(Invalid) as raised:
        await house.ask(boss, "connector.add", kind="pigeon", secrets={"token": TOKEN})
    assert raised.value.code == "connector.secret_by_agent"
    await house.ask(boss, "connector.add", kind="pigeon", settings={"token_env": "LOFT"})


async def test_only_the_owner_changes_connectors(house: DeskHouse) -> None:
    for operation, asked in (
        ("connector.add", {"kind": "pigeon"}),
        ("connector.remove", {"name": "loft"}),
        ("connector.list", {}),
        ("binding.set", {"agent": "ada", "connector": "loft"}),
        ("pairing.accept", {"which": "ABCD2345"}),
        ("identity.link", {"person": "maria", "service": "telegram", "id": "1"}),
        ("set-aside.drop", {"id": "0" * 32}),
    ):
        with pytest.raises(NotAllowed):
            await house.ask(MARIA, operation, **asked)


async def test_one_that_is_removed_takes_its_secret_and_its_words_along(house: DeskHouse, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.write_text(TOKEN)
    mine.chmod(0o600)
    await add(house)
    await add(house, "cote", secrets={}, settings={"token_file": str(mine)})
    store = house.house.store
    await store.write(lambda conn: connector_state.set_value(conn, "loft", "offset", "1", at_ms=1), point="test")
    for name in ("loft", "cote"):
        assert (await house.ask(OWNER, "connector.remove", name=name))["removed"]
    assert await names(house) == {}
    assert list((house.desk.data_dir / "secrets").iterdir()) == [] and mine.exists()
    assert await store.read(lambda conn: connector_state.get_value(conn, "loft", "offset")) is None
    assert "connectors" not in (house.desk.data_dir / "retinue.toml").read_text()
    assert (await refused(house, NotFound, "connector.remove", name="loft")).code == "connector.not_found"


async def test_one_can_rest_and_listen_again(house: DeskHouse) -> None:
    await add(house)
    assert (await house.ask(OWNER, "connector.disable", name="loft"))["state"] == "off"
    assert (await house.ask(OWNER, "connector.enable", name="loft"))["state"] == "listening"


async def test_a_list_says_how_a_line_fares(house: DeskHouse) -> None:
    await add(house)
    line: Any = house.house.instance.connectors["loft"]
    line.befalls = ConnectionLost("the loft is shut", because="it rains", try_this="wait for the sun")
    await house.ask(OWNER, "connector.disable", name="loft")
    Pigeon.befalls = line.befalls
    try:
        await house.ask(OWNER, "connector.enable", name="loft")

        async def is_waiting() -> bool:
            return (await house.ask(OWNER, "connector.list"))["connectors"][0]["state"] == "waiting"

        await wait_until(is_waiting, "the line is waited for")
        shown = (await house.ask(OWNER, "connector.list"))["connectors"][0]
    finally:
        Pigeon.befalls = None
    assert (shown["breaks"], shown["because"], shown["try"]) == (1, "the loft is shut: it rains", "wait for the sun")
    assert shown["again-at"] is not None and shown["last-heard"] is None


async def test_what_was_set_aside_is_listed_taken_in_after_all_or_let_go(house: DeskHouse) -> None:
    await add(house)
    store = house.house.store
    for number in (1, 2):
        body = json.dumps({"room": "7", "message_id": str(number), "text": "hello", "peer": "4711"})
        await store.write(
            lambda conn, n=number, body=body: poison_messages.upsert(
                conn,
                id_=f"{n:08x}" + "0" * 24,
                connector="loft",
                channel="7",
                message_id=str(n),
                body=body,
                because="ValueError",
                tries=3,
                at_ms=n,
            ),
            point="test",
        )
    listed = (await house.ask(OWNER, "set-aside.list"))["set-aside"]
    assert [(each["connector"], each["message-id"], each["state"]) for each in listed] == [
        ("loft", "2", "waiting"),
        ("loft", "1", "waiting"),
    ]
    retried = await house.ask(OWNER, "set-aside.retry", id="00000001")
    assert retried["id"] == "00000001" + "0" * 24
    assert (await house.ask(OWNER, "set-aside.drop", id="00000002"))["dropped"]
    assert (await house.ask(OWNER, "set-aside.list"))["set-aside"] == []
    again = await refused(house, Conflict, "set-aside.retry", id="00000001")
    assert again.code == "poison_message.closed"
    assert (await refused(house, NotFound, "set-aside.drop", id="0000000f")).code == "poison_message.not_found"


async def test_a_change_of_the_file_is_taken_up_without_a_restart(house: DeskHouse) -> None:
    await add(house)
    file = house.desk.data_dir / "retinue.toml"
    keeper = house.desk.require_config_holder()
    board = house.house.supervisor
    keeper.on_change(lambda now: board.schedule_sync(now.connectors))
    file.write_text(file.read_text().replace("[connectors.loft]", "[connectors.loft]\nenabled = false"))
    keeper.reload()

    async def is_off() -> bool:
        return await names(house) == {"loft": "off"}

    await wait_until(is_off, "the loft is off")
