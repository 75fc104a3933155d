"""Executes and answers slash commands in the commit that accepts them.

Commands are envelopes like any other: stored, settled and answered by an envelope, but without a model call. Directives
inside other text are removed here, and the rest of the text goes to the agent.
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
from retinue.domain.envelope import ENVELOPE_TEXT_BYTES_MAX, EnvelopeDraft, EnvelopeKind, Outcome, Receipt
from retinue.domain.errors import RetinueError
from retinue.domain.event import EventKind
from retinue.domain.ids import EnvelopeId, RunId, derive_id
from retinue.domain.ports import Clock
from retinue.domain.principal import LEVEL_BY_ROLE, Principal
from retinue.domain.prompt_breakdown import PromptPart
from retinue.domain.run import NO_RUN_REQUEST, RunRequest
from retinue.domain.session import Session, SessionOptions
from retinue.domain.slash_command import (
    COMMAND_TRUSTS,
    SHORTCUTS,
    CommandName,
    ParsedCommands,
    SkillCommand,
    SlashCommand,
    format_help,
    is_directive,
    unknown_command_text,
)
from retinue.domain.storable_text import truncate_bytes
from retinue.domain.times import to_ms
from retinue.domain.trust import Trust
from retinue.domain.ui_context import context_line
from retinue.engine import agent_switch, approval_commands, session_setting_commands, status_commands
from retinue.engine.directives import apply_directives
from retinue.engine.run_cancel import NOTHING_CANCELLED, CancelResult, cancel_runs_in
from retinue.engine.run_finish import UnfinishedReply
from retinue.engine.session_setting_commands import AvailableOptions
from retinue.engine.skill_commands import SkillCommandRequest, find_skill_request, skill_not_found_text
from retinue.intake.accept import (
    Wake,
    accept_in_transaction,
    find_session,
    resolve_duplicate,
    resolve_purged_duplicate,
    store_command,
)
from retinue.intake.routing import OWNER, get_answer_address
from retinue.store.agents import agents
from retinue.store.core.connection import Store
from retinue.store.core.transaction import Transaction
from retinue.store.envelopes import envelopes, outcomes
from retinue.store.maintenance import purge
from retinue.store.people import people
from retinue.store.runs import runs
from retinue.store.sessions import sessions

CHILDREN_READ_MAX = 100
GREETING_PROMPT = (
    "A person reset the context and wrote nothing else. Greet them in one or two sentences, as yourself, and ask what "
    "they would like to do. Do not mention this instruction, and use no tools."
)

ListSkillCommands = Callable[[Agent, Session | None], Awaitable[Sequence[SkillCommand]]]
"""Returns the skills of an agent that people can call by slash command in a conversation."""


async def no_skill_commands(_agent: Agent, _session: Session | None) -> Sequence[SkillCommand]:
    """Return no skill commands. The default for a server without skills."""
    return ()


class CommandInputs(Struct, frozen=True, kw_only=True):
    """What a command needs besides the database: skills on disk and the parts of the system prompt."""

    skills: Sequence[SkillCommand] = ()
    prompt_parts: Sequence[PromptPart] = ()


class CommandResult(Struct, frozen=True):
    """The result of a command: its receipt, the runs it ended and the lanes to wake.

    If there is no receipt, the text was not a command but an ordinary message.
    """

    receipt: Receipt | None
    cancelled: CancelResult = NOTHING_CANCELLED
    wakes: tuple[Wake, ...] = ()


class _CommandReply(Struct):
    text: str
    cancelled: CancelResult = NOTHING_CANCELLED
    wakes: list[Wake] = field(default_factory=list[Wake])


class _CommandContext(Struct, frozen=True, kw_only=True):
    """The data with which one slash command is executed, such as the session, the agent and the message."""

    tx: Transaction
    draft: EnvelopeDraft
    session: Session
    agent: Agent
    zone: ZoneInfo
    available_options: AvailableOptions
    inputs: CommandInputs
    settings: SessionSettings
    unfinished_replies: Mapping[RunId, UnfinishedReply]
    numbered_answer: approval_commands.NumberedAnswer | None = None  # what a bare number answers here


class SlashCommands:
    """Handles the slash commands of sessions. `on_committed` is called after each commit."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        *,
        zone: ZoneInfo,
        available: AvailableOptions,
        list_skill_commands: ListSkillCommands,
        session_settings: Callable[[], SessionSettings],
        unfinished_replies: Callable[[], Mapping[RunId, UnfinishedReply]],
        on_committed: Callable[[CommandResult | None], None],
        answers_by_number: Callable[[str], bool] = lambda _instance: False,
    ) -> None:
        """`answers_by_number` returns whether people answer a connector's questions with numbers instead of buttons."""
        self._answers_by_number = answers_by_number
        self._store = store
        self._clock = clock
        self._zone = zone
        self._available_options = available
        self._list_skill_commands = list_skill_commands
        self._session_settings = session_settings
        self._unfinished_replies = unfinished_replies
        self._on_committed = on_committed

    async def handle(self, draft: EnvelopeDraft, parsed: ParsedCommands) -> Receipt | EnvelopeDraft:
        """Execute the commands of a message. Returns a receipt, or a draft if text for the agent remains."""
        commands = parsed.commands
        if _is_number(commands) and (
            draft.trust not in COMMAND_TRUSTS or not self._answers_by_number(draft.sender.name)
        ):
            return draft  # no numbered options were offered there
        if draft.trust not in COMMAND_TRUSTS:
            return await self._execute(draft, commands, CommandInputs()) or draft
        agent, session = await self._store.read(partial(_find_agent_and_session, draft=draft))
        brought = await self._load_inputs(commands, agent, session)
        if (skill := find_skill_request(commands, brought.skills)) is not None:
            return _with_skill_request(draft, skill)
        # attachments need an agent, like text
        if parsed.is_only_commands and not (draft.attachments and all(map(is_directive, commands))):
            return await self._execute(draft, commands, brought) or draft
        if parsed.has_leading_slash and agent is not None and self._is_unknown_model(commands[0], agent):
            # the reply says why, before anything runs
            return await self._execute(draft, commands[:1], brought) or draft
        for command in commands:
            if command.name in SHORTCUTS:
                await self._execute(_shortcut_draft(draft, command), (command,), brought)
        return apply_directives(draft, parsed, agent, self._available_options)

    def _is_unknown_model(self, command: SlashCommand, agent: Agent) -> bool:
        if command.name is not CommandName.MODEL:
            return False
        try:
            self._available_options.choose_model(command.arguments, agent, SessionOptions())
        except RetinueError:
            return True
        return False

    async def _execute(
        self, draft: EnvelopeDraft, commands: Sequence[SlashCommand], inputs: CommandInputs
    ) -> Receipt | None:
        body = partial(
            execute_commands,
            draft=draft,
            commands=commands,
            now_ms=to_ms(self._clock.now()),
            zone=self._zone,
            available=self._available_options,
            inputs=inputs,
            settings=self._session_settings(),
            unfinished_replies=self._unfinished_replies(),
        )
        return (await self._store.write(body, point="command", then=self._on_committed)).receipt

    async def _load_inputs(
        self, commands: Sequence[SlashCommand], agent: Agent | None, session: Session | None
    ) -> CommandInputs:
        """Load the skills and prompt parts, but only for commands that need them."""
        if agent is None:
            return CommandInputs()
        names = {command.name for command in commands}
        skills = (
            await self._list_skill_commands(agent, session)
            if names & {None, CommandName.SKILL, CommandName.HELP}
            else ()
        )
        detailed = any(command.name is CommandName.CONTEXT and command.arguments for command in commands)
        return CommandInputs(
            skills=skills, prompt_parts=await self._available_options.prompt_parts(agent, session) if detailed else ()
        )


def _find_agent_and_session(conn: sa.Connection, *, draft: EnvelopeDraft) -> tuple[Agent | None, Session | None]:
    agent = agents.find(conn, draft.recipient.name)
    return agent, find_session(conn, draft, agent) if agent is not None else None


def _with_skill_request(draft: EnvelopeDraft, skill: SkillCommandRequest) -> EnvelopeDraft:
    """Return the draft with a request to use the skill, or to make only the skill's tool call."""
    request = draft.context.request or NO_RUN_REQUEST
    asked = replace(request, skill=skill.skill) if skill.call is None else replace(request, call=skill.call)
    text = context_line(draft.text) + skill.text if skill.text else draft.text
    return replace(draft, text=text, context=replace(draft.context, request=asked))


def _shortcut_draft(draft: EnvelopeDraft, command: SlashCommand) -> EnvelopeDraft:
    """Return a command that was found inside other text, such as /status, as a separate draft.

    A redelivered message gets the same draft id.
    """
    id_ = derive_id(f"{draft.source}\n{draft.idempotency_key}", command.word)
    return replace(draft, id=EnvelopeId(id_), idempotency_key=id_, text=command.raw, attachments=())


def execute_commands(
    conn: sa.Connection,
    *,
    draft: EnvelopeDraft,
    commands: Sequence[SlashCommand],
    now_ms: int,
    zone: ZoneInfo,
    available: AvailableOptions,
    inputs: CommandInputs,
    settings: SessionSettings,
    unfinished_replies: Mapping[RunId, UnfinishedReply],
) -> CommandResult:
    """Execute and answer the commands of one message in one commit."""
    seen = envelopes.get_by_key(conn, draft.source, draft.idempotency_key)
    if seen is not None:
        return CommandResult(resolve_duplicate(conn, draft, seen).receipt)
    tx = Transaction(conn, now_ms)
    if (gone := purge.get_purged_key(conn, draft.source, draft.idempotency_key)) is not None:
        return CommandResult(resolve_purged_duplicate(draft, gone).receipt)
    number = approval_commands.find_numbered_answer(tx, draft, commands[0]) if _is_number(commands) else None
    if commands[0].is_bare and number is None and (_is_number(commands) or not _is_busy(tx, draft)):
        tx.close()
        return CommandResult(None)
    session, agent = store_command(tx, draft)
    word = commands[0].word
    if draft.trust not in COMMAND_TRUSTS:
        # Stored but not answered: an unauthorized sender learns nothing.
        because = f"command-not-allowed: /{word} from a sender who may not use commands"
        _settle_command(tx, draft, session, Outcome.REFUSED, because, answer=None)
        tx.close()
        return CommandResult(_receipt(tx, draft, session, Outcome.REFUSED, because))
    to = get_answer_address(draft.sender, origin=session.origin)
    answer = EnvelopeId(derive_id(draft.id, "answer")) if to is not None else None
    because = f"the server answered /{word}"
    # settle the command first, so that it does not count as due
    _settle_command(tx, draft, session, Outcome.ANSWERED, because, answer=answer)
    done = _CommandReply("")
    for command in commands:
        now = sessions.get(conn, session.id) or session  # as the previous command left it
        scene = _CommandContext(
            tx=tx,
            draft=draft,
            session=now,
            agent=agent,
            zone=zone,
            available_options=available,
            inputs=inputs,
            settings=settings,
            unfinished_replies=unfinished_replies,
            numbered_answer=number,
        )
        _append_reply(done, _execute_command(command, scene))
    wakes = list(done.wakes)
    if to is not None and answer is not None:
        wakes += accept_in_transaction(
            tx,
            EnvelopeDraft(
                id=answer,
                sender=address.agent_address(agent.name, session.id),
                recipient=to,
                text=truncate_bytes(done.text, ENVELOPE_TEXT_BYTES_MAX),
                source="server",
                idempotency_key=f"{draft.id}/answer",
                kind=EnvelopeKind.ANSWER,
                reply_to=draft.id,
                trust=Trust.PRIVATE,
            ),
        ).wakes
    tx.close()
    return CommandResult(_receipt(tx, draft, session, Outcome.ANSWERED, because), done.cancelled, tuple(wakes))


def _append_reply(reply: _CommandReply, more: _CommandReply) -> None:
    reply.text = f"{reply.text}\n{more.text}" if reply.text else more.text
    reply.wakes += more.wakes
    if more.cancelled is not NOTHING_CANCELLED:  # only one command of a message can cancel
        reply.cancelled = more.cancelled


def _is_number(commands: Sequence[SlashCommand]) -> bool:
    return commands[0].is_bare and commands[0].name is CommandName.APPROVE


def _is_busy(tx: Transaction, draft: EnvelopeDraft) -> bool:
    """Whether this session, or a session that it started, has work.

    If not, a bare word such as `stop` is plain text.
    """
    agent = agents.find(tx.conn, draft.recipient.name)
    session = find_session(tx.conn, draft, agent) if agent is not None else None
    if session is None:
        return False
    if runs.get_open(tx.conn, session.id) is not None or envelopes.has_due(tx.conn, session.id, tx.at_ms):
        return True
    below = sessions.list_children(tx.conn, session.id, limit=CHILDREN_READ_MAX)
    return any(runs.get_open(tx.conn, child.id) is not None for child in below)


def _settle_command(
    tx: Transaction,
    draft: EnvelopeDraft,
    session: Session,
    outcome: Outcome,
    because: str,
    *,
    answer: EnvelopeId | None,
) -> None:
    outcomes.settle(
        tx,
        [draft.id],
        outcome,
        because=because,
        answer=answer,
        silent=outcome is Outcome.ANSWERED and answer is None,
    )
    tx.emit(EventKind.ENVELOPE_SETTLED, session=session.id, envelope=draft.id, outcome=outcome.value, because=because)


def _receipt(tx: Transaction, draft: EnvelopeDraft, session: Session, outcome: Outcome, because: str) -> Receipt:
    return Receipt(envelope=draft.id, session=session.id, event_seq=tx.event_seq, outcome=outcome, because=because)


def _execute_command(command: SlashCommand, command_context: _CommandContext) -> _CommandReply:
    tx, session, agent, choices, rest = (
        command_context.tx,
        command_context.session,
        command_context.agent,
        command_context.available_options,
        command.arguments,
    )
    match command.name:
        case None:
            return _CommandReply(unknown_command_text(command.word, command_context.inputs.skills))
        case CommandName.HELP:
            return _CommandReply("\n".join(format_help(command_context.inputs.skills)))
        case CommandName.STATUS:
            return _CommandReply(
                status_commands.status_text(tx, session, agent, command_context.zone, choices, command_context.settings)
            )
        case CommandName.WHOAMI:
            return _CommandReply(status_commands.whoami_text(command_context.draft, agent))
        case CommandName.CONTEXT:
            return _CommandReply(
                status_commands.context_text(tx, rest, session, agent, choices, command_context.inputs.prompt_parts)
            )
        case CommandName.USAGE if not rest:
            return _CommandReply(status_commands.usage_text(tx, session, agent, choices))
        case CommandName.AGENTS:
            return _CommandReply(status_commands.agents_text(tx, agent))
        case CommandName.MODEL:
            return _CommandReply(session_setting_commands.set_model(tx, rest, session, agent, choices))
        case CommandName.THINK:
            return _CommandReply(session_setting_commands.set_effort(tx, rest, session, agent, choices))
        case CommandName.VERBOSE | CommandName.REASONING | CommandName.ELEVATED | CommandName.USAGE as name:
            return _CommandReply(
                session_setting_commands.set_display(
                    tx, name, rest, session, agent, choices, trust=command_context.draft.trust
                )
            )
        case CommandName.QUEUE:
            return _CommandReply(session_setting_commands.set_queue(tx, rest, session, agent))
        case CommandName.SEND:
            return _CommandReply(
                session_setting_commands.set_sending(tx, rest, session, trust=command_context.draft.trust)
            )
        case CommandName.COMPACT:
            return _execute_compact(command, command_context)
        case CommandName.STOP | CommandName.ABORT:
            done = cancel_runs_in(
                tx,
                session.id,
                by=str(command_context.draft.sender),
                reason=f"/{command.word}",
                clear_due=True,
                unfinished=command_context.unfinished_replies,
            )
            return _CommandReply(status_commands.stopped_text(done, session.id), done)
        case CommandName.RESET:
            done = cancel_runs_in(tx, session.id, by=str(command_context.draft.sender), reason="/reset", reset=rest)
            kept = " The new context starts with your text." if rest else ""
            return _CommandReply(f"The context was reset.{kept}", done)
        case CommandName.NEW:
            return _execute_new(command, command_context)
        case CommandName.APPROVE if command_context.numbered_answer is not None:
            text, wakes = approval_commands.answer_by_number(
                tx,
                command_context.draft,
                command_context.numbered_answer,
                principal=_principal_of(tx, command_context.draft),
            )
            return _CommandReply(text, wakes=list(wakes))
        case CommandName.ALLOW | CommandName.APPROVE | CommandName.DENY as name:
            text, wakes = approval_commands.answer_by_command(
                tx, command_context.draft, name, rest, session, principal=_principal_of(tx, command_context.draft)
            )
            return _CommandReply(text, wakes=list(wakes))
        case CommandName.SWITCH:
            went = agent_switch.switch_agent(
                tx, command_context.draft, rest, session, agent, principal=_principal_of(tx, command_context.draft)
            )
            return _CommandReply(went.text, wakes=list(went.wakes))
        case CommandName.SKILL:
            return _CommandReply(skill_not_found_text(rest, command_context.inputs.skills))
        case _:
            assert_never(command.name)


def _execute_new(command: SlashCommand, command_context: _CommandContext) -> _CommandReply:
    """Execute /new: reset the context. The first word may name a model, and the rest starts a run.

    Without text, the agent greets the person, if the settings enable the greeting.
    """
    tx, draft, session = command_context.tx, command_context.draft, command_context.session
    done = _CommandReply(
        "The context was reset.", cancel_runs_in(tx, session.id, by=str(draft.sender), reason="/new", reset="")
    )
    words = command.arguments
    word, *behind = words.split(None, 1) or ("",)
    chosen = (
        command_context.available_options.match_model_hint(
            word, command_context.agent, session.options, alone=not behind
        )
        if word
        else None
    )
    if chosen is not None:
        sessions.set_model_choice(tx.conn, session.id, chosen)
        done.text = (
            f"The context was reset, and this conversation now uses {chosen.model}. /model default clears the choice."
        )
        words = "".join(behind)
    if words or draft.attachments:
        envelope = _build_envelope(command_context, "new", words)
        done.wakes += accept_in_transaction(
            tx, replace(envelope, attachments=draft.attachments, context=draft.context)
        ).wakes
    elif command_context.settings.greeting:
        done.wakes += accept_in_transaction(
            tx, replace(_build_envelope(command_context, "greeting", GREETING_PROMPT), kind=EnvelopeKind.SYSTEM)
        ).wakes
    return done


def _build_envelope(command_context: _CommandContext, purpose: str, text: str) -> EnvelopeDraft:
    """Return the envelope that a command sends to the agent, from the same sender."""
    return EnvelopeDraft(
        id=EnvelopeId(derive_id(command_context.draft.id, purpose)),
        sender=command_context.draft.sender,
        recipient=address.agent_address(command_context.agent.name, command_context.session.id),
        text=text,
        source="command",
        idempotency_key=f"{command_context.draft.id}/{purpose}",
        trust=command_context.draft.trust,
    )


def _execute_compact(command: SlashCommand, command_context: _CommandContext) -> _CommandReply:
    """Execute /compact: start a run that compacts the session, because a summary needs a model.

    The answer only says that the run starts.
    """
    context = replace(command_context.draft.context, request=RunRequest(compact=command.arguments))
    envelope = replace(
        _build_envelope(command_context, "compact", "Compact this conversation."),
        kind=EnvelopeKind.SYSTEM,
        context=context,
    )
    return _CommandReply(
        "Compacting this conversation. You will get a message when it is done.",
        wakes=list(accept_in_transaction(command_context.tx, envelope).wakes),
    )


def _principal_of(tx: Transaction, draft: EnvelopeDraft) -> Principal:
    """Return the sender as a principal, with the sender's current rights.

    The owner is recognized in a channel too. A sender with a linked platform identity is that person.
    """
    if draft.trust is Trust.OWNER:
        who = draft.sender if draft.sender.kind is AddressKind.PERSON else OWNER
        return Principal(address=who, level=PermissionLevel.BOSS, trust=draft.trust)
    person = draft.sender.name if draft.sender.kind is AddressKind.PERSON else draft.context.person
    known = people.find(tx.conn, person) if person else None
    if known is None:
        return Principal(address=draft.sender, level=PermissionLevel.RESTRICTED, trust=draft.trust)
    return Principal(address=address.person_address(known.name), level=LEVEL_BY_ROLE[known.role], trust=draft.trust)
