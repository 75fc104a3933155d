"""The settings file as a form: what is set, where that comes from, and what a change would do before it is made."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
from operations.operations_instance import DeskHouse, agent, desk_house, person

from retinue.config import load_configuration
from retinue.domain.agent import PermissionLevel
from retinue.domain.errors import Invalid, NotAllowed
from retinue.domain.structs import replace
from retinue.operations.config.settings import changes_between
from retinue.operations.config_holder import ConfigHolder
from retinue.testing.local_instance import LocalInstance

OWNER, MARIA = person("owner"), person("maria")
FILE = """# mine
[house]
drain_s = 5.0 # quick
public_url = "https://${NAME_OF_HOUSE}"

[house.limits]
lockout_s = 20

[providers.openai]
key = { env = "KEY_OF_OPENAI" }
"""


@pytest.fixture
async def house(tmp_path: Path) -> AsyncGenerator[DeskHouse]:
    home = tmp_path / "home"
    home.mkdir()
    (home / "retinue.toml").write_text(FILE)
    environment = {
        "RETINUE_HOME": str(home),
        "RETINUE_ZONE": "Europe/Berlin",
        "RETINUE_LISTEN": "127.0.0.1:7999",
        "NAME_OF_HOUSE": "hidden.example",
        "KEY_OF_OPENAI": "sk-very-secret",
    }
    async with desk_house(LocalInstance(tmp_path)) as made:
        made.desk = replace(made.desk, config_holder=ConfigHolder(load_configuration(environment), environment))
        yield made


def file_of(house: DeskHouse) -> Path:
    return house.desk.require_config_holder().current.file


async def fields(house: DeskHouse) -> dict[str, dict[str, Any]]:
    shown = await house.ask(OWNER, "config.fields")
    return {".".join(each["path"]): each for section in shown["sections"] for each in section["settings"]}


async def test_each_setting_says_what_it_is_and_where_that_comes_from(house: DeskHouse) -> None:
    found = await fields(house)
    drain = found["house.drain_s"]
    assert (drain["value"], drain["default"], drain["from"], drain["shape"]) == (5.0, 10.0, "file", "number")
    assert drain["place"].endswith("retinue.toml, line 3") and drain["effect"] == "hot" and drain["most"] == 3600
    assert (found["house.slots.main"]["value"], found["house.slots.main"]["from"]) == (4, "default")
    for name, value in (
        ("house.zone", "Europe/Berlin"),
        ("house.listen.port", 7999),
        ("house.listen.host", "127.0.0.1"),
    ):
        assert (found[name]["value"], found[name]["from"]) == (value, "environment")
    assert found["house.listen.port"]["place"] == "RETINUE_LISTEN"
    assert found["house.logs.level"]["choices"] == ["debug", "info", "warning", "error"]
    assert found["house.allowed_hosts"]["shape"] == "texts"


async def test_no_secret_is_in_the_form_and_no_value_of_a_variable(house: DeskHouse) -> None:
    found = await fields(house)
    assert found["providers.openai.key"]["value"] == "the secret in $KEY_OF_OPENAI"
    assert found["house.public_url"]["value"] == "https://${NAME_OF_HOUSE}"
    assert (found["house.store"]["value"], found["house.store"]["shape"]) == ("(not shown)", "other")
    told = json.dumps(found)
    assert "sk-very-secret" not in told and "hidden.example" not in told


async def test_only_the_entitled_see_the_form_and_only_the_owner_the_file(house: DeskHouse) -> None:
    for who in (MARIA, agent("ada")):
        with pytest.raises(NotAllowed):
            await house.ask(who, "config.fields")
    privileged = agent("ada", PermissionLevel.PRIVILEGED)
    assert (await house.ask(privileged, "config.fields"))["sections"]
    with pytest.raises(NotAllowed):
        await house.ask(privileged, "config.preview")


async def test_a_change_is_shown_before_it_is_made_and_is_then_made_just_so(house: DeskHouse) -> None:
    changes = {"house": {"drain_s": 7.0, "mirror": {"enabled": True}}}
    seen = await house.ask(OWNER, "config.preview", changes=changes)
    assert seen["old"] == FILE == file_of(house).read_text()
    assert "drain_s = 7.0 # quick" in seen["new"] and seen["faults"] == []
    assert {each["path"]: each["effect"] for each in seen["changes"]} == {
        "house.drain_s": "hot",
        "house.mirror.enabled": "restart",
    }
    await house.ask(OWNER, "config.patch", changes=seen["patch"], expected_hash=seen["hash"])
    assert file_of(house).read_text() == seen["new"]
    shown = await house.ask(OWNER, "config.fields")
    assert shown["waiting-for-a-restart"] == ["house.mirror.enabled"]
    assert (await fields(house))["house.mirror.enabled"]["waiting"]


async def test_what_is_wrong_is_told_at_its_key_and_nothing_is_written(house: DeskHouse) -> None:
    seen = await house.ask(OWNER, "config.preview", changes={"house": {"drain_s": 9999, "logs": {"level": "loud"}}})
    assert {each["path"] for each in seen["faults"]} == {"house.drain_s", "house.logs.level"}
    assert all(each["because"] and each["try"] for each in seen["faults"])
    broken = await house.ask(OWNER, "config.preview", text=FILE + "\nnot toml")
    assert [each["line"] for each in broken["faults"]] == [12] and broken["patch"] == {}
    assert file_of(house).read_text() == FILE


async def test_a_whole_text_becomes_changes_and_what_cannot_is_refused(house: DeskHouse) -> None:
    text = FILE.replace("lockout_s = 20\n", "").replace("5.0", "6.5")
    seen = await house.ask(OWNER, "config.preview", text=text)
    assert seen["patch"] == {"house": {"drain_s": 6.5, "limits": {"lockout_s": None}}}
    await house.ask(OWNER, "config.patch", changes=seen["patch"], expected_hash=seen["hash"])
    now = (await fields(house))["house.limits.lockout_s"]
    assert (now["value"], now["from"]) == (900.0, "default")
    with pytest.raises(Invalid, match="both `changes` and `text` are given"):
        await house.ask(OWNER, "config.preview", text=text, changes={})


async def test_a_file_that_is_broken_meanwhile_is_told_of_and_left_to_an_editor(house: DeskHouse) -> None:
    file_of(house).write_text("[house\n")
    assert [each["line"] for each in (await house.ask(OWNER, "config.fields"))["faults"]] == [1]
    with pytest.raises(Invalid, match="cannot be computed"):
        await house.ask(OWNER, "config.preview", text=FILE)


async def test_a_file_that_holds_a_secret_is_masked_and_not_rewritten_as_a_text(house: DeskHouse) -> None:
    house.desk = replace(house.desk, redact=lambda text: text.replace("quick", "***"))
    seen = await house.ask(OWNER, "config.preview")
    assert "quick" not in seen["old"] and seen["old"] == seen["new"]
    with pytest.raises(Invalid) as refused:
        await house.ask(OWNER, "config.preview", text=seen["old"])
    assert "secret" in refused.value.because


@pytest.mark.parametrize(
    ("old", "new", "changes"),
    [
        ({}, {}, {}),
        ({"a": 1}, {"a": 1}, {}),
        ({"a": 1}, {"a": True}, {"a": True}),
        ({"a": {"b": 1, "c": 2}}, {"a": {"b": 1}}, {"a": {"c": None}}),
        ({"a": {"b": 1}}, {"a": 3, "d": [1]}, {"a": 3, "d": [1]}),
        ({"a": [1, 2]}, {"a": [2]}, {"a": [2]}),
    ],
)
def test_changes_are_what_differs(old: dict[str, Any], new: dict[str, Any], changes: dict[str, Any]) -> None:
    assert changes_between(old, new) == changes
