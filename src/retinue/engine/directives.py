"""Directives inside a message: they apply to that message only, and are removed from its text."""

from __future__ import annotations

from msgspec.structs import replace

from retinue.domain.agent import Agent
from retinue.domain.display_options import Elevation, Reasoning, Verbosity
from retinue.domain.envelope import Context, Draft
from retinue.domain.errors import RetinueError
from retinue.domain.run import NO_REQUEST, RunRequest
from retinue.domain.session import Mind, QueueMode, WhenBusy
from retinue.domain.slash_command import (
    DEFAULT,
    EFFORT_WORDS,
    QUEUE_MODES,
    SHORTCUTS,
    Asked,
    Command,
    CommandName,
    unescaped,
)
from retinue.domain.ui_context import line_of
from retinue.engine.session_commands import Choices

# Modes that one message can request. The others apply to the whole queue.
_WHEN_BUSY = {
    QueueMode.STEER: WhenBusy.STEER,
    QueueMode.COLLECT: WhenBusy.COLLECT,
    QueueMode.FOLLOWUP: WhenBusy.COLLECT,
}


def directed(draft: Draft, asked: Asked, agent: Agent | None, choices: Choices) -> Draft:
    """Return the message without its directives, and with the run request they make."""
    context = draft.context
    taken: list[Command] = []
    for command in asked.commands:
        if command.name in SHORTCUTS:
            taken.append(command)
        elif agent is not None and (with_it := _applied(context, command, agent, choices)) is not None:
            context = with_it
            taken.append(command)
    text = line_of(draft.text) + unescaped(asked.without(taken))
    return replace(draft, text=text, context=context)


def _applied(context: Context, command: Command, agent: Agent, choices: Choices) -> Context | None:
    """Return the context with the directive. None if it is not valid for one message: then it is plain text."""
    word = command.rest.casefold()
    if word == DEFAULT:
        return None
    request = context.request or NO_REQUEST
    manner = request.manner
    match command.name:
        case CommandName.THINK:
            return _with(context, replace(request, effort=EFFORT_WORDS[word]))
        case CommandName.VERBOSE:
            return _with(context, replace(request, manner=replace(manner, verbose=Verbosity(word))))
        case CommandName.REASONING:
            return _with(context, replace(request, manner=replace(manner, reasoning=Reasoning(word))))
        case CommandName.ELEVATED:
            return _with(context, replace(request, manner=replace(manner, elevated=Elevation(word))))
        case CommandName.MODEL:
            return _thinking_with(context, request, command.rest, agent, choices)
        case CommandName.QUEUE:
            when = _WHEN_BUSY.get(QUEUE_MODES[word]) if word in QUEUE_MODES else None
            return replace(context, when_busy=when) if when is not None else None
        case _:
            return None


def _thinking_with(
    context: Context, request: RunRequest, reference: str, agent: Agent, choices: Choices
) -> Context | None:
    try:
        chosen = choices.choose(reference, agent, Mind())
    except RetinueError:
        return None
    return None if chosen.pinned else _with(context, replace(request, model=chosen.model))


def _with(context: Context, request: RunRequest) -> Context:
    return replace(context, request=request)
