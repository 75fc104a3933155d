"""Protocols and types of sandboxes: what a command may access, and how to start and control it."""

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
    """A command was not started, because the sandbox could not confine it as required."""

    code = "sandbox.failed"


class ResourceLimits(Struct, frozen=True, kw_only=True):
    """Resource limits of a command.

    If the command exceeds a limit, either an operation of the command fails, or the command is
    killed. A killed command's `CommandExit` has the reason.
    """

    seconds: float = 1800.0
    memory_bytes: int = 2048 * MIB
    processes: int = 256
    file_bytes: int = 1024 * MIB  # of each file that the command writes
    disk_bytes: int = 512 * MIB  # of the command's private /tmp
    output_bytes: int = 64 * MIB  # of output; a command that writes more is killed


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkAccess:
    """The hosts that a command may reach, as `HOST`, `*.HOST` or `HOST:PORT`.

    If `hosts` is empty, the command can reach none. A host without a port allows the ports 80 and
    443. `private_hosts` are the names from `hosts` that may resolve to an address in the owner's
    private network. `injected` contains headers that the proxy adds to requests to a host, so that
    the command can use a secret without reading it.
    """

    hosts: tuple[str, ...] = ()
    private_hosts: tuple[str, ...] = ()
    injected: Mapping[str, Mapping[str, str]] = field(default_factory=dict[str, Mapping[str, str]], repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Confinement:
    """What one command may access: its working directory, other paths, the network and the environment.

    If `network` is None, the command has no network.
    """

    folder: Path  # working directory
    writable: tuple[Path, ...] = ()
    readable: tuple[Path, ...] = ()
    protected: tuple[Path, ...] = ()  # inside writable folders; existing ones are read-only
    network: NetworkAccess | None = None
    limits: ResourceLimits = ResourceLimits()
    environment: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)  # the complete environment


class CommandExit(Struct, frozen=True, kw_only=True):
    """How a command ended. `because` is set if the server stopped it or if its program was not found."""

    code: int | None  # None if a signal ended it
    signal: int | None = None
    because: str = ""


class RunningCommand(Protocol):
    """A running command. Its standard output and standard error are one stream, as in a terminal.

    The caller must read the output. Otherwise the command blocks when the buffer is full, until its
    time limit.
    """

    @property
    def pid(self) -> int:
        """The process group on this machine. After a restart, the server uses it to kill the command."""
        ...

    async def read(self) -> bytes:
        """Wait for more output and return it. Returns empty bytes at the end of the output."""
        ...

    async def write(self, data: bytes) -> None: ...
    def close_input(self) -> None: ...
    def resize(self, rows: int, columns: int) -> None: ...

    async def wait(self) -> CommandExit: ...

    async def kill(self) -> None:
        """Kill the command and everything it started."""
        ...


class SandboxProbe(Struct, frozen=True):
    """Whether a sandbox works on this machine, and the reason if not. `notes` describe its features."""

    works: bool
    because: str = ""
    try_this: str = ""
    notes: tuple[str, ...] = ()


class Sandbox(Protocol):
    """Starts commands with limited access. Each kind of sandbox has one implementation."""

    @property
    def name(self) -> str: ...

    async def probe(self) -> SandboxProbe:
        """Test whether the sandbox works on this machine.

        The first call runs the test, and later calls return the same result. No command starts in
        an untested sandbox.
        """
        ...

    async def start(self, argv: Sequence[str], confinement: Confinement, *, pty: bool = False) -> RunningCommand:
        """Start a command, without a shell. Raises `SandboxFailed` if the command cannot be confined as required."""
        ...
