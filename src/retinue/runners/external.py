"""The runner of external agents: sends them messages, and suspends the run until an answer comes.

The run waits like a run that has delegated work to another agent: in the store, without a slot. It uses no
model and no tools of this server.
"""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa

from retinue.domain.address import EXTERNAL
from retinue.domain.delegation import DelegationKind, DelegationState
from retinue.domain.delegation_request import DelegateWork, DelegationRequest
from retinue.domain.envelope import ENVELOPE_TEXT_BYTES_MAX, Envelope, needs_answer
from retinue.domain.ids import RunId
from retinue.domain.ports import Journal, RunApprovals, RunObserver
from retinue.domain.record import Reply
from retinue.domain.storable_text import truncate_bytes
from retinue.domain.trust import Trust, least_trust
from retinue.domain.ui_context import text_without_context
from retinue.runners.base import RunAnswer, RunAssignment, Suspended
from retinue.runners.errors import ExternalAgentHasNoTools, ExternalAgentSilent
from retinue.runners.turn_input import collect_attachments
from retinue.store.core.connection import Store
from retinue.store.envelopes import envelopes

CALL_ID = EXTERNAL  # one request per run, so its call needs no other id
SILENT_ANSWER = "NO_REPLY"
NOTHING_TO_COMPACT = "This is an external agent, which keeps its own context: there is nothing to compact here."


class ExternalRunner:
    """Runs external agents."""

    def __init__(self, store: Store, delegate: DelegateWork) -> None:
        self._store = store
        self._delegate = delegate

    async def take_turns(
        self, assignment: RunAssignment, journal: Journal, approvals: RunApprovals, observer: RunObserver
    ) -> RunAnswer:
        del approvals, observer
        if assignment.request.compact is not None:
            return RunAnswer(text=NOTHING_TO_COMPACT)
        if assignment.request.call is not None:
            raise ExternalAgentHasNoTools(assignment.agent.name)
        received = await self._store.read(lambda conn: _read_envelopes(conn, journal.run.envelopes))
        asked = [envelope for envelope in received if needs_answer(envelope.kind)]
        text = await self._request_answer(assignment, journal.run.id, asked) if asked else _unasked_text(received)
        await journal.add_bodies([Reply(text=text, model=assignment.agent.name, provider=EXTERNAL)])
        return RunAnswer(text=text, trust=Trust.UNTRUSTED)

    async def _request_answer(self, assignment: RunAssignment, run: RunId, envelopes: Sequence[Envelope]) -> str:
        """Return the external agent's answer, or suspend the run until the answer arrives."""
        agent = assignment.agent
        delegated = await self._delegate(
            DelegationRequest(
                kind=DelegationKind.EXTERNAL,
                run=run,
                call=CALL_ID,
                target=agent.name,
                text=_request_text(envelopes),
                trust=least_trust(envelope.trust for envelope in envelopes),
                wait_s=agent.external.timeout_s,
                attachments=collect_attachments(envelopes),
            )
        )
        if delegated.is_pending:
            raise Suspended((), turn=0, because="", waiting_calls=(CALL_ID,), until=delegated.delegation.wait_until)
        if delegated.answer is None or delegated.delegation.state is not DelegationState.DONE:
            raise ExternalAgentSilent(agent.name, because=delegated.delegation.because)
        return delegated.answer.text


def _read_envelopes(conn: sa.Connection, ids: Sequence[str]) -> list[Envelope]:
    return [envelope for id_ in ids if (envelope := envelopes.get(conn, id_)) is not None]


def _request_text(request_envelopes: Sequence[Envelope]) -> str:
    """Return the text for the external agent: the messages, without the context that our own models get."""
    return truncate_bytes(
        "\n\n".join(text_without_context(envelope.text) for envelope in request_envelopes), ENVELOPE_TEXT_BYTES_MAX
    )


def _unasked_text(received: Sequence[Envelope]) -> str:
    """Return the text of messages that the external agent sent without being asked. Server notices are left out."""
    from_there = [envelope.text for envelope in received if envelope.sender.is_external]
    return truncate_bytes("\n\n".join(from_there), ENVELOPE_TEXT_BYTES_MAX) or SILENT_ANSWER
