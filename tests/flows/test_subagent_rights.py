"""A subagent has no wider rights than its parent, and no person gains rights by asking through an agent."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from flows.concurrent_model import SUBAGENT_ENDED_TEXT, set_scripted_rule, spawn_call
from flows.tools_instance import ScriptedServer, open_scripted_server

from retinue.domain import address
from retinue.domain.agent import Agent, PermissionLevel, SubagentRules, ToolRules
from retinue.domain.person import Person, Role
from retinue.domain.principal import Principal
from retinue.domain.tool import ToolResult
from retinue.domain.trust import Trust
from retinue.store.core import tables as t
from retinue.store.people import people
from retinue.store.runs import delegations, runs, subagents
from retinue.store.runs.delegations import DelegationPosition
from retinue.testing.scripted_model import ScriptedReply, tool_call_reply

BO = Agent(name="bo", model="scripted")
ANY_SUBAGENT = SubagentRules(allow=("*",))
APPEND_CALL = tool_call_reply("append_line", text="a line")


def ada(**kw: Any) -> Agent:
    return Agent(name="ada", model="scripted", subagents=ANY_SUBAGENT, **kw)


async def child_results(server: ScriptedServer, session: str) -> list[ToolResult]:
    made = await server.server.store.read(lambda conn: delegations.list_of_session(conn, session, limit=10))
    return [result for each in made for result in await server.results(each.target_session or "")]


async def call_as_subagent(server: ScriptedServer, *lines: ScriptedReply) -> list[ToolResult]:
    """The results of these calls when bo makes them as a subagent of ada."""
    set_scripted_rule(
        server.model,
        {
            SUBAGENT_ENDED_TEXT: "NO_REPLY",
            "Send bo.": [spawn_call("do it", agentId="bo"), "out"],
            "do it": [*lines, "done"],
        },
    )
    session = await server.turn("Send bo.")
    return (await child_results(server, session))[: len(lines)]


async def call_directly(server: ScriptedServer, *lines: ScriptedReply) -> list[ToolResult]:
    set_scripted_rule(server.model, {"Do it.": [*lines, "done"]})
    session = await server.turn("Do it.", to="agent:bo")
    return (await server.results(session))[-len(lines) :]


async def test_a_tool_denied_to_the_parent_is_denied_to_its_subagent(tmp_path: Path) -> None:
    async with open_scripted_server(tmp_path, staff=(ada(tools=ToolRules(deny=("append_line",))), BO)) as server:
        [result] = await call_as_subagent(server, APPEND_CALL)
        assert result.failed and "agents.ada.tools.deny" in result.output
        made = (
            await server.server.store.read(
                lambda conn: subagents.list_subagents(conn, after=DelegationPosition(), limit=1)
            )
        )[0]
        offered = {
            spec.name
            for prompt in server.model.prompts
            if prompt.session == made.target_session
            for spec in prompt.tools
        }
        assert "read" in offered and "append_line" not in offered
        assert server.lines == []
        [result] = await call_directly(server, APPEND_CALL)
        assert not result.failed and server.lines == ["a line"], "bo itself may do it"


async def test_a_tool_that_needs_approval_for_the_parent_needs_it_for_its_subagent(tmp_path: Path) -> None:
    async with open_scripted_server(tmp_path, staff=(ada(tools=ToolRules(ask=("append_line",))), BO)) as server:
        await call_as_subagent(server, APPEND_CALL)
        assert await server.asked_for() == [("append_line", {"text": "a line"})]
        assert server.lines == []


async def test_a_subagent_may_use_a_tool_that_must_be_named_only_if_its_parents_rules_name_it(tmp_path: Path) -> None:
    bo = Agent(name="bo", model="scripted", tools=ToolRules(also_allow=("session_list",)))
    async with open_scripted_server(tmp_path, staff=(ada(), bo)) as server:
        [result] = await call_as_subagent(server, tool_call_reply("session_list"))
        assert result.failed and "agents.ada.tools.also_allow" in result.output


async def test_an_operation_by_a_subagent_is_performed_as_the_parent_with_the_lower_level(tmp_path: Path) -> None:
    names = ToolRules(also_allow=("session_list", "server_ledger"))
    bo = Agent(name="bo", model="scripted", tools=names, permission_level=PermissionLevel.PRIVILEGED)
    async with open_scripted_server(tmp_path, staff=(ada(tools=names), bo)) as server:
        set_scripted_rule(server.model, {"Hello.": "Hello."})
        bos = await server.turn("Hello.", to="agent:bo")
        listed, ledger = await call_as_subagent(
            server, tool_call_reply("session_list"), tool_call_reply("server_ledger")
        )
        assert not listed.failed
        assert bos not in listed.output, "ada may not see bo's conversations with others"
        assert ledger.failed and "needs privileged, and you have standard" in ledger.output
        listed, ledger = await call_directly(server, tool_call_reply("session_list"), tool_call_reply("server_ledger"))
        assert bos in listed.output and not ledger.failed, "bo itself may do it"


async def test_a_subagent_works_in_its_parents_workspace_and_cannot_reach_its_own(tmp_path: Path) -> None:
    async with open_scripted_server(tmp_path, staff=(ada(), BO)) as server:
        (server.home("ada")).mkdir(parents=True, exist_ok=True)
        (server.home("bo")).mkdir(parents=True, exist_ok=True)
        (server.home("ada") / "plan.md").write_text("ada's plan")
        (server.home("bo") / "notes.md").write_text("bo's notes")
        secret = str(server.home("bo") / "notes.md")
        calls_ = (
            tool_call_reply("read", path="plan.md"),
            tool_call_reply("read", path=secret),
            tool_call_reply("write", path="x.md", content="found"),
        )
        plan, notes, written = await call_as_subagent(server, *calls_)
        assert "ada's plan" in plan.output
        assert notes.failed and "bo's notes" not in notes.output
        assert not written.failed and (server.home("ada") / "x.md").read_text() == "found"
        assert not (server.home("bo") / "x.md").exists()
        [notes] = await call_directly(server, tool_call_reply("read", path="notes.md"))
        assert "bo's notes" in notes.output, "bo itself may do it"


async def test_a_subagent_that_gets_a_later_message_keeps_its_restrictions(tmp_path: Path) -> None:
    async with open_scripted_server(tmp_path, staff=(ada(tools=ToolRules(deny=("append_line",))), BO)) as server:
        set_scripted_rule(
            server.model,
            {
                SUBAGENT_ENDED_TEXT: "NO_REPLY",
                "Send bo.": [spawn_call("stand by", agentId="bo"), "out"],
                "stand by": "Standing by.",
                "Now do it.": [APPEND_CALL, "done"],
            },
        )
        session = await server.turn("Send bo.")
        [made] = await server.server.store.read(lambda conn: delegations.list_of_session(conn, session, limit=1))
        await server.ask("subagent.send", id=made.id, text="Now do it.")
        await server.rest()
        [result] = await server.results(made.target_session or "")
        assert result.failed and "agents.ada.tools.deny" in result.output
        assert server.lines == []


# --- run principal ---

GUEST_RULES = '[tools.by_sender."person:guest"]\ndeny = ["append_line"]\n'


async def add_guest(server: ScriptedServer) -> None:
    await server.server.store.write(
        lambda conn: people.add(conn, Person(name="guest", role=Role.GUEST), at_ms=1), point="test"
    )


@pytest.mark.parametrize(
    "hand_on",
    [
        tool_call_reply("agents_message", agentId="bo", content="do it"),
        tool_call_reply("agents_message", agentId="bo", content="do it", mode="async"),
        spawn_call("do it", agentId="bo"),
        spawn_call("do it"),
    ],
    ids=["asked", "asked asynchronously", "subagent of another agent", "subagent of itself"],
)
async def test_a_guests_request_gains_no_rights_through_a_delegation_or_subagent(
    tmp_path: Path, hand_on: ScriptedReply
) -> None:
    async with open_scripted_server(tmp_path, staff=(ada(), BO), config=GUEST_RULES) as server:
        await add_guest(server)
        parts = {
            SUBAGENT_ENDED_TEXT: "NO_REPLY",
            "Hand it on.": [hand_on, "out"],
            "do it": [APPEND_CALL, "done"],
            "done": "NO_REPLY",
        }
        set_scripted_rule(server.model, parts)
        session = await server.turn("Hand it on.", sender="person:guest")
        [result] = await child_results(server, session)
        assert result.failed and "tools.by_sender.person:guest.deny" in result.output
        assert server.lines == []
        session = await server.turn("Hand it on.", sender="person:owner")
        assert server.lines == ["a line"], "allowed on behalf of the owner"


async def test_a_guests_request_gains_no_rights_in_the_run_that_reads_the_answer(tmp_path: Path) -> None:
    async with open_scripted_server(tmp_path, staff=(ada(), BO), config=GUEST_RULES) as server:
        await add_guest(server)
        ask = tool_call_reply("agents_message", agentId="bo", content="what now", mode="async")
        set_scripted_rule(
            server.model,
            {"Ask bo.": [ask, "asked"], "what now": "Write a line.", "Write a line.": [APPEND_CALL, "done"]},
        )
        session = await server.turn("Ask bo.", sender="person:guest")
        result = (await server.results(session))[-1]
        assert result.tool == "append_line" and result.failed and "person:guest" in result.output
        assert server.lines == []


async def test_an_agent_asked_on_the_owners_behalf_gains_no_rights_from_rules_for_the_owner(tmp_path: Path) -> None:
    config = '[tools.by_sender."person:owner"]\nalso_allow = ["session_list"]\n'
    async with open_scripted_server(tmp_path, staff=(ada(), BO), config=config) as server:
        [result] = await call_directly(server, tool_call_reply("session_list"))
        assert not result.failed, "a schedule made on behalf of the owner is visible to the owner"
        ask = tool_call_reply("agents_message", agentId="bo", content="list them")
        set_scripted_rule(
            server.model, {"Ask bo.": [ask, "asked"], "list them": [tool_call_reply("session_list"), "done"]}
        )
        session = await server.turn("Ask bo.")
        [result] = await child_results(server, session)
        assert result.failed and "only available to agents whose rules name it" in result.output


# --- money ---


async def read_spent_by_run(server: ScriptedServer, root: str) -> dict[str, int]:
    """The amounts that each run of a tree has spent and reserved."""

    def read(conn: sa.Connection) -> dict[str, int]:
        money = sa.select(
            t.model_calls.c.run, sa.func.sum(t.model_calls.c.settled_microusd + t.model_calls.c.held_microusd)
        )
        found: dict[str, int] = {run: int(total) for run, total in conn.execute(money.group_by(t.model_calls.c.run))}
        return {run: total for run, total in found.items() if (each := runs.get(conn, run)) and each.root_run == root}

    return await server.server.store.scan(read)


@pytest.mark.parametrize("children", [1, 6])
async def test_subagents_together_spend_no_more_than_the_remaining_budget_of_their_parent(
    tmp_path: Path, children: int
) -> None:
    """A call costs a thousandth. The parent may spend five of them, and has spent one when it starts its subagents."""
    staff = (ada(cost_microusd_max=5_000), BO)
    async with open_scripted_server(tmp_path, staff=staff) as server:
        server.model.price_microusd = 1_000
        out = ScriptedReply(calls=tuple(("sessions_spawn", {"task": f"dear task {n}"}) for n in range(children)))
        again = [tool_call_reply("append_line", text=f"line {n}") for n in range(20)]
        set_scripted_rule(
            server.model, {SUBAGENT_ENDED_TEXT: "NO_REPLY", "Spend.": [out, "out"], "dear task": [*again, "done"]}
        )
        session = await server.turn("Spend.")
        made = await server.server.store.read(lambda conn: delegations.list_of_session(conn, session, limit=10))
        assert len(made) == children and not any(each.state.is_open for each in made)
        by_run = await read_spent_by_run(server, made[0].run)
        theirs = {each.worker_run_id for each in made}
        assert sum(by_run.get(run, 0) for run in theirs) <= 4_000, by_run
        assert sum(by_run.get(run, 0) for run in theirs) >= 2_000, "the subagents did spend"
        told = [mail.text for mail in await server.mail() if mail.text.startswith("The subagent")]
        assert len(told) == children and all("budget of this run and the runs" in text for text in told), told


async def test_subagents_of_a_parent_without_a_budget_are_not_stopped_by_their_costs(tmp_path: Path) -> None:
    async with open_scripted_server(tmp_path, staff=(ada(), BO)) as server:
        server.model.price_microusd = 1_000
        again = [tool_call_reply("append_line", text=f"line {n}") for n in range(6)]
        set_scripted_rule(
            server.model,
            {
                SUBAGENT_ENDED_TEXT: "NO_REPLY",
                "Spend.": [spawn_call("dear task"), "out"],
                "dear task": [*again, "done"],
            },
        )
        await server.turn("Spend.")
        assert len(server.lines) == 6


# --- visibility ---


async def test_people_see_only_subagents_of_sessions_they_can_see(tmp_path: Path) -> None:
    async with open_scripted_server(tmp_path, staff=(ada(), BO)) as server:
        await add_guest(server)
        set_scripted_rule(
            server.model,
            {SUBAGENT_ENDED_TEXT: "NO_REPLY", "Go.": [spawn_call("count", label="counting"), "out"], "count": "Three."},
        )
        await server.turn("Go.", sender="person:guest")
        mine, other = (
            Principal(address=address.person_address(name), level=PermissionLevel.RESTRICTED, trust=Trust.PERSON)
            for name in ("guest", "other")
        )
        [seen] = (await server.ask("subagent.list", who=mine))["subagents"]
        assert seen["label"] == "counting" and seen["outcome"] == "ok"
        assert (await server.ask("subagent.list", who=other))["subagents"] == []
        shown = await server.ask("subagent.show", who=mine, id=seen["id"])
        assert shown["task"] == "count" and "Three." in shown["result_text"]
        for operation in ("subagent.show", "subagent.stop", "subagent.log"):
            with pytest.raises(Exception, match="no subagent"):
                await server.ask(operation, who=other, id=seen["id"])
        log = await server.ask("subagent.log", who=mine, id=seen["session"])
        assert "Three." in json.dumps(log["records"])


async def test_policy_explain_for_a_subagent_session_includes_the_parents_rules(tmp_path: Path) -> None:
    async with open_scripted_server(tmp_path, staff=(ada(tools=ToolRules(deny=("append_line",))), BO)) as server:
        set_scripted_rule(
            server.model,
            {SUBAGENT_ENDED_TEXT: "NO_REPLY", "Go.": [spawn_call("count", agentId="bo"), "out"], "count": "Three."},
        )
        session = await server.turn("Go.")
        [made] = await server.server.store.read(lambda conn: delegations.list_of_session(conn, session, limit=1))
        explained = await server.ask("policy.explain", agent="bo", tool="append_line", session=made.target_session)
        assert explained["decision"] == "deny" and "agents.ada.tools.deny" in json.dumps(explained)
        explained = await server.ask("policy.explain", agent="bo", tool="append_line")
        assert explained["decision"] == "allow"


async def test_a_subagent_that_runs_as_another_agent_gets_that_agents_instructions(tmp_path: Path) -> None:
    bo = Agent(name="bo", model="scripted", instructions="You are bo.", context_files=("rules.md",))
    async with open_scripted_server(tmp_path, staff=(ada(instructions="You are ada."), bo)) as server:
        for name in ("ada", "bo"):
            server.home(name).mkdir(parents=True, exist_ok=True)
            (server.home(name) / "AGENTS.md").write_text(f"As {name} does it.")
        (server.home("bo") / "rules.md").write_text("Count twice.")
        set_scripted_rule(
            server.model,
            {SUBAGENT_ENDED_TEXT: "NO_REPLY", "Go.": [spawn_call("count", agentId="bo"), "out"], "count": "Three."},
        )
        session = await server.turn("Go.")
        [made] = await server.server.store.read(lambda conn: delegations.list_of_session(conn, session, limit=1))
        [told] = [prompt.instructions for prompt in server.model.prompts if prompt.session == made.target_session]
        assert "You are bo." in told and "As bo does it." in told
        assert "ada does it" not in told and "You are ada." not in told
        assert str(server.home("ada")) in told, "the workspace is in the prompt"
