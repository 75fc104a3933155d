"""Finds, confines, starts and ends a headless Chromium.

With bubblewrap, Chromium has no network except a socket to the proxy, sees only system files, and
its own files are deleted when it ends. Inside bubblewrap, Chromium's own sandbox works too, even
for root.

Without bubblewrap, only Chromium's own sandbox confines it, and that sandbox does not work for
root. So a server that runs as root has no browser without bubblewrap.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from retinue.sandbox.base import ResourceLimits
from retinue.sandbox.resource_monitor import ResourceMonitor
from retinue.tools.base import ToolFailed
from retinue.tools.web.browser_proxy import BrowserProxy
from retinue.tools.web.cdp import CdpClient
from retinue.tools.web.errors import BrowserNotStarted
from retinue.tools.web.url_guard import UrlGuard

PROGRAM_NAMES = ("chromium", "chromium-browser", "google-chrome")
START_TIMEOUT_S = 30.0
EXIT_TIMEOUT_S = 5.0
MONITOR_INTERVAL_S = 1.0
THREADS_MAX = 2_000
SCRATCH_BYTES_MAX = 512 * 1024 * 1024
WIDTH, HEIGHT = 1280, 800
_STDERR_BYTES_MAX = 500
_CHUNK_BYTES = 16 * 1024
_PROXY_PORT = 3128  # on the loopback of a separate network namespace

# Some of these features send typed data to Google, such as password checks and form field descriptions.
_DISABLED_FEATURES = ",".join(
    (
        "AutofillServerCommunication",
        "BackForwardCache",
        "CertificateTransparencyComponentUpdater",
        "DialMediaRouteProvider",
        "HttpsUpgrades",
        "InterestFeedContentSuggestions",
        "MediaRouter",
        "NetworkTimeServiceQuerying",
        "OptimizationHints",
        "PasswordLeakDetection",
        "Prerender2",
        "Translate",
    )
)
FLAGS = (
    "--headless",
    "--remote-debugging-pipe",
    "--no-startup-window",
    "--no-first-run",
    "--no-default-browser-check",
    "--no-pings",
    "--disable-gpu",
    "--disable-back-forward-cache",
    "--disable-quic",
    "--disable-sync",
    "--disable-breakpad",
    "--disable-extensions",
    "--disable-default-apps",
    "--disable-dev-shm-usage",
    "--disable-component-update",
    "--disable-background-networking",
    "--disable-domain-reliability",
    "--disable-client-side-phishing-detection",
    "--disable-component-extensions-with-background-pages",
    f"--disable-features={_DISABLED_FEATURES}",
    "--deny-permission-prompts",
    "--metrics-recording-only",
    "--password-store=basic",
    "--mute-audio",
    "--renderer-process-limit=4",
    "--js-flags=--max-old-space-size=512",
    "--force-webrtc-ip-handling-policy=disable_non_proxied_udp",
    "--proxy-bypass-list=<-loopback>",  # loopback also goes through the proxy, which refuses it
    "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",  # only the proxy resolves names
    f"--window-size={WIDTH},{HEIGHT}",
)

# Runs inside the sandbox: connects Chromium to its two pipes, and forwards its loopback port to our proxy.
_ENTRYPOINT_SCRIPT = """
import os, socket, sys, threading
def carry(a, b):
    try:
        while data := a.recv(65536):
            b.sendall(data)
    except OSError:
        pass
    try:
        b.shutdown(socket.SHUT_WR)
    except OSError:
        pass
def serve(listener, proxy):
    while True:
        here, _ = listener.accept()
        there = socket.socket(socket.AF_UNIX)
        try:
            there.connect(proxy)
        except OSError:
            here.close()
            continue
        for ends in ((here, there), (there, here)):
            threading.Thread(target=carry, args=ends, daemon=True).start()
proxy, port, *argv = sys.argv[1:]
listener = socket.create_server(("127.0.0.1", int(port)), backlog=128)
child = os.fork()
if not child:
    os.dup2(0, 3)
    os.dup2(1, 4)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    os.execv(argv[0], argv)
os.close(0)
os.close(1)
threading.Thread(target=serve, args=(listener, proxy), daemon=True).start()
os.waitpid(child, 0)
"""
_SHELL_SCRIPT = 'exec "$@" 3<&0 4>&1 0</dev/null 1>/dev/null'


class LaunchMode(Struct, frozen=True):
    """A way to start a browser on this machine, confined by bubblewrap, by Chromium's own sandbox, or by both."""

    bubblewrap: bool
    chromium_sandbox: bool


def list_launch_modes(*, bubblewrap: bool, is_root: bool) -> tuple[LaunchMode, ...]:
    """Return the launch modes to try, best first."""
    inside = (LaunchMode(True, True), LaunchMode(True, False)) if bubblewrap else ()
    return inside if is_root else (*inside, LaunchMode(False, True))


def find_chromium(path: Path | None, search_path: str) -> str | None:
    """Return the path of Chromium: the configured program, or the first one found."""
    if path is not None:
        return shutil.which(path, path=search_path)
    return next(filter(None, (shutil.which(name, path=search_path) for name in PROGRAM_NAMES)), None)


def find_bubblewrap(search_path: str) -> str | None:
    return shutil.which("bwrap", path=search_path)


class ChromiumProcess:
    """A running Chromium with its own proxy."""

    def __init__(self, process: asyncio.subprocess.Process, proxy: BrowserProxy, folder: Path) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self.cdp = CdpClient(process.stdout, process.stdin)
        self.proxy = proxy
        self._process = process
        self._folder = folder
        self.end_reason = ""  # why the server killed it, if it did
        self._stderr_tail = b""
        self._monitor_task: asyncio.Task[None] | None = None
        self._stderr_task = asyncio.get_running_loop().create_task(self._read_stderr(process.stderr))

    @property
    def pid(self) -> int:
        return self._process.pid

    async def close(self) -> None:
        """Kill the browser and everything it started, and delete its files."""
        await _kill_and_wait(self._process)
        await self.cdp.close(grace_s=EXIT_TIMEOUT_S)  # a pipe that was read to its end closes by itself
        await asyncio.wait([self._stderr_task], timeout=EXIT_TIMEOUT_S)
        tasks = [task for task in (self._stderr_task, self._monitor_task) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        await self.proxy.close()
        await asyncio.to_thread(shutil.rmtree, self._folder, ignore_errors=True)

    def start_monitor(self, memory_bytes_max: int) -> None:
        """Start the resource monitor, which kills a browser that exceeds a limit.

        Limits of the kernel (rlimits) are not used, because Chromium fails under them.
        """
        watch = ResourceMonitor(self.pid, ResourceLimits(memory_bytes=memory_bytes_max, processes=THREADS_MAX))
        self._monitor_task = asyncio.get_running_loop().create_task(self._monitor(watch))

    async def _monitor(self, monitor: ResourceMonitor) -> None:
        while self._process.returncode is None:
            await asyncio.sleep(MONITOR_INTERVAL_S)
            self.end_reason = await asyncio.to_thread(monitor.find_excess)
            if self.end_reason:
                _kill(self._process)
                return

    async def describe_start_failure(self) -> str:
        """Return why the browser did not start."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.5):
                await self._process.wait()
        if self._process.returncode is None:
            return f"it did not answer within {START_TIMEOUT_S:g} seconds"
        last = self._stderr_tail.decode(errors="replace").strip().rpartition("\n")[2]
        return f"it exited at once with status {self._process.returncode}{f': {last}' if last else ''}"

    async def _read_stderr(self, errors: asyncio.StreamReader | None) -> None:
        """Read the browser's stderr, and keep the last part. A full pipe would block the browser."""
        while errors is not None and (chunk := await errors.read(_CHUNK_BYTES)):
            self._stderr_tail = (self._stderr_tail + chunk)[-_STDERR_BYTES_MAX:]


async def start_chromium(
    program: str,
    guard: Callable[[], UrlGuard],
    *,
    search_path: str,
    bytes_max: int,
    memory_bytes_max: int,
    on_limit: Callable[[], None],
    modes: Sequence[LaunchMode],
) -> tuple[ChromiumProcess, LaunchMode]:
    """Start Chromium in the first launch mode in which it answers. If none works, clean up and raise `ToolFailed`."""
    bubblewrap = find_bubblewrap(search_path) or ""
    complaint = ""
    for way in modes:
        folder = Path(await asyncio.to_thread(tempfile.mkdtemp, prefix="retinue-browser-"))
        proxy = BrowserProxy(guard, bytes_max=bytes_max, on_limit=on_limit)
        try:
            process = await _spawn(program, way, bubblewrap, folder, proxy)
        except BaseException:
            await proxy.close()
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
            raise
        chromium = ChromiumProcess(process, proxy, folder)
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                await chromium.cdp.call("Browser.getVersion")
        except (ToolFailed, TimeoutError):
            complaint = await chromium.describe_start_failure()
            await chromium.close()
        except BaseException:
            await chromium.close()
            raise
        else:
            chromium.start_monitor(memory_bytes_max)
            return chromium, way
    raise BrowserNotStarted(because=complaint)


async def _spawn(
    program: str, mode: LaunchMode, bubblewrap: str, folder: Path, proxy: BrowserProxy
) -> asyncio.subprocess.Process:
    if mode.bubblewrap:
        await proxy.listen(folder / "proxy")
        argv = _build_bubblewrap_argv(
            bubblewrap, program, folder / "proxy", _build_flags(mode, _PROXY_PORT, "/tmp/profile")
        )
        environment: Mapping[str, str] = {}
    else:
        port = await proxy.listen_on_loopback()
        argv = ["/bin/sh", "-c", _SHELL_SCRIPT, "sh", program, *_build_flags(mode, port, str(folder / "profile"))]
        environment = {"HOME": str(folder), "PATH": os.defpath, "LANG": "C.UTF-8"}
    return await asyncio.create_subprocess_exec(
        *argv,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=environment,
        cwd=folder,
        start_new_session=True,
    )


def _build_flags(mode: LaunchMode, port: int, profile: str) -> list[str]:
    own = [] if mode.chromium_sandbox else ["--no-sandbox"]
    return [*FLAGS, *own, f"--proxy-server=http://127.0.0.1:{port}", f"--user-data-dir={profile}", "--log-level=3"]


def _build_bubblewrap_argv(bubblewrap: str, program: str, proxy_socket: Path, flags: Sequence[str]) -> list[str]:
    """Return the bubblewrap command line: separate namespaces, without the server's files, processes and network."""
    python = os.path.realpath(sys.executable)
    shown = [
        "/usr",
        "/etc/fonts",
        "/etc/alternatives",
        "/etc/ld.so.cache",
        "/etc/chromium.d",
        "/etc/ssl",
        "/opt/google",
    ]
    argv = [bubblewrap, "--unshare-all", "--unshare-user", "--uid", "1000", "--gid", "1000"]
    argv += ["--die-with-parent", "--new-session", "--clearenv", "--cap-drop", "ALL"]
    for path in [*shown, sys.base_prefix, python, program]:
        argv += ["--ro-bind-try", path, path]
    for name in ("bin", "sbin", "lib", "lib64", "lib32"):
        if os.path.islink(f"/{name}"):
            argv += ["--symlink", os.readlink(f"/{name}"), f"/{name}"]
        else:
            argv += ["--ro-bind-try", f"/{name}", f"/{name}"]
    argv += ["--proc", "/proc", "--dev", "/dev", "--size", str(SCRATCH_BYTES_MAX), "--tmpfs", "/tmp"]
    argv += ["--tmpfs", "/run", "--bind", str(proxy_socket), "/run/proxy", "--chdir", "/tmp"]
    for name, value in {"HOME": "/tmp", "PATH": os.defpath, "LANG": "C.UTF-8"}.items():
        argv += ["--setenv", name, value]
    return [*argv, "--", python, "-I", "-S", "-c", _ENTRYPOINT_SCRIPT, "/run/proxy", str(_PROXY_PORT), program, *flags]


def _kill(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        # Killing the init of a pid namespace kills all its processes. Without one, they are one process group.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


async def _kill_and_wait(process: asyncio.subprocess.Process) -> None:
    _kill(process)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(EXIT_TIMEOUT_S):
            await process.wait()
