"""Updates questions posted in channels: once one is answered anywhere, its message says so and
loses its buttons.

This is cosmetic, and needs a platform that can edit messages. A question that is not updated
decides nothing: a press is answered with the information that it is closed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

import sqlalchemy as sa
from msgspec import Struct
from msgspec.structs import replace

from retinue.connectors.base import Abilities, Connector, abilities_of, edits_of
from retinue.connectors.redacted_connector import Masked
from retinue.domain.approval import Approval
from retinue.domain.envelope import Envelope
from retinue.domain.errors import RetinueError
from retinue.domain.ids import ApprovalId, short
from retinue.domain.reply_delivery import Words, plain_words
from retinue.policy.delivery_split import shape
from retinue.store.channels import delivery_parts
from retinue.store.core import tables as t
from retinue.store.core.connection import Store
from retinue.store.envelopes import envelopes
from retinue.store.runs import approvals
from retinue.text.answer_options import question_in_room
from retinue.text.chunking import clipped

log = logging.getLogger(__name__)

OPEN_LOOKED_AT_MAX = 500  # open questions that are tracked; with more than this, some messages are not updated
EDIT_S_MAX = 10.0


class _Standing(Struct, frozen=True):
    """A question that was delivered to a channel."""

    question: Envelope
    approval: Approval
    message_id: str  # of its last part, which has the buttons
    part: int


class ShownQuestions:
    """Checks which questions are open whenever an approval changes, and updates the messages of the
    closed ones."""

    def __init__(
        self, store: Store, connectors: Mapping[str, Connector], words: Callable[[str], Words] = plain_words
    ) -> None:
        self._store = store
        self._connectors = connectors
        self._words = words
        self._open: frozenset[ApprovalId] = frozenset()
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._open = await self._store.read(_open)
        self._store.on_commit(self._changed.set, t.approvals)
        self._task = asyncio.create_task(self._follow(), name="questions in rooms")

    def abandon(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def stop(self) -> None:
        self.abandon()
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)

    async def _follow(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            try:
                now = await self._store.read(_open)
                over, self._open = self._open - now, now
                for id_ in over:
                    await self._close(id_)
            except RetinueError as error:
                log.warning("questions in rooms not looked at", extra={"code": error.code})

    async def _close(self, id_: ApprovalId) -> None:
        found = await self._store.read(lambda conn: _standing(conn, id_))
        connector = self._connectors.get(found.question.recipient.name) if found is not None else None
        edits, able = edits_of(connector), abilities_of(connector)
        if found is None or connector is None or edits is None or able is None:
            return
        room = found.question.recipient
        text = _closed(found, connector, able, self._words(room.name))
        try:
            async with asyncio.timeout(EDIT_S_MAX):
                await edits.preview(room.rest, text, shown=found.message_id)
        except Exception as error:  # whatever a connector raises, the next question is updated
            known = isinstance(error, RetinueError | OSError)
            log.info("question left standing", exc_info=None if known else error, extra={"connector": room.name})


def _open(conn: sa.Connection) -> frozenset[ApprovalId]:
    return frozenset(each.id for each in approvals.listed(conn, limit=OPEN_LOOKED_AT_MAX))


def _standing(conn: sa.Connection, id_: ApprovalId) -> _Standing | None:
    """A question as delivered to a channel; None if it was not sent to one, or has not arrived."""
    question, approval = envelopes.get(conn, question_in_room(id_)), approvals.get(conn, id_)
    arrived = delivery_parts.of(conn, question.id) if question is not None else {}
    if question is None or approval is None or not arrived:
        return None
    last = max(arrived)
    return _Standing(question, approval, arrived[last], last)


def _closed(standing: _Standing, connector: Connector, able: Abilities, words: Words) -> str:
    """The text of the message, with the decision."""
    approval = standing.approval
    by = f" by {approval.decided_by}" if approval.decided_by not in ("", "house") else ""
    verdict = f"[{short(approval.id)} is {approval.state}{by}]"
    question = standing.question
    if isinstance(connector, Masked):
        question = replace(question, text=connector.mask(question.text))
    parcels = shape(question, able, words)
    said = parcels[standing.part].text if standing.part == len(parcels) - 1 else ""
    room = able.text_max - len(verdict) - 2
    shown = clipped(said, room, unit=able.unit) if said and room > 0 else ""
    return f"{shown}\n\n{verdict}" if shown else verdict
