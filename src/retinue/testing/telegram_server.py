"""A test server with Telegram's Bot API on loopback: real HTTP, and faults on demand.

Plugins can use it in their tests, too.

    async with TelegramServer() as telegram:
        telegram.person_sends("What is on today?")
        ...  # a bot with `api_base = telegram.url` and `telegram.token` receives it
        telegram.will_fail("sendMessage", TelegramFault(breaks=True, arrives=True))

The server keeps all chats and updates across `stop` and `start`, as Telegram does.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from dataclasses import dataclass, field
from typing import Any, Self, cast

from aiohttp import BodyPartReader, web

from retinue.testing.fake_telegram import FakeTelegram, FakeTelegramError, Json, UploadedFile
from retinue.testing.free_ports import HOST, free_port

TOKEN = "777:AAE-a-token-of-a-bot-that-never-was"
REQUEST_BYTES_MAX = 64 * 1024 * 1024
ANY_METHOD = "*"
POLL_CONFLICT = "Conflict: terminated by other getUpdates request; make sure that only one bot instance is running"
WEBHOOK_CONFLICT = (
    "Conflict: can't use getUpdates method while webhook is active; use deleteWebhook to delete the webhook first"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TelegramFault:
    """A fault for one call of the Bot API.

    With `arrives`, the call is performed, and only its response is lost.
    """

    status: int = 0
    description: str = ""
    parameters: dict[str, int] = field(default_factory=dict[str, int])
    body: bytes = b""  # instead of a valid response
    breaks: bool = False  # the connection is cut
    hangs: bool = False  # no response: a half-open connection
    arrives: bool = False
    delay_s: float = 0.0


def throttle_fault(seconds: int) -> TelegramFault:
    """Return a fault that refuses a call with the status 429 and a retry time."""
    return TelegramFault(
        status=429, description=f"Too Many Requests: retry after {seconds}", parameters={"retry_after": seconds}
    )


class TelegramServer(FakeTelegram):
    """Serves Telegram's Bot API at `url`, for the bot with `token`."""

    def __init__(self, *, token: str = TOKEN, bot_id: int = 777, username: str = "retinue_bot") -> None:
        super().__init__(bot_id=bot_id, username=username)
        self.token = token
        self.poll_count = 0  # getUpdates calls so far
        self.hang_count = 0  # responses that were never sent, or not completely
        self._faults: dict[str, deque[TelegramFault]] = {}
        self._port = free_port()
        self._runner: web.AppRunner | None = None
        self._update_queued = asyncio.Event()
        self._closing = asyncio.Event()
        self._current_poll: asyncio.Future[None] | None = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self._port}"

    async def start(self) -> None:
        """Start the server, on the same port as before."""
        app = web.Application(client_max_size=REQUEST_BYTES_MAX)
        app.router.add_route(ANY_METHOD, "/bot{token}/{method}", self._handle_call)
        app.router.add_get("/file/bot{token}/{path:.+}", self._download)
        self._closing = asyncio.Event()
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1, access_log=None)
        await self._runner.setup()
        site = web.TCPSite(self._runner, HOST, self._port)
        await site.start()

    async def stop(self) -> None:
        """Stop the server, and close every open connection."""
        if self._runner is not None:
            self._closing.set()
            runner, self._runner = self._runner, None
            await runner.cleanup()

    def will_fail(self, method: str, *faults: TelegramFault) -> None:
        """Set one fault for each of the next calls of a method. The method `*` matches any method."""
        self._faults.setdefault(method, deque()).extend(faults)

    def revoke_token(self, token: str = "777:another") -> None:
        """Make the current token invalid."""
        self.token = token

    def on_update(self) -> None:
        self._update_queued.set()

    async def _handle_call(self, request: web.Request) -> web.StreamResponse:
        method = request.match_info["method"]
        if request.match_info["token"] != self.token:
            return _error_response(FakeTelegramError(401, "Unauthorized"))
        arguments, uploads = await _read_request(request)
        fault = self._next_fault(method)
        if fault is None:
            return await self._respond(method, arguments, uploads)
        if fault.delay_s:
            await asyncio.sleep(fault.delay_s)  # sleep: the fault is to be late
        if fault.arrives or not (fault.breaks or fault.hangs or fault.status or fault.body):
            answer = await self._respond(method, arguments, uploads)
            if not (fault.breaks or fault.hangs or fault.status or fault.body):
                return answer
        if fault.hangs:
            self.hang_count += 1
            await self._closing.wait()
        if fault.breaks or fault.hangs:
            _abort_connection(request)
        if fault.body:
            return web.Response(status=fault.status or 502, body=fault.body, content_type="text/html")
        return _error_response(FakeTelegramError(fault.status, fault.description, **fault.parameters))

    def _next_fault(self, method: str) -> TelegramFault | None:
        waiting = self._faults.get(method) or self._faults.get(ANY_METHOD)
        return waiting.popleft() if waiting else None

    async def _respond(self, method: str, arguments: Json, uploads: dict[str, UploadedFile]) -> web.Response:
        try:
            if method == "getUpdates":
                return _ok_response(await self._get_updates(arguments))
            return _ok_response(self.call_method(method, arguments, uploads))
        except FakeTelegramError as no:
            return _error_response(no)

    async def _get_updates(self, arguments: Json) -> list[Json]:
        self.poll_count += 1
        self.calls.append(("getUpdates", arguments))
        if self.webhook:
            raise FakeTelegramError(409, WEBHOOK_CONFLICT)
        if "allowed_updates" in arguments:
            self.allowed_updates = cast("list[str]", arguments["allowed_updates"])
        if self._current_poll is not None and not self._current_poll.done():
            self._current_poll.set_exception(FakeTelegramError(409, POLL_CONFLICT))  # the newer call wins
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._current_poll = ended
        try:
            async with asyncio.timeout(float(arguments.get("timeout", 0))):
                while True:
                    if found := self.get_updates(arguments.get("offset"), int(arguments.get("limit", 100))):
                        return found
                    await self._wait_for_update(ended)
        except TimeoutError:
            return self.get_updates(arguments.get("offset"), int(arguments.get("limit", 100)))
        finally:
            if not ended.done():
                ended.cancel()

    async def _wait_for_update(self, poll_ended: asyncio.Future[None]) -> None:
        """Wait for an update, for another `getUpdates` call, or until the server stops."""
        self._update_queued.clear()
        waits = [asyncio.ensure_future(event.wait()) for event in (self._update_queued, self._closing)]
        try:
            await asyncio.wait([poll_ended, *waits], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waits:
                each.cancel()
        if poll_ended.done():
            poll_ended.result()
        if self._closing.is_set():
            raise FakeTelegramError(502, "Bad Gateway")

    async def _download(self, request: web.Request) -> web.StreamResponse:
        file_id = request.match_info["path"].removeprefix("files/").removesuffix(".bin")
        if request.match_info["token"] != self.token or file_id not in self.files:
            return _error_response(FakeTelegramError(404, "Not Found"))
        content = self.files[file_id].content
        fault = self._next_fault("download")
        if fault is None:
            return web.Response(body=content)
        response = web.StreamResponse(headers={"Content-Length": str(len(content))})
        await response.prepare(request)
        await response.write(content[: len(content) // 2])
        if fault.hangs:
            self.hang_count += 1
            await self._closing.wait()
        _abort_connection(request)
        return response


async def _read_request(request: web.Request) -> tuple[Json, dict[str, UploadedFile]]:
    """Return the arguments and uploads of a request.

    Arguments are JSON, or form fields. The value of a form field is a string or JSON.
    """
    if request.content_type == "application/json":
        return cast(Json, await request.json()), {}
    arguments: Json = {**request.query}
    uploads: dict[str, UploadedFile] = {}
    if request.content_type.startswith("multipart/"):
        async for part in await request.multipart():
            assert isinstance(part, BodyPartReader)
            assert part.name is not None
            content = bytes(await part.read())
            if part.filename is not None:
                kind = part.headers.get("Content-Type", "")
                uploads[part.name] = UploadedFile(name=part.filename, media_type=kind, content=content)
            else:
                arguments[part.name] = content.decode()
    else:
        arguments |= {key: str(value) for key, value in (await request.post()).items()}
    return {key: _decode_value(value) for key, value in arguments.items()}, uploads


def _decode_value(value: Any) -> Any:
    if isinstance(value, str) and (value[:1] in "[{" or value.removeprefix("-").isdigit()) and value:
        try:
            return json.loads(value)
        except ValueError:
            return value
    return value


def _ok_response(result: Any) -> web.Response:
    return web.json_response({"ok": True, "result": result})


def _error_response(error: FakeTelegramError) -> web.Response:
    body: Json = {"ok": False, "error_code": error.status, "description": error.description}
    return web.json_response(body | ({"parameters": error.parameters} if error.parameters else {}), status=error.status)


def _abort_connection(request: web.Request) -> None:
    """Abort the connection without a regular end, as if the network cable were pulled."""
    if request.transport is not None:
        request.transport.abort()
    raise asyncio.CancelledError  # no client is left to respond to
