"""Connector operations: add with the required settings, check against the platform, and report the status."""

from __future__ import annotations

import json
import stat
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from operations.operations_instance import OperationsServer, agent, open_operations_server, person

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
from retinue.operations.connector.connector_settings import parse_typed_value
from retinue.store.channels import connector_state, poison_messages
from retinue.testing.fake_connector import FakeConnector
from retinue.testing.local_instance import LocalInstance
from retinue.testing.wait_conditions import wait_until

OWNER, MARIA = person("owner"), person("maria")
TOKEN = "123456:a-very-secret-token"
SETTINGS = """\
# The server of the Smiths.
[server]
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
    listen_error: ConnectionLost | None = None

    async def listen(self, accept: Any) -> None:
        if self.listen_error is not None:
            raise self.listen_error
        await super().listen(accept)

    async def check(self) -> ConnectorCheckResult:
        if self.around.read_secret("token") != TOKEN:
            return ConnectorCheckResult(
                ok=False, account="", sentence="the loft does not know us", because="the token is wrong"
            )
        return ConnectorCheckResult(ok=True, account="@coo", sentence="the loft knows us as @coo")


def make_pigeon(settings: PigeonSettings, around: ConnectorContext) -> Connector:
    made = Pigeon(around.clock, name=around.name)
    made.around = around
    return made


PIGEON = Platform(
    name="pigeon",
    title="Pigeons",
    settings=PigeonSettings,
    make_connector=make_pigeon,
    questions=(
        SettingQuestion(key="token", ask="The loft's token", secret=True),
        SettingQuestion(key="birds", ask="How many?"),
    ),
    next_steps=("Let one fly.",),
)


@asynccontextmanager
async def open_instance(instance: LocalInstance) -> AsyncGenerator[OperationsServer]:
    home = instance.root / "home"
    home.mkdir(exist_ok=True)
    if not (home / "retinue.toml").exists():
        (home / "retinue.toml").write_text(SETTINGS)
    environment = {"RETINUE_HOME": str(home), "LOFT": TOKEN}
    instance.platforms["pigeon"] = PIGEON
    instance.environment = environment
    instance.connector_settings = load_configuration(environment).settings.connectors
    async with open_operations_server(instance) as made:
        board = made.server.supervisor
        board._services = replace(board._services, data_dir=home)  # pyright: ignore[reportPrivateUsage]
        keeper = ConfigHolder(load_configuration(environment), environment)
        made.services = replace(
            made.services,
            config_holder=keeper,
            settings=lambda: keeper.current.settings,
            data_dir=home,
            connector_supervisor=board,
        )
        yield made


@pytest.fixture
def instance(tmp_path: Path) -> LocalInstance:
    return LocalInstance(tmp_path)


@pytest.fixture
async def server(instance: LocalInstance) -> AsyncGenerator[OperationsServer]:
    async with open_instance(instance) as made:
        yield made


async def error_of(server: OperationsServer, error: type[RetinueError], operation: str, **asked: Any) -> RetinueError:
    with pytest.raises(error) as raised:
        await server.ask(OWNER, operation, **asked)
    assert TOKEN not in str(raised.value)
    return raised.value


async def add(server: OperationsServer, name: str = "loft", **more: Any) -> Any:
    return await server.ask(
        OWNER, "connector.add", platform="pigeon", name=name, **{"secrets": {"token": TOKEN}, **more}
    )


async def connector_states(server: OperationsServer) -> dict[str, str]:
    found = (await server.ask(OWNER, "connector.list"))["connectors"]
    return {each["name"]: each["state"] for each in found}


async def test_adding_a_connector_keeps_its_secret_in_a_file_and_the_comments_of_the_settings(
    server: OperationsServer,
) -> None:
    made = await add(server, settings={"birds": 3})
    assert (made["account"], made["connector"]["state"], made["connector"]["dm_policy"]) == (
        "@coo",
        "listening",
        "pairing",
    )
    assert made["next"][0] == "Let one fly." and any("binding set" in step for step in made["next"])
    text = (server.services.data_dir / "retinue.toml").read_text()
    assert text.startswith("# The server of the Smiths.") and "# not longer" in text
    assert "[connectors.loft]" in text and "birds = 3" in text and TOKEN not in text
    [file] = (server.services.data_dir / "secrets").iterdir()
    assert file.read_text() == TOKEN and stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert f'token_file = "secrets/{file.name}"' in text
    assert await connector_states(server) == {"loft": "listening"}
    stored = b"".join(each.read_bytes() for each in server.server.instance.root.glob("retinue.db*"))
    assert stored and TOKEN.encode() not in stored
    assert TOKEN not in json.dumps([made, await server.ask(OWNER, "connector.show", name="loft")])


@pytest.mark.spec("D60")
async def test_several_connectors_of_one_platform_coexist_and_survive_a_restart(instance: LocalInstance) -> None:
    async with open_instance(instance) as server:
        await add(server)
        await add(server, "cote", settings={"birds": 9})
        assert (
            await error_of(server, Conflict, "connector.add", platform="pigeon", name="loft")
        ).code == "connector.exists"
    async with open_instance(instance) as server:
        assert await connector_states(server) == {"loft": "listening", "cote": "listening"}
        shown = [await server.ask(OWNER, "connector.show", name=name) for name in ("loft", "cote")]
        assert [each["settings"]["birds"] for each in shown] == [1, 9]
        assert shown[0]["settings"]["token_file"] != shown[1]["settings"]["token_file"]


async def test_a_connector_that_the_platform_rejects_leaves_nothing_behind(server: OperationsServer) -> None:
    error = await error_of(server, Invalid, "connector.add", platform="pigeon", secrets={"token": "wrong"})
    assert error.code == "connector.rejected" and error.because == "the token is wrong"
    assert list((server.services.data_dir / "secrets").iterdir()) == []
    assert (server.services.data_dir / "retinue.toml").read_text() == SETTINGS and await connector_states(server) == {}
    # The check can be skipped.
    made = await add(server, secrets={"token": "wrong"}, check=False)
    assert made["account"] == "" and await connector_states(server) == {"loft": "listening"}
    tested = await server.ask(OWNER, "connector.test", name="loft")
    assert (tested["ok"], tested["because"]) == (False, "the token is wrong")


async def test_a_connector_that_does_not_start_after_its_settings_were_written_keeps_its_secret_file(
    server: OperationsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: Any) -> None:
        raise OSError("no file descriptor left")

    monkeypatch.setattr(server.server.supervisor, "sync", fail)
    with pytest.raises(OSError, match="descriptor"):
        await add(server)
    [file] = (server.services.data_dir / "secrets").iterdir()
    assert f'token_file = "secrets/{file.name}"' in (server.services.data_dir / "retinue.toml").read_text()


async def test_invalid_connector_settings_are_refused_by_path_before_the_platform_is_contacted(
    server: OperationsServer,
) -> None:
    error = await error_of(
        server, InvalidSettings, "connector.add", platform="pigeon", name="loft", settings={"bords": 3}
    )
    assert "connectors.loft.bords" in str(error)
    unknown = await error_of(server, Invalid, "connector.add", platform="pigeon", secrets={"tokken": TOKEN})
    assert unknown.code == "connector.secret_unknown"
    torn = await error_of(server, Invalid, "connector.add", platform="pigeon", secrets={"token": "two\nlines"})
    assert torn.code == "connector.secret_invalid"
    assert (
        await error_of(server, Invalid, "connector.add", platform="pigeon", name="A b")
    ).code == "connector.name_invalid"
    folder = server.services.data_dir / "secrets"
    assert not folder.exists() or list(folder.iterdir()) == []


async def test_typed_answers_are_converted_to_the_type_of_the_connector_setting(server: OperationsServer) -> None:
    await add(server, answers={"birds": "7"})
    assert (await server.ask(OWNER, "connector.show", name="loft"))["settings"]["birds"] == 7
    error = await error_of(
        server, InvalidSettings, "connector.add", platform="pigeon", name="cote", answers={"birds": "many"}
    )
    assert "connectors.cote.birds" in str(error)
    group = IrcSettings
    assert (
        parse_typed_value(group, "channels", "#home, #away,") == ["#home", "#away"]
        and parse_typed_value(group, "tls", "No") is False
    )
    assert (
        parse_typed_value(group, "port", "6697"),
        parse_typed_value(group, "ping_after_s", "2.5"),
        parse_typed_value(group, "nick", "7"),
    ) == (
        6697,
        2.5,
        "7",
    )


@pytest.mark.spec("C122.whatsapp")
async def test_adding_a_connector_for_an_unsupported_platform_is_refused_with_the_reason(
    server: OperationsServer,
) -> None:
    error = await error_of(server, NotFound, "connector.add", platform="whatsapp")
    assert error.code == "connector.platform_not_supported" and "whatsapp_login" in error.because
    listed = await server.ask(OWNER, "connector.platforms")
    assert listed["unavailable"]["whatsapp"] == error.because
    pigeon = next(each for each in listed["platforms"] if each["platform"] == "pigeon")
    assert [(each["key"], each["secret"]) for each in pigeon["questions"]] == [("token", True), ("birds", False)]
    assert (await error_of(server, NotFound, "connector.add", platform="pidgin")).code == "connector.platform_unknown"


async def test_an_agent_cannot_pass_a_connector_secret_by_value(server: OperationsServer) -> None:
    boss = agent("ada", PermissionLevel.BOSS)
    with pytest.raises(Invalid) as raised:
        await server.ask(boss, "connector.add", platform="pigeon", secrets={"token": TOKEN})
    assert raised.value.code == "connector.secret_by_agent"
    await server.ask(boss, "connector.add", platform="pigeon", settings={"token_env": "LOFT"})


async def test_a_member_cannot_use_connector_binding_pairing_identity_or_poison_message_operations(
    server: OperationsServer,
) -> None:
    for operation, asked in (
        ("connector.add", {"platform": "pigeon"}),
        ("connector.remove", {"name": "loft"}),
        ("connector.list", {}),
        ("binding.set", {"agent": "ada", "connector": "loft"}),
        ("pairing.accept", {"which": "ABCD2345"}),
        ("identity.link", {"person": "maria", "service": "telegram", "id": "1"}),
        ("poison_message.drop", {"id": "0" * 32}),
    ):
        with pytest.raises(NotAllowed):
            await server.ask(MARIA, operation, **asked)


async def test_removing_a_connector_removes_its_settings_state_and_own_secret_file(
    server: OperationsServer, tmp_path: Path
) -> None:
    mine = tmp_path / "mine"
    mine.write_text(TOKEN)
    mine.chmod(0o600)
    await add(server)
    await add(server, "cote", secrets={}, settings={"token_file": str(mine)})
    store = server.server.store
    await store.write(lambda conn: connector_state.set_value(conn, "loft", "offset", "1", at_ms=1), point="test")
    for name in ("loft", "cote"):
        assert (await server.ask(OWNER, "connector.remove", name=name))["removed"]
    assert await connector_states(server) == {}
    assert list((server.services.data_dir / "secrets").iterdir()) == [] and mine.exists()
    assert await store.read(lambda conn: connector_state.get_value(conn, "loft", "offset")) is None
    assert "connectors" not in (server.services.data_dir / "retinue.toml").read_text()
    assert (await error_of(server, NotFound, "connector.remove", name="loft")).code == "connector.not_found"


async def test_a_connector_can_be_disabled_and_enabled(server: OperationsServer) -> None:
    await add(server)
    assert (await server.ask(OWNER, "connector.disable", name="loft"))["state"] == "off"
    assert (await server.ask(OWNER, "connector.enable", name="loft"))["state"] == "listening"


async def test_connector_list_shows_the_state_and_the_reason_of_a_lost_connection(server: OperationsServer) -> None:
    await add(server)
    line: Any = server.server.instance.connectors["loft"]
    line.listen_error = ConnectionLost("the loft is shut", because="it rains", try_this="wait for the sun")
    await server.ask(OWNER, "connector.disable", name="loft")
    Pigeon.listen_error = line.listen_error
    try:
        await server.ask(OWNER, "connector.enable", name="loft")

        async def is_waiting() -> bool:
            return (await server.ask(OWNER, "connector.list"))["connectors"][0]["state"] == "waiting"

        await wait_until(is_waiting, "the connection is waited for")
        shown = (await server.ask(OWNER, "connector.list"))["connectors"][0]
    finally:
        Pigeon.listen_error = None
    assert (shown["failures_in_a_row"], shown["because"], shown["try"]) == (
        1,
        "the loft is shut: it rains",
        "wait for the sun",
    )
    assert shown["retry_at"] is not None and shown["last_received_at"] is None


async def test_poison_messages_are_listed_retried_and_dropped(server: OperationsServer) -> None:
    await add(server)
    store = server.server.store
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
    listed = (await server.ask(OWNER, "poison_message.list"))["poison_messages"]
    assert [(each["connector"], each["message_id"], each["state"]) for each in listed] == [
        ("loft", "2", "waiting"),
        ("loft", "1", "waiting"),
    ]
    retried = await server.ask(OWNER, "poison_message.retry", id="00000001")
    assert retried["id"] == "00000001" + "0" * 24
    assert (await server.ask(OWNER, "poison_message.drop", id="00000002"))["dropped"]
    assert (await server.ask(OWNER, "poison_message.list"))["poison_messages"] == []
    again = await error_of(server, Conflict, "poison_message.retry", id="00000001")
    assert again.code == "poison_message.closed"
    assert (await error_of(server, NotFound, "poison_message.drop", id="0000000f")).code == "poison_message.not_found"


async def test_a_connector_change_in_the_settings_file_takes_effect_without_a_restart(server: OperationsServer) -> None:
    await add(server)
    file = server.services.data_dir / "retinue.toml"
    keeper = server.services.require_config_holder()
    board = server.server.supervisor
    keeper.on_change(lambda now: board.schedule_sync(now.connectors))
    file.write_text(file.read_text().replace("[connectors.loft]", "[connectors.loft]\nenabled = false"))
    keeper.reload()

    async def is_off() -> bool:
        return await connector_states(server) == {"loft": "off"}

    await wait_until(is_off, "the loft is off")
