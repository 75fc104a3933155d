"""Applies changes to an agent's definition, and lists the fields that differ between two versions."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from retinue.agents.errors import AgentFieldUnknown
from retinue.domain.agent import Agent
from retinue.domain.structs import replace

DEFAULT = "default"
_DEFAULT_AGENT = Agent(name="plain")
_GROUP_FIELDS = tuple(each.name for each in fields(Agent) if is_dataclass(getattr(_DEFAULT_AGENT, each.name)))
_EXCLUDED_FIELDS = ("name", "version")  # the name never changes, and the store counts versions

SELF_EDITABLE_FIELDS = frozenset({"description", "instructions", "provider", "model", "effort", "icon", "color"})
"""Fields that an agent may change in its own definition, if it may change it at all. Only a boss may set the others."""


def flatten_agent(agent: Agent) -> dict[str, Any]:
    """Return every field of an agent by name. The name of a grouped field starts with the group: `tools_ask`."""
    found: dict[str, Any] = {}
    for each in fields(agent):
        value = getattr(agent, each.name)
        if each.name in _EXCLUDED_FIELDS:
            continue
        if is_dataclass(value):
            found |= {f"{each.name}_{inner.name}": getattr(value, inner.name) for inner in fields(value)}
        else:
            found[each.name] = value
    return found


AGENT_FIELDS = tuple(flatten_agent(_DEFAULT_AGENT))


def settings_key_of(field: str) -> str:
    """Return the settings key of a field, such as `tools.ask` for `tools_ask`."""
    group, _, rest = field.partition("_")
    return f"{group}.{rest}" if group in _GROUP_FIELDS else field


def apply_changes(agent: Agent, values: Mapping[str, Any], *, clear: Collection[str] = ()) -> Agent:
    """Return the agent with the given values, and with the fields in `clear` set to their defaults.

    If the provider or the runner changes, model and effort are reset to their defaults, unless the
    caller sets them too. The new provider or runner may not offer the agent's model.
    """
    plain = flatten_agent(_DEFAULT_AGENT)
    for name in clear:
        if name not in plain:
            raise AgentFieldUnknown(name, fields=AGENT_FIELDS)
    now = flatten_agent(agent)
    wanted = {**{name: plain[name] for name in clear}, **values}
    if any(name in wanted and wanted[name] != now[name] for name in ("provider", "runner")):
        wanted = {"model": plain["model"], "effort": plain["effort"], **wanted}
    for name in ("model", "effort"):
        if wanted.get(name) == DEFAULT:
            wanted[name] = plain[name]
    return _with_values(agent, now | wanted)


def _with_values(agent: Agent, values: Mapping[str, Any]) -> Agent:
    made: dict[str, Any] = {
        name: value for name, value in values.items() if name.partition("_")[0] not in _GROUP_FIELDS
    }
    for group in _GROUP_FIELDS:
        inner = getattr(agent, group)
        of_group = {each.name: values[f"{group}_{each.name}"] for each in fields(inner)}
        made[group] = replace(inner, **of_group)
    return replace(agent, **made)


def diff_agents(old: Agent, new: Agent) -> dict[str, tuple[Any, Any]]:
    """Return each field that differs, with its old and its new value."""
    before, after = flatten_agent(old), flatten_agent(new)
    return {name: (before[name], after[name]) for name in AGENT_FIELDS if before[name] != after[name]}
