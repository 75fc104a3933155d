"""The suite's simulated worlds: its tools as tools of the toolbox, and its texts with an attack in every slot."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date, datetime
from fnmatch import fnmatchcase
from typing import Any

import msgspec
from pydantic import BaseModel

from retinue.domain.tool import ToolEffect, ToolSpec
from retinue.domain.trust import Trust
from retinue.policy.provenance.provenance_rules import ProvenancePolicy
from retinue.policy.provenance.provenance_values import decide_result_trust
from retinue.tools.base import ToolContext, ToolFailed, ToolOutput

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from agentdojo.functions_runtime import Function, FunctionsRuntime, TaskEnvironment
    from agentdojo.task_suite.load_suites import get_suites
    from agentdojo.task_suite.task_suite import TaskSuite

VERSION = "v1.2.2"
# The date in each world, from its calendar. Banking has no calendar: its scripts pay on this date.
TODAY = {
    "workspace": date(2024, 5, 15),
    "travel": date(2024, 5, 15),
    "banking": date(2022, 4, 1),
    "slack": date(2024, 5, 15),
}


def suites() -> Mapping[str, TaskSuite[Any]]:
    return get_suites(VERSION)


@dataclass(frozen=True, slots=True)
class WorldTool:
    """A simulated tool. It works on the current world, so that a toolbox is built once."""

    spec: ToolSpec
    arguments: type[msgspec.Struct]
    function: Function
    world: Callable[[], TaskEnvironment]
    policy: ProvenancePolicy

    async def perform(self, arguments: Any, context: ToolContext) -> ToolOutput:
        given = {
            name: value
            for name in self.arguments.__struct_fields__
            if (value := getattr(arguments, name)) is not _UNSET
        }
        result, error = FunctionsRuntime([self.function]).run_function(self.world(), self.function.name, given)
        if error:
            raise ToolFailed(error, code="injection.failed")
        text = result if isinstance(result, str) else json.dumps(_plain(result), ensure_ascii=False, default=str)
        found = decide_result_trust(self.policy, self.spec, text)
        # A write in an untrusted context is untrusted; the trust of a typed read comes from its rule.
        writes = bool(self.spec.effects - {ToolEffect.READS_PRIVATE, ToolEffect.READS_UNTRUSTED})
        return ToolOutput(text=text, trust=Trust.UNTRUSTED if writes and context.trust is Trust.UNTRUSTED else found)


_UNSET = msgspec.UNSET


def make_tool(
    function: Function, world: Callable[[], TaskEnvironment], policy: ProvenancePolicy, effects: Mapping[str, list[str]]
) -> WorldTool:
    named = next(words for glob, words in effects.items() if fnmatchcase(function.name, glob))
    spec = ToolSpec(
        name=function.name,
        description=function.description,
        parameters=function.parameters.model_json_schema(),
        effects=frozenset(map(ToolEffect, named)),
    )
    fields = [
        (name, Any) if info.is_required() else (name, Any, msgspec.field(default=_UNSET))
        for name, info in function.parameters.model_fields.items()
    ]
    struct = msgspec.defstruct(function.name, sorted(fields, key=len))
    return WorldTool(spec, struct, function, world, policy)


def _plain(value: Any) -> Any:
    match value:
        case BaseModel():
            return value.model_dump(mode="json")
        case list() | tuple():
            return [_plain(each) for each in value]
        case dict():
            return {str(key): _plain(each) for key, each in value.items()}
        case _:
            return value


class Worlds:
    """Worlds of one suite: each is created once, and copied for each run."""

    def __init__(self, suite: TaskSuite[Any]) -> None:
        self._made: dict[str | None, TaskEnvironment] = {None: suite.load_and_inject_default_environment({})}
        self._type = suite.environment_type
        self._slots = {slot: f"SLOT{at}SLOT" for at, slot in enumerate(suite.get_injection_vector_defaults())}
        self._world_with_marks = suite.load_and_inject_default_environment(self._slots).model_dump_json()

    def make(self, text: str | None) -> TaskEnvironment:
        """Return a world with `text` in every slot that a stranger could write to; None means a
        world without an attack.
        """
        if text not in self._made:
            world = self._world_with_marks
            for mark in self._slots.values():
                world = world.replace(mark, json.dumps(text)[1:-1])
            self._made[text] = self._type.model_validate_json(world)
        return self._made[text].model_copy(deep=True)


def fields_of(world: TaskEnvironment, since: datetime) -> dict[str, Any]:
    """Return every field of a world by its path. A time after `since` was set during the run."""
    found: dict[str, Any] = {}

    def walk(path: str, value: Any) -> None:
        match value:
            case dict():
                found[path] = sorted(map(str, value))
                for key, each in value.items():
                    walk(f"{path}.{key}", each)
            case list():
                found[path] = len(value)
                for at, each in enumerate(value):
                    walk(f"{path}.{at}", each)
            case datetime() if value.replace(tzinfo=None) >= since:
                found[path] = "now"
            case _:
                found[path] = value

    walk("", world.model_dump())
    return found
