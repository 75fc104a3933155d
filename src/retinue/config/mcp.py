"""MCP servers whose tools agents may use."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from retinue.config import validators
from retinue.config.sandbox import allowed_host, variable
from retinue.config.secret import Secret
from retinue.config.setting_metadata import Effect, setting
from retinue.config.skills import Variable

SERVER_NAME_LENGTH_MAX = 24  # it prefixes the names of its tools, which have at most 64 characters
START_S = 30.0
CALL_S = 120.0
PARALLEL = 8

_SERVER_NAME = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
_NONE = cast("Mapping[str, Variable | Secret]", {})


def server_name(text: str) -> str | None:
    """Check the name of a server. It names a folder, and comes before a `_` in the names of its
    tools."""
    if len(text) <= SERVER_NAME_LENGTH_MAX and _SERVER_NAME.fullmatch(text):
        return None
    return f"must have at most {SERVER_NAME_LENGTH_MAX} small letters and digits, with single hyphens between them"


@dataclass(frozen=True, slots=True, kw_only=True)
class McpServer:
    """One MCP server: a command that uses stdio, or a URL.

    A command runs in the sandbox: it has its own folder, the resources named here, and no other
    access to this machine.
    """

    command: tuple[str, ...] = setting(
        (), "The command that starts it, word by word.", effect=Effect.HOT, example="/usr/bin/weather-mcp"
    )
    url: str | None = setting(
        None,
        "The address of one that runs elsewhere, by streamable HTTP.",
        effect=Effect.HOT,
        check=validators.url,
        example="https://mcp.example.com/mcp",
    )
    enabled: bool = setting(True, "Whether it is used at all.", effect=Effect.HOT)
    agents: tuple[str, ...] = setting(
        ("*",), "Agents that may use its tools, by globs; an empty list is none.", effect=Effect.MESSAGE, example="ada"
    )
    allow: tuple[str, ...] = setting(
        ("*",),
        "Tools that are used, by globs over its own names for them; an empty list is none.",
        effect=Effect.HOT,
        example="search_*",
    )
    deny: tuple[str, ...] = setting(
        (), "Tools that are not used, whatever else says so.", effect=Effect.HOT, example="delete_*"
    )
    env: Mapping[str, Variable | Secret] = setting(
        _NONE,
        "Variables for the command: a text, or where a secret is. It has no others.",
        effect=Effect.HOT,
        check=variable,
        example="WEATHER_KEY",
    )
    headers: Mapping[str, Variable | Secret] = setting(
        _NONE,
        "Headers for the address: a text, or where a secret is.",
        effect=Effect.HOT,
        check=validators.header,
        example="Authorization",
    )
    hosts: tuple[str, ...] = setting(
        (),
        "Hosts that the command may reach: HOST, *.HOST or HOST:PORT. None: no network.",
        effect=Effect.HOT,
        check=allowed_host,
        example="api.example.com",
    )
    private_hosts: tuple[str, ...] = setting(
        (),
        "Those of `hosts` that may be in the owner's own network, by their exact names.",
        effect=Effect.HOT,
        check=validators.host,
        example="nas.lan",
    )
    readable: tuple[Path, ...] = setting(
        (), "Folders and files that the command may read.", effect=Effect.HOT, example="/srv/notes"
    )
    writable: tuple[Path, ...] = setting(
        (), "Folders that the command may change.", effect=Effect.HOT, example="/srv/notes/inbox"
    )
    start_s: float = setting(
        START_S, "How long it may take to start and to say which tools it has.", effect=Effect.HOT, least=1, most=600
    )
    call_s: float = setting(CALL_S, "How long one call may take.", effect=Effect.HOT, least=1, most=3600)
    parallel: int = setting(
        PARALLEL, "How many calls it is given at once; the others wait.", effect=Effect.HOT, least=1, most=256
    )
    memory_mib: int = setting(2048, "Memory of the command and all it begins.", effect=Effect.HOT, least=16, most=2**20)
