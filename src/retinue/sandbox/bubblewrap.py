"""Runs commands with bubblewrap: own namespaces that show only what the confinement names.

No restriction is dropped to make a command start. The launcher sets up the namespaces, then waits
until its resource limits are set. If anything fails, it exits before the command has run.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import resource
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from msgspec import Struct, field

from retinue.domain.permission import KEYS_IN_HOME
from retinue.sandbox import mounts, seccomp
from retinue.sandbox.base import Confinement, Ended, Limits, Network, Probe, SandboxFailed
from retinue.sandbox.cgroups import Cgroups, Group
from retinue.sandbox.child_process import Process, Spawned, spawn
from retinue.sandbox.resource_monitor import Watch

if TYPE_CHECKING:
    from retinue.sandbox.sandbox_proxy import Proxy

    MakeProxy = Callable[..., Proxy]

START_WAIT_S = 30.0
LAUNCHER_WAIT_S = 5.0
TIDY_S = 1.0
COMPLAINT_BYTES_MAX = 2000
STATUS_BYTES_MAX = 4096
PROXY_PORT = 3128
DESCRIPTORS_MAX = 4096
NOT_FOUND = 127
_INSIDE = "/etc/retinue/inside.py"
_GO = b"x"
_SETSID = "/usr/bin/setsid"
WITHOUT_FILTER = ("--disable-userns",)  # used if system calls cannot be filtered


def _proxy(network: Network) -> Proxy:
    from retinue.sandbox.sandbox_proxy import Proxy  # needed only for commands with a network

    return Proxy(network)


class _Start(Struct):
    """Resources that are open while a command starts, and closed afterwards in any case."""

    arguments: int = -1
    seccomp: int = -1
    status: int = -1
    gate: socket.socket | None = None
    door: socket.socket | None = None
    spawned: Spawned | None = None
    group: Group | None = None
    proxy: Proxy | None = None
    theirs: list[int] = field(default_factory=list[int])

    def close_theirs(self) -> None:
        for descriptor in self.theirs:
            os.close(descriptor)
        self.theirs.clear()

    def close(self) -> None:
        """Close what the child does not keep."""
        self.close_theirs()
        for end in (self.gate, self.door):
            if end is not None:
                end.close()
        self.gate = self.door = None


class Bubblewrap:
    """Runs commands with bubblewrap. `folder` holds the generated /etc that commands see.

    `private_paths` are paths that no command sees, above all the data directory. Only paths below
    one of `shareable_parents` are exempt. Keys in `user_home` are hidden in every shared folder,
    unless shared by name.
    """

    name = "bubblewrap"

    def __init__(
        self,
        *,
        folder: Path,
        state: Sequence[Path] = (),
        homes: Sequence[Path] = (),
        user_home: Path | None = None,
        program: str | None = None,
        cgroups: Cgroups | None = None,
        make_proxy: MakeProxy | None = None,
    ) -> None:
        self._folder = folder
        self._state = tuple(Path(os.path.realpath(path)) for path in state)
        self._homes = tuple(Path(os.path.realpath(path)) for path in homes)
        keys = [user_home / name for name in KEYS_IN_HOME] if user_home is not None else []
        self._covered = (*self._state, *(Path(os.path.realpath(path)) for path in keys))
        self._program = program or shutil.which("bwrap") or ""
        self._cgroups = cgroups
        self._make_proxy = make_proxy or _proxy
        self._seccomp = seccomp.program()
        self._system: list[str] = []
        self._probing = asyncio.Lock()
        self._probed: Probe | None = None

    async def probe(self) -> Probe:
        async with self._probing:
            if self._probed is None:
                self._probed = await self._try()
            return self._probed

    async def start(self, argv: Sequence[str], confinement: Confinement, *, pty: bool = False) -> Process:
        probe = self._probed or await self.probe()
        if not probe.works:
            raise SandboxFailed(
                "commands cannot be confined on this machine", because=probe.because, try_this=probe.try_this
            )
        return await self._start(argv, confinement, pty=pty)

    async def _start(self, argv: Sequence[str], confinement: Confinement, *, pty: bool) -> Process:
        if not argv or any("\0" in word for word in argv):
            raise _failed("there is no command, or it has a NUL in it", "name a program and its arguments")
        start = _Start()
        try:
            async with asyncio.timeout(START_WAIT_S):
                return await self._begin(start, argv, confinement, pty)
        except BaseException as error:
            if start.proxy is not None:
                start.proxy.close()
            if start.spawned is not None:
                start.spawned.close()
            if start.status >= 0:
                os.close(start.status)
            if start.group is not None and self._cgroups is not None:
                self._cgroups.give_back(start.group)
            if isinstance(error, TimeoutError | OSError):
                raise _failed(f"the launcher did not begin: {error or 'it took too long'}", _DOCTOR) from error
            raise
        finally:
            start.close()

    async def _begin(self, start: _Start, argv: Sequence[str], confinement: Confinement, pty: bool) -> Process:
        """Launch, set the limits while the launcher waits, release it, and confirm that it
        continued.
        """
        start.spawned = self._launch(start, argv, confinement, pty)
        start.close_theirs()
        first = await self._init_of(start)
        gone = os.pidfd_open(first)
        try:
            self._limit(start, first, confinement.limits)
            await self._let_go(start)
            if confinement.network is not None:
                await self._open_door(start, confinement)
        except BaseException:
            os.close(gone)
            raise
        return self._child(start, first, gone, confinement, pty)

    def _launch(self, start: _Start, argv: Sequence[str], confinement: Confinement, pty: bool) -> Spawned:
        networked = confinement.network is not None
        binds = mounts.checked_binds(confinement, state=self._state, homes=self._homes, covered=self._covered)
        mounts.check_beginning(confinement.folder, binds)
        proxy = f"http://127.0.0.1:{PROXY_PORT}" if networked else ""
        environment = mounts.environment_of(confinement, proxy=proxy)
        start.status, status = os.pipe()
        start.theirs.append(status)
        os.set_blocking(start.status, False)
        start.gate, gate = socket.socketpair()
        start.theirs.append(gate.detach())
        command = [_SETSID, "--ctty", *argv] if pty else [*argv]
        options = [
            *("--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup", "--unshare-net"),
            *("--uid", str(mounts.USER), "--gid", str(mounts.GROUP), "--hostname", "sandbox", "--cap-drop", "ALL"),
            *("--die-with-parent", "--clearenv", *([] if pty else ["--new-session"])),
            *("--json-status-fd", str(status), "--block-fd", str(start.theirs[1])),
            *self._system,
            *mounts.scratch_arguments(confinement.limits.disk_bytes, binds),
            *mounts.folder_arguments(binds, self._covered),
            *("--remount-ro", "/", "--chdir", str(confinement.folder)),
            *(word for name, value in environment.items() for word in ("--setenv", name, value)),
        ]
        if self._seccomp is not None:
            descriptor = _in_memory(self._seccomp)
            start.theirs.append(descriptor)
            options += ["--seccomp", str(descriptor)]
        else:
            options += WITHOUT_FILTER
        if networked:
            start.door, door = socket.socketpair()
            start.theirs.append(door.detach())
            command = [_python(), "-I", "-S", _INSIDE, str(start.theirs[-1]), str(PROXY_PORT), *command]
        # Passed by descriptor: process lists show arguments, and the environment may contain a secret.
        arguments = _in_memory(b"".join(word.encode(errors="surrogateescape") + b"\0" for word in options))
        start.theirs.append(arguments)
        # The launcher runs outside the sandbox, so it must not get the command's environment.
        return spawn(
            [self._program, "--args", str(arguments), "--", *command],
            environment={},
            folder=Path("/"),
            pty=pty,
            pass_fds=tuple(start.theirs),
        )

    async def _init_of(self, start: _Start) -> int:
        """Return the pid of the first process of the new namespace, in our pid namespace."""
        text = b""
        while b"}" not in text:
            chunk = await _read_some(start.status)
            if not chunk or len(text) > STATUS_BYTES_MAX:
                raise self._complaint(start)
            text += chunk
        said = _documents(text)
        return int(said["child-pid"])

    def _limit(self, start: _Start, first: int, limits: Limits) -> None:
        if self._cgroups is not None:
            start.group = self._cgroups.group(limits)
            start.group.add(first)
        for kind, most in (
            (resource.RLIMIT_DATA, limits.memory_bytes),
            (resource.RLIMIT_FSIZE, limits.file_bytes),
            (resource.RLIMIT_NPROC, limits.processes + 1),
            (resource.RLIMIT_NOFILE, DESCRIPTORS_MAX),
            (resource.RLIMIT_CORE, 0),
            (resource.RLIMIT_MEMLOCK, 0),
        ):
            _, hard = resource.prlimit(first, kind)
            most = most if hard == resource.RLIM_INFINITY else min(most, hard)
            resource.prlimit(first, kind, (most, most))

    async def _let_go(self, start: _Start) -> None:
        """Release the launcher and wait until it closes its end. A dead launcher would not read the
        byte.
        """
        assert start.gate is not None
        loop = asyncio.get_running_loop()
        start.gate.setblocking(False)
        try:
            await loop.sock_sendall(start.gate, _GO)
            await loop.sock_recv(start.gate, 1)
        except OSError:
            raise self._complaint(start) from None

    async def _open_door(self, start: _Start, confinement: Confinement) -> None:
        assert start.door is not None
        assert confinement.network is not None
        start.door.setblocking(False)
        await _readable(start.door.fileno())
        _, descriptors, _, _ = socket.recv_fds(start.door, 1, 1)
        if len(descriptors) != 1:
            raise self._complaint(start)
        listener = socket.socket(fileno=descriptors[0])
        listener.setblocking(False)
        start.proxy = self._make_proxy(confinement.network)
        await start.proxy.serve(listener)
        await asyncio.get_running_loop().sock_sendall(start.door, _GO)

    def _child(self, start: _Start, first: int, gone: int, confinement: Confinement, pty: bool) -> Process:
        assert start.spawned is not None
        loop = asyncio.get_running_loop()
        limits, spawned, status, group, proxy = (
            confinement.limits,
            start.spawned,
            start.status,
            start.group,
            start.proxy,
        )

        def end() -> None:
            """Kill the init of the namespace, which kills all its processes. Then the launcher
            exits.
            """
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(gone, signal.SIGKILL)
                loop.call_later(LAUNCHER_WAIT_S, spawned.popen.kill)

        def ended_as(ended: Ended) -> Ended:
            if ended.because:
                return ended
            if group is not None and group.ran_out_of_memory():
                return Ended(code=None, signal=signal.SIGKILL, because=_out_of_memory(limits))
            with contextlib.suppress(BlockingIOError):
                if "exit-code" not in _documents(os.read(status, STATUS_BYTES_MAX)):
                    return Ended(code=NOT_FOUND, because="the command was not found, or is no program")
            return ended

        def closing() -> None:
            os.close(status)
            os.close(gone)
            if proxy is not None:
                proxy.close()
            if group is not None and self._cgroups is not None:
                self._cgroups.give_back(group)
                loop.call_later(TIDY_S, self._cgroups.tidy)

        return Process(
            spawned,
            limits=limits,
            end=end,
            terminal=pty,
            last=gone,
            excess=Watch(first, limits, itself=1).excess,
            closing=closing,
            ended_as=ended_as,
        )

    def _complaint(self, start: _Start) -> SandboxFailed:
        """Return why the launcher failed, from its own output."""
        said = b""
        if start.spawned is not None:
            start.spawned.popen.kill()
            start.spawned.popen.wait()
            os.set_blocking(start.spawned.output, False)
            with contextlib.suppress(OSError):
                said = os.read(start.spawned.output, COMPLAINT_BYTES_MAX)
        words = " ".join(said.decode(errors="replace").split())
        return _failed(words or "the launcher ended before it began", _DOCTOR)

    async def _try(self) -> Probe:
        """Run a command that tries to see, reach and change what it must not."""
        if sys.platform != "linux":
            return Probe(False, "bubblewrap is for Linux", 'use docker, or `kind = "off"` knowing what it means')
        if not self._program:
            return Probe(False, "bubblewrap is not installed", "apt install bubblewrap")
        try:
            await asyncio.to_thread(self._prepare)
            with tempfile.TemporaryDirectory(prefix="retinue-probe-") as outside:
                return await self._try_walls(Path(outside).resolve())
        except (SandboxFailed, OSError) as error:
            because = error.because if isinstance(error, SandboxFailed) else str(error)
            return Probe(False, because, _DOCTOR)

    def _prepare(self) -> None:
        mounts.build_etc(self._folder / "etc", Path(__file__).with_name("sandbox_entrypoint.py"))
        if self._cgroups is None:
            found = Cgroups.here()
            self._cgroups = found if found.controllers else None
        prefix = Path(sys.base_prefix) if _python() != _SYSTEM_PYTHON else None
        self._system = mounts.system_arguments(self._folder / "etc", python_prefix=prefix)

    async def _try_walls(self, outside: Path) -> Probe:
        canary = outside / "canary"
        canary.write_text("seen")
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]
            script = _CANARY.format(canary=canary, port=port, parent=os.getpid())
            limits = Limits(seconds=START_WAIT_S)
            child = await self._start(
                ["/bin/sh", "-c", script], Confinement(folder=Path("/tmp"), limits=limits), pty=False
            )
            child.close_input()
            said = b""
            try:
                while chunk := await child.read():
                    said += chunk
                ended = await child.wait()
            except asyncio.CancelledError:  # the server is stopping during the probe
                await child.kill()
                raise
        words = said.decode(errors="replace").split()
        if ended.code != 0 or "stands" not in words:
            return Probe(False, f"a command in it ended with {ended.code}: {' '.join(words)[:500]}", _DOCTOR)
        broken = [word for word in words if word != "stands"]
        if broken:
            return Probe(False, f"it does not hold: a command in it could {', '.join(broken)}", _DOCTOR)
        return Probe(True, notes=self._notes())

    def _notes(self) -> tuple[str, ...]:
        controllers = self._cgroups.controllers if self._cgroups is not None else frozenset[str]()
        return (
            "calls of the kernel are filtered"
            if self._seccomp is not None
            else "calls of the kernel are not filtered: this processor's are not known here",
            f"the kernel limits {' and '.join(sorted(controllers))} for each command"
            if controllers
            else "memory is watched, not limited by the kernel: no control group can be made here",
        )


_SYSTEM_PYTHON = "/usr/bin/python3"
_DOCTOR = "run `retinue doctor` to see what is in the way"
# Each line prints something that should have been impossible.
_CANARY = """
cat {canary} >/dev/null 2>&1 && echo read-a-file-outside
(echo x > {canary}.new) 2>/dev/null && echo write-outside
kill -0 {parent} 2>/dev/null && echo signal-the-house
(echo x > /proc/sys/kernel/hostname) 2>/dev/null && echo change-the-kernel
(echo x > /usr/x) 2>/dev/null && echo change-the-system
grep -q '^CapEff:.*[1-9a-f]' /proc/self/status && echo keep-capabilities
grep -q '^NoNewPrivs:.*1' /proc/self/status || echo gain-privileges
[ "$(tail -n +3 /proc/net/dev | grep -vc ' *lo:')" = 0 ] || echo use-the-network
grep -qi ':'$(printf %04X {port})' .* 0A ' /proc/net/tcp && echo reach-loopback
echo stands
"""


def _python() -> str:
    return _SYSTEM_PYTHON if os.path.exists(_SYSTEM_PYTHON) else os.path.realpath(sys.executable)


def _in_memory(content: bytes) -> int:
    descriptor = os.memfd_create("retinue", os.MFD_CLOEXEC)
    os.write(descriptor, content)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


async def _readable(descriptor: int) -> None:
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    loop.add_reader(descriptor, lambda: ready.done() or ready.set_result(None))
    try:
        await ready
    finally:
        loop.remove_reader(descriptor)


async def _read_some(descriptor: int) -> bytes:
    await _readable(descriptor)
    return os.read(descriptor, STATUS_BYTES_MAX)


def _documents(text: bytes) -> dict[str, Any]:
    """Parse the launcher's status output: several JSON documents in sequence."""
    said: dict[str, Any] = {}
    decoder = json.JSONDecoder()
    rest = text.decode(errors="replace").strip()
    while rest:
        try:
            document, end = decoder.raw_decode(rest)
        except ValueError:
            break
        said |= cast("dict[str, Any]", document)
        rest = rest[end:].strip()
    return said


def _out_of_memory(limits: Limits) -> str:
    return f"it took more than {limits.memory_bytes // (1024 * 1024):,} MiB of memory"


def _failed(because: str, try_this: str) -> SandboxFailed:
    return SandboxFailed("the command was not begun", because=because, try_this=try_this)
