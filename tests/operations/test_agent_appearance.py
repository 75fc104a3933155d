"""By what pages tell agents apart: icon, colour, and whether they are shown."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from config.data_directory import Home
from operations.operations_instance import DeskHouse, agent, desk_house, person

from retinue.domain.agent import Color, PermissionLevel
from retinue.domain.errors import Invalid, NotAllowed
from retinue.testing.local_instance import LocalInstance

OWNER, MARIA, GUS = person("owner"), person("maria"), person("gus")
FAMILY = "\U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466"


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[DeskHouse]:
    async with desk_house(LocalInstance(tmp_path)) as made:
        yield made


def look(shown: dict[str, Any]) -> tuple[Any, ...]:
    return shown["icon"], shown["colour"], shown["visible"]


async def in_state(house: DeskHouse, **kw: Any) -> dict[str, tuple[Any, ...]]:
    return {each["name"]: look(each) for each in (await house.ask(MARIA, "house.state", **kw))["agents"]}


async def test_an_agents_look_is_told_wherever_agents_are(house: DeskHouse) -> None:
    assert look(await house.ask(MARIA, "agent.show", name="ada")) == ("", None, True)
    changed = await house.ask(OWNER, "agent.set", name="ada", icon=FAMILY, colour="teal")

    assert changed["changed"] == ["icon", "colour"]
    for who in (OWNER, MARIA, GUS):
        assert look(await house.ask(who, "agent.show", name="ada")) == (FAMILY, "teal", True)
    listed = {each["name"]: look(each) for each in (await house.ask(GUS, "agent.list"))["agents"]}
    assert listed == {"ada": (FAMILY, "teal", True), "bo": ("", None, True)}
    assert await in_state(house) == listed
    diff = await house.ask(OWNER, "agent.diff", name="ada", old=1)
    assert {each["field"]: each["new"] for each in diff["changes"]} == {"icon": FAMILY, "colour": "teal"}
    restored = await house.ask(OWNER, "agent.restore", name="ada", version=1)
    assert look(restored) == ("", None, True)
    cleared = await house.ask(OWNER, "agent.set", name="ada", icon="A", clear=["colour"])
    assert look(cleared) == ("A", None, True)


async def test_an_agent_that_is_not_visible_is_left_out_of_what_a_page_begins_with(house: DeskHouse) -> None:
    made = await house.ask(OWNER, "agent.register", name="clerk", model="scripted", visible=False)
    assert look(made) == ("", None, False)
    await house.ask(OWNER, "agent.set", name="bo", visible=False)

    assert set(await in_state(house)) == {"ada"}
    assert {name: each[2] for name, each in (await in_state(house, hidden=True)).items()} == {
        "ada": True,
        "bo": False,
        "clerk": False,
    }
    # Whoever is not shown still works here.
    assert {each["name"] for each in (await house.ask(MARIA, "agent.list"))["agents"]} == {"ada", "bo", "clerk"}
    sent = await house.ask(MARIA, "envelope.send", to="agent:bo", text="hello")
    assert await house.house.wait_for_answer(sent["envelope"]) == "ok"
    await house.ask(OWNER, "agent.set", name="bo", visible=True)
    assert set(await in_state(house)) == {"ada", "bo"}


@pytest.mark.parametrize("icon", ["two words", "\u202egnp.exe", "\x1b[2J", "\u200b", "x" * 17, "\u200d\U0001f98a"])
async def test_an_icon_that_cannot_be_seen_as_it_is_is_refused(house: DeskHouse, icon: str) -> None:
    with pytest.raises(Invalid) as refused:
        await house.ask(OWNER, "agent.set", name="ada", icon=icon)
    assert refused.value.code == "agent.field_invalid"
    assert look(await house.ask(OWNER, "agent.show", name="ada")) == ("", None, True)


async def test_a_colour_is_one_of_twelve(house: DeskHouse) -> None:
    assert len(Color) == 12
    with pytest.raises(Invalid) as refused:
        await house.ask(OWNER, "agent.set", name="ada", colour="#ff0000")
    assert refused.value.code == "request.invalid"


async def test_an_agent_may_choose_its_own_look_and_not_whether_it_is_shown(house: DeskHouse) -> None:
    ada = agent("ada", PermissionLevel.PRIVILEGED)
    assert look(await house.ask(ada, "agent.set", name="ada", icon="A", colour="pink")) == ("A", "pink", True)
    with pytest.raises(NotAllowed) as refused:
        await house.ask(ada, "agent.set", name="ada", visible=False)
    assert refused.value.code == "agent.fields_not_allowed"


def test_the_file_declares_a_look_too(tmp_path: Path) -> None:
    home = Home(tmp_path)
    [declared] = home.load('[agents.ada]\nicon = "\U0001f98a"\ncolour = "amber"\nvisible = false').declarations.agents
    assert (declared.icon, declared.colour, declared.visible) == ("\U0001f98a", Color.AMBER, False)
    for wrong in ('icon = "two words"', 'colour = "mauve"', 'visible = "no"'):
        assert home.fault(f"[agents.ada]\n{wrong}").path == f"agents.ada.{wrong.partition(' ')[0]}"
