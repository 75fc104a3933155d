"""Draws the agents, people, conversations and model replies of a simulation from its seed."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from retinue.domain.agent import Agent, DelegationRules, Delivery, SubagentRules, ToolRules
from retinue.domain.delegation import CREATE, LATEST, LATEST_OR_CREATE, Cleanup, Notify
from retinue.domain.ids import short
from retinue.domain.model import Failure
from retinue.domain.record import Record, Reply, Usage, UserTurn
from retinue.domain.session import Origin, OriginKind, Overflow, QueueMode, QueuePolicy
from retinue.domain.structs import replace
from retinue.domain.tool import ToolResult
from retinue.engine.lanes import READY_MAX, Slots
from retinue.models.base import Prompt
from retinue.runners.context_policy import WRITE_TOOL
from retinue.testing.scripted_model import Line
from retinue.testing.simulated_external_agent import NAME as ELSEWHERE
from retinue.testing.simulated_external_agent import rex
from retinue.testing.simulated_schedules import plan
from retinue.testing.simulated_server import BREAKS_OFF, MODEL, SMALL, SPARE, WINDOWS, is_summary

TOKENS_PER_CHAR = 2  # more than the server estimates, so that conversations soon fill a small context window
LONG_WORDS = "and so on " * 200
PEOPLE = ("owner", "maria", "noor")
NAMES = (
    *("ada", "bob", "cleo", "dan", "eve", "fay", "gus", "hal", "ida", "jan"),
    *("kim", "lou", "max", "nia", "ole", "pia", "quin", "rea", "sol", "tom"),
)
WRITTEN_TO = 6  # people write to so many agents; the others get work from schedules and from each other


@dataclass(frozen=True, slots=True)
class Correspondence:
    """Who writes to which agent, and in which conversation."""

    sender: str
    agent: str
    origin: Origin | None


class Casting:
    """Draws the agents, their limits and the conversations with them, once per seed."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance

    def staff(self) -> list[Agent]:
        chance = self._chance
        modes = list(QueueMode)
        chance.shuffle(modes)
        modes += chance.choices(modes, k=len(NAMES) - len(modes))
        return [*(self._agent(name, mode) for name, mode in zip(NAMES, modes, strict=True)), rex(chance)]

    def _agent(self, name: str, mode: QueueMode) -> Agent:
        chance = self._chance
        return Agent(
            name=name,
            model=chance.choice((MODEL, SMALL)),
            fallbacks=chance.choice((None, (SPARE,))),
            delivery=Delivery.AT_MOST_ONCE if chance.random() < 0.3 else Delivery.RESUME,
            concurrency=chance.randint(1, 4),
            queue=QueuePolicy(mode=mode, cap=chance.choice((3, 8, 20)), overflow=chance.choice(list(Overflow))),
            tools=tool_rules(chance),
            delegation=DelegationRules(
                depth_max=chance.choice((1, 2, 3)),
                open_max=chance.choice((1, 3, 16)),
                circles=chance.random() < 0.3,
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

    def slots(self) -> Slots:
        chance = self._chance
        return Slots(main=chance.randint(2, 6), schedule=chance.randint(2, 6), subagent=chance.randint(1, 4))

    def ready_max(self) -> int:
        """Draw how many lanes fit in memory. If fewer than exist, the others must be found again in the store."""
        return self._chance.choice((READY_MAX, READY_MAX, 2))

    def price_microusd(self) -> int:
        return self._chance.choice((0, 100))

    def correspondence(self, staff: list[Agent]) -> list[Correspondence]:
        """Draw 10 to 20 conversations. A person may have several with one agent, and two people may share one."""
        chance = self._chance
        made: list[Correspondence] = []
        for number in range(chance.randint(10, 20)):
            person = f"person:{chance.choice(PEOPLE)}"
            agent = chance.choice(staff[:WRITTEN_TO]).name
            kind = chance.choice((None, OriginKind.TERMINAL, OriginKind.CHAT, OriginKind.SUBAGENT, OriginKind.SCHEDULE))
            origin = Origin(kind, f"{person}#{number % 7}") if kind is not None else None
            sender = f"schedule:{number:032x}" if kind is OriginKind.SCHEDULE else person
            made.append(Correspondence(sender, agent, origin))
        return made


def tool_rules(chance: random.Random) -> ToolRules:
    rules = (
        ToolRules(),
        ToolRules(ask=("sign_line",)),
        ToolRules(ask=("sign_line", "append_line")),
        ToolRules(deny=("sign_line",)),
    )
    return chance.choices(rules, (2, 4, 2, 1))[0]


def say(model: str, prompt: Prompt, chance: random.Random, *, plans: bool = True) -> Line:
    """Draw a model's reply: mostly text, sometimes tool calls, rarely nothing, nonsense or a failure.

    With `can_schedule`, it may also create schedules, some of which run every minute.
    """
    tokens = sum(map(_length, prompt.records)) * TOKENS_PER_CHAR
    after_s = chance.choices((0.0, chance.uniform(0.01, 3), chance.uniform(3, 40), 70.0, 5000.0), (40, 42, 15, 2, 1))[0]
    said = _summary(chance) if is_summary(prompt) else _line(prompt, chance)
    calls = said.calls if plans else tuple(call for call in said.calls if call[0] != "cron")
    line = replace(said, calls=calls, after_s=after_s)
    if tokens > WINDOWS[model]:
        return replace(line, fails="that is too much for me", failure=Failure.CONTEXT_OVERFLOW)
    cost_microusd = chance.choice((0, 60, 100))
    return replace(line, usage=Usage(input_tokens=tokens, output_tokens=5, cost_microusd=cost_microusd))


def _line(prompt: Prompt, chance: random.Random) -> Line:
    replies = 0
    for record in reversed(prompt.records):
        if isinstance(record.body, UserTurn):
            break
        replies += isinstance(record.body, Reply)
    luck = chance.random()
    if luck < 0.06:
        return _fails(chance)
    if luck < 0.08:
        return Line(text="I was about to", thinking=BREAKS_OFF)
    if luck < (0.7 if _works_for_another(prompt) else 0.5) / (
        1 + replies / 2
    ):  # some runs are long enough to be compacted in the middle
        words = chance.choices(("One moment.", f"One moment {LONG_WORDS}"), (70, 30))[0]
        return Line(text=words, calls=tuple(_calls(prompt, chance)))
    words = f"Done, {prompt.records[-1].seq}."
    return Line(text=chance.choices((words, f"{words} {LONG_WORDS}", "NO_REPLY", ""), (75, 15, 7, 3))[0])


def _works_for_another(prompt: Prompt) -> bool:
    """Returns whether the last turn is from another agent. All other senders' texts contain "letter "."""
    turns = [record.body.text for record in prompt.records if isinstance(record.body, UserTurn)]
    return bool(turns) and "letter " not in turns[-1]


def _summary(chance: random.Random) -> Line:
    luck = chance.random()
    if luck < 0.1:
        return _fails(chance)
    return Line(text=chance.choices(("They wrote letters.", LONG_WORDS, "NO_REPLY", ""), (80, 10, 5, 5))[0])


def _fails(chance: random.Random) -> Line:
    failure = chance.choice(list(Failure))
    return Line(fails="the model is tired", failure=failure, retry_after_s=chance.choice((None, 1.0, 90.0)))


def _length(record: Record) -> int:
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

_WORDS_TO = (("", ""), ("", "most-recent-foreground"), *((name, "") for name in (*NAMES, ELSEWHERE)))
"""Whom an agent tells something, and else by which strategy one is found."""


def _calls(prompt: Prompt, chance: random.Random) -> list[tuple[str, dict[str, Any]]]:
    made: list[tuple[str, dict[str, Any]]] = []
    for number in range(chance.choice((1, 1, 1, 2, 3))):
        tool = chance.choices(list(_TOOLS), list(_TOOLS.values()))[0]
        # so that some runs need an approval while others wait for them
        if chance.random() < 0.4 and _works_for_another(prompt):
            tool = "sign_line"
        words = f"{short(prompt.session)}-{prompt.records[-1].seq}-{number}-{chance.randrange(10**6)}"
        match tool:
            case "session_status":
                made.append((tool, {}))
            case "agents_message":
                made.append((tool, _asking(words, chance)))
            case "cron":
                action, said = plan(chance)
                made.append((tool, {"action": action, **said}))
            case "sessions_spawn":
                whom, cleanup = chance.choice(("", *NAMES, ELSEWHERE)), chance.choice(list(Cleanup)).value
                made.append((tool, {"task": words, "agentId": whom, "cleanup": cleanup}))
            case "send_agent_message":
                to, strategy = chance.choice(_WORDS_TO)
                made.append(
                    (tool, {"text": words, "agentId": to, "strategy": strategy, "silent": chance.random() < 0.3})
                )
            case _:
                made.append((tool, {"text": words}))
    return made


def _asking(words: str, chance: random.Random) -> dict[str, Any]:
    """Draw the arguments of a delegation: waited for briefly, for long or not at all."""
    return {
        "agentId": chance.choice((*NAMES, ELSEWHERE)),
        "content": words,
        "session": chance.choices((LATEST_OR_CREATE, CREATE, LATEST), (6, 3, 1))[0],
        "mode": chance.choices(("sync", "async"), (2, 1))[0],
        "timeout": chance.choice((0.5, 5.0, 60.0, 600.0)),
        "notify": chance.choices(list(Notify), (4, 1, 1))[0].value,
    }
