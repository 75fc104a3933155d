"""Defaults for agents. A value that an agent does not set comes from [defaults], or else is the built-in default."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from retinue.config import validators
from retinue.config.heartbeats import HeartbeatDefaults
from retinue.config.setting_metadata import SettingEffect, setting
from retinue.domain.agent import ARCHIVE_AFTER_S, CONCURRENCY, RUN_SECONDS_MAX, Agent, SubagentRules
from retinue.domain.display_options import DisplayOptions, Elevation, Verbosity


class TimeFormat(StrEnum):
    """How times of day are written in the system prompt."""

    AUTO = "auto"  # the server's format, which is 24 hours
    TWELVE = "12"
    TWENTY_FOUR = "24"


@dataclass(frozen=True, slots=True, kw_only=True)
class SubagentDefaults:
    """Defaults for subagents.

    The maximum number of concurrent subagent runs is `server.slots.subagent`.
    """

    model: str | None = setting(
        None,
        "Model of subagents. Default: the model of the agent that runs as the subagent.",
        effect=SettingEffect.MESSAGE,
        check=validators.check_model_reference,
        example="anthropic/claude-haiku-5-5",
    )
    effort: str | None = setting(
        None,
        "Reasoning effort of subagents. Default: the effort of the agent that runs as the subagent.",
        effect=SettingEffect.MESSAGE,
        check=validators.check_effort,
        example="low",
    )
    run_seconds_max: float | None = setting(
        None,
        "Maximum duration of a subagent's run, in seconds. Default: the limit of the agent that runs as the subagent.",
        effect=SettingEffect.MESSAGE,
        least=1,
    )
    archive_after_s: float = setting(
        ARCHIVE_AFTER_S,
        "Time until the session of a finished subagent is archived, in seconds. 0: never.",
        effect=SettingEffect.MESSAGE,
        least=0,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentDefaults:
    """Defaults for every agent. The default time zone is `server.zone`, and the default model is `models.default`."""

    workspace: Path | None = setting(
        None,
        "Folder that contains a workspace for each agent, relative to the data directory. Default: each agent works in "
        "its agent directory.",
        effect=SettingEffect.MESSAGE,
    )
    time_format: TimeFormat = setting(
        TimeFormat.AUTO,
        "Format of times of day in the system prompt: `12` or `24` hours, or `auto` (24 hours).",
        effect=SettingEffect.MESSAGE,
    )
    context_tokens: int | None = setting(
        None,
        "Size of the context window that status displays assume, in tokens. It limits nothing. Default: the model's "
        "context window.",
        effect=SettingEffect.MESSAGE,
        least=1,
    )
    effort: str | None = setting(
        None,
        "Reasoning effort of models. Default: the default of each model.",
        effect=SettingEffect.MESSAGE,
        check=validators.check_effort,
        example="medium",
    )
    verbose: Verbosity | None = setting(
        None,
        "How much people see of tool calls while an agent works: nothing (`off`), one line for each call (`on`), or "
        "also a short result (`full`). A session can override this setting. Default: nothing.",
        effect=SettingEffect.MESSAGE,
    )
    elevated: Elevation | None = setting(
        None,
        "Whether commands run outside the sandbox, if `tools.exec.elevated` permits it: never (`off`), under the rules "
        "for commands on the host (`on` or `ask`), or without approval (`full`). A session can override this setting. "
        "Default: only if the call requests it.",
        effect=SettingEffect.MESSAGE,
    )
    concurrency: int = setting(CONCURRENCY, "Maximum number of active runs of one agent.", least=1, most=1000)
    run_seconds_max: float = setting(
        RUN_SECONDS_MAX, "Maximum duration of a run, in seconds.", effect=SettingEffect.MESSAGE, least=1
    )
    subagents: SubagentDefaults = SubagentDefaults()
    heartbeat: HeartbeatDefaults = HeartbeatDefaults()

    def concurrency_of(self, agent: Agent) -> int:
        return self.concurrency if agent.concurrency is None else agent.concurrency

    def run_seconds_of(self, agent: Agent) -> float:
        return self.run_seconds_max if agent.run_seconds_max is None else agent.run_seconds_max

    def effort_of(self, agent: Agent) -> str | None:
        return self.effort if agent.effort is None else agent.effort

    def display_options_of(self, agent: Agent) -> DisplayOptions:
        own = DisplayOptions(verbose=agent.verbose, elevated=agent.elevated)
        return own.with_defaults(DisplayOptions(verbose=self.verbose, elevated=self.elevated))

    def workspace_of(self, agent: Agent, agent_directory: Path) -> Path:
        """Return the path of the agent's workspace.

        It is the workspace set for the agent, or else the agent's folder in the default workspace, or else the agent
        directory.
        """
        if agent.workspace:
            return agent_directory / Path(agent.workspace).expanduser()
        return agent_directory if self.workspace is None else self.workspace / agent.name

    def subagents_of(self, agent: Agent) -> SubagentRules:
        """Return the subagent rules of an agent. Values that the agent does not set come from these defaults."""
        own, defaults = agent.subagents, self.subagents
        return SubagentRules(
            allow=own.allow,
            model=own.model or defaults.model or "",
            effort=defaults.effort if own.effort is None else own.effort,
            run_seconds_max=defaults.run_seconds_max if own.run_seconds_max is None else own.run_seconds_max,
            archive_after_s=defaults.archive_after_s if own.archive_after_s is None else own.archive_after_s,
        )


BUILT_IN_AGENT_DEFAULTS = AgentDefaults()


def built_in_agent_defaults() -> AgentDefaults:
    """Return the built-in agent defaults, for an instance whose settings contain none."""
    return BUILT_IN_AGENT_DEFAULTS
