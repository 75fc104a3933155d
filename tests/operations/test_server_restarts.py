"""What a server keeps across restarts."""

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


async def perform_as_owner(server: RunningServer, operation: str, **parameters: Any) -> Any:
    return json.loads(
        await perform_operation(server.services, OWNER, OPERATIONS[operation], json.dumps(parameters).encode())
    )


async def test_a_default_agent_that_was_deleted_is_not_recreated_at_a_server_restart(tmp_path: Path) -> None:
    settings = load_settings({"RETINUE_HOME": str(tmp_path)})
    async with open_server(settings, default_parts()) as server:
        await perform_as_owner(server, "agent.delete", name="clerk")
    async with open_server(settings, default_parts()) as server:
        with pytest.raises(NotFound):
            await perform_as_owner(server, "agent.show", name="clerk")
        assert not (tmp_path / "agents" / "clerk").exists()


@pytest.mark.spec("H83")
async def test_a_server_restart_keeps_the_version_and_files_of_a_registered_agent(tmp_path: Path) -> None:
    settings = load_settings({"RETINUE_HOME": str(tmp_path)})
    async with open_server(settings, default_parts()) as server:
        await perform_as_owner(server, "agent.register", name="ada", token=False)
    (tmp_path / "agents" / "ada" / "SOUL.md").write_text("I am Ada.")
    async with open_server(settings, default_parts()) as server:
        assert (await perform_as_owner(server, "agent.show", name="ada"))["version"] == 1
    assert (tmp_path / "agents" / "ada" / "SOUL.md").read_text() == "I am Ada."


async def test_a_server_with_the_session_mirror_enabled_writes_sessions_to_files(tmp_path: Path) -> None:
    settings = replace(load_settings({"RETINUE_HOME": str(tmp_path)}), mirror=MirrorSettings(enabled=True))
    async with open_server(settings, default_parts()) as server:
        sent = await perform_as_owner(server, "envelope.send", to="agent:guide", text="echo hello")
        await wait_until(
            lambda: server.store.read(lambda conn: envelopes.get_outcome(conn, sent["envelope"])),
            "the envelope is settled",
        )
    lines = (tmp_path / "mirror" / sent["session"] / "history.jsonl").read_text().splitlines()
    assert [json.loads(line)["type"] for line in lines] == ["start", "user_message", "assistant_message"]
