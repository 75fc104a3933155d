"""A setup for the file tools: a data directory, an agent directory and workspace, and files of a person."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from retinue.domain.agent import Agent
from retinue.domain.ids import RunId, SessionId
from retinue.domain.permission import Permission, default_rights
from retinue.domain.protected_paths import ProtectedPaths
from retinue.domain.structs import replace
from retinue.domain.trust import Trust
from retinue.store.agents import file_trust
from retinue.store.core.connection import Store
from retinue.store.envelopes.attachment_files import AttachmentFiles
from retinue.store.open_store import open_store
from retinue.testing.fake_clock import FakeClock
from retinue.tools.base import PermissionedTool, ToolContext, ToolFailed, ToolOutput
from retinue.tools.files import FileServices, build_file_tools


@dataclass
class ToolSetup:
    root: Path
    store: Store
    file_services: FileServices
    tool_context: ToolContext

    def __post_init__(self) -> None:
        self.tools: tuple[Any, ...] = build_file_tools(self.file_services)

    @property
    def work(self) -> Path:
        return self.tool_context.rights.workspace

    @property
    def home(self) -> Path:
        return self.tool_context.agent_directory

    @property
    def person(self) -> Path:
        return self.root / "maria"

    @property
    def server(self) -> Path:
        return self.root / "data"

    @property
    def untrusted_context(self) -> ToolContext:
        """Return the tool context after something untrusted was read."""
        return replace(self.tool_context, trust=Trust.UNTRUSTED)

    def with_rights(self, **rights: Any) -> ToolContext:
        return replace(self.tool_context, rights=replace(self.tool_context.rights, **rights))

    async def call(self, name: str, tool_context: ToolContext | None = None, **arguments: Any) -> ToolOutput:
        """Call a tool as the toolbox does, from arguments as a model may write them."""
        tool = self._tool(name)
        return await tool.perform(msgspec.convert(arguments, tool.arguments), tool_context or self.tool_context)

    async def text(self, name: str, tool_context: ToolContext | None = None, **arguments: Any) -> str:
        return (await self.call(name, tool_context, **arguments)).text

    async def refusal_code(self, name: str, tool_context: ToolContext | None = None, **arguments: Any) -> str:
        """Return the error code of a call that must be refused."""
        try:
            output = await self.call(name, tool_context, **arguments)
        except ToolFailed as failure:
            assert failure.because
            return failure.code
        assert output.failed, f"it was not refused: {output.text[:200]}"
        return output.text.partition("[")[2].partition("]")[0]

    def needed_permissions(self, name: str, tool_context: ToolContext | None = None, **arguments: Any) -> list[str]:
        tool = self._tool(name)
        parsed = msgspec.convert(arguments, tool.arguments)
        assert isinstance(tool, PermissionedTool)
        needed: Sequence[Permission] = tool.required_permissions(parsed, tool_context or self.tool_context)
        return [str(each) for each in needed]

    async def trust(self, path: Path) -> Trust:
        ctime = file_trust.ctime_ms(path.stat())
        return await self.store.read(partial(file_trust.get_trust, path=str(path.resolve()), ctime_ms=ctime))

    def _tool(self, name: str) -> Any:
        return next(tool for tool in self.tools if tool.spec.name == name)


@asynccontextmanager
async def open_file_tools(root: Path) -> AsyncGenerator[ToolSetup]:
    server, person = root / "data", root / "maria"
    home, work = server / "agents" / "ada", person / "work"
    for folder in (home / "internal_space", server / "agents" / "bo", work, person / ".ssh", root / "outside"):
        folder.mkdir(parents=True, exist_ok=True)
    secrets = (server / "owner-token", server / "agents" / "bo" / "SOUL.md", person / ".ssh" / "id")
    for file in (*secrets, root / "outside" / "secret.txt", home / "SOUL.md", home / "state.json"):
        file.write_text("secret")
    store = await _open_copied_store(server / "retinue.db")
    try:
        yield ToolSetup(
            root,
            store,
            FileServices(
                store=store,
                clock=FakeClock(),
                files=AttachmentFiles(server / "files"),
                withheld=ProtectedPaths(data_directory=server, user_home=person),
            ),
            ToolContext(
                agent=Agent(name="ada"),
                session=SessionId("5" * 32),
                run=RunId("6" * 32),
                call="c",
                agent_directory=home,
                rights=default_rights(home, work),
            ),
        )
    finally:
        await store.close()


_empty_store_bytes: list[bytes] = []


async def _open_copied_store(path: Path) -> Store:
    """Open a copy of an empty store: that takes a tenth of the time of making a new one."""
    if not _empty_store_bytes:
        new = path.with_name("empty.db")
        await (await open_store(str(new))).close()
        _empty_store_bytes.append(new.read_bytes())
        new.unlink()
    if not path.exists():
        path.write_bytes(_empty_store_bytes[0])
    return await open_store(str(path))
