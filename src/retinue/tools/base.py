"""A tool: what it declares, and how it is performed. Arguments are parsed before a tool sees them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol, cast, runtime_checkable

import msgspec
from msgspec import Struct

from retinue.config import Settings
from retinue.domain.address import Address
from retinue.domain.agent import Agent
from retinue.domain.attachment import Attachment
from retinue.domain.decision import Decision
from retinue.domain.display_options import Elevation
from retinue.domain.errors import RetinueError
from retinue.domain.ids import RunId, SessionId
from retinue.domain.permission import Permission, Rights
from retinue.domain.person import Requester
from retinue.domain.session import OriginKind
from retinue.domain.tool import ToolSpec
from retinue.domain.trust import Trust


class ToolFailed(RetinueError):
    """The tool could not do it. The model reads the sentence, the because and the next move."""

    code = "tool.failed"


class Pending(Exception):
    """Not an error: what the tool has set going is not at its end. The call stays open, and is made again once
    something has come of it, or at `until`. Only a repeatable tool may say so."""

    def __init__(self, until: datetime) -> None:
        super().__init__(f"waiting until {until}")
        self.until = until


def as_tool_failed(error: RetinueError) -> ToolFailed:
    """Whatever went wrong in the house, for the model to read."""
    return ToolFailed(error.sentence, because=error.because, try_this=error.try_this, code=error.code)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """Where a call happens: all a tool may know beyond its arguments.

    `trust` is that of the least trusted words in the context. Whatever a tool makes, stores or sends from here is
    labelled with it. `sender` is who the run works for. `can_use` says of a tool whether its agent has it here.
    A subagent acts as whoever sent it out first, bound by the rules of all its `senders`: what is asked, read or run
    here is asked, read or run by `acts_as`.
    """

    agent: Agent
    session: SessionId
    run: RunId
    call: str
    home: Path
    rights: Rights
    origin: OriginKind = OriginKind.TERMINAL
    sender: Address | None = None
    requesters: tuple[Requester, ...] = ()  # the people on whose behalf the run works
    trust: Trust = Trust.PRIVATE
    environment: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)  # for this run's commands
    elevated: Elevation | None = None  # what the conversation says of commands that leave the sandbox
    senders: tuple[Agent, ...] = ()
    acting: Agent | None = None
    can_use: Callable[[str], bool] = field(default=lambda _tool: True, repr=False, compare=False)

    @property
    def acts_as(self) -> Agent:
        return self.acting or self.agent

    @property
    def others(self) -> tuple[Requester, ...]:
        """Those it works for who are not the owner."""
        return tuple(each for each in self.requesters if not each.is_owner)


class Output(Struct, frozen=True, kw_only=True):
    """What a tool has to say. Its trust is that of the words: without one, it follows from the tool's effects."""

    text: str
    trust: Trust | None = None
    attachments: tuple[Attachment, ...] = ()
    failed: bool = False


class Tool(Protocol):
    """One thing an agent can do. A text alone is an output."""

    @property
    def spec(self) -> ToolSpec: ...

    @property
    def arguments(self) -> type[msgspec.Struct]: ...

    async def perform(self, arguments: Any, scene: Scene) -> Output | str: ...


@runtime_checkable
class Reaching(Protocol):
    """A tool that reaches beyond the workspace. What it needs and the agent has not, a person is asked for."""

    def needs(self, arguments: Any, scene: Scene) -> Sequence[Permission]: ...


@runtime_checkable
class Walled(Protocol):
    """A tool whose calls run somewhere. Asked whether this one may, right before it is performed, once it is ready to
    say so."""

    async def ready(self) -> None: ...
    def sandbox(self, arguments: Any, scene: Scene) -> Decision: ...


@runtime_checkable
class Confirmed(Protocol):
    """A tool of which some calls are put to the owner each time, whatever was granted and however far the words in the
    context are trusted. None where this call is not one of them."""

    def confirm(self, arguments: Any, scene: Scene) -> Decision | None: ...


@runtime_checkable
class Ruled(Protocol):
    """A tool that has rules of its own in the settings. `under` others it is used to judge, never to perform."""

    def under(self, settings: Settings) -> Tool: ...


SCHEMAS_KEPT_MAX = 512


def schema_of(arguments: type[msgspec.Struct]) -> dict[str, Any]:
    """The JSON schema of a struct, as every provider takes it: an object at the top that refers to nothing. The caller
    may change it."""
    return cast("dict[str, Any]", msgspec.json.decode(_encoded_schema(arguments)))


@lru_cache(SCHEMAS_KEPT_MAX)
def _encoded_schema(arguments: type[msgspec.Struct]) -> bytes:
    """To look into a type takes a hundred times longer than to read its schema back."""
    return msgspec.json.encode(_schema(arguments))


def _schema(arguments: type[msgspec.Struct]) -> dict[str, Any]:
    schema = msgspec.json.schema(arguments)
    definitions: dict[str, Any] = schema["$defs"]
    top: dict[str, Any] = _spelled_out(schema, definitions)
    return {
        "type": "object",
        "properties": top["properties"],
        "required": top.get("required", []),
        "additionalProperties": False,
    }


def _spelled_out(schema: Any, definitions: dict[str, Any]) -> Any:
    """With the definition in place of each reference to it. No argument is a struct that holds itself."""
    if isinstance(schema, list):
        return [_spelled_out(part, definitions) for part in cast(list[Any], schema)]
    if not isinstance(schema, dict):
        return schema
    parts = cast(dict[str, Any], schema)
    if (name := parts.get("$ref")) is None:
        return {key: _spelled_out(part, definitions) for key, part in parts.items()}
    beside = {key: part for key, part in parts.items() if key not in ("$ref", "$defs")}
    return _spelled_out(definitions[name.rpartition("/")[2]], definitions) | beside
