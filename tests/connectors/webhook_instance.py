"""Helpers for webhook tests: a server with webhooks on loopback, and a receiver for what it sends."""

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
from flows.tools_instance import ADA, BO, ScriptedServer
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


class NoConnectorState:
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

    context = ConnectorContext(
        name=instance,
        clock=clock or RealClock(),
        random=Random(1),
        state=NoConnectorState(),
        get_attachment_path=lambda _: Path("/nowhere"),
        read_secret=found,
    )
    made = PLATFORM.make_connector(settings, context)
    assert isinstance(made, WebhookConnector)
    return made


@dataclass(frozen=True, slots=True)
class WebhookResponse:
    status: int
    body: dict[str, Any]
    headers: Mapping[str, str]

    @property
    def code(self) -> str:
        return self.body["error"]["code"]


def sign_headers(body: bytes, *, id_: str = "msg_1", at: int | None = None, secret: str = SECRET) -> dict[str, str]:
    now = str(int(time.time()) if at is None else at)
    return {
        "webhook-id": id_,
        "webhook-timestamp": now,
        "webhook-signature": sign(secret, id_=id_, at=now, body=body),
    }


@dataclass(slots=True)
class WebhookServer(ScriptedServer):
    port: int = 0

    async def send(
        self, path: str, content: Any, *, headers: Mapping[str, str] | None = None, query: str = "", **how: Any
    ) -> WebhookResponse:
        """Send a request. It is signed unless other headers are given."""
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        sent = sign_headers(body, **how) if headers is None else headers
        url = f"http://127.0.0.1:{self.port}/hooks/{path}{query}"
        async with aiohttp.ClientSession() as session, session.post(url, data=body, headers=sent) as response:
            return WebhookResponse(response.status, json.loads(await response.read() or b"{}"), dict(response.headers))


@asynccontextmanager
async def open_webhook_server(
    root: Path,
    *connectors: WebhookConnector,
    staff: Sequence[Agent] = (ADA, BO),
    config: str = '[server]\ndefault_agent = "ada"\n',
    model: ScriptedModel | None = None,
) -> AsyncGenerator[WebhookServer]:
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
    create_empty_store(root / "retinue.db")
    try:
        async with open_server(configuration.settings, parts) as server:
            services = server.services
            requests = WebhookIntake(
                services.store,
                services.intake,
                services.clock,
                services.ids,
                connectors=lambda: opened,
                default_agent=services.default_agent,
            )
            server = structs.replace(server, services=structs.replace(services, inbound_webhooks=lambda: requests))
            made = WebhookServer(server, root, model, configuration, root / "witness.txt", {model.name: model})
            made.port = listener.getsockname()[1]
            async with _serve(made, listener):
                with describe_on_failure(ServerSource(database=root / "retinue.db")):
                    yield made
                    await made.rest()
    finally:
        listener.close()


@asynccontextmanager
async def _serve(server: WebhookServer, listener: socket.socket) -> AsyncGenerator[None]:
    http_settings = HttpSettings(port=server.port)
    connection_limiter = ConnectionLimiter(http_settings)
    uvicorn_server = Server(
        build_server_config(build_app(server.server.services, http_settings, connection_limiter), connection_limiter)
    )
    serving = asyncio.create_task(uvicorn_server.serve(sockets=[listener]))
    try:
        yield
    finally:
        uvicorn_server.should_exit = True
        with suppress(asyncio.CancelledError):
            await serving


@dataclass(slots=True)
class ReceivedRequest:
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> dict[str, Any]:
        return json.loads(self.body)


@dataclass(slots=True)
class WebhookReceiver:
    """Records requests and responds with the scripted statuses. None means no response."""

    url: str = ""
    received_requests: list[ReceivedRequest] = field(default_factory=list[ReceivedRequest])
    statuses: deque[int | None] = field(default_factory=deque[int | None])
    headers: dict[str, str] = field(default_factory=dict[str, str])
    released: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def host(self) -> str:
        return self.url.removeprefix("http://").partition("/")[0]

    async def handle_request(self, request: web.Request) -> web.Response:
        self.received_requests.append(
            ReceivedRequest({k.lower(): v for k, v in request.headers.items()}, await request.read())
        )
        status = self.statuses.popleft() if self.statuses else 200
        if status is None:
            await self.released.wait()
            status = 200
        return web.Response(status=status, text="scripted response", headers=self.headers)


@asynccontextmanager
async def run_webhook_receiver() -> AsyncGenerator[WebhookReceiver]:
    app = web.Application()
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    receiver = WebhookReceiver()
    app.router.add_post("/in", receiver.handle_request)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    receiver.url = f"http://127.0.0.1:{runner.addresses[0][1]}/in"
    try:
        yield receiver
    finally:
        receiver.released.set()
        await runner.cleanup()
