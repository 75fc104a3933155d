"""Move a person's conversation to another agent and back (`/switch`).

The person's text, or the last reply, is carried over as an ordinary envelope.
"""

from __future__ import annotations

from typing import Any, cast

from msgspec import Struct
from msgspec.structs import replace

from retinue.domain import address
from retinue.domain.address import Address, AddressKind
from retinue.domain.agent import Agent
from retinue.domain.envelope import NO_CONTEXT, Draft, Kind
from retinue.domain.event import NewsKind
from retinue.domain.ids import EnvelopeId, SessionId, derived, short
from retinue.domain.principal import Principal
from retinue.domain.record import Reply, least_believed
from retinue.domain.session import Origin, OriginKind, Session, patched
from retinue.domain.storable_text import clipped_bytes
from retinue.domain.trust import Trust
from retinue.intake.accept import Wake, enter
from retinue.store.agents import agents
from retinue.store.core.row_visibility import sees_session
from retinue.store.core.transaction import Page
from retinue.store.sessions import records, sessions

BACK = "back"
CAME_FROM = "cameFrom"  # key in a session's `core` attributes: the session that the last person to switch came from
SUMMARY_BYTES_MAX = 4_096


class Switched(Struct, frozen=True):
    """The reply to a `/switch` command, and the lanes to wake."""

    text: str
    wakes: tuple[Wake, ...] = ()


def switch(page: Page, draft: Draft, rest: str, session: Session, agent: Agent, *, who: Principal) -> Switched:
    """Execute /switch AGENT [TEXT] or /switch back [TEXT]."""
    name, _, words = rest.strip().partition(" ")
    words = words.strip()
    if not name:
        return Switched("Who is it to be? /switch AGENT [WORDS]; /agents says who is here.")
    if name.casefold() == BACK:
        return _back(page, draft, words, session, agent, who)
    to = agents.find(page.conn, name.removeprefix("agent:"))
    if to is None or not to.visible:
        return Switched(f"There is no agent '{name[:40]}' here. /agents says who is.")
    if to.name == agent.name:
        return Switched(f"You are talking to {to.name} already.")
    there = session_with(page, draft.sender, session, to, who, made_by=draft.id)
    remember(page, session, there)
    wakes = enter(page, _letter(draft, there, words)).wakes if words else ()
    return Switched(_went(page, draft, session, there), wakes)


def remember(page: Page, session: Session, there: Session) -> None:
    """Record in the new session which session the person came from."""
    core = patched(there.attributes, {"core": {CAME_FROM: session.id}})
    sessions.set_attributes(page.conn, there.id, core, at_ms=page.at_ms)


def session_with(
    page: Page, speaker: Address, session: Session, to: Agent, who: Principal, *, made_by: EnvelopeId
) -> Session:
    """Return the person's latest session with the agent, or a new one. In a channel it stays in that channel."""
    in_room = speaker.kind is AddressKind.CHANNEL
    if in_room:
        origin = session.origin
    else:
        kind = session.origin.kind if session.origin.kind is OriginKind.TERMINAL else OriginKind.WEB
        fresh = Origin(kind, str(address.person(speaker.name)))
        origin = sessions.latest(page.conn, to.name, whose=who) or fresh
    found = sessions.by_origin(page.conn, to.name, origin)
    if found is not None:
        return found
    id_ = SessionId(derived(made_by, "switch"))
    sessions.start(page, id_, agent=to.name, origin=replace(origin, parent=None))
    made = sessions.get(page.conn, id_)
    assert made is not None  # started just above
    return made


def came_from(page: Page, speaker: Address, session: Session, who: Principal) -> Session | None:
    """Return the session that the person came from, if they may still see it."""
    core = session.attributes.get("core")
    before = cast("dict[str, Any]", core).get(CAME_FROM) if isinstance(core, dict) else None
    there = sessions.get(page.conn, before) if isinstance(before, str) else None
    if there is None or there.deleted_at is not None:
        return None
    in_room = speaker.kind is AddressKind.CHANNEL
    seen = there.origin == session.origin if in_room else sees_session(page.conn, who, there.id)
    return there if seen else None


def _back(page: Page, draft: Draft, words: str, session: Session, agent: Agent, who: Principal) -> Switched:
    there = came_from(page, draft.sender, session, who)
    if there is None:
        return Switched("You did not come here from another agent. /switch AGENT goes to one.")
    if words:
        letter = _letter(draft, there, f"Back from {agent.name}. {words}")
    else:
        letter = _told(page, draft, session, agent, there)
    wakes = enter(page, letter).wakes if letter is not None else ()
    return Switched(_went(page, draft, session, there), wakes)


def _letter(draft: Draft, there: Session, words: str) -> Draft:
    """Return the envelope that carries the person's text to the other session."""
    return Draft(
        id=EnvelopeId(derived(draft.id, "switched")),
        sender=draft.sender,
        recipient=address.agent(there.agent, there.id),
        text=words,
        source="command",
        key=f"{draft.id}/switched",
        attachments=draft.attachments,
        context=replace(draft.context, request=None) if draft.context is not NO_CONTEXT else NO_CONTEXT,
        trust=draft.trust,
    )


def _told(page: Page, draft: Draft, session: Session, agent: Agent, there: Session) -> Draft | None:
    """Return the other agent's last reply as an agent's message, with no more trust than its context."""
    found, _ = records.read(page.conn, session.id, first=session.context_from, last=session.record_seq)
    said = next((r.body.text for r in reversed(found) if isinstance(r.body, Reply) and r.body.text.strip()), "")
    if not said:
        return None
    doubted = least_believed(found) is Trust.UNTRUSTED
    return Draft(
        id=EnvelopeId(derived(draft.id, "switched")),
        sender=address.agent(agent.name, session.id),
        recipient=address.agent(there.agent, there.id),
        text=f"{draft.sender} is back from {agent.name}, who said last:\n{clipped_bytes(said, SUMMARY_BYTES_MAX)}",
        source="command",
        key=f"{draft.id}/switched",
        kind=Kind.SYSTEM,
        trust=Trust.UNTRUSTED if doubted else Trust.AGENT,
        silent=True,
    )


def _went(page: Page, draft: Draft, session: Session, there: Session) -> str:
    tell(page, draft.sender, session, there)
    if draft.sender.kind is AddressKind.CHANNEL:
        return f"{there.agent} has it, and answers here. What you write here still goes to {session.agent}."
    return f"You go on with {there.agent}, in the session {short(there.id)}."


def tell(page: Page, speaker: Address, session: Session, there: Session) -> None:
    """Emit the event that lets the person's web app follow to the other session."""
    page.tell(NewsKind.SESSION_SWITCHED, session=session.id, to=there.id, agent=there.agent, by=str(speaker))
