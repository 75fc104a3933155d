"""Every door gives the same answer about a tool, and `policy explain` says beforehand which.

The house is real, and so is each door: a model that calls, `tool.invoke`, the MCP server, and the list of what is
offered. What should come of it is worked out beside the toolbox, from the rules alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest
from flows import fake_provider as provider
from flows.tools_instance import ADA, OWNER, HandsHouse, hands_house
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from retinue.config.tools import ToolListSettings, ToolSettings
from retinue.domain.agent import Agent, ToolLists, ToolRules
from retinue.domain.decision import Decision, DecisionKind
from retinue.domain.errors import NotAllowed, NotFound
from retinue.domain.permission import WEB_PERMISSION, Permission
from retinue.domain.session import OriginKind
from retinue.domain.structs import replace
from retinue.domain.tool import ToolEffect, ToolSpec
from retinue.operations.mcp.mcp_endpoint import McpEndpoint
from retinue.policy.tools.tools import CallSource, ToolPolicyChain, ToolPolicyContext, build_layers
from retinue.store.agents import agents
from retinue.testing.scripted_model import text_reply, tool_call_reply
from retinue.text.glob_match import matches_glob
from retinue.tools.base import ToolContext, schema_of

RANK = (DecisionKind.ALLOW, DecisionKind.ASK, DecisionKind.DENY)


class Arguments(msgspec.Struct, forbid_unknown_fields=True):
    what: str = ""


@dataclass(slots=True)
class StandIn:
    """A tool that only says it was used. It may reach for the web, and stand behind walls."""

    spec: ToolSpec
    reaches: bool = False
    wall: DecisionKind = DecisionKind.ALLOW
    done: int = 0
    arguments: type[msgspec.Struct] = Arguments

    def required_permissions(self, arguments: Arguments, context: ToolContext) -> Sequence[Permission]:
        return (WEB_PERMISSION,) if self.reaches else ()

    async def prepare_sandbox(self) -> None:
        return

    def decide_sandbox(self, arguments: Arguments, context: ToolContext) -> Decision:
        return Decision(self.wall, "the walls say so", "sandbox")

    async def perform(self, arguments: Arguments, context: ToolContext) -> str:
        self.done += 1
        return "used"


def stand_in(name: str, *capabilities: str, reaches: bool = False, **kw: Any) -> StandIn:
    wall = kw.pop("wall", DecisionKind.ALLOW)
    spec = ToolSpec(
        name=name,
        description=name,
        parameters=schema_of(Arguments),
        effects=frozenset({ToolEffect.WRITES}),
        capabilities=frozenset(capabilities),
        **kw,
    )
    return StandIn(spec, reaches=reaches, wall=wall)


def tools() -> list[StandIn]:
    return [
        stand_in("read", "files.read"),
        stand_in("write", "files.write"),
        stand_in("exec", "terminal.exec", wall=DecisionKind.ASK),
        stand_in("process", "terminal.exec", wall=DecisionKind.DENY),
        stand_in("web_fetch", "web.read", reaches=True),
        stand_in("session_status"),
        stand_in("system_time"),
        stand_in("weather_now", source="plugin:weather"),
        stand_in("named_only", must_be_named=True),
    ]


NAMES = [tool.spec.name for tool in tools()]
globs = st.sampled_from([*NAMES, "*", "group:web", "group:fs", "weather", "web_*", "*e*", "system_*"])
some = st.lists(globs, max_size=3).map(tuple)
mostly = st.one_of(st.just(("*",)), st.just(("*",)), some)
seldom = st.one_of(st.just(()), st.just(()), some)
capabilities = st.lists(st.sampled_from(["*", "files.*", "terminal.exec", "web.read"]), max_size=2).map(tuple)
profiles = st.sampled_from([None, None, None, "coding", "minimal", "full"])


def lists(kind: Any, **more: Any) -> Any:
    return st.builds(
        kind,
        profile=profiles,
        allow=mostly,
        also_allow=seldom,
        ask=seldom,
        deny=seldom,
        capabilities_allow=st.one_of(st.just(("*",)), capabilities),
        capabilities_deny=st.one_of(st.just(()), capabilities),
        **more,
    )


rules_of_house = lists(
    ToolSettings,
    invoke_allow=seldom,
    by_session=st.dictionaries(
        st.sampled_from(["terminal", "external", "subagent"]), lists(ToolListSettings), max_size=1
    ),
    by_sender=st.dictionaries(st.sampled_from(["person:owner", "person:*"]), lists(ToolListSettings), max_size=1),
)
rules_of_agent = lists(ToolRules)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    house: ToolSettings
    own: ToolRules
    tool: str
    granted: tuple[str, ...] = ()


cases = st.builds(
    Case,
    house=rules_of_house,
    own=rules_of_agent,
    tool=st.sampled_from(NAMES),
    granted=st.lists(st.sampled_from(["web", *(f"tool:{name}" for name in NAMES)]), max_size=2).map(tuple),
)


@dataclass
class Doors:
    house: HandsHouse
    tools: dict[str, StandIn]
    grants: list[str] = field(default_factory=list[str])

    async def arrange(self, case: Case) -> Agent:
        agent = replace(ADA, tools=case.own)
        self.house.rules(replace(self.house.settings, tools=case.house))
        await self.house.house.store.write(
            lambda conn: agents.upsert(conn, agent, source="test", at_ms=1), point="test"
        )
        for grant in self.grants:
            await self.house.ask("grant.revoke", id=grant)
        self.grants = [
            (await self.house.ask("grant.add", agent="ada", permission=each, because="test"))["id"]
            for each in case.granted
        ]
        return agent

    def expected(self, case: Case, agent: Agent, where: ToolPolicyContext) -> DecisionKind:
        """From the rules alone, and what each of the others would say."""
        tool = self.tools[case.tool]
        assert self.house.house.services.toolbox is not None
        chain = ToolPolicyChain(build_layers(case.house, agent, where), self.house.house.services.toolbox.specs)
        verdict = chain.decide(tool.spec).kind
        if verdict is DecisionKind.DENY:
            return verdict
        # What is granted for good counts where a person has opened the session.
        held = case.granted if where.origin.is_foreground else ()
        if verdict is DecisionKind.ASK and any(
            matches_glob(each.partition(":")[2], case.tool) for each in held if ":" in each
        ):
            verdict = DecisionKind.ALLOW
        reach = DecisionKind.ASK if tool.reaches and "web" not in held else DecisionKind.ALLOW
        return max(verdict, reach, tool.wall, key=RANK.index)

    # What really comes of it, by each door

    async def by_model(self, case: Case) -> DecisionKind:
        tool = self.tools[case.tool]
        before = tool.done
        self.house.model.rule = lambda prompt: text_reply("ok")
        session = await self.house.turn("Go.", tool_call_reply(case.tool, what="x"), origin="person:owner")
        asked = await self.house.asked()
        if asked:
            assert tool.done == before
            await self.house.answer(asked[0], allow=False)
            assert tool.done == before
            return DecisionKind.ASK
        (*_, result) = await self.house.results(session)
        assert result.tool == case.tool
        if tool.done == before + 1:
            assert not result.failed
            return DecisionKind.ALLOW
        assert tool.done == before and result.failed and result.output.startswith("Not allowed: ")
        return DecisionKind.DENY

    async def by_invoke(self, case: Case) -> DecisionKind:
        return await self._directly(
            case, self.house.ask("tool.invoke", agent="ada", tool=case.tool, args={"what": "x"})
        )

    async def by_mcp(self, case: Case) -> DecisionKind:
        visitor = McpEndpoint(services=self.house.house.services, caller=OWNER, agent="ada")
        verdict = await self._directly(case, visitor.call_tool(case.tool, {"what": "x"}))
        assert (case.tool in {each.name for each in await visitor.list_tools()}) is await self._may_ask(
            case, CallSource.MCP
        )
        return verdict

    async def _may_ask(self, case: Case, door: CallSource) -> bool:
        """What the rules alone do not deny is offered, whatever the walls will say of one call."""
        agent = replace(ADA, tools=case.own)
        where = ToolPolicyContext(origin=OriginKind.EXTERNAL, sender=OWNER.address, call_source=door)
        assert self.house.house.services.toolbox is not None
        chain = ToolPolicyChain(build_layers(case.house, agent, where), self.house.house.services.toolbox.specs)
        return not chain.decide(self.tools[case.tool].spec).is_denied

    async def _directly(self, case: Case, call: Any) -> DecisionKind:
        tool = self.tools[case.tool]
        before = tool.done
        try:
            await call
        except NotFound as error:
            assert error.code == "tool.not_found" and tool.done == before
            return DecisionKind.DENY
        except NotAllowed as error:
            assert error.code == "tool.needs_approval" and tool.done == before
            return DecisionKind.ASK
        assert tool.done == before + 1
        return DecisionKind.ALLOW

    async def explained(self, case: Case, door: CallSource) -> DecisionKind:
        found = await self.house.ask("policy.explain", agent="ada", tool=case.tool, args={"what": "x"}, door=door.value)
        verdict = DecisionKind(found["verdict"])
        if verdict is not DecisionKind.ALLOW:
            assert found["because"] and found["key"], "whoever is refused reads which setting to change"
            assert any(finding["verdict"] == verdict for finding in found["findings"])
        return verdict


async def check(doors: Doors, case: Case) -> None:
    agent = await doors.arrange(case)
    for door, really in (
        (CallSource.MODEL, doors.by_model),
        (CallSource.INVOKE, doors.by_invoke),
        (CallSource.MCP, doors.by_mcp),
    ):
        origin = OriginKind.TERMINAL if door is CallSource.MODEL else OriginKind.EXTERNAL
        where = ToolPolicyContext(
            origin=origin, sender=OWNER.address, call_source=door, model="scripted" * (door is CallSource.MODEL)
        )
        expected = doors.expected(case, agent, where)
        assert await doors.explained(case, door) is expected, door
        assert await really(case) is expected, door
    offered = {spec.name for spec in doors.house.model.prompts[-1].tools}
    where = ToolPolicyContext(origin=OriginKind.TERMINAL, sender=OWNER.address, model="scripted")
    assert doors.house.house.services.toolbox is not None
    chain = ToolPolicyChain(build_layers(case.house, agent, where), doors.house.house.services.toolbox.specs)
    assert offered & set(NAMES) == {name for name, tool in doors.tools.items() if not chain.decide(tool.spec).is_denied}


@pytest.mark.timeout(300)  # a run and its question for each example, however busy the machine is
@pytest.mark.spec("A37", "C57", "C93")
def test_no_door_answers_other_than_the_rules_and_explain_says_so_beforehand(tmp_path: Path) -> None:
    stood = tools()
    opened = hands_house(tmp_path / "home", tools=stood, staff=(ADA,))
    with asyncio.Runner() as runner:
        doors = Doors(runner.run(opened.__aenter__()), {tool.spec.name: tool for tool in stood})
        try:

            @settings(max_examples=25, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow])
            @given(cases)
            @example(
                Case(
                    house=ToolSettings(by_session={"terminal": ToolListSettings(deny=("read",))}),
                    own=ToolRules(),
                    tool="read",
                )
            )
            @example(
                Case(
                    house=ToolSettings(by_session={"external": ToolListSettings(ask=("read",))}),
                    own=ToolRules(),
                    tool="read",
                )
            )
            def every(case: Case) -> None:
                runner.run(check(doors, case))

            every()
        finally:
            runner.run(opened.__aexit__(None, None, None))
    assert sum(tool.done for tool in stood) > 0, "some were used, or nothing was shown"


@pytest.mark.parametrize("key", ["mock/m1", "mock"])
@pytest.mark.spec("A37")
async def test_what_is_denied_for_a_model_is_neither_offered_nor_done(tmp_path: Path, key: str) -> None:
    """It was offered by the name that its seller gives it, and judged by its whole name: no rule ever fitted that."""
    rules = ToolRules(by_provider={key: ToolLists(deny=("read",)), "mock/m2": ToolLists(deny=("write",))})
    staff = (replace(ADA, model="mock/m1", tools=rules),)
    async with provider.provider() as server:
        server.will(provider.calls(("read", {}), ("write", {})), provider.says("ok"))
        key_file = tmp_path / "key"
        key_file.write_text(provider.KEY)
        config = f'[providers.mock]\nurl = "{server.url}"\nformat = "openai-chat"\nkey = {{ file = "{key_file}" }}\n'
        key_file.chmod(0o600)
        async with hands_house(tmp_path / "home", tools=tools(), staff=staff, config=config) as house:
            explained = await house.ask("policy.explain", agent="ada", tool="read")
            assert explained["verdict"] == "deny" and f"by_provider.{key}" in explained["key"]
            session = await house.turn("Go.")
            denied, done = await house.results(session)
            assert denied.failed and f"by_provider.{key}" in denied.output
            assert not done.failed
        offered = {tool["function"]["name"] for tool in server.asked[0].body["tools"]}
        assert "read" not in offered and "write" in offered
