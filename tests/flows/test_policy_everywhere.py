"""Every call source gets the same decision about a tool, and `policy explain` predicts it.

The server and the call sources are real: a model, `tool.invoke`, the MCP server and the list of offered tools. The
expected decision is computed from the rules alone, without the toolbox.
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
from flows.tools_instance import ADA, OWNER, ScriptedServer, open_scripted_server
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
from retinue.policy.tools.tool_policy import CallSource, ToolPolicyChain, ToolPolicyContext, build_layers
from retinue.store.agents import agents
from retinue.testing.scripted_model import text_reply, tool_call_reply
from retinue.text.glob_match import matches_glob
from retinue.tools.base import ToolContext, schema_of

STRICTNESS = (DecisionKind.ALLOW, DecisionKind.ASK, DecisionKind.DENY)


class Arguments(msgspec.Struct, forbid_unknown_fields=True):
    what: str = ""


@dataclass(slots=True)
class FakeTool:
    """Returns that it was used. `needs_web`: it requires the permission `web`; `wall`: what the sandbox decides."""

    spec: ToolSpec
    needs_web: bool = False
    wall: DecisionKind = DecisionKind.ALLOW
    done: int = 0
    arguments: type[msgspec.Struct] = Arguments

    def required_permissions(self, arguments: Arguments, context: ToolContext) -> Sequence[Permission]:
        return (WEB_PERMISSION,) if self.needs_web else ()

    async def prepare_sandbox(self) -> None:
        return

    def decide_sandbox(self, arguments: Arguments, context: ToolContext) -> Decision:
        return Decision(self.wall, "the sandbox decides", "sandbox")

    async def perform(self, arguments: Arguments, context: ToolContext) -> str:
        self.done += 1
        return "used"


def create_fake_tool(name: str, *capabilities: str, needs_web: bool = False, **kw: Any) -> FakeTool:
    wall = kw.pop("wall", DecisionKind.ALLOW)
    spec = ToolSpec(
        name=name,
        description=name,
        parameters=schema_of(Arguments),
        effects=frozenset({ToolEffect.WRITES}),
        capabilities=frozenset(capabilities),
        **kw,
    )
    return FakeTool(spec, needs_web=needs_web, wall=wall)


def tools() -> list[FakeTool]:
    return [
        create_fake_tool("read", "files.read"),
        create_fake_tool("write", "files.write"),
        create_fake_tool("exec", "terminal.exec", wall=DecisionKind.ASK),
        create_fake_tool("process", "terminal.exec", wall=DecisionKind.DENY),
        create_fake_tool("web_fetch", "web.read", needs_web=True),
        create_fake_tool("session_status"),
        create_fake_tool("system_time"),
        create_fake_tool("weather_now", source="plugin:weather"),
        create_fake_tool("named_only", must_be_named=True),
    ]


NAMES = [tool.spec.name for tool in tools()]
globs = st.sampled_from([*NAMES, "*", "group:web", "group:fs", "weather", "web_*", "*e*", "system_*"])
a_few_globs = st.lists(globs, max_size=3).map(tuple)
mostly_all = st.one_of(st.just(("*",)), st.just(("*",)), a_few_globs)
rarely_any = st.one_of(st.just(()), st.just(()), a_few_globs)
capabilities = st.lists(st.sampled_from(["*", "files.*", "terminal.exec", "web.read"]), max_size=2).map(tuple)
profiles = st.sampled_from([None, None, None, "coding", "minimal", "full"])


def lists(kind: Any, **more: Any) -> Any:
    return st.builds(
        kind,
        profile=profiles,
        allow=mostly_all,
        also_allow=rarely_any,
        ask=rarely_any,
        deny=rarely_any,
        capabilities_allow=st.one_of(st.just(("*",)), capabilities),
        capabilities_deny=st.one_of(st.just(()), capabilities),
        **more,
    )


server_rules = lists(
    ToolSettings,
    invoke_allow=rarely_any,
    by_session=st.dictionaries(
        st.sampled_from(["terminal", "external", "subagent"]), lists(ToolListSettings), max_size=1
    ),
    by_sender=st.dictionaries(st.sampled_from(["person:owner", "person:*"]), lists(ToolListSettings), max_size=1),
)
agent_rules = lists(ToolRules)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    server: ToolSettings
    own: ToolRules
    tool: str
    granted: tuple[str, ...] = ()


cases = st.builds(
    Case,
    server=server_rules,
    own=agent_rules,
    tool=st.sampled_from(NAMES),
    granted=st.lists(st.sampled_from(["web", *(f"tool:{name}" for name in NAMES)]), max_size=2).map(tuple),
)


@dataclass
class CallSources:
    server: ScriptedServer
    tools: dict[str, FakeTool]
    grants: list[str] = field(default_factory=list[str])

    async def arrange(self, case: Case) -> Agent:
        agent = replace(ADA, tools=case.own)
        self.server.rules(replace(self.server.settings, tools=case.server))
        await self.server.server.store.write(
            lambda conn: agents.upsert(conn, agent, source="test", at_ms=1), point="test"
        )
        for grant in self.grants:
            await self.server.ask("grant.revoke", id=grant)
        self.grants = [
            (await self.server.ask("grant.add", agent="ada", permission=each, because="test"))["id"]
            for each in case.granted
        ]
        return agent

    def expected(self, case: Case, agent: Agent, where: ToolPolicyContext) -> DecisionKind:
        """The decision computed from the rules, the grants, the required permission and the sandbox."""
        tool = self.tools[case.tool]
        assert self.server.server.services.toolbox is not None
        chain = ToolPolicyChain(build_layers(case.server, agent, where), self.server.server.services.toolbox.specs)
        verdict = chain.decide(tool.spec).kind
        if verdict is DecisionKind.DENY:
            return verdict
        # Permanent grants count if a person has opened the session.
        held = case.granted if where.origin.is_foreground else ()
        if verdict is DecisionKind.ASK and any(
            matches_glob(each.partition(":")[2], case.tool) for each in held if ":" in each
        ):
            verdict = DecisionKind.ALLOW
        reach = DecisionKind.ASK if tool.needs_web and "web" not in held else DecisionKind.ALLOW
        return max(verdict, reach, tool.wall, key=STRICTNESS.index)

    # --- the decision for each call source ---

    async def by_model(self, case: Case) -> DecisionKind:
        tool = self.tools[case.tool]
        before = tool.done
        self.server.model.rule = lambda prompt: text_reply("ok")
        session = await self.server.turn("Go.", tool_call_reply(case.tool, what="x"), origin="person:owner")
        asked = await self.server.asked()
        if asked:
            assert tool.done == before
            await self.server.answer(asked[0], allow=False)
            assert tool.done == before
            return DecisionKind.ASK
        (*_, result) = await self.server.results(session)
        assert result.tool == case.tool
        if tool.done == before + 1:
            assert not result.failed
            return DecisionKind.ALLOW
        assert tool.done == before and result.failed and result.output.startswith("Not allowed: ")
        return DecisionKind.DENY

    async def by_invoke(self, case: Case) -> DecisionKind:
        return await self._call_outside_run(
            case, self.server.ask("tool.invoke", agent="ada", tool=case.tool, args={"what": "x"})
        )

    async def by_mcp(self, case: Case) -> DecisionKind:
        endpoint = McpEndpoint(services=self.server.server.services, caller=OWNER, agent="ada")
        verdict = await self._call_outside_run(case, endpoint.call_tool(case.tool, {"what": "x"}))
        assert (case.tool in {each.name for each in await endpoint.list_tools()}) is await self._is_listed(
            case, CallSource.MCP
        )
        return verdict

    async def _is_listed(self, case: Case, source: CallSource) -> bool:
        """A tool that the rules do not deny is offered, whatever the sandbox decides about one call."""
        agent = replace(ADA, tools=case.own)
        where = ToolPolicyContext(origin=OriginKind.EXTERNAL, sender=OWNER.address, call_source=source)
        assert self.server.server.services.toolbox is not None
        chain = ToolPolicyChain(build_layers(case.server, agent, where), self.server.server.services.toolbox.specs)
        return not chain.decide(self.tools[case.tool].spec).is_denied

    async def _call_outside_run(self, case: Case, call: Any) -> DecisionKind:
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

    async def explained(self, case: Case, source: CallSource) -> DecisionKind:
        found = await self.server.ask(
            "policy.explain", agent="ada", tool=case.tool, args={"what": "x"}, call_source=source.value
        )
        verdict = DecisionKind(found["decision"])
        if verdict is not DecisionKind.ALLOW:
            assert found["because"] and found["key"], "a refusal names the setting to change"
            assert any(finding["decision"] == verdict for finding in found["findings"])
        return verdict


async def check_case(sources: CallSources, case: Case) -> None:
    agent = await sources.arrange(case)
    for source, really in (
        (CallSource.MODEL, sources.by_model),
        (CallSource.INVOKE, sources.by_invoke),
        (CallSource.MCP, sources.by_mcp),
    ):
        origin = OriginKind.TERMINAL if source is CallSource.MODEL else OriginKind.EXTERNAL
        where = ToolPolicyContext(
            origin=origin, sender=OWNER.address, call_source=source, model="scripted" * (source is CallSource.MODEL)
        )
        expected = sources.expected(case, agent, where)
        assert await sources.explained(case, source) is expected, source
        assert await really(case) is expected, source
    offered = {spec.name for spec in sources.server.model.prompts[-1].tools}
    where = ToolPolicyContext(origin=OriginKind.TERMINAL, sender=OWNER.address, model="scripted")
    assert sources.server.server.services.toolbox is not None
    chain = ToolPolicyChain(build_layers(case.server, agent, where), sources.server.server.services.toolbox.specs)
    assert offered & set(NAMES) == {
        name for name, tool in sources.tools.items() if not chain.decide(tool.spec).is_denied
    }


@pytest.mark.timeout(300)  # one run and one approval for each example, also on a busy machine
@pytest.mark.spec("A37", "C57", "C93")
def test_the_policy_decides_the_same_for_every_call_source_and_policy_explain_predicts_it(tmp_path: Path) -> None:
    fake_tools = tools()
    opened = open_scripted_server(tmp_path / "home", tools=fake_tools, staff=(ADA,))
    with asyncio.Runner() as runner:
        sources = CallSources(runner.run(opened.__aenter__()), {tool.spec.name: tool for tool in fake_tools})
        try:

            @settings(max_examples=25, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow])
            @given(cases)
            @example(
                Case(
                    server=ToolSettings(by_session={"terminal": ToolListSettings(deny=("read",))}),
                    own=ToolRules(),
                    tool="read",
                )
            )
            @example(
                Case(
                    server=ToolSettings(by_session={"external": ToolListSettings(ask=("read",))}),
                    own=ToolRules(),
                    tool="read",
                )
            )
            def check_generated_case(case: Case) -> None:
                runner.run(check_case(sources, case))

            check_generated_case()
        finally:
            runner.run(opened.__aexit__(None, None, None))
    assert sum(tool.done for tool in fake_tools) > 0, "at least one tool was used, or the test proves nothing"


@pytest.mark.parametrize("key", ["mock/m1", "mock"])
@pytest.mark.spec("A37")
async def test_a_tool_that_the_policy_denies_for_a_model_is_neither_offered_nor_performed(
    tmp_path: Path, key: str
) -> None:
    """It was offered under the short model name, but judged by the full name, so no rule ever matched."""
    rules = ToolRules(by_provider={key: ToolLists(deny=("read",)), "mock/m2": ToolLists(deny=("write",))})
    staff = (replace(ADA, model="mock/m1", tools=rules),)
    async with provider.provider() as provider_server:
        provider_server.add_replies(provider.calls(("read", {}), ("write", {})), provider.says("ok"))
        key_file = tmp_path / "key"
        key_file.write_text(provider.KEY)
        url = provider_server.url
        config = f'[providers.mock]\nurl = "{url}"\nformat = "openai-chat"\nkey = {{ file = "{key_file}" }}\n'
        key_file.chmod(0o600)
        async with open_scripted_server(tmp_path / "home", tools=tools(), staff=staff, config=config) as server:
            explained = await server.ask("policy.explain", agent="ada", tool="read")
            assert explained["decision"] == "deny" and f"by_provider.{key}" in explained["key"]
            session = await server.turn("Go.")
            denied, done = await server.results(session)
            assert denied.failed and f"by_provider.{key}" in denied.output
            assert not done.failed
        offered = {tool["function"]["name"] for tool in provider_server.asked[0].body["tools"]}
        assert "read" not in offered and "write" in offered
