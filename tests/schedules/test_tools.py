"""Tools of agents for schedules: `cron`, operations as tools, and what a schedule keeps between its runs."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
from flows.tools_instance import ScriptedServer, Visit, open_scripted_server

from retinue.domain.agent import Agent
from retinue.domain.envelope import Envelope
from retinue.domain.ids import SessionId
from retinue.domain.record import UserTurn
from retinue.domain.session import Origin, OriginKind
from retinue.domain.trust import Trust
from retinue.policy.tools.tool_policy import ToolPolicyContext
from retinue.store.schedules import schedules
from retinue.store.sessions import sessions
from retinue.testing.scripted_model import text_reply, tool_call_reply
from retinue.testing.wait_conditions import wait_until

ADA = Agent(name="ada", model="scripted")


@pytest.fixture
async def server(tmp_path: Path) -> AsyncGenerator[ScriptedServer]:
    async with open_scripted_server(tmp_path / "home", staff=(ADA,), tools=[Visit()]) as opened:
        yield opened


async def last_result(server: ScriptedServer, session: SessionId) -> Any:
    """Return the result of the last call."""
    return json.loads((await server.results(session))[-1].output)


async def wait_until_ended(server: ScriptedServer, id_: str) -> None:
    async def has_ended() -> bool:
        slots = await server.server.store.scan(lambda conn: schedules.list_history(conn, id_, limit=5))
        return bool(slots) and all(not slot.state.is_open or slot.cause == "clock" for slot in slots)

    await wait_until(has_ended, "the occurrence has ended")


@pytest.mark.spec("C122.cron")
async def test_an_agent_can_add_list_update_run_and_remove_its_own_schedules_with_cron(server: ScriptedServer) -> None:
    by_owner = await server.ask("schedule.add", name="owners", to="agent:ada", text="x", cron="0 0 1 1 *")
    session = await server.turn(
        "Water the plants every year.",
        tool_call_reply(
            "cron", action="add", parameters={"name": "plants", "text": "Water them.", "cron": "0 8 1 1 *"}
        ),
        "Set.",
        origin="person:owner",
    )
    made = await last_result(server, session)
    assert (made["owner"], made["to"], made["deliver_to"]) == ("agent:ada", "agent:ada", "person:owner")
    for lines, check in (
        (tool_call_reply("cron", action="list"), lambda told: [s["name"] for s in told["schedules"]] == ["plants"]),
        (
            tool_call_reply("cron", action="update", schedule="plants", parameters={"every": "12h"}),
            lambda told: told["every"] == "12h",
        ),
        (tool_call_reply("cron", action="next", schedule="plants"), lambda told: len(told["next"]) == 5),
        (tool_call_reply("cron", action="disable", schedule="plants"), lambda told: told["enabled"] is False),
        (tool_call_reply("cron", action="runs", schedule="plants"), lambda told: told["occurrences"] == []),
        (
            tool_call_reply("cron", action="explain", parameters={"cron": "@daily"}),
            lambda told: "every day" in told["description"],
        ),
        (tool_call_reply("cron", action="remove", schedule="plants"), lambda told: told["name"] == "plants"),
    ):
        await server.turn("And then?", lines, "Done.", origin="person:owner")
        assert check(await last_result(server, session)), lines
    await server.turn(
        "Remove the other.",
        tool_call_reply("cron", action="remove", schedule=by_owner["id"]),
        "No.",
        origin="person:owner",
    )
    refused = (await server.results(session))[-1]
    assert refused.failed and "schedule.not_found" in refused.output


@pytest.mark.spec("C75")
async def test_a_cron_reminder_includes_recent_context_and_reaches_its_person(
    server: ScriptedServer,
) -> None:
    await server.turn("The train to Ulm leaves at six.", text_reply("Noted: " + "x" * 400), origin="person:owner")
    session = await server.turn(
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
    made = await last_result(server, session)
    assert made["to"] == "person:owner"
    head, _, context = made["text"].partition("\n\nRecent context:\n")
    assert head == "Your train."
    lines = context.splitlines()
    assert lines[0] == "- owner: The train to Ulm leaves at six." and lines[2] == "- owner: Remind me."
    assert lines[1].startswith("- Agent: Noted: xxx") and lines[1].endswith("…")
    assert all(len(line) <= 220 for line in lines) and sum(map(len, lines)) <= 700

    async def reminders() -> list[Envelope]:
        found = [mail for mail in await server.mail("person:owner") if mail.text.startswith("Your train.")]
        return found if found and found[0].settled_at is not None else []

    found = await wait_until(reminders, "the reminder is delivered")
    assert found[0].sender.kind == "schedule"
    [notification] = (await server.ask("notification.list"))["notifications"]
    assert notification["title"] == "Your train."


async def test_a_cron_wake_up_is_sent_to_the_session_that_set_it(server: ScriptedServer) -> None:
    session = await server.turn(
        "Look at the oven later.",
        tool_call_reply("cron", action="wake", parameters={"text": "The oven!", "delay_s": 1}),
        "I will.",
        "It is done.",  # to the wake-up, which may come before the turn ends on a busy machine
        origin="person:owner",
    )
    await wait_until(lambda: not server.model.script, "the model was asked")
    await server.rest()
    words = [record.body.text for record in await server.records(session) if isinstance(record.body, UserTurn)]
    assert "The oven!" in words[-1]
    assert (await server.mail("person:owner"))[-1].text == "It is done."


async def test_a_schedule_added_after_reading_untrusted_content_is_untrusted(server: ScriptedServer) -> None:
    server.rule(allow=("*",))
    session = await server.turn(
        "Look at the page, and remind yourself of water.",
        tool_call_reply("visit", page="x"),
        tool_call_reply("cron", action="wake", parameters={"text": "water", "at": "+2h"}),
        "Done.",
        origin="person:owner",
    )
    asked = await server.asked()
    if asked:  # by the provenance rule: it asks before it uses text of strangers in a call
        await server.answer(asked[0])
    found = await server.server.store.scan(lambda conn: schedules.list_schedules(conn, limit=5))
    assert [kept.schedule.trust for kept in found] == [Trust.UNTRUSTED], await server.results(session)


@pytest.mark.spec("D42")
async def test_schedule_memory_tools_are_offered_only_in_schedule_sessions(server: ScriptedServer) -> None:
    toolbox = server.server.services.toolbox
    assert toolbox is not None
    memory = {"cron_read_task", "cron_read_memory", "cron_write_memory"}
    for origin in OriginKind:
        offered = {spec.name for spec in toolbox.offered_specs(ADA, ToolPolicyContext(origin=origin))}
        assert offered & memory == (memory if origin is OriginKind.SCHEDULE else set()), origin
    session = await server.turn(
        "Remember.", tool_call_reply("cron_write_memory", text="x"), "No.", origin="person:owner"
    )
    assert (await server.results(session))[-1].failed


@pytest.mark.spec("D38", "D42")
async def test_a_schedule_keeps_its_memory_between_runs(
    server: ScriptedServer,
) -> None:
    made = await server.ask("schedule.add", name="diary", to="agent:ada", text="Write.", cron="0 0 1 1 *")

    async def run_diary(*lines: Any) -> SessionId:
        server.model.will_reply(*lines)
        await server.ask("schedule.run", schedule="diary")
        await wait_until_ended(server, made["id"])
        await server.rest()
        origin = Origin(OriginKind.SCHEDULE, f"schedule:{made['id']}")
        found = await server.server.store.read(lambda conn: sessions.get_by_origin(conn, "ada", origin))
        assert found is not None
        return found.id

    session = await run_diary(
        tool_call_reply("cron_read_memory"), tool_call_reply("cron_write_memory", text="Day one."), "Done."
    )
    assert (await server.results(session))[0].output == "No memory"
    file = server.home() / "schedules" / "diary" / "MEMORY.md"
    assert file.read_text() == "Day one.\n"
    await run_diary(tool_call_reply("cron_write_memory", text="Day two."), "Done.")
    assert file.read_text() == "Day one.\n\nDay two.\n"
    await run_diary(tool_call_reply("cron_read_memory"), tool_call_reply("cron_read_task"), "Done.")
    read, task = (await server.results(session))[-2:]
    assert "Day one." in read.output and "Day two." in read.output
    assert "schedule: diary" in task.output and "files: schedules/diary/files" in task.output
    assert (server.home() / "schedules" / "diary" / "files").is_dir()
    file.write_text("No memory\n")
    await run_diary(tool_call_reply("cron_write_memory", text="Anew.", append=True), "Done.")
    assert file.read_text() == "Anew.\n"
    await run_diary(tool_call_reply("cron_write_memory", text="All of it.", append=False), "Done.")
    assert file.read_text() == "All of it.\n"


@pytest.mark.spec("D36")
async def test_a_grant_to_a_schedule_session_holds_for_later_runs_and_after_a_restart(tmp_path: Path) -> None:
    root, outside = tmp_path / "home", tmp_path / "outside"
    outside.mkdir()
    (outside / "letter.txt").write_text("a letter")
    read = tool_call_reply("read", path=str(outside / "letter.txt"))
    async with open_scripted_server(root, staff=(ADA,)) as server:
        made = await server.ask("schedule.add", name="post", to="agent:ada", text="Read.", cron="0 0 1 1 *")
        server.model.will_reply(read, "Read.")
        await server.ask("schedule.run", schedule="post")
        [question] = await wait_until(server.asked, "an approval is requested")
        await server.answer(question, scope="session")
        await wait_until_ended(server, made["id"])
        server.model.will_reply(read, "Again.")
        await server.ask("schedule.run", schedule="post")
        await wait_until_ended(server, made["id"])
        await server.rest()
        assert await server.asked() == []
    async with open_scripted_server(root, staff=(ADA,)) as server:
        server.model.will_reply(read, "And again.")
        await server.ask("schedule.run", schedule="post")
        await wait_until_ended(server, made["id"])
        await server.rest()
        assert await server.asked() == []
        origin = Origin(OriginKind.SCHEDULE, f"schedule:{made['id']}")
        found = await server.server.store.read(lambda conn: sessions.get_by_origin(conn, "ada", origin))
        assert found is not None
        results = await server.results(found.id)
        assert [("a letter" in result.output, result.failed) for result in results] == [(True, False)] * 3
