"""Where commands run: what one may touch, and the child that came of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from msgspec import Struct

from retinue.config.sandbox import SandboxKind, SandboxMode, Scope, WorkspaceAccess
from retinue.domain.errors import RetinueError

__all__ = [
    "Child",
    "Confinement",
    "Ended",
    "Limits",
    "Network",
    "Probe",
    "Sandbox",
    "SandboxFailed",
    "SandboxKind",
    "SandboxMode",
    "Scope",
    "WorkspaceAccess",
]

MIB = 1024 * 1024


class SandboxFailed(RetinueError):
    """A command was not begun, because it could not be confined as it should be."""

    code = "sandbox.failed"


class Limits(Struct, frozen=True, kw_only=True):
    """How much a command may take. What goes beyond is refused or ended, and said so."""

    seconds: float = 1800.0
    memory_bytes: int = 2048 * MIB
    processes: int = 256
    file_bytes: int = 1024 * MIB  # of one file that it writes
    disk_bytes: int = 512 * MIB  # of its private /tmp
    output_bytes: int = 64 * MIB  # kept of what it says


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """Which hosts a command may reach, as `HOST`, `*.HOST` or `HOST:PORT`. None: no network at all.

    A host without a port stands for the ports 80 and 443. `private_hosts` are those of `hosts` that may have an address
    of the owner's own network, by their exact names. `injected` are headers that the proxy puts into requests to a
    host, so that a secret is used and never read.
    """

    hosts: tuple[str, ...] = ()
    private_hosts: tuple[str, ...] = ()
    injected: Mapping[str, Mapping[str, str]] = field(default_factory=dict[str, Mapping[str, str]], repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Confinement:
    """What one command may touch. Each has its own: two that run at once share none of it."""

    folder: Path  # where it begins
    writable: tuple[Path, ...] = ()
    readable: tuple[Path, ...] = ()
    protected: tuple[Path, ...] = ()  # within what is writable, and not to be changed: what is there is read-only
    network: Network | None = None
    limits: Limits = Limits()
    environment: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)  # all of it


class Ended(Struct, frozen=True, kw_only=True):
    """How a command ended. `because` says what we did to it: it took too long, it was killed."""

    code: int | None  # None where a signal ended it
    signal: int | None = None
    because: str = ""


class Child(Protocol):
    """A command that runs. Its output is one stream, as a terminal would show it.

    Someone has to read it: a command whose words nobody takes is held up by them, until its time is over.
    """

    @property
    def pid(self) -> int:
        """Of the process group on this machine, for whoever has to end it after a restart."""
        ...

    async def read(self) -> bytes:
        """The next of what it says; empty at the end."""
        ...

    async def write(self, data: bytes) -> None: ...
    def close_input(self) -> None: ...
    def resize(self, rows: int, columns: int) -> None: ...

    async def wait(self) -> Ended: ...

    async def kill(self) -> None:
        """End it and everything it has begun."""
        ...


class Probe(Struct, frozen=True):
    """Whether a sandbox works on this machine, and what is in the way. `notes` say what it has and has not."""

    works: bool
    because: str = ""
    try_this: str = ""
    notes: tuple[str, ...] = ()


class Sandbox(Protocol):
    @property
    def name(self) -> str: ...

    async def probe(self) -> Probe:
        """Try it for real, once. Nothing runs in a sandbox that has not been seen to hold."""
        ...

    async def start(self, argv: Sequence[str], confinement: Confinement, *, pty: bool = False) -> Child:
        """Run a command as it stands, without a shell. Raises `SandboxFailed` rather than confining it less."""
        ...
