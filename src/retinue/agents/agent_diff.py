"""Apply a change to an agent, and compare two versions of one. Pure functions."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from retinue.domain.agent import Agent
from retinue.domain.errors import Invalid
from retinue.domain.structs import replace

DEFAULT = "default"
_PLAIN = Agent(name="plain")
_GROUPS = tuple(each.name for each in fields(Agent) if is_dataclass(getattr(_PLAIN, each.name)))
_COUNTED = ("name", "version")  # the name never changes, and the store counts versions

OWN_BUSINESS = frozenset({"description", "instructions", "provider", "model", "effort", "icon", "colour"})
"""What an agent may change of itself, given the right to change at all. The rest are bounds, set by a boss."""


def flat(agent: Agent) -> dict[str, Any]:
    """Return every field by name; a field of a group gets a prefix, as in `tools_ask`."""
    found: dict[str, Any] = {}
    for each in fields(agent):
        value = getattr(agent, each.name)
        if each.name in _COUNTED:
            continue
        if is_dataclass(value):
            found |= {f"{each.name}_{inner.name}": getattr(value, inner.name) for inner in fields(value)}
        else:
            found[each.name] = value
    return found


FIELDS = tuple(flat(_PLAIN))


def key_of(field: str) -> str:
    """Return the settings key of a field: `tools.ask` for `tools_ask`."""
    group, _, rest = field.partition("_")
    return f"{group}.{rest}" if group in _GROUPS else field


def changed(agent: Agent, given: Mapping[str, Any], *, clear: Collection[str] = ()) -> Agent:
    """Return the agent with the given values, and with the fields in `clear` set to their defaults.

    A new provider or runner has other models. Model and effort are therefore cleared with it,
    unless they are given too.
    """
    plain = flat(_PLAIN)
    for name in clear:
        if name not in plain:
            raise Invalid(
                f"an agent has no field {name[:64]!r}",
                because=f"its fields are {', '.join(FIELDS)}",
                try_this="clear one of these",
                code="agent.field-unknown",
            )
    now = flat(agent)
    wanted = {**{name: plain[name] for name in clear}, **given}
    if any(name in wanted and wanted[name] != now[name] for name in ("provider", "runner")):
        wanted = {"model": plain["model"], "effort": plain["effort"], **wanted}
    for name in ("model", "effort"):
        if wanted.get(name) == DEFAULT:
            wanted[name] = plain[name]
    return _with(agent, now | wanted)


def _with(agent: Agent, values: Mapping[str, Any]) -> Agent:
    made: dict[str, Any] = {name: value for name, value in values.items() if name.partition("_")[0] not in _GROUPS}
    for group in _GROUPS:
        inner = getattr(agent, group)
        of_group = {each.name: values[f"{group}_{each.name}"] for each in fields(inner)}
        made[group] = replace(inner, **of_group)
    return replace(agent, **made)


def differences(old: Agent, new: Agent) -> dict[str, tuple[Any, Any]]:
    """Return each field that differs, with its old and its new value."""
    before, after = flat(old), flat(new)
    return {name: (before[name], after[name]) for name in FIELDS if before[name] != after[name]}
