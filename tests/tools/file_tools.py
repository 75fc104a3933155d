"""A place to try the file tools: a house, an agent with its home and workspace, a person, and what lies around."""

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
from retinue.domain.permission import Permission, ProtectedPaths, default_rights
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
class Desk:
    root: Path
    store: Store
    ground: FileServices
    scene: ToolContext

    def __post_init__(self) -> None:
        self.tools: tuple[Any, ...] = build_file_tools(self.ground)

    @property
    def work(self) -> Path:
        return self.scene.rights.workspace

    @property
    def home(self) -> Path:
        return self.scene.agent_directory

    @property
    def person(self) -> Path:
        return self.root / "maria"

    @property
    def house(self) -> Path:
        return self.root / "house"

    @property
    def dirty(self) -> ToolContext:
        """The same, after something untrusted was read."""
        return replace(self.scene, trust=Trust.UNTRUSTED)

    def with_rights(self, **rights: Any) -> ToolContext:
        return replace(self.scene, rights=replace(self.scene.rights, **rights))

    async def call(self, name: str, scene: ToolContext | None = None, **arguments: Any) -> ToolOutput:
        """As the toolbox calls it: from whatever a model may have written."""
        tool = self._tool(name)
        return await tool.perform(msgspec.convert(arguments, tool.arguments), scene or self.scene)

    async def text(self, name: str, scene: ToolContext | None = None, **arguments: Any) -> str:
        return (await self.call(name, scene, **arguments)).text

    async def refusal(self, name: str, scene: ToolContext | None = None, **arguments: Any) -> str:
        """The code with which it is refused."""
        try:
            output = await self.call(name, scene, **arguments)
        except ToolFailed as failure:
            assert failure.because
            return failure.code
        assert output.failed, f"it was not refused: {output.text[:200]}"
        return output.text.partition("[")[2].partition("]")[0]

    def needs(self, name: str, scene: ToolContext | None = None, **arguments: Any) -> list[str]:
        tool = self._tool(name)
        parsed = msgspec.convert(arguments, tool.arguments)
        assert isinstance(tool, PermissionedTool)
        needed: Sequence[Permission] = tool.required_permissions(parsed, scene or self.scene)
        return [str(each) for each in needed]

    async def trust(self, path: Path) -> Trust:
        ctime = file_trust.ctime_ms(path.stat())
        return await self.store.read(partial(file_trust.get_trust, path=str(path.resolve()), ctime_ms=ctime))

    def _tool(self, name: str) -> Any:
        return next(tool for tool in self.tools if tool.spec.name == name)


@asynccontextmanager
async def open_desk(root: Path) -> AsyncGenerator[Desk]:
    house, person = root / "house", root / "maria"
    home, work = house / "agents" / "ada", person / "work"
    for folder in (home / "internal_space", house / "agents" / "bo", work, person / ".ssh", root / "outside"):
        folder.mkdir(parents=True, exist_ok=True)
    secrets = (house / "owner-token", house / "agents" / "bo" / "SOUL.md", person / ".ssh" / "id")
    for file in (*secrets, root / "outside" / "secret.txt", home / "SOUL.md", home / "state.json"):
        file.write_text("secret")
    store = await _opened(house / "house.db")
    try:
        yield Desk(
            root,
            store,
            FileServices(
                store=store,
                clock=FakeClock(),
                files=AttachmentFiles(house / "files"),
                withheld=ProtectedPaths(data_directory=house, user_home=person),
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


_empty: list[bytes] = []


async def _opened(path: Path) -> Store:
    """A new store is made once for all tests, and copied: that takes a tenth of the time."""
    if not _empty:
        new = path.with_name("empty.db")
        await (await open_store(str(new))).close()
        _empty.append(new.read_bytes())
        new.unlink()
    if not path.exists():
        path.write_bytes(_empty[0])
    return await open_store(str(path))
