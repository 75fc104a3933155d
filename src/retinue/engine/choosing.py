"""What a conversation may say about its own mind: which model, how much effort, how much it has in mind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import sqlalchemy as sa
from msgspec.structs import replace

from retinue.domain.agent import Agent
from retinue.domain.errors import RetinueError
from retinue.domain.model import EFFORTS
from retinue.domain.record import Record
from retinue.domain.session import Mind, Session
from retinue.store import sessions
from retinue.store.house import Page


class Choices(Protocol):
    """What there is to choose from. Whoever builds the house hands it in; without it, nothing can be chosen."""

    def listed(self, agent: Agent, mind: Mind) -> Sequence[str]:
        """The models, numbered, with the one in use marked."""
        ...

    def status(self, conn: sa.Connection, agent: Agent, mind: Mind) -> Sequence[str]:
        """Which models would be asked now, in which order, with which credential, and why."""
        ...

    def choose(self, text: str, agent: Agent, mind: Mind) -> Mind:
        """The mind with what `text` names: a number of the list, an alias, a reference, each with or without
        `@CREDENTIAL`. Raises where there is no such model, or it is not allowed."""
        ...

    def check_effort(self, effort: str, agent: Agent, mind: Mind) -> None:
        """Raises where the model in use cannot take it."""
        ...

    def report(self, agent: Agent, session: Session, records: Sequence[Record]) -> Sequence[str]:
        """How much of the window is taken, and by what."""
        ...


class NoChoices:
    """A house in which nothing can be chosen."""

    def listed(self, agent: Agent, mind: Mind) -> Sequence[str]:
        return [agent.model or "as the house has it"]

    def status(self, conn: sa.Connection, agent: Agent, mind: Mind) -> Sequence[str]:
        return self.listed(agent, mind)

    def choose(self, text: str, agent: Agent, mind: Mind) -> Mind:
        raise RetinueError("no other model can be chosen here", because="this house was furnished with its own")

    def check_effort(self, effort: str, agent: Agent, mind: Mind) -> None:
        return

    def report(self, agent: Agent, session: Session, records: Sequence[Record]) -> Sequence[str]:
        return []


def model(page: Page, rest: str, session: Session, agent: Agent, choices: Choices) -> str:
    """/model, /model list, /model status, /model default, /model NAME|NUMBER|REF[@CREDENTIAL]."""
    mind = session.mind
    word = rest.strip()
    if word.casefold() in ("", "list"):
        return "\n".join(
            [*choices.listed(agent, mind), "Choose with /model NUMBER or /model NAME; /model default undoes."]
        )
    if word.casefold() == "status":
        return "\n".join(choices.status(page.conn, agent, mind))
    if word.casefold() in ("default", "none"):
        _keep(page, session, replace(mind, model=None, credential=None, pinned=False))
        return "From here on, this conversation thinks with what the agent has."
    try:
        chosen = choices.choose(word, agent, mind)
    except RetinueError as error:
        return _refused(error)
    _keep(page, session, chosen)
    pinned = f", with the credential {chosen.credential}" if chosen.pinned else ""
    return f"From the next turn on, this conversation thinks with {chosen.model}{pinned}."


def think(page: Page, rest: str, session: Session, agent: Agent, choices: Choices) -> str:
    """/think LEVEL: how much effort goes into a reply."""
    level = rest.strip().casefold()
    levels = f"{', '.join(EFFORTS)}, or default"
    if not level:
        own = session.mind.effort or agent.effort or "as the model would have it"
        return f"Effort: {own}. /think LEVEL changes it: {levels}."
    if level == "default":
        _keep(page, session, replace(session.mind, effort=None))
        return "Effort: as the agent has it."
    if level not in EFFORTS:
        return f"There is no effort '{level[:20]}'. It is one of: {levels}."
    try:
        choices.check_effort(level, agent, session.mind)
    except RetinueError as error:
        return _refused(error)
    _keep(page, session, replace(session.mind, effort=level))
    return f"Effort: {level}, from the next turn on."


def _keep(page: Page, session: Session, mind: Mind) -> None:
    if mind != session.mind:
        sessions.set_mind(page.conn, session.id, mind)


def _refused(error: RetinueError) -> str:
    lines = [f"{error.sentence[:1].upper()}{error.sentence[1:]}."]
    if error.because:
        lines.append(f"Because {error.because}.")
    if error.try_this:
        lines.append(f"Try: {error.try_this}")
    return "\n".join(lines)
