"""An agent that runs elsewhere, and a house that hands its mail to it: both on loopback, both real."""

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
from aiohttp import web
from flows.tools_instance import ADA, HandsHouse, hands_house

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
class Letter:
    """One request as it came in there."""

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
class Said:
    status: int
    body: dict[str, Any]


@dataclass(slots=True)
class FarSide:
    """Takes letters, says what it is told to, and answers when it is told to."""

    url: str
    letters: list[Letter] = field(default_factory=list[Letter])
    statuses: deque[int | None] = field(default_factory=deque[int | None])  # None: never say anything
    headers: dict[str, str] = field(default_factory=dict[str, str])
    on_letter: Callable[[Letter], Awaitable[None]] | None = None  # before the request is answered
    came: asyncio.Event = field(default_factory=asyncio.Event)

    async def take(self, request: web.Request) -> web.Response:
        letter = Letter(dict(request.headers), await request.read())
        self.letters.append(letter)
        self.came.set()
        if self.on_letter is not None:
            await self.on_letter(letter)
        status = self.statuses.popleft() if self.statuses else 202
        if status is None:
            await asyncio.Event().wait()
            raise AssertionError
        return web.Response(status=status, text="as I was told", headers=self.headers)

    async def letter(self, number: int = 1) -> Letter:
        """Wait for the letter of this number."""
        async with asyncio.timeout(WAIT_LIMIT_S):
            while len(self.letters) < number:
                self.came.clear()
                await self.came.wait()
        return self.letters[number - 1]

    async def answer(self, letter: Letter, text: str, *, message: str = "1", **more: Any) -> Said:
        return await self.say(letter.json["callbackUrl"], letter.json["sessionId"], text, message=message, **more)

    async def say(
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
    ) -> Said:
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
            return Said(response.status, json.loads(await response.read() or b"{}"))


@asynccontextmanager
async def far_side() -> AsyncGenerator[FarSide]:
    app = web.Application()
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    far = FarSide("")
    app.router.add_post("/in", far.take)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    far.url = f"http://127.0.0.1:{port}/in"
    try:
        yield far
    finally:
        await runner.cleanup()


def rex(far: FarSide, **more: Any) -> Agent:
    """Who works elsewhere."""
    return Agent(
        name="rex", runner="external", external=ExternalAgentEndpoint(url=far.url, secret=f"env:{KEY_NAME}", **more)
    )


@asynccontextmanager
async def house_with(
    root: Path, far: FarSide, *, staff: Sequence[Agent] = (), config: str = "", **more: Any
) -> AsyncGenerator[HandsHouse]:
    """A house with its door open on loopback, whose settings name the far side."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    port = listener.getsockname()[1]
    os.environ[KEY_NAME] = KEY
    host = far.url.removeprefix("http://").partition("/")[0]
    settings = f'[external]\ncallback_url = "http://127.0.0.1:{port}"\nprivate_hosts = ["{host}"]\n{config}'
    try:
        async with (
            hands_house(
                root, staff=(*staff, rex(far, **more)) if staff else (ADA, rex(far, **more)), config=settings
            ) as house,
            _served(house, listener),
        ):
            yield house
    finally:
        listener.close()
        os.environ.pop(KEY_NAME, None)


@asynccontextmanager
async def _served(house: HandsHouse, listener: socket.socket) -> AsyncGenerator[None]:
    door = HttpSettings(port=listener.getsockname()[1])
    gate = ConnectionLimiter(door)
    server = Server(build_server_config(build_app(house.house.services, door, gate), gate))
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        yield
    finally:
        server.should_exit = True
        with suppress(asyncio.CancelledError):
            await serving
