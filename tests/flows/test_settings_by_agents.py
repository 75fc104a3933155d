"""An agent changes settings only with the owner's approval, whatever it has read and whatever was granted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from flows.team_instance import add_people
from flows.tools_instance import ADA, BO, open_scripted_server

from retinue.domain import address
from retinue.domain.agent import PermissionLevel, ToolRules
from retinue.domain.errors import NotAllowed, NotFound
from retinue.domain.grant import GrantScope
from retinue.domain.person import Role
from retinue.domain.principal import Principal
from retinue.domain.structs import replace
from retinue.domain.trust import Trust
from retinue.operations.catalog import OPERATIONS
from retinue.operations.operation_tools import tool_name
from retinue.policy.access.operation_permissions import is_at_least
from retinue.policy.tools.approvals import may_decide
from retinue.policy.tools.tool_groups import OWNER_DECIDES
from retinue.testing.scripted_model import tool_call_reply


@pytest.fixture(autouse=True)
def own_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A settings change is written to the file that the environment names."""
    monkeypatch.setenv("RETINUE_HOME", str(tmp_path))


LOOSER_SETTINGS: dict[str, dict[str, Any]] = {
    "sandbox": {"sandbox": {"mode": "off"}},
    "commands": {"tools": {"exec": {"elevated": "full", "security": "full", "ask": "off"}}},
    "provenance": {"provenance": {"explaining_trust": ["owner", "person"]}},
    "permission policy": {"server": {"permission_policy": {"config.patch": "restricted"}}},
    "providers": {"providers": {"acme": {"url": "http://127.0.0.1:9/v1"}}},
    "mcp": {"mcp": {"spy": {"command": ["true"]}}},
    "hooks": {"hooks": {"enabled": True}},
    "plugins": {"plugins": {"spy": {"plugin": "spy"}}},
    "connectors": {"connectors": {"ci": {"platform": "webhook"}}},
    "web": {"web": {"private_hosts": ["127.0.0.1:1"]}},
}


@pytest.mark.parametrize("section", LOOSER_SETTINGS)
async def test_a_settings_change_by_an_agent_always_needs_the_owners_approval(tmp_path: Path, section: str) -> None:
    """Also if all content is the owner's own, and if the tool has a permanent grant."""
    async with open_scripted_server(tmp_path) as server:
        await server.ask("grant.add", agent="ada", permission="tool:gateway", because="it helps")
        hash_ = (await server.ask("config.show"))["hash"]
        patch = tool_call_reply(
            "gateway", action="config_patch", parameters={"changes": LOOSER_SETTINGS[section], "expected_hash": hash_}
        )
        await server.turn("Good morning, what is on today?", patch)
        [approval] = await server.asked()
        path = next(iter(LOOSER_SETTINGS[section]))
        assert approval.because.startswith(f"it changes the settings: {path}.") and approval.grant_permissions == ()
        assert not (tmp_path / "retinue.toml").exists()


async def test_an_approved_settings_change_by_an_agent_is_applied_and_a_denied_one_is_not(tmp_path: Path) -> None:
    async with open_scripted_server(tmp_path) as server:
        hash_ = (await server.ask("config.show"))["hash"]
        changes = {"server": {"drain_s": 3}}
        patch = tool_call_reply(
            "gateway", action="config_patch", parameters={"changes": changes, "expected_hash": hash_}
        )
        await server.turn("Set it.", patch)
        server.model.will_reply("It stays.")
        await server.answer((await server.asked())[0], allow=False)
        assert not (tmp_path / "retinue.toml").exists()
        await server.turn("Set it.", patch)
        server.model.will_reply("It is set.")
        await server.answer((await server.asked())[0])
        assert "drain_s = 3" in (tmp_path / "retinue.toml").read_text()


async def test_an_agent_needs_approval_to_reload_settings_and_none_to_read_them(tmp_path: Path) -> None:
    async with open_scripted_server(tmp_path) as server:
        looks = [tool_call_reply("gateway", action=action) for action in ("status", "config_show", "config_check")]
        await server.turn("Look.", *looks, "Seen.")
        assert await server.asked() == []
        await server.turn("Reload.", tool_call_reply("gateway", action="config_reload"))
        assert [tool for tool, _ in await server.asked_for()] == ["gateway"]


@pytest.mark.parametrize("tool", ["config_reload", "agent_set", "plugin_reload", "grant_add"])
async def test_an_agent_that_calls_administrative_operations_as_tools_needs_approval(tmp_path: Path, tool: str) -> None:
    arguments: dict[str, dict[str, Any]] = {
        "agent_set": {"name": "ada", "permission_level": "boss"},
        "plugin_reload": {"name": "x"},
        "grant_add": {"agent": "ada", "permission": "web", "because": "it helps"},
    }
    staff = (replace(ADA, tools=ToolRules(also_allow=(tool,))), BO)
    async with open_scripted_server(tmp_path, staff=staff) as server:
        await server.turn("Do it.", tool_call_reply(tool, **arguments.get(tool, {})))
        assert [name for name, _ in await server.asked_for()] == [tool]


async def test_an_approval_of_a_settings_change_by_an_agent_is_only_for_the_owner(tmp_path: Path) -> None:
    """Not for the next approver in the escalation, and not for a member on whose behalf the agent works."""
    config = '[approvals]\nescalate_after_s = 10\nescalate_to = ["mia"]\n'
    boss = replace(ADA, permission_level=PermissionLevel.BOSS, tools=ToolRules(also_allow=("config_reload",)))
    async with open_scripted_server(tmp_path, staff=(boss, BO), config=config) as server:
        await add_people(server, mia=Role.MEMBER)
        await server.turn("Do it.", tool_call_reply("config_reload"), sender="person:mia")
        [approval] = await server.asked()
        assert (approval.recipients, approval.escalate_at) == ((address.person_address("owner"),), None)
        mia = Principal(address=address.person_address("mia"), level=PermissionLevel.STANDARD, trust=Trust.PERSON)
        with pytest.raises((NotAllowed, NotFound)):
            await server.ask("approval.answer", who=mia, id=approval.id, allow=True)
        decision = may_decide(mia, replace(approval, recipients=(mia.address,)), GrantScope.ONCE)
        assert decision.is_denied and "only the owner may answer" in decision.because


def test_the_owner_decides_whether_an_agent_performs_a_privileged_operation_with_effects() -> None:
    asked = {
        tool_name(each)
        for each in OPERATIONS.values()
        if each.has_effect and is_at_least(each.permission, PermissionLevel.PRIVILEGED)
    }
    assert asked | {"gateway"} == OWNER_DECIDES
