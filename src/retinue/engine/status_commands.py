"""Executes slash commands that report on a session: /status, /context, /usage, /whoami and /agents.

Also builds the reply to /stop.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from zoneinfo import ZoneInfo

import msgspec

from retinue.config.sessions import SessionSettings
from retinue.domain import address
from retinue.domain.agent import Agent
from retinue.domain.envelope import EnvelopeDraft
from retinue.domain.ids import SessionId, short_id
from retinue.domain.prompt_breakdown import PromptPart, PromptPartKind
from retinue.domain.reset_rules import ResetRules, parse_time_of_day
from retinue.domain.session import Session
from retinue.domain.times import format_time, from_ms
from retinue.domain.trust import Trust
from retinue.engine.context_reset import reset_rules_of
from retinue.engine.run_cancel import CancelResult
from retinue.engine.session_setting_commands import AvailableOptions, queue_text, sending_text
from retinue.policy.limits.reset_policy import find_next_reset
from retinue.store.agents import agents
from retinue.store.core.transaction import Transaction
from retinue.store.envelopes import envelopes
from retinue.store.runs import runs, spend_report
from retinue.store.runs.spend_report import UsageSum
from retinue.store.sessions import records
from retinue.text.quantity import format_quantity

PARTS_LISTED_MAX = 10  # entries of each kind in `/context list`
PARTS_SHOWN_MAX = 500  # entries of each kind in `/context detail`, of all kinds in `/context json`


def whoami_text(draft: EnvelopeDraft, agent: Agent) -> str:
    person = draft.context.person
    who = f"{address.person_address(person)}, at {draft.sender}" if person else str(draft.sender)
    return f"You are {who}, and {agent.name} treats you as {_trust_text(draft.trust)}."


def _trust_text(trust: Trust) -> str:
    return "the owner" if trust is Trust.OWNER else "a known person"


def status_text(
    tx: Transaction,
    session: Session,
    agent: Agent,
    zone: ZoneInfo,
    available: AvailableOptions,
    settings: SessionSettings,
) -> str:
    run = runs.get_open(tx.conn, session.id)
    options, manner = session.options, session.options.manner.with_defaults(available.default_display(agent))
    context = _context_figures(tx, session, agent, available)
    used = spend_report.get_session_usage(tx.conn, session.id)
    asked = available.model_status(tx.conn, agent, options)
    lines = {
        "now": format_time(from_ms(tx.at_ms), zone),
        "agent": agent.name,
        "model": options.model or agent.model or "the default model",
        "current_model": asked[0] if asked else "none",
        "effort": available.effective_effort(agent, options) or "the default of the model",
        "session": short_id(session.id),
        "run": f"{short_id(run.id)} {run.status} since {format_time(run.started_at, zone)}" if run else "none",
        "waiting_envelopes": envelopes.count_due(tx.conn, session.id, tx.at_ms),
        "queue_mode": session.queue.apply_to(agent.queue).mode,
        "queue": queue_text(session.queue.apply_to(agent.queue)),
        "verbose": manner.verbose or "off",
        "reasoning": manner.reasoning or "not set",
        "elevated": manner.elevated or "not set",
        "usage_line": manner.usage or "off",
        "context": context.get("context_tokens", "unknown"),
        "used": _usage_summary(used),
        "records": session.record_seq,
        "compactions": session.compactions,
        "context_started": format_time(from_ms(session.context_started_ms), zone),
        "reset_rules": _reset_rules_text(reset_rules_of(session, agent, settings)),
        "next_reset": _next_reset_text(tx, session, agent, zone, settings),
        "send": sending_text(session.options),
    }
    return _format_lines(lines)


def _reset_rules_text(rules: ResetRules) -> str:
    """Describe when the session's context is reset."""
    at = parse_time_of_day(rules.daily_at) if rules.daily_at else None
    rules_shown = [
        f"daily at {at:%H:%M}" if at is not None else "",
        f"after {rules.idle_minutes:g} minutes without activity" if rules.idle_minutes else "",
        f"beyond {rules.context_tokens_max:,} tokens" if rules.context_tokens_max else "",
    ]
    return ", ".join(filter(None, rules_shown)) or "only on request"


def _next_reset_text(tx: Transaction, session: Session, agent: Agent, zone: ZoneInfo, settings: SessionSettings) -> str:
    if session.reset_because:
        return f"with the next run: {session.reset_because}"
    found = find_next_reset(reset_rules_of(session, agent, settings), session, now_ms=tx.at_ms, zone=zone)
    if found is None:
        return "not automatically"
    if found.at <= from_ms(tx.at_ms):
        return f"with the next run: {found.because}"
    return f"{format_time(found.at, zone)} ({found.because})"


def context_text(
    tx: Transaction,
    arguments: str,
    session: Session,
    agent: Agent,
    available: AvailableOptions,
    parts: Sequence[PromptPart],
) -> str:
    """Execute /context [list|detail|json]."""
    figures = _context_figures(tx, session, agent, available) | {
        "session": short_id(session.id),
        "records": session.record_seq,
        "contexts_started": session.revision + 1,
    }
    match arguments.strip().casefold():
        case "":
            return _format_lines(figures)
        case "list":
            return "\n".join([_format_lines(figures), *_list_parts(parts, limit=PARTS_LISTED_MAX)])
        case "detail":
            return "\n".join([_format_lines(figures), *_list_parts(parts, limit=PARTS_SHOWN_MAX)])
        case "json":
            return msgspec.json.encode({**figures, "parts": parts[:PARTS_SHOWN_MAX]}).decode()
        case other:
            return f"Invalid value '{other[:20]}' for /context. It must be list, detail, json or empty."


def _context_figures(
    tx: Transaction, session: Session, agent: Agent, available: AvailableOptions
) -> dict[str, str | int]:
    found, damaged = records.read_range(tx.conn, session.id, first=session.context_start_seq, last=session.record_seq)
    return {**available.context_report(agent, session, found), "damaged_records": len(damaged)}


def _list_parts(parts: Sequence[PromptPart], *, limit: int) -> list[str]:
    """Return lines about the parts of the prompt, grouped by kind, largest first.

    Parts that are left out are counted.
    """
    lines: list[str] = []
    for kind in PromptPartKind:
        of_kind = sorted((part for part in parts if part.kind is kind), key=lambda part: -part.tokens)
        if not of_kind:
            continue
        total = sum(part.tokens for part in of_kind)
        lines += ["", f"{kind}s: {len(of_kind)}, about {total:,} tokens"]
        for part in of_kind[:limit]:
            within = f" (in {part.within})" if part.within else ""
            lines.append(f"  {part.tokens:>7,}  {part.name}{within}: {part.chars:,} characters")
        if len(of_kind) > limit:
            lines.append(f"  and {len(of_kind) - limit} more: /context detail")
    return lines


def usage_text(tx: Transaction, session: Session, agent: Agent, available: AvailableOptions) -> str:
    """Return the session's usage since the session was created, across resets."""
    used = spend_report.get_session_usage(tx.conn, session.id)
    lines: dict[str, str | int] = {
        "session": short_id(session.id),
        "calls": used.calls,
        "failed_calls": used.failed_calls,
        "input_tokens": f"{used.input_tokens:,}",
        "output_tokens": f"{used.output_tokens:,}",
        "cache_read_tokens": f"{used.cache_read_tokens:,}",
        "reasoning_tokens": f"{used.reasoning_tokens:,}",
        "cost": _cost_text(used),
        "usage_line": session.options.manner.with_defaults(available.default_display(agent)).usage or "off",
    }
    return _format_lines(lines)


def _usage_summary(used: UsageSum) -> str:
    return f"{used.input_tokens:,} tokens in, {used.output_tokens:,} out, {_cost_text(used)}"


def _cost_text(used: UsageSum) -> str:
    unknown = f" ({format_quantity(used.unknown_calls, 'call')} of unknown cost)" if used.unknown_calls else ""
    return f"${used.cost_microusd / 1e6:.4f}{unknown}"


def agents_text(tx: Transaction, agent: Agent) -> str:
    """Execute /agents: list the agents that the person can write to. The current agent is marked."""
    lines: list[str] = []
    for each in agents.list_all(tx.conn):
        here = each.name == agent.name
        if each.visible or here:
            description = f": {' '.join(each.description.split())}" if each.description else ""
            lines.append(f"{'*' if here else ' '} {each.name}{description}")
    return "\n".join([*lines, "Switch to another one: /switch AGENT [TEXT]."])


def stopped_text(result: CancelResult, session: SessionId) -> str:
    """Return the reply to /stop, which says how much was stopped."""
    if not result.runs and not result.cleared_envelopes:
        return "Nothing was running or waiting here."
    below = sum(lane != session for lane in result.sessions)
    parts = [
        f"{format_quantity(len(result.runs) - below, 'run')} stopped",
        f"{result.cleared_envelopes} waiting cleared",
    ]
    if below:
        parts.append(f"{format_quantity(below, 'subagent')} stopped")
    return f"{', '.join(parts)}."


def _format_lines(figures: Mapping[str, object]) -> str:
    """Return one line for each figure, with its name in kebab-case as in the CLI."""
    return "\n".join(f"{name.replace('_', '-')}: {value}" for name, value in figures.items())
