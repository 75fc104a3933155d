"""Applies directives: slash commands inside a message that affect only this message.

Directives are removed from the text of the message.
"""

from __future__ import annotations

from msgspec.structs import replace

from retinue.domain.agent import Agent
from retinue.domain.display_options import Elevation, ReasoningDisplay, Verbosity
from retinue.domain.envelope import EnvelopeContext, EnvelopeDraft
from retinue.domain.errors import RetinueError
from retinue.domain.run import NO_RUN_REQUEST, RunRequest
from retinue.domain.session import QueueMode, SessionOptions, WhenBusy
from retinue.domain.slash_command import (
    DEFAULT,
    EFFORT_WORDS,
    QUEUE_MODES,
    SHORTCUTS,
    CommandName,
    ParsedCommands,
    SlashCommand,
    unescape_slash,
)
from retinue.domain.ui_context import context_line
from retinue.engine.session_setting_commands import AvailableOptions

# Modes that one message can request. The others apply to the whole queue.
_WHEN_BUSY = {
    QueueMode.STEER: WhenBusy.STEER,
    QueueMode.COLLECT: WhenBusy.COLLECT,
    QueueMode.FOLLOWUP: WhenBusy.COLLECT,
}


def apply_directives(
    draft: EnvelopeDraft, commands: ParsedCommands, agent: Agent | None, available: AvailableOptions
) -> EnvelopeDraft:
    """Return the message without its directives, and with the options that they request for its run."""
    context = draft.context
    taken: list[SlashCommand] = []
    for command in commands.commands:
        if command.name in SHORTCUTS:
            taken.append(command)
        elif agent is not None and (with_it := _apply_directive(context, command, agent, available)) is not None:
            context = with_it
            taken.append(command)
    text = context_line(draft.text) + unescape_slash(commands.text_without(taken))
    return replace(draft, text=text, context=context)


def _apply_directive(
    context: EnvelopeContext, command: SlashCommand, agent: Agent, available: AvailableOptions
) -> EnvelopeContext | None:
    """Return the context with the directive applied.

    Returns None if the directive is not valid for a single message. It then stays in the text.
    """
    word = command.arguments.casefold()
    if word == DEFAULT:
        return None
    request = context.request or NO_RUN_REQUEST
    manner = request.manner
    match command.name:
        case CommandName.THINK:
            return _with_request(context, replace(request, effort=EFFORT_WORDS[word]))
        case CommandName.VERBOSE:
            return _with_request(context, replace(request, manner=replace(manner, verbose=Verbosity(word))))
        case CommandName.REASONING:
            return _with_request(context, replace(request, manner=replace(manner, reasoning=ReasoningDisplay(word))))
        case CommandName.ELEVATED:
            return _with_request(context, replace(request, manner=replace(manner, elevated=Elevation(word))))
        case CommandName.MODEL:
            return _with_model(context, request, command.arguments, agent, available)
        case CommandName.QUEUE:
            when = _WHEN_BUSY.get(QUEUE_MODES[word]) if word in QUEUE_MODES else None
            return replace(context, when_busy=when) if when is not None else None
        case _:
            return None


def _with_model(
    context: EnvelopeContext, request: RunRequest, reference: str, agent: Agent, available: AvailableOptions
) -> EnvelopeContext | None:
    try:
        chosen = available.choose_model(reference, agent, SessionOptions())
    except RetinueError:
        return None
    return None if chosen.pinned else _with_request(context, replace(request, model=chosen.model))


def _with_request(context: EnvelopeContext, request: RunRequest) -> EnvelopeContext:
    return replace(context, request=request)
