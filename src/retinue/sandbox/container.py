"""Runs commands in docker containers. Commands with the same scope and the same folders share a container.

A container's name contains a hash of its mounted folders, so a command never runs in a container
with other folders. A label contains a hash of the other settings. If the settings have changed, the
container is created again, unless it was used in the last five minutes.
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
from retinue.domain.ports import Clock
from retinue.domain.protected_paths import USER_KEY_PATHS
from retinue.sandbox import mounts
from retinue.sandbox.base import Confinement, ResourceLimits, SandboxFailed, SandboxProbe
from retinue.sandbox.child_process import ChildProcess, spawn
from retinue.sandbox.errors import (
    CommandNotStarted,
    ContainerEngineFailed,
    ContainerReplyInvalid,
    ContainerVariableMultiline,
    SandboxPathRefused,
    SandboxUnavailable,
)

LABEL = "retinue.sandbox"
CREATED_LABEL, CONFIG_LABEL, SCOPE_LABEL = "retinue.created-ms", "retinue.config", "retinue.scope"
IN_USE_PERIOD = timedelta(minutes=5)
ENGINE_TIMEOUT_S = 60.0
SETUP_TIMEOUT_S = 600.0
REPLY_BYTES_MAX = 1024 * 1024
CONTAINERS_MAX = 256
MARKER_VARIABLE = "RETINUE_COMMAND"
_NUMBERS = itertools.count(1)
_KILL_SCRIPT = (
    'for e in /proc/[0-9]*/environ; do if tr "\\0" "\\n" <"$e" 2>/dev/null | grep -qx "$0"; then '
    'p=${e#/proc/}; kill -9 "${p%/environ}" 2>/dev/null; fi; done; true'
)
_PROBE_SCRIPT = """
cat {canary} >/dev/null 2>&1 && echo read-a-file-outside
(echo x >/usr/x) 2>/dev/null && echo change-the-system
echo stands
"""


class EngineReply(Struct, frozen=True):
    """The exit code and output of a `docker` command."""

    code: int
    text: str


class ContainerEngine:
    """Runs the `docker` command, with limits on time and output."""

    def __init__(self, program: str | None = None) -> None:
        self.program = program or shutil.which("docker") or ""

    async def run(self, *arguments: str, timeout_s: float = ENGINE_TIMEOUT_S) -> EngineReply:
        child = ChildProcess(
            spawned := spawn([self.program, *arguments], environment=build_client_environment(), folder=Path("/")),
            limits=ResourceLimits(seconds=timeout_s, output_bytes=REPLY_BYTES_MAX),
            kill_all=lambda: _kill_group(spawned.popen.pid),
        )
        child.close_input()
        output = b""
        while chunk := await child.read():
            output += chunk
        ended = await child.wait()
        return EngineReply(-1 if ended.code is None else ended.code, output.decode(errors="replace").strip())

    async def run_checked(self, *arguments: str, timeout_s: float = ENGINE_TIMEOUT_S) -> str:
        reply = await self.run(*arguments, timeout_s=timeout_s)
        if reply.code != 0:
            raise ContainerEngineFailed(arguments[0], because=_last_line(reply.text))
        return reply.text


class ContainerPool:
    """Manages all containers of an instance.

    The last use of each container is recorded in a file in `folder`, because docker does not record
    it.
    """

    def __init__(
        self,
        settings: DockerSettings,
        *,
        folder: Path,
        clock: Clock,
        private_paths: Sequence[Path] = (),
        shareable_parents: Sequence[Path] = (),
        user_home: Path | None = None,
        engine: ContainerEngine | None = None,
    ) -> None:
        self.settings = settings
        self.engine = engine or ContainerEngine()
        self.clock = clock
        self.private_paths = tuple(Path(os.path.realpath(path)) for path in private_paths)
        self.shareable_parents = tuple(Path(os.path.realpath(path)) for path in shareable_parents)
        self.user_home = user_home
        self.warnings: list[str] = []
        self._uses_file = folder / "containers.json"
        self._probing, self._making = asyncio.Lock(), asyncio.Lock()
        self._probe_result: SandboxProbe | None = None
        self._kill_tasks: set[asyncio.Task[EngineReply]] = set()

    def for_scope(self, key: str, settings: DockerSettings | None = None) -> ContainerSandbox:
        """Return the sandbox of a scope (see `build_scope_key`). By default it uses the settings of the instance."""
        return ContainerSandbox(self, key, settings or self.settings)

    async def probe(self) -> SandboxProbe:
        async with self._probing:
            if self._probe_result is None:
                self._probe_result = await self._run_probe()
            return self._probe_result

    async def ensure_container(self, key: str, confinement: Confinement, settings: DockerSettings) -> str:
        """Return the name of a running container with exactly the folders of the confinement.

        If there is none, create or start one.
        """
        async with self._making:
            walls_of = self._build_mount_arguments(confinement)
            name = f"{self.settings.prefix}-{_slug(key)}-{_short_hash([key, *walls_of])}"
            options = self._build_options(confinement.limits, settings)
            wanted = _short_hash([*options, settings.image, settings.setup])
            found = await self._inspect(name)
            if found is not None and found.config != wanted:
                if found.is_running and self._is_in_use(name):
                    self._warn(f"{name} was used recently, so changed settings take effect when it is idle")
                else:
                    await self.engine.run_checked("rm", "--force", name)
                    found = None
            if found is None:
                await self._create(name, key, wanted, [*options, *walls_of], settings)
            elif not found.is_running:
                await self.engine.run_checked("start", name)
            self._record_use(name)
            return name

    async def prune(self) -> list[str]:
        """Remove containers that were unused for too long or are too old, and return their names.

        The use of a container is recorded when a command starts in it, not while the command runs.
        """
        now, used = self.clock.now(), self._read_uses()
        removed: list[str] = []
        listing = await self.engine.run_checked(
            "ps",
            "--all",
            "--filter",
            f"label={LABEL}=1",
            "--format",
            f'{{{{.Names}}}}\t{{{{.Label "{CREATED_LABEL}"}}}}',
        )
        present: set[str] = set()
        for line in listing.splitlines():
            name, _, made = line.partition("\t")
            present.add(name)
            created_ms, idle, age = self._parse_created_label(made)
            created = datetime.fromtimestamp(created_ms / 1000, now.tzinfo)
            last = max(created, used.get(name, created))
            if now - last > idle or (now - created > age and now - last > IN_USE_PERIOD):
                await self.engine.run_checked("rm", "--force", name)
                removed.append(name)
        self._write_uses({name: at for name, at in used.items() if name in present and name not in removed})
        return removed

    def _parse_created_label(self, label: str) -> tuple[int, timedelta, timedelta]:
        """Parse the creation time, maximum idle time and maximum age from a label."""
        created_ms, idle_hours, age_days, *_ = (*label.split("/"), "", "")
        idle = min(self.settings.idle_hours, float(idle_hours or self.settings.idle_hours))
        age = min(self.settings.age_days, float(age_days or self.settings.age_days))
        return int(created_ms or 0), timedelta(hours=idle), timedelta(days=age)

    def kill_marked(self, name: str, marker: str) -> None:
        """Kill every process of one command in a container.

        The command's processes have `marker` in their environment.
        """
        words = ("exec", "--user", "0", name, "/bin/sh", "-c", _KILL_SCRIPT, marker)
        task = asyncio.get_running_loop().create_task(self.engine.run(*words))
        self._kill_tasks.add(task)
        task.add_done_callback(self._kill_tasks.discard)

    async def wait_for_kills(self) -> None:
        """Wait until all calls of `kill_marked` are done. Called before the server stops."""
        await asyncio.gather(*self._kill_tasks, return_exceptions=True)

    def checked_binds(self, confinement: Confinement) -> list[mounts.Bind]:
        """Return the folders to mount, after checking them.

        Docker cannot hide a part of a mounted folder, so a folder with content that must stay
        hidden is refused.
        """
        keys = [self.user_home / name for name in USER_KEY_PATHS] if self.user_home is not None else []
        hidden = [*self.private_paths, *(Path(os.path.realpath(key)) for key in keys)]
        binds = mounts.build_binds(
            confinement, private_paths=self.private_paths, shareable_parents=self.shareable_parents, hidden=hidden
        )
        for bind in binds:
            self._refuse_hidden_content(bind.path, hidden)
        return binds

    def _refuse_hidden_content(self, path: Path, hidden: Sequence[Path]) -> None:
        home = Path(os.path.realpath(self.user_home)) if self.user_home is not None else None
        if home is not None and home.is_relative_to(path):
            raise SandboxPathRefused(
                str(path), because="it is the owner's home, or contains it", try_this="share a folder inside it"
            )
        if any(own != path and own.is_relative_to(path) and own.exists() for own in hidden):
            raise SandboxPathRefused(
                str(path),
                because="it contains a path that must stay hidden, and a container shows complete folders",
                try_this="share a part of it",
            )

    def _build_mount_arguments(self, confinement: Confinement) -> list[str]:
        if confinement.network is not None:
            raise CommandNotStarted(
                because="containers have no network: they cannot use the server's proxy",
                try_this='set `kind = "bubblewrap"` for commands that need the network',
            )
        words: list[str] = []
        for bind in sorted(self.checked_binds(confinement), key=lambda each: each.path):
            words += ["--mount", _format_mount(bind.path, bind.path, writable=bind.writable)]
        for text in self.settings.binds:
            words += ["--mount", self._build_configured_mount(text)]
        return words

    def _build_configured_mount(self, text: str) -> str:
        source, _, rest = text.partition(":")
        target, _, mode = rest.partition(":")
        if not source.startswith("/") or not target.startswith("/") or mode not in ("", "ro", "rw"):
            raise SandboxPathRefused(
                text,
                because="a bind must be FROM:TO or FROM:TO:ro, both absolute",
                try_this="correct `binds` in [sandbox.docker]",
            )
        path = Path(source)
        if not path.exists():
            raise SandboxPathRefused(
                source, because="it does not exist", try_this="create it, or remove it from `binds` in [sandbox.docker]"
            )
        mounts.check_path(path, private_paths=self.private_paths, shareable_parents=())
        self._refuse_hidden_content(path, self.private_paths)
        return _format_mount(path, Path(target), writable=mode != "ro")

    def _build_options(self, limits: ResourceLimits, settings: DockerSettings) -> list[str]:
        """Return the docker options that isolate a container. No setting removes them."""
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
        if len(self._read_uses()) >= CONTAINERS_MAX:
            await self.prune()
        created = int(self.clock.now().timestamp() * 1000)
        made = f"{created}/{settings.idle_hours:g}/{settings.age_days:g}"
        labels = {LABEL: "1", SCOPE_LABEL: key, CREATED_LABEL: made, CONFIG_LABEL: config}
        label_options = [word for label, value in labels.items() for word in ("--label", f"{label}={value}")]
        await self.engine.run_checked(
            "create", "--name", name, *label_options, *options, settings.image, "sleep", "infinity"
        )
        try:
            await self.engine.run_checked("start", name)
            if settings.setup:
                await self.engine.run_checked("exec", name, "/bin/sh", "-lc", settings.setup, timeout_s=SETUP_TIMEOUT_S)
        except SandboxFailed:
            await self.engine.run("rm", "--force", name)
            raise

    async def _inspect(self, name: str) -> _InspectedContainer | None:
        reply = await self.engine.run("container", "inspect", "--format", "{{json .}}", name)
        if reply.code != 0:
            return None
        try:
            document = cast("dict[str, Any]", json.loads(reply.text))
            labels = cast("dict[str, str]", document["Config"]["Labels"] or {})
            return _InspectedContainer(labels.get(CONFIG_LABEL, ""), bool(document["State"]["Running"]))
        except (ValueError, KeyError, TypeError):
            raise ContainerReplyInvalid(name, because=_last_line(reply.text)) from None

    async def _run_probe(self) -> SandboxProbe:
        if not self.engine.program:
            return SandboxProbe(False, "docker is not installed", "install docker, or use bubblewrap")
        try:
            version = await self.engine.run("version", "--format", "{{.Server.Version}}")
            if version.code != 0:
                return SandboxProbe(
                    False, f"docker is not running: {_last_line(version.text)}", "start docker, or use bubblewrap"
                )
            image = await self.engine.run("image", "inspect", "--format", "{{.Id}}", self.settings.image)
            if image.code != 0:
                return SandboxProbe(
                    False,
                    f"the image {self.settings.image} does not exist locally",
                    f"docker pull {self.settings.image}",
                )
            with tempfile.NamedTemporaryFile(prefix="retinue-probe-") as canary:
                script = _PROBE_SCRIPT.format(canary=canary.name)
                tried = await self.engine.run(
                    "run",
                    "--rm",
                    *self._build_options(ResourceLimits(), self.settings),
                    self.settings.image,
                    "/bin/sh",
                    "-c",
                    script,
                )
        except (SandboxFailed, OSError) as error:
            return SandboxProbe(False, str(error), _TRY_DOCTOR)
        if tried.text.split() != ["stands"]:
            return SandboxProbe(False, f"it does not isolate: {_last_line(tried.text)}", _TRY_DOCTOR)
        return SandboxProbe(True, notes=(f"docker {version.text}",))

    def _is_in_use(self, name: str) -> bool:
        used = self._read_uses().get(name)
        return used is not None and self.clock.now() - used <= IN_USE_PERIOD

    def _record_use(self, name: str) -> None:
        self._write_uses({**self._read_uses(), name: self.clock.now()})

    def _read_uses(self) -> dict[str, datetime]:
        try:
            held = cast("dict[str, str]", json.loads(self._uses_file.read_bytes()))
            return {name: datetime.fromisoformat(at) for name, at in held.items()}
        except (OSError, ValueError, AttributeError, TypeError):
            return {}

    def _write_uses(self, used: dict[str, datetime]) -> None:
        self._uses_file.parent.mkdir(parents=True, exist_ok=True)
        fresh = self._uses_file.with_suffix(".new")
        fresh.write_text(json.dumps({name: at.isoformat() for name, at in used.items()}))
        fresh.replace(self._uses_file)

    def _warn(self, text: str) -> None:
        self.warnings = [*self.warnings[-9:], text]


class _InspectedContainer(Struct, frozen=True):
    config: str
    is_running: bool


class ContainerSandbox:
    """Runs commands in the container of one scope, such as one session or one agent."""

    name = "docker"

    def __init__(self, containers: ContainerPool, key: str, settings: DockerSettings) -> None:
        self._containers = containers
        self._key = key
        self._settings = settings

    async def probe(self) -> SandboxProbe:
        return await self._containers.probe()

    async def start(self, argv: Sequence[str], confinement: Confinement, *, pty: bool = False) -> ChildProcess:
        probe = await self.probe()
        if not probe.works:
            raise SandboxUnavailable(because=probe.because, try_this=probe.try_this)
        if not argv or any("\0" in word for word in argv):
            raise CommandNotStarted(
                because="the command is empty or contains NUL", try_this="pass a program and its arguments"
            )
        mark = f"{MARKER_VARIABLE}={os.getpid()}-{next(_NUMBERS)}"
        variables = _open_environment_file(confinement, mark)
        name = await self._containers.ensure_container(self._key, confinement, self._settings)
        engine = self._containers.engine
        try:
            words = ["exec", "--interactive", *(["--tty"] if pty else []), "--workdir", str(confinement.folder)]
            words += ["--env-file", f"/dev/fd/{variables}", name, *argv]
            spawned = spawn(
                [engine.program, *words],
                environment=build_client_environment(),
                folder=Path("/"),
                pty=pty,
                pass_fds=(variables,),
            )
        finally:
            os.close(variables)

        def end() -> None:
            """Kill the docker client and the command, which would otherwise continue in the container."""
            _kill_group(spawned.popen.pid)
            self._containers.kill_marked(name, mark)

        ended = False

        def end_once() -> None:
            nonlocal ended
            if not ended:
                ended = True
                end()

        return ChildProcess(spawned, limits=confinement.limits, kill_all=end_once, has_terminal=pty)


def build_client_environment() -> dict[str, str]:
    """Return the environment variables of the docker client.

    The client runs outside the sandbox, so it gets no variables of the command.
    """
    kept = ("PATH", "HOME", "DOCKER_HOST", "DOCKER_CONTEXT", "DOCKER_CERT_PATH", "DOCKER_TLS_VERIFY", "XDG_RUNTIME_DIR")
    return {name: os.environ[name] for name in kept if name in os.environ}


def _open_environment_file(confinement: Confinement, marker: str) -> int:
    """Return the descriptor of a file in memory that contains the command's environment.

    The environment is not passed in arguments, because process lists show arguments.
    """
    environment = mounts.build_command_environment(confinement)
    if any("\n" in value or "\r" in value for value in environment.values()):
        raise ContainerVariableMultiline
    lines = "".join(f"{name}={value}\n" for name, value in environment.items()) + f"{marker}\n"
    descriptor = os.memfd_create("retinue", os.MFD_CLOEXEC)
    os.write(descriptor, lines.encode(errors="surrogateescape"))
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def _format_mount(source: Path, target: Path, *, writable: bool) -> str:
    if "," in str(source) or "," in str(target):
        raise SandboxPathRefused(
            str(source),
            because="docker does not accept folders with a comma in their path",
            try_this="rename the folder",
        )
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
    return lines[-1][:500] if lines else "no output"


_TRY_DOCTOR = "find the cause: retinue doctor"
