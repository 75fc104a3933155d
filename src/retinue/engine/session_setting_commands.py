"""Executes slash commands that change session settings: model, effort, display options, message sending and queue."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, Protocol

import sqlalchemy as sa
from msgspec.structs import replace

from retinue.domain.agent import Agent
from retinue.domain.display_options import (
    NO_DISPLAY_OPTIONS,
    DisplayOptions,
    Elevation,
    ReasoningDisplay,
    UsageFooter,
    Verbosity,
)
from retinue.domain.errors import RetinueError
from retinue.domain.event import EventKind
from retinue.domain.prompt_breakdown import PromptPart
from retinue.domain.record import Record
from retinue.domain.session import DEBOUNCE_S_MAX, QUEUE_CAP_MAX, QueueOverride, QueuePolicy, Session, SessionOptions
from retinue.domain.slash_command import DEFAULT, EFFORT_WORDS, OVERFLOW_WORDS, QUEUE_MODES, CommandName
from retinue.domain.trust import Trust
from retinue.engine.errors import ModelNotSelectable
from retinue.store.core.transaction import Transaction
from retinue.store.sessions import sessions

WORD_SHOWN_MAX = 20

_DURATION = re.compile(r"(\d{1,6}(?:\.\d{1,3})?)(ms|s|m)")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0}


class AvailableOptions(Protocol):
    """The models and options that a session can choose from. The default implementation offers no choice."""

    def list_models(self, agent: Agent, options: SessionOptions) -> Sequence[str]:
        """Return the models as numbered lines. The current model is marked."""
        ...

    def model_status(self, conn: sa.Connection, agent: Agent, options: SessionOptions) -> Sequence[str]:
        """Return which models would be called now, in order, with which credential, and why."""
        ...

    def choose_model(self, text: str, agent: Agent, options: SessionOptions) -> SessionOptions:
        """Return the session's options with the model that `text` names.

        `text` is a list number, alias or reference, with or without `@CREDENTIAL`. Raises an error if the model is
        unknown or not allowed.
        """
        ...

    def match_model_hint(
        self, word: str, agent: Agent, options: SessionOptions, *, alone: bool
    ) -> SessionOptions | None:
        """Return the session's options with the model that a word names, or None if the word is ordinary text.

        The word is a reference, an alias, a name, or a part that occurs in the name of only one model.
        """
        ...

    def effective_effort(self, agent: Agent, options: SessionOptions) -> str | None:
        """Return the effort that applies if a message sets none. None means that the model decides."""
        ...

    def check_effort(self, effort: str, agent: Agent, options: SessionOptions) -> None:
        """Raise an error if the current model does not support the effort."""
        ...

    def default_display(self, agent: Agent) -> DisplayOptions:
        """Return the display options that apply if a session sets none, from the agent's settings and the defaults."""
        ...

    def elevation_refusal(self, level: Elevation, agent: Agent, session: Session, *, is_owner: bool) -> str:
        """Return which rule forbids commands outside the sandbox, or an empty string."""
        ...

    def context_report(self, agent: Agent, session: Session, records: Sequence[Record]) -> Mapping[str, str | int]:
        """Return how full the context window is, and what takes up the space."""
        ...

    async def prompt_parts(self, agent: Agent, session: Session | None) -> Sequence[PromptPart]:
        """Return the parts of the system prompt for a run of this agent."""
        ...


class NoAvailableOptions:
    """The default `AvailableOptions`, which offers no choice."""

    def list_models(self, agent: Agent, options: SessionOptions) -> Sequence[str]:
        return [agent.model or "the default model"]

    def model_status(self, conn: sa.Connection, agent: Agent, options: SessionOptions) -> Sequence[str]:
        return self.list_models(agent, options)

    def choose_model(self, text: str, agent: Agent, options: SessionOptions) -> SessionOptions:
        raise ModelNotSelectable

    def match_model_hint(
        self, word: str, agent: Agent, options: SessionOptions, *, alone: bool
    ) -> SessionOptions | None:
        return None

    def effective_effort(self, agent: Agent, options: SessionOptions) -> str | None:
        return options.effort or agent.effort

    def check_effort(self, effort: str, agent: Agent, options: SessionOptions) -> None:
        return

    def default_display(self, agent: Agent) -> DisplayOptions:
        return NO_DISPLAY_OPTIONS

    def elevation_refusal(self, level: Elevation, agent: Agent, session: Session, *, is_owner: bool) -> str:
        return "this server has no sandbox"

    def context_report(self, agent: Agent, session: Session, records: Sequence[Record]) -> Mapping[str, str | int]:
        return {}

    async def prompt_parts(self, agent: Agent, session: Session | None) -> Sequence[PromptPart]:
        return ()


# --- model and effort ---


def set_model(tx: Transaction, arguments: str, session: Session, agent: Agent, available: AvailableOptions) -> str:
    """Execute /model [list|status|default|NAME|NUMBER|REF[@CREDENTIAL]]."""
    options = session.options
    word = arguments.strip()
    if word.casefold() in ("", "list"):
        return "\n".join(
            [
                *available.list_models(agent, options),
                "Choose one with /model NUMBER or /model NAME. /model default clears the choice.",
            ]
        )
    if word.casefold() == "status":
        return "\n".join(available.model_status(tx.conn, agent, options))
    if word.casefold() in (DEFAULT, "none"):
        _store_options(tx, session, replace(options, model=None, credential=None, pinned=False))
        return "This conversation now uses the agent's model."
    try:
        chosen = available.choose_model(word, agent, options)
    except RetinueError as error:
        return format_error(error)
    _store_options(tx, session, chosen)
    pinned = f", with the credential {chosen.credential}" if chosen.pinned else ""
    return f"From the next turn on, this conversation uses {chosen.model}{pinned}."


def set_effort(tx: Transaction, arguments: str, session: Session, agent: Agent, available: AvailableOptions) -> str:
    """Execute /think [LEVEL]: set the reasoning effort."""
    level = arguments.strip().casefold()
    levels = f"{', '.join(dict.fromkeys(EFFORT_WORDS))}, or default"
    if not level:
        own = available.effective_effort(agent, session.options) or "the default of the model"
        return f"Effort: {own}. /think LEVEL changes it: {levels}."
    if level == DEFAULT:
        _store_options(tx, session, replace(session.options, effort=None))
        return "Effort: as set for the agent."
    effort = EFFORT_WORDS.get(level)
    if effort is None:
        return f"Invalid effort '{level[:WORD_SHOWN_MAX]}'. It must be one of: {levels}."
    try:
        available.check_effort(effort, agent, session.options)
    except RetinueError as error:
        return format_error(error)
    _store_options(tx, session, replace(session.options, effort=effort))
    return f"Effort: {effort}, from the next turn on."


# --- display options ---


_LEVELS: dict[CommandName, type[StrEnum]] = {
    CommandName.VERBOSE: Verbosity,
    CommandName.REASONING: ReasoningDisplay,
    CommandName.ELEVATED: Elevation,
    CommandName.USAGE: UsageFooter,
}
_LEVEL_TEXTS: dict[CommandName, dict[str, str]] = {
    CommandName.VERBOSE: {
        Verbosity.OFF: "Tool calls are not shown.",
        Verbosity.ON: "Each tool call is shown when it is made.",
        Verbosity.FULL: "Each tool call is shown, with its result.",
    },
    CommandName.REASONING: {
        ReasoningDisplay.OFF: "Thinking is not shown.",
        ReasoningDisplay.ON: "Thinking is sent before each answer.",
        ReasoningDisplay.STREAM: "Thinking is streamed, on platforms that support it.",
    },
    CommandName.ELEVATED: {
        Elevation.OFF: "Commands run in the sandbox.",
        Elevation.ON: "Commands run on the host, with approval where the rules require it.",
        Elevation.ASK: "Commands run on the host, with approval where the rules require it.",
        Elevation.FULL: "Commands run on the host, without approval.",
    },
    CommandName.USAGE: {
        UsageFooter.OFF: "Answers show no usage.",
        UsageFooter.TOKENS: "Each answer shows its tokens.",
        UsageFooter.FULL: "Each answer shows its tokens, its cost and how full the context is.",
        UsageFooter.COST: "Each answer shows its cost.",
    },
}


def set_display(
    tx: Transaction,
    name: CommandName,
    arguments: str,
    session: Session,
    agent: Agent,
    available: AvailableOptions,
    *,
    trust: Trust,
) -> str:
    """Execute /verbose, /reasoning, /elevated or /usage with a level or `default`.

    Without an argument, show the level.
    """
    levels, key = _LEVELS[name], name.value
    word = arguments.strip().casefold()
    named = f"{', '.join(levels)}, or default"
    if not word:
        now = getattr(session.options.manner.with_defaults(available.default_display(agent)), key) or "not set"
        return f"{key.capitalize()}: {now}. /{key} LEVEL changes it: {named}."
    if word == DEFAULT:
        _store_display(tx, session, {key: None})
        return f"{key.capitalize()}: as set for the agent."
    if word not in tuple(levels):
        return f"Invalid level '{word[:WORD_SHOWN_MAX]}' for /{key}. It must be one of: {named}."
    level = levels(word)
    if isinstance(level, Elevation) and level is not Elevation.OFF:
        closed = available.elevation_refusal(level, agent, session, is_owner=trust is Trust.OWNER)
        if closed:
            return f"Not elevated: {closed}."
    _store_display(tx, session, {key: level})
    return f"{key.capitalize()}: {level}. {_LEVEL_TEXTS[name][level]}"


def _store_display(tx: Transaction, session: Session, change: dict[str, Any]) -> None:
    _store_options(tx, session, replace(session.options, manner=replace(session.options.manner, **change)))


# --- sending ---


_SENDING_VALUES = {"on": True, "off": False, "inherit": None, DEFAULT: None}


def set_sending(tx: Transaction, arguments: str, session: Session, *, trust: Trust) -> str:
    """Execute /send on|off|inherit. The owner's choice for one session overrides all rules."""
    word = arguments.strip().casefold()
    if not word:
        return f"Sending: {sending_text(session.options)}. /send on, /send off or /send inherit changes it."
    if trust is not Trust.OWNER:
        return "Only the owner can change this: nothing was changed."
    if word not in _SENDING_VALUES:
        return f"Invalid value '{word[:WORD_SHOWN_MAX]}' for /send. It must be one of: on, off, inherit."
    options = replace(session.options, send=_SENDING_VALUES[word])
    if options != session.options:
        store_sending(tx, session, options.send)
    return f"Sending: {sending_text(options)}."


def store_sending(tx: Transaction, session: Session, send: bool | None) -> None:
    sessions.set_model_choice(tx.conn, session.id, replace(session.options, send=send))
    tx.emit(EventKind.SESSION_CHANGED, session=session.id, send=send)


def sending_text(options: SessionOptions) -> str:
    match options.send:
        case None:
            return "according to the rules of the server"
        case True:
            return "on, whatever the rules say"
        case False:
            return "off: messages of the agent are stored here and not sent"


# --- queue ---


def set_queue(tx: Transaction, arguments: str, session: Session, agent: Agent) -> str:
    """Execute /queue [default|MODE] [debounce:TIME] [cap:NUMBER] [drop:WHAT]."""
    words = arguments.casefold().split()
    if not words:
        return f"{_queue_line(session.queue.apply_to(agent.queue))} /queue default clears these."
    if words in ([DEFAULT], ["reset"]):
        override = QueueOverride()
    else:
        override = session.queue
        for word in words:
            change = _queue_change(word)
            if isinstance(change, str):
                return change
            override = replace(override, **change)
    if override != session.queue:
        sessions.set_queue(tx.conn, session.id, override, at_ms=tx.at_ms)
        tx.emit(EventKind.SESSION_CHANGED, session=session.id, queue=override)
    return _queue_line(override.apply_to(agent.queue))


def _queue_change(word: str) -> dict[str, Any] | str:
    """Return the fields that one argument of /queue sets, or an error sentence."""
    key, colon, value = word.partition(":")
    shown = value[:WORD_SHOWN_MAX]
    match key:
        case "cap" if colon:
            if not (value.isascii() and value.isdigit() and int(value[:9]) <= QUEUE_CAP_MAX):
                return f"Invalid cap '{shown}'. It must be a number from 0 to {QUEUE_CAP_MAX:,}."
            return {"cap": int(value)}
        case "drop" if colon:
            if value not in OVERFLOW_WORDS:
                return f"Invalid drop '{shown}'. It must be one of: {', '.join(OVERFLOW_WORDS)}."
            return {"overflow": OVERFLOW_WORDS[value]}
        case "debounce" if colon:
            found = _DURATION.fullmatch(value)
            seconds = float(found[1]) * _SECONDS[found[2]] if found else -1.0
            if not 0 <= seconds <= DEBOUNCE_S_MAX:
                return f"Invalid debounce '{shown}'. It must be a time such as 2s or 500ms, up to {DEBOUNCE_S_MAX:g}s."
            return {"debounce_s": seconds}
        case _ if word in QUEUE_MODES:
            return {"mode": QUEUE_MODES[word]}
        case _:
            return f"Invalid queue mode '{word[:WORD_SHOWN_MAX]}'. It must be one of: {', '.join(QUEUE_MODES)}."


def queue_text(policy: QueuePolicy) -> str:
    return f"{policy.mode} debounce:{policy.debounce_s:g}s cap:{policy.cap} drop:{policy.overflow}"


def _queue_line(policy: QueuePolicy) -> str:
    return f"Queue: {queue_text(policy)}."


def _store_options(tx: Transaction, session: Session, options: SessionOptions) -> None:
    if options != session.options:
        sessions.set_model_choice(tx.conn, session.id, options)


def format_error(error: RetinueError) -> str:
    lines = [f"{error.sentence[:1].upper()}{error.sentence[1:]}."]
    if error.because:
        lines.append(f"Because {error.because}.")
    if error.try_this:
        lines.append(f"Try: {error.try_this}")
    return "\n".join(lines)
