"""Finds, confines, starts and ends a headless Chromium.

With bubblewrap it has no network except a socket to our proxy, sees only system files, and its
files are deleted with it. Chromium's own sandbox works inside of that too, even for root.

Without bubblewrap only Chromium's own sandbox confines it, which is not available to root. So root
without bubblewrap has no browser.
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

from retinue.sandbox.base import Limits
from retinue.sandbox.resource_monitor import Watch
from retinue.tools.base import ToolFailed
from retinue.tools.web.browser_proxy import GuardedProxy
from retinue.tools.web.cdp import Cdp
from retinue.tools.web.url_guard import Guard

NAMES = ("chromium", "chromium-browser", "google-chrome")
START_S = 30.0
END_S = 5.0
WATCH_S = 1.0
THREADS_MAX = 2_000
SCRATCH_BYTES_MAX = 512 * 1024 * 1024
WIDTH, HEIGHT = 1280, 800
_COMPLAINT_BYTES_MAX = 500
_CHUNK_BYTES = 16 * 1024
_PORT = 3128  # on the loopback of a separate network namespace

# Some of these features send typed data to Google, such as password checks and form field descriptions.
_OFF = ",".join(
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
    f"--disable-features={_OFF}",
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
_INSIDE = """
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
def serve(listener, door):
    while True:
        here, _ = listener.accept()
        there = socket.socket(socket.AF_UNIX)
        try:
            there.connect(door)
        except OSError:
            here.close()
            continue
        for ends in ((here, there), (there, here)):
            threading.Thread(target=carry, args=ends, daemon=True).start()
door, port, *argv = sys.argv[1:]
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
threading.Thread(target=serve, args=(listener, door), daemon=True).start()
os.waitpid(child, 0)
"""
_BARE = 'exec "$@" 3<&0 4>&1 0</dev/null 1>/dev/null'


class Way(Struct, frozen=True):
    """How a browser can be started here. At least one of the two confines it."""

    bubblewrap: bool
    own_sandbox: bool


def ways(*, bubblewrap: bool, root: bool) -> tuple[Way, ...]:
    """Return the launch modes to try, best first."""
    inside = (Way(True, True), Way(True, False)) if bubblewrap else ()
    return inside if root else (*inside, Way(False, True))


def find(path: Path | None, search: str) -> str | None:
    """Return the configured program, or the first one found."""
    if path is not None:
        return shutil.which(path, path=search)
    return next(filter(None, (shutil.which(name, path=search) for name in NAMES)), None)


def find_bubblewrap(search: str) -> str | None:
    return shutil.which("bwrap", path=search)


class Chromium:
    """A running Chromium with its own proxy."""

    def __init__(self, process: asyncio.subprocess.Process, proxy: GuardedProxy, folder: Path) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self.cdp = Cdp(process.stdout, process.stdin)
        self.proxy = proxy
        self._process = process
        self._folder = folder
        self.because = ""  # why we ended it, if we did
        self._complaint = b""
        self._watching: asyncio.Task[None] | None = None
        self._hearing = asyncio.get_running_loop().create_task(self._hear(process.stderr))

    @property
    def pid(self) -> int:
        return self._process.pid

    async def close(self) -> None:
        """Kill the browser and everything it started, and delete its files."""
        await _end(self._process)
        await self.cdp.close(grace_s=END_S)  # a pipe that was read to its end closes by itself
        await asyncio.wait([self._hearing], timeout=END_S)
        tasks = [task for task in (self._hearing, self._watching) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        await self.proxy.close()
        await asyncio.to_thread(shutil.rmtree, self._folder, ignore_errors=True)

    def watch(self, memory_bytes_max: int) -> None:
        """Start the resource monitor, which kills a browser that exceeds a limit. Chromium fails
        under rlimits.
        """
        watch = Watch(self.pid, Limits(memory_bytes=memory_bytes_max, processes=THREADS_MAX))
        self._watching = asyncio.get_running_loop().create_task(self._watch(watch))

    async def _watch(self, watch: Watch) -> None:
        while self._process.returncode is None:
            await asyncio.sleep(WATCH_S)
            self.because = await asyncio.to_thread(watch.excess)
            if self.because:
                _kill(self._process)
                return

    async def complaint(self) -> str:
        """Return why it did not start."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.5):
                await self._process.wait()
        if self._process.returncode is None:
            return f"it did not answer within {START_S:g} seconds"
        last = self._complaint.decode(errors="replace").strip().rpartition("\n")[2]
        return f"it ended at once, with {self._process.returncode}{f': {last}' if last else ''}"

    async def _hear(self, errors: asyncio.StreamReader | None) -> None:
        """Read stderr, because a full pipe would block the browser, and keep the last part."""
        while errors is not None and (chunk := await errors.read(_CHUNK_BYTES)):
            self._complaint = (self._complaint + chunk)[-_COMPLAINT_BYTES_MAX:]


async def begin(
    program: str,
    guard: Callable[[], Guard],
    *,
    search: str,
    bytes_max: int,
    memory_bytes_max: int,
    spent: Callable[[], None],
    tried: Sequence[Way],
) -> tuple[Chromium, Way]:
    """Start Chromium in the first launch mode in which it answers. Raises `ToolFailed` and cleans
    up.
    """
    bubblewrap = find_bubblewrap(search) or ""
    complaint = ""
    for way in tried:
        folder = Path(await asyncio.to_thread(tempfile.mkdtemp, prefix="retinue-browser-"))
        proxy = GuardedProxy(guard, bytes_max=bytes_max, spent=spent)
        try:
            process = await _spawn(program, way, bubblewrap, folder, proxy)
        except BaseException:
            await proxy.close()
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
            raise
        chromium = Chromium(process, proxy, folder)
        try:
            async with asyncio.timeout(START_S):
                await chromium.cdp.call("Browser.getVersion")
        except (ToolFailed, TimeoutError):
            complaint = await chromium.complaint()
            await chromium.close()
        except BaseException:
            await chromium.close()
            raise
        else:
            chromium.watch(memory_bytes_max)
            return chromium, way
    raise ToolFailed(
        "the browser did not start",
        because=complaint or "it could not be confined",
        try_this="an owner can see with `retinue doctor` what is missing; web_fetch works without a browser",
        code="browser.not-started",
    )


async def _spawn(
    program: str, way: Way, bubblewrap: str, folder: Path, proxy: GuardedProxy
) -> asyncio.subprocess.Process:
    if way.bubblewrap:
        await proxy.listen(folder / "proxy")
        argv = _confined(bubblewrap, program, folder / "proxy", _flags(way, _PORT, "/tmp/profile"))
        environment: Mapping[str, str] = {}
    else:
        port = await proxy.listen_on_loopback()
        argv = ["/bin/sh", "-c", _BARE, "sh", program, *_flags(way, port, str(folder / "profile"))]
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


def _flags(way: Way, port: int, profile: str) -> list[str]:
    own = [] if way.own_sandbox else ["--no-sandbox"]
    return [*FLAGS, *own, f"--proxy-server=http://127.0.0.1:{port}", f"--user-data-dir={profile}", "--log-level=3"]


def _confined(bubblewrap: str, program: str, door: Path, flags: Sequence[str]) -> list[str]:
    """Return the bubblewrap command line: own namespaces, without our files, processes and network."""
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
    argv += ["--tmpfs", "/run", "--bind", str(door), "/run/door", "--chdir", "/tmp"]
    for name, value in {"HOME": "/tmp", "PATH": os.defpath, "LANG": "C.UTF-8"}.items():
        argv += ["--setenv", name, value]
    return [*argv, "--", python, "-I", "-S", "-c", _INSIDE, "/run/door", str(_PORT), program, *flags]


def _kill(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        # Killing the init of a pid namespace kills all its processes. Without one, they are one process group.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


async def _end(process: asyncio.subprocess.Process) -> None:
    _kill(process)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(END_S):
            await process.wait()
