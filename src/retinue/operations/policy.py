"""What one can ask about who may use what: why, what a change of the rules would change, and what was granted."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from typing import Annotated, Any

import msgspec
import sqlalchemy as sa

from retinue.agents.home import home_of
from retinue.config.loading import examine
from retinue.domain import address, permission
from retinue.domain.address import Address
from retinue.domain.agent import Agent, PermissionLevel
from retinue.domain.decision import Verdict
from retinue.domain.errors import Invalid, NotAllowed, NotFound
from retinue.domain.event import NewsKind
from retinue.domain.grant import Grant
from retinue.domain.ids import GrantId, RunId, SessionId, prefix, short
from retinue.domain.permission import default_rights
from retinue.domain.principal import Principal
from retinue.domain.record import Record, Reply
from retinue.domain.session import OriginKind, Session
from retinue.domain.times import show, to_ms
from retinue.domain.tool import Call, ToolSpec
from retinue.operations.base import Desk, Nothing, Operation
from retinue.policy.judging import Judgement
from retinue.policy.tools import Circumstances, Door
from retinue.store import agents, grants, records, sessions
from retinue.store.house import Page
from retinue.tools.files import as_granted
from retinue.tools.toolbox import Occasion, Toolbox

CONTEXT_RECORDS_MAX = 5_000  # of a session, that an explanation reads
SESSIONS_REPLAYED_MAX = 1_000
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


class FindingShown(msgspec.Struct):
    layer: str
    verdict: Verdict
    because: str
    key: str


class Explained(msgspec.Struct, rename="kebab"):
    """The verdict, which setting it hangs on, and what each layer said."""

    agent: str
    tool: str
    verdict: Verdict
    because: str
    key: str
    findings: list[FindingShown]
    would_grant: list[str]
    warnings: list[str]


class Test(msgspec.Struct, forbid_unknown_fields=True):
    """Without `text`, the settings file as it is on the disk."""

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
    left_out: int


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


# --- why ---


async def explain(desk: Desk, caller: Principal, asked: Explain) -> Explained:
    toolbox = _toolbox(desk)
    spec = toolbox.spec(asked.tool)
    if spec is None:
        raise NotFound(
            f"there is no tool '{asked.tool[:64]}'",
            because="no tool of this house has that name",
            try_this="list them: retinue tool list",
            code="tool.not-found",
        )
    agent, occasion = await _occasion(desk, caller, asked)
    call = Call(id="explain", tool=spec.name, arguments=asked.args)
    judgement = await toolbox.judge(call, occasion)
    return Explained(
        agent=agent.name,
        tool=spec.name,
        verdict=judgement.decision.verdict,
        because=judgement.decision.because,
        key=judgement.decision.key,
        findings=[FindingShown(f.layer, f.verdict, f.because, f.key) for f in judgement.findings],
        would_grant=[str(each) for each in judgement.would_grant],
        warnings=list(toolbox.chain(agent, occasion.where).warnings),
    )


async def _occasion(desk: Desk, caller: Principal, asked: Explain) -> tuple[Agent, Occasion]:
    def read(conn: sa.Connection) -> tuple[Agent, Session | None, list[Record]]:
        agent = _agent(conn, asked.agent)
        if not asked.session:
            return agent, None, []
        session = sessions.resolve(conn, asked.session, seen_by=caller)
        first = max(session.context_from, session.record_seq - CONTEXT_RECORDS_MAX)
        found, _ = records.read(conn, session.id, first=first, last=session.record_seq)
        return agent, session, found

    agent, session, found = await desk.store.scan(read)
    provider, _, model = asked.model.partition("/")
    origin = session.origin.kind if session is not None else asked.origin
    channel = session.origin.key if session is not None and origin is OriginKind.CHAT else ""
    where = Circumstances(
        provider=provider,
        model=model,
        origin=origin,
        sender=address.parse(asked.sender) if asked.sender else None,
        channel=channel.removeprefix("channel:"),
        door=asked.door,
    )
    home = home_of(desk.home, agent.name)
    return agent, Occasion(
        agent=agent,
        session=session.id if session is not None else SessionId(""),
        run=RunId(""),
        home=home,
        rights=default_rights(home, home),
        where=where,
        context=found,
    )


def _agent(conn: sa.Connection, name: str) -> Agent:
    agent = agents.find(conn, name)
    if agent is None:
        raise NotFound(
            f"there is no agent '{name[:64]}'",
            because="nobody of that name works here",
            try_this="list them: retinue agent list",
            code="agent.not-found",
        )
    return agent


def _toolbox(desk: Desk) -> Toolbox:
    if desk.toolbox is None:
        raise NotFound("this house has no tools", because="it was opened without any", code="tool.none")
    return desk.toolbox


# --- what a change would change ---


async def test(desk: Desk, caller: Principal, asked: Test) -> Tested:
    """Ask both policies about every call that was ever recorded, in the context in which it was made."""
    examined = await asyncio.to_thread(examine, desk.keeper().environment, text=asked.text)
    if examined.faults:
        raise Invalid(
            "these settings cannot be read",
            because="; ".join(str(fault) for fault in examined.faults[:3]),
            try_this="retinue config check",
            code="config.invalid",
        )
    toolbox = _toolbox(desk)
    changed = toolbox.under(examined.configuration.settings)
    declared = {each.agent.name.casefold(): each.agent for each in examined.configuration.staff.agents}
    found = Tested(calls=0, sessions=0, differences=[], left_out=0)
    for id_ in await _sessions(desk, asked.agent):
        agent, session, context = await desk.store.scan(partial(_history, id_=id_))
        if agent is None or session is None:
            continue
        found.sessions += 1
        then = declared.get(agent.name.casefold(), agent)
        for number, record in enumerate(context):
            if found.calls >= CALLS_REPLAYED_MAX:
                return found
            if isinstance(record.body, Reply) and record.body.calls:
                occasion = _recorded(desk, agent, session, record, record.body, context[:number])
                for call in record.body.calls:
                    found.calls += 1
                    await _compare(found, toolbox, changed, call, occasion, replace(occasion, agent=then))
        await asyncio.sleep(0)  # others are waiting for the house too
    return found


async def _sessions(desk: Desk, agent: str) -> list[SessionId]:
    def read(conn: sa.Connection) -> list[SessionId]:
        every = sessions.every(conn, after="", limit=SESSIONS_REPLAYED_MAX)
        return [id_ for id_ in every if not agent or _works_in(conn, id_, agent)]

    return await desk.store.scan(read)


def _works_in(conn: sa.Connection, id_: str, agent: str) -> bool:
    session = sessions.get(conn, id_)
    return session is not None and session.agent.casefold() == agent.casefold()


def _history(conn: sa.Connection, *, id_: str) -> tuple[Agent | None, Session | None, list[Record]]:
    session = sessions.get(conn, id_)
    if session is None:
        return None, None, []
    found, _ = records.read(conn, id_, first=1, last=min(session.record_seq, CONTEXT_RECORDS_MAX))
    return agents.find(conn, session.agent), session, found


def _recorded(
    desk: Desk, agent: Agent, session: Session, record: Record, reply: Reply, context: list[Record]
) -> Occasion:
    home = home_of(desk.home, agent.name)
    return Occasion(
        agent=agent,
        session=session.id,
        run=record.run or RunId(""),
        home=home,
        rights=default_rights(home, home),
        where=Circumstances(
            provider=reply.provider,
            model=reply.model,
            origin=session.origin.kind,
            sender=_sender(session),
            channel=session.origin.key.removeprefix("channel:") if session.origin.kind is OriginKind.CHAT else "",
        ),
        context=context,
    )


def _sender(session: Session) -> Address | None:
    """Whoever the session belongs to; None where its key is no address."""
    try:
        return address.parse(session.origin.key.partition("/")[0])
    except Invalid:
        return None


async def _compare(
    found: Tested, toolbox: Toolbox, changed: Toolbox, call: Call, occasion: Occasion, after: Occasion
) -> None:
    if toolbox.spec(call.tool) is None:
        return
    now: Judgement = await toolbox.judge(call, occasion)
    then: Judgement = await changed.judge(call, after)
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
    agent = await desk.store.read(partial(_agent, name=asked.agent))
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
            agent=_agent(conn, asked.agent).name,
            session=session.id if session is not None else None,
            permission=wanted,
            granted_by=caller.address.name,
            because=asked.because,
            at=now,
        )
        grants.add(conn, grant)
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
            page.tell(
                NewsKind.GRANT_CHANGED, grant=each.id, agent=each.agent, permission=str(each.permission), good=False
            )
        page.close()
        return grant, done

    grant, done = await desk.store.write(body, point="grant")
    return GrantRevoked(id=short(grant.id), revoked=done)


def _only_people(caller: Principal) -> None:
    """An agent hands on what it holds by `grant_permission`, whatever its level; it makes nothing of its own."""
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
