"""Starts and stops all MCP servers of an instance, as configured."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

from retinue.config.mcp import McpServerSettings, check_server_name
from retinue.config.secret import SecretReference
from retinue.config.skills import VariableValue
from retinue.domain.agent import Agent, ToolLists
from retinue.domain.ports import Clock, IdSource
from retinue.domain.shared_errors import McpServerNotFound
from retinue.domain.times import to_ms
from retinue.policy.tools.tool_policy import PolicyLayer
from retinue.store.agents import content_approvals
from retinue.store.core.connection import Store
from retinue.store.envelopes.attachment_files import AttachmentFiles
from retinue.text.glob_match import matches_glob
from retinue.tools.base import Tool
from retinue.tools.mcp.server_status import (
    FindServerSandbox,
    McpConnectionState,
    McpConnectionStatus,
    McpServerDependencies,
    is_same_connection,
)
from retinue.tools.mcp.tool_names import PREFIX

if TYPE_CHECKING:
    from retinue.tools.mcp.mcp_server import McpServerSupervisor
    from retinue.tools.mcp.tool_list import McpToolList

APPROVAL_KIND = "mcp"
"""The kind under which approved tool list hashes are stored."""
SERVERS_FOLDER = "mcp"

_SECRET_HEADER = re.compile(r"authorization|cookie|token|secret|passw|credential|key", re.IGNORECASE)

McpSettings = Mapping[str, McpServerSettings]


class McpServerPool:
    """All MCP servers that are configured. `settings` is read at the start and on every `sync`.

    `sandbox` returns the sandbox for a server's command; it must allow sharing the folders below
    `data_directory / SERVERS_FOLDER`. `random` adds jitter to retries.
    """

    def __init__(
        self,
        settings: Callable[[], McpSettings],
        *,
        data_directory: Path,
        store: Store,
        sandbox: FindServerSandbox,
        clock: Clock,
        ids: IdSource,
        random: Random,
        environment: Mapping[str, str],
        files: AttachmentFiles | None = None,
    ) -> None:
        self._settings = settings
        self._store = store
        self._clock = clock
        self._ids = ids
        self._random = random
        self._files = files
        self._dependencies = McpServerDependencies(
            sandbox=sandbox,
            folder=data_directory / SERVERS_FOLDER,
            data_directory=data_directory,
            environment=environment,
        )
        self._servers: dict[str, McpServerSupervisor] = {}
        self._refused: dict[str, McpConnectionStatus] = {}
        self._tools: dict[str, tuple[McpToolList, list[Tool]]] = {}
        self._sync_lock = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._listeners: list[Callable[[], None]] = []

    def on_change(self, listener: Callable[[], None]) -> None:
        """Register a callback for changes of tools or of a server's status."""
        self._listeners.append(listener)

    # --- lifecycle ---

    async def sync(self) -> None:
        """Start and stop servers until they match the settings.

        Waits until stopped servers have ended, but not until new ones have started.
        """
        async with self._sync_lock:
            wanted = dict(self._settings())
            gone = [
                name
                for name, server in self._servers.items()
                if name not in wanted or not is_same_connection(server.settings, wanted[name])
            ]
            for name in gone:
                self._tools.pop(name, None)
            await asyncio.gather(*(self._servers.pop(name).close() for name in gone))
            self._refused = {
                name: refused for name, each in wanted.items() if (refused := _find_settings_error(name, each))
            }
            for name, each in wanted.items():
                if name not in self._servers and name not in self._refused:
                    self._servers[name] = self._build_server(name, each)
                    self._servers[name].start()
        self._notify_listeners()

    def sync_soon(self) -> None:
        """Run `sync` in a task, after the settings changed."""
        task = asyncio.get_running_loop().create_task(self.sync())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Stop all servers and everything that they started."""
        await asyncio.gather(*self._tasks, return_exceptions=True)
        async with self._sync_lock:
            await asyncio.gather(*(server.close() for server in self._servers.values()))
            self._servers.clear()

    def restart(self, name: str) -> None:
        self._find_server(name).restart()

    def _build_server(self, name: str, settings: McpServerSettings) -> McpServerSupervisor:
        from retinue.tools.mcp.mcp_server import McpServerSupervisor  # slow import, and few instances have a server

        return McpServerSupervisor(
            name,
            settings,
            self._dependencies,
            clock=self._clock,
            random=self._random,
            find_approved_hash=self._find_approved_hash,
            on_change=self._notify_listeners,
        )

    # --- status and tools ---

    def list_statuses(self) -> list[McpConnectionStatus]:
        """Return the status of each server, sorted by name."""
        found = {name: server.status for name, server in self._servers.items()} | self._refused
        return [found[name] for name in sorted(found)]

    def find_settings(self, name: str) -> McpServerSettings | None:
        return self._settings().get(name)

    def list_tools(self) -> list[Tool]:
        """Return the tools of servers with an approved list.

        This includes the tools of servers that are unavailable; calls of these tools fail.
        """
        found: list[Tool] = []
        for name, server in self._servers.items():
            if server.approved_tools is not None:
                found += self._build_tools(name, server, server.approved_tools)
        return found

    def _build_tools(self, name: str, server: McpServerSupervisor, tool_list: McpToolList) -> Sequence[Tool]:
        known = self._tools.get(name)
        if known is not None and known[0] is tool_list:
            return known[1]
        from retinue.tools.mcp.mcp_tool import McpResourcesTool, McpTool

        made: list[Tool] = [
            McpTool(server, offer, self.find_settings, self._ids, self._files) for offer in tool_list.tools
        ]
        if tool_list.resources:
            made.append(McpResourcesTool(server, self.find_settings, self._ids, self._files))
        self._tools[name] = (tool_list, made)
        return made

    # --- approval ---

    async def approve(self, name: str, hash_: str, *, by: str) -> bool:
        """Approve a server's tool list, if it still has the given hash."""
        server = self._find_server(name)
        offered = server.status.tool_list
        if offered is None or not offered.hash.startswith(hash_):
            return False
        put = partial(
            content_approvals.upsert,
            kind=APPROVAL_KIND,
            name=name,
            hash_=offered.hash,
            content=offered.content,
            decided_by=by,
            at_ms=to_ms(self._clock.now()),
        )
        await self._store.write(put, point="mcp")
        server.recheck_approval()
        return True

    async def revoke(self, name: str) -> bool:
        """Revoke the approval of a tool list. The tools are not used until the list is approved again."""
        server = self._find_server(name)
        gone = await self._store.write(partial(content_approvals.remove, kind=APPROVAL_KIND, name=name), point="mcp")
        server.recheck_approval()
        return gone

    async def find_approval(self, name: str) -> content_approvals.ApprovedHash | None:
        return await self._store.read(partial(content_approvals.find, kind=APPROVAL_KIND, name=name))

    async def _find_approved_hash(self, name: str) -> str | None:
        pin = await self.find_approval(name)
        return pin.hash if pin is not None else None

    def _find_server(self, name: str) -> McpServerSupervisor:
        if name in self._servers:
            return self._servers[name]
        raise McpServerNotFound(name, because=self._refused[name].because if name in self._refused else "")

    def _notify_listeners(self) -> None:
        for call in self._listeners:
            call()


def _find_settings_error(name: str, settings: McpServerSettings) -> McpConnectionStatus | None:
    """Return a failed status if the settings of a server are invalid. Otherwise return None."""
    because = ""
    if wrong := check_server_name(name):
        because = f"its name {wrong}"
    elif bool(settings.command) == (settings.url is not None):
        because = "it must have either `command` or `url`, not both"
    elif settings.url is None and settings.headers:
        because = "`headers` needs `url`"
    elif settings.url is not None and (settings.env or settings.hosts or settings.readable or settings.writable):
        because = "`env`, `hosts`, `readable` and `writable` need `command`"
    elif plain := [name for name, each in settings.headers.items() if _is_secret_in_settings(name, each)]:
        because = f"the header {plain[0]} is a secret in plain text; put it in the environment or in a file"
    if not because:
        return None
    return McpConnectionStatus(
        name=name, state=McpConnectionState.FAILED, because=because, try_this=f"change [mcp.{name}] in the settings"
    )


def _is_secret_in_settings(header: str, held: VariableValue | SecretReference) -> bool:
    return isinstance(held, VariableValue) and held.value is not None and bool(_SECRET_HEADER.search(header))


def build_mcp_layers(settings: McpSettings, agent: Agent) -> list[PolicyLayer]:
    """Return policy layers that deny each server's tools to agents that may not use the server."""
    return [
        PolicyLayer(
            name=f"the MCP server {name}",
            key=f"mcp.{name}.agents",
            lists=ToolLists(deny=(f"{PREFIX}_{name}_*",)),
            is_fixed=True,
        )
        for name, each in settings.items()
        if not any(matches_glob(glob, agent.name) for glob in each.agents)
    ]
