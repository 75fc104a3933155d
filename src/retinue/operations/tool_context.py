"""Builds the tool context for tool calls outside of runs, and for `policy explain`.

`policy explain` and direct calls use the same context, so an explanation matches the decision about a real call.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import sqlalchemy as sa

from retinue.agents.agent_directory import agent_directory_of
from retinue.domain import address
from retinue.domain.address import Address, AddressKind
from retinue.domain.agent import Agent
from retinue.domain.errors import Invalid, RetinueError
from retinue.domain.ids import RunId, SessionId
from retinue.domain.permission import default_rights
from retinue.domain.person import Requester
from retinue.domain.principal import Principal
from retinue.domain.record import Note, Record, RecordKind
from retinue.domain.session import OriginKind, Session, SessionOptions
from retinue.domain.shared_errors import AgentNotFound, SessionNotFound
from retinue.domain.times import to_ms
from retinue.domain.trust import Trust
from retinue.operations.base import Services
from retinue.policy.tools.tool_policy import CallSource, ToolPolicyContext
from retinue.runners.model_context import context_from_records
from retinue.store.agents import agents
from retinue.store.runs import delegating_agents
from retinue.store.runs.run_requesters import get_last_requesters, get_requesters_at
from retinue.store.sessions import records, sessions
from retinue.tools.toolbox import TurnContext


async def build_tool_context(
    services: Services,
    caller: Principal,
    *,
    agent: str,
    session: str = "",
    sender: str = "",
    origin: OriginKind = OriginKind.EXTERNAL,
    model: str = "",
    entry_point: CallSource,
    as_if: Callable[[Agent], Agent] | None = None,
) -> TurnContext:
    """Return the context of a tool call, in one of the agent's sessions or in a new one.

    `entry_point` says how the call is made. For a call by a model, the sender defaults to the owner of
    the session, or else to the caller. The model defaults to the one that the agent would use. A direct
    call has no model. `as_if` returns the agent with changes that are not stored yet.
    """

    def read(conn: sa.Connection) -> tuple[Agent, Session | None, list[Record], tuple[Agent, ...]]:
        found = require_agent(conn, agent)
        if not session:
            return found, None, [], ()
        inside = sessions.get_by_short_id(conn, session, seen_by=caller)
        if inside.agent != found.name:
            raise SessionNotFound(session, agent=found.name, because=f"it belongs to {inside.agent}")
        read_records, _ = records.read_range(conn, inside.id, first=inside.context_start_seq, last=inside.record_seq)
        return found, inside, context_from_records(read_records), delegating_agents.list_for_session(conn, inside)

    target, inside, context, sent_by = await services.store.scan(read)
    if as_if is not None:
        target = as_if(target)
    by_model = entry_point is CallSource.MODEL
    kind = inside.origin.kind if inside is not None else origin if by_model else OriginKind.EXTERNAL
    whose = session_owner(inside) if inside is not None and by_model else None
    works_for = address.parse_address(sender) if sender else whose or caller.address
    if not by_model and (caller.trust is Trust.UNTRUSTED or works_for.kind is AddressKind.AGENT):
        context = [*context, _untrusted_note(services, inside)]
    provider, _, name = (model or _first_model(services, target, inside)).partition("/") if by_model else ("", "", "")
    acting = sent_by[0] if sent_by else target  # a subagent uses the directories of the agent that started it
    directory = agent_directory_of(services.data_dir, acting.name)
    id_ = services.ids.new()
    return TurnContext(
        agent=target,
        session=inside.id if inside is not None else SessionId(id_),
        run=RunId(id_),
        agent_directory=directory,
        acting_agent=acting,
        rights=default_rights(directory, services.defaults.workspace_of(acting, directory)),
        circumstances=ToolPolicyContext(
            provider=provider if name else "",
            model=name or provider,
            origin=kind,
            sender=works_for,
            requesters=await services.store.read(
                partial(_read_requesters, on_behalf_of=works_for, session=None if sender else inside)
            ),
            parent_agents=sent_by,
            channel=inside.origin.channel if inside is not None else "",
            call_source=entry_point,
        ),
        context=context,
    )


def _read_requesters(conn: sa.Connection, *, on_behalf_of: Address, session: Session | None) -> tuple[Requester, ...]:
    """Return the people who wrote last in the session of a channel, or else the principal that the call is for."""
    spoke = (
        get_last_requesters(conn, session) if session is not None and on_behalf_of.kind is AddressKind.CHANNEL else ()
    )
    return spoke or get_requesters_at(conn, (on_behalf_of,))


def require_agent(conn: sa.Connection, name: str) -> Agent:
    agent = agents.find(conn, name)
    if agent is None:
        raise AgentNotFound(name)
    return agent


def session_owner(session: Session) -> Address | None:
    """Return the address that a session belongs to, or None if its key is not an address."""
    try:
        return address.parse_address(session.origin.key.partition("/")[0])
    except Invalid:
        return None


def _first_model(services: Services, agent: Agent, session: Session | None) -> str:
    """Return the model that would be used first, or "" if there is none."""
    try:
        options = session.options if session is not None else SessionOptions()
        return (
            str(services.catalog().build_chain(agent=agent, session_options=options)[0])
            if services.catalog is not None
            else ""
        )
    except (RetinueError, IndexError):
        return ""


def _untrusted_note(services: Services, session: Session | None) -> Record:
    """Return an empty record marked as untrusted. It makes the context of a direct call untrusted.

    When an agent makes a direct call, the server cannot know what the agent has read before.
    """
    note = Note(text="", trust=Trust.UNTRUSTED)
    return Record(
        session=session.id if session is not None else SessionId(""),
        seq=session.record_seq + 1 if session is not None else 1,
        kind=RecordKind.NOTE,
        body=note,
        at_ms=to_ms(services.clock.now()),
        trust=note.trust,
    )
