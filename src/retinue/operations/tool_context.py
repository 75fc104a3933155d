"""Build the tool context of a call that is explained, or made outside of a run.

`policy explain` and direct calls use the same context, so an explanation matches what really happens.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import sqlalchemy as sa

from retinue.agents.agent_directory import home_of
from retinue.domain import address
from retinue.domain.address import Address, AddressKind
from retinue.domain.agent import Agent
from retinue.domain.errors import Invalid, NotFound, RetinueError
from retinue.domain.ids import RunId, SessionId
from retinue.domain.permission import default_rights
from retinue.domain.person import Requester
from retinue.domain.principal import Principal
from retinue.domain.record import Note, Record, RecordKind
from retinue.domain.session import Mind, OriginKind, Session
from retinue.domain.times import to_ms
from retinue.domain.trust import Trust
from retinue.operations.base import Desk
from retinue.policy.tools.tools import Circumstances, Door
from retinue.runners.model_context import as_read
from retinue.store.agents import agents
from retinue.store.runs import delegating_agents
from retinue.store.runs.run_requesters import requesters_at, requesters_in
from retinue.store.sessions import records, sessions
from retinue.tools.toolbox import Occasion


async def occasion_for(
    desk: Desk,
    caller: Principal,
    *,
    agent: str,
    session: str = "",
    sender: str = "",
    origin: OriginKind = OriginKind.EXTERNAL,
    model: str = "",
    door: Door,
    as_if: Callable[[Agent], Agent] | None = None,
) -> Occasion:
    """Return the context of a call from this entry point, in one of the agent's sessions or in a new one.

    The sender defaults to the owner of the session, or else the caller. The model defaults to the one
    that the agent would use. A direct call has no model, and a session only if one is given. `as_if`
    returns the agent with changes that are not stored yet.
    """

    def read(conn: sa.Connection) -> tuple[Agent, Session | None, list[Record], tuple[Agent, ...]]:
        found = named_agent(conn, agent)
        if not session:
            return found, None, [], ()
        inside = sessions.resolve(conn, session, seen_by=caller)
        if inside.agent != found.name:
            raise NotFound(
                f"that session is not {found.name}'s",
                because=f"it belongs to {inside.agent}",
                try_this="list them: retinue sessions",
                code="session.not-found",
            )
        told, _ = records.read(conn, inside.id, first=inside.context_from, last=inside.record_seq)
        return found, inside, as_read(told), delegating_agents.in_session(conn, inside)

    who, inside, context, sent_by = await desk.store.scan(read)
    if as_if is not None:
        who = as_if(who)
    by_model = door is Door.MODEL
    kind = inside.origin.kind if inside is not None else origin if by_model else OriginKind.EXTERNAL
    whose = whose_session(inside) if inside is not None and by_model else None
    works_for = address.parse(sender) if sender else whose or caller.address
    if not by_model and (caller.trust is Trust.UNTRUSTED or works_for.kind is AddressKind.AGENT):
        context = [*context, _from_untrusted(desk, inside)]
    provider, _, name = (model or _model_of(desk, who, inside)).partition("/") if by_model else ("", "", "")
    acting = sent_by[0] if sent_by else who  # a subagent uses the directories of the agent that started it
    home = home_of(desk.home, acting.name)
    id_ = desk.ids.new()
    return Occasion(
        agent=who,
        session=inside.id if inside is not None else SessionId(id_),
        run=RunId(id_),
        home=home,
        acting=acting,
        rights=default_rights(home, desk.defaults.workspace_of(acting, home)),
        where=Circumstances(
            provider=provider if name else "",
            model=name or provider,
            origin=kind,
            sender=works_for,
            requesters=await desk.store.read(
                partial(_requesters, works_for=works_for, inside=None if sender else inside)
            ),
            senders=sent_by,
            channel=inside.origin.channel if inside is not None else "",
            door=door,
        ),
        context=context,
    )


def _requesters(conn: sa.Connection, *, works_for: Address, inside: Session | None) -> tuple[Requester, ...]:
    """Return the people who wrote last in the session, or else the person the call is for."""
    spoke = requesters_in(conn, inside) if inside is not None and works_for.kind is AddressKind.CHANNEL else ()
    return spoke or requesters_at(conn, (works_for,))


def named_agent(conn: sa.Connection, name: str) -> Agent:
    agent = agents.find(conn, name)
    if agent is None:
        raise NotFound(
            f"there is no agent '{name[:64]}'",
            because="nobody of that name works here",
            try_this="list them: retinue agent list",
            code="agent.not-found",
        )
    return agent


def whose_session(session: Session) -> Address | None:
    """Return the address that a session belongs to, or None if its key is not an address."""
    try:
        return address.parse(session.origin.key.partition("/")[0])
    except Invalid:
        return None


def _model_of(desk: Desk, agent: Agent, session: Session | None) -> str:
    """Return the model that would be used first, or "" if there is none."""
    try:
        mind = session.mind if session is not None else Mind()
        return str(desk.catalog().chain(agent=agent, mind=mind)[0]) if desk.catalog is not None else ""
    except (RetinueError, IndexError):
        return ""


def _from_untrusted(desk: Desk, session: Session | None) -> Record:
    """Return an untrusted note: outside its runs, an agent's request may stem from anything that it has read."""
    note = Note(text="", trust=Trust.UNTRUSTED)
    return Record(
        session=session.id if session is not None else SessionId(""),
        seq=session.record_seq + 1 if session is not None else 1,
        kind=RecordKind.NOTE,
        body=note,
        at_ms=to_ms(desk.clock.now()),
        trust=note.trust,
    )
