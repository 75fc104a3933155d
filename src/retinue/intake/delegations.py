"""Ends delegations. Each result is reported once: by the answer, or by the notice of a failure."""

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
    """Whether the requester gets the result."""
    return delegation.wait_until is not None or delegation.notify is not NotifyMode.OFF


def is_silent(delegation: Delegation) -> bool:
    """Whether the requester reads the result only in its next turn. A waiting requester gets it at once."""
    return delegation.wait_until is None and delegation.notify is NotifyMode.NOTE


def end_delegation(
    page: Transaction, delegation: Delegation, state: DelegationState, *, because: str, result: EnvelopeId | None
) -> int | None:
    """End a delegation, in the commit that settles its envelope. Returns the time to archive its session, or None."""
    archive_ms = _get_archive_ms(page, delegation)
    done = delegations.end(
        page.conn,
        delegation.id,
        state,
        because=because,
        result=result,
        at_ms=page.at_ms,
        archive_ms=archive_ms,
    )
    if done:
        page.emit(
            EventKind.DELEGATION_ENDED,
            session=delegation.session,
            delegation=delegation.id,
            state=state.value,
            because=because,
            result=result,
            to=delegation.target_session,
        )
    return archive_ms if done else None


def cancel_external_requests(page: Transaction, run: RunId) -> None:
    """Cancel the open requests of an ended run to external agents. Later answers no longer match a request."""
    for delegation in delegations.list_awaited(page.conn, run):
        if delegation.kind is DelegationKind.EXTERNAL and delegation.state.is_open:
            end_delegation(page, delegation, DelegationState.CANCELLED, because="its run has ended", result=None)


def _get_archive_ms(page: Transaction, delegation: Delegation) -> int | None:
    """Return when to archive a subagent's session. With cleanup `delete`, soon enough to read the result first."""
    if delegation.kind not in (DelegationKind.SPAWN, DelegationKind.BACKGROUND):
        return None
    if delegation.cleanup is SubagentCleanup.DELETE:
        return page.at_ms + READ_WITHIN_MS
    after_s = delegation.archive_after_s
    return page.at_ms + round(after_s * 1000) if after_s is not None else None
