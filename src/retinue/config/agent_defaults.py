"""Defaults for agents. A value comes from the agent, then from [defaults], then from the built-in
default."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from retinue.config import validators
from retinue.config.heartbeats import HeartbeatDefaults
from retinue.config.setting_metadata import Effect, setting
from retinue.domain.agent import ARCHIVE_AFTER_S, CONCURRENCY, RUN_SECONDS_MAX, Agent, SubagentRules
from retinue.domain.display_options import Elevation, Manner, Verbosity


class TimeFormat(StrEnum):
    """How the time of day is written for agents."""

    AUTO = "auto"  # the server's own format: 24 hours
    TWELVE = "12"
    TWENTY_FOUR = "24"


@dataclass(frozen=True, slots=True, kw_only=True)
class SubagentDefaults:
    """Defaults for subagents.

    The maximum number of concurrent subagent runs is `house.slots.subagent`.
    """

    model: str | None = setting(
        None,
        "The model they think with. Not set: their own.",
        effect=Effect.MESSAGE,
        check=validators.model_reference,
        example="anthropic/claude-haiku-5-5",
    )
    effort: str | None = setting(
        None, "How hard that model is to think.", effect=Effect.MESSAGE, check=validators.effort, example="low"
    )
    run_seconds_max: float | None = setting(
        None,
        "How long a run of theirs may take. Not set: as long as any of that agent.",
        effect=Effect.MESSAGE,
        least=1,
    )
    archive_after_s: float = setting(
        ARCHIVE_AFTER_S,
        "How long after its end the session of one is put away; 0 is never.",
        effect=Effect.MESSAGE,
        least=0,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Defaults:
    """Defaults for every agent. The time zone is `house.zone`, the model `models.default`."""

    workspace: Path | None = setting(
        None,
        "A folder in which each agent has one of its own to work in, by its name; from the house's home if relative. "
        "Not set: each works in its home.",
        effect=Effect.MESSAGE,
    )
    time_format: TimeFormat = setting(TimeFormat.AUTO, "How agents are told the time of day.", effect=Effect.MESSAGE)
    context_tokens: int | None = setting(
        None,
        "How large the window of a model is said to be where it is shown. It is only shown: nothing is counted by it.",
        effect=Effect.MESSAGE,
        least=1,
    )
    effort: str | None = setting(
        None,
        "How hard models are to think. Not set: as each would have it.",
        effect=Effect.MESSAGE,
        check=validators.effort,
        example="medium",
    )
    verbose: Verbosity | None = setting(
        None, "What people are told of tool calls as they are made, until they say otherwise.", effect=Effect.MESSAGE
    )
    elevated: Elevation | None = setting(
        None, "Whether commands ask to leave the sandbox, until somebody says otherwise.", effect=Effect.MESSAGE
    )
    concurrency: int = setting(CONCURRENCY, "How many runs of one agent may be active at once.", least=1, most=1000)
    run_seconds_max: float = setting(RUN_SECONDS_MAX, "How long a run may take.", effect=Effect.MESSAGE, least=1)
    subagents: SubagentDefaults = SubagentDefaults()
    heartbeat: HeartbeatDefaults = HeartbeatDefaults()

    def concurrency_of(self, agent: Agent) -> int:
        return self.concurrency if agent.concurrency is None else agent.concurrency

    def run_seconds_of(self, agent: Agent) -> float:
        return self.run_seconds_max if agent.run_seconds_max is None else agent.run_seconds_max

    def effort_of(self, agent: Agent) -> str | None:
        return self.effort if agent.effort is None else agent.effort

    def manner_of(self, agent: Agent) -> Manner:
        own = Manner(verbose=agent.verbose, elevated=agent.elevated)
        return own.over(Manner(verbose=self.verbose, elevated=self.elevated))

    def workspace_of(self, agent: Agent, home: Path) -> Path:
        """Return the agent's workspace: its own setting, the default workspace, or its agent directory."""
        if agent.workspace:
            return home / Path(agent.workspace).expanduser()
        return home if self.workspace is None else self.workspace / agent.name

    def subagents_of(self, agent: Agent) -> SubagentRules:
        """Return the subagent rules of an agent, with unset values from these defaults."""
        own, house = agent.subagents, self.subagents
        return SubagentRules(
            allow=own.allow,
            model=own.model or house.model or "",
            effort=house.effort if own.effort is None else own.effort,
            run_seconds_max=house.run_seconds_max if own.run_seconds_max is None else own.run_seconds_max,
            archive_after_s=house.archive_after_s if own.archive_after_s is None else own.archive_after_s,
        )


PLAIN = Defaults()


def plain() -> Defaults:
    """Return the built-in defaults, for an instance without such settings."""
    return PLAIN
