"""Agents that an earlier version stored with the old names of their fields."""

from __future__ import annotations

import msgspec
import pytest

from retinue.domain.agent import Agent, Color, CrashPolicy, DelegationRules, HeartbeatRules, SandboxRules
from retinue.domain.sandbox import SandboxVisibleSessions
from retinue.domain.schedule import ScheduleSession
from retinue.store.agents import agents

ADA = Agent(
    name="ada",
    instructions='Say "colour": never "color".',
    color=Color.TEAL,
    crash_policy=CrashPolicy.AT_MOST_ONCE,
    delegation=DelegationRules(allow_cycles=True, other_sessions=True, depth_max=3),
    heartbeat=HeartbeatRules(session=ScheduleSession.MAIN),
    sandbox=SandboxRules(visible_sessions=SandboxVisibleSessions.SPAWNED),
    version=7,
)
OLD_NAMES = {
    '"color":': '"colour":',
    '"crash_policy":': '"delivery":',
    '"allow_cycles":': '"circles":',
    '"other_sessions":': '"histories":',
    '"visible_sessions":': '"sessions":',
    '"session":': '"place":',
}


def test_an_agent_with_old_field_names_is_decoded_with_all_values() -> None:
    new = msgspec.json.encode(ADA).decode()
    old = new
    for name, before in OLD_NAMES.items():
        assert old.count(name) == 1, name
        old = old.replace(name, before)
    assert agents._decode(old) == ADA  # pyright: ignore[reportPrivateUsage]
    assert agents._decode(new) == ADA  # pyright: ignore[reportPrivateUsage]


@pytest.mark.parametrize("text", ['"colour":', '{"place": 1}'])
def test_an_agent_text_that_looks_like_a_renamed_field_is_decoded_unchanged(text: str) -> None:
    ada = Agent(name="ada", instructions=text, description=text)
    assert agents._decode(msgspec.json.encode(ada).decode()) == ada  # pyright: ignore[reportPrivateUsage]
