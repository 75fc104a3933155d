"""Settings of the MCP servers whose tools agents may use."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from retinue.config import validators
from retinue.config.sandbox import check_allowed_host, check_variable_name
from retinue.config.secret import SecretReference
from retinue.config.setting_metadata import SettingEffect, setting
from retinue.config.skills import VariableValue

SERVER_NAME_LENGTH_MAX = 24  # the prefix of its tools' names, which have at most 64 characters
START_TIMEOUT_S = 30.0
CALL_TIMEOUT_S = 120.0
PARALLEL_CALLS_MAX = 8

_SERVER_NAME = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
_NO_VARIABLES = cast("Mapping[str, VariableValue | SecretReference]", {})


def check_server_name(text: str) -> str | None:
    """Check the name of an MCP server.

    The name is also the name of the MCP server's folder and, followed by `_`, the prefix of its tools' names.
    """
    if len(text) <= SERVER_NAME_LENGTH_MAX and _SERVER_NAME.fullmatch(text):
        return None
    return f"must have at most {SERVER_NAME_LENGTH_MAX} lowercase letters and digits, with single hyphens between them"


@dataclass(frozen=True, slots=True, kw_only=True)
class McpServerSettings:
    """One MCP server: a command that uses stdio, or a URL.

    A command runs in the sandbox. On this machine, it can access only its own folder and the resources named in these
    settings.
    """

    command: tuple[str, ...] = setting(
        (),
        "Command that starts the MCP server: the program and its arguments, each as one item.",
        effect=SettingEffect.HOT,
        example="/usr/bin/weather-mcp",
    )
    url: str | None = setting(
        None,
        "URL of a remote MCP server that uses streamable HTTP.",
        effect=SettingEffect.HOT,
        check=validators.check_url,
        example="https://mcp.example.com/mcp",
    )
    enabled: bool = setting(True, "Whether the MCP server is used.", effect=SettingEffect.HOT)
    agents: tuple[str, ...] = setting(
        ("*",),
        "Agents that may use the tools of this MCP server, as globs. An empty list: none.",
        effect=SettingEffect.MESSAGE,
        example="ada",
    )
    allow: tuple[str, ...] = setting(
        ("*",),
        "Tools of this MCP server that are available, as globs for the names that the MCP server uses. An empty list: "
        "none.",
        effect=SettingEffect.HOT,
        example="search_*",
    )
    deny: tuple[str, ...] = setting(
        (), "Tools of this MCP server that are never available, as globs.", effect=SettingEffect.HOT, example="delete_*"
    )
    env: Mapping[str, VariableValue | SecretReference] = setting(
        _NO_VARIABLES,
        "Environment variables of the command, each with its value or the location of a secret. The command gets no "
        "other variables from the server.",
        effect=SettingEffect.HOT,
        check=check_variable_name,
        example="WEATHER_KEY",
    )
    headers: Mapping[str, VariableValue | SecretReference] = setting(
        _NO_VARIABLES,
        "Headers of each request to the MCP server, each with its value or the location of a secret.",
        effect=SettingEffect.HOT,
        check=validators.check_header,
        example="Authorization",
    )
    hosts: tuple[str, ...] = setting(
        (),
        "Hosts that the command of the MCP server may reach: HOST, *.HOST or HOST:PORT. Default: no network.",
        effect=SettingEffect.HOT,
        check=check_allowed_host,
        example="api.example.com",
    )
    private_hosts: tuple[str, ...] = setting(
        (),
        "Exact names of the hosts in `hosts` that may be in your own network.",
        effect=SettingEffect.HOT,
        check=validators.check_host,
        example="nas.lan",
    )
    readable: tuple[Path, ...] = setting(
        (),
        "Folders and files that the command of the MCP server may read. Default: none.",
        effect=SettingEffect.HOT,
        example="/srv/notes",
    )
    writable: tuple[Path, ...] = setting(
        (),
        "Folders in which the command of the MCP server may write. Default: none.",
        effect=SettingEffect.HOT,
        example="/srv/notes/inbox",
    )
    start_timeout_s: float = setting(
        START_TIMEOUT_S,
        "Time to wait until the MCP server has started and listed its tools, in seconds.",
        effect=SettingEffect.HOT,
        least=1,
        most=600,
    )
    call_timeout_s: float = setting(
        CALL_TIMEOUT_S,
        "Maximum duration of one tool call to the MCP server, in seconds.",
        effect=SettingEffect.HOT,
        least=1,
        most=3600,
    )
    parallel_calls_max: int = setting(
        PARALLEL_CALLS_MAX,
        "Maximum number of concurrent tool calls to the MCP server. Further calls wait.",
        effect=SettingEffect.HOT,
        least=1,
        most=256,
    )
    memory_mib: int = setting(
        2048,
        "Maximum memory of the command of the MCP server and its child processes, in MiB.",
        effect=SettingEffect.HOT,
        least=16,
        most=2**20,
    )
