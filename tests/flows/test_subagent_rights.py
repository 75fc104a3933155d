"""A child has no wider rights than its parent, and nobody gains by asking through an agent."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from flows.concurrent_model import ENDED, plays, spawn
from flows.tools_instance import HandsHouse, hands_house

from retinue.domain import address
from retinue.domain.agent import Agent, PermissionLevel, SubagentRules, ToolRules
from retinue.domain.person import Person, Role
from retinue.domain.principal import Principal
from retinue.domain.tool import ToolResult
from retinue.domain.trust import Trust
from retinue.store.core import tables as t
from retinue.store.people import people
from retinue.store.runs import delegations, runs, subagents
from retinue.store.runs.subagents import DelegationPosition
from retinue.testing.scripted_model import ScriptedReply, tool_call_reply

BO = Agent(name="bo", model="scripted")
ANYONE = SubagentRules(allow=("*",))
LINE = tool_call_reply("append_line", text="a line")


def ada(**kw: Any) -> Agent:
    return Agent(name="ada", model="scripted", subagents=ANYONE, **kw)


async def child_results(house: HandsHouse, session: str) -> list[ToolResult]:
    made = await house.house.store.read(lambda conn: delegations.list_of_session(conn, session, limit=10))
    return [result for each in made for result in await house.results(each.target_session or "")]


async def as_subagent(house: HandsHouse, *lines: ScriptedReply) -> list[ToolResult]:
    """What comes of these calls where bo makes them as a subagent of ada's."""
    plays(
        house.model, {ENDED: "NO_REPLY", "Send bo.": [spawn("do it", agentId="bo"), "out"], "do it": [*lines, "done"]}
    )
    session = await house.turn("Send bo.")
    return (await child_results(house, session))[: len(lines)]


async def as_itself(house: HandsHouse, *lines: ScriptedReply) -> list[ToolResult]:
    plays(house.model, {"Do it.": [*lines, "done"]})
    session = await house.turn("Do it.", to="agent:bo")
    return (await house.results(session))[-len(lines) :]


async def test_what_its_parent_is_denied_a_child_is_denied_too(tmp_path: Path) -> None:
    async with hands_house(tmp_path, staff=(ada(tools=ToolRules(deny=("append_line",))), BO)) as house:
        [result] = await as_subagent(house, LINE)
        assert result.failed and "agents.ada.tools.deny" in result.output
        made = (
            await house.house.store.read(
                lambda conn: subagents.list_subagents(conn, after=DelegationPosition(), limit=1)
            )
        )[0]
        offered = {
            spec.name
            for prompt in house.model.prompts
            if prompt.session == made.target_session
            for spec in prompt.tools
        }
        assert "read" in offered and "append_line" not in offered
        assert house.lines == []
        [result] = await as_itself(house, LINE)
        assert not result.failed and house.lines == ["a line"], "bo itself may"


async def test_a_child_is_asked_about_what_its_parent_is_asked_about(tmp_path: Path) -> None:
    async with hands_house(tmp_path, staff=(ada(tools=ToolRules(ask=("append_line",))), BO)) as house:
        await as_subagent(house, LINE)
        assert await house.asked_for() == [("append_line", {"text": "a line"})]
        assert house.lines == []


async def test_what_must_be_named_must_be_named_for_the_parent_too(tmp_path: Path) -> None:
    bo = Agent(name="bo", model="scripted", tools=ToolRules(also_allow=("session_list",)))
    async with hands_house(tmp_path, staff=(ada(), bo)) as house:
        [result] = await as_subagent(house, tool_call_reply("session_list"))
        assert result.failed and "agents.ada.tools.also_allow" in result.output


async def test_an_operation_is_asked_as_the_parent_at_the_lesser_level(tmp_path: Path) -> None:
    names = ToolRules(also_allow=("session_list", "house_ledger"))
    bo = Agent(name="bo", model="scripted", tools=names, permission_level=PermissionLevel.PRIVILEGED)
    async with hands_house(tmp_path, staff=(ada(tools=names), bo)) as house:
        plays(house.model, {"Hello.": "Hello."})
        bos = await house.turn("Hello.", to="agent:bo")
        listed, ledger = await as_subagent(house, tool_call_reply("session_list"), tool_call_reply("house_ledger"))
        assert not listed.failed
        assert bos not in listed.output, "what bo has talked about with others is not ada's to see"
        assert ledger.failed and "needs privileged, and you have standard" in ledger.output
        listed, ledger = await as_itself(house, tool_call_reply("session_list"), tool_call_reply("house_ledger"))
        assert bos in listed.output and not ledger.failed, "bo itself may"


async def test_a_child_works_in_its_parents_folders_and_reaches_none_of_its_own(tmp_path: Path) -> None:
    async with hands_house(tmp_path, staff=(ada(), BO)) as house:
        (house.home("ada")).mkdir(parents=True, exist_ok=True)
        (house.home("bo")).mkdir(parents=True, exist_ok=True)
        (house.home("ada") / "plan.md").write_text("ada's plan")
        (house.home("bo") / "notes.md").write_text("bo's notes")
        secret = str(house.home("bo") / "notes.md")
        calls_ = (
            tool_call_reply("read", path="plan.md"),
            tool_call_reply("read", path=secret),
            tool_call_reply("write", path="x.md", content="found"),
        )
        plan, notes, written = await as_subagent(house, *calls_)
        assert "ada's plan" in plan.output
        assert notes.failed and "bo's notes" not in notes.output
        assert not written.failed and (house.home("ada") / "x.md").read_text() == "found"
        assert not (house.home("bo") / "x.md").exists()
        [notes] = await as_itself(house, tool_call_reply("read", path="notes.md"))
        assert "bo's notes" in notes.output, "bo itself may"


async def test_whatever_is_said_to_a_child_it_stays_what_it_was_sent_out_as(tmp_path: Path) -> None:
    async with hands_house(tmp_path, staff=(ada(tools=ToolRules(deny=("append_line",))), BO)) as house:
        plays(
            house.model,
            {
                ENDED: "NO_REPLY",
                "Send bo.": [spawn("stand by", agentId="bo"), "out"],
                "stand by": "Standing by.",
                "Now do it.": [LINE, "done"],
            },
        )
        session = await house.turn("Send bo.")
        [made] = await house.house.store.read(lambda conn: delegations.list_of_session(conn, session, limit=1))
        await house.ask("subagent.send", id=made.id, text="Now do it.")
        await house.rest()
        [result] = await house.results(made.target_session or "")
        assert result.failed and "agents.ada.tools.deny" in result.output
        assert house.lines == []


# --- on whose behalf ---

GUESTS = '[tools.by_sender."person:guest"]\ndeny = ["append_line"]\n'


async def guest(house: HandsHouse) -> None:
    await house.house.store.write(
        lambda conn: people.add(conn, Person(name="guest", role=Role.GUEST), at_ms=1), point="test"
    )


@pytest.mark.parametrize(
    "hand_on",
    [
        tool_call_reply("agents_message", agentId="bo", content="do it"),
        tool_call_reply("agents_message", agentId="bo", content="do it", mode="async"),
        spawn("do it", agentId="bo"),
        spawn("do it"),
    ],
    ids=["asked", "asked without waiting", "another sent out", "itself sent out"],
)
async def test_a_guests_words_through_an_agent_gain_nothing(tmp_path: Path, hand_on: ScriptedReply) -> None:
    async with hands_house(tmp_path, staff=(ada(), BO), config=GUESTS) as house:
        await guest(house)
        parts = {ENDED: "NO_REPLY", "Hand it on.": [hand_on, "out"], "do it": [LINE, "done"], "done": "NO_REPLY"}
        plays(house.model, parts)
        session = await house.turn("Hand it on.", sender="person:guest")
        [result] = await child_results(house, session)
        assert result.failed and "tools.by_sender.person:guest.deny" in result.output
        assert house.lines == []
        session = await house.turn("Hand it on.", sender="person:owner")
        assert house.lines == ["a line"], "the owner's words do it"


async def test_a_guests_words_gain_nothing_in_the_run_that_reads_the_answer(tmp_path: Path) -> None:
    async with hands_house(tmp_path, staff=(ada(), BO), config=GUESTS) as house:
        await guest(house)
        ask = tool_call_reply("agents_message", agentId="bo", content="what now", mode="async")
        plays(house.model, {"Ask bo.": [ask, "asked"], "what now": "Write a line.", "Write a line.": [LINE, "done"]})
        session = await house.turn("Ask bo.", sender="person:guest")
        result = (await house.results(session))[-1]
        assert result.tool == "append_line" and result.failed and "person:guest" in result.output
        assert house.lines == []


async def test_rules_for_the_owner_give_nothing_to_whoever_works_for_them(tmp_path: Path) -> None:
    config = '[tools.by_sender."person:owner"]\nalso_allow = ["session_list"]\n'
    async with hands_house(tmp_path, staff=(ada(), BO), config=config) as house:
        [result] = await as_itself(house, tool_call_reply("session_list"))
        assert not result.failed, "named for the owner, it is there for the owner"
        ask = tool_call_reply("agents_message", agentId="bo", content="list them")
        plays(house.model, {"Ask bo.": [ask, "asked"], "list them": [tool_call_reply("session_list"), "done"]})
        session = await house.turn("Ask bo.")
        [result] = await child_results(house, session)
        assert result.failed and "only available to agents whose rules name it" in result.output


# --- money ---


async def spent(house: HandsHouse, root: str) -> dict[str, int]:
    """What each run of a tree has spent, and still holds."""

    def read(conn: sa.Connection) -> dict[str, int]:
        money = sa.select(t.money.c.run, sa.func.sum(t.money.c.settled_microusd + t.money.c.held_microusd))
        found: dict[str, int] = {run: int(total) for run, total in conn.execute(money.group_by(t.money.c.run))}
        return {run: total for run, total in found.items() if (each := runs.get(conn, run)) and each.root_run == root}

    return await house.house.store.scan(read)


@pytest.mark.parametrize("children", [1, 6])
async def test_children_together_spend_no_more_than_their_parent_has_left(tmp_path: Path, children: int) -> None:
    """A call costs a thousandth. The parent may spend five of them, and has spent one when it sends them out."""
    staff = (ada(cost_microusd_max=5_000), BO)
    async with hands_house(tmp_path, staff=staff) as house:
        house.model.price_microusd = 1_000
        out = ScriptedReply(calls=tuple(("sessions_spawn", {"task": f"dear task {n}"}) for n in range(children)))
        again = [tool_call_reply("append_line", text=f"line {n}") for n in range(20)]
        plays(house.model, {ENDED: "NO_REPLY", "Spend.": [out, "out"], "dear task": [*again, "done"]})
        session = await house.turn("Spend.")
        made = await house.house.store.read(lambda conn: delegations.list_of_session(conn, session, limit=10))
        assert len(made) == children and not any(each.state.is_open for each in made)
        by_run = await spent(house, made[0].run)
        theirs = {each.worker_run_id for each in made}
        assert sum(by_run.get(run, 0) for run in theirs) <= 4_000, by_run
        assert sum(by_run.get(run, 0) for run in theirs) >= 2_000, "and they did spend"
        told = [mail.text for mail in await house.mail() if mail.text.startswith("The subagent")]
        assert len(told) == children and all("budget of this run and the runs" in text for text in told), told


async def test_without_a_cap_they_go_on(tmp_path: Path) -> None:
    async with hands_house(tmp_path, staff=(ada(), BO)) as house:
        house.model.price_microusd = 1_000
        again = [tool_call_reply("append_line", text=f"line {n}") for n in range(6)]
        plays(house.model, {ENDED: "NO_REPLY", "Spend.": [spawn("dear task"), "out"], "dear task": [*again, "done"]})
        await house.turn("Spend.")
        assert len(house.lines) == 6


# --- who sees them ---


async def test_people_see_who_was_sent_out_from_what_they_see_and_nobody_else(tmp_path: Path) -> None:
    async with hands_house(tmp_path, staff=(ada(), BO)) as house:
        await guest(house)
        plays(house.model, {ENDED: "NO_REPLY", "Go.": [spawn("count", label="counting"), "out"], "count": "Three."})
        await house.turn("Go.", sender="person:guest")
        mine, other = (
            Principal(address=address.person_address(name), level=PermissionLevel.RESTRICTED, trust=Trust.PERSON)
            for name in ("guest", "other")
        )
        [seen] = (await house.ask("subagent.list", who=mine))["subagents"]
        assert seen["label"] == "counting" and seen["outcome"] == "ok"
        assert (await house.ask("subagent.list", who=other))["subagents"] == []
        shown = await house.ask("subagent.show", who=mine, id=seen["id"])
        assert shown["task"] == "count" and "Three." in shown["result-text"]
        for operation in ("subagent.show", "subagent.stop", "subagent.log"):
            with pytest.raises(Exception, match="no subagent"):
                await house.ask(operation, who=other, id=seen["id"])
        log = await house.ask("subagent.log", who=mine, id=seen["session"])
        assert "Three." in json.dumps(log["records"])


async def test_what_is_explained_and_called_directly_in_its_session_is_what_it_may_do(tmp_path: Path) -> None:
    async with hands_house(tmp_path, staff=(ada(tools=ToolRules(deny=("append_line",))), BO)) as house:
        plays(house.model, {ENDED: "NO_REPLY", "Go.": [spawn("count", agentId="bo"), "out"], "count": "Three."})
        session = await house.turn("Go.")
        [made] = await house.house.store.read(lambda conn: delegations.list_of_session(conn, session, limit=1))
        explained = await house.ask("policy.explain", agent="bo", tool="append_line", session=made.target_session)
        assert explained["verdict"] == "deny" and "agents.ada.tools.deny" in json.dumps(explained)
        explained = await house.ask("policy.explain", agent="bo", tool="append_line")
        assert explained["verdict"] == "allow"


async def test_one_that_is_sent_out_as_another_is_told_that_ones_instructions(tmp_path: Path) -> None:
    bo = Agent(name="bo", model="scripted", instructions="You are bo.", context_files=("rules.md",))
    async with hands_house(tmp_path, staff=(ada(instructions="You are ada."), bo)) as house:
        for name in ("ada", "bo"):
            house.home(name).mkdir(parents=True, exist_ok=True)
            (house.home(name) / "AGENTS.md").write_text(f"As {name} does it.")
        (house.home("bo") / "rules.md").write_text("Count twice.")
        plays(house.model, {ENDED: "NO_REPLY", "Go.": [spawn("count", agentId="bo"), "out"], "count": "Three."})
        session = await house.turn("Go.")
        [made] = await house.house.store.read(lambda conn: delegations.list_of_session(conn, session, limit=1))
        [told] = [prompt.instructions for prompt in house.model.prompts if prompt.session == made.target_session]
        assert "You are bo." in told and "As bo does it." in told
        assert "ada does it" not in told and "You are ada." not in told
        assert str(house.home("ada")) in told, "and where it works"
