"""Agent messages from one session to another: their recipient and the lineage of the run they start.

An agent message is an envelope of kind `system`. It may start a run, whose answer goes to the
person of that session. The sending agent gets no answer.
"""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa

from retinue.domain import address
from retinue.domain.address import AddressKind
from retinue.domain.agent import Agent, PermissionLevel
from retinue.domain.agent_message import Heard, Strategy, Word
from retinue.domain.delegation import Delegation, DelegationKind, Lineage
from retinue.domain.envelope import NO_CONTEXT, Context, Draft, Kind, Outcome
from retinue.domain.errors import Invalid, NotAllowed, NotFound
from retinue.domain.ids import EnvelopeId, SessionId, derived
from retinue.domain.principal import Principal
from retinue.domain.run import Run
from retinue.domain.session import SENT_OUT, Origin, OriginKind, Session
from retinue.domain.trust import Trust, least
from retinue.engine import agent_switch
from retinue.intake.accept import Wake, enter
from retinue.policy.access.agent_visibility import may_message
from retinue.policy.access.session_access import may_reach
from retinue.policy.tools.delegations import descends, may_hand_over
from retinue.store.agents import agents
from retinue.store.core.transaction import Page
from retinue.store.envelopes import envelopes
from retinue.store.runs import delegations, runs
from retinue.store.runs.message_authors import descent
from retinue.store.runs.run_principal import came_of, sees, whose
from retinue.store.sessions import sessions
from retinue.store.sessions.session_names import named

CONVERSATIONS_LOOKED_AT_MAX = 100
PEOPLE = frozenset({AddressKind.PERSON, AddressKind.CHANNEL})


def pass_on(conn: sa.Connection, *, word: Word, now_ms: int) -> tuple[Heard, tuple[Wake, ...]]:
    """The commit of a call that sends an agent message. A repeated call returns the first result."""
    id_ = EnvelopeId(derived(word.run, f"word/{word.call}"))
    said = envelopes.get(conn, id_)
    if said is not None and said.session is not None:
        ended = envelopes.settled(conn, id_)
        refused = ended.because if ended is not None and ended.outcome is Outcome.REFUSED else ""
        return Heard(envelope=id_, agent=said.recipient.name, session=said.session, refused=refused), ()
    page = Page(conn, now_ms)
    heard = _say(page, word, id_)
    page.close()
    return heard


def _say(page: Page, word: Word, id_: EnvelopeId) -> tuple[Heard, tuple[Wake, ...]]:
    run = runs.get(page.conn, word.run)
    here = sessions.get(page.conn, run.session) if run is not None else None
    speaker = agents.find(page.conn, run.agent) if run is not None else None
    if run is None or here is None or speaker is None:
        raise NotAllowed(
            "a word is said by a run, and this is none",
            because="nobody would know where it came from",
            try_this="send an envelope instead",
            code="word.no-run",
        )
    if word.switches:
        to, target = _elsewhere(page, word, id_, run, here, speaker)
    else:
        to, target = _to(page, word, id_, run, here, speaker)
    lineage = _lineage(page, word, run, here, speaker, to, target)
    draft = Draft(
        id=id_,
        sender=address.agent(speaker.name, here.id),
        recipient=address.agent(to.agent, to.id),
        text=word.text,
        source="run",
        key=f"{run.id}/{word.call}/word",
        kind=Kind.SYSTEM,
        context=Context(lineage=lineage) if lineage is not None else NO_CONTEXT,
        trust=least((Trust.AGENT, word.trust)),
        silent=word.silent,
    )
    entered = enter(page, draft)
    if word.switches:
        agent_switch.tell(page, run.sender, here, to)
    refused = entered.receipt.because if entered.receipt.outcome is Outcome.REFUSED else ""
    return Heard(envelope=id_, agent=to.agent, session=to.id, refused=refused), entered.wakes


# --- recipient ---


def _to(page: Page, word: Word, id_: EnvelopeId, run: Run, here: Session, speaker: Agent) -> tuple[Session, Agent]:
    if word.to and word.strategy:
        raise Invalid(
            "this names two who are to hear it",
            because="an agent or a session is one, and a strategy finds another",
            try_this="give one of them",
            code="word.named-twice",
        )
    if word.strategy:
        found = _by_strategy(page, word.strategy, run, here, speaker)
    elif word.to:
        found = _named(page, word, id_, run, here, speaker)
    else:
        found = _above(page, here) or _latest(page, run, here, speaker, _foreground(page))
    target = agents.find(page.conn, found.agent) if found is not None else None
    if found is None or target is None:
        raise NotFound(
            "there is nobody to hear this",
            because="no session sent this one out, and the person it works for has no other conversation",
            try_this="name an agent, as agents_list has them",
            code="word.nobody",
        )
    return found, target


def _above(page: Page, here: Session) -> Session | None:
    """Return the session that started this one."""
    parent = sessions.get(page.conn, here.origin.parent) if here.origin.parent is not None else None
    return parent if parent is not None and parent.deleted_at is None else None


def _by_strategy(page: Page, strategy: str, run: Run, here: Session, speaker: Agent) -> Session | None:
    match strategy.strip().casefold():
        case Strategy.MOST_RECENT_FOREGROUND:
            return _latest(page, run, here, speaker, _foreground(page))
        case Strategy.HEARTBEAT:
            latest = sessions.latest_of_kind(page.conn, OriginKind.HEARTBEAT, limit=CONVERSATIONS_LOOKED_AT_MAX)
            return _latest(page, run, here, speaker, latest)
        case _:
            raise Invalid(
                f"'{strategy[:40]}' is no strategy",
                because=f"there are: {', '.join(Strategy)}",
                try_this="choose one of them, or name an agent",
                code="word.strategy-unknown",
            )


def _foreground(page: Page) -> Sequence[Session]:
    return sessions.latest_foreground(page.conn, limit=CONVERSATIONS_LOOKED_AT_MAX)


def _latest(page: Page, run: Run, here: Session, speaker: Agent, newest_first: Sequence[Session]) -> Session | None:
    """Return the latest session other than this one, or None.

    Sessions of the run principal come first, then others that they may see.
    """
    behalf = str(run.descent.behalf)
    who = whose(page.conn, run)
    seen = [each for each in newest_first if each.id != here.id and sees(page.conn, who, each)]
    theirs = [each for each in seen if each.origin.belongs_to(behalf) or each.origin.key == behalf]
    return next((each for each in (*theirs, *seen) if _may_hear(page, speaker, each)), None)


def _may_hear(page: Page, speaker: Agent, session: Session) -> bool:
    target = agents.find(page.conn, session.agent)
    return target is not None and (target.name == speaker.name or may_message(speaker, target).allowed)


def _named(page: Page, word: Word, id_: EnvelopeId, run: Run, here: Session, speaker: Agent) -> Session | None:
    """Find the named session. An agent name means the session that this one has with that agent."""
    name = word.to.removeprefix("agent:")
    target = agents.find(page.conn, name)
    if target is not None:
        return session_with(page, id_, here, target)
    who = whose(page.conn, run)
    found = named(page.conn, word.to, agent=speaker.name, whose=who)
    owner = agents.find(page.conn, found.agent) if found is not None else None
    if found is None or owner is None:
        raise _nowhere(word.to)
    reach = may_reach(
        speaker,
        owner,
        confined=word.confined,
        came_of_it=found.id in (here.origin.parent, _asked_by(page, run, here)) or came_of(page.conn, found, here),
        behalf_sees=sees(page.conn, who, found),
    )
    if reach.denied:
        if not reach.key:
            raise _nowhere(word.to)
        raise NotAllowed(
            f"{speaker.name} cannot write into that session",
            because=reach.because,
            try_this=f"ask the owner to change `{reach.key}`",
            code="word.refused",
        )
    return found


def session_with(page: Page, id_: EnvelopeId, here: Session, target: Agent) -> Session:
    """Return the latest session that an agent has with this one, or a new one.

    It does not contain messages from other sessions.
    """
    origin = Origin(OriginKind.AGENT, str(address.agent(here.agent, here.id)))
    found = sessions.latest_of(page.conn, target.name, origin)
    if found is not None:
        return found
    made = SessionId(derived(id_, "session"))
    sessions.start(page, made, agent=target.name, origin=origin)
    session = sessions.get(page.conn, made)
    assert session is not None  # started just above
    return session


def _nowhere(text: str) -> NotFound:
    return NotFound(
        f"there is no agent and no session '{text[:80]}'",
        because="none of that name is here for you",
        try_this="agents_list and sessions_list say who is",
        code="word.not-found",
    )


# --- switching a person to another agent ---


def _elsewhere(
    page: Page, word: Word, id_: EnvelopeId, run: Run, here: Session, speaker: Agent
) -> tuple[Session, Agent]:
    """Return the conversation to which the person moves."""
    if not here.origin.kind.foreground or run.lineage is not None or run.sender.kind not in PEOPLE:
        raise NotAllowed(
            "nobody sits here who could go elsewhere",
            because="only a person's own words in their own conversation take them to another",
            try_this="agents_message asks another agent, and stays here",
            code="switch.nobody",
        )
    # With restricted level, so that even the owner moves only within their own conversations.
    who = Principal(address=run.sender, level=PermissionLevel.RESTRICTED, trust=Trust.PERSON)
    back = word.to.casefold() == agent_switch.BACK
    if back:
        there = agent_switch.came_from(page, run.sender, here, who)
        target = agents.find(page.conn, there.agent) if there is not None else None
        if there is None or target is None:
            raise NotFound(
                "they did not come here from another agent",
                because="nobody brought them, or that conversation is gone",
                try_this="name the agent they want to go on with",
                code="switch.nowhere",
            )
        return there, target
    target = agents.find(page.conn, word.to.removeprefix("agent:"))
    if target is None or not may_message(speaker, target).allowed:
        raise _nowhere(word.to)
    there = agent_switch.session_with(page, run.sender, here, target, who, made_by=id_)
    agent_switch.remember(page, here, there)
    return there, target


# --- lineage ---


def _asked_by(page: Page, run: Run, here: Session) -> SessionId | None:
    handed = _handed(page, run, here)
    return handed.session if handed is not None else None


def _handed(page: Page, run: Run, here: Session) -> Delegation | None:
    """Return the delegation that this run works on, or for which its session was made.

    A message that another agent once wrote into a session does not make its later runs delegated.
    """
    asked = delegations.get(page.conn, run.envelopes[0]) if run.envelopes else None
    if asked is None and here.origin.kind in SENT_OUT:
        return delegations.get(page.conn, here.origin.key)
    return asked


def _lineage(
    page: Page, word: Word, run: Run, here: Session, speaker: Agent, to: Session, target: Agent
) -> Lineage | None:
    """Return the lineage of the run that the message starts.

    A message back to the delegating session has the lineage of the result. Any other message counts
    as delegation.
    """
    handed = _handed(page, run, here)
    if handed is not None and handed.session == to.id:
        return handed.above
    own = target.name == speaker.name
    if word.switches and word.to.casefold() == agent_switch.BACK:  # the way back is always allowed
        decision = None
    elif word.silent:  # a silent message starts no run
        decision = None if own else may_message(speaker, target)
    else:
        kind = DelegationKind.SEND if own else DelegationKind.MESSAGE
        decision = may_hand_over(speaker, target, kind, descent=run.descent, open_count=0)
    if decision is not None and decision.denied:
        raise NotAllowed(
            f"{speaker.name} cannot say this to {target.name}",
            because=decision.because,
            try_this=f"ask the owner to change `{decision.key}`" if decision.key else "",
            code="word.refused",
        )
    return None if word.silent else descends(descent(page.conn, run), speaker, target, DelegationKind.MESSAGE)
