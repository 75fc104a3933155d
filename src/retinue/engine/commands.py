"""Commands of a conversation, carried out and answered by the house in the very commit that accepts them.

They take the road of all mail: kept, counted, settled, answered by an envelope. Only nobody's model is asked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from zoneinfo import ZoneInfo

import sqlalchemy as sa
from msgspec.structs import replace

from retinue.domain import address
from retinue.domain.address import AddressKind
from retinue.domain.agent import Agent, PermissionLevel
from retinue.domain.command import Command, CommandName, help_lines, unknown
from retinue.domain.envelope import Draft, Kind, Outcome, Receipt
from retinue.domain.errors import RetinueError
from retinue.domain.event import NewsKind
from retinue.domain.grant import GrantScope
from retinue.domain.ids import EnvelopeId, RunId, derived, short
from retinue.domain.principal import LEVEL_OF, Principal
from retinue.domain.run import RunRequest
from retinue.domain.session import Session
from retinue.domain.times import from_ms, show
from retinue.domain.trust import Trust
from retinue.engine import choosing
from retinue.engine.approvals import decide_in
from retinue.engine.choosing import Choices
from retinue.engine.endings import NOTHING_CANCELLED, NOTHING_SAID, Cancelled, Said, cancel_in
from retinue.mailroom.inbox import Wake, enter, keep_command, purged_before, seen_before
from retinue.mailroom.routing import OWNER, answer_address
from retinue.store import approvals, envelopes, people, purge, records, runs
from retinue.store.house import Page

ENTITLED = frozenset({Trust.OWNER, Trust.PERSON})


@dataclass(frozen=True, slots=True)
class Commanded:
    """What became of a command: the receipt for it, the runs it ended, and whom it woke."""

    receipt: Receipt
    cancelled: Cancelled = NOTHING_CANCELLED
    wakes: tuple[Wake, ...] = ()


@dataclass(slots=True)
class _Done:
    text: str
    cancelled: Cancelled = NOTHING_CANCELLED
    wakes: list[Wake] = field(default_factory=list[Wake])


def carry_out(
    conn: sa.Connection,
    *,
    draft: Draft,
    command: Command,
    now_ms: int,
    zone: ZoneInfo,
    choices: Choices,
    said: Mapping[RunId, Said] = NOTHING_SAID,
) -> Commanded:
    seen = envelopes.by_key(conn, draft.source, draft.key)
    if seen is not None:
        return Commanded(seen_before(conn, draft, seen).receipt)
    page = Page(conn, now_ms)
    if (gone := purge.by_key(conn, draft.source, draft.key)) is not None:
        return Commanded(purged_before(draft, gone).receipt)
    session, agent = keep_command(page, draft)
    if draft.trust not in ENTITLED:
        # Kept and recorded, and not answered: whoever tries doors learns nothing from them.
        because = f"command-not-allowed: /{command.word} from someone who may not command here"
        _settle(page, draft, session, Outcome.REFUSED, because, answer=None)
        page.close()
        return Commanded(_receipt(page, draft, session, Outcome.REFUSED, because))
    to = answer_address(draft.sender, origin=session.origin)
    answer = EnvelopeId(derived(draft.id, "answer")) if to is not None else None
    because = f"the house answered /{command.word}"
    _settle(page, draft, session, Outcome.ANSWERED, because, answer=answer)  # first: it is none of what waits
    done = _do(page, draft, command, session, agent, zone, choices, said)
    wakes = list(done.wakes)
    if to is not None and answer is not None:
        wakes += enter(
            page,
            Draft(
                id=answer,
                sender=address.agent(agent.name, session.id),
                recipient=to,
                text=done.text,
                source="house",
                key=f"{draft.id}/answer",
                kind=Kind.ANSWER,
                reply_to=draft.id,
                trust=Trust.PRIVATE,
            ),
        ).wakes
    page.close()
    return Commanded(_receipt(page, draft, session, Outcome.ANSWERED, because), done.cancelled, tuple(wakes))


def _settle(
    page: Page, draft: Draft, session: Session, outcome: Outcome, because: str, *, answer: EnvelopeId | None
) -> None:
    envelopes.settle(
        page.conn,
        [draft.id],
        outcome,
        because=because,
        at_ms=page.at_ms,
        answer=answer,
        silent=outcome is Outcome.ANSWERED and answer is None,
    )
    page.tell(NewsKind.ENVELOPE_SETTLED, session=session.id, envelope=draft.id, outcome=outcome.value, because=because)


def _receipt(page: Page, draft: Draft, session: Session, outcome: Outcome, because: str) -> Receipt:
    return Receipt(envelope=draft.id, session=session.id, news_seq=page.news_seq, outcome=outcome, because=because)


def _do(
    page: Page,
    draft: Draft,
    command: Command,
    session: Session,
    agent: Agent,
    zone: ZoneInfo,
    choices: Choices,
    said: Mapping[RunId, Said],
) -> _Done:
    by = str(draft.sender)
    match command.name:
        case None:
            return _Done(unknown(command.word))
        case CommandName.HELP:
            return _Done("\n".join(help_lines()))
        case CommandName.STATUS:
            return _Done(_status(page, session, agent, zone))
        case CommandName.CONTEXT:
            return _Done(_context(page, session, agent, choices))
        case CommandName.COMPACT:
            return _compact(page, draft, command, session, agent)
        case CommandName.MODEL:
            return _Done(choosing.model(page, command.rest, session, agent, choices))
        case CommandName.THINK:
            return _Done(choosing.think(page, command.rest, session, agent, choices))
        case CommandName.WHOAMI:
            return _Done(f"You are {draft.sender}, and {agent.name} hears you as {_standing(draft.trust)}.")
        case CommandName.STOP | CommandName.ABORT:
            done = cancel_in(page, session.id, by=by, why=f"/{command.word}", clear_due=True, said=said)
            return _Done(_stopped(done), done)
        case CommandName.RESET:
            done = cancel_in(page, session.id, by=by, why="/reset", reset=command.rest)
            kept = " Your words are kept in it." if command.rest else ""
            return _Done(f"A fresh context.{kept}", done)
        case CommandName.NEW:
            return _new(page, draft, command, session, agent)
        case CommandName.ALLOW | CommandName.DENY:
            return _decide(page, draft, command, session)


def _new(page: Page, draft: Draft, command: Command, session: Session, agent: Agent) -> _Done:
    done = _Done("A fresh context.", cancel_in(page, session.id, by=str(draft.sender), why="/new", reset=""))
    if command.rest:
        mail = Draft(
            id=EnvelopeId(derived(draft.id, "new")),
            sender=draft.sender,
            recipient=address.agent(agent.name, session.id),
            text=command.rest,
            source="command",
            key=f"{draft.id}/new",
            attachments=draft.attachments,
            context=draft.context,
            trust=draft.trust,
        )
        done.wakes += enter(page, mail).wakes
    return done


def _compact(page: Page, draft: Draft, command: Command, session: Session, agent: Agent) -> _Done:
    """A summary needs a model, so a run makes it, in its turn; this answer only says that it will."""
    mail = Draft(
        id=EnvelopeId(derived(draft.id, "compact")),
        sender=draft.sender,
        recipient=address.agent(agent.name, session.id),
        text="Compact this conversation.",
        source="command",
        key=f"{draft.id}/compact",
        kind=Kind.SYSTEM,
        context=replace(draft.context, request=RunRequest(compact=command.rest)),
        trust=draft.trust,
    )
    return _Done(
        "I will tell this conversation in short, and say when it is done.", wakes=list(enter(page, mail).wakes)
    )


def _decide(page: Page, draft: Draft, command: Command, session: Session) -> _Done:
    id_, _, more = command.rest.strip().partition(" ")
    try:
        who = _who(page, draft)
        scope, words = _scope_and_words(more)
        approval = approvals.resolve(page.conn, id_)
        if approval.session != session.id and not (who.sees_all or who.address in approval.asked_of):
            return _Done(f"There is no open question {id_[:40]} in this conversation.")
        decided, wakes = decide_in(
            page,
            approval,
            allow=command.name is CommandName.ALLOW,
            by=who,
            envelope_id=EnvelopeId(derived(draft.id, "decision")),
            scope=scope,
            words=words,
        )
    except RetinueError as error:
        return _Done(f"That could not be done: {error.sentence}." + (f" ({error.because})" if error.because else ""))
    return _Done(f"{short(decided.id)} is {decided.state}.", wakes=list(wakes))


def _who(page: Page, draft: Draft) -> Principal:
    """Whoever commands, as one who decides, with what they may do here now. An owner who writes from a channel is the
    owner."""
    if draft.trust is Trust.OWNER:
        who = draft.sender if draft.sender.kind is AddressKind.PERSON else OWNER
        return Principal(address=who, level=PermissionLevel.BOSS, trust=draft.trust)
    known = people.find(page.conn, draft.sender.name) if draft.sender.kind is AddressKind.PERSON else None
    level = LEVEL_OF[known.role] if known is not None else PermissionLevel.RESTRICTED
    return Principal(address=draft.sender, level=level, trust=draft.trust)


def _scope_and_words(text: str) -> tuple[GrantScope, str]:
    """`session because she asked` is for this conversation, with words; without a scope, a yes is for once."""
    first, _, rest = text.strip().partition(" ")
    if first.lower() in tuple(GrantScope):
        return GrantScope(first.lower()), rest.strip()
    return GrantScope.ONCE, text.strip()


def _stopped(done: Cancelled) -> str:
    if not done.runs and not done.cleared:
        return "Nothing was running here, and nothing waited."
    runs_ended = f"{len(done.runs)} run{'s' if len(done.runs) != 1 else ''} stopped"
    return f"{runs_ended}, {done.cleared} waiting cleared."


def _standing(trust: Trust) -> str:
    return "its owner" if trust is Trust.OWNER else "someone at home here"


def _status(page: Page, session: Session, agent: Agent, zone: ZoneInfo) -> str:
    run = runs.open_in(page.conn, session.id)
    lines = {
        "now": show(from_ms(page.at_ms), zone),
        "agent": agent.name,
        "model": session.mind.model or agent.model or "as the house has it",
        "session": short(session.id),
        "run": f"{short(run.id)} {run.status} since {show(run.started_at, zone)}" if run else "none",
        "waiting-envelopes": envelopes.count_due(page.conn, session.id, page.at_ms),
        "queue-mode": session.queue.over(agent.queue).mode,
        "records": session.record_seq,
        "compactions": session.compactions,
    }
    return "\n".join(f"{key}: {value}" for key, value in lines.items())


def _context(page: Page, session: Session, agent: Agent, choices: Choices) -> str:
    found, damaged = records.read(page.conn, session.id, first=session.context_from, last=session.record_seq)
    lines = {
        "session": short(session.id),
        "records-kept": session.record_seq,
        "damaged-records": len(damaged),
        "contexts-begun": session.revision + 1,
    }
    return "\n".join([*choices.report(agent, session, found), *(f"{key}: {value}" for key, value in lines.items())])
