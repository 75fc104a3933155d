"""The runner of external agents: sends their messages out, and suspends the run until an answer comes.

The run waits like one that delegated to another agent: in the store, holding nothing. It uses no
model and no tools of this server.
"""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa

from retinue.domain.address import EXTERNAL
from retinue.domain.delegation import DelegationKind, DelegationState
from retinue.domain.delegation_request import Handed, Handing, HandOver
from retinue.domain.envelope import TEXT_BYTES_MAX, Envelope, answerable
from retinue.domain.errors import RetinueError
from retinue.domain.ids import RunId
from retinue.domain.ports import Ask, Journal, Tell
from retinue.domain.record import Reply
from retinue.domain.storable_text import clipped_bytes
from retinue.domain.trust import Trust, least
from retinue.domain.ui_context import words_of
from retinue.runners.base import Assignment, Finished, Parked
from retinue.runners.turn_input import shown
from retinue.store.core.connection import Store
from retinue.store.envelopes import envelopes

CALL = EXTERNAL  # one request per run, so its call needs no other id
NOTHING_TO_SAY = "NO_REPLY"
HERE_ONLY = "This agent runs elsewhere, and keeps its own context: there is nothing here to compact."


class External:
    """Runs external agents."""

    def __init__(self, store: Store, hand_over: HandOver) -> None:
        self._store = store
        self._hand_over = hand_over

    async def work(self, assignment: Assignment, journal: Journal, ask: Ask, tell: Tell) -> Finished:
        del ask, tell
        if assignment.request.compact is not None:
            return Finished(text=HERE_ONLY)
        if assignment.request.call is not None:
            raise _no_hands(assignment)
        letters = await self._store.read(lambda conn: _letters(conn, journal.run.envelopes))
        asked = [letter for letter in letters if answerable(letter.kind)]
        text = await self._answer(assignment, journal.run.id, asked) if asked else _told(letters)
        await journal.keep([Reply(text=text, model=assignment.agent.name, provider=EXTERNAL)])
        return Finished(text=text, trust=Trust.UNTRUSTED)

    async def _answer(self, assignment: Assignment, run: RunId, asked: Sequence[Envelope]) -> str:
        """Return the external agent's answer. Suspends the run until it comes."""
        agent = assignment.agent
        handed = await self._hand_over(
            Handing(
                kind=DelegationKind.EXTERNAL,
                run=run,
                call=CALL,
                target=agent.name,
                text=_said(asked),
                trust=least(letter.trust for letter in asked),
                wait_s=agent.external.timeout_s,
                attachments=shown(asked),
            )
        )
        if handed.pending:
            raise Parked((), turn=0, because="", waits=(CALL,), until=handed.delegation.wait_until)
        if handed.answer is None or handed.delegation.state is not DelegationState.DONE:
            raise _unanswered(assignment, handed)
        return handed.answer.text


def _letters(conn: sa.Connection, ids: Sequence[str]) -> list[Envelope]:
    return [letter for id_ in ids if (letter := envelopes.get(conn, id_)) is not None]


def _said(letters: Sequence[Envelope]) -> str:
    """Return the request text: the message texts, without the context that our own models get."""
    return clipped_bytes("\n\n".join(words_of(letter.text) for letter in letters), TEXT_BYTES_MAX)


def _told(letters: Sequence[Envelope]) -> str:
    """Return text that the external agent sent unasked. Notices of the server are not passed to it."""
    from_there = [letter.text for letter in letters if letter.sender.is_external]
    return clipped_bytes("\n\n".join(from_there), TEXT_BYTES_MAX) or NOTHING_TO_SAY


def _unanswered(assignment: Assignment, handed: Handed) -> RetinueError:
    name = assignment.agent.name
    return RetinueError(
        f"{name}, who works elsewhere, has not answered",
        because=handed.delegation.because,
        try_this=f"see whether it runs where `agents.{name}.external.url` says; `retinue why` tells what was tried",
        code="external.no-answer",
    )


def _no_hands(assignment: Assignment) -> RetinueError:
    return RetinueError(
        f"{assignment.agent.name} has no tools here",
        because="it works elsewhere, with what it has there",
        try_this="ask another agent",
        code="external.no-tools",
    )
