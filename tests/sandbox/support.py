"""Directories and services for sandbox tests: a workspace for a command, and things that it must not reach."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from pathlib import Path

from retinue.sandbox.base import CommandExit, Confinement, ResourceLimits, Sandbox
from retinue.sandbox.bubblewrap import BubblewrapSandbox
from retinue.testing.wait_conditions import wait_until

PYTHON = "/usr/bin/python3" if os.path.exists("/usr/bin/python3") else sys.executable
PATIENCE_S = 60.0
_sleep_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class CommandOutput:
    text: str
    exit_status: CommandExit


async def run(
    sandbox: Sandbox, argv: Sequence[str], confinement: Confinement, *, pty: bool = False, given: bytes = b""
) -> CommandOutput:
    """Start a command, read its output and wait for its end."""
    async with asyncio.timeout(PATIENCE_S):
        child = await sandbox.start(argv, confinement, pty=pty)
        if given:
            await child.write(given)
        child.close_input()
        output = b""
        while chunk := await child.read():
            output += chunk
        return CommandOutput(output.decode(errors="replace"), await child.wait())


async def shell(sandbox: Sandbox, script: str, confinement: Confinement) -> CommandOutput:
    return await run(sandbox, ["/bin/sh", "-c", script], confinement)


@dataclass(frozen=True, slots=True)
class SandboxDirectories:
    """An instance's directories with two agents, and the home directory of its user."""

    root: Path

    @property
    def state(self) -> Path:
        return self.root / "state"

    @property
    def user_home(self) -> Path:
        return self.root / "maria"

    @property
    def readable(self) -> Path:
        return self.root / "library"

    @property
    def workspace(self) -> Path:
        return self.state / "agents" / "ada" / "workspace"

    def bubblewrap(self, **changed: object) -> BubblewrapSandbox:
        parts: dict[str, object] = {
            "folder": self.state / "sandbox",
            "private_paths": (self.state,),
            "shareable_parents": (self.state / "agents",),
            "user_home": self.user_home,
        }
        return BubblewrapSandbox(**(parts | changed))  # pyright: ignore[reportArgumentType]

    def confinement(self, **changed: object) -> Confinement:
        parts: dict[str, object] = {
            "folder": self.workspace,
            "writable": (self.workspace,),
            "readable": (self.readable,),
            "limits": ResourceLimits(seconds=PATIENCE_S),
        }
        return Confinement(**(parts | changed))  # pyright: ignore[reportArgumentType]


def make_sandbox_directories(root: Path) -> SandboxDirectories:
    grounds = SandboxDirectories(root.resolve())
    for folder in (grounds.workspace, grounds.state / "agents/ben", grounds.user_home / ".ssh", grounds.readable):
        folder.mkdir(parents=True)
    for path, text in {
        grounds.state / "owner-token": "the owner's token",
        grounds.state / "retinue.db": "the store",
        grounds.state / "agents/ben/token": "ben's token",
        grounds.user_home / "letter.txt": "dear maria",
        grounds.user_home / ".ssh/id_ed25519": "a key",
        grounds.readable / "book.txt": "to be read",
    }.items():
        path.write_text(text)
    (grounds.workspace / "planted-link").symlink_to(grounds.state / "owner-token")
    (grounds.workspace / "planted-link-to-write").symlink_to(grounds.user_home / "letter.txt")
    return grounds


@contextlib.contextmanager
def hello_server(family: int, address: object, kind: int = socket.SOCK_STREAM) -> Generator[socket.socket]:
    """Serve `hello` on this machine to any client."""
    with socket.socket(family, kind) as listener:
        listener.bind(address)  # pyright: ignore[reportArgumentType]
        if kind == socket.SOCK_STREAM:
            listener.listen()
        thread = threading.Thread(target=_send_hello, args=(listener, kind), daemon=True)
        thread.start()
        try:
            yield listener
        finally:
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()
            thread.join(PATIENCE_S)


def _send_hello(listener: socket.socket, kind: int) -> None:
    while True:
        try:
            if kind == socket.SOCK_DGRAM:
                _, sender = listener.recvfrom(100)
                if sender:
                    listener.sendto(b"hello", sender)
                else:
                    return
            else:
                one, _ = listener.accept()
                with one:
                    one.sendall(b"hello")
        except OSError:
            return


@contextlib.contextmanager
def daemon() -> Generator[int]:
    """A process that stands in for the server: it has a secret in its environment and ignores SIGUSR1."""
    code = (
        "import signal, time; signal.signal(signal.SIGUSR1, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
    )
    process = subprocess.Popen(
        [PYTHON, "-c", code, "daemon-stand-in"], env={"DAEMON_SECRET": "s3cret"}, stdout=subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        process.stdout.readline()
        yield process.pid
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


@contextlib.contextmanager
def running_escape_targets(grounds: SandboxDirectories) -> Generator[dict[str, object]]:
    """Run everything that an attempt may target, and yield the facts that the attempts need."""
    path = str(grounds.root / "s")
    abstract = f"retinue-escape-{os.getpid()}"
    with contextlib.ExitStack() as stack:
        port = _open_hello_port(stack, socket.AF_INET, ("127.0.0.1", 0))
        yield {
            "user_home": str(grounds.user_home),
            "state": str(grounds.state),
            "workspace": str(grounds.workspace),
            "readable": str(grounds.readable),
            "socket": path,
            "abstract": abstract,
            "daemon": stack.enter_context(daemon()),
            "port": port,
            "port_any": _open_hello_port(stack, socket.AF_INET, ("127.8.8.8", 0)),
            "port6": _open_hello_port(stack, socket.AF_INET6, ("::1", 0)),
            "port_udp": _open_hello_port(stack, socket.AF_INET, ("127.0.0.1", 0), socket.SOCK_DGRAM),
            "_unix": bool(stack.enter_context(hello_server(socket.AF_UNIX, path))),
            "_abstract": bool(stack.enter_context(hello_server(socket.AF_UNIX, b"\0" + abstract.encode()))),
        }


def _open_hello_port(stack: contextlib.ExitStack, family: int, address: object, kind: int = socket.SOCK_STREAM) -> int:
    return stack.enter_context(hello_server(family, address, kind)).getsockname()[1]


def write_attempts_script(grounds: SandboxDirectories, facts: dict[str, object], name: str) -> list[str]:
    """Write the attempts and their facts into the workspace, and return the command that runs them."""
    script = grounds.workspace / "attempts.py"
    shutil.copyfile(Path(__file__).with_name("escape_attempts.py"), script)
    facts_file = grounds.workspace / f"{name}.json"
    facts_file.write_text(json.dumps(facts))
    return [PYTHON, "-I", str(script), str(facts_file)]


def unique_sleep_time() -> str:
    """Return a time for `sleep` that no other process of this machine sleeps for, such as another test run."""
    return f"600.{os.getpid()}{next(_sleep_numbers):04}"


def find_sleep_processes(argument: str) -> list[int]:
    """Return the processes of this machine that sleep for this time."""
    found: list[int] = []
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if Path(entry.path, "cmdline").read_bytes().split(b"\0")[:2] == [b"sleep", argument.encode()]:
                    found.append(int(entry.name))
    return found


def descendants(pid: int) -> list[int]:
    """Return all running processes below one."""
    found: list[int] = []
    left = [pid]
    while left:
        parent = left.pop()
        with contextlib.suppress(OSError):
            children = [int(each) for each in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]
            found += children
            left += children
    return found


async def until(holds: Callable[[], bool]) -> None:
    await wait_until(holds, "it holds")
