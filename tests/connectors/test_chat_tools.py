"""Test which tools an agent may use on behalf of a sender in a channel."""

from __future__ import annotations

from pathlib import Path

import pytest
from connector_instance import ChatInstance, inbound_message, link

from retinue.config.tools import ToolListSettings
from retinue.domain.access import GroupPolicy
from retinue.domain.structs import replace


@pytest.mark.spec("C55")
@pytest.mark.parametrize(
    ("rule", "speaker", "is_offered"),
    [
        ("person:maria", "7", False),
        ("person:maria", "8", True),
        ("channel:quiet:8", "8", False),
        ("channel:quiet:8", "7", True),
        ("channel:quiet:-1", "7", False),
        ("channel:quiet:Maria", "8", True),  # a display name proves nothing
    ],
)
async def test_tool_rules_by_sender_match_the_speaker_id_in_a_group_chat(
    tmp_path: Path, rule: str, speaker: str, is_offered: bool
) -> None:
    chat = ChatInstance.at(tmp_path, group_policy=GroupPolicy.OPEN)
    instance = chat.instance
    instance.tool_settings = replace(instance.tool_settings, by_sender={rule: ToolListSettings(deny=("append_line",))})
    async with instance.run() as server:
        await link(server, "maria", id_="7")
        receipt = await server.connector_intake.accept(
            "quiet", inbound_message("hello", by=speaker, channel="-1", mentioned=True)
        )
        assert receipt is not None
        await server.wait_for_outcome(receipt.envelope)
        assert ("append_line" in {spec.name for spec in instance.model.prompts[-1].tools}) is is_offered
