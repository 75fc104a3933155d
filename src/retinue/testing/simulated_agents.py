"""Draws the agents, people, conversations and model replies of a simulation at random, from its seed."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from retinue.domain.agent import Agent, CrashPolicy, DelegationRules, SubagentRules, ToolRules
from retinue.domain.delegation import LATEST_OR_NEW_SESSION, LATEST_SESSION, NEW_SESSION, NotifyMode, SubagentCleanup
from retinue.domain.ids import short_id
from retinue.domain.model import ModelFailureKind
from retinue.domain.record import Record, Reply, Usage, UserTurn
from retinue.domain.session import Origin, OriginKind, Overflow, QueueMode, QueuePolicy
from retinue.domain.structs import replace
from retinue.domain.tool import ToolResult
from retinue.engine.lanes import WAITING_LANES_MAX, SlotLimits
from retinue.models.base import ModelPrompt
from retinue.runners.context_policy import WRITE_TOOL
from retinue.testing.scripted_model import ScriptedReply
from retinue.testing.simulated_external_agent import AGENT_NAME as ELSEWHERE
from retinue.testing.simulated_external_agent import draw_external_agent
from retinue.testing.simulated_schedules import draw_cron_call
from retinue.testing.simulated_server import (
    BREAKS_STREAM,
    CONTEXT_WINDOWS,
    FALLBACK_MODEL,
    MAIN_MODEL,
    SMALL_MODEL,
    is_summary_request,
)

TOKENS_PER_CHAR = 2  # more than the server estimates, so that conversations soon fill a small context window
LONG_TEXT = "and so on " * 200
PEOPLE = ("owner", "maria", "noor")
NAMES = (
    *("ada", "bob", "cleo", "dan", "eve", "fay", "gus", "hal", "ida", "jan"),
    *("kim", "lou", "max", "nia", "ole", "pia", "quin", "rea", "sol", "tom"),
)
AGENTS_WITH_SENDERS = 6  # people write to this many agents; the others get work from schedules and from each other


@dataclass(frozen=True, slots=True)
class SimulatedConversation:
    """One conversation of a simulation: who writes, to which agent, and in which session."""

    sender: str
    agent: str
    origin: Origin | None


class ScenarioGenerator:
    """Draws the agents of a simulation, their limits and their conversations, once per seed."""

    def __init__(self, rng: random.Random) -> None:
        self._chance = rng

    def draw_agents(self) -> list[Agent]:
        chance = self._chance
        modes = list(QueueMode)
        chance.shuffle(modes)
        modes += chance.choices(modes, k=len(NAMES) - len(modes))
        return [
            *(self._draw_agent(name, mode) for name, mode in zip(NAMES, modes, strict=True)),
            draw_external_agent(chance),
        ]

    def _draw_agent(self, name: str, mode: QueueMode) -> Agent:
        chance = self._chance
        return Agent(
            name=name,
            model=chance.choice((MAIN_MODEL, SMALL_MODEL)),
            fallbacks=chance.choice((None, (FALLBACK_MODEL,))),
            crash_policy=CrashPolicy.AT_MOST_ONCE if chance.random() < 0.3 else CrashPolicy.RESUME,
            concurrency=chance.randint(1, 4),
            queue=QueuePolicy(mode=mode, cap=chance.choice((3, 8, 20)), overflow=chance.choice(list(Overflow))),
            tools=draw_tool_rules(chance),
            delegation=DelegationRules(
                depth_max=chance.choice((1, 2, 3)),
                open_max=chance.choice((1, 3, 16)),
                allow_cycles=chance.random() < 0.3,
            ),
            subagents=SubagentRules(
                allow=chance.choice(((), ("*",))),
                run_seconds_max=chance.choice((None, None, 20.0)),
                archive_after_s=chance.choice((None, 0.0, 30.0)),
            ),
            turns_max=chance.choice((3, 8, 100)),
            tokens_max=chance.choice((None, None, 20_000)),
            run_seconds_max=chance.choice((50.0, 600.0)),
            attempts_max=chance.choice((2, 3, 5)),
            replay_age_s=chance.choice((None, None, None, 0.0, 60.0)),
            approval_wait_s=chance.choice((5.0, 60.0, 600.0)),
        )

    def draw_slots(self) -> SlotLimits:
        chance = self._chance
        return SlotLimits(main=chance.randint(2, 6), schedule=chance.randint(2, 6), subagent=chance.randint(1, 4))

    def draw_ready_max(self) -> int:
        """Draw how many waiting lanes fit in memory. Lanes that do not fit must be found again in the store."""
        return self._chance.choice((WAITING_LANES_MAX, WAITING_LANES_MAX, 2))

    def draw_price_microusd(self) -> int:
        return self._chance.choice((0, 100))

    def draw_conversations(self, agents: list[Agent]) -> list[SimulatedConversation]:
        """Draw 10 to 20 conversations. A person may have several with one agent, even in one session."""
        chance = self._chance
        made: list[SimulatedConversation] = []
        for number in range(chance.randint(10, 20)):
            person = f"person:{chance.choice(PEOPLE)}"
            agent = chance.choice(agents[:AGENTS_WITH_SENDERS]).name
            kind = chance.choice((None, OriginKind.TERMINAL, OriginKind.CHAT, OriginKind.SUBAGENT, OriginKind.SCHEDULE))
            origin = Origin(kind, f"{person}#{number % 7}") if kind is not None else None
            sender = f"schedule:{number:032x}" if kind is OriginKind.SCHEDULE else person
            made.append(SimulatedConversation(sender, agent, origin))
        return made


def draw_tool_rules(rng: random.Random) -> ToolRules:
    rules = (
        ToolRules(),
        ToolRules(ask=("sign_line",)),
        ToolRules(ask=("sign_line", "append_line")),
        ToolRules(deny=("sign_line",)),
    )
    return rng.choices(rules, (2, 4, 2, 1))[0]


def draw_reply(model: str, prompt: ModelPrompt, rng: random.Random, *, can_schedule: bool = True) -> ScriptedReply:
    """Draw a model's reply: usually text, sometimes tool calls, rarely an empty or invalid reply or a failure.

    With `can_schedule`, the reply may also create schedules, some of which run every minute.
    """
    tokens = sum(map(_record_chars, prompt.records)) * TOKENS_PER_CHAR
    after_s = rng.choices((0.0, rng.uniform(0.01, 3), rng.uniform(3, 40), 70.0, 5000.0), (40, 42, 15, 2, 1))[0]
    drawn = _draw_summary(rng) if is_summary_request(prompt) else _draw_turn(prompt, rng)
    calls = drawn.calls if can_schedule else tuple(call for call in drawn.calls if call[0] != "cron")
    line = replace(drawn, calls=calls, after_s=after_s)
    if tokens > CONTEXT_WINDOWS[model]:
        return replace(line, fails="that is too much for me", failure=ModelFailureKind.CONTEXT_OVERFLOW)
    cost_microusd = rng.choice((0, 60, 100))
    return replace(line, usage=Usage(input_tokens=tokens, output_tokens=5, cost_microusd=cost_microusd))


def _draw_turn(prompt: ModelPrompt, rng: random.Random) -> ScriptedReply:
    replies = 0
    for record in reversed(prompt.records):
        if isinstance(record.body, UserTurn):
            break
        replies += isinstance(record.body, Reply)
    luck = rng.random()
    if luck < 0.06:
        return _draw_failure(rng)
    if luck < 0.08:
        return ScriptedReply(text="I was about to", thinking=BREAKS_STREAM)
    if luck < (0.7 if _is_delegated(prompt) else 0.5) / (
        1 + replies / 2
    ):  # some runs are long enough to be compacted in the middle
        words = rng.choices(("One moment.", f"One moment {LONG_TEXT}"), (70, 30))[0]
        return ScriptedReply(text=words, calls=tuple(_draw_calls(prompt, rng)))
    words = f"Done, {prompt.records[-1].seq}."
    return ScriptedReply(text=rng.choices((words, f"{words} {LONG_TEXT}", "NO_REPLY", ""), (75, 15, 7, 3))[0])


def _is_delegated(prompt: ModelPrompt) -> bool:
    """Return whether the last turn is from another agent. The texts of all other senders contain "letter "."""
    turns = [record.body.text for record in prompt.records if isinstance(record.body, UserTurn)]
    return bool(turns) and "letter " not in turns[-1]


def _draw_summary(rng: random.Random) -> ScriptedReply:
    luck = rng.random()
    if luck < 0.1:
        return _draw_failure(rng)
    return ScriptedReply(text=rng.choices(("They wrote letters.", LONG_TEXT, "NO_REPLY", ""), (80, 10, 5, 5))[0])


def _draw_failure(rng: random.Random) -> ScriptedReply:
    failure = rng.choice(list(ModelFailureKind))
    return ScriptedReply(fails="the model is tired", failure=failure, retry_after_s=rng.choice((None, 1.0, 90.0)))


def _record_chars(record: Record) -> int:
    body = record.body
    return len(body.output) if isinstance(body, ToolResult) else len(body.text)


_TOOLS = {
    "append_line": 40,
    "sign_line": 25,
    WRITE_TOOL: 5,
    "session_status": 8,
    "look_around": 12,
    "pass_on": 10,
    "agents_message": 20,
    "sessions_spawn": 12,
    "cron": 12,
    "send_agent_message": 8,
    "start_job": 6,
    "no_such_tool": 3,
}

_MESSAGE_TARGETS = (("", ""), ("", "most-recent-foreground"), *((name, "") for name in (*NAMES, ELSEWHERE)))
"""Pairs of an agent and a strategy for `send_agent_message`. Without an agent, the strategy finds the recipient."""


def _draw_calls(prompt: ModelPrompt, rng: random.Random) -> list[tuple[str, dict[str, Any]]]:
    made: list[tuple[str, dict[str, Any]]] = []
    for number in range(rng.choice((1, 1, 1, 2, 3))):
        tool = rng.choices(list(_TOOLS), list(_TOOLS.values()))[0]
        # so that some runs need an approval while others wait for them
        if rng.random() < 0.4 and _is_delegated(prompt):
            tool = "sign_line"
        words = f"{short_id(prompt.session)}-{prompt.records[-1].seq}-{number}-{rng.randrange(10**6)}"
        match tool:
            case "session_status":
                made.append((tool, {}))
            case "agents_message":
                made.append((tool, _draw_delegation(words, rng)))
            case "cron":
                action, arguments = draw_cron_call(rng)
                made.append((tool, {"action": action, **arguments}))
            case "sessions_spawn":
                whom, cleanup = rng.choice(("", *NAMES, ELSEWHERE)), rng.choice(list(SubagentCleanup)).value
                made.append((tool, {"task": words, "agentId": whom, "cleanup": cleanup}))
            case "send_agent_message":
                to, strategy = rng.choice(_MESSAGE_TARGETS)
                made.append((tool, {"text": words, "agentId": to, "strategy": strategy, "silent": rng.random() < 0.3}))
            case _:
                made.append((tool, {"text": words}))
    return made


def _draw_delegation(text: str, rng: random.Random) -> dict[str, Any]:
    """Draw the arguments of a delegation. The agent waits for the result for a short or a long time, or not at all."""
    return {
        "agentId": rng.choice((*NAMES, ELSEWHERE)),
        "content": text,
        "session": rng.choices((LATEST_OR_NEW_SESSION, NEW_SESSION, LATEST_SESSION), (6, 3, 1))[0],
        "mode": rng.choices(("sync", "async"), (2, 1))[0],
        "timeout": rng.choice((0.5, 5.0, 60.0, 600.0)),
        "notify": rng.choices(list(NotifyMode), (4, 1, 1))[0].value,
    }
