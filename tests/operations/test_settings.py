"""The settings file as a form: values, where they come from, and a preview of a change."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
from operations.operations_instance import OperationsServer, agent, open_operations_server, person

from retinue.config import load_configuration
from retinue.domain.agent import PermissionLevel
from retinue.domain.errors import Invalid, NotAllowed
from retinue.domain.structs import replace
from retinue.operations.config.settings import changes_between
from retinue.operations.config_holder import ConfigHolder
from retinue.testing.local_instance import LocalInstance

OWNER, MARIA = person("owner"), person("maria")
SETTINGS_TEXT = """# mine
[server]
drain_s = 5.0 # quick
public_url = "https://${HOST_NAME}"

[server.limits]
lockout_s = 20

[providers.openai]
key = { env = "KEY_OF_OPENAI" }
"""


@pytest.fixture
async def server(tmp_path: Path) -> AsyncGenerator[OperationsServer]:
    home = tmp_path / "home"
    home.mkdir()
    (home / "retinue.toml").write_text(SETTINGS_TEXT)
    environment = {
        "RETINUE_HOME": str(home),
        "RETINUE_ZONE": "Europe/Berlin",
        "RETINUE_LISTEN": "127.0.0.1:7999",
        "HOST_NAME": "hidden.example",
        "KEY_OF_OPENAI": "sk-very-secret",
    }
    async with open_operations_server(LocalInstance(tmp_path)) as made:
        made.services = replace(made.services, config_holder=ConfigHolder(load_configuration(environment), environment))
        yield made


def file_of(server: OperationsServer) -> Path:
    return server.services.require_config_holder().current.file


async def setting_fields(server: OperationsServer) -> dict[str, dict[str, Any]]:
    shown = await server.ask(OWNER, "config.fields")
    return {".".join(each["path"]): each for section in shown["sections"] for each in section["settings"]}


async def test_config_fields_shows_each_setting_with_value_default_source_and_effect(server: OperationsServer) -> None:
    found = await setting_fields(server)
    drain = found["server.drain_s"]
    assert (drain["value"], drain["default"], drain["from"], drain["control"]) == (5.0, 10.0, "file", "number")
    assert drain["location"].endswith("retinue.toml, line 3") and drain["effect"] == "hot" and drain["maximum"] == 3600
    assert (found["server.slots.main"]["value"], found["server.slots.main"]["from"]) == (4, "default")
    for name, value in (
        ("server.zone", "Europe/Berlin"),
        ("server.listen.port", 7999),
        ("server.listen.host", "127.0.0.1"),
    ):
        assert (found[name]["value"], found[name]["from"]) == (value, "environment")
    assert found["server.listen.port"]["location"] == "RETINUE_LISTEN"
    assert found["server.logs.level"]["choices"] == ["debug", "info", "warning", "error"]
    assert found["server.allowed_hosts"]["control"] == "list"


async def test_config_fields_shows_no_secrets_and_no_values_of_variables(server: OperationsServer) -> None:
    found = await setting_fields(server)
    assert found["providers.openai.key"]["value"] == "the secret in $KEY_OF_OPENAI"
    assert found["server.public_url"]["value"] == "https://${HOST_NAME}"
    assert (found["server.store"]["value"], found["server.store"]["control"]) == ("(not shown)", "other")
    fields_text = json.dumps(found)
    assert "sk-very-secret" not in fields_text and "hidden.example" not in fields_text


async def test_config_fields_needs_privileged_level_and_config_preview_needs_the_owner(
    server: OperationsServer,
) -> None:
    for who in (MARIA, agent("ada")):
        with pytest.raises(NotAllowed):
            await server.ask(who, "config.fields")
    privileged = agent("ada", PermissionLevel.PRIVILEGED)
    assert (await server.ask(privileged, "config.fields"))["sections"]
    with pytest.raises(NotAllowed):
        await server.ask(privileged, "config.preview")


async def test_config_preview_shows_exactly_the_change_that_config_patch_makes(server: OperationsServer) -> None:
    changes = {"server": {"drain_s": 7.0, "mirror": {"enabled": True}}}
    seen = await server.ask(OWNER, "config.preview", changes=changes)
    assert seen["old"] == SETTINGS_TEXT == file_of(server).read_text()
    assert "drain_s = 7.0 # quick" in seen["new"] and seen["faults"] == []
    assert {each["path"]: each["effect"] for each in seen["changes"]} == {
        "server.drain_s": "hot",
        "server.mirror.enabled": "restart",
    }
    await server.ask(OWNER, "config.patch", changes=seen["patch"], expected_hash=seen["hash"])
    assert file_of(server).read_text() == seen["new"]
    shown = await server.ask(OWNER, "config.fields")
    assert shown["pending_restart"] == ["server.mirror.enabled"]
    assert (await setting_fields(server))["server.mirror.enabled"]["pending_restart"]


async def test_config_preview_reports_errors_by_setting_or_line_and_writes_nothing(server: OperationsServer) -> None:
    seen = await server.ask(OWNER, "config.preview", changes={"server": {"drain_s": 9999, "logs": {"level": "loud"}}})
    assert {each["path"] for each in seen["faults"]} == {"server.drain_s", "server.logs.level"}
    assert all(each["because"] and each["try"] for each in seen["faults"])
    broken = await server.ask(OWNER, "config.preview", text=SETTINGS_TEXT + "\nnot toml")
    assert [each["line"] for each in broken["faults"]] == [12] and broken["patch"] == {}
    assert file_of(server).read_text() == SETTINGS_TEXT


async def test_config_preview_turns_an_edited_text_into_a_patch(server: OperationsServer) -> None:
    text = SETTINGS_TEXT.replace("lockout_s = 20\n", "").replace("5.0", "6.5")
    seen = await server.ask(OWNER, "config.preview", text=text)
    assert seen["patch"] == {"server": {"drain_s": 6.5, "limits": {"lockout_s": None}}}
    await server.ask(OWNER, "config.patch", changes=seen["patch"], expected_hash=seen["hash"])
    now = (await setting_fields(server))["server.limits.lockout_s"]
    assert (now["value"], now["from"]) == (900.0, "default")
    with pytest.raises(Invalid, match="both `changes` and `text` are given"):
        await server.ask(OWNER, "config.preview", text=text, changes={})


async def test_config_fields_reports_a_broken_file_and_config_preview_refuses_it(server: OperationsServer) -> None:
    file_of(server).write_text("[server\n")
    assert [each["line"] for each in (await server.ask(OWNER, "config.fields"))["faults"]] == [1]
    with pytest.raises(Invalid, match="cannot be computed"):
        await server.ask(OWNER, "config.preview", text=SETTINGS_TEXT)


async def test_config_preview_redacts_secrets_and_refuses_a_redacted_text(server: OperationsServer) -> None:
    server.services = replace(server.services, redact=lambda text: text.replace("quick", "***"))
    seen = await server.ask(OWNER, "config.preview")
    assert "quick" not in seen["old"] and seen["old"] == seen["new"]
    with pytest.raises(Invalid) as refused:
        await server.ask(OWNER, "config.preview", text=seen["old"])
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
def test_the_changes_between_two_versions_of_the_settings_are_their_differing_keys(
    old: dict[str, Any], new: dict[str, Any], changes: dict[str, Any]
) -> None:
    assert changes_between(old, new) == changes
