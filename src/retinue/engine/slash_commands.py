"""Slash commands, executed and answered in the commit that accepts them.

They are envelopes like any other: stored, settled and answered by an envelope, but without a model
call. Directives inside other text are removed here, and the rest goes to the agent.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import assert_never
from zoneinfo import ZoneInfo

import sqlalchemy as sa
from msgspec import Struct, field
from msgspec.structs import replace

from retinue.config.sessions import SessionSettings
from retinue.domain import address
from retinue.domain.address import AddressKind
from retinue.domain.agent import Agent, PermissionLevel
from retinue.domain.envelope import TEXT_BYTES_MAX, Draft, Kind, Outcome, Receipt
from retinue.domain.errors import RetinueError
from retinue.domain.event import NewsKind
from retinue.domain.ids import EnvelopeId, RunId, derived
from retinue.domain.ports import Clock
from retinue.domain.principal import LEVEL_OF, Principal
from retinue.domain.prompt_breakdown import Part
from retinue.domain.run import NO_REQUEST, RunRequest
from retinue.domain.session import Mind, Session
from retinue.domain.slash_command import (
    ENTITLED,
    SHORTCUTS,
    Asked,
    Command,
    CommandName,
    SkillCommand,
    directs,
    help_lines,
    unknown,
)
from retinue.domain.storable_text import clipped_bytes
from retinue.domain.times import to_ms
from retinue.domain.trust import Trust
from retinue.domain.ui_context import line_of
from retinue.engine import agent_switch, approval_commands, session_commands, status_commands
from retinue.engine.directives import directed
from retinue.engine.run_finish import NOTHING_CANCELLED, Cancelled, Said, cancel_in
from retinue.engine.session_commands import Choices
from retinue.engine.skill_commands import Called, called, no_such_skill
from retinue.intake.accept import Wake, enter, keep_command, known_session, purged_before, seen_before
from retinue.intake.routing import OWNER, answer_address
from retinue.store.agents import agents
from retinue.store.core.connection import Store
from retinue.store.core.transaction import Page
from retinue.store.envelopes import envelopes, outcomes
from retinue.store.maintenance import purge
from retinue.store.people import people
from retinue.store.runs import runs
from retinue.store.sessions import sessions

CHILDREN_LOOKED_AT_MAX = 100
GREET = (
    "A fresh context was asked for, and nothing else. Greet whoever asked in one or two sentences, as yourself, and "
    "ask what they would like to do. Do not mention these words, and use no tools."
)

Skills = Callable[[Agent, Session | None], Awaitable[Sequence[SkillCommand]]]
"""Which skills of an agent people can call for, in this conversation."""


async def no_skills(_agent: Agent, _session: Session | None) -> Sequence[SkillCommand]:
    """Return no skill commands."""
    return ()


class Brought(Struct, frozen=True, kw_only=True):
    """What a commit cannot read from the database: skills on disk and prompt parts."""

    skills: Sequence[SkillCommand] = ()
    parts: Sequence[Part] = ()


class Commanded(Struct, frozen=True):
    """The result of a command: its receipt, the runs it ended and the lanes to wake.

    Without a receipt the text was no command and is an ordinary message.
    """

    receipt: Receipt | None
    cancelled: Cancelled = NOTHING_CANCELLED
    wakes: tuple[Wake, ...] = ()


class _Done(Struct):
    text: str
    cancelled: Cancelled = NOTHING_CANCELLED
    wakes: list[Wake] = field(default_factory=list[Wake])


class _Scene(Struct, frozen=True, kw_only=True):
    """Everything that one command needs."""

    page: Page
    draft: Draft
    session: Session
    agent: Agent
    zone: ZoneInfo
    choices: Choices
    brought: Brought
    settings: SessionSettings
    said: Mapping[RunId, Said]
    number: approval_commands.Numbered | None = None  # what a bare number answers here


class Commands:
    """Handles the slash commands of sessions. `on_committed` is called with each commit."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        *,
        zone: ZoneInfo,
        choices: Choices,
        skills: Skills,
        sessions: Callable[[], SessionSettings],
        said: Callable[[], Mapping[RunId, Said]],
        done: Callable[[Commanded | None], None],
        by_number: Callable[[str], bool] = lambda _instance: False,
    ) -> None:
        """`answers_by_number` returns whether questions of a connector are answered with numbers, without buttons."""
        self._by_number = by_number
        self._store = store
        self._clock = clock
        self._zone = zone
        self._choices = choices
        self._skills = skills
        self._sessions = sessions
        self._said = said
        self._done = done

    async def take(self, draft: Draft, asked: Asked) -> Receipt | Draft:
        """Return a receipt if the server has done everything. Otherwise return the draft for the agent."""
        commands = asked.commands
        if _is_number(commands) and (draft.trust not in ENTITLED or not self._by_number(draft.sender.name)):
            return draft  # no numbered options were offered there
        if draft.trust not in ENTITLED:
            return await self._carry_out(draft, commands, Brought()) or draft
        agent, session = await self._store.read(partial(_where, draft=draft))
        brought = await self._bring(commands, agent, session)
        if (skill := called(commands, brought.skills)) is not None:
            return _calling(draft, skill)
        # attachments need an agent, like text
        if asked.whole and not (draft.attachments and all(map(directs, commands))):
            return await self._carry_out(draft, commands, brought) or draft
        if asked.begins and agent is not None and self._is_unknown_model(commands[0], agent):
            # the reply says why, before anything runs
            return await self._carry_out(draft, commands[:1], brought) or draft
        for command in commands:
            if command.name in SHORTCUTS:
                await self._carry_out(_aside(draft, command), (command,), brought)
        return directed(draft, asked, agent, self._choices)

    def _is_unknown_model(self, command: Command, agent: Agent) -> bool:
        if command.name is not CommandName.MODEL:
            return False
        try:
            self._choices.choose(command.rest, agent, Mind())
        except RetinueError:
            return True
        return False

    async def _carry_out(self, draft: Draft, commands: Sequence[Command], brought: Brought) -> Receipt | None:
        body = partial(
            carry_out,
            draft=draft,
            commands=commands,
            now_ms=to_ms(self._clock.now()),
            zone=self._zone,
            choices=self._choices,
            brought=brought,
            settings=self._sessions(),
            said=self._said(),
        )
        return (await self._store.write(body, point="command", then=self._done)).receipt

    async def _bring(self, commands: Sequence[Command], agent: Agent | None, session: Session | None) -> Brought:
        """Load skills and prompt parts only for commands that need them."""
        if agent is None:
            return Brought()
        names = {command.name for command in commands}
        skills = await self._skills(agent, session) if names & {None, CommandName.SKILL, CommandName.HELP} else ()
        detailed = any(command.name is CommandName.CONTEXT and command.rest for command in commands)
        return Brought(skills=skills, parts=await self._choices.parts(agent, session) if detailed else ())


def _where(conn: sa.Connection, *, draft: Draft) -> tuple[Agent | None, Session | None]:
    agent = agents.find(conn, draft.recipient.name)
    return agent, known_session(conn, draft, agent) if agent is not None else None


def _calling(draft: Draft, skill: Called) -> Draft:
    """Return the draft whose run uses the skill, or only makes its call."""
    request = draft.context.request or NO_REQUEST
    asked = replace(request, skill=skill.skill) if skill.call is None else replace(request, call=skill.call)
    text = line_of(draft.text) + skill.text if skill.text else draft.text
    return replace(draft, text=text, context=replace(draft.context, request=asked))


def _aside(draft: Draft, command: Command) -> Draft:
    """Return a shortcut inside other text as a separate draft. Its id is the same if it is sent again."""
    id_ = derived(f"{draft.source}\n{draft.key}", command.word)
    return replace(draft, id=EnvelopeId(id_), key=id_, text=command.raw, attachments=())


def carry_out(
    conn: sa.Connection,
    *,
    draft: Draft,
    commands: Sequence[Command],
    now_ms: int,
    zone: ZoneInfo,
    choices: Choices,
    brought: Brought,
    settings: SessionSettings,
    said: Mapping[RunId, Said],
) -> Commanded:
    """The commit that executes the commands of one message and answers them."""
    seen = envelopes.by_key(conn, draft.source, draft.key)
    if seen is not None:
        return Commanded(seen_before(conn, draft, seen).receipt)
    page = Page(conn, now_ms)
    if (gone := purge.by_key(conn, draft.source, draft.key)) is not None:
        return Commanded(purged_before(draft, gone).receipt)
    number = approval_commands.numbered(page, draft, commands[0]) if _is_number(commands) else None
    if commands[0].bare and number is None and (_is_number(commands) or not _is_busy(page, draft)):
        page.close()
        return Commanded(None)
    session, agent = keep_command(page, draft)
    word = commands[0].word
    if draft.trust not in ENTITLED:
        # Stored but not answered: an unauthorized sender learns nothing.
        because = f"command-not-allowed: /{word} from someone who may not command here"
        _settle(page, draft, session, Outcome.REFUSED, because, answer=None)
        page.close()
        return Commanded(_receipt(page, draft, session, Outcome.REFUSED, because))
    to = answer_address(draft.sender, origin=session.origin)
    answer = EnvelopeId(derived(draft.id, "answer")) if to is not None else None
    because = f"the house answered /{word}"
    # settle first, so that it does not count as due
    _settle(page, draft, session, Outcome.ANSWERED, because, answer=answer)
    done = _Done("")
    for command in commands:
        now = sessions.get(conn, session.id) or session  # as the previous command left it
        scene = _Scene(
            page=page,
            draft=draft,
            session=now,
            agent=agent,
            zone=zone,
            choices=choices,
            brought=brought,
            settings=settings,
            said=said,
            number=number,
        )
        _add(done, _do(command, scene))
    wakes = list(done.wakes)
    if to is not None and answer is not None:
        wakes += enter(
            page,
            Draft(
                id=answer,
                sender=address.agent(agent.name, session.id),
                recipient=to,
                text=clipped_bytes(done.text, TEXT_BYTES_MAX),
                source="house",
                key=f"{draft.id}/answer",
                kind=Kind.ANSWER,
                reply_to=draft.id,
                trust=Trust.PRIVATE,
            ),
        ).wakes
    page.close()
    return Commanded(_receipt(page, draft, session, Outcome.ANSWERED, because), done.cancelled, tuple(wakes))


def _add(done: _Done, more: _Done) -> None:
    done.text = f"{done.text}\n{more.text}" if done.text else more.text
    done.wakes += more.wakes
    if more.cancelled is not NOTHING_CANCELLED:  # only one command of a message can cancel
        done.cancelled = more.cancelled


def _is_number(commands: Sequence[Command]) -> bool:
    return commands[0].bare and commands[0].name is CommandName.APPROVE


def _is_busy(page: Page, draft: Draft) -> bool:
    """Whether something runs or is due in this session or below it. Otherwise a bare word is plain text."""
    agent = agents.find(page.conn, draft.recipient.name)
    session = known_session(page.conn, draft, agent) if agent is not None else None
    if session is None:
        return False
    if runs.open_in(page.conn, session.id) is not None or envelopes.any_due(page.conn, session.id, page.at_ms):
        return True
    below = sessions.children(page.conn, session.id, limit=CHILDREN_LOOKED_AT_MAX)
    return any(runs.open_in(page.conn, child.id) is not None for child in below)


def _settle(
    page: Page, draft: Draft, session: Session, outcome: Outcome, because: str, *, answer: EnvelopeId | None
) -> None:
    outcomes.settle(
        page,
        [draft.id],
        outcome,
        because=because,
        answer=answer,
        silent=outcome is Outcome.ANSWERED and answer is None,
    )
    page.tell(NewsKind.ENVELOPE_SETTLED, session=session.id, envelope=draft.id, outcome=outcome.value, because=because)


def _receipt(page: Page, draft: Draft, session: Session, outcome: Outcome, because: str) -> Receipt:
    return Receipt(envelope=draft.id, session=session.id, news_seq=page.news_seq, outcome=outcome, because=because)


def _do(command: Command, at: _Scene) -> _Done:
    page, session, agent, choices, rest = at.page, at.session, at.agent, at.choices, command.rest
    match command.name:
        case None:
            return _Done(unknown(command.word, at.brought.skills))
        case CommandName.HELP:
            return _Done("\n".join(help_lines(at.brought.skills)))
        case CommandName.STATUS:
            return _Done(status_commands.status(page, session, agent, at.zone, choices, at.settings))
        case CommandName.WHOAMI:
            return _Done(status_commands.whoami(at.draft, agent))
        case CommandName.CONTEXT:
            return _Done(status_commands.context(page, rest, session, agent, choices, at.brought.parts))
        case CommandName.USAGE if not rest:
            return _Done(status_commands.usage(page, session, agent, choices))
        case CommandName.AGENTS:
            return _Done(status_commands.staff(page, agent))
        case CommandName.MODEL:
            return _Done(session_commands.model(page, rest, session, agent, choices))
        case CommandName.THINK:
            return _Done(session_commands.think(page, rest, session, agent, choices))
        case CommandName.VERBOSE | CommandName.REASONING | CommandName.ELEVATED | CommandName.USAGE as name:
            return _Done(session_commands.manner(page, name, rest, session, agent, choices, trust=at.draft.trust))
        case CommandName.QUEUE:
            return _Done(session_commands.queue(page, rest, session, agent))
        case CommandName.SEND:
            return _Done(session_commands.send(page, rest, session, trust=at.draft.trust))
        case CommandName.COMPACT:
            return _compact(command, at)
        case CommandName.STOP | CommandName.ABORT:
            done = cancel_in(
                page, session.id, by=str(at.draft.sender), why=f"/{command.word}", clear_due=True, said=at.said
            )
            return _Done(status_commands.stopped(done, session.id), done)
        case CommandName.RESET:
            done = cancel_in(page, session.id, by=str(at.draft.sender), why="/reset", reset=rest)
            kept = " Your words are kept in it." if rest else ""
            return _Done(f"A fresh context.{kept}", done)
        case CommandName.NEW:
            return _new(command, at)
        case CommandName.APPROVE if at.number is not None:
            text, wakes = approval_commands.choose(page, at.draft, at.number, who=_who(page, at.draft))
            return _Done(text, wakes=list(wakes))
        case CommandName.ALLOW | CommandName.APPROVE | CommandName.DENY as name:
            text, wakes = approval_commands.decide(page, at.draft, name, rest, session, who=_who(page, at.draft))
            return _Done(text, wakes=list(wakes))
        case CommandName.SWITCH:
            went = agent_switch.switch(page, at.draft, rest, session, agent, who=_who(page, at.draft))
            return _Done(went.text, wakes=list(went.wakes))
        case CommandName.SKILL:
            return _Done(no_such_skill(rest, at.brought.skills))
        case _:
            assert_never(command.name)


def _new(command: Command, at: _Scene) -> _Done:
    """Reset the context. The first word may name a model, and the rest starts a run.

    Without text the agent greets, if the settings say so.
    """
    page, draft, session = at.page, at.draft, at.session
    done = _Done("A fresh context.", cancel_in(page, session.id, by=str(draft.sender), why="/new", reset=""))
    words = command.rest
    word, *behind = words.split(None, 1) or ("",)
    chosen = at.choices.hinted(word, at.agent, session.mind, alone=not behind) if word else None
    if chosen is not None:
        sessions.set_mind(page.conn, session.id, chosen)
        done.text = f"A fresh context, which thinks with {chosen.model}. /model default undoes that."
        words = "".join(behind)
    if words or draft.attachments:
        mail = _follow(at, "new", words)
        done.wakes += enter(page, replace(mail, attachments=draft.attachments, context=draft.context)).wakes
    elif at.settings.greeting:
        done.wakes += enter(page, replace(_follow(at, "greeting", GREET), kind=Kind.SYSTEM)).wakes
    return done


def _follow(at: _Scene, purpose: str, text: str) -> Draft:
    """Return an envelope to the agent that results from a command, from the same sender."""
    return Draft(
        id=EnvelopeId(derived(at.draft.id, purpose)),
        sender=at.draft.sender,
        recipient=address.agent(at.agent.name, at.session.id),
        text=text,
        source="command",
        key=f"{at.draft.id}/{purpose}",
        trust=at.draft.trust,
    )


def _compact(command: Command, at: _Scene) -> _Done:
    """Start a run that compacts the session, because a summary needs a model. The answer only announces it."""
    context = replace(at.draft.context, request=RunRequest(compact=command.rest))
    mail = replace(_follow(at, "compact", "Compact this conversation."), kind=Kind.SYSTEM, context=context)
    return _Done(
        "I will tell this conversation in short, and say when it is done.", wakes=list(enter(at.page, mail).wakes)
    )


def _who(page: Page, draft: Draft) -> Principal:
    """Return the sender as a principal, with current rights.

    An owner who writes from a channel is the owner. A linked platform identity is its person.
    """
    if draft.trust is Trust.OWNER:
        who = draft.sender if draft.sender.kind is AddressKind.PERSON else OWNER
        return Principal(address=who, level=PermissionLevel.BOSS, trust=draft.trust)
    person = draft.sender.name if draft.sender.kind is AddressKind.PERSON else draft.context.person
    known = people.find(page.conn, person) if person else None
    if known is None:
        return Principal(address=draft.sender, level=PermissionLevel.RESTRICTED, trust=draft.trust)
    return Principal(address=address.person(known.name), level=LEVEL_OF[known.role], trust=draft.trust)
