"""Going on with another agent, and coming back: a person takes their words, or what was said, from one conversation to
another. What they take with them is an envelope like any other."""

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
CAME_FROM = "cameFrom"  # among the `core` attributes of a session: where whoever came here last was before
SUMMARY_BYTES_MAX = 4_096


class Switched(Struct, frozen=True):
    text: str
    wakes: tuple[Wake, ...] = ()


def switch(page: Page, draft: Draft, rest: str, session: Session, agent: Agent, *, who: Principal) -> Switched:
    """/switch AGENT [WORDS], /switch back [WORDS]."""
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
    """From where whoever goes there came."""
    core = patched(there.attributes, {"core": {CAME_FROM: session.id}})
    sessions.set_attributes(page.conn, there.id, core, at_ms=page.at_ms)


def session_with(
    page: Page, speaker: Address, session: Session, to: Agent, who: Principal, *, made_by: EnvelopeId
) -> Session:
    """The last one that this person had with them, or a new one. Whoever speaks in a room stays in it."""
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
    assert made is not None  # just written, in this very commit
    return made


def came_from(page: Page, speaker: Address, session: Session, who: Principal) -> Session | None:
    """Where somebody was before they came here, if they may still go there."""
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
    """The person's own words, on their way to where they go."""
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
    """What the other agent said last, as its words and not the person's: no better than what it knew."""
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
    """So that the window of whoever goes there follows."""
    page.tell(NewsKind.SESSION_SWITCHED, session=session.id, to=there.id, agent=there.agent, by=str(speaker))
