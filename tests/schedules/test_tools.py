"""What agents do with the clock: `cron`, the operations as tools, and what a schedule keeps from time to time."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
from flows.tools_instance import HandsHouse, Visit, hands_house

from retinue.domain.agent import Agent
from retinue.domain.envelope import Envelope
from retinue.domain.ids import SessionId
from retinue.domain.record import UserTurn
from retinue.domain.session import Origin, OriginKind
from retinue.domain.trust import Trust
from retinue.policy.tools.tools import ToolPolicyContext
from retinue.store.schedules import schedules
from retinue.store.sessions import sessions
from retinue.testing.scripted_model import text_reply, tool_call_reply
from retinue.testing.wait_conditions import wait_until

ADA = Agent(name="ada", model="scripted")


@pytest.fixture
async def house(tmp_path: Path) -> AsyncGenerator[HandsHouse]:
    async with hands_house(tmp_path / "home", staff=(ADA,), tools=[Visit()]) as opened:
        yield opened


async def said(house: HandsHouse, session: SessionId) -> Any:
    """What the last call came to."""
    return json.loads((await house.results(session))[-1].output)


async def ended(house: HandsHouse, id_: str) -> None:
    async def over() -> bool:
        slots = await house.house.store.scan(lambda conn: schedules.list_history(conn, id_, limit=5))
        return bool(slots) and all(not slot.state.is_open or slot.cause == "clock" for slot in slots)

    await wait_until(over, "the occurrence has ended")


@pytest.mark.spec("C122.cron")
async def test_an_agent_sets_looks_at_changes_runs_and_removes_what_is_its_own(house: HandsHouse) -> None:
    by_owner = await house.ask("schedule.add", name="owners", to="agent:ada", text="x", cron="0 0 1 1 *")
    session = await house.turn(
        "Water the plants every morning.",
        tool_call_reply(
            "cron", action="add", parameters={"name": "plants", "text": "Water them.", "cron": "0 8 * * *"}
        ),
        "Set.",
        origin="person:owner",
    )
    made = await said(house, session)
    assert (made["owner"], made["to"], made["deliver"]) == ("agent:ada", "agent:ada", "person:owner")
    for lines, check in (
        (tool_call_reply("cron", action="list"), lambda told: [s["name"] for s in told["schedules"]] == ["plants"]),
        (
            tool_call_reply("cron", action="update", schedule="plants", parameters={"every": "12h"}),
            lambda told: told["every"] == "12h",
        ),
        (tool_call_reply("cron", action="next", schedule="plants"), lambda told: len(told["next"]) == 5),
        (tool_call_reply("cron", action="disable", schedule="plants"), lambda told: told["enabled"] is False),
        (tool_call_reply("cron", action="runs", schedule="plants"), lambda told: told["slots"] == []),
        (
            tool_call_reply("cron", action="explain", parameters={"cron": "@daily"}),
            lambda told: "every day" in told["words"],
        ),
        (tool_call_reply("cron", action="remove", schedule="plants"), lambda told: told["name"] == "plants"),
    ):
        await house.turn("And then?", lines, "Done.", origin="person:owner")
        assert check(await said(house, session)), lines
    await house.turn(
        "Remove the other.",
        tool_call_reply("cron", action="remove", schedule=by_owner["id"]),
        "No.",
        origin="person:owner",
    )
    refused = (await house.results(session))[-1]
    assert refused.failed and "schedule.not_found" in refused.output


@pytest.mark.spec("C75")
async def test_a_reminder_carries_what_was_last_said_and_reaches_its_person_whatever_else_is_set(
    house: HandsHouse,
) -> None:
    await house.turn("The train to Ulm leaves at six.", text_reply("Noted: " + "x" * 400), origin="person:owner")
    session = await house.turn(
        "Remind me.",
        tool_call_reply(
            "cron",
            action="remind",
            parameters={"text": "Your train.", "delay_s": 1},
            context_messages=3,
        ),
        "I will.",
        origin="person:owner",
    )
    made = await said(house, session)
    assert made["to"] == "person:owner"
    head, _, context = made["text"].partition("\n\nRecent context:\n")
    assert head == "Your train."
    lines = context.splitlines()
    assert lines[0] == "- owner: The train to Ulm leaves at six." and lines[2] == "- owner: Remind me."
    assert lines[1].startswith("- Agent: Noted: xxx") and lines[1].endswith("…")
    assert all(len(line) <= 220 for line in lines) and sum(map(len, lines)) <= 700

    async def reminders() -> list[Envelope]:
        found = [mail for mail in await house.mail("person:owner") if mail.text.startswith("Your train.")]
        return found if found and found[0].settled_at is not None else []

    found = await wait_until(reminders, "the reminder is delivered")
    assert found[0].sender.kind == "schedule"
    [told] = (await house.ask("notification.list"))["notifications"]
    assert told["title"] == "Your train."


async def test_a_wake_up_comes_back_into_the_conversation_in_which_it_was_set(house: HandsHouse) -> None:
    session = await house.turn(
        "Look at the oven later.",
        tool_call_reply("cron", action="wake", parameters={"text": "The oven!", "delay_s": 1}),
        "I will.",
        origin="person:owner",
    )
    house.model.will_reply("It is done.")
    await wait_until(lambda: not house.model.script, "the model was asked")
    await house.rest()
    words = [record.body.text for record in await house.records(session) if isinstance(record.body, UserTurn)]
    assert "The oven!" in words[-1]
    assert (await house.mail("person:owner"))[-1].text == "It is done."


async def test_what_an_agent_sets_after_reading_strangers_words_is_no_better_than_they_are(house: HandsHouse) -> None:
    house.rule(allow=("*",))
    session = await house.turn(
        "Look at the page, and remind yourself of water.",
        tool_call_reply("visit", page="x"),
        tool_call_reply("cron", action="wake", parameters={"text": "water", "at": "+2h"}),
        "Done.",
        origin="person:owner",
    )
    asked = await house.asked()
    if asked:  # by the origin rule: it asks before it sets what strangers' words may have said
        await house.answer(asked[0])
    found = await house.house.store.scan(lambda conn: schedules.list_schedules(conn, limit=5))
    assert [kept.schedule.trust for kept in found] == [Trust.UNTRUSTED], await house.results(session)


@pytest.mark.spec("D42")
async def test_only_what_the_clock_begins_has_the_memory_of_a_schedule(house: HandsHouse) -> None:
    toolbox = house.house.services.toolbox
    assert toolbox is not None
    memory = {"cron_read_task", "cron_read_memory", "cron_write_memory"}
    for origin in OriginKind:
        offered = {spec.name for spec in toolbox.offered_specs(ADA, ToolPolicyContext(origin=origin))}
        assert offered & memory == (memory if origin is OriginKind.SCHEDULE else set()), origin
    session = await house.turn(
        "Remember.", tool_call_reply("cron_write_memory", text="x"), "No.", origin="person:owner"
    )
    assert (await house.results(session))[-1].failed


@pytest.mark.spec("D38", "D42")
async def test_a_schedule_remembers_from_time_to_time_and_the_first_words_take_the_place_of_none(
    house: HandsHouse,
) -> None:
    made = await house.ask("schedule.add", name="diary", to="agent:ada", text="Write.", cron="0 0 1 1 *")

    async def come(*lines: Any) -> SessionId:
        house.model.will_reply(*lines)
        await house.ask("schedule.run", schedule="diary")
        await ended(house, made["id"])
        await house.rest()
        origin = Origin(OriginKind.SCHEDULE, f"schedule:{made['id']}")
        found = await house.house.store.read(lambda conn: sessions.get_by_origin(conn, "ada", origin))
        assert found is not None
        return found.id

    session = await come(
        tool_call_reply("cron_read_memory"), tool_call_reply("cron_write_memory", text="Day one."), "Done."
    )
    assert (await house.results(session))[0].output == "No memory"
    file = house.home() / "schedules" / "diary" / "MEMORY.md"
    assert file.read_text() == "Day one.\n"
    await come(tool_call_reply("cron_write_memory", text="Day two."), "Done.")
    assert file.read_text() == "Day one.\n\nDay two.\n"
    await come(tool_call_reply("cron_read_memory"), tool_call_reply("cron_read_task"), "Done.")
    read, task = (await house.results(session))[-2:]
    assert "Day one." in read.output and "Day two." in read.output
    assert "schedule: diary" in task.output and "files: schedules/diary/files" in task.output
    assert (house.home() / "schedules" / "diary" / "files").is_dir()
    file.write_text("No memory\n")
    await come(tool_call_reply("cron_write_memory", text="Anew.", append=True), "Done.")
    assert file.read_text() == "Anew.\n"
    await come(tool_call_reply("cron_write_memory", text="All of it.", append=False), "Done.")
    assert file.read_text() == "All of it.\n"


@pytest.mark.spec("D36")
async def test_what_was_granted_to_a_schedule_is_still_granted_the_next_time_and_after_a_stop(tmp_path: Path) -> None:
    root, outside = tmp_path / "home", tmp_path / "outside"
    outside.mkdir()
    (outside / "letter.txt").write_text("a letter")
    read = tool_call_reply("read", path=str(outside / "letter.txt"))
    async with hands_house(root, staff=(ADA,)) as house:
        made = await house.ask("schedule.add", name="post", to="agent:ada", text="Read.", cron="0 0 1 1 *")
        house.model.will_reply(read, "Read.")
        await house.ask("schedule.run", schedule="post")
        [question] = await wait_until(house.asked, "a question is put")
        await house.answer(question, scope="session")
        await ended(house, made["id"])
        house.model.will_reply(read, "Again.")
        await house.ask("schedule.run", schedule="post")
        await ended(house, made["id"])
        await house.rest()
        assert await house.asked() == []
    async with hands_house(root, staff=(ADA,)) as house:
        house.model.will_reply(read, "And again.")
        await house.ask("schedule.run", schedule="post")
        await ended(house, made["id"])
        await house.rest()
        assert await house.asked() == []
        origin = Origin(OriginKind.SCHEDULE, f"schedule:{made['id']}")
        found = await house.house.store.read(lambda conn: sessions.get_by_origin(conn, "ada", origin))
        assert found is not None
        results = await house.results(found.id)
        assert [("a letter" in result.output, result.failed) for result in results] == [(True, False)] * 3
