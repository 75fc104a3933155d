"""Resolves the effective settings of an agent: the agent's own value, else the server's, else the built-in default."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from enum import StrEnum
from pathlib import Path
from typing import Any

import msgspec

from retinue.config import Settings
from retinue.config.agent_defaults import BUILT_IN_AGENT_DEFAULTS, AgentDefaults
from retinue.config.sandbox import SandboxSettings
from retinue.config.sessions import SessionResetSettings
from retinue.domain.agent import Agent, HeartbeatRules, SandboxRules
from retinue.domain.reset_rules import ResetRules
from retinue.policy.tools.sandbox_settings import merge_sandbox_settings


class SettingSource(StrEnum):
    AGENT = "agent"
    INSTANCE = "server"
    BUILT_IN = "built_in"


class EffectiveSetting(msgspec.Struct, frozen=True):
    """The value of a setting that applies to an agent. `by` says where the value comes from.

    `key` is the path of the setting in the settings file, even if the value is the built-in default.
    """

    value: Any
    by: SettingSource
    key: str


def resolve_effective_settings(
    agent: Agent, settings: Settings, agent_dir: Path, *, model: str
) -> dict[str, EffectiveSetting]:
    """Return the effective settings, keyed by their field names in `agent.set`.

    `agent_dir` is the agent directory. `model` is the model that the agent would use first.
    """
    return dict(_effective_settings(agent, settings, agent_dir, model))


def _effective_settings(
    agent: Agent, settings: Settings, agent_dir: Path, model: str
) -> Iterator[tuple[str, EffectiveSetting]]:
    source = (
        SettingSource.AGENT
        if agent.model
        else SettingSource.INSTANCE
        if settings.models.default.primary
        else SettingSource.BUILT_IN
    )
    yield "model", EffectiveSetting(model, source, f"agents.{agent.name}.model" if agent.model else "models.default")
    defaults, own = settings.defaults, agent.subagents
    subagents = defaults.subagents_of(agent)
    display = defaults.display_options_of(agent)
    values: dict[str, tuple[Any, bool]] = {
        "effort": (defaults.effort_of(agent), agent.effort is not None),
        "verbose": (display.verbose, agent.verbose is not None),
        "elevated": (display.elevated, agent.elevated is not None),
        "concurrency": (defaults.concurrency_of(agent), agent.concurrency is not None),
        "run_seconds_max": (defaults.run_seconds_of(agent), agent.run_seconds_max is not None),
        "workspace": (str(defaults.workspace_of(agent, agent_dir)), agent.workspace != ""),
        "subagents.model": (subagents.model, own.model != ""),
        "subagents.effort": (subagents.effort, own.effort is not None),
        "subagents.run_seconds_max": (subagents.run_seconds_max, own.run_seconds_max is not None),
        "subagents.archive_after_s": (subagents.archive_after_s, own.archive_after_s is not None),
    }
    for name, (value, is_own) in values.items():
        by, key = (
            _default_source(defaults, name) if not is_own else (SettingSource.AGENT, f"agents.{agent.name}.{name}")
        )
        yield name.replace(".", "_"), EffectiveSetting(value, by, key)
    yield from _reset_settings(agent, settings.sessions.reset)
    yield from _heartbeat_settings(agent, defaults.heartbeat.rules)
    yield from _sandbox_settings(agent, settings.sandbox)


def _default_source(defaults: AgentDefaults, name: str) -> tuple[SettingSource, str]:
    """Return the source of a default value, and the path of its setting.

    If the instance sets the same value as the built-in default, the source is the built-in default.
    """
    instance, built_in = defaults, BUILT_IN_AGENT_DEFAULTS
    for part in name.split("."):
        instance, built_in = getattr(instance, part), getattr(built_in, part)
    return (SettingSource.BUILT_IN if instance == built_in else SettingSource.INSTANCE), f"defaults.{name}"


def _reset_settings(agent: Agent, instance_settings: SessionResetSettings) -> Iterator[tuple[str, EffectiveSetting]]:
    """Yield the agent's reset rules. They apply to sessions whose kind and connector have no rules of their own."""
    effective = agent.reset.with_defaults(instance_settings)
    for each in fields(ResetRules):
        own, shared = getattr(agent.reset, each.name), getattr(instance_settings, each.name)
        by = (
            SettingSource.AGENT
            if own is not None
            else SettingSource.BUILT_IN
            if shared is None
            else SettingSource.INSTANCE
        )
        key = f"agents.{agent.name}.reset.{each.name}" if by is SettingSource.AGENT else f"sessions.reset.{each.name}"
        yield f"reset_{each.name}", EffectiveSetting(getattr(effective, each.name), by, key)


def _heartbeat_settings(agent: Agent, instance_rules: HeartbeatRules) -> Iterator[tuple[str, EffectiveSetting]]:
    effective = agent.heartbeat.with_defaults(instance_rules)
    for each in fields(HeartbeatRules):
        own, shared = getattr(agent.heartbeat, each.name), getattr(instance_rules, each.name)
        by = (
            SettingSource.AGENT
            if own is not None
            else SettingSource.BUILT_IN
            if shared is None
            else SettingSource.INSTANCE
        )
        whose = f"agents.{agent.name}" if by is SettingSource.AGENT else "defaults"
        yield (
            f"heartbeat_{each.name}",
            EffectiveSetting(getattr(effective, each.name), by, f"{whose}.heartbeat.{each.name}"),
        )


def _sandbox_settings(agent: Agent, instance_settings: SandboxSettings) -> Iterator[tuple[str, EffectiveSetting]]:
    """Yield the agent's effective sandbox settings.

    The agent's value applies only if it is stricter than that of the instance. If both are equal, the source
    is the instance.
    """
    effective, plain = merge_sandbox_settings(instance_settings, agent), SandboxSettings()
    for each in fields(SandboxRules):
        within = hasattr(instance_settings, each.name)
        key = f"sandbox.{each.name}" if within else f"sandbox.docker.{each.name}"
        value, shared, built_in = (
            getattr(of if within else of.docker, each.name) for of in (effective, instance_settings, plain)
        )
        by = (
            SettingSource.AGENT
            if value != shared
            else SettingSource.BUILT_IN
            if shared == built_in
            else SettingSource.INSTANCE
        )
        yield (
            f"sandbox_{each.name}",
            EffectiveSetting(
                value, by, f"agents.{agent.name}.sandbox.{each.name}" if by is SettingSource.AGENT else key
            ),
        )
