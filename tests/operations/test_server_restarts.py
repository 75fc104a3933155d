"""What holds across stops of a whole house."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from operations.operations_instance import person

from retinue.app.server import RunningServer, default_parts, open_server
from retinue.config import load_settings
from retinue.config.settings import MirrorSettings
from retinue.domain.errors import NotFound
from retinue.domain.structs import replace
from retinue.operations.base import perform_operation
from retinue.operations.catalog import OPERATIONS
from retinue.store.envelopes import envelopes
from retinue.testing.wait_conditions import wait_until

OWNER = person("owner")


async def ask(house: RunningServer, operation: str, **parameters: Any) -> Any:
    return json.loads(
        await perform_operation(house.services, OWNER, OPERATIONS[operation], json.dumps(parameters).encode())
    )


async def test_an_agent_of_the_first_staff_who_was_let_go_stays_away(tmp_path: Path) -> None:
    settings = load_settings({"RETINUE_HOME": str(tmp_path)})
    async with open_server(settings, default_parts()) as house:
        await ask(house, "agent.delete", name="clerk")
    async with open_server(settings, default_parts()) as house:
        with pytest.raises(NotFound):
            await ask(house, "agent.show", name="clerk")
        assert not (tmp_path / "agents" / "clerk").exists()


@pytest.mark.spec("H83")
async def test_registering_and_opening_again_changes_nothing_in_a_home(tmp_path: Path) -> None:
    settings = load_settings({"RETINUE_HOME": str(tmp_path)})
    async with open_server(settings, default_parts()) as house:
        await ask(house, "agent.register", name="ada", token=False)
    (tmp_path / "agents" / "ada" / "SOUL.md").write_text("I am Ada.")
    async with open_server(settings, default_parts()) as house:
        assert (await ask(house, "agent.show", name="ada"))["version"] == 1
    assert (tmp_path / "agents" / "ada" / "SOUL.md").read_text() == "I am Ada."


async def test_a_house_mirrors_its_sessions_where_its_settings_say_so(tmp_path: Path) -> None:
    settings = replace(load_settings({"RETINUE_HOME": str(tmp_path)}), mirror=MirrorSettings(enabled=True))
    async with open_server(settings, default_parts()) as house:
        sent = await ask(house, "envelope.send", to="agent:guide", text="echo hello")
        await wait_until(
            lambda: house.store.read(lambda conn: envelopes.get_outcome(conn, sent["envelope"])),
            "the envelope is settled",
        )
    lines = (tmp_path / "mirror" / sent["session"] / "history.jsonl").read_text().splitlines()
    assert [json.loads(line)["type"] for line in lines] == ["start", "user_message", "assistant_message"]
