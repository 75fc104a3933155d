"""Measures the path of one Telegram message through the production server: which functions are on the call stack.

The server, its connector and its model client are the real ones; Telegram and the provider are servers on loopback.
"""

from __future__ import annotations

import asyncio
import sys
from asyncio import selector_events
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import aiohttp
import msgspec
import pytest
from flows.fake_provider import KEY, calls, provider, says

import retinue
from retinue.app.clock_and_ids import RealClock
from retinue.app.server import default_parts, open_server
from retinue.config import load_configuration
from retinue.domain.agent import Agent
from retinue.domain.structs import replace
from retinue.domain.tool import ToolSpec
from retinue.store.core.sqlite import SqliteStore
from retinue.testing.empty_store import create_empty_store
from retinue.testing.telegram_server import TOKEN, TelegramServer
from retinue.testing.wait_conditions import wait_until
from retinue.tools.base import ToolContext, schema_of

if TYPE_CHECKING:
    from scripts.shape import Signal

SOURCE = Path(retinue.__file__).parent
Transport: Any = vars(selector_events)["_SelectorSocketTransport"]
ANSWER = "Lunch with Noor."


@dataclass(frozen=True, slots=True)
class Frame:
    """One function on the stack, with its file below src/retinue."""

    file: str
    function: str


Stack = tuple[Frame, ...]


@dataclass(slots=True)
class MessagePath:
    """The stacks at four moments of one message, outermost frame first."""

    accept: Stack = ()  # from the connector's receive to the accepting commit
    model: Stack = ()  # from the lane task to the write on the model's socket
    tool: Stack = ()  # from the lane task to the tool
    delivery: Stack = ()  # from the outbox to the request to the platform
    texts: list[str] = field(default_factory=list[str])  # what arrived on the platform

    @property
    def files_to_model(self) -> list[str]:
        """The files on the way from the connector to the model, in the order of the message."""
        return list(dict.fromkeys(frame.file for frame in (*self.accept, *self.model)))

    def signals(self) -> Iterator[Signal]:
        from scripts.shape import Signal

        yield Signal("files on the stack from the connector to the model", len(self.files_to_model), 8)
        yield Signal("frames from the lane task to the model's socket", len(self.model), 12)
        yield Signal("frames from the lane task to a tool", len(self.tool), 12)
        yield Signal("frames from the outbox to the request to the platform", len(self.delivery), 12)


async def measure(folder: Path) -> MessagePath:
    """Send one message through a production server, and return its path."""
    path = MessagePath()
    async with TelegramServer() as telegram, provider() as model:
        model.add_replies(calls(("plan", {"day": "today"})), says(ANSWER))
        with _record(path):
            async with _open_server(folder, telegram, model.url, path):
                telegram.person_sends("What is on today?", date=int(RealClock().now().timestamp()))
                await wait_until(telegram.list_bot_texts, "the answer arrives")
                path.texts += telegram.list_bot_texts()
    return path


@asynccontextmanager
async def _open_server(
    folder: Path, telegram: TelegramServer, model_url: str, path: MessagePath
) -> AsyncGenerator[None]:
    for name, secret in (("token", TOKEN), ("key", KEY)):
        (folder / name).write_text(secret)
        (folder / name).chmod(0o600)
    (folder / "retinue.toml").write_text(
        f"""
[server]
default_agent = "ada"
zone = "UTC"
[connectors.telegram]
platform = "telegram"
token_file = "{folder / "token"}"
api_base = "{telegram.url}"
dm_policy = "open"
[tools.outside_senders]
profile = "full"
[providers.mock]
url = "{model_url}"
format = "openai-chat"
key = {{ file = "{folder / "key"}" }}
"""
    )
    configuration = load_configuration({"RETINUE_HOME": str(folder)})
    parts = replace(
        default_parts(),
        first_agents=[Agent(name="ada", model="mock/m1")],
        tools=[_PlanTool(path)],
        configuration=configuration,
    )
    create_empty_store(folder / "retinue.db")
    async with open_server(configuration.settings, parts):
        yield


class DayArguments(msgspec.Struct, forbid_unknown_fields=True):
    """Arguments of the tool `plan`."""

    day: str


@dataclass(frozen=True, slots=True)
class _PlanTool:
    """A tool without effects, so that no approval is needed."""

    path: MessagePath
    arguments: type[msgspec.Struct] = DayArguments
    spec: ToolSpec = field(
        default_factory=lambda: ToolSpec(
            name="plan", description="Return the plan of a day.", parameters=schema_of(DayArguments), is_repeatable=True
        )
    )

    async def perform(self, arguments: DayArguments, context: ToolContext) -> str:
        self.path.tool = own_frames(sys._getframe(1))
        return f"{arguments.day}: lunch with Noor"


@contextmanager
def _record(path: MessagePath) -> Iterator[None]:
    """Record the stacks of the first accepting commit, model request and delivery."""
    write, send, request = SqliteStore.write, Transport.write, aiohttp.ClientSession._request

    def recording_write(store: SqliteStore, body: Any, *, point: str, **options: Any) -> Any:
        if point == "accept" and not path.accept:
            path.accept = from_connector(own_frames(sys._getframe(1)))
        return write(store, body, point=point, **options)

    def recording_send(transport: Any, data: Any) -> None:
        if not path.model and b"/chat/completions" in bytes(data[:500]):
            path.model = own_frames(sys._getframe(1))
        send(transport, data)

    # aiohttp writes to the socket in a task of its own, so its call is the last frame of the delivery.
    async def recording_request(session: aiohttp.ClientSession, method: str, url: Any, **options: Any) -> Any:
        if not path.delivery and str(url).endswith("/sendMessage"):
            path.delivery = own_frames(sys._getframe(1))
        return await request(session, method, url, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SqliteStore, "write", recording_write)
        patch.setattr(Transport, "write", recording_send)
        patch.setattr(aiohttp.ClientSession, "_request", recording_request)
        yield


def own_frames(frame: FrameType | None) -> Stack:
    """Return the frames of the product on the stack that ends with this frame, outermost first."""
    found: list[Frame] = []
    while frame is not None:
        file = Path(frame.f_code.co_filename)
        if file.is_relative_to(SOURCE) and not frame.f_code.co_name.startswith("<"):  # <listcomp> is no function
            found.append(Frame(file.relative_to(SOURCE).as_posix(), frame.f_code.co_qualname))
        frame = frame.f_back
    return tuple(reversed(found))


def from_connector(stack: Stack) -> Stack:
    """Return the part of a stack that begins with the connector."""
    begins = (number for number, frame in enumerate(stack) if frame.file.startswith("connectors/telegram/"))
    return stack[next(begins, 0) :]


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as name:
        found = asyncio.run(measure(Path(name)))
    for moment in ("accept", "model", "tool", "delivery"):
        print(moment)
        for each in getattr(found, moment):
            print(f"  {each.file:<45} {each.function}")
