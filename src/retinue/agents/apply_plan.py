"""What `apply` would do: compares the declared agents and people with those in the store.

Pure: facts in, a plan with reasons out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

from msgspec import Struct, field

from retinue.agents.agent_diff import differences
from retinue.domain.agent import Agent
from retinue.domain.person import Person, Role
from retinue.domain.structs import replace

FILE = "file"  # the source of rows that `apply` writes
NOBODYS = frozenset({FILE, "setup"})  # the file may overwrite rows of these sources: no person has changed them since


class Step(StrEnum):
    """What `apply` does with one agent or person."""

    ADD = "add"
    CHANGE = "change"
    KEEP = "keep"  # already as declared
    DRIFT = "drift"  # changed elsewhere since; overwritten only on request
    UNDECLARED = "undeclared"  # in the store and not in the file; left unchanged


class Known(Struct, frozen=True):
    """An agent in the store, and the source of its last change."""

    agent: Agent
    source: str


class Planned(Struct, frozen=True):
    """What `apply` does with one agent or person, and why."""

    step: Step
    name: str
    because: str
    agent: Agent | None = None
    person: Person | None = None
    changed: Mapping[str, tuple[Any, Any]] = field(default_factory=dict[str, tuple[Any, Any]])  # old and new


def plan_agents(declared: Sequence[Agent], known: Sequence[Known], *, take_file: bool = False) -> list[Planned]:
    """Plan the declared agents in the order of the file, then the agents that it does not declare."""
    here = {each.agent.name.casefold(): each for each in known}
    plan = [_plan_agent(agent, here.pop(agent.name.casefold(), None), take_file=take_file) for agent in declared]
    return [*plan, *(_undeclared(each.agent.name) for each in here.values())]


def _plan_agent(declared: Agent, known: Known | None, *, take_file: bool) -> Planned:
    if known is None:
        return Planned(Step.ADD, declared.name, "nobody of this name is here", agent=declared)
    wanted = replace(declared, name=known.agent.name, version=known.agent.version)
    changed = differences(known.agent, wanted)
    if not changed:
        return Planned(Step.KEEP, wanted.name, "it is as declared")
    if known.source not in NOBODYS and not take_file:
        because = f"it was changed over the {known.source} since; take the file to overwrite that"
        return Planned(Step.DRIFT, wanted.name, because, agent=wanted, changed=changed)
    return Planned(Step.CHANGE, wanted.name, "it is declared otherwise", agent=wanted, changed=changed)


def plan_people(declared: Mapping[str, Role], known: Sequence[Person], *, take_file: bool = False) -> list[Planned]:
    """Plan the people, who are added with the role that the file declares.

    A role that was changed elsewhere is kept, unless `prefer_file` is set. A change from or to
    owner is never applied.
    """
    here = {person.name.casefold(): person for person in known}
    plan: list[Planned] = []
    for name, role in declared.items():
        person = here.pop(name.casefold(), None)
        if person is None:
            plan.append(Planned(Step.ADD, name, "nobody of this name is here", person=Person(name=name, role=role)))
        elif person.role is role:
            plan.append(Planned(Step.KEEP, person.name, "they are as declared"))
        else:
            step = Step.CHANGE if take_file and Role.OWNER not in (role, person.role) else Step.DRIFT
            because = "they are declared otherwise" if step is Step.CHANGE else f"here they are {person.role}"
            wanted = Person(name=person.name, role=role)
            plan.append(Planned(step, person.name, because, person=wanted, changed={"role": (person.role, role)}))
    return [*plan, *(_undeclared(person.name) for person in here.values() if person.role is not Role.OWNER)]


def _undeclared(name: str) -> Planned:
    return Planned(Step.UNDECLARED, name, "it is not in the file, so it is left as it is")
