"""Ends delegations. Each result is reported once: as the answer, or as a notice of the failure."""

from __future__ import annotations

from retinue.domain.delegation import Delegation, DelegationKind, DelegationState, NotifyMode, SubagentCleanup
from retinue.domain.envelope import Outcome
from retinue.domain.event import EventKind
from retinue.domain.ids import EnvelopeId, RunId
from retinue.store.core.transaction import Transaction
from retinue.store.runs import delegations

READ_WITHIN_MS = 1_000  # most requesters have read a result by then; slower ones are waited for
STATE_BY_OUTCOME = {Outcome.ANSWERED: DelegationState.DONE, Outcome.CANCELLED: DelegationState.CANCELLED}


def is_reported(delegation: Delegation) -> bool:
    """Whether the requester of a delegation gets the result."""
    return delegation.wait_until is not None or delegation.notify is not NotifyMode.OFF


def is_silent(delegation: Delegation) -> bool:
    """Whether the requester reads the result only in its next turn. A requester that waits gets the result at once."""
    return delegation.wait_until is None and delegation.notify is NotifyMode.NOTE


def end_delegation(
    tx: Transaction, delegation: Delegation, state: DelegationState, *, because: str, result: EnvelopeId | None
) -> int | None:
    """End a delegation, in the transaction that records the outcome of its envelope.

    Returns the time at which to archive the subagent's session, in Unix milliseconds. Returns None
    if the session is not archived.
    """
    archive_ms = _get_archive_ms(tx, delegation)
    done = delegations.end(
        tx.conn,
        delegation.id,
        state,
        because=because,
        result=result,
        at_ms=tx.at_ms,
        archive_ms=archive_ms,
    )
    if done:
        tx.emit(
            EventKind.DELEGATION_ENDED,
            session=delegation.session,
            delegation=delegation.id,
            state=state.value,
            because=because,
            result=result,
            to=delegation.target_session,
        )
    return archive_ms if done else None


def cancel_external_requests(tx: Transaction, run: RunId) -> None:
    """Cancel the requests to external agents that an ended run left open. A later answer then matches no request."""
    for delegation in delegations.list_awaited(tx.conn, run):
        if delegation.kind is DelegationKind.EXTERNAL and delegation.state.is_open:
            end_delegation(
                tx, delegation, DelegationState.CANCELLED, because="the run that sent it has ended", result=None
            )


def _get_archive_ms(tx: Transaction, delegation: Delegation) -> int | None:
    """Return when to archive a subagent's session, in Unix milliseconds, or None to keep it.

    With cleanup `delete`, there is a short delay in which the result can be read.
    """
    if delegation.kind not in (DelegationKind.SPAWN, DelegationKind.BACKGROUND):
        return None
    if delegation.cleanup is SubagentCleanup.DELETE:
        return tx.at_ms + READ_WITHIN_MS
    after_s = delegation.archive_after_s
    return tx.at_ms + round(after_s * 1000) if after_s is not None else None
