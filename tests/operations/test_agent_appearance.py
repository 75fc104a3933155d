"""How the web app shows agents: icon, color, and whether they are listed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from config.data_directory import SettingsDirectory
from operations.operations_instance import OperationsServer, agent, open_operations_server, person

from retinue.domain.agent import Color, PermissionLevel
from retinue.domain.errors import Invalid, NotAllowed
from retinue.testing.local_instance import LocalInstance

OWNER, MARIA, GUS = person("owner"), person("maria"), person("gus")
FAMILY = "\U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466"


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[OperationsServer]:
    async with open_operations_server(LocalInstance(tmp_path)) as made:
        yield made


def appearance(shown: dict[str, Any]) -> tuple[Any, ...]:
    return shown["icon"], shown["color"], shown["visible"]


async def appearances_in_server_state(server: OperationsServer, **kw: Any) -> dict[str, tuple[Any, ...]]:
    return {
        each["name"]: appearance(each) for each in (await server.ask(MARIA, "server.initial_state", **kw))["agents"]
    }


async def test_icon_color_and_visible_are_returned_by_agent_show_agent_list_and_server_state(
    server: OperationsServer,
) -> None:
    assert appearance(await server.ask(MARIA, "agent.show", name="ada")) == ("", None, True)
    changed = await server.ask(OWNER, "agent.set", name="ada", icon=FAMILY, color="teal")

    assert changed["changed"] == ["icon", "color"]
    for who in (OWNER, MARIA, GUS):
        assert appearance(await server.ask(who, "agent.show", name="ada")) == (FAMILY, "teal", True)
    listed = {each["name"]: appearance(each) for each in (await server.ask(GUS, "agent.list"))["agents"]}
    assert listed == {"ada": (FAMILY, "teal", True), "bo": ("", None, True)}
    assert await appearances_in_server_state(server) == listed
    diff = await server.ask(OWNER, "agent.diff", name="ada", old=1)
    assert {each["field"]: each["new"] for each in diff["changes"]} == {"icon": FAMILY, "color": "teal"}
    restored = await server.ask(OWNER, "agent.restore", name="ada", version=1)
    assert appearance(restored) == ("", None, True)
    cleared = await server.ask(OWNER, "agent.set", name="ada", icon="A", clear=["color"])
    assert appearance(cleared) == ("A", None, True)


async def test_server_state_omits_hidden_agents_unless_requested_and_they_still_answer(
    server: OperationsServer,
) -> None:
    made = await server.ask(OWNER, "agent.register", name="clerk", model="scripted", visible=False)
    assert appearance(made) == ("", None, False)
    await server.ask(OWNER, "agent.set", name="bo", visible=False)

    assert set(await appearances_in_server_state(server)) == {"ada"}
    assert {name: each[2] for name, each in (await appearances_in_server_state(server, hidden=True)).items()} == {
        "ada": True,
        "bo": False,
        "clerk": False,
    }
    # An agent that is not shown can still be used.
    assert {each["name"] for each in (await server.ask(MARIA, "agent.list"))["agents"]} == {"ada", "bo", "clerk"}
    sent = await server.ask(MARIA, "envelope.send", to="agent:bo", text="hello")
    assert await server.server.wait_for_answer(sent["envelope"]) == "ok"
    await server.ask(OWNER, "agent.set", name="bo", visible=True)
    assert set(await appearances_in_server_state(server)) == {"ada", "bo"}


@pytest.mark.parametrize("icon", ["two words", "\u202egnp.exe", "\x1b[2J", "\u200b", "x" * 17, "\u200d\U0001f98a"])
async def test_an_icon_with_spaces_invisible_characters_or_too_many_characters_is_refused(
    server: OperationsServer, icon: str
) -> None:
    with pytest.raises(Invalid) as refused:
        await server.ask(OWNER, "agent.set", name="ada", icon=icon)
    assert refused.value.code == "agent.field_invalid"
    assert appearance(await server.ask(OWNER, "agent.show", name="ada")) == ("", None, True)


async def test_an_agent_color_must_be_one_of_twelve_names(server: OperationsServer) -> None:
    assert len(Color) == 12
    with pytest.raises(Invalid) as refused:
        await server.ask(OWNER, "agent.set", name="ada", color="#ff0000")
    assert refused.value.code == "request.invalid"


async def test_an_agent_can_set_its_own_icon_and_color_but_not_visible(server: OperationsServer) -> None:
    ada = agent("ada", PermissionLevel.PRIVILEGED)
    assert appearance(await server.ask(ada, "agent.set", name="ada", icon="A", color="pink")) == ("A", "pink", True)
    with pytest.raises(NotAllowed) as refused:
        await server.ask(ada, "agent.set", name="ada", visible=False)
    assert refused.value.code == "agent.fields_not_allowed"


def test_the_settings_file_declares_an_agents_icon_color_and_visible(tmp_path: Path) -> None:
    home = SettingsDirectory(tmp_path)
    [declared] = home.load('[agents.ada]\nicon = "\U0001f98a"\ncolor = "amber"\nvisible = false').declarations.agents
    assert (declared.icon, declared.color, declared.visible) == ("\U0001f98a", Color.AMBER, False)
    for wrong in ('icon = "two words"', 'color = "mauve"', 'visible = "no"'):
        assert home.fault(f"[agents.ada]\n{wrong}").path == f"agents.ada.{wrong.partition(' ')[0]}"
