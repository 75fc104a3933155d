"""Sandbox settings: where commands run, their limits, and the hosts and secrets they may use."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from retinue.config import validators
from retinue.config.secret import Secret
from retinue.config.setting_metadata import Effect, setting
from retinue.domain.sandbox import SandboxMode, Scope, SessionsSeen, WorkspaceAccess

MIB_MAX = 1024 * 1024  # 1 TiB
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}")
_PREFIX = re.compile(r"[a-z0-9][a-z0-9_.-]{0,31}")
# Setting one of these changes which code a command runs, not only its data.
_RULING_VARIABLES = ("LD_", "DYLD_", "PYTHON", "BASH_", "GIT_CONFIG", "GIT_EXEC", "GIT_SSH")
_RULING_NAMES = frozenset(
    {"PATH", "HOME", "IFS", "ENV", "SHELL", "NODE_OPTIONS", "PERL5OPT", "PERL5LIB", "RUBYOPT", "JAVA_TOOL_OPTIONS"}
    | {f"{name}_{what}" for name in ("HTTP", "HTTPS", "ALL", "NO") for what in ("PROXY",)}
)


class SandboxKind(StrEnum):
    BUBBLEWRAP = "bubblewrap"
    DOCKER = "docker"
    OFF = "off"


def allowed_host(text: str) -> str | None:
    """Check HOST, *.HOST or HOST:PORT; an IPv6 address with a port needs brackets."""
    name, port = split_port(text)
    if port is not None and not 0 < port <= validators.PORT_MAX:
        return "must have a port from 1 to 65535 after the :"
    wild = name.startswith("*.")
    if wild and "." not in name[2:]:
        return "must name more than the last part of a host after the *"
    return validators.host(name.removeprefix("*."))


def split_port(text: str) -> tuple[str, int | None]:
    """Split a host and its port; the port is -1 if the text after the colon is no port."""
    if text.startswith("["):
        name, bracket, rest = text[1:].partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            return text, None
        port = rest[1:] if rest else None
    elif text.count(":") == 1:
        name, _, port = text.partition(":")
    else:
        return text, None
    if port is None:
        return name, None
    return name, int(port) if port.isascii() and port.isdigit() and len(port) <= 5 else -1


def variable(text: str) -> str | None:
    """Check the name of an environment variable that cannot change which code a command runs."""
    if not _VARIABLE.fullmatch(text):
        return "is not the name of a variable"
    upper = text.upper()
    if upper in _RULING_NAMES or upper.startswith(_RULING_VARIABLES):
        return "must not be a variable that decides what a command is"
    return None


def prefix(text: str) -> str | None:
    return None if _PREFIX.fullmatch(text) else "must be 1 to 32 small letters, digits, dots, hyphens and underscores"


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitSettings:
    """Resource limits of one command."""

    seconds: float = setting(1800.0, "How long a command may run.", effect=Effect.MESSAGE, least=1, most=86_400)
    memory_mib: int = setting(
        2048, "Memory of a command and all it begins.", effect=Effect.MESSAGE, least=16, most=MIB_MAX
    )
    processes: int = setting(256, "Processes and threads at once.", effect=Effect.MESSAGE, least=4, most=32_768)
    file_mib: int = setting(1024, "The largest file it may write.", effect=Effect.MESSAGE, least=1, most=MIB_MAX)
    tmp_mib: int = setting(512, "The size of its own /tmp.", effect=Effect.MESSAGE, least=1, most=MIB_MAX)
    output_mib: int = setting(64, "How much it may say.", effect=Effect.MESSAGE, least=1, most=1024)


@dataclass(frozen=True, slots=True, kw_only=True)
class DockerSettings:
    """Containers, if `kind` is docker."""

    image: str = setting(
        "debian:stable-slim",
        "The image that commands run in. It must be there: the house fetches none.",
        effect=Effect.MESSAGE,
        check=validators.image,
        example="debian:stable-slim",
    )
    prefix: str = setting(
        "retinue", "What the names of containers begin with.", effect=Effect.MESSAGE, check=prefix, example="retinue"
    )
    cpus: float = setting(1.0, "How many processors a container may use.", effect=Effect.MESSAGE, least=0.1, most=1024)
    binds: tuple[str, ...] = setting(
        (),
        "Further folders in the container, as FROM:TO or FROM:TO:ro. No engine's socket, no home, not the house.",
        effect=Effect.MESSAGE,
        example="/srv/data:/data:ro",
    )
    setup: str = setting("", "A shell command that is run once in a new container.", effect=Effect.MESSAGE)
    idle_hours: float = setting(24.0, "A container not used for so long is removed.", least=0.1, most=8760)
    age_days: float = setting(7.0, "A container older than this is removed.", least=0.01, most=3650)


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretRule:
    """A secret that commands may use without reading it, or read if a variable is set.

    With `header`, the proxy adds it to requests to `hosts`, and no command sees it. With
    `variable`, commands that match `commands` get it in their environment. `agents` are the agents
    that may use it; empty means all.
    """

    secret: Secret | None = setting(None, "Where it is.", effect=Effect.MESSAGE)
    agents: tuple[str, ...] = setting(
        (),
        "Whose commands may use it; not set: everyone's.",
        effect=Effect.MESSAGE,
        check=validators.agent_name,
        example="ada",
    )
    hosts: tuple[str, ...] = setting(
        (),
        "To which hosts the proxy adds it, as HOST or HOST:PORT.",
        effect=Effect.MESSAGE,
        check=allowed_host,
        example="api.example.com",
    )
    header: str = setting(
        "", "The header that carries it.", effect=Effect.MESSAGE, check=validators.header, example="Authorization"
    )
    before: str = setting("", "What stands before it in the header, such as `Bearer `.", effect=Effect.MESSAGE)
    variable: str = setting(
        "",
        "The variable that carries it in a command's environment. The command can then read it.",
        effect=Effect.MESSAGE,
        check=variable,
        example="GH_TOKEN",
    )
    commands: tuple[str, ...] = setting(
        (),
        "Which commands get the variable: their path, as `/usr/bin/gh`. Not set: none.",
        effect=Effect.MESSAGE,
        example="/usr/bin/gh",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxSettings:
    """How the commands of agents are confined."""

    kind: SandboxKind = setting(
        SandboxKind.BUBBLEWRAP,
        "What confines a command. `off` runs it bare, and only by this choice.",
        effect=Effect.MESSAGE,
    )
    mode: SandboxMode = setting(
        SandboxMode.ALL,
        "Whose commands are confined: `all`, `non-main` for all but those the owner watches, or `off`.",
        effect=Effect.MESSAGE,
    )
    scope: Scope = setting(
        Scope.AGENT, "Who shares one container: a `session`, an `agent`, or all (`shared`).", effect=Effect.MESSAGE
    )
    workspace: WorkspaceAccess = setting(
        WorkspaceAccess.WRITE,
        "What a command has of its agent's workspace: `rw`, `ro` or `none`.",
        effect=Effect.MESSAGE,
    )
    sessions: SessionsSeen = setting(
        SessionsSeen.SPAWNED,
        "Which sessions the tools of a sandboxed one see, unless the owner sits before it: only those it has sent out "
        "(`spawned`), or also the others of its agent (`all`).",
        effect=Effect.MESSAGE,
    )
    browser: bool = setting(True, "Whether sandboxed sessions may use the browser.", effect=Effect.MESSAGE)
    hosts: tuple[str, ...] = setting(
        (),
        "Which hosts commands of agents that may use the web can reach: HOST, *.HOST or HOST:PORT. None: no network.",
        effect=Effect.MESSAGE,
        check=allowed_host,
        example="pypi.org",
    )
    private_hosts: tuple[str, ...] = setting(
        (),
        "Those of `hosts` that may be in the owner's own network, by their exact names.",
        effect=Effect.MESSAGE,
        check=validators.host,
        example="nas.lan",
    )
    hidden: tuple[Path, ...] = setting(
        (), "Folders that no command sees, even in a folder it may read.", effect=Effect.RESTART
    )
    limits: LimitSettings = LimitSettings()
    docker: DockerSettings = DockerSettings()
    secrets: Mapping[str, SecretRule] = field(default_factory=dict[str, SecretRule])
