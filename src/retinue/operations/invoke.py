"""Calling a tool directly, outside of any run: for scripts and pages. The same rules, and a few more."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import sqlalchemy as sa

from retinue.agents.home import ensure_home
from retinue.domain.agent import Agent, PermissionLevel
from retinue.domain.decision import Verdict
from retinue.domain.errors import NotAllowed, NotFound
from retinue.domain.ids import RunId, SessionId
from retinue.domain.permission import default_rights
from retinue.domain.principal import Principal
from retinue.domain.session import OriginKind, Session
from retinue.domain.tool import Call
from retinue.operations.base import Desk, Operation
from retinue.policy.tools import Circumstances, Door
from retinue.store import agents, sessions
from retinue.tools.toolbox import Occasion, Toolbox


class Invoke(msgspec.Struct, forbid_unknown_fields=True):
    tool: str
    args: Annotated[dict[str, Any], msgspec.Meta(description="the arguments of the call")] = {}
    agent: Annotated[str, msgspec.Meta(description="as which agent; left out, main")] = "main"
    session: Annotated[str, msgspec.Meta(description="in which of its sessions")] = ""


class Invoked(msgspec.Struct):
    tool: str
    output: str
    failed: bool


async def invoke(desk: Desk, caller: Principal, asked: Invoke) -> Invoked:
    """What asks, asks in a conversation: here it is refused."""
    return await call_directly(desk, caller, asked, door=Door.INVOKE)


async def call_directly(desk: Desk, caller: Principal, asked: Invoke, *, door: Door) -> Invoked:
    def read(conn: sa.Connection) -> tuple[Agent | None, Session | None]:
        agent = agents.find(conn, asked.agent)
        return agent, sessions.resolve(conn, asked.session, seen_by=caller) if asked.session else None

    agent, session = await desk.store.read(read)
    toolbox = desk.toolbox
    if agent is None or toolbox is None:
        raise NotFound(
            f"there is no agent '{asked.agent[:64]}'",
            because="nobody of that name works here",
            try_this="list them: retinue agent list",
            code="agent.not-found",
        )
    if session is not None and session.agent != agent.name:
        raise NotFound("that session is not this agent's", because="it belongs to another", code="session.not-found")
    id_ = desk.ids.new()
    home = ensure_home(desk.home, agent.name)
    occasion = Occasion(
        agent=agent,
        session=session.id if session is not None else SessionId(id_),
        run=RunId(id_),
        home=home,
        rights=default_rights(home, home),
        where=Circumstances(
            origin=session.origin.kind if session is not None else OriginKind.EXTERNAL,
            sender=caller.address,
            door=door,
        ),
    )
    return await _perform(toolbox, Call(id=id_[:8], tool=asked.tool, arguments=asked.args), occasion)


async def _perform(toolbox: Toolbox, call: Call, occasion: Occasion) -> Invoked:
    if toolbox.spec(call.tool) is None:
        raise _no_tool(call.tool, "no tool of this house has that name")
    plan = await toolbox.decide_directly(call, occasion)
    match plan.decision.verdict:
        case Verdict.DENY:
            raise _no_tool(call.tool, plan.decision.because, plan.decision.key)
        case Verdict.ASK:
            raise NotAllowed(
                f"'{call.tool}' is asked about first, and here is nobody to ask",
                because=plan.decision.because,
                try_this="let the agent do it in a conversation, or grant it: retinue grant add",
                code="tool.asks",
            )
        case Verdict.ALLOW:
            result = await toolbox.perform(call, plan.scene)
    return Invoked(tool=call.tool, output=result.output, failed=result.failed)


def _no_tool(name: str, because: str, key: str = "") -> NotFound:
    return NotFound(
        f"there is no tool '{name[:64]}' here",
        because=because,
        try_this=f"change {key}" if key else "list them: retinue tool list",
        code="tool.not-found",
    )


OPERATIONS = (
    Operation(
        name="tool.invoke",
        summary="Call a tool directly, as an agent would.",
        parameters=Invoke,
        handler=invoke,
        permission=PermissionLevel.BOSS,
        effect=True,
        result=Invoked,
    ),
)
