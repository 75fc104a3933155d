"""What agents may do for whoever speaks in a room."""

from __future__ import annotations

from pathlib import Path

import pytest
from connector_instance import Street, link, said

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
        ("channel:quiet:Maria", "8", True),  # a name proves nothing
    ],
)
async def test_the_rules_for_a_sender_hold_in_a_group_by_who_they_are(
    tmp_path: Path, rule: str, speaker: str, is_offered: bool
) -> None:
    street = Street.at(tmp_path, group_policy=GroupPolicy.OPEN)
    household = street.household
    household.tool_settings = replace(
        household.tool_settings, by_sender={rule: ToolListSettings(deny=("append_line",))}
    )
    async with household.run() as house:
        await link(house, "maria", id_="7")
        receipt = await house.connector_intake.accept("quiet", said("hello", by=speaker, room="-1", mentioned=True))
        assert receipt is not None
        await house.wait_for_outcome(receipt.envelope)
        assert ("append_line" in {spec.name for spec in household.model.prompts[-1].tools}) is is_offered
