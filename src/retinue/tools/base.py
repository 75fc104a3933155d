"""The tool protocol: what a tool declares, and how a call is performed.

Arguments are parsed before a tool receives them.
"""

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
from retinue.domain.permission import AgentRights, Permission
from retinue.domain.person import Requester
from retinue.domain.session import OriginKind
from retinue.domain.tool import ToolSpec
from retinue.domain.trust import Trust


class ToolFailed(RetinueError):
    """The tool could not do what the call requested.

    The model reads the sentence, the reason and the next step of this error.
    """

    code = "tool.failed"


class CallPending(Exception):
    """Raised when work that a tool has started is not finished yet. This is not an error.

    The call stays open. The tool is called again when there is a result, or at the time `until`.
    Only a repeatable tool may raise this.
    """

    def __init__(self, until: datetime) -> None:
        super().__init__(f"waiting until {until}")
        self.until = until


def as_tool_failed(error: RetinueError, *, try_this: str = "") -> ToolFailed:
    """Convert an error of the server to an error that the model reads.

    If `try_this` is given, it replaces the next step of the error.
    """
    return ToolFailed(error.sentence, because=error.because, try_this=try_this or error.try_this, code=error.code)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolContext:
    """The context of one tool call: everything a tool may know beyond its arguments.

    `trust` is the lowest trust of anything in the context. Everything a tool creates, stores or
    sends from this call is marked with this trust.

    `sender` is the address for which the run works. `can_use` tells whether the agent has a given
    tool in this run.

    A subagent acts as `effective_agent`, the first agent in the chain that started it, and follows
    the rules of all its `parent_agents`. Requests, reads and commands of this call are made as
    `effective_agent`.
    """

    agent: Agent
    session: SessionId
    run: RunId
    call: str
    agent_directory: Path
    rights: AgentRights
    origin: OriginKind = OriginKind.TERMINAL
    sender: Address | None = None
    requesters: tuple[Requester, ...] = ()  # the people on whose behalf the run works
    trust: Trust = Trust.PRIVATE
    environment: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)  # for this run's commands
    elevation: Elevation | None = None  # the session's setting for commands outside the sandbox
    parent_agents: tuple[Agent, ...] = ()
    acting_agent: Agent | None = None
    can_use: Callable[[str], bool] = field(default=lambda _tool: True, repr=False, compare=False)

    @property
    def effective_agent(self) -> Agent:
        return self.acting_agent or self.agent

    @property
    def non_owner_requesters(self) -> tuple[Requester, ...]:
        """The people on whose behalf the run works, except for the owner."""
        return tuple(each for each in self.requesters if not each.is_owner)


class ToolOutput(Struct, frozen=True, kw_only=True):
    """The output of a tool call. If `trust` is None, the trust follows from the tool's effects."""

    text: str
    trust: Trust | None = None
    attachments: tuple[Attachment, ...] = ()
    failed: bool = False


class Tool(Protocol):
    """One tool that an agent can call. `perform` may return a plain string as the output."""

    @property
    def spec(self) -> ToolSpec: ...

    @property
    def arguments(self) -> type[msgspec.Struct]: ...

    async def perform(self, arguments: Any, context: ToolContext) -> ToolOutput | str: ...


@runtime_checkable
class PermissionedTool(Protocol):
    """A tool that may need permissions beyond the workspace.

    If a required permission was not granted, a person is asked for it.
    """

    def required_permissions(self, arguments: Any, context: ToolContext) -> Sequence[Permission]: ...


@runtime_checkable
class SandboxedTool(Protocol):
    """A tool whose calls run in a sandbox, or on the host if the rules allow it.

    `decide_sandbox` returns whether a call may run where it was placed, in a sandbox or on the
    host. It is called just before the call is performed, after `prepare_sandbox`.
    """

    async def prepare_sandbox(self) -> None: ...
    def decide_sandbox(self, arguments: Any, context: ToolContext) -> Decision: ...


@runtime_checkable
class ConfirmedTool(Protocol):
    """A tool with calls that the owner must confirm each time.

    Grants and the trust of the context do not change this. `decide_confirmation` returns None for a
    call that needs no confirmation.
    """

    def decide_confirmation(self, arguments: Any, context: ToolContext) -> Decision | None: ...


@runtime_checkable
class ConfigurableTool(Protocol):
    """A tool that has its own settings.

    `with_settings` returns a copy for other settings. The copy is used to decide which calls are
    allowed, never to perform them.
    """

    def with_settings(self, settings: Settings) -> Tool: ...


CACHED_SCHEMAS_MAX = 512


def schema_of(arguments: type[msgspec.Struct]) -> dict[str, Any]:
    """Return the JSON schema of a struct in the form that every provider accepts.

    The top level is an object and there are no references. The caller may change the result.
    """
    return cast("dict[str, Any]", msgspec.json.decode(_encoded_schema(arguments)))


@lru_cache(CACHED_SCHEMAS_MAX)
def _encoded_schema(arguments: type[msgspec.Struct]) -> bytes:
    """Return the encoded JSON schema of a struct, from a cache. Inspecting a type takes a hundred
    times longer than decoding its schema."""
    return msgspec.json.encode(_build_schema(arguments))


def _build_schema(arguments: type[msgspec.Struct]) -> dict[str, Any]:
    schema = msgspec.json.schema(arguments)
    definitions: dict[str, Any] = schema["$defs"]
    top: dict[str, Any] = _inline_references(schema, definitions)
    return {
        "type": "object",
        "properties": top["properties"],
        "required": top.get("required", []),
        "additionalProperties": False,
    }


def _inline_references(schema: Any, definitions: dict[str, Any]) -> Any:
    """Replace each reference with its definition. This terminates, because no argument type refers to itself."""
    if isinstance(schema, list):
        return [_inline_references(part, definitions) for part in cast(list[Any], schema)]
    if not isinstance(schema, dict):
        return schema
    parts = cast(dict[str, Any], schema)
    if (name := parts.get("$ref")) is None:
        return {key: _inline_references(part, definitions) for key, part in parts.items()}
    beside = {key: part for key, part in parts.items() if key not in ("$ref", "$defs")}
    return _inline_references(definitions[name.rpartition("/")[2]], definitions) | beside
