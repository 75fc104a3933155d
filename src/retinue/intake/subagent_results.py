"""Formats the result of a subagent for the session that started it: outcome, usage and findings."""

from __future__ import annotations

import sqlalchemy as sa

from retinue.domain.delegation import TASK_SHOWN_MAX, Delegation, DelegationKind, DelegationState
from retinue.domain.envelope import TEXT_BYTES_MAX
from retinue.domain.ids import derived, short
from retinue.domain.money import usd
from retinue.domain.run import TIMED_OUT
from retinue.domain.storable_text import clipped_bytes
from retinue.domain.times import from_ms
from retinue.domain.trust import Trust
from retinue.intake.delegations import is_silent
from retinue.store.core.transaction import Page
from retinue.store.runs import runs, spend_report
from retinue.text.untrusted_wrapper import wrap

HEAD_BYTES_MAX = 8 * 1024  # of the lines before the findings, and of the markers around them
_PASS_ON = "Tell whoever you work for what matters of it, in your own words. NO_REPLY tells nothing."


def announced(page: Page, delegation: Delegation, state: DelegationState, words: str, *, trust: Trust) -> str:
    """The text of the envelope with the result. Results of other kinds of delegation are returned
    unchanged.

    The server's lines come first and the subagent's text last, so that it cannot imitate them.
    """
    if delegation.kind is not DelegationKind.SPAWN:
        return words
    outcome = outcome_of(page.conn, delegation, state)
    words = clipped_bytes(words, TEXT_BYTES_MAX - HEAD_BYTES_MAX)
    if trust is Trust.UNTRUSTED:
        words = wrap(words, id=derived(delegation.id, "findings"), source={"subagent": delegation.label})
    lines = [
        f'The subagent "{delegation.label}" ({delegation.target}) has ended: {outcome}.',
        f"task: {one_line(delegation.task)}",
        *_took(page, delegation),
        f"session: {delegation.child_key}, run: {short(delegation.run_id)}",
        *([] if is_silent(delegation) else [_PASS_ON]),
        "",
        "findings:" if state is DelegationState.DONE else "because:",
        words,
    ]
    return "\n".join(lines)


def outcome_of(conn: sa.Connection, delegation: Delegation, state: DelegationState) -> str:
    """The outcome as one term: ok, error, timeout, stopped, or open."""
    match state:
        case DelegationState.OPEN:
            return "open"
        case DelegationState.DONE:
            return "ok"
        case DelegationState.CANCELLED:
            return "stopped"
        case DelegationState.FAILED:
            run = runs.get(conn, delegation.run_id)
            late = run is not None and (run.error or "").startswith(f"{TIMED_OUT}:")
            return "timeout" if late else "error"


def one_line(text: str, length_max: int = TASK_SHOWN_MAX) -> str:
    line = " ".join(text[: 4 * length_max].split())
    return line if len(line) <= length_max else f"{line[: length_max - 1]}…"


def _took(page: Page, delegation: Delegation) -> list[str]:
    if delegation.started_at is None or delegation.to is None:
        return []
    seconds = (from_ms(page.at_ms) - delegation.started_at).total_seconds()
    used = spend_report.of_session(page.conn, delegation.to)
    tokens = f"{used.input_tokens:,} tokens in, {used.output_tokens:,} out"
    return [f"took: {seconds:.1f} s, {tokens}, {usd(used.cost_microusd)}"]
