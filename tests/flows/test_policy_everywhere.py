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

from retinue.config.tools import Lists, ToolSettings
from retinue.domain.agent import Agent, ToolLists, ToolRules
from retinue.domain.decision import Decision, Verdict
from retinue.domain.errors import NotAllowed, NotFound
from retinue.domain.permission import WEB, Permission
from retinue.domain.session import OriginKind
from retinue.domain.structs import replace
from retinue.domain.tool import Effect, ToolSpec
from retinue.operations.mcp.mcp_endpoint import Visitor
from retinue.policy.tools.tools import Chain, Circumstances, Door, layers_for
from retinue.store.agents import agents
from retinue.testing.scripted_model import calls, says
from retinue.text.glob_match import matches_glob
from retinue.tools.base import Scene, schema_of

RANK = (Verdict.ALLOW, Verdict.ASK, Verdict.DENY)


class Arguments(msgspec.Struct, forbid_unknown_fields=True):
    what: str = ""


@dataclass(slots=True)
class StandIn:
    """A tool that only says it was used. It may reach for the web, and stand behind walls."""

    spec: ToolSpec
    reaches: bool = False
    wall: Verdict = Verdict.ALLOW
    done: int = 0
    arguments: type[msgspec.Struct] = Arguments

    def needs(self, arguments: Arguments, scene: Scene) -> Sequence[Permission]:
        return (WEB,) if self.reaches else ()

    async def ready(self) -> None:
        return

    def sandbox(self, arguments: Arguments, scene: Scene) -> Decision:
        return Decision(self.wall, "the walls say so", "sandbox")

    async def perform(self, arguments: Arguments, scene: Scene) -> str:
        self.done += 1
        return "used"


def stand_in(name: str, *capabilities: str, reaches: bool = False, **kw: Any) -> StandIn:
    wall = kw.pop("wall", Verdict.ALLOW)
    spec = ToolSpec(
        name=name,
        description=name,
        parameters=schema_of(Arguments),
        effects=frozenset({Effect.WRITES}),
        capabilities=frozenset(capabilities),
        **kw,
    )
    return StandIn(spec, reaches=reaches, wall=wall)


def tools() -> list[StandIn]:
    return [
        stand_in("read", "files.read"),
        stand_in("write", "files.write"),
        stand_in("exec", "terminal.exec", wall=Verdict.ASK),
        stand_in("process", "terminal.exec", wall=Verdict.DENY),
        stand_in("web_fetch", "web.read", reaches=True),
        stand_in("session_status"),
        stand_in("system_time"),
        stand_in("weather_now", source="plugin:weather"),
        stand_in("named_only", by_name=True),
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
    by_session=st.dictionaries(st.sampled_from(["terminal", "external", "subagent"]), lists(Lists), max_size=1),
    by_sender=st.dictionaries(st.sampled_from(["person:owner", "person:*"]), lists(Lists), max_size=1),
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
        await self.house.house.store.write(lambda conn: agents.put(conn, agent, source="test", at_ms=1), point="test")
        for grant in self.grants:
            await self.house.ask("grant.revoke", id=grant)
        self.grants = [
            (await self.house.ask("grant.add", agent="ada", permission=each, because="test"))["id"]
            for each in case.granted
        ]
        return agent

    def expected(self, case: Case, agent: Agent, where: Circumstances) -> Verdict:
        """From the rules alone, and what each of the others would say."""
        tool = self.tools[case.tool]
        assert self.house.house.desk.toolbox is not None
        chain = Chain(layers_for(case.house, agent, where), self.house.house.desk.toolbox.specs)
        verdict = chain.decide(tool.spec).verdict
        if verdict is Verdict.DENY:
            return verdict
        # What is granted for good counts where a person has opened the session.
        held = case.granted if where.origin.foreground else ()
        if verdict is Verdict.ASK and any(
            matches_glob(each.partition(":")[2], case.tool) for each in held if ":" in each
        ):
            verdict = Verdict.ALLOW
        reach = Verdict.ASK if tool.reaches and "web" not in held else Verdict.ALLOW
        return max(verdict, reach, tool.wall, key=RANK.index)

    # What really comes of it, by each door

    async def by_model(self, case: Case) -> Verdict:
        tool = self.tools[case.tool]
        before = tool.done
        self.house.model.rule = lambda prompt: says("ok")
        session = await self.house.turn("Go.", calls(case.tool, what="x"), origin="person:owner")
        asked = await self.house.asked()
        if asked:
            assert tool.done == before
            await self.house.answer(asked[0], allow=False)
            assert tool.done == before
            return Verdict.ASK
        (*_, result) = await self.house.results(session)
        assert result.tool == case.tool
        if tool.done == before + 1:
            assert not result.failed
            return Verdict.ALLOW
        assert tool.done == before and result.failed and result.output.startswith("Not allowed: ")
        return Verdict.DENY

    async def by_invoke(self, case: Case) -> Verdict:
        return await self._directly(
            case, self.house.ask("tool.invoke", agent="ada", tool=case.tool, args={"what": "x"})
        )

    async def by_mcp(self, case: Case) -> Verdict:
        visitor = Visitor(desk=self.house.house.desk, caller=OWNER, agent="ada")
        verdict = await self._directly(case, visitor.call(case.tool, {"what": "x"}))
        assert (case.tool in {each.name for each in await visitor.offered()}) is await self._may_ask(case, Door.MCP)
        return verdict

    async def _may_ask(self, case: Case, door: Door) -> bool:
        """What the rules alone do not deny is offered, whatever the walls will say of one call."""
        agent = replace(ADA, tools=case.own)
        where = Circumstances(origin=OriginKind.EXTERNAL, sender=OWNER.address, door=door)
        assert self.house.house.desk.toolbox is not None
        chain = Chain(layers_for(case.house, agent, where), self.house.house.desk.toolbox.specs)
        return not chain.decide(self.tools[case.tool].spec).denied

    async def _directly(self, case: Case, call: Any) -> Verdict:
        tool = self.tools[case.tool]
        before = tool.done
        try:
            await call
        except NotFound as error:
            assert error.code == "tool.not-found" and tool.done == before
            return Verdict.DENY
        except NotAllowed as error:
            assert error.code == "tool.asks" and tool.done == before
            return Verdict.ASK
        assert tool.done == before + 1
        return Verdict.ALLOW

    async def explained(self, case: Case, door: Door) -> Verdict:
        found = await self.house.ask("policy.explain", agent="ada", tool=case.tool, args={"what": "x"}, door=door.value)
        verdict = Verdict(found["verdict"])
        if verdict is not Verdict.ALLOW:
            assert found["because"] and found["key"], "whoever is refused reads which setting to change"
            assert any(finding["verdict"] == verdict for finding in found["findings"])
        return verdict


async def check(doors: Doors, case: Case) -> None:
    agent = await doors.arrange(case)
    for door, really in ((Door.MODEL, doors.by_model), (Door.INVOKE, doors.by_invoke), (Door.MCP, doors.by_mcp)):
        origin = OriginKind.TERMINAL if door is Door.MODEL else OriginKind.EXTERNAL
        where = Circumstances(origin=origin, sender=OWNER.address, door=door, model="scripted" * (door is Door.MODEL))
        expected = doors.expected(case, agent, where)
        assert await doors.explained(case, door) is expected, door
        assert await really(case) is expected, door
    offered = {spec.name for spec in doors.house.model.prompts[-1].tools}
    where = Circumstances(origin=OriginKind.TERMINAL, sender=OWNER.address, model="scripted")
    assert doors.house.house.desk.toolbox is not None
    chain = Chain(layers_for(case.house, agent, where), doors.house.house.desk.toolbox.specs)
    assert offered & set(NAMES) == {name for name, tool in doors.tools.items() if not chain.decide(tool.spec).denied}


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
                Case(house=ToolSettings(by_session={"terminal": Lists(deny=("read",))}), own=ToolRules(), tool="read")
            )
            @example(
                Case(house=ToolSettings(by_session={"external": Lists(ask=("read",))}), own=ToolRules(), tool="read")
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
