"""An external agent and a server that sends it envelopes: both real, on loopback."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import time
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from flows.tools_instance import ADA, ScriptedServer, open_scripted_server

from retinue.api.app import build_app
from retinue.api.connection_limits import ConnectionLimiter, build_server_config
from retinue.api.host_check import HttpSettings
from retinue.api.uvicorn_server import Server
from retinue.domain.agent import Agent, ExternalAgentEndpoint
from retinue.net.signatures import SignaturePurpose, sign_message
from retinue.testing.wait_conditions import WAIT_LIMIT_S

KEY_NAME = "RETINUE_TEST_FAR_KEY"
KEY = "a key that the two share"


@dataclass(slots=True)
class ReceivedEnvelope:
    """One request as the external agent received it."""

    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> dict[str, Any]:
        return json.loads(self.body)

    @property
    def id(self) -> str:
        return self.json["id"]

    @property
    def text(self) -> str:
        return self.json["message"]["text"]

    @property
    def is_signed(self) -> bool:
        expected = sign_message(
            KEY,
            SignaturePurpose.MESSAGE,
            timestamp=self.headers["X-Retinue-Timestamp"],
            session=self.json["sessionId"],
            message_id=self.headers["X-Retinue-Id"],
            body=self.body,
        )
        return self.headers["X-Retinue-Signature"] == expected


@dataclass(slots=True)
class CallbackResponse:
    status: int
    body: dict[str, Any]


@dataclass(slots=True)
class FakeExternalAgent:
    """Receives envelopes, responds with the given statuses, and answers when the test says so."""

    url: str
    received_envelopes: list[ReceivedEnvelope] = field(default_factory=list[ReceivedEnvelope])
    statuses: deque[int | None] = field(default_factory=deque[int | None])  # None: never respond
    headers: dict[str, str] = field(default_factory=dict[str, str])
    on_envelope: Callable[[ReceivedEnvelope], Awaitable[None]] | None = None  # before the response
    arrived: asyncio.Event = field(default_factory=asyncio.Event)

    async def handle_request(self, request: web.Request) -> web.Response:
        received_envelope = ReceivedEnvelope(dict(request.headers), await request.read())
        self.received_envelopes.append(received_envelope)
        self.arrived.set()
        if self.on_envelope is not None:
            await self.on_envelope(received_envelope)
        status = self.statuses.popleft() if self.statuses else 202
        if status is None:
            await asyncio.Event().wait()
            raise AssertionError
        return web.Response(status=status, text="as I was told", headers=self.headers)

    async def received_envelope(self, number: int = 1) -> ReceivedEnvelope:
        """Wait for the envelope with this number."""
        async with asyncio.timeout(WAIT_LIMIT_S):
            while len(self.received_envelopes) < number:
                self.arrived.clear()
                await self.arrived.wait()
        return self.received_envelopes[number - 1]

    async def answer(
        self, received_envelope: ReceivedEnvelope, text: str, *, message: str = "1", **more: Any
    ) -> CallbackResponse:
        return await self.post_callback(
            received_envelope.json["callbackUrl"], received_envelope.json["sessionId"], text, message=message, **more
        )

    async def post_callback(
        self,
        url: str,
        session: str,
        text: str | bytes,
        *,
        message: str = "1",
        request: str = "",
        key: str = KEY,
        at: str = "",
        changed: Mapping[str, str] | None = None,
    ) -> CallbackResponse:
        body = text.encode() if isinstance(text, str) else text
        at = at or str(int(time.time()))
        signature = sign_message(
            key,
            SignaturePurpose.CALLBACK,
            timestamp=at,
            session=session,
            message_id=message,
            request_id=request,
            body=body,
        )
        headers = {"X-Retinue-Timestamp": at, "X-Retinue-Id": message, "X-Retinue-Signature": signature}
        if request:
            headers["X-Retinue-Request"] = request
        async with (
            aiohttp.ClientSession() as session_,
            session_.post(url, data=body, headers={**headers, **(changed or {})}) as response,
        ):
            return CallbackResponse(response.status, json.loads(await response.read() or b"{}"))


@asynccontextmanager
async def run_external_agent() -> AsyncGenerator[FakeExternalAgent]:
    app = web.Application()
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    fake_agent = FakeExternalAgent("")
    app.router.add_post("/in", fake_agent.handle_request)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    fake_agent.url = f"http://127.0.0.1:{port}/in"
    try:
        yield fake_agent
    finally:
        await runner.cleanup()


def rex(fake_agent: FakeExternalAgent, **more: Any) -> Agent:
    """The external agent, as configured on the server."""
    return Agent(
        name="rex",
        runner="external",
        external=ExternalAgentEndpoint(url=fake_agent.url, secret=f"env:{KEY_NAME}", **more),
    )


@asynccontextmanager
async def open_server_with(
    root: Path, fake_agent: FakeExternalAgent, *, staff: Sequence[Agent] = (), config: str = "", **more: Any
) -> AsyncGenerator[ScriptedServer]:
    """Run a server with its API on loopback and `rex` among its agents.

    A request to `rex` may take `WAIT_LIMIT_S`, so that a busy machine does not repeat it.
    """
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    port = listener.getsockname()[1]
    os.environ[KEY_NAME] = KEY
    host = fake_agent.url.removeprefix("http://").partition("/")[0]
    settings = f'[external]\ncallback_url = "http://127.0.0.1:{port}"\nprivate_hosts = ["{host}"]\n{config}'
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("retinue.outbox.external_agent_delivery.ATTEMPT_S", WAIT_LIMIT_S)
            async with (
                open_scripted_server(
                    root,
                    staff=(*staff, rex(fake_agent, **more)) if staff else (ADA, rex(fake_agent, **more)),
                    config=settings,
                ) as server,
                _serve_api(server, listener),
            ):
                yield server
    finally:
        listener.close()
        os.environ.pop(KEY_NAME, None)


@asynccontextmanager
async def _serve_api(server: ScriptedServer, listener: socket.socket) -> AsyncGenerator[None]:
    http_settings = HttpSettings(port=listener.getsockname()[1])
    limiter = ConnectionLimiter(http_settings)
    uvicorn_server = Server(build_server_config(build_app(server.server.services, http_settings, limiter), limiter))
    serving = asyncio.create_task(uvicorn_server.serve(sockets=[listener]))
    try:
        yield
    finally:
        uvicorn_server.should_exit = True
        with suppress(asyncio.CancelledError):
            await serving
