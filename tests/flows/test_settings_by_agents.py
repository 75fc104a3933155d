"""An agent changes settings only with the owner's yes, whatever it has read and whatever was granted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from flows.team_instance import let_in
from flows.tools_instance import ADA, BO, hands_house

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
from retinue.policy.access.permissions import is_at_least
from retinue.policy.tools.approvals import may_decide
from retinue.policy.tools.tool_groups import OWNER_DECIDES
from retinue.testing.scripted_model import tool_call_reply


@pytest.fixture(autouse=True)
def own_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A change of settings goes to the file that the environment names."""
    monkeypatch.setenv("RETINUE_HOME", str(tmp_path))


LOOSER: dict[str, dict[str, Any]] = {
    "sandbox": {"sandbox": {"mode": "off"}},
    "commands": {"tools": {"exec": {"elevated": "full", "security": "full", "ask": "off"}}},
    "provenance": {"origin": {"speakers": ["owner", "person"]}},
    "permission policy": {"house": {"permission_policy": {"config.patch": "restricted"}}},
    "providers": {"providers": {"acme": {"url": "http://127.0.0.1:9/v1"}}},
    "mcp": {"mcp": {"spy": {"command": ["true"]}}},
    "hooks": {"hooks": {"enabled": True}},
    "plugins": {"plugins": {"spy": {"plugin": "spy"}}},
    "connectors": {"connectors": {"ci": {"kind": "webhook"}}},
    "web": {"web": {"private_hosts": ["127.0.0.1:1"]}},
}


@pytest.mark.parametrize("section", LOOSER)
async def test_a_change_of_settings_by_an_agent_is_always_put_to_the_owner(tmp_path: Path, section: str) -> None:
    """Also where all that was read is the owner's own, and where the tool was granted for good."""
    async with hands_house(tmp_path) as house:
        await house.ask("grant.add", agent="ada", permission="tool:gateway", because="it helps")
        hash_ = (await house.ask("config.show"))["hash"]
        patch = tool_call_reply(
            "gateway", action="config_patch", parameters={"changes": LOOSER[section], "expected_hash": hash_}
        )
        await house.turn("Good morning, what is on today?", patch)
        [approval] = await house.asked()
        path = next(iter(LOOSER[section]))
        assert approval.because.startswith(f"it changes the settings: {path}.") and approval.grant_permissions == ()
        assert not (tmp_path / "retinue.toml").exists()


async def test_the_owners_yes_changes_the_settings_and_a_no_does_not(tmp_path: Path) -> None:
    async with hands_house(tmp_path) as house:
        hash_ = (await house.ask("config.show"))["hash"]
        changes = {"house": {"drain_s": 3}}
        patch = tool_call_reply(
            "gateway", action="config_patch", parameters={"changes": changes, "expected_hash": hash_}
        )
        await house.turn("Set it.", patch)
        house.model.will_reply("It stays.")
        await house.answer((await house.asked())[0], allow=False)
        assert not (tmp_path / "retinue.toml").exists()
        await house.turn("Set it.", patch)
        house.model.will_reply("It is set.")
        await house.answer((await house.asked())[0])
        assert "drain_s = 3" in (tmp_path / "retinue.toml").read_text()


async def test_reading_the_settings_again_is_asked_about_and_looking_at_them_is_not(tmp_path: Path) -> None:
    async with hands_house(tmp_path) as house:
        looks = [tool_call_reply("gateway", action=action) for action in ("status", "config_show", "config_check")]
        await house.turn("Look.", *looks, "Seen.")
        assert await house.asked() == []
        await house.turn("Reload.", tool_call_reply("gateway", action="config_reload"))
        assert [tool for tool, _ in await house.asked_for()] == ["gateway"]


@pytest.mark.parametrize("tool", ["config_reload", "agent_set", "plugin_reload", "grant_add"])
async def test_what_decides_over_agents_and_settings_is_asked_about_as_a_tool_too(tmp_path: Path, tool: str) -> None:
    arguments: dict[str, dict[str, Any]] = {
        "agent_set": {"name": "ada", "permission_level": "boss"},
        "plugin_reload": {"name": "x"},
        "grant_add": {"agent": "ada", "permission": "web", "because": "it helps"},
    }
    staff = (replace(ADA, tools=ToolRules(also_allow=(tool,))), BO)
    async with hands_house(tmp_path, staff=staff) as house:
        await house.turn("Do it.", tool_call_reply(tool, **arguments.get(tool, {})))
        assert [name for name, _ in await house.asked_for()] == [tool]


async def test_a_question_about_settings_is_the_owners_alone(tmp_path: Path) -> None:
    """Not whoever would be asked next, and not a member for whom the agent works."""
    config = '[approvals]\nescalate_after_s = 10\nescalate_to = ["mia"]\n'
    boss = replace(ADA, permission_level=PermissionLevel.BOSS, tools=ToolRules(also_allow=("config_reload",)))
    async with hands_house(tmp_path, staff=(boss, BO), config=config) as house:
        await let_in(house, mia=Role.MEMBER)
        await house.turn("Do it.", tool_call_reply("config_reload"), sender="person:mia")
        [approval] = await house.asked()
        assert (approval.recipients, approval.escalate_at) == ((address.person_address("owner"),), None)
        mia = Principal(address=address.person_address("mia"), level=PermissionLevel.STANDARD, trust=Trust.PERSON)
        with pytest.raises((NotAllowed, NotFound)):
            await house.ask("approval.answer", who=mia, id=approval.id, allow=True)
        decision = may_decide(mia, replace(approval, recipients=(mia.address,)), GrantScope.ONCE)
        assert decision.is_denied and "only the owner may answer" in decision.because


def test_every_operation_that_is_always_asked_about_is_the_owners_to_decide() -> None:
    asked = {
        tool_name(each)
        for each in OPERATIONS.values()
        if each.has_effect and is_at_least(each.permission, PermissionLevel.PRIVILEGED)
    }
    assert asked | {"gateway"} == OWNER_DECIDES
