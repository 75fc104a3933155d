"""Sandbox settings: where commands run, their limits, and the hosts and secrets they may use."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from retinue.config import validators
from retinue.config.secret import SecretReference
from retinue.config.setting_metadata import SettingEffect, setting
from retinue.domain.sandbox import SandboxMode, SandboxScope, SandboxVisibleSessions, WorkspaceAccess

MIB_MAX = 1024 * 1024  # 1 TiB
_VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}")
_CONTAINER_PREFIX = re.compile(r"[a-z0-9][a-z0-9_.-]{0,31}")
# Setting one of these changes which code a command runs, not only its data.
_FORBIDDEN_VARIABLE_PREFIXES = ("LD_", "DYLD_", "PYTHON", "BASH_", "GIT_CONFIG", "GIT_EXEC", "GIT_SSH")
_FORBIDDEN_VARIABLES = frozenset(
    {"PATH", "HOME", "IFS", "ENV", "SHELL", "NODE_OPTIONS", "PERL5OPT", "PERL5LIB", "RUBYOPT", "JAVA_TOOL_OPTIONS"}
    | {f"{name}_{what}" for name in ("HTTP", "HTTPS", "ALL", "NO") for what in ("PROXY",)}
)


class SandboxKind(StrEnum):
    BUBBLEWRAP = "bubblewrap"
    DOCKER = "docker"
    OFF = "off"


def check_allowed_host(text: str) -> str | None:
    """Check an allowed host of the form HOST, *.HOST or HOST:PORT. An IPv6 address with a port needs brackets."""
    name, port = split_host_and_port(text)
    if port is not None and not 0 < port <= validators.PORT_MAX:
        return "must have a port from 1 to 65535 after the :"
    wild = name.startswith("*.")
    if wild and "." not in name[2:]:
        return "must have at least two parts after the *"
    return validators.check_host(name.removeprefix("*."))


def split_host_and_port(text: str) -> tuple[str, int | None]:
    """Split a string into host and port.

    The port is None if the string contains no port, and -1 if the part after the colon is not a port number.
    """
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


def check_variable_name(text: str) -> str | None:
    """Check the name of an environment variable. Variables that control which program runs are not allowed."""
    if not _VARIABLE_NAME.fullmatch(text):
        return "is not a valid environment variable name"
    upper = text.upper()
    if upper in _FORBIDDEN_VARIABLES or upper.startswith(_FORBIDDEN_VARIABLE_PREFIXES):
        return "must not be a variable that controls which program runs"
    return None


def check_container_prefix(text: str) -> str | None:
    return (
        None
        if _CONTAINER_PREFIX.fullmatch(text)
        else "must have 1 to 32 lowercase letters, digits, dots, hyphens and underscores"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandLimitSettings:
    """Resource limits of one command."""

    seconds: float = setting(
        1800.0,
        "Maximum duration of a command, in seconds. After that, the command is killed.",
        effect=SettingEffect.MESSAGE,
        least=1,
        most=86_400,
    )
    memory_mib: int = setting(
        2048,
        "Maximum memory of a command and its child processes, in MiB.",
        effect=SettingEffect.MESSAGE,
        least=16,
        most=MIB_MAX,
    )
    processes: int = setting(
        256, "Maximum number of processes and threads of a command.", effect=SettingEffect.MESSAGE, least=4, most=32_768
    )
    file_mib: int = setting(
        1024,
        "Maximum size of each file that a command writes, in MiB.",
        effect=SettingEffect.MESSAGE,
        least=1,
        most=MIB_MAX,
    )
    tmp_mib: int = setting(
        512, "Size of the /tmp folder that a command sees, in MiB.", effect=SettingEffect.MESSAGE, least=1, most=MIB_MAX
    )
    output_mib: int = setting(
        64,
        "Maximum amount of output that a command may print, in MiB.",
        effect=SettingEffect.MESSAGE,
        least=1,
        most=1024,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DockerSettings:
    """Settings of the containers in which commands run if `sandbox.kind` is `docker`."""

    image: str = setting(
        "debian:stable-slim",
        "Image of the containers. It must exist on this machine: the server does not download images.",
        effect=SettingEffect.MESSAGE,
        check=validators.check_image,
        example="debian:stable-slim",
    )
    prefix: str = setting(
        "retinue",
        "Prefix of the names of containers that the server creates.",
        effect=SettingEffect.MESSAGE,
        check=check_container_prefix,
        example="retinue",
    )
    cpus: float = setting(
        1.0, "Maximum number of CPUs of a container.", effect=SettingEffect.MESSAGE, least=0.1, most=1024
    )
    binds: tuple[str, ...] = setting(
        (),
        "Additional folders to mount in a container: FROM:TO, or FROM:TO:ro for read-only access. The socket of a "
        "container engine, a home directory and the data directory are not allowed.",
        effect=SettingEffect.MESSAGE,
        example="/srv/data:/data:ro",
    )
    setup: str = setting(
        "", "Shell command that runs once in each new container. Default: none.", effect=SettingEffect.MESSAGE
    )
    idle_hours: float = setting(24.0, "Time until an unused container is removed, in hours.", least=0.1, most=8760)
    age_days: float = setting(7.0, "Age at which a container is removed, in days.", least=0.01, most=3650)


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretRule:
    """A secret that commands may use. Commands can read the secret only if `variable` is set.

    With `header`, the proxy adds the secret to requests to `hosts`, and no command sees it. With `variable`, the
    commands in `commands` get the secret in their environment. `agents` are the agents whose commands may use the
    secret; if empty, all agents.
    """

    secret: SecretReference | None = setting(
        None,
        "Location of the secret: an environment variable of the server (`env`) or a file (`file`).",
        effect=SettingEffect.MESSAGE,
    )
    agents: tuple[str, ...] = setting(
        (),
        "Agents whose commands may use the secret. Default: all agents.",
        effect=SettingEffect.MESSAGE,
        check=validators.check_agent_name,
        example="ada",
    )
    hosts: tuple[str, ...] = setting(
        (),
        "Hosts to which the secret is sent, as HOST or HOST:PORT. The proxy of the sandbox adds `header` to requests "
        "to these hosts.",
        effect=SettingEffect.MESSAGE,
        check=check_allowed_host,
        example="api.example.com",
    )
    header: str = setting(
        "",
        "Name of the request header in which the proxy of the sandbox sends the secret, such as `Authorization`.",
        effect=SettingEffect.MESSAGE,
        check=validators.check_header,
        example="Authorization",
    )
    prefix: str = setting(
        "", "Text before the secret in the value of `header`, such as `Bearer `.", effect=SettingEffect.MESSAGE
    )
    variable: str = setting(
        "",
        "Name of the environment variable in which the programs in `commands` get the secret. They can then read it.",
        effect=SettingEffect.MESSAGE,
        check=check_variable_name,
        example="GH_TOKEN",
    )
    commands: tuple[str, ...] = setting(
        (),
        "Paths of the programs that get the secret in `variable`, such as `/usr/bin/gh`. Default: none.",
        effect=SettingEffect.MESSAGE,
        example="/usr/bin/gh",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxSettings:
    """How the commands of agents are confined, and which hosts they can reach."""

    kind: SandboxKind = setting(
        SandboxKind.BUBBLEWRAP,
        "Program that confines commands. `off`: commands run directly on the host, without a sandbox.",
        effect=SettingEffect.MESSAGE,
    )
    mode: SandboxMode = setting(
        SandboxMode.ALL,
        "Which commands run in a sandbox: all (`all`), all except those in sessions that the owner opened in a "
        "terminal or the web app (`non-main`), or none (`off`).",
        effect=SettingEffect.MESSAGE,
    )
    scope: SandboxScope = setting(
        SandboxScope.AGENT,
        "Which commands share a container, if `kind` is `docker`: those of one `session`, of one `agent`, or all "
        "(`shared`).",
        effect=SettingEffect.MESSAGE,
    )
    workspace: WorkspaceAccess = setting(
        WorkspaceAccess.WRITE,
        "How a command can access its agent's workspace: read-write (`rw`), read-only (`ro`), or not at all (`none`).",
        effect=SettingEffect.MESSAGE,
    )
    visible_sessions: SandboxVisibleSessions = setting(
        SandboxVisibleSessions.SPAWNED,
        "Sessions that tools in a sandboxed session can see if the owner does not take part in it: those of its "
        "subagents (`spawned`), or all sessions of its agent (`all`).",
        effect=SettingEffect.MESSAGE,
    )
    browser: bool = setting(
        True, "Whether agents may use the browser in sandboxed sessions.", effect=SettingEffect.MESSAGE
    )
    hosts: tuple[str, ...] = setting(
        (),
        "Hosts that commands can reach, if their agent has web access: HOST, *.HOST or HOST:PORT. Default: no network.",
        effect=SettingEffect.MESSAGE,
        check=check_allowed_host,
        example="pypi.org",
    )
    private_hosts: tuple[str, ...] = setting(
        (),
        "Exact names of the hosts in `hosts` that may be in your own network. Connections to other private addresses "
        "are refused.",
        effect=SettingEffect.MESSAGE,
        check=validators.check_host,
        example="nas.lan",
    )
    hidden: tuple[Path, ...] = setting(
        (),
        "Additional folders that no command can see, even inside a folder that the command may read.",
        effect=SettingEffect.RESTART,
    )
    limits: CommandLimitSettings = CommandLimitSettings()
    docker: DockerSettings = DockerSettings()
    secrets: Mapping[str, SecretRule] = field(default_factory=dict[str, SecretRule])
