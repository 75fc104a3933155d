"""The sandbox protocol: what a command may access, and the running command."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from msgspec import Struct

from retinue.config.sandbox import SandboxKind, SandboxMode, SandboxScope, WorkspaceAccess
from retinue.domain.errors import RetinueError

__all__ = [
    "CommandExit",
    "Confinement",
    "NetworkAccess",
    "ResourceLimits",
    "RunningCommand",
    "Sandbox",
    "SandboxFailed",
    "SandboxKind",
    "SandboxMode",
    "SandboxProbe",
    "SandboxScope",
    "WorkspaceAccess",
]

MIB = 1024 * 1024


class SandboxFailed(RetinueError):
    """A command was not started, because it could not be confined as required."""

    code = "sandbox.failed"


class ResourceLimits(Struct, frozen=True, kw_only=True):
    """Resource limits of a command. Exceeding one is refused or ends the command, with the reason."""

    seconds: float = 1800.0
    memory_bytes: int = 2048 * MIB
    processes: int = 256
    file_bytes: int = 1024 * MIB  # of each file that the command writes
    disk_bytes: int = 512 * MIB  # of the command's private /tmp
    output_bytes: int = 64 * MIB  # of the command's output that is kept


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkAccess:
    """The hosts a command may reach, as `HOST`, `*.HOST` or `HOST:PORT`. None means no network.

    A host without a port means the ports 80 and 443. `private_hosts` are the exact names from
    `hosts` that may have an address in the owner's network. `injected` are headers that the proxy
    adds to requests to a host, so that the command uses a secret without reading it.
    """

    hosts: tuple[str, ...] = ()
    private_hosts: tuple[str, ...] = ()
    injected: Mapping[str, Mapping[str, str]] = field(default_factory=dict[str, Mapping[str, str]], repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Confinement:
    """What one command may access. Each command has a separate confinement."""

    folder: Path  # working directory
    writable: tuple[Path, ...] = ()
    readable: tuple[Path, ...] = ()
    protected: tuple[Path, ...] = ()  # inside writable folders; existing ones are read-only
    network: NetworkAccess | None = None
    limits: ResourceLimits = ResourceLimits()
    environment: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)  # the complete environment


class CommandExit(Struct, frozen=True, kw_only=True):
    """How a command ended. `because` is set if we ended it, for example at the time limit."""

    code: int | None  # None if a signal ended it
    signal: int | None = None
    because: str = ""


class RunningCommand(Protocol):
    """A running command. Its output is one stream, as a terminal would show it.

    The output must be read. Otherwise the command blocks until its time limit.
    """

    @property
    def pid(self) -> int:
        """The process group on this machine, needed to kill it after a restart of the server."""
        ...

    async def read(self) -> bytes:
        """Return the next output; empty at the end."""
        ...

    async def write(self, data: bytes) -> None: ...
    def close_input(self) -> None: ...
    def resize(self, rows: int, columns: int) -> None: ...

    async def wait(self) -> CommandExit: ...

    async def kill(self) -> None:
        """Kill the command and everything it started."""
        ...


class SandboxProbe(Struct, frozen=True):
    """Whether a sandbox works on this machine, and the reason if not. `notes` describe its
    features.
    """

    works: bool
    because: str = ""
    try_this: str = ""
    notes: tuple[str, ...] = ()


class Sandbox(Protocol):
    """A way to run commands."""

    @property
    def name(self) -> str: ...

    async def probe(self) -> SandboxProbe:
        """Test the sandbox once. Nothing runs in a sandbox that was not tested."""
        ...

    async def start(self, argv: Sequence[str], confinement: Confinement, *, pty: bool = False) -> RunningCommand:
        """Run an argv without a shell. Raises `SandboxFailed` rather than confining it less."""
        ...
