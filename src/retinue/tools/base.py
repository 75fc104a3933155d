"""A tool: what it declares, and how it is performed. Arguments are parsed before a tool sees them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import msgspec

from retinue.domain.agent import Agent
from retinue.domain.errors import RetinueError
from retinue.domain.ids import RunId, SessionId
from retinue.domain.tool import ToolSpec


class ToolFailed(RetinueError):
    """The tool could not do it. The model reads the sentence, the because and the next move."""

    code = "tool.failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """Where a call happens: all a tool may know beyond its arguments."""

    agent: Agent
    session: SessionId
    run: RunId
    call: str
    home: Path


class Tool(Protocol):
    """One thing an agent can do."""

    @property
    def spec(self) -> ToolSpec: ...

    @property
    def arguments(self) -> type[msgspec.Struct]: ...

    async def perform(self, arguments: Any, scene: Scene) -> str: ...


def schema_of(arguments: type[msgspec.Struct]) -> dict[str, Any]:
    """The flat JSON schema of a struct, as every provider takes it."""
    schema = msgspec.json.schema(arguments)
    name = schema["$ref"].rpartition("/")[2]
    flat: dict[str, Any] = schema["$defs"][name]
    return {
        "type": "object",
        "properties": flat["properties"],
        "required": flat.get("required", []),
        "additionalProperties": False,
    }
