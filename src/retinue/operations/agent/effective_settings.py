"""Resolve an agent's effective settings: its own value, else the instance's, else the built-in default. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from enum import StrEnum
from pathlib import Path
from typing import Any

import msgspec

from retinue.config import Settings
from retinue.config.agent_defaults import PLAIN, Defaults
from retinue.config.sandbox import SandboxSettings
from retinue.config.sessions import HouseReset
from retinue.domain.agent import Agent, HeartbeatRules, SandboxRules
from retinue.domain.reset_rules import ResetRules
from retinue.policy.tools.sandbox_settings import sandbox_of


class SaidBy(StrEnum):
    AGENT = "agent"
    HOUSE = "house"
    BUILT_IN = "built-in"


class InForce(msgspec.Struct, frozen=True):
    """An effective value and its source. `key` is the setting that sets it, or would set it."""

    value: Any
    by: SaidBy
    key: str


def in_force(agent: Agent, settings: Settings, home: Path, *, model: str) -> dict[str, InForce]:
    """Return the effective settings, keyed by their field names in `agent.set`.

    `agent_dir` is the agent directory. `model` is the model that the agent would use first.
    """
    return dict(_each(agent, settings, home, model))


def _each(agent: Agent, settings: Settings, home: Path, model: str) -> Iterator[tuple[str, InForce]]:
    said = SaidBy.AGENT if agent.model else SaidBy.HOUSE if settings.models.default.primary else SaidBy.BUILT_IN
    yield "model", InForce(model, said, f"agents.{agent.name}.model" if agent.model else "models.default")
    defaults, own = settings.defaults, agent.subagents
    told = defaults.subagents_of(agent)
    manner = defaults.manner_of(agent)
    values: dict[str, tuple[Any, bool]] = {
        "effort": (defaults.effort_of(agent), agent.effort is not None),
        "verbose": (manner.verbose, agent.verbose is not None),
        "elevated": (manner.elevated, agent.elevated is not None),
        "concurrency": (defaults.concurrency_of(agent), agent.concurrency is not None),
        "run_seconds_max": (defaults.run_seconds_of(agent), agent.run_seconds_max is not None),
        "workspace": (str(defaults.workspace_of(agent, home)), agent.workspace != ""),
        "subagents.model": (told.model, own.model != ""),
        "subagents.effort": (told.effort, own.effort is not None),
        "subagents.run_seconds_max": (told.run_seconds_max, own.run_seconds_max is not None),
        "subagents.archive_after_s": (told.archive_after_s, own.archive_after_s is not None),
    }
    for name, (value, is_own) in values.items():
        by, key = _by_defaults(defaults, name) if not is_own else (SaidBy.AGENT, f"agents.{agent.name}.{name}")
        yield name.replace(".", "_"), InForce(value, by, key)
    yield from _of_reset(agent, settings.sessions.reset)
    yield from _of_heartbeat(agent, defaults.heartbeat.rules)
    yield from _of_sandbox(agent, settings.sandbox)


def _by_defaults(defaults: Defaults, name: str) -> tuple[SaidBy, str]:
    """Return source and key of a default. An instance setting equal to the built-in value counts as built-in."""
    house, built_in = defaults, PLAIN
    for part in name.split("."):
        house, built_in = getattr(house, part), getattr(built_in, part)
    return (SaidBy.BUILT_IN if house == built_in else SaidBy.HOUSE), f"defaults.{name}"


def _of_reset(agent: Agent, house: HouseReset) -> Iterator[tuple[str, InForce]]:
    """Yield the reset rules that apply unless the session kind or the connector has its own."""
    holds = agent.reset.over(house)
    for each in fields(ResetRules):
        own, said = getattr(agent.reset, each.name), getattr(house, each.name)
        by = SaidBy.AGENT if own is not None else SaidBy.BUILT_IN if said is None else SaidBy.HOUSE
        key = f"agents.{agent.name}.reset.{each.name}" if by is SaidBy.AGENT else f"sessions.reset.{each.name}"
        yield f"reset_{each.name}", InForce(getattr(holds, each.name), by, key)


def _of_heartbeat(agent: Agent, house: HeartbeatRules) -> Iterator[tuple[str, InForce]]:
    holds = agent.heartbeat.over(house)
    for each in fields(HeartbeatRules):
        own, said = getattr(agent.heartbeat, each.name), getattr(house, each.name)
        by = SaidBy.AGENT if own is not None else SaidBy.BUILT_IN if said is None else SaidBy.HOUSE
        whose = f"agents.{agent.name}" if by is SaidBy.AGENT else "defaults"
        yield f"heartbeat_{each.name}", InForce(getattr(holds, each.name), by, f"{whose}.heartbeat.{each.name}")


def _of_sandbox(agent: Agent, house: SandboxSettings) -> Iterator[tuple[str, InForce]]:
    """Yield the sandbox settings. A stricter value of the agent wins; an equal one counts as the instance's."""
    holds, plain = sandbox_of(house, agent), SandboxSettings()
    for each in fields(SandboxRules):
        within = hasattr(house, each.name)
        key = f"sandbox.{each.name}" if within else f"sandbox.docker.{each.name}"
        value, said, built_in = (getattr(of if within else of.docker, each.name) for of in (holds, house, plain))
        by = SaidBy.AGENT if value != said else SaidBy.BUILT_IN if said == built_in else SaidBy.HOUSE
        yield (
            f"sandbox_{each.name}",
            InForce(value, by, f"agents.{agent.name}.sandbox.{each.name}" if by is SaidBy.AGENT else key),
        )
