"""Formats the result of a subagent for the session that started it: outcome, usage and findings."""

from __future__ import annotations

import sqlalchemy as sa

from retinue.domain.budget import format_usd
from retinue.domain.delegation import TASK_SHOWN_MAX, Delegation, DelegationKind, DelegationState
from retinue.domain.envelope import ENVELOPE_TEXT_BYTES_MAX
from retinue.domain.ids import derive_id, short_id
from retinue.domain.run import TIMED_OUT_CODES
from retinue.domain.storable_text import truncate_bytes
from retinue.domain.times import from_ms
from retinue.domain.trust import Trust
from retinue.intake.delegation_end import is_silent
from retinue.store.core.transaction import Transaction
from retinue.store.runs import runs, spend_report
from retinue.text.untrusted_wrapper import wrap_untrusted

HEAD_BYTES_MAX = 8 * 1024  # bytes of the lines before the findings, and of the markers around the findings
_PASS_ON_INSTRUCTION = (
    "Report what matters in it to the person you work for, in your own words. Reply NO_REPLY to report nothing."
)


def format_result(tx: Transaction, delegation: Delegation, state: DelegationState, text: str, *, trust: Trust) -> str:
    """Return the text of the envelope that reports the result of delegated work.

    For a subagent, lines about outcome and usage are added. They come before the subagent's text, so
    that the text cannot imitate them. Other results are returned unchanged.
    """
    if delegation.kind is not DelegationKind.SPAWN:
        return text
    outcome = describe_outcome(tx.conn, delegation, state)
    text = truncate_bytes(text, ENVELOPE_TEXT_BYTES_MAX - HEAD_BYTES_MAX)
    if trust is Trust.UNTRUSTED:
        text = wrap_untrusted(text, id=derive_id(delegation.id, "findings"), source={"subagent": delegation.label})
    lines = [
        f'The subagent "{delegation.label}" ({delegation.target}) has ended: {outcome}.',
        f"task: {one_line(delegation.task)}",
        *_format_usage(tx, delegation),
        f"session: {delegation.worker_session_key}, run: {short_id(delegation.worker_run_id)}",
        *([] if is_silent(delegation) else [_PASS_ON_INSTRUCTION]),
        "",
        "findings:" if state is DelegationState.DONE else "because:",
        text,
    ]
    return "\n".join(lines)


def describe_outcome(conn: sa.Connection, delegation: Delegation, state: DelegationState) -> str:
    """Return the outcome of delegated work as one word: ok, error, timeout, stopped, or open."""
    match state:
        case DelegationState.OPEN:
            return "open"
        case DelegationState.DONE:
            return "ok"
        case DelegationState.CANCELLED:
            return "stopped"
        case DelegationState.FAILED:
            run = runs.get(conn, delegation.worker_run_id)
            late = run is not None and (run.error or "").startswith(TIMED_OUT_CODES)
            return "timeout" if late else "error"


def one_line(text: str, length_max: int = TASK_SHOWN_MAX) -> str:
    line = " ".join(text[: 4 * length_max].split())
    return line if len(line) <= length_max else f"{line[: length_max - 1]}…"


def _format_usage(tx: Transaction, delegation: Delegation) -> list[str]:
    if delegation.started_at is None or delegation.target_session is None:
        return []
    seconds = (from_ms(tx.at_ms) - delegation.started_at).total_seconds()
    used = spend_report.get_session_usage(tx.conn, delegation.target_session)
    tokens = f"{used.input_tokens:,} tokens in, {used.output_tokens:,} out"
    return [f"took: {seconds:.1f} s, {tokens}, {format_usd(used.cost_microusd)}"]
