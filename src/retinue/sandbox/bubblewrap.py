"""Runs commands with bubblewrap, in Linux namespaces that contain only what the confinement allows.

If the namespaces or the limits cannot be set up, the command does not start. The launcher, `bwrap`,
creates the namespaces and then waits until the server has set the resource limits. If anything
fails, the launcher exits before it starts the command.
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

from retinue.domain.protected_paths import USER_KEY_PATHS
from retinue.sandbox import mounts, seccomp
from retinue.sandbox.base import CommandExit, Confinement, NetworkAccess, ResourceLimits, SandboxFailed, SandboxProbe
from retinue.sandbox.cgroups import CgroupManager, CommandCgroup
from retinue.sandbox.child_process import ChildProcess, SpawnedProcess, spawn
from retinue.sandbox.errors import CommandNotStarted, SandboxUnavailable
from retinue.sandbox.resource_monitor import ResourceMonitor

if TYPE_CHECKING:
    from retinue.sandbox.sandbox_proxy import SandboxProxy

    MakeProxy = Callable[..., SandboxProxy]

START_TIMEOUT_S = 30.0
LAUNCHER_TIMEOUT_S = 5.0
CGROUP_CLEANUP_DELAY_S = 1.0
LAUNCHER_OUTPUT_BYTES_MAX = 2000
STATUS_BYTES_MAX = 4096
PROXY_PORT = 3128
DESCRIPTORS_MAX = 4096
NOT_FOUND = 127
_ENTRYPOINT = "/etc/retinue/inside.py"
_RELEASE_BYTE = b"x"
_SETSID = "/usr/bin/setsid"
UNFILTERED_OPTIONS = ("--disable-userns",)  # used if system calls cannot be filtered


def _build_proxy(network: NetworkAccess) -> SandboxProxy:
    from retinue.sandbox.sandbox_proxy import SandboxProxy  # needed only for commands with a network

    return SandboxProxy(network)


class _Launch(Struct):
    """File descriptors, sockets and processes that are used to start one command.

    If the start fails, `BubblewrapSandbox` closes or kills all of them.
    """

    arguments: int = -1
    seccomp: int = -1
    status: int = -1
    release_socket: socket.socket | None = None
    listener_socket: socket.socket | None = None
    spawned: SpawnedProcess | None = None
    group: CommandCgroup | None = None
    proxy: SandboxProxy | None = None
    child_fds: list[int] = field(default_factory=list[int])

    def close_child_fds(self) -> None:
        for descriptor in self.child_fds:
            os.close(descriptor)
        self.child_fds.clear()

    def close(self) -> None:
        """Close the descriptors that were needed only for the start."""
        self.close_child_fds()
        for end in (self.release_socket, self.listener_socket):
            if end is not None:
                end.close()
        self.release_socket = self.listener_socket = None


class BubblewrapSandbox:
    """Runs commands with bubblewrap. `folder` contains the generated /etc that commands see.

    `private_paths`, such as the data directory, cannot be shared with a command. Only paths below
    one of `shareable_parents` are exempt. Directories with keys in `user_home`, such as `.ssh`,
    are hidden in every shared folder, unless the confinement lists them.
    """

    name = "bubblewrap"

    def __init__(
        self,
        *,
        folder: Path,
        private_paths: Sequence[Path] = (),
        shareable_parents: Sequence[Path] = (),
        user_home: Path | None = None,
        program: str | None = None,
        cgroups: CgroupManager | None = None,
        make_proxy: MakeProxy | None = None,
    ) -> None:
        self._folder = folder
        self._private_paths = tuple(Path(os.path.realpath(path)) for path in private_paths)
        self._shareable_parents = tuple(Path(os.path.realpath(path)) for path in shareable_parents)
        keys = [user_home / name for name in USER_KEY_PATHS] if user_home is not None else []
        self._hidden_paths = (*self._private_paths, *(Path(os.path.realpath(path)) for path in keys))
        self._program = program or shutil.which("bwrap") or ""
        self._cgroups = cgroups
        self._make_proxy = make_proxy or _build_proxy
        self._seccomp = seccomp.build_filter()
        self._system_arguments: list[str] = []
        self._probe_lock = asyncio.Lock()
        self._probe_result: SandboxProbe | None = None

    async def probe(self) -> SandboxProbe:
        async with self._probe_lock:
            if self._probe_result is None:
                self._probe_result = await self._run_probe()
            return self._probe_result

    async def start(self, argv: Sequence[str], confinement: Confinement, *, pty: bool = False) -> ChildProcess:
        probe = self._probe_result or await self.probe()
        if not probe.works:
            raise SandboxUnavailable(because=probe.because, try_this=probe.try_this)
        return await self._start(argv, confinement, pty=pty)

    async def _start(self, argv: Sequence[str], confinement: Confinement, *, pty: bool) -> ChildProcess:
        if not argv or any("\0" in word for word in argv):
            raise CommandNotStarted(
                because="the command is empty or contains NUL", try_this="pass a program and its arguments"
            )
        start = _Launch()
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                return await self._launch_and_release(start, argv, confinement, pty)
        except BaseException as error:
            if start.proxy is not None:
                start.proxy.close()
            if start.spawned is not None:
                start.spawned.close()
            if start.status >= 0:
                os.close(start.status)
            if start.group is not None and self._cgroups is not None:
                self._cgroups.release(start.group)
            if isinstance(error, TimeoutError | OSError):
                raise CommandNotStarted(
                    because=f"the launcher did not start: {error or 'it timed out'}", try_this=_TRY_DOCTOR
                ) from error
            raise
        finally:
            start.close()

    async def _launch_and_release(
        self, launch: _Launch, argv: Sequence[str], confinement: Confinement, pty: bool
    ) -> ChildProcess:
        """Start the launcher, set the command's limits while the launcher waits, and let it start the command.

        For a command with a network, also start the command's proxy.
        """
        launch.spawned = self._spawn_launcher(launch, argv, confinement, pty)
        launch.close_child_fds()
        first = await self._read_init_pid(launch)
        gone = os.pidfd_open(first)
        try:
            self._apply_limits(launch, first, confinement.limits)
            await self._release(launch)
            if confinement.network is not None:
                await self._start_proxy(launch, confinement)
        except BaseException:
            os.close(gone)
            raise
        return self._build_process(launch, first, gone, confinement, pty)

    def _spawn_launcher(
        self, launch: _Launch, argv: Sequence[str], confinement: Confinement, pty: bool
    ) -> SpawnedProcess:
        networked = confinement.network is not None
        binds = mounts.build_binds(
            confinement,
            private_paths=self._private_paths,
            shareable_parents=self._shareable_parents,
            hidden=self._hidden_paths,
        )
        mounts.check_working_directory(confinement.folder, binds)
        proxy = f"http://127.0.0.1:{PROXY_PORT}" if networked else ""
        environment = mounts.build_command_environment(confinement, proxy=proxy)
        launch.status, status = os.pipe()
        launch.child_fds.append(status)
        os.set_blocking(launch.status, False)
        launch.release_socket, gate = socket.socketpair()
        launch.child_fds.append(gate.detach())
        command = [_SETSID, "--ctty", *argv] if pty else [*argv]
        options = [
            *("--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup", "--unshare-net"),
            *(
                "--uid",
                str(mounts.USER_ID),
                "--gid",
                str(mounts.GROUP_ID),
                "--hostname",
                "sandbox",
                "--cap-drop",
                "ALL",
            ),
            *("--die-with-parent", "--clearenv", *([] if pty else ["--new-session"])),
            *("--json-status-fd", str(status), "--block-fd", str(launch.child_fds[1])),
            *self._system_arguments,
            *mounts.build_scratch_arguments(confinement.limits.disk_bytes, binds),
            *mounts.build_folder_arguments(binds, self._hidden_paths),
            *("--remount-ro", "/", "--chdir", str(confinement.folder)),
            *(word for name, value in environment.items() for word in ("--setenv", name, value)),
        ]
        if self._seccomp is not None:
            descriptor = _create_memfd(self._seccomp)
            launch.child_fds.append(descriptor)
            options += ["--seccomp", str(descriptor)]
        else:
            options += UNFILTERED_OPTIONS
        if networked:
            launch.listener_socket, child_socket = socket.socketpair()
            launch.child_fds.append(child_socket.detach())
            command = [_find_python(), "-I", "-S", _ENTRYPOINT, str(launch.child_fds[-1]), str(PROXY_PORT), *command]
        # Passed by descriptor: process lists show arguments, and the environment may contain a secret.
        arguments = _create_memfd(b"".join(word.encode(errors="surrogateescape") + b"\0" for word in options))
        launch.child_fds.append(arguments)
        # The launcher runs outside the sandbox, so it must not get the command's environment.
        return spawn(
            [self._program, "--args", str(arguments), "--", *command],
            environment={},
            folder=Path("/"),
            pty=pty,
            pass_fds=tuple(launch.child_fds),
        )

    async def _read_init_pid(self, launch: _Launch) -> int:
        """Wait until the launcher reports the first process of the new namespace, and return its pid on the host."""
        text = b""
        while b"}" not in text:
            chunk = await _read_some(launch.status)
            if not chunk or len(text) > STATUS_BYTES_MAX:
                raise self._build_launch_error(launch)
            text += chunk
        status = _parse_status(text)
        return int(status["child-pid"])

    def _apply_limits(self, launch: _Launch, init_pid: int, limits: ResourceLimits) -> None:
        if self._cgroups is not None:
            launch.group = self._cgroups.create_group(limits)
            launch.group.add(init_pid)
        for kind, most in (
            (resource.RLIMIT_DATA, limits.memory_bytes),
            (resource.RLIMIT_FSIZE, limits.file_bytes),
            (resource.RLIMIT_NPROC, limits.processes + 1),
            (resource.RLIMIT_NOFILE, DESCRIPTORS_MAX),
            (resource.RLIMIT_CORE, 0),
            (resource.RLIMIT_MEMLOCK, 0),
        ):
            _, hard = resource.prlimit(init_pid, kind)
            most = most if hard == resource.RLIM_INFINITY else min(most, hard)
            resource.prlimit(init_pid, kind, (most, most))

    async def _release(self, launch: _Launch) -> None:
        """Let the launcher continue, and wait until it closes its end of the socket.

        Raises `SandboxFailed` if the socket fails, because then the launcher has died.
        """
        assert launch.release_socket is not None
        loop = asyncio.get_running_loop()
        launch.release_socket.setblocking(False)
        try:
            await loop.sock_sendall(launch.release_socket, _RELEASE_BYTE)
            await loop.sock_recv(launch.release_socket, 1)
        except OSError:
            raise self._build_launch_error(launch) from None

    async def _start_proxy(self, launch: _Launch, confinement: Confinement) -> None:
        assert launch.listener_socket is not None
        assert confinement.network is not None
        launch.listener_socket.setblocking(False)
        await _wait_readable(launch.listener_socket.fileno())
        _, descriptors, _, _ = socket.recv_fds(launch.listener_socket, 1, 1)
        if len(descriptors) != 1:
            raise self._build_launch_error(launch)
        listener = socket.socket(fileno=descriptors[0])
        listener.setblocking(False)
        launch.proxy = self._make_proxy(confinement.network)
        await launch.proxy.serve(listener)
        await asyncio.get_running_loop().sock_sendall(launch.listener_socket, _RELEASE_BYTE)

    def _build_process(
        self, launch: _Launch, init_pid: int, init_pidfd: int, confinement: Confinement, pty: bool
    ) -> ChildProcess:
        assert launch.spawned is not None
        loop = asyncio.get_running_loop()
        limits, spawned, status, group, proxy = (
            confinement.limits,
            launch.spawned,
            launch.status,
            launch.group,
            launch.proxy,
        )

        def end() -> None:
            """Kill the namespace's init process. The kernel then kills all its processes, and the launcher exits."""
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(init_pidfd, signal.SIGKILL)
                loop.call_later(LAUNCHER_TIMEOUT_S, spawned.popen.kill)

        def ended_as(ended: CommandExit) -> CommandExit:
            if ended.because:
                return ended
            if group is not None and group.ran_out_of_memory():
                return CommandExit(code=None, signal=signal.SIGKILL, because=_describe_out_of_memory(limits))
            with contextlib.suppress(BlockingIOError):
                if "exit-code" not in _parse_status(os.read(status, STATUS_BYTES_MAX)):
                    return CommandExit(code=NOT_FOUND, because="the command was not found, or is not a program")
            return ended

        def closing() -> None:
            os.close(status)
            os.close(init_pidfd)
            if proxy is not None:
                proxy.close()
            if group is not None and self._cgroups is not None:
                self._cgroups.release(group)
                loop.call_later(CGROUP_CLEANUP_DELAY_S, self._cgroups.remove_released)

        return ChildProcess(
            spawned,
            limits=limits,
            kill_all=end,
            has_terminal=pty,
            last_pidfd=init_pidfd,
            find_excess=ResourceMonitor(init_pid, limits, launcher_processes=1).find_excess,
            on_close=closing,
            interpret_exit=ended_as,
        )

    def _build_launch_error(self, launch: _Launch) -> SandboxFailed:
        """Return an error with the reason that the launcher printed."""
        output = b""
        if launch.spawned is not None:
            launch.spawned.popen.kill()
            launch.spawned.popen.wait()
            os.set_blocking(launch.spawned.output, False)
            with contextlib.suppress(OSError):
                output = os.read(launch.spawned.output, LAUNCHER_OUTPUT_BYTES_MAX)
        words = " ".join(output.decode(errors="replace").split())
        return CommandNotStarted(
            because=words or "the launcher ended before it started the command", try_this=_TRY_DOCTOR
        )

    async def _run_probe(self) -> SandboxProbe:
        """Test the sandbox with a command that tries to break out, for example by reading a file of the host."""
        if sys.platform != "linux":
            return SandboxProbe(
                False,
                "bubblewrap works on Linux only",
                'use docker, or set `kind = "off"` to run commands without a sandbox',
            )
        if not self._program:
            return SandboxProbe(False, "bubblewrap is not installed", "apt install bubblewrap")
        try:
            await asyncio.to_thread(self._prepare)
            with tempfile.TemporaryDirectory(prefix="retinue-probe-") as outside:
                return await self._probe_isolation(Path(outside).resolve())
        except (SandboxFailed, OSError) as error:
            because = error.because if isinstance(error, SandboxFailed) else str(error)
            return SandboxProbe(False, because, _TRY_DOCTOR)

    def _prepare(self) -> None:
        mounts.build_etc(self._folder / "etc", Path(__file__).with_name("sandbox_entrypoint.py"))
        if self._cgroups is None:
            found = CgroupManager.detect()
            self._cgroups = found if found.controllers else None
        prefix = Path(sys.base_prefix) if _find_python() != _SYSTEM_PYTHON else None
        self._system_arguments = mounts.build_system_arguments(self._folder / "etc", python_prefix=prefix)

    async def _probe_isolation(self, outside: Path) -> SandboxProbe:
        canary = outside / "canary"
        canary.write_text("seen")
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]
            script = _PROBE_SCRIPT.format(canary=canary, port=port, parent=os.getpid())
            limits = ResourceLimits(seconds=START_TIMEOUT_S)
            child = await self._start(
                ["/bin/sh", "-c", script], Confinement(folder=Path("/tmp"), limits=limits), pty=False
            )
            child.close_input()
            output = b""
            try:
                while chunk := await child.read():
                    output += chunk
                ended = await child.wait()
            except asyncio.CancelledError:  # the server is stopping during the probe
                await child.kill()
                raise
        words = output.decode(errors="replace").split()
        if ended.code != 0 or "stands" not in words:
            return SandboxProbe(
                False, f"a test command in it ended with {ended.code}: {' '.join(words)[:500]}", _TRY_DOCTOR
            )
        broken = [word for word in words if word != "stands"]
        if broken:
            return SandboxProbe(
                False, f"it does not isolate: a test command in it could {', '.join(broken)}", _TRY_DOCTOR
            )
        return SandboxProbe(True, notes=self._build_probe_notes())

    def _build_probe_notes(self) -> tuple[str, ...]:
        controllers = self._cgroups.controllers if self._cgroups is not None else frozenset[str]()
        return (
            "system calls are filtered"
            if self._seccomp is not None
            else "system calls are not filtered: this processor is not supported",
            f"the kernel limits {' and '.join(sorted(controllers))} of each command"
            if controllers
            else "memory is monitored, not limited by the kernel: control groups are not available",
        )


_SYSTEM_PYTHON = "/usr/bin/python3"
_TRY_DOCTOR = "find the cause: retinue doctor"
# Each line prints something that should have been impossible.
_PROBE_SCRIPT = """
cat {canary} >/dev/null 2>&1 && echo read-a-file-outside
(echo x > {canary}.new) 2>/dev/null && echo write-outside
kill -0 {parent} 2>/dev/null && echo signal-the-server
(echo x > /proc/sys/kernel/hostname) 2>/dev/null && echo change-the-kernel
(echo x > /usr/x) 2>/dev/null && echo change-the-system
grep -q '^CapEff:.*[1-9a-f]' /proc/self/status && echo keep-capabilities
grep -q '^NoNewPrivs:.*1' /proc/self/status || echo gain-privileges
[ "$(tail -n +3 /proc/net/dev | grep -vc ' *lo:')" = 0 ] || echo use-the-network
grep -qi ':'$(printf %04X {port})' .* 0A ' /proc/net/tcp && echo reach-loopback
echo stands
"""


def _find_python() -> str:
    return _SYSTEM_PYTHON if os.path.exists(_SYSTEM_PYTHON) else os.path.realpath(sys.executable)


def _create_memfd(content: bytes) -> int:
    descriptor = os.memfd_create("retinue", os.MFD_CLOEXEC)
    os.write(descriptor, content)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


async def _wait_readable(descriptor: int) -> None:
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    loop.add_reader(descriptor, lambda: ready.done() or ready.set_result(None))
    try:
        await ready
    finally:
        loop.remove_reader(descriptor)


async def _read_some(descriptor: int) -> bytes:
    await _wait_readable(descriptor)
    return os.read(descriptor, STATUS_BYTES_MAX)


def _parse_status(text: bytes) -> dict[str, Any]:
    """Parse the launcher's status output, a sequence of JSON documents, into one dictionary."""
    status: dict[str, Any] = {}
    decoder = json.JSONDecoder()
    rest = text.decode(errors="replace").strip()
    while rest:
        try:
            document, end = decoder.raw_decode(rest)
        except ValueError:
            break
        status |= cast("dict[str, Any]", document)
        rest = rest[end:].strip()
    return status


def _describe_out_of_memory(limits: ResourceLimits) -> str:
    return f"it used more than {limits.memory_bytes // (1024 * 1024):,} MiB of memory"
