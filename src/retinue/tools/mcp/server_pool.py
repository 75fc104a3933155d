"""All MCP servers of an instance, started and stopped as configured."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

from retinue.config.mcp import McpServer, server_name
from retinue.config.secret import Secret
from retinue.config.skills import Variable
from retinue.domain.agent import Agent, ToolLists
from retinue.domain.errors import NotFound
from retinue.domain.ports import Clock, Ids
from retinue.domain.times import to_ms
from retinue.policy.tools.tools import Layer
from retinue.store.agents import approved_hashes
from retinue.store.core.connection import Store
from retinue.store.envelopes.attachment_files import Files
from retinue.text.glob_match import matches_glob
from retinue.tools.base import Tool
from retinue.tools.mcp.server_status import Needs, SandboxOf, Standing, State, same_line
from retinue.tools.mcp.tool_names import PREFIX

if TYPE_CHECKING:
    from retinue.tools.mcp.mcp_server import Server
    from retinue.tools.mcp.tool_list import Listing

KIND = "mcp"
"""The kind under which approved tool list hashes are stored."""
FOLDER = "mcp"

_SECRET_HEADER = re.compile(r"authorization|cookie|token|secret|passw|credential|key", re.IGNORECASE)

Settings = Mapping[str, McpServer]


class Servers:
    """All configured MCP servers. `settings` is read at the start and on every `sync`.

    `sandbox` returns the sandbox for a server's command; it must allow sharing the folders below
    `data_directory / SERVERS_FOLDER`. `random` adds jitter to retries.
    """

    def __init__(
        self,
        settings: Callable[[], Settings],
        *,
        home: Path,
        store: Store,
        sandbox: SandboxOf,
        clock: Clock,
        ids: Ids,
        chance: Random,
        environment: Mapping[str, str],
        files: Files | None = None,
    ) -> None:
        self._settings = settings
        self._store = store
        self._clock = clock
        self._ids = ids
        self._chance = chance
        self._files = files
        self._needs = Needs(sandbox=sandbox, folder=home / FOLDER, home=home, environment=environment)
        self._servers: dict[str, Server] = {}
        self._refused: dict[str, Standing] = {}
        self._tools: dict[str, tuple[Listing, list[Tool]]] = {}
        self._fitting = asyncio.Lock()
        self._aside: set[asyncio.Task[None]] = set()
        self._told: list[Callable[[], None]] = []

    def on_change(self, call: Callable[[], None]) -> None:
        """Register a callback for changes of tools or of a server's status."""
        self._told.append(call)

    # --- lifecycle ---

    async def fit(self) -> None:
        """Start and stop servers until they match the settings. Waits until servers have stopped,
        not started.
        """
        async with self._fitting:
            wanted = dict(self._settings())
            gone = [
                name
                for name, server in self._servers.items()
                if name not in wanted or not same_line(server.settings, wanted[name])
            ]
            for name in gone:
                self._tools.pop(name, None)
            await asyncio.gather(*(self._servers.pop(name).close() for name in gone))
            self._refused = {name: refused for name, each in wanted.items() if (refused := _unfit(name, each))}
            for name, each in wanted.items():
                if name not in self._servers and name not in self._refused:
                    self._servers[name] = self._new(name, each)
                    self._servers[name].start()
        self._tell()

    def fit_soon(self) -> None:
        """Run `sync` in a task, after the settings changed."""
        task = asyncio.get_running_loop().create_task(self.fit())
        self._aside.add(task)
        task.add_done_callback(self._aside.discard)

    async def close(self) -> None:
        """Stop all servers and everything they started."""
        await asyncio.gather(*self._aside, return_exceptions=True)
        async with self._fitting:
            await asyncio.gather(*(server.close() for server in self._servers.values()))
            self._servers.clear()

    def restart(self, name: str) -> None:
        self._one(name).restart()

    def _new(self, name: str, settings: McpServer) -> Server:
        from retinue.tools.mcp.mcp_server import Server  # slow import, and few instances have a server

        return Server(
            name,
            settings,
            self._needs,
            clock=self._clock,
            chance=self._chance,
            approved=self._approved,
            changed=self._tell,
        )

    # --- status and tools ---

    def standings(self) -> list[Standing]:
        """Return the status of each server, sorted by name."""
        found = {name: server.standing for name, server in self._servers.items()} | self._refused
        return [found[name] for name in sorted(found)]

    def settings(self, name: str) -> McpServer | None:
        return self._settings().get(name)

    def tools(self) -> list[Tool]:
        """Return the tools of servers with an approved list. An unavailable server keeps its tools;
        calls then fail.
        """
        found: list[Tool] = []
        for name, server in self._servers.items():
            if server.good is not None:
                found += self._tools_of(name, server, server.good)
        return found

    def _tools_of(self, name: str, server: Server, offered: Listing) -> Sequence[Tool]:
        known = self._tools.get(name)
        if known is not None and known[0] is offered:
            return known[1]
        from retinue.tools.mcp.mcp_tool import McpResources, McpTool

        made: list[Tool] = [McpTool(server, offer, self.settings, self._ids, self._files) for offer in offered.offers]
        if offered.resources:
            made.append(McpResources(server, self.settings, self._ids, self._files))
        self._tools[name] = (offered, made)
        return made

    # --- approval ---

    async def approve(self, name: str, hash_: str, *, by: str) -> bool:
        """Approve a server's tool list, if it still has the given hash."""
        server = self._one(name)
        offered = server.standing.listing
        if offered is None or not offered.hash.startswith(hash_):
            return False
        put = partial(
            approved_hashes.put,
            kind=KIND,
            name=name,
            hash_=offered.hash,
            content=offered.content,
            decided_by=by,
            at_ms=to_ms(self._clock.now()),
        )
        await self._store.write(put, point="mcp")
        server.look_again()
        return True

    async def revoke(self, name: str) -> bool:
        """Revoke the approval. The tools are not used until the list is approved again."""
        server = self._one(name)
        gone = await self._store.write(partial(approved_hashes.remove, kind=KIND, name=name), point="mcp")
        server.look_again()
        return gone

    async def found_good(self, name: str) -> approved_hashes.Pin | None:
        return await self._store.read(partial(approved_hashes.find, kind=KIND, name=name))

    async def _approved(self, name: str) -> str | None:
        pin = await self.found_good(name)
        return pin.hash if pin is not None else None

    def _one(self, name: str) -> Server:
        if name in self._servers:
            return self._servers[name]
        raise NotFound(
            f"there is no MCP server '{name[:64]}'",
            because=self._refused[name].because if name in self._refused else "no [mcp.NAME] is called so",
            try_this="look at `retinue mcp list`",
            code="mcp.not-found",
        )

    def _tell(self) -> None:
        for call in self._told:
            call()


def _unfit(name: str, settings: McpServer) -> Standing | None:
    """Return a failed status if the settings of a server are invalid, else None."""
    because = ""
    if wrong := server_name(name):
        because = f"its name {wrong}"
    elif bool(settings.command) == (settings.url is not None):
        because = "it has either a command or a url, and not both"
    elif settings.url is None and settings.headers:
        because = "headers are for one with a url"
    elif settings.url is not None and (settings.env or settings.hosts or settings.readable or settings.writable):
        because = "env, hosts, readable and writable are for one with a command"
    elif plain := [name for name, each in settings.headers.items() if _is_written_down(name, each)]:
        because = f"the header {plain[0]} is a secret in plain text, and belongs into the environment or a file"
    if not because:
        return None
    return Standing(name=name, state=State.FAILED, because=because, try_this=f"change [mcp.{name}] in the settings")


def _is_written_down(header: str, held: Variable | Secret) -> bool:
    return isinstance(held, Variable) and held.value is not None and bool(_SECRET_HEADER.search(header))


def layers(settings: Settings, agent: Agent) -> list[Layer]:
    """Return policy layers that deny each server's tools to agents that may not use the server."""
    return [
        Layer(
            name=f"the MCP server {name}",
            key=f"mcp.{name}.agents",
            lists=ToolLists(deny=(f"{PREFIX}_{name}_*",)),
            fixed=True,
        )
        for name, each in settings.items()
        if not any(matches_glob(glob, agent.name) for glob in each.agents)
    ]
