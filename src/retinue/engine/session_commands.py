"""Slash commands that change a session's settings: model, effort, display options, sending and queue."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, Protocol

import sqlalchemy as sa
from msgspec.structs import replace

from retinue.domain.agent import Agent
from retinue.domain.display_options import PLAIN, Elevation, Manner, Reasoning, UsageLine, Verbosity
from retinue.domain.errors import RetinueError
from retinue.domain.event import NewsKind
from retinue.domain.prompt_breakdown import Part
from retinue.domain.record import Record
from retinue.domain.session import DEBOUNCE_S_MAX, QUEUE_CAP_MAX, Mind, QueueOverride, QueuePolicy, Session
from retinue.domain.slash_command import DEFAULT, DROPS, EFFORT_WORDS, QUEUE_MODES, CommandName
from retinue.domain.trust import Trust
from retinue.store.core.transaction import Page
from retinue.store.sessions import sessions

WORD_SHOWN_MAX = 20

_DURATION = re.compile(r"(\d{1,6}(?:\.\d{1,3})?)(ms|s|m)")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0}


class Choices(Protocol):
    """The options a session can choose from.

    The server passes an implementation; without one, nothing can be chosen.
    """

    def listed(self, agent: Agent, mind: Mind) -> Sequence[str]:
        """Return the models as numbered lines, with the current one marked."""
        ...

    def status(self, conn: sa.Connection, agent: Agent, mind: Mind) -> Sequence[str]:
        """Return which models would be called now, in order, with which credential, and why."""
        ...

    def choose(self, text: str, agent: Agent, mind: Mind) -> Mind:
        """Return the options with the model that `text` names.

        A list number, alias or reference, each with or without `@CREDENTIAL`. Raises if the model
        is unknown or not allowed.
        """
        ...

    def hinted(self, word: str, agent: Agent, mind: Mind, *, alone: bool) -> Mind | None:
        """Return the options with the model that a word names, or None if it is ordinary text.

        The word is a reference, an alias, or a part of a name that no other model has.
        """
        ...

    def effort(self, agent: Agent, mind: Mind) -> str | None:
        """Return the effort if a message does not set one. None leaves it to the model."""
        ...

    def check_effort(self, effort: str, agent: Agent, mind: Mind) -> None:
        """Raise if the current model does not support the effort."""
        ...

    def manner(self, agent: Agent) -> Manner:
        """Return the display options if a session does not set them, from the agent's settings and the defaults."""
        ...

    def why_not_elevated(self, level: Elevation, agent: Agent, session: Session, *, owner: bool) -> str:
        """Return which rule forbids elevation, or an empty string."""
        ...

    def report(self, agent: Agent, session: Session, records: Sequence[Record]) -> Mapping[str, str | int]:
        """Return how full the context window is, and with what."""
        ...

    async def parts(self, agent: Agent, session: Session | None) -> Sequence[Part]:
        """Return the parts of the system prompt for a run of this agent."""
        ...


class NoChoices:
    """Options of a server in which nothing can be chosen."""

    def listed(self, agent: Agent, mind: Mind) -> Sequence[str]:
        return [agent.model or "as the house has it"]

    def status(self, conn: sa.Connection, agent: Agent, mind: Mind) -> Sequence[str]:
        return self.listed(agent, mind)

    def choose(self, text: str, agent: Agent, mind: Mind) -> Mind:
        raise RetinueError("no other model can be chosen here", because="this house was furnished with its own")

    def hinted(self, word: str, agent: Agent, mind: Mind, *, alone: bool) -> Mind | None:
        return None

    def effort(self, agent: Agent, mind: Mind) -> str | None:
        return mind.effort or agent.effort

    def check_effort(self, effort: str, agent: Agent, mind: Mind) -> None:
        return

    def manner(self, agent: Agent) -> Manner:
        return PLAIN

    def why_not_elevated(self, level: Elevation, agent: Agent, session: Session, *, owner: bool) -> str:
        return "this house has no sandbox to leave"

    def report(self, agent: Agent, session: Session, records: Sequence[Record]) -> Mapping[str, str | int]:
        return {}

    async def parts(self, agent: Agent, session: Session | None) -> Sequence[Part]:
        return ()


# --- model and effort ---


def model(page: Page, rest: str, session: Session, agent: Agent, choices: Choices) -> str:
    """Execute /model [list|status|default|NAME|NUMBER|REF[@CREDENTIAL]]."""
    mind = session.mind
    word = rest.strip()
    if word.casefold() in ("", "list"):
        return "\n".join(
            [*choices.listed(agent, mind), "Choose with /model NUMBER or /model NAME; /model default undoes."]
        )
    if word.casefold() == "status":
        return "\n".join(choices.status(page.conn, agent, mind))
    if word.casefold() in (DEFAULT, "none"):
        _keep(page, session, replace(mind, model=None, credential=None, pinned=False))
        return "From here on, this conversation thinks with what the agent has."
    try:
        chosen = choices.choose(word, agent, mind)
    except RetinueError as error:
        return refused(error)
    _keep(page, session, chosen)
    pinned = f", with the credential {chosen.credential}" if chosen.pinned else ""
    return f"From the next turn on, this conversation thinks with {chosen.model}{pinned}."


def think(page: Page, rest: str, session: Session, agent: Agent, choices: Choices) -> str:
    """Execute /think [LEVEL]: set the reasoning effort."""
    level = rest.strip().casefold()
    levels = f"{', '.join(dict.fromkeys(EFFORT_WORDS))}, or default"
    if not level:
        own = choices.effort(agent, session.mind) or "as the model would have it"
        return f"Effort: {own}. /think LEVEL changes it: {levels}."
    if level == DEFAULT:
        _keep(page, session, replace(session.mind, effort=None))
        return "Effort: as the agent has it."
    effort = EFFORT_WORDS.get(level)
    if effort is None:
        return f"There is no effort '{level[:WORD_SHOWN_MAX]}'. It is one of: {levels}."
    try:
        choices.check_effort(effort, agent, session.mind)
    except RetinueError as error:
        return refused(error)
    _keep(page, session, replace(session.mind, effort=effort))
    return f"Effort: {effort}, from the next turn on."


# --- display options ---


_LEVELS: dict[CommandName, type[StrEnum]] = {
    CommandName.VERBOSE: Verbosity,
    CommandName.REASONING: Reasoning,
    CommandName.ELEVATED: Elevation,
    CommandName.USAGE: UsageLine,
}
_SAID: dict[CommandName, dict[str, str]] = {
    CommandName.VERBOSE: {
        Verbosity.OFF: "Calls are not told of.",
        Verbosity.ON: "Each call is told of as it is made.",
        Verbosity.FULL: "Each call is told of, with what came of it.",
    },
    CommandName.REASONING: {
        Reasoning.OFF: "Thoughts are not shown.",
        Reasoning.ON: "Thoughts are sent before each answer.",
        Reasoning.STREAM: "Thoughts are shown as they come, where a door can do that.",
    },
    CommandName.ELEVATED: {
        Elevation.OFF: "No command leaves the sandbox.",
        Elevation.ON: "Commands run on the host, and you are asked as its rules have it.",
        Elevation.ASK: "Commands run on the host, and you are asked as its rules have it.",
        Elevation.FULL: "Commands run on the host, unasked.",
    },
    CommandName.USAGE: {
        UsageLine.OFF: "Nothing stands below answers.",
        UsageLine.TOKENS: "Below each answer stand the tokens it took.",
        UsageLine.FULL: "Below each answer stands what it took and cost, and how full the context is.",
        UsageLine.COST: "Below each answer stands what it cost.",
    },
}


def manner(
    page: Page, name: CommandName, rest: str, session: Session, agent: Agent, choices: Choices, *, trust: Trust
) -> str:
    """Execute /verbose, /reasoning, /elevated or /usage with a level or `default`. Without one, show the level."""
    levels, key = _LEVELS[name], name.value
    word = rest.strip().casefold()
    named = f"{', '.join(levels)}, or default"
    if not word:
        now = getattr(session.mind.manner.over(choices.manner(agent)), key) or "not set"
        return f"{key.capitalize()}: {now}. /{key} LEVEL changes it: {named}."
    if word == DEFAULT:
        _keep_manner(page, session, {key: None})
        return f"{key.capitalize()}: as the agent has it."
    if word not in tuple(levels):
        return f"There is no level '{word[:WORD_SHOWN_MAX]}' of /{key}. It is one of: {named}."
    level = levels(word)
    if isinstance(level, Elevation) and level is not Elevation.OFF:
        closed = choices.why_not_elevated(level, agent, session, owner=trust is Trust.OWNER)
        if closed:
            return f"Not elevated: {closed}."
    _keep_manner(page, session, {key: level})
    return f"{key.capitalize()}: {level}. {_SAID[name][level]}"


def _keep_manner(page: Page, session: Session, change: dict[str, Any]) -> None:
    _keep(page, session, replace(session.mind, manner=replace(session.mind.manner, **change)))


# --- sending ---


_SENDING = {"on": True, "off": False, "inherit": None, DEFAULT: None}


def send(page: Page, rest: str, session: Session, *, trust: Trust) -> str:
    """Execute /send on|off|inherit. The owner's choice for one session overrides all rules."""
    word = rest.strip().casefold()
    if not word:
        return f"Sending: {sending_words(session.mind)}. /send on, /send off or /send inherit changes it."
    if trust is not Trust.OWNER:
        return "Only the owner of the house decides what leaves it: nothing was changed."
    if word not in _SENDING:
        return f"There is no '/send {word[:WORD_SHOWN_MAX]}'. It is one of: on, off, inherit."
    mind = replace(session.mind, send=_SENDING[word])
    if mind != session.mind:
        keep_sending(page, session, mind.send)
    return f"Sending: {sending_words(mind)}."


def keep_sending(page: Page, session: Session, send: bool | None) -> None:
    sessions.set_mind(page.conn, session.id, replace(session.mind, send=send))
    page.tell(NewsKind.SESSION_CHANGED, session=session.id, send=send)


def sending_words(mind: Mind) -> str:
    match mind.send:
        case None:
            return "as the rules of the house have it"
        case True:
            return "on, whatever the rules say"
        case False:
            return "off: what the agent says here is kept, and does not leave the house"


# --- queue ---


def queue(page: Page, rest: str, session: Session, agent: Agent) -> str:
    """Execute /queue [default|MODE] [debounce:TIME] [cap:NUMBER] [drop:WHAT]."""
    words = rest.casefold().split()
    if not words:
        return f"{_queue_line(session.queue.over(agent.queue))} /queue default undoes."
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
        sessions.set_queue(page.conn, session.id, override, at_ms=page.at_ms)
        page.tell(NewsKind.SESSION_CHANGED, session=session.id, queue=override)
    return _queue_line(override.over(agent.queue))


def _queue_change(word: str) -> dict[str, Any] | str:
    """Return the fields that one word sets, or an error sentence."""
    key, colon, value = word.partition(":")
    shown = value[:WORD_SHOWN_MAX]
    match key:
        case "cap" if colon:
            if not (value.isascii() and value.isdigit() and int(value[:9]) <= QUEUE_CAP_MAX):
                return f"A cap is a number from 0 to {QUEUE_CAP_MAX:,}, and '{shown}' is none."
            return {"cap": int(value)}
        case "drop" if colon:
            if value not in DROPS:
                return f"What is dropped is one of: {', '.join(DROPS)}; '{shown}' is none of them."
            return {"overflow": DROPS[value]}
        case "debounce" if colon:
            found = _DURATION.fullmatch(value)
            seconds = float(found[1]) * _SECONDS[found[2]] if found else -1.0
            if not 0 <= seconds <= DEBOUNCE_S_MAX:
                return f"A debounce is a time such as 2s or 500ms, up to {DEBOUNCE_S_MAX:g}s, and '{shown}' is none."
            return {"debounce_s": seconds}
        case _ if word in QUEUE_MODES:
            return {"mode": QUEUE_MODES[word]}
        case _:
            return f"There is no queue mode '{word[:WORD_SHOWN_MAX]}'. It is one of: {', '.join(QUEUE_MODES)}."


def queue_words(policy: QueuePolicy) -> str:
    return f"{policy.mode} debounce:{policy.debounce_s:g}s cap:{policy.cap} drop:{policy.overflow}"


def _queue_line(policy: QueuePolicy) -> str:
    return f"Queue: {queue_words(policy)}."


def _keep(page: Page, session: Session, mind: Mind) -> None:
    if mind != session.mind:
        sessions.set_mind(page.conn, session.id, mind)


def refused(error: RetinueError) -> str:
    lines = [f"{error.sentence[:1].upper()}{error.sentence[1:]}."]
    if error.because:
        lines.append(f"Because {error.because}.")
    if error.try_this:
        lines.append(f"Try: {error.try_this}")
    return "\n".join(lines)
