"""Slash commands that report on a session: /status, /context, /usage, /whoami, /agents and the reply to /stop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from zoneinfo import ZoneInfo

import msgspec

from retinue.config.sessions import SessionSettings
from retinue.domain import address
from retinue.domain.agent import Agent
from retinue.domain.envelope import Draft
from retinue.domain.ids import SessionId, short
from retinue.domain.prompt_breakdown import Part, PartKind
from retinue.domain.reset_rules import ResetRules, time_of_day
from retinue.domain.session import Session
from retinue.domain.times import from_ms, show
from retinue.domain.trust import Trust
from retinue.engine.context_reset import rules_in
from retinue.engine.run_finish import Cancelled
from retinue.engine.session_commands import Choices, queue_words, sending_words
from retinue.policy.limits.reset_policy import ahead
from retinue.store.agents import agents
from retinue.store.core.transaction import Page
from retinue.store.envelopes import envelopes
from retinue.store.runs import runs, spend_report
from retinue.store.runs.spend_report import Used
from retinue.store.sessions import records

PARTS_LISTED_MAX = 10  # entries of each kind in `/context list`
PARTS_SHOWN_MAX = 500  # entries of each kind in `/context detail`, of all kinds in `/context json`


def whoami(draft: Draft, agent: Agent) -> str:
    person = draft.context.person
    who = f"{address.person(person)}, at {draft.sender}" if person else str(draft.sender)
    return f"You are {who}, and {agent.name} hears you as {_standing(draft.trust)}."


def _standing(trust: Trust) -> str:
    return "its owner" if trust is Trust.OWNER else "someone at home here"


def status(
    page: Page, session: Session, agent: Agent, zone: ZoneInfo, choices: Choices, settings: SessionSettings
) -> str:
    run = runs.open_in(page.conn, session.id)
    mind, manner = session.mind, session.mind.manner.over(choices.manner(agent))
    context = _figures(page, session, agent, choices)
    used = spend_report.of_session(page.conn, session.id)
    asked = choices.status(page.conn, agent, mind)
    lines = {
        "now": show(from_ms(page.at_ms), zone),
        "agent": agent.name,
        "model": mind.model or agent.model or "as the house has it",
        "asks-now": asked[0] if asked else "nobody",
        "effort": choices.effort(agent, mind) or "as the model would have it",
        "session": short(session.id),
        "run": f"{short(run.id)} {run.status} since {show(run.started_at, zone)}" if run else "none",
        "waiting-envelopes": envelopes.count_due(page.conn, session.id, page.at_ms),
        "queue-mode": session.queue.over(agent.queue).mode,
        "queue": queue_words(session.queue.over(agent.queue)),
        "verbose": manner.verbose or "off",
        "reasoning": manner.reasoning or "not set",
        "elevated": manner.elevated or "not set",
        "usage-line": manner.usage or "off",
        "context": context.get("in-mind-now", "unknown"),
        "used": _used_words(used),
        "records": session.record_seq,
        "compactions": session.compactions,
        "context-began": show(from_ms(session.began_ms), zone),
        "begins-afresh": _reset_words(rules_in(session, agent, settings)),
        "next-afresh": _next_afresh(page, session, agent, zone, settings),
        "send": sending_words(session.mind),
    }
    return _lines(lines)


def _reset_words(rules: ResetRules) -> str:
    """Describe the reset rules."""
    at = time_of_day(rules.daily_at) if rules.daily_at else None
    told = [
        f"daily at {at:%H:%M}" if at is not None else "",
        f"after {rules.idle_minutes:g} minutes without activity" if rules.idle_minutes else "",
        f"beyond {rules.context_tokens_max:,} tokens" if rules.context_tokens_max else "",
    ]
    return ", ".join(filter(None, told)) or "only when asked to"


def _next_afresh(page: Page, session: Session, agent: Agent, zone: ZoneInfo, settings: SessionSettings) -> str:
    if session.refresh:
        return f"with the next run: {session.refresh}"
    found = ahead(rules_in(session, agent, settings), session, now_ms=page.at_ms, zone=zone)
    if found is None:
        return "not by itself"
    if found.at <= from_ms(page.at_ms):
        return f"with the next run: {found.because}"
    return f"{show(found.at, zone)} ({found.because})"


def context(page: Page, rest: str, session: Session, agent: Agent, choices: Choices, parts: Sequence[Part]) -> str:
    """Execute /context [list|detail|json]."""
    figures = _figures(page, session, agent, choices) | {
        "session": short(session.id),
        "records-kept": session.record_seq,
        "contexts-begun": session.revision + 1,
    }
    match rest.strip().casefold():
        case "":
            return _lines(figures)
        case "list":
            return "\n".join([_lines(figures), *_listed(parts, limit=PARTS_LISTED_MAX)])
        case "detail":
            return "\n".join([_lines(figures), *_listed(parts, limit=PARTS_SHOWN_MAX)])
        case "json":
            return msgspec.json.encode({**figures, "parts": parts[:PARTS_SHOWN_MAX]}).decode()
        case other:
            return f"There is no '/context {other[:20]}'. It is one of: list, detail, json, or nothing."


def _figures(page: Page, session: Session, agent: Agent, choices: Choices) -> dict[str, str | int]:
    found, damaged = records.read(page.conn, session.id, first=session.context_from, last=session.record_seq)
    return {**choices.report(agent, session, found), "damaged-records": len(damaged)}


def _listed(parts: Sequence[Part], *, limit: int) -> list[str]:
    """Return the parts by kind, the largest first. Omitted ones are counted."""
    lines: list[str] = []
    for kind in PartKind:
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


def usage(page: Page, session: Session, agent: Agent, choices: Choices) -> str:
    """Return the session's usage since it was created, across resets."""
    used = spend_report.of_session(page.conn, session.id)
    lines: dict[str, str | int] = {
        "session": short(session.id),
        "calls": used.calls,
        "failed-calls": used.failed_calls,
        "input-tokens": f"{used.input_tokens:,}",
        "output-tokens": f"{used.output_tokens:,}",
        "cache-read-tokens": f"{used.cache_read_tokens:,}",
        "reasoning-tokens": f"{used.reasoning_tokens:,}",
        "cost": _cost_words(used),
        "usage-line": session.mind.manner.over(choices.manner(agent)).usage or "off",
    }
    return _lines(lines)


def _used_words(used: Used) -> str:
    return f"{used.input_tokens:,} tokens in, {used.output_tokens:,} out, {_cost_words(used)}"


def _cost_words(used: Used) -> str:
    unknown = f" ({used.unknown_calls} calls of which nobody knows)" if used.unknown_calls else ""
    return f"${used.cost_microusd / 1e6:.4f}{unknown}"


def staff(page: Page, agent: Agent) -> str:
    """Execute /agents: list the agents that the person can write to. The current one is marked."""
    lines: list[str] = []
    for each in agents.everyone(page.conn):
        here = each.name == agent.name
        if each.visible or here:
            said = f": {' '.join(each.description.split())}" if each.description else ""
            lines.append(f"{'*' if here else ' '} {each.name}{said}")
    return "\n".join([*lines, "Go on with another one: /switch AGENT [WORDS]."])


def stopped(done: Cancelled, session: SessionId) -> str:
    """Return the reply to /stop: how much was stopped."""
    if not done.runs and not done.cleared:
        return "Nothing was running here, and nothing waited."
    below = sum(lane != session for lane in done.lanes)
    told = [f"{_counted(len(done.runs) - below, 'run')} stopped", f"{done.cleared} waiting cleared"]
    if below:
        told.append(f"{_counted(below, 'subagent')} stopped")
    return f"{', '.join(told)}."


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'s' if count != 1 else ''}"


def _lines(figures: Mapping[str, object]) -> str:
    return "\n".join(f"{key}: {value}" for key, value in figures.items())
