"""Plans what `retinue apply` changes: compares the agents and people that its file declares with those in the store.

The module does no I/O: the caller passes the declared and the stored ones, and gets a plan with a reason for
each entry.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from enum import StrEnum
from typing import Any

from msgspec import Struct, field

from retinue.agents.agent_diff import diff_agents
from retinue.domain.agent import Agent
from retinue.domain.person import Person, Role
from retinue.domain.structs import replace

FILE_SOURCE = "file"  # the source of rows that `apply` writes
OVERWRITABLE_SOURCES = frozenset(
    {FILE_SOURCE, "setup"}
)  # the file may overwrite rows of these sources: no person has changed them since


class ApplyAction(StrEnum):
    """What `apply` does with one agent or person: add or change it, for example, or leave it unchanged."""

    ADD = "add"
    CHANGE = "change"
    KEEP = "keep"  # already as declared
    DRIFT = "drift"  # changed elsewhere since; overwritten only on request
    UNDECLARED = "undeclared"  # in the store and not in the file; left unchanged


class StoredAgent(Struct, frozen=True):
    """An agent in the store, and what changed it last, such as `apply` or a person."""

    agent: Agent
    source: str


class PlannedChange(Struct, frozen=True):
    """One entry of the plan: what `apply` does with one agent or person, and the reason."""

    action: ApplyAction
    name: str
    because: str
    agent: Agent | None = None
    person: Person | None = None
    changes: Mapping[str, tuple[Any, Any]] = field(default_factory=dict[str, tuple[Any, Any]])  # old and new


def plan_agents(
    declared: Sequence[Agent], stored: Sequence[StoredAgent], *, prefer_file: bool = False
) -> list[PlannedChange]:
    """Plan a change for each agent in the file, in the file's order, then for each stored agent that is not in it."""
    here = {each.agent.name.casefold(): each for each in stored}
    plan = [_plan_agent(agent, here.pop(agent.name.casefold(), None), prefer_file=prefer_file) for agent in declared]
    return [*plan, *(_plan_undeclared(each.agent.name) for each in here.values())]


def _plan_agent(declared: Agent, stored: StoredAgent | None, *, prefer_file: bool) -> PlannedChange:
    if stored is None:
        return PlannedChange(ApplyAction.ADD, declared.name, "it does not exist yet", agent=declared)
    wanted = replace(declared, name=stored.agent.name, version=stored.agent.version)
    changed = diff_agents(stored.agent, wanted)
    if not changed:
        return PlannedChange(ApplyAction.KEEP, wanted.name, "it is unchanged")
    if stored.source not in OVERWRITABLE_SOURCES and not prefer_file:
        because = f"it was last changed through the {stored.source}, not by `apply`; use `--overwrite` to overwrite it"
        return PlannedChange(ApplyAction.DRIFT, wanted.name, because, agent=wanted, changes=changed)
    return PlannedChange(ApplyAction.CHANGE, wanted.name, "the file differs", agent=wanted, changes=changed)


def plan_people(
    declared: Mapping[str, Role],
    stored: Sequence[Person],
    *,
    forgotten: Collection[str] = (),
    prefer_file: bool = False,
) -> list[PlannedChange]:
    """Plan a change for each declared person. A new person gets the role that the file declares.

    If a person's role differs from the file, it is changed only with `prefer_file`. A role is
    never changed from or to owner. `forgotten` are the case-folded names of people whose data was
    erased. Their names stay reserved.
    """
    here = {person.name.casefold(): person for person in stored}
    plan: list[PlannedChange] = []
    for name, role in declared.items():
        person = here.pop(name.casefold(), None)
        if person is None and name.casefold() in forgotten:
            because = "they were forgotten, and the name stays reserved; remove them from the file"
            plan.append(PlannedChange(ApplyAction.DRIFT, name, because))
        elif person is None:
            plan.append(
                PlannedChange(ApplyAction.ADD, name, "it does not exist yet", person=Person(name=name, role=role))
            )
        elif person.role is role:
            plan.append(PlannedChange(ApplyAction.KEEP, person.name, "they are unchanged"))
        else:
            step = ApplyAction.CHANGE if prefer_file and Role.OWNER not in (role, person.role) else ApplyAction.DRIFT
            because = "the file differs" if step is ApplyAction.CHANGE else f"their role in the store is {person.role}"
            wanted = Person(name=person.name, role=role)
            plan.append(PlannedChange(step, person.name, because, person=wanted, changes={"role": (person.role, role)}))
    return [*plan, *(_plan_undeclared(person.name) for person in here.values() if person.role is not Role.OWNER)]


def _plan_undeclared(name: str) -> PlannedChange:
    return PlannedChange(ApplyAction.UNDECLARED, name, "it is not in the file, so it is not changed")
