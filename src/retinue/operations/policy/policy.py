"""Operations that explain and test tool policy, list tools, and manage grants."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any

import msgspec
import sqlalchemy as sa
from msgspec import Struct

from retinue.agents.agent_directory import agent_directory_of
from retinue.config.settings_loader import examine_configuration
from retinue.domain import permission
from retinue.domain.address import Address
from retinue.domain.agent import Agent, PermissionLevel
from retinue.domain.audit import SERVER_CHAIN, grant_given, grant_revoked
from retinue.domain.decision import DecisionKind
from retinue.domain.event import EventKind
from retinue.domain.grant import Grant
from retinue.domain.ids import GrantId, RunId, parse_id_prefix, short_id
from retinue.domain.permission import default_rights
from retinue.domain.person import Requester
from retinue.domain.principal import Principal
from retinue.domain.record import ContextStart, Record, Reply, Summary, model_without_provider
from retinue.domain.session import OriginKind, Session
from retinue.domain.structs import replace
from retinue.domain.times import format_time, to_ms
from retinue.domain.tool import Call, ToolSpec
from retinue.operations.agent.agents import preview_agent_set
from retinue.operations.base import EmptyRequest, Operation, Services
from retinue.operations.policy.errors import GrantNotAllowed, GrantNotFound, ProposedSettingsInvalid
from retinue.operations.tool.errors import ToolNotFound, ToolsUnavailable
from retinue.operations.tool_context import build_tool_context, require_agent, session_owner
from retinue.policy.provenance.provenance_rules import build_policy_with_defaults
from retinue.policy.tools.tool_policy import CallSource, ToolPolicyContext
from retinue.runners.model_context import arrange_records
from retinue.store.agents import agents, audit, grants
from retinue.store.core.transaction import Transaction
from retinue.store.runs import runs
from retinue.store.runs.message_authors import list_envelopes
from retinue.store.runs.run_requesters import get_requesters
from retinue.store.sessions import records, sessions
from retinue.tools.files import resolve_permission
from retinue.tools.toolbox import Toolbox, TurnContext

SESSIONS_PER_BATCH = 1_000
CALLS_REPLAYED_MAX = 10_000
DIFFERENCES_LISTED_MAX = 500


class PolicyExplainRequest(msgspec.Struct, forbid_unknown_fields=True):
    agent: str
    tool: str
    args: Annotated[dict[str, Any], msgspec.Meta(description="arguments of the call")] = {}
    sender: Annotated[
        str, msgspec.Meta(description="address of the person on whose behalf the run acts, such as person:maria")
    ] = ""
    session: Annotated[str, msgspec.Meta(description="id of the session of the call; default: a new session")] = ""
    model: Annotated[str, msgspec.Meta(description="model that makes the call, as PROVIDER/MODEL")] = ""
    origin: Annotated[
        OriginKind, msgspec.Meta(description="kind of origin of the session, if `session` is not given")
    ] = OriginKind.TERMINAL
    call_source: Annotated[CallSource, msgspec.Meta(description="how the call is made")] = CallSource.MODEL
    changes: Annotated[
        dict[str, Any],
        msgspec.Meta(
            description="changes to the agent that apply to this request only, with the fields of `agent set`"
        ),
    ] = {}


class PolicyFindingRow(msgspec.Struct):
    layer: str
    decision: DecisionKind
    because: str
    key: str


class PolicyExplanation(msgspec.Struct):
    """The decision of the policy on one tool call, with the reason.

    `key` is the setting that decided. `findings` has one entry for each layer of rules.
    """

    agent: str
    tool: str
    decision: DecisionKind
    because: str
    key: str
    findings: list[PolicyFindingRow]
    grant_permissions: list[str]
    warnings: list[str]


class PolicyTestRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Test proposed settings against recorded tool calls. By default, the settings are read from the file on disk."""

    text: Annotated[
        str | None, msgspec.Meta(description="text of the settings file to test; default: the file on disk")
    ] = None
    agent: Annotated[str, msgspec.Meta(description="only calls of this agent")] = ""


class PolicyDifference(msgspec.Struct):
    session: str
    run: str
    agent: str
    tool: str
    arguments: dict[str, Any]
    current: DecisionKind
    proposed: DecisionKind
    because: str
    key: str


class PolicyTestResult(msgspec.Struct):
    calls: int
    sessions: int
    differences: list[PolicyDifference]
    omitted_count: int  # number of differences not listed
    incomplete_because: str  # why some calls were not tested; empty if all were


class ToolRow(msgspec.Struct):
    name: str
    description: str
    source: str
    effects: list[str]
    capabilities: list[str]
    repeatable: bool
    decision: DecisionKind | msgspec.UnsetType = msgspec.UNSET
    because: str | msgspec.UnsetType = msgspec.UNSET


class ToolListRequest(msgspec.Struct, forbid_unknown_fields=True):
    agent: Annotated[
        str,
        msgspec.Meta(description="agent whose permission for each tool is shown; default: only list the tools"),
    ] = ""
    changes: Annotated[
        dict[str, Any],
        msgspec.Meta(
            description="changes to the agent that apply to this request only, with the fields of `agent set`"
        ),
    ] = {}


class ToolList(msgspec.Struct):
    tools: list[ToolRow]


class GrantDetails(msgspec.Struct):
    id: str
    agent: str
    permission: str
    session: str | None
    granted_by: str
    because: str
    at: str
    expires_at: str | None


class GrantList(msgspec.Struct):
    grants: list[GrantDetails]


class GrantAddRequest(msgspec.Struct, forbid_unknown_fields=True):
    agent: str
    permission: Annotated[str, msgspec.Meta(description="permission to grant: web, read:PATH, write:PATH or tool:NAME")]
    because: Annotated[str, msgspec.Meta(min_length=1, max_length=1_000, description="reason for the grant")]
    session: Annotated[
        str, msgspec.Meta(description="id of a session, to limit the grant to it; default: all sessions")
    ] = ""


class GrantIdRequest(msgspec.Struct, forbid_unknown_fields=True):
    id: str


class GrantRevoked(msgspec.Struct):
    id: str
    revoked: bool


# --- explain ---


async def explain_policy(services: Services, caller: Principal, request: PolicyExplainRequest) -> PolicyExplanation:
    """Explain whether the policy would allow a tool call now, deny it, or ask for approval."""
    toolbox = _require_toolbox(services)
    spec = toolbox.spec(request.tool)
    if spec is None:
        raise ToolNotFound(request.tool)
    occasion = await build_tool_context(
        services,
        caller,
        agent=request.agent,
        session=request.session,
        sender=request.sender,
        origin=request.origin,
        model=request.model,
        entry_point=request.call_source,
        as_if=partial(preview_agent_set, changes=request.changes) if request.changes else None,
    )
    judgement = await toolbox.evaluate_call(Call(id="explain", tool=spec.name, arguments=request.args), occasion)
    return PolicyExplanation(
        agent=occasion.agent.name,
        tool=spec.name,
        decision=judgement.decision.kind,
        because=judgement.decision.because,
        key=judgement.decision.setting_key,
        findings=[PolicyFindingRow(f.layer, f.verdict, f.because, f.key) for f in judgement.findings],
        grant_permissions=[str(each) for each in judgement.would_grant],
        warnings=list(toolbox.rule_chain(occasion.agent, occasion.circumstances).warnings),
    )


def _require_toolbox(services: Services) -> Toolbox:
    if services.toolbox is None:
        raise ToolsUnavailable()
    return services.toolbox


# --- test proposed settings ---


async def test_policy(services: Services, caller: Principal, request: PolicyTestRequest) -> PolicyTestResult:
    """Evaluate every recorded tool call under the current and the proposed settings, and compare the decisions.

    Each call is evaluated in its original context.
    """
    examined = await asyncio.to_thread(
        examine_configuration, services.require_config_holder().environment, text=request.text
    )
    if examined.faults:
        raise ProposedSettingsInvalid([str(fault) for fault in examined.faults[:3]])
    then = examined.configuration
    origin = build_policy_with_defaults(then.settings.provenance)
    toolbox = _require_toolbox(services)
    both = _PolicyPair(
        # Use copies, so that no tool treats these calls as real: policy only decides them.
        current=toolbox.with_settings(services.require_config_holder().current.settings),
        proposed=toolbox.with_settings(then.settings, provenance_policy=lambda: origin),
        proposed_agents={agent.name.casefold(): agent for agent in then.declarations.agents},
    )
    found = PolicyTestResult(calls=0, sessions=0, differences=[], omitted_count=0, incomplete_because="")
    after = ""
    while batch := await services.store.scan(partial(sessions.list_all_ids, after=after, limit=SESSIONS_PER_BATCH)):
        for id_ in batch:
            history = await services.store.scan(partial(_read_history, id_=id_, agent=request.agent))
            if history is not None:
                found.sessions += 1
                await _replay_calls(found, both, services, history)
            if found.incomplete_because:
                return found
            await asyncio.sleep(0)  # let other tasks run
        after = batch[-1]
    return found


class _PolicyPair(Struct, frozen=True, kw_only=True):
    """The current and the proposed tool policy, and the agents that the proposed settings declare."""

    current: Toolbox
    proposed: Toolbox
    proposed_agents: Mapping[str, Agent]


class _SessionHistory(Struct, frozen=True, kw_only=True):
    """The records of one session, with the sender of each run and the people for whom the run acted."""

    agent: Agent
    session: Session
    records: list[Record]
    senders: Mapping[str, Address]
    requesters: Mapping[str, tuple[Requester, ...]]


def _read_history(conn: sa.Connection, *, id_: str, agent: str) -> _SessionHistory | None:
    session = sessions.get(conn, id_)
    if session is None or (agent and session.agent.casefold() != agent.casefold()):
        return None
    worker = agents.find(conn, session.agent)
    if worker is None:
        return None
    found, _ = records.read_range(conn, id_, first=1, last=session.record_seq)
    making = {record.run for record in found if isinstance(record.body, Reply) and record.body.calls and record.run}
    worked = [run for id_ in making if (run := runs.get(conn, id_)) is not None]
    return _SessionHistory(
        agent=worker,
        session=session,
        records=found,
        senders={run.id: run.sender for run in worked},
        requesters={run.id: get_requesters(conn, session, list_envelopes(conn, run), run.lineage) for run in worked},
    )


async def _replay_calls(
    result: PolicyTestResult, policies: _PolicyPair, services: Services, history: _SessionHistory
) -> None:
    context: list[Record] = []
    for record in history.records:
        context.append(record)
        if isinstance(record.body, ContextStart | Summary):
            context = arrange_records(context)
        if not isinstance(record.body, Reply) or not record.body.calls:
            continue
        occasion = _build_recorded_context(services, history, record, record.body, context)
        changed = replace(occasion, agent=policies.proposed_agents.get(history.agent.name.casefold(), history.agent))
        for call in record.body.calls:
            if result.calls >= CALLS_REPLAYED_MAX:
                result.incomplete_because = (
                    f"only {CALLS_REPLAYED_MAX} calls were tested: request a single agent to see the others"
                )
                return
            result.calls += 1
            await _compare_decisions(result, policies, call, occasion, changed)


def _build_recorded_context(
    services: Services, history: _SessionHistory, record: Record, reply: Reply, context: list[Record]
) -> TurnContext:
    home = agent_directory_of(services.data_dir, history.agent.name)
    session = history.session
    sender = history.senders.get(record.run) if record.run is not None else None
    return TurnContext(
        agent=history.agent,
        session=session.id,
        run=record.run or RunId(""),
        agent_directory=home,
        rights=default_rights(home, services.defaults.workspace_of(history.agent, home)),
        circumstances=ToolPolicyContext(
            provider=reply.provider,
            model=model_without_provider(reply),
            origin=session.origin.kind,
            sender=sender or session_owner(session),
            requesters=history.requesters.get(record.run, ()) if record.run is not None else (),
            channel=session.origin.channel,
        ),
        context=context,
    )


async def _compare_decisions(
    result: PolicyTestResult, policies: _PolicyPair, call: Call, context: TurnContext, proposed_context: TurnContext
) -> None:
    if policies.current.spec(call.tool) is None:
        return
    now = await policies.current.evaluate_call(call, context)
    then = await policies.proposed.evaluate_call(call, proposed_context)
    if now.decision.kind is then.decision.kind:
        return
    if len(result.differences) >= DIFFERENCES_LISTED_MAX:
        result.omitted_count += 1
        return
    result.differences.append(
        PolicyDifference(
            session=short_id(context.session),
            run=short_id(context.run),
            agent=context.agent.name,
            tool=call.tool,
            arguments=call.arguments,
            current=now.decision.kind,
            proposed=then.decision.kind,
            because=then.decision.because,
            key=then.decision.setting_key,
        )
    )


# --- tools and grants ---


async def list_tools(services: Services, caller: Principal, request: ToolListRequest) -> ToolList:
    toolbox = _require_toolbox(services)
    if not request.agent:
        return ToolList([_to_tool_row(spec) for spec in toolbox.specs])
    agent = await services.store.read(partial(require_agent, name=request.agent))
    if request.changes:
        agent = preview_agent_set(agent, changes=request.changes)
    chain = toolbox.rule_chain(agent, ToolPolicyContext())
    shown: list[ToolRow] = []
    for spec in toolbox.specs:
        decision = chain.decide(spec)
        shown.append(
            msgspec.structs.replace(_to_tool_row(spec), decision=decision.kind, because=decision.because),
        )
    return ToolList(shown)


def _to_tool_row(spec: ToolSpec) -> ToolRow:
    return ToolRow(
        name=spec.name,
        description=spec.description,
        source=spec.source,
        effects=sorted(effect.value for effect in spec.effects),
        capabilities=sorted(spec.capabilities),
        repeatable=spec.is_repeatable,
    )


async def list_grants(services: Services, caller: Principal, request: EmptyRequest) -> GrantList:
    found = await services.store.scan(partial(grants.list_grants, now_ms=to_ms(services.clock.now())))
    return GrantList([_to_grant_details(services, grant) for grant in found])


def _to_grant_details(services: Services, grant: Grant) -> GrantDetails:
    return GrantDetails(
        id=short_id(grant.id),
        agent=grant.agent,
        permission=str(grant.permission),
        session=short_id(grant.session) if grant.session is not None else None,
        granted_by=grant.granted_by,
        because=grant.because,
        at=format_time(grant.at, services.zone),
        expires_at=format_time(grant.expires_at, services.zone) if grant.expires_at is not None else None,
    )


async def add_grant(services: Services, caller: Principal, request: GrantAddRequest) -> GrantDetails:
    _check_may_grant(caller)
    wanted = await asyncio.to_thread(resolve_permission, permission.parse_permission(request.permission))
    now = services.clock.now()

    def body(conn: sa.Connection) -> Grant:
        tx = Transaction(conn, to_ms(now))
        session = sessions.get_by_short_id(conn, request.session, seen_by=caller) if request.session else None
        grant = Grant(
            id=GrantId(services.ids.new()),
            agent=require_agent(conn, request.agent).name,
            session=session.id if session is not None else None,
            permission=wanted,
            granted_by=caller.address.name,
            because=request.because,
            at=now,
        )
        grants.add(conn, grant)
        given = grant_given(str(wanted), by=str(caller.address), agent=grant.agent, grant=grant.id)
        audit.append(tx, grant.session or SERVER_CHAIN, [given])
        tx.emit(EventKind.GRANT_CHANGED, grant=grant.id, agent=grant.agent, permission=str(wanted), good=True)
        tx.close()
        return grant

    grant = await services.store.write(body, point="grant")
    return _to_grant_details(services, grant)


async def revoke_grant(services: Services, caller: Principal, request: GrantIdRequest) -> GrantRevoked:
    _check_may_grant(caller)

    def body(conn: sa.Connection) -> tuple[Grant, bool]:
        tx = Transaction(conn, to_ms(services.clock.now()))
        found = grants.find_by_prefix(conn, parse_id_prefix(request.id))
        if len(found) != 1:
            raise GrantNotFound(request.id)
        grant = found[0]
        done = grants.revoke(conn, grant.id, by=caller.address.name, at_ms=tx.at_ms)
        ended = [grant, *grants.revoke_passed_on(conn, grant.agent, by=caller.address.name, at_ms=tx.at_ms)]
        for each in ended if done else ():
            gone = grant_revoked(str(each.permission), by=str(caller.address), agent=each.agent, grant=each.id)
            audit.append(tx, each.session or SERVER_CHAIN, [gone])
            tx.emit(
                EventKind.GRANT_CHANGED, grant=each.id, agent=each.agent, permission=str(each.permission), good=False
            )
        tx.close()
        return grant, done

    grant, done = await services.store.write(body, point="grant")
    return GrantRevoked(id=short_id(grant.id), revoked=done)


def _check_may_grant(caller: Principal) -> None:
    """Raise an error unless the caller may create grants.

    Only the owner and the server may create grants. An agent may not, even with level boss. It uses the
    tool `grant_permission`, which passes on a permission that a person has granted to the agent.
    """
    if not caller.sees_everything:
        raise GrantNotAllowed()


OPERATIONS = (
    Operation(
        name="policy.explain",
        summary="Explain why an agent may or may not use a tool, or needs an approval.",
        parameters=PolicyExplainRequest,
        handler=explain_policy,
        permission=PermissionLevel.STANDARD,
        result=PolicyExplanation,
    ),
    Operation(
        name="policy.test",
        summary="Check recorded tool calls against changed settings, and show each call whose decision would change.",
        parameters=PolicyTestRequest,
        handler=test_policy,
        permission=PermissionLevel.BOSS,
        result=PolicyTestResult,
    ),
    Operation(
        name="tool.list",
        summary="List all tools, or show which of them an agent may use.",
        parameters=ToolListRequest,
        handler=list_tools,
        permission=PermissionLevel.RESTRICTED,
        result=ToolList,
    ),
    Operation(
        name="grant.list",
        summary="List the grants of agents.",
        parameters=EmptyRequest,
        handler=list_grants,
        permission=PermissionLevel.STANDARD,
        result=GrantList,
    ),
    Operation(
        name="grant.add",
        summary="Grant an agent a permission.",
        parameters=GrantAddRequest,
        handler=add_grant,
        permission=PermissionLevel.BOSS,
        has_effect=True,
        result=GrantDetails,
    ),
    Operation(
        name="grant.revoke",
        summary="Revoke a grant. This takes effect at once.",
        parameters=GrantIdRequest,
        handler=revoke_grant,
        permission=PermissionLevel.BOSS,
        has_effect=True,
        result=GrantRevoked,
    ),
)
