"""Explain and test tool policy, list tools, and manage grants."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any

import msgspec
import sqlalchemy as sa
from msgspec import Struct

from retinue.agents.agent_directory import home_of
from retinue.config.loader import examine
from retinue.domain import permission
from retinue.domain.address import Address
from retinue.domain.agent import Agent, PermissionLevel
from retinue.domain.audit import HOUSE_CHAIN, grant_given, grant_revoked
from retinue.domain.decision import Verdict
from retinue.domain.errors import Invalid, NotAllowed, NotFound
from retinue.domain.event import NewsKind
from retinue.domain.grant import Grant
from retinue.domain.ids import GrantId, RunId, prefix, short
from retinue.domain.permission import default_rights
from retinue.domain.person import Requester
from retinue.domain.principal import Principal
from retinue.domain.record import Mark, Record, Reply, Summary, bare_model
from retinue.domain.session import OriginKind, Session
from retinue.domain.structs import replace
from retinue.domain.times import show, to_ms
from retinue.domain.tool import Call, ToolSpec
from retinue.operations.agent.agents import as_if_set
from retinue.operations.base import Desk, Nothing, Operation
from retinue.operations.tool_context import named_agent, occasion_for, whose_session
from retinue.policy.provenance.provenance_rules import house_policy
from retinue.policy.tools.tools import Circumstances, Door
from retinue.runners.model_context import arranged
from retinue.store.agents import agents, audit, grants
from retinue.store.core.transaction import Page
from retinue.store.runs import runs
from retinue.store.runs.message_authors import letters_of
from retinue.store.runs.run_requesters import requesters
from retinue.store.sessions import records, sessions
from retinue.tools.files import as_granted
from retinue.tools.toolbox import Occasion, Toolbox

SESSIONS_AT_ONCE_MAX = 1_000
CALLS_REPLAYED_MAX = 10_000
DIFFERENCES_SHOWN_MAX = 500


class Explain(msgspec.Struct, forbid_unknown_fields=True):
    agent: str
    tool: str
    args: Annotated[dict[str, Any], msgspec.Meta(description="the arguments of the call")] = {}
    sender: Annotated[str, msgspec.Meta(description="for whom the agent works, as in person:maria")] = ""
    session: Annotated[str, msgspec.Meta(description="in which session; left out, in a fresh one")] = ""
    model: Annotated[str, msgspec.Meta(description="with which model, as PROVIDER/MODEL")] = ""
    origin: Annotated[OriginKind, msgspec.Meta(description="the kind of a fresh session")] = OriginKind.TERMINAL
    door: Annotated[Door, msgspec.Meta(description="how the call comes in")] = Door.MODEL
    changes: Annotated[
        dict[str, Any], msgspec.Meta(description="fields of the agent, as for agent set, as if they were saved")
    ] = {}


class FindingShown(msgspec.Struct):
    layer: str
    verdict: Verdict
    because: str
    key: str


class Explained(msgspec.Struct, rename="kebab"):
    """The decision, the setting it depends on, and the finding of each policy layer."""

    agent: str
    tool: str
    verdict: Verdict
    because: str
    key: str
    findings: list[FindingShown]
    would_grant: list[str]
    warnings: list[str]


class Test(msgspec.Struct, forbid_unknown_fields=True):
    """Without `text`, the settings file on disk is tested."""

    text: Annotated[str | None, msgspec.Meta(description="the text of a settings file; left out, the one on disk")] = (
        None
    )
    agent: Annotated[str, msgspec.Meta(description="only the runs of this agent")] = ""


class Difference(msgspec.Struct, rename="kebab"):
    session: str
    run: str
    agent: str
    tool: str
    arguments: dict[str, Any]
    now: Verdict
    then: Verdict
    because: str
    key: str


class Tested(msgspec.Struct, rename="kebab"):
    calls: int
    sessions: int
    differences: list[Difference]
    left_out: int  # number of differences not listed
    stopped: str  # why some calls were not tested; empty if all were


class ToolShown(msgspec.Struct, rename="kebab"):
    name: str
    description: str
    source: str
    effects: list[str]
    capabilities: list[str]
    repeatable: bool
    verdict: Verdict | msgspec.UnsetType = msgspec.UNSET
    because: str | msgspec.UnsetType = msgspec.UNSET


class ToolsOf(msgspec.Struct, forbid_unknown_fields=True):
    agent: Annotated[str, msgspec.Meta(description="with what this agent may do; left out, all there are")] = ""
    changes: Annotated[
        dict[str, Any], msgspec.Meta(description="fields of the agent, as for agent set, as if they were saved")
    ] = {}


class ToolsListed(msgspec.Struct):
    tools: list[ToolShown]


class GrantShown(msgspec.Struct, rename="kebab"):
    id: str
    agent: str
    permission: str
    session: str | None
    granted_by: str
    because: str
    at: str
    expires_at: str | None


class GrantsListed(msgspec.Struct):
    grants: list[GrantShown]


class GrantAdd(msgspec.Struct, forbid_unknown_fields=True):
    agent: str
    permission: Annotated[str, msgspec.Meta(description="web, read:/path, write:/path or tool:name")]
    because: Annotated[str, msgspec.Meta(min_length=1, max_length=1_000, description="why")]
    session: Annotated[str, msgspec.Meta(description="only in this session")] = ""


class GrantNamed(msgspec.Struct, forbid_unknown_fields=True):
    id: str


class GrantRevoked(msgspec.Struct):
    id: str
    revoked: bool


# --- explain ---


async def explain(desk: Desk, caller: Principal, asked: Explain) -> Explained:
    """Explain how policy would decide this call if it arrived now from this call source."""
    toolbox = _toolbox(desk)
    spec = toolbox.spec(asked.tool)
    if spec is None:
        raise NotFound(
            f"there is no tool '{asked.tool[:64]}'",
            because="no tool of this house has that name",
            try_this="list them: retinue tool list",
            code="tool.not-found",
        )
    occasion = await occasion_for(
        desk,
        caller,
        agent=asked.agent,
        session=asked.session,
        sender=asked.sender,
        origin=asked.origin,
        model=asked.model,
        door=asked.door,
        as_if=partial(as_if_set, changes=asked.changes) if asked.changes else None,
    )
    judgement = await toolbox.judge(Call(id="explain", tool=spec.name, arguments=asked.args), occasion)
    return Explained(
        agent=occasion.agent.name,
        tool=spec.name,
        verdict=judgement.decision.verdict,
        because=judgement.decision.because,
        key=judgement.decision.key,
        findings=[FindingShown(f.layer, f.verdict, f.because, f.key) for f in judgement.findings],
        would_grant=[str(each) for each in judgement.would_grant],
        warnings=list(toolbox.chain(occasion.agent, occasion.where).warnings),
    )


def _toolbox(desk: Desk) -> Toolbox:
    if desk.toolbox is None:
        raise NotFound("this house has no tools", because="it was opened without any", code="tool.none")
    return desk.toolbox


# --- test proposed settings ---


async def test(desk: Desk, caller: Principal, asked: Test) -> Tested:
    """Decide every recorded call under the current and the proposed settings, each in its original context."""
    examined = await asyncio.to_thread(examine, desk.keeper().environment, text=asked.text)
    if examined.faults:
        raise Invalid(
            "these settings cannot be read",
            because="; ".join(str(fault) for fault in examined.faults[:3]),
            try_this="retinue config check",
            code="config.invalid",
        )
    then = examined.configuration
    origin = house_policy(then.settings.origin)
    toolbox = _toolbox(desk)
    both = _Both(
        # Use copies: these calls are only decided, and no tool may treat them as real.
        now=toolbox.under(desk.keeper().current.settings),
        then=toolbox.under(then.settings, origin=lambda: origin),
        staff={agent.name.casefold(): agent for agent in then.staff.agents},
    )
    found = Tested(calls=0, sessions=0, differences=[], left_out=0, stopped="")
    after = ""
    while page := await desk.store.scan(partial(sessions.every, after=after, limit=SESSIONS_AT_ONCE_MAX)):
        for id_ in page:
            history = await desk.store.scan(partial(_history, id_=id_, agent=asked.agent))
            if history is not None:
                found.sessions += 1
                await _replay(found, both, desk, history)
            if found.stopped:
                return found
            await asyncio.sleep(0)  # let other tasks run
        after = page[-1]
    return found


class _Both(Struct, frozen=True, kw_only=True):
    """The current and the proposed policy, and the agents as the proposed settings declare them."""

    now: Toolbox
    then: Toolbox
    staff: Mapping[str, Agent]


class _History(Struct, frozen=True, kw_only=True):
    """One session's records, with the sender and the requesters of each run."""

    agent: Agent
    session: Session
    records: list[Record]
    senders: Mapping[str, Address]
    requesters: Mapping[str, tuple[Requester, ...]]


def _history(conn: sa.Connection, *, id_: str, agent: str) -> _History | None:
    session = sessions.get(conn, id_)
    if session is None or (agent and session.agent.casefold() != agent.casefold()):
        return None
    worker = agents.find(conn, session.agent)
    if worker is None:
        return None
    found, _ = records.read(conn, id_, first=1, last=session.record_seq)
    making = {record.run for record in found if isinstance(record.body, Reply) and record.body.calls and record.run}
    worked = [run for id_ in making if (run := runs.get(conn, id_)) is not None]
    return _History(
        agent=worker,
        session=session,
        records=found,
        senders={run.id: run.sender for run in worked},
        requesters={run.id: requesters(conn, session, letters_of(conn, run), run.lineage) for run in worked},
    )


async def _replay(found: Tested, both: _Both, desk: Desk, history: _History) -> None:
    context: list[Record] = []
    for record in history.records:
        context.append(record)
        if isinstance(record.body, Mark | Summary):
            context = arranged(context)
        if not isinstance(record.body, Reply) or not record.body.calls:
            continue
        occasion = _recorded(desk, history, record, record.body, context)
        changed = replace(occasion, agent=both.staff.get(history.agent.name.casefold(), history.agent))
        for call in record.body.calls:
            if found.calls >= CALLS_REPLAYED_MAX:
                found.stopped = f"after {CALLS_REPLAYED_MAX} calls: ask for one agent alone to see the others"
                return
            found.calls += 1
            await _compare(found, both, call, occasion, changed)


def _recorded(desk: Desk, history: _History, record: Record, reply: Reply, context: list[Record]) -> Occasion:
    home = home_of(desk.home, history.agent.name)
    session = history.session
    sender = history.senders.get(record.run) if record.run is not None else None
    return Occasion(
        agent=history.agent,
        session=session.id,
        run=record.run or RunId(""),
        home=home,
        rights=default_rights(home, desk.defaults.workspace_of(history.agent, home)),
        where=Circumstances(
            provider=reply.provider,
            model=bare_model(reply),
            origin=session.origin.kind,
            sender=sender or whose_session(session),
            requesters=history.requesters.get(record.run, ()) if record.run is not None else (),
            channel=session.origin.channel,
        ),
        context=context,
    )


async def _compare(found: Tested, both: _Both, call: Call, occasion: Occasion, changed: Occasion) -> None:
    if both.now.spec(call.tool) is None:
        return
    now = await both.now.judge(call, occasion)
    then = await both.then.judge(call, changed)
    if now.decision.verdict is then.decision.verdict:
        return
    if len(found.differences) >= DIFFERENCES_SHOWN_MAX:
        found.left_out += 1
        return
    found.differences.append(
        Difference(
            session=short(occasion.session),
            run=short(occasion.run),
            agent=occasion.agent.name,
            tool=call.tool,
            arguments=call.arguments,
            now=now.decision.verdict,
            then=then.decision.verdict,
            because=then.decision.because,
            key=then.decision.key,
        )
    )


# --- tools and grants ---


async def list_tools(desk: Desk, caller: Principal, asked: ToolsOf) -> ToolsListed:
    toolbox = _toolbox(desk)
    if not asked.agent:
        return ToolsListed([_shown(spec) for spec in toolbox.specs])
    agent = await desk.store.read(partial(named_agent, name=asked.agent))
    if asked.changes:
        agent = as_if_set(agent, changes=asked.changes)
    chain = toolbox.chain(agent, Circumstances())
    shown: list[ToolShown] = []
    for spec in toolbox.specs:
        decision = chain.decide(spec)
        shown.append(
            msgspec.structs.replace(_shown(spec), verdict=decision.verdict, because=decision.because),
        )
    return ToolsListed(shown)


def _shown(spec: ToolSpec) -> ToolShown:
    return ToolShown(
        name=spec.name,
        description=spec.description,
        source=spec.source,
        effects=sorted(effect.value for effect in spec.effects),
        capabilities=sorted(spec.capabilities),
        repeatable=spec.repeatable,
    )


async def list_grants(desk: Desk, caller: Principal, asked: Nothing) -> GrantsListed:
    found = await desk.store.scan(partial(grants.listed, now_ms=to_ms(desk.clock.now())))
    return GrantsListed([_grant(desk, grant) for grant in found])


def _grant(desk: Desk, grant: Grant) -> GrantShown:
    return GrantShown(
        id=short(grant.id),
        agent=grant.agent,
        permission=str(grant.permission),
        session=short(grant.session) if grant.session is not None else None,
        granted_by=grant.granted_by,
        because=grant.because,
        at=show(grant.at, desk.zone),
        expires_at=show(grant.expires_at, desk.zone) if grant.expires_at is not None else None,
    )


async def add_grant(desk: Desk, caller: Principal, asked: GrantAdd) -> GrantShown:
    _only_people(caller)
    wanted = await asyncio.to_thread(as_granted, permission.parse(asked.permission))
    now = desk.clock.now()

    def body(conn: sa.Connection) -> Grant:
        page = Page(conn, to_ms(now))
        session = sessions.resolve(conn, asked.session, seen_by=caller) if asked.session else None
        grant = Grant(
            id=GrantId(desk.ids.new()),
            agent=named_agent(conn, asked.agent).name,
            session=session.id if session is not None else None,
            permission=wanted,
            granted_by=caller.address.name,
            because=asked.because,
            at=now,
        )
        grants.add(conn, grant)
        given = grant_given(str(wanted), by=str(caller.address), agent=grant.agent, grant=grant.id)
        audit.append(page, grant.session or HOUSE_CHAIN, [given])
        page.tell(NewsKind.GRANT_CHANGED, grant=grant.id, agent=grant.agent, permission=str(wanted), good=True)
        page.close()
        return grant

    grant = await desk.store.write(body, point="grant")
    return _grant(desk, grant)


async def revoke_grant(desk: Desk, caller: Principal, asked: GrantNamed) -> GrantRevoked:
    _only_people(caller)

    def body(conn: sa.Connection) -> tuple[Grant, bool]:
        page = Page(conn, to_ms(desk.clock.now()))
        found = grants.find(conn, prefix(asked.id))
        if len(found) != 1:
            raise NotFound(
                f"there is no grant {asked.id[:40]}",
                because="none, or more than one, begins so",
                try_this="list them: retinue grant list",
                code="grant.not-found",
            )
        grant = found[0]
        done = grants.revoke(conn, grant.id, by=caller.address.name, at_ms=page.at_ms)
        ended = [grant, *grants.revoke_handed_on(conn, grant.agent, by=caller.address.name, at_ms=page.at_ms)]
        for each in ended if done else ():
            gone = grant_revoked(str(each.permission), by=str(caller.address), agent=each.agent, grant=each.id)
            audit.append(page, each.session or HOUSE_CHAIN, [gone])
            page.tell(
                NewsKind.GRANT_CHANGED, grant=each.id, agent=each.agent, permission=str(each.permission), good=False
            )
        page.close()
        return grant, done

    grant, done = await desk.store.write(body, point="grant")
    return GrantRevoked(id=short(grant.id), revoked=done)


def _only_people(caller: Principal) -> None:
    """Agents pass on permissions with `grant_permission`.

    No permission level lets them create grants here.
    """
    if not caller.sees_all:
        raise NotAllowed(
            "you may not grant or revoke",
            because="only the owner does, beside a decision that was asked for",
            try_this="answer what was asked: retinue allow ID",
            code="grant.not-yours",
        )


OPERATIONS = (
    Operation(
        name="policy.explain",
        summary="Say why an agent may, may not, or must ask to use a tool.",
        parameters=Explain,
        handler=explain,
        permission=PermissionLevel.STANDARD,
        result=Explained,
    ),
    Operation(
        name="policy.test",
        summary="Say which recorded calls would be decided otherwise by other settings.",
        parameters=Test,
        handler=test,
        permission=PermissionLevel.BOSS,
        result=Tested,
    ),
    Operation(
        name="tool.list",
        summary="List the tools of the house, or what an agent may do with them.",
        parameters=ToolsOf,
        handler=list_tools,
        permission=PermissionLevel.RESTRICTED,
        result=ToolsListed,
    ),
    Operation(
        name="grant.list",
        summary="List what agents were granted.",
        parameters=Nothing,
        handler=list_grants,
        permission=PermissionLevel.STANDARD,
        result=GrantsListed,
    ),
    Operation(
        name="grant.add",
        summary="Grant an agent a permission.",
        parameters=GrantAdd,
        handler=add_grant,
        permission=PermissionLevel.BOSS,
        effect=True,
        result=GrantShown,
    ),
    Operation(
        name="grant.revoke",
        summary="Take a grant back. It counts at once.",
        parameters=GrantNamed,
        handler=revoke_grant,
        permission=PermissionLevel.BOSS,
        effect=True,
        result=GrantRevoked,
    ),
)
