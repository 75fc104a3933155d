"""Runs commands in containers: one container per scope and set of folders, kept between commands.

The mounted folders are part of a container's name, so a command never runs in one that shows more.
A label holds a hash of the other settings. If it differs, the container is created again, unless it
was used a moment ago.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import itertools
import json
import os
import re
import shutil
import tempfile
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, cast

from msgspec import Struct

from retinue.config.sandbox import DockerSettings
from retinue.domain.permission import KEYS_IN_HOME
from retinue.domain.ports import Clock
from retinue.sandbox import mounts
from retinue.sandbox.base import Confinement, Limits, Probe, SandboxFailed
from retinue.sandbox.child_process import Process, spawn

LABEL = "retinue.sandbox"
CREATED, CONFIG, SCOPE = "retinue.created-ms", "retinue.config", "retinue.scope"
IN_USE = timedelta(minutes=5)
ENGINE_WAIT_S = 60.0
SETUP_WAIT_S = 600.0
REPLY_BYTES_MAX = 1024 * 1024
CONTAINERS_MAX = 256
MARK = "RETINUE_COMMAND"
_NUMBERS = itertools.count(1)
_KILL = (
    'for e in /proc/[0-9]*/environ; do if tr "\\0" "\\n" <"$e" 2>/dev/null | grep -qx "$0"; then '
    'p=${e#/proc/}; kill -9 "${p%/environ}" 2>/dev/null; fi; done; true'
)
_CANARY = """
cat {canary} >/dev/null 2>&1 && echo read-a-file-outside
(echo x >/usr/x) 2>/dev/null && echo change-the-system
echo stands
"""


class Reply(Struct, frozen=True):
    """The exit code and output of an engine command."""

    code: int
    text: str


class Engine:
    """Runs the `docker` command, with limits on time and output."""

    def __init__(self, program: str | None = None) -> None:
        self.program = program or shutil.which("docker") or ""

    async def ask(self, *words: str, wait_s: float = ENGINE_WAIT_S) -> Reply:
        child = Process(
            spawned := spawn([self.program, *words], environment=client_environment(), folder=Path("/")),
            limits=Limits(seconds=wait_s, output_bytes=REPLY_BYTES_MAX),
            end=lambda: _kill_group(spawned.popen.pid),
        )
        child.close_input()
        said = b""
        while chunk := await child.read():
            said += chunk
        ended = await child.wait()
        return Reply(-1 if ended.code is None else ended.code, said.decode(errors="replace").strip())

    async def must(self, *words: str, wait_s: float = ENGINE_WAIT_S) -> str:
        reply = await self.ask(*words, wait_s=wait_s)
        if reply.code != 0:
            raise SandboxFailed(
                f"the engine did not {words[0]} a container", because=_last_line(reply.text), try_this=_DOCTOR
            )
        return reply.text


class Containers:
    """All containers of an instance. `folder` stores the last use of each, which no engine knows."""

    def __init__(
        self,
        settings: DockerSettings,
        *,
        folder: Path,
        clock: Clock,
        state: Sequence[Path] = (),
        homes: Sequence[Path] = (),
        user_home: Path | None = None,
        engine: Engine | None = None,
    ) -> None:
        self.settings = settings
        self.engine = engine or Engine()
        self.clock = clock
        self.state = tuple(Path(os.path.realpath(path)) for path in state)
        self.homes = tuple(Path(os.path.realpath(path)) for path in homes)
        self.user_home = user_home
        self.warnings: list[str] = []
        self._used = folder / "containers.json"
        self._probing, self._making = asyncio.Lock(), asyncio.Lock()
        self._probed: Probe | None = None
        self._ending: set[asyncio.Task[Reply]] = set()

    def for_scope(self, key: str, settings: DockerSettings | None = None) -> Container:
        """Return the sandbox of a scope, see `build_scope_key`. `settings` default to the
        instance's.
        """
        return Container(self, key, settings or self.settings)

    async def probe(self) -> Probe:
        async with self._probing:
            if self._probed is None:
                self._probed = await self._try()
            return self._probed

    async def ready(self, key: str, confinement: Confinement, settings: DockerSettings) -> str:
        """Return the name of a running container that shows exactly what the confinement names."""
        async with self._making:
            walls_of = self._walls(confinement)
            name = f"{self.settings.prefix}-{_slug(key)}-{_short_hash([key, *walls_of])}"
            options = self._options(confinement.limits, settings)
            wanted = _short_hash([*options, settings.image, settings.setup])
            found = await self._inspect(name)
            if found is not None and found.config != wanted:
                if found.running and self._is_in_use(name):
                    self._warn(f"{name} was used a moment ago, so changed settings take effect when it rests")
                else:
                    await self.engine.must("rm", "--force", name)
                    found = None
            if found is None:
                await self._create(name, key, wanted, [*options, *walls_of], settings)
            elif not found.running:
                await self.engine.must("start", name)
            self._note(name)
            return name

    async def prune(self) -> list[str]:
        """Remove containers that are idle too long or too old, and return their names.

        Use is recorded when a command starts, not while it runs.
        """
        now, used = self.clock.now(), self._uses()
        removed: list[str] = []
        listing = await self.engine.must(
            "ps", "--all", "--filter", f"label={LABEL}=1", "--format", f'{{{{.Names}}}}\t{{{{.Label "{CREATED}"}}}}'
        )
        present: set[str] = set()
        for line in listing.splitlines():
            name, _, made = line.partition("\t")
            present.add(name)
            created_ms, idle, age = self._made(made)
            created = datetime.fromtimestamp(created_ms / 1000, now.tzinfo)
            last = max(created, used.get(name, created))
            if now - last > idle or (now - created > age and now - last > IN_USE):
                await self.engine.must("rm", "--force", name)
                removed.append(name)
        self._keep({name: at for name, at in used.items() if name in present and name not in removed})
        return removed

    def _made(self, label: str) -> tuple[int, timedelta, timedelta]:
        """Parse the creation time, maximum idle time and maximum age from a label."""
        created_ms, idle_hours, age_days, *_ = (*label.split("/"), "", "")
        idle = min(self.settings.idle_hours, float(idle_hours or self.settings.idle_hours))
        age = min(self.settings.age_days, float(age_days or self.settings.age_days))
        return int(created_ms or 0), timedelta(hours=idle), timedelta(days=age)

    def end_in(self, name: str, mark: str) -> None:
        """Kill every process with this marker in a container that keeps running."""
        words = ("exec", "--user", "0", name, "/bin/sh", "-c", _KILL, mark)
        task = asyncio.get_running_loop().create_task(self.engine.ask(*words))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def settle(self) -> None:
        """Wait until all kills are done. Called before the server stops."""
        await asyncio.gather(*self._ending, return_exceptions=True)

    def checked_binds(self, confinement: Confinement) -> list[mounts.Bind]:
        """Check the folders to mount.

        An engine cannot hide a part of a mounted folder, so a folder with hidden content is
        refused.
        """
        keys = [self.user_home / name for name in KEYS_IN_HOME] if self.user_home is not None else []
        hidden = [*self.state, *(Path(os.path.realpath(key)) for key in keys)]
        binds = mounts.checked_binds(confinement, state=self.state, homes=self.homes, covered=hidden)
        for bind in binds:
            self._refuse_around(bind.path, hidden)
        return binds

    def _refuse_around(self, path: Path, hidden: Sequence[Path]) -> None:
        home = Path(os.path.realpath(self.user_home)) if self.user_home is not None else None
        if home is not None and home.is_relative_to(path):
            raise mounts.refused(str(path), "it is the owner's home, or holds it", "share a folder in it")
        if any(own != path and own.is_relative_to(path) and own.exists() for own in hidden):
            raise mounts.refused(
                str(path),
                "something in it must stay hidden, and a container shows a folder whole",
                "share a part of it",
            )

    def _walls(self, confinement: Confinement) -> list[str]:
        if confinement.network is not None:
            raise SandboxFailed(
                "the command was not begun",
                because="a container has no network here: there is no way out of it through the house's proxy",
                try_this='use `kind = "bubblewrap"` for commands that reach out',
            )
        words: list[str] = []
        for bind in sorted(self.checked_binds(confinement), key=lambda each: each.path):
            words += ["--mount", _mount(bind.path, bind.path, writable=bind.writable)]
        for text in self.settings.binds:
            words += ["--mount", self._configured(text)]
        return words

    def _configured(self, text: str) -> str:
        source, _, rest = text.partition(":")
        target, _, mode = rest.partition(":")
        if not source.startswith("/") or not target.startswith("/") or mode not in ("", "ro", "rw"):
            raise mounts.refused(text, "a bind is FROM:TO or FROM:TO:ro, both from / on", "see [sandbox.docker] binds")
        path = Path(source)
        if not path.exists():
            raise mounts.refused(source, "it is not there", "make it first, or take it out of [sandbox.docker] binds")
        mounts.check_path(path, state=self.state, homes=())
        self._refuse_around(path, self.state)
        return _mount(path, Path(target), writable=mode != "ro")

    def _options(self, limits: Limits, settings: DockerSettings) -> list[str]:
        """Return the isolation options. None of them is configurable."""
        user = f"{os.getuid()}:{os.getgid()}"  # owner of the workspace; uid 0 has no capabilities here
        scratch = f"rw,nosuid,nodev,size={limits.disk_bytes}"
        return [
            "--read-only",
            *("--tmpfs", f"/tmp:{scratch},mode=1777", "--tmpfs", f"/var/tmp:{scratch},mode=1777"),
            *("--tmpfs", "/run:rw,nosuid,nodev,noexec,size=1048576"),
            *("--network", "none", "--ipc", "private", "--hostname", "sandbox", "--init"),
            *("--cap-drop", "ALL", "--security-opt", "no-new-privileges", "--user", user),
            *("--pids-limit", str(limits.processes), "--cpus", f"{settings.cpus:g}"),
            *("--memory", str(limits.memory_bytes), "--memory-swap", str(limits.memory_bytes)),
            *("--ulimit", f"fsize={limits.file_bytes}", "--ulimit", "core=0", "--ulimit", "nofile=4096:4096"),
            *("--shm-size", str(min(limits.disk_bytes, mounts.SHM_BYTES_MAX)), "--log-driver", "none"),
            *("--restart", "no", "--pull", "never", "--stop-timeout", "1"),
        ]

    async def _create(self, name: str, key: str, config: str, options: Sequence[str], settings: DockerSettings) -> None:
        if len(self._uses()) >= CONTAINERS_MAX:
            await self.prune()
        created = int(self.clock.now().timestamp() * 1000)
        made = f"{created}/{settings.idle_hours:g}/{settings.age_days:g}"
        labels = {LABEL: "1", SCOPE: key, CREATED: made, CONFIG: config}
        told = [word for label, value in labels.items() for word in ("--label", f"{label}={value}")]
        await self.engine.must("create", "--name", name, *told, *options, settings.image, "sleep", "infinity")
        try:
            await self.engine.must("start", name)
            if settings.setup:
                await self.engine.must("exec", name, "/bin/sh", "-lc", settings.setup, wait_s=SETUP_WAIT_S)
        except SandboxFailed:
            await self.engine.ask("rm", "--force", name)
            raise

    async def _inspect(self, name: str) -> _Found | None:
        reply = await self.engine.ask("container", "inspect", "--format", "{{json .}}", name)
        if reply.code != 0:
            return None
        try:
            said = cast("dict[str, Any]", json.loads(reply.text))
            labels = cast("dict[str, str]", said["Config"]["Labels"] or {})
            return _Found(labels.get(CONFIG, ""), bool(said["State"]["Running"]))
        except (ValueError, KeyError, TypeError):
            raise SandboxFailed(
                f"the engine says nothing of {name} that we understand",
                because=_last_line(reply.text),
                try_this=_DOCTOR,
            ) from None

    async def _try(self) -> Probe:
        if not self.engine.program:
            return Probe(False, "docker is not installed", "install an engine, or use bubblewrap")
        try:
            version = await self.engine.ask("version", "--format", "{{.Server.Version}}")
            if version.code != 0:
                return Probe(False, f"no engine runs: {_last_line(version.text)}", "start it, or use bubblewrap")
            image = await self.engine.ask("image", "inspect", "--format", "{{.Id}}", self.settings.image)
            if image.code != 0:
                return Probe(
                    False, f"the image {self.settings.image} is not there", f"docker pull {self.settings.image}"
                )
            with tempfile.NamedTemporaryFile(prefix="retinue-probe-") as canary:
                script = _CANARY.format(canary=canary.name)
                tried = await self.engine.ask(
                    "run", "--rm", *self._options(Limits(), self.settings), self.settings.image, "/bin/sh", "-c", script
                )
        except (SandboxFailed, OSError) as error:
            return Probe(False, str(error), _DOCTOR)
        if tried.text.split() != ["stands"]:
            return Probe(False, f"it does not hold: {_last_line(tried.text)}", _DOCTOR)
        return Probe(True, notes=(f"docker {version.text}",))

    def _is_in_use(self, name: str) -> bool:
        used = self._uses().get(name)
        return used is not None and self.clock.now() - used <= IN_USE

    def _note(self, name: str) -> None:
        self._keep({**self._uses(), name: self.clock.now()})

    def _uses(self) -> dict[str, datetime]:
        try:
            held = cast("dict[str, str]", json.loads(self._used.read_bytes()))
            return {name: datetime.fromisoformat(at) for name, at in held.items()}
        except (OSError, ValueError, AttributeError, TypeError):
            return {}

    def _keep(self, used: dict[str, datetime]) -> None:
        self._used.parent.mkdir(parents=True, exist_ok=True)
        fresh = self._used.with_suffix(".new")
        fresh.write_text(json.dumps({name: at.isoformat() for name, at in used.items()}))
        fresh.replace(self._used)

    def _warn(self, text: str) -> None:
        self.warnings = [*self.warnings[-9:], text]


class _Found(Struct, frozen=True):
    config: str
    running: bool


class Container:
    """The sandbox of one scope."""

    name = "docker"

    def __init__(self, containers: Containers, key: str, settings: DockerSettings) -> None:
        self._containers = containers
        self._key = key
        self._settings = settings

    async def probe(self) -> Probe:
        return await self._containers.probe()

    async def start(self, argv: Sequence[str], confinement: Confinement, *, pty: bool = False) -> Process:
        probe = await self.probe()
        if not probe.works:
            raise SandboxFailed(
                "commands cannot be confined on this machine", because=probe.because, try_this=probe.try_this
            )
        if not argv or any("\0" in word for word in argv):
            raise SandboxFailed("the command was not begun", because="there is none", try_this="name a program")
        mark = f"{MARK}={os.getpid()}-{next(_NUMBERS)}"
        variables = _variables(confinement, mark)
        name = await self._containers.ready(self._key, confinement, self._settings)
        engine = self._containers.engine
        try:
            words = ["exec", "--interactive", *(["--tty"] if pty else []), "--workdir", str(confinement.folder)]
            words += ["--env-file", f"/dev/fd/{variables}", name, *argv]
            spawned = spawn(
                [engine.program, *words],
                environment=client_environment(),
                folder=Path("/"),
                pty=pty,
                pass_fds=(variables,),
            )
        finally:
            os.close(variables)

        def end() -> None:
            """Kill the client and the command. Killing the client alone does not end the command in
            the container.
            """
            _kill_group(spawned.popen.pid)
            self._containers.end_in(name, mark)

        ended = False

        def end_once() -> None:
            nonlocal ended
            if not ended:
                ended = True
                end()

        return Process(spawned, limits=confinement.limits, end=end_once, terminal=pty)


def client_environment() -> dict[str, str]:
    """Return the variables that the engine's client needs. It runs outside, so the command adds
    none.
    """
    kept = ("PATH", "HOME", "DOCKER_HOST", "DOCKER_CONTEXT", "DOCKER_CERT_PATH", "DOCKER_TLS_VERIFY", "XDG_RUNTIME_DIR")
    return {name: os.environ[name] for name in kept if name in os.environ}


def _variables(confinement: Confinement, mark: str) -> int:
    """Return a descriptor with the environment, because process lists show arguments."""
    said = mounts.environment_of(confinement)
    if any("\n" in value or "\r" in value for value in said.values()):
        raise SandboxFailed(
            "the command was not begun",
            because="a variable has several lines, which an engine cannot be told",
            try_this="put it into a file of the workspace",
            code="sandbox.environment-invalid",
        )
    lines = "".join(f"{name}={value}\n" for name, value in said.items()) + f"{mark}\n"
    descriptor = os.memfd_create("retinue", os.MFD_CLOEXEC)
    os.write(descriptor, lines.encode(errors="surrogateescape"))
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def _mount(source: Path, target: Path, *, writable: bool) -> str:
    if "," in str(source) or "," in str(target):
        raise mounts.refused(str(source), "an engine cannot be told of a folder with a comma", "name it otherwise")
    return f"type=bind,source={source},target={target}{'' if writable else ',readonly'}"


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, 9)


def _slug(key: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", key.lower()).strip("-")[:40] or "x"


def _short_hash(words: Sequence[str]) -> str:
    return hashlib.sha256("\0".join(words).encode()).hexdigest()[:16]


def _last_line(text: str) -> str:
    lines = text.splitlines()
    return lines[-1][:500] if lines else "it said nothing"


_DOCTOR = "run `retinue doctor` to see what is in the way"
