"""Updates approval questions in channels once they are decided: shows the decision and removes the buttons.

If the platform cannot edit messages, the message stays as it is. Pressing an old button then
has no effect, and the reply says that the question is closed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

import sqlalchemy as sa
from msgspec import Struct
from msgspec.structs import replace

from retinue.connectors.base import Connector, ConnectorCapabilities, get_capabilities, get_preview_support
from retinue.connectors.redacted_connector import RedactedConnector
from retinue.domain.approval import Approval
from retinue.domain.envelope import Envelope
from retinue.domain.errors import RetinueError
from retinue.domain.ids import ApprovalId, short_id
from retinue.domain.reply_delivery import ReplyDelivery, default_reply_delivery
from retinue.policy.delivery_split import split_envelope
from retinue.store.channels import delivery_parts
from retinue.store.core import tables as t
from retinue.store.core.connection import Store
from retinue.store.envelopes import envelopes
from retinue.store.runs import approvals
from retinue.text.answer_options import channel_question_id
from retinue.text.chunking import truncate_text

log = logging.getLogger(__name__)

OPEN_QUESTIONS_MAX = 500  # open questions that are tracked; with more than this, some messages are not updated
EDIT_S_MAX = 10.0


class _PostedQuestion(Struct, frozen=True):
    """A question that was delivered to a channel."""

    question: Envelope
    approval: Approval
    message_id: str  # platform id of the last part, which has the buttons
    part: int


class PostedQuestions:
    """Updates the messages of closed questions. It checks for closed questions whenever an approval changes."""

    def __init__(
        self,
        store: Store,
        connectors: Mapping[str, Connector],
        get_reply_delivery: Callable[[str], ReplyDelivery] = default_reply_delivery,
    ) -> None:
        self._store = store
        self._connectors = connectors
        self._get_reply_delivery = get_reply_delivery
        self._open: frozenset[ApprovalId] = frozenset()
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._open = await self._store.read(_read_open)
        self._store.on_commit(self._changed.set, t.approvals)
        self._task = asyncio.create_task(self._watch_approvals(), name="questions in rooms")

    def abandon(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def stop(self) -> None:
        self.abandon()
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)

    async def _watch_approvals(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            try:
                now = await self._store.read(_read_open)
                over, self._open = self._open - now, now
                for id_ in over:
                    await self._close_question(id_)
            except RetinueError as error:
                log.warning("posted questions not checked", extra={"code": error.code})

    async def _close_question(self, id_: ApprovalId) -> None:
        found = await self._store.read(lambda conn: _find_posted(conn, id_))
        connector = self._connectors.get(found.question.recipient.name) if found is not None else None
        edits, able = get_preview_support(connector), get_capabilities(connector)
        if found is None or connector is None or edits is None or able is None:
            return
        channel = found.question.recipient
        text = _format_closed(found, connector, able, self._get_reply_delivery(channel.name))
        try:
            async with asyncio.timeout(EDIT_S_MAX):
                await edits.preview(channel.rest, text, preview_id=found.message_id)
        except Exception as error:  # whatever a connector raises, the next question is updated
            known = isinstance(error, RetinueError | OSError)
            log.info("question not updated", exc_info=None if known else error, extra={"connector": channel.name})


def _read_open(conn: sa.Connection) -> frozenset[ApprovalId]:
    return frozenset(each.id for each in approvals.list_open(conn, limit=OPEN_QUESTIONS_MAX))


def _find_posted(conn: sa.Connection, id_: ApprovalId) -> _PostedQuestion | None:
    """Return the posted question of an approval. None if it was not sent to a channel, or not delivered yet."""
    question, approval = envelopes.get(conn, channel_question_id(id_)), approvals.get(conn, id_)
    arrived = delivery_parts.get_receipts(conn, question.id) if question is not None else {}
    if question is None or approval is None or not arrived:
        return None
    last = max(arrived)
    return _PostedQuestion(question, approval, arrived[last], last)


def _format_closed(
    posted: _PostedQuestion, connector: Connector, capabilities: ConnectorCapabilities, reply_delivery: ReplyDelivery
) -> str:
    """Return the new text of a closed question: the old text and the decision."""
    approval = posted.approval
    by = f" by {approval.decided_by}" if approval.decided_by not in ("", "server") else ""
    verdict = f"[{short_id(approval.id)} is {approval.state}{by}]"
    question = posted.question
    if isinstance(connector, RedactedConnector):
        question = replace(question, text=connector.redact(question.text))
    parts = split_envelope(question, capabilities, reply_delivery)
    part_text = parts[posted.part].text if posted.part == len(parts) - 1 else ""
    room = capabilities.text_max - len(verdict) - 2
    shown = truncate_text(part_text, room, unit=capabilities.unit) if part_text and room > 0 else ""
    return f"{shown}\n\n{verdict}" if shown else verdict
