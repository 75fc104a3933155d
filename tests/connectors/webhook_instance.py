"""A house that programs elsewhere write to, on loopback, and a far side that takes what it sends out."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections import deque
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import aiohttp
from aiohttp import web
from flows.tools_instance import ADA, BO, HandsHouse
from msgspec import structs

from retinue.api.app import build_app
from retinue.api.connection_limits import ConnectionLimiter, build_server_config
from retinue.api.host_check import HttpSettings
from retinue.api.uvicorn_server import Server
from retinue.app.clock_and_ids import RealClock
from retinue.app.server import default_parts, open_server
from retinue.config import load_configuration
from retinue.connectors.base import Connector, ConnectorContext
from retinue.connectors.webhook import PLATFORM
from retinue.connectors.webhook.connector import WebhookConnector
from retinue.connectors.webhook.settings import WebhookSettings
from retinue.connectors.webhook.webhook_signature import sign
from retinue.domain.agent import Agent
from retinue.domain.errors import Invalid
from retinue.domain.ports import Clock
from retinue.domain.structs import replace
from retinue.intake.inbound_webhooks import WebhookIntake
from retinue.testing.empty_store import create_empty_store
from retinue.testing.failure_context import describe_on_failure
from retinue.testing.scripted_model import ScriptedModel
from retinue.testing.server_description import ServerSource

SECRET = "a secret that the two of them share"
WAIT_S = 30.0


class NoShelf:
    async def get(self, key: str) -> str | None:
        return None

    async def put(self, key: str, value: str) -> None:
        raise AssertionError("a webhook keeps nothing of its own")


def webhook(
    settings: WebhookSettings, *, instance: str = "ci", secret: str = SECRET, clock: Clock | None = None
) -> WebhookConnector:
    def found(key: str) -> str:
        if not secret:
            raise Invalid("there is no secret", because="none was set")
        assert key == "secret"
        return secret

    surroundings = ConnectorContext(
        name=instance,
        clock=clock or RealClock(),
        random=Random(1),
        state=NoShelf(),
        get_attachment_path=lambda _: Path("/nowhere"),
        read_secret=found,
    )
    made = PLATFORM.make_connector(settings, surroundings)
    assert isinstance(made, WebhookConnector)
    return made


@dataclass(frozen=True, slots=True)
class Said:
    status: int
    body: dict[str, Any]
    headers: Mapping[str, str]

    @property
    def code(self) -> str:
        return self.body["error"]["code"]


def signed(body: bytes, *, id_: str = "msg_1", at: int | None = None, secret: str = SECRET) -> dict[str, str]:
    now = str(int(time.time()) if at is None else at)
    return {
        "webhook-id": id_,
        "webhook-timestamp": now,
        "webhook-signature": sign(secret, id_=id_, at=now, body=body),
    }


@dataclass(slots=True)
class HookHouse(HandsHouse):
    port: int = 0

    async def send(
        self, path: str, content: Any, *, headers: Mapping[str, str] | None = None, query: str = "", **how: Any
    ) -> Said:
        """A request that is signed, unless other headers are given."""
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        sent = signed(body, **how) if headers is None else headers
        url = f"http://127.0.0.1:{self.port}/hooks/{path}{query}"
        async with aiohttp.ClientSession() as session, session.post(url, data=body, headers=sent) as response:
            return Said(response.status, json.loads(await response.read() or b"{}"), dict(response.headers))


@asynccontextmanager
async def hook_house(
    root: Path,
    *connectors: WebhookConnector,
    staff: Sequence[Agent] = (ADA, BO),
    config: str = '[house]\ndefault_agent = "ada"\n',
    model: ScriptedModel | None = None,
) -> AsyncGenerator[HookHouse]:
    root.mkdir(parents=True, exist_ok=True)
    (root / "retinue.toml").write_text(config)
    configuration = load_configuration({"RETINUE_HOME": str(root)})
    base = default_parts()
    model = model or ScriptedModel(base.clock)
    parts = replace(base, models=[model], first_agents=staff, connectors=connectors, configuration=configuration)
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    opened: dict[str, Connector] = {each.name: each for each in connectors}
    create_empty_store(root / "house.db")
    try:
        async with open_server(configuration.settings, parts) as house:
            desk = house.services
            requests = WebhookIntake(
                desk.store,
                desk.intake,
                desk.clock,
                desk.ids,
                connectors=lambda: opened,
                default_agent=desk.default_agent,
            )
            house = structs.replace(house, services=structs.replace(desk, inbound_webhooks=lambda: requests))
            made = HookHouse(house, root, model, configuration, root / "witness.txt", {model.name: model})
            made.port = listener.getsockname()[1]
            async with _served(made, listener):
                with describe_on_failure(ServerSource(database=root / "house.db")):
                    yield made
                    await made.rest()
    finally:
        listener.close()


@asynccontextmanager
async def _served(house: HookHouse, listener: socket.socket) -> AsyncGenerator[None]:
    door = HttpSettings(port=house.port)
    gate = ConnectionLimiter(door)
    server = Server(build_server_config(build_app(house.house.services, door, gate), gate))
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        yield
    finally:
        server.should_exit = True
        with suppress(asyncio.CancelledError):
            await serving


@dataclass(slots=True)
class Letter:
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> dict[str, Any]:
        return json.loads(self.body)


@dataclass(slots=True)
class FarSide:
    """Takes requests, and answers each with what it is told to. None: it never answers."""

    url: str = ""
    letters: list[Letter] = field(default_factory=list[Letter])
    statuses: deque[int | None] = field(default_factory=deque[int | None])
    headers: dict[str, str] = field(default_factory=dict[str, str])
    over: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def host(self) -> str:
        return self.url.removeprefix("http://").partition("/")[0]

    async def take(self, request: web.Request) -> web.Response:
        self.letters.append(Letter({k.lower(): v for k, v in request.headers.items()}, await request.read()))
        status = self.statuses.popleft() if self.statuses else 200
        if status is None:
            await self.over.wait()
            status = 200
        return web.Response(status=status, text="as I was told", headers=self.headers)


@asynccontextmanager
async def far_side() -> AsyncGenerator[FarSide]:
    app = web.Application()
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    far = FarSide()
    app.router.add_post("/in", far.take)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    far.url = f"http://127.0.0.1:{runner.addresses[0][1]}/in"
    try:
        yield far
    finally:
        far.over.set()
        await runner.cleanup()
