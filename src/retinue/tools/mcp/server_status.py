"""How servers fare, and what it takes to reach them: all that a house without any has to know."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from retinue.config.mcp import McpServer
from retinue.domain.structs import replace
from retinue.sandbox.base import Sandbox

if TYPE_CHECKING:
    from retinue.tools.mcp.tool_list import Listing

SandboxOf = Callable[[str], Awaitable[Sandbox]]
"""The sandbox that the command of this server runs in. Raises `SandboxFailed` rather than giving a lesser one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What it takes to reach servers. `folder` holds one folder for each, which is all of the house it sees."""

    sandbox: SandboxOf
    folder: Path
    home: Path
    environment: Mapping[str, str] = field(repr=False)


class State(StrEnum):
    OFF = "off"
    STARTING = "starting"
    READY = "ready"
    WAITING = "waiting"  # for the owner to look at its tools
    FAILED = "failed"  # and tried again, after a while


class Standing(Struct, frozen=True, kw_only=True):
    """How a server fares. `listing` is what it said last, also where that is not used."""

    name: str
    state: State
    because: str = ""
    try_this: str = ""
    listing: Listing | None = None
    retry_at: datetime | None = None

    @property
    def usable(self) -> bool:
        return self.state is State.READY


def same_line(one: McpServer, other: McpServer) -> bool:
    """Whether a server can stay as it is when its settings change so: who may use it does not concern it."""
    return replace(one, agents=()) == replace(other, agents=())
