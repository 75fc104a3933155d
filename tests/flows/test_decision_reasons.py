"""Why a call was allowed: by which rule, which grant or whose yes. In its audit line, and in the story of its run."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from flows.approval_instance import OWNER, asked, asking_household, does, line
from operations.operations_instance import DeskHouse, desk_house

from retinue.store.runs.why import explain


async def because_of_calls(desk: DeskHouse) -> list[str]:
    """Of every call that was allowed, oldest first."""
    found: dict[str, Any] = await desk.ask(OWNER, "audit.list", kind="call-allowed")
    return [each["because"] for each in reversed(found["audit"])]


async def story(desk: DeskHouse, envelope: str) -> list[str]:
    found = await desk.house.store.scan(lambda conn: explain(conn, id_text=envelope))
    return [told.partition("  ")[2] for told in found.format_lines(ZoneInfo("UTC"))]


async def test_a_call_that_no_rule_is_against_says_so(tmp_path: Path) -> None:
    household = asking_household(tmp_path, ask=())
    async with desk_house(household) as desk:
        household.model.rule = does
        receipt = await desk.house.send(line("one"), sender="person:owner")
        await desk.house.wait_for_outcome(receipt.envelope)
        assert await because_of_calls(desk) == ["no rule denies it"]
        assert "Turn 1: append_line (no rule denies it) returned in 0 ms." in await story(desk, receipt.envelope)


async def test_a_call_that_was_asked_about_names_its_approval_and_the_next_one_the_grant(tmp_path: Path) -> None:
    household = asking_household(tmp_path)
    async with desk_house(household) as desk:
        household.model.rule = does
        envelope, approval = await asked(desk.house, line("one"), sender="person:owner")
        assert await because_of_calls(desk) == [], "it is not allowed yet"
        await desk.ask(OWNER, "approval.answer", id=approval, allow=True, scope="always")
        await desk.house.wait_for_outcome(envelope)
        yes = f"approval {approval[:8]} allows it"
        assert await because_of_calls(desk) == [yes]
        assert f"Turn 1: append_line ({yes}) returned in 0 ms." in await story(desk, envelope)

        await desk.house.wait_for_outcome((await desk.house.send(line("two"), sender="person:owner")).envelope)
        assert await because_of_calls(desk) == [yes, "tool:append_line was granted"]


async def test_a_late_yes_is_named_too(tmp_path: Path) -> None:
    household = asking_household(tmp_path)
    async with desk_house(household) as desk:
        household.model.rule = does
        envelope, approval = await asked(desk.house, line("one"), sender="person:owner")
        later = await desk.house.send("go on", sender="person:owner")
        await desk.house.wait_for_outcome(later.envelope)
        await desk.house.wait_for_outcome(envelope)
        await desk.ask(OWNER, "approval.answer", id=approval, allow=True)
        await desk.house.wait_until_idle()
        assert await because_of_calls(desk) == [f"approval {approval[:8]} allows it"]
