"""A small client of the Chrome DevTools Protocol: NUL-terminated JSON messages over two pipes."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import re
from collections.abc import Callable
from typing import Any

import msgspec

from retinue.tools.web.errors import BrowserCommandFailed, BrowserGone, BrowserReplyTooLarge, BrowserTimeout

CALL_TIMEOUT_S = 30.0
MESSAGE_BYTES_MAX = 48 * 1024 * 1024
_CHUNK_BYTES = 256 * 1024
_ID = re.compile(rb'\{"id":(\d{1,15}),')

EventListener = Callable[[str, dict[str, Any], str], None]
"""Called with the name, the parameters and the protocol session of each event. The last event is `gone`."""


class CdpClient:
    """Sends DevTools commands to a browser, and passes its events to listeners."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._listeners: list[EventListener] = []
        self._is_closed = False
        self._task = asyncio.get_running_loop().create_task(self._run())

    @property
    def is_open(self) -> bool:
        return not self._is_closed

    def add_listener(self, listener: EventListener) -> None:
        self._listeners.append(listener)

    async def call(
        self, method: str, params: dict[str, Any] | None = None, *, session: str = "", timeout_s: float = CALL_TIMEOUT_S
    ) -> dict[str, Any]:
        """Send a command and return its result. Raises `BrowserFailed` if the browser does not perform the command."""
        if not self.is_open:
            raise BrowserGone
        number = next(self._numbers)
        message: dict[str, Any] = {"id": number, "method": method, "params": params or {}}
        if session:
            message["sessionId"] = session
        answer = self._waiting[number] = asyncio.get_running_loop().create_future()
        try:
            self._writer.write(msgspec.json.encode(message) + b"\0")
            async with asyncio.timeout(timeout_s):
                await self._writer.drain()
                return await answer
        except (ConnectionError, RuntimeError):
            raise BrowserGone from None
        except TimeoutError:
            raise BrowserTimeout(method, timeout_s=timeout_s) from None
        finally:
            del self._waiting[number]
            if not answer.cancel() and not answer.cancelled():
                answer.exception()  # retrieve the exception so that asyncio does not log it

    async def close(self, *, grace_s: float = 0.0) -> None:
        """Close the connection. `grace_s` is the time to read the last messages of a browser that has ended."""
        await asyncio.wait([self._task], timeout=grace_s)
        self._task.cancel()
        await asyncio.wait([self._task])
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()

    async def _run(self) -> None:
        try:
            await self._read_messages()
        except (OSError, msgspec.DecodeError):
            pass  # the browser ended, or sent an invalid message
        finally:
            self._is_closed = True
            for answer in self._waiting.values():
                if not answer.done():
                    answer.set_exception(BrowserGone())
            for listener in self._listeners:
                listener("gone", {}, "")

    async def _read_messages(self) -> None:
        buffer = bytearray()
        beginning = b""  # of a message that exceeds the limit
        while chunk := await self._reader.read(_CHUNK_BYTES):
            *complete, rest = chunk.split(b"\0")
            for piece in complete:
                if beginning:
                    self._fail_oversized(beginning)
                    beginning = b""
                else:
                    buffer += piece
                    self._handle_message(bytes(buffer))
                buffer.clear()
            if beginning:
                continue
            buffer += rest
            if len(buffer) > MESSAGE_BYTES_MAX:
                beginning = bytes(buffer[:64])
                buffer.clear()

    def _handle_message(self, raw: bytes) -> None:
        message: dict[str, Any] = msgspec.json.decode(raw, type=dict[str, Any])
        answer = self._waiting.get(message.get("id", 0))
        if answer is None:
            if "method" in message:
                for listener in self._listeners:
                    listener(message["method"], message.get("params", {}), message.get("sessionId", ""))
        elif not answer.done():
            if "error" in message:
                because = str(message["error"].get("message", ""))[:200]
                answer.set_exception(BrowserCommandFailed(because=because))
            else:
                answer.set_result(message.get("result", {}))

    def _fail_oversized(self, prefix: bytes) -> None:
        found = _ID.match(prefix)
        answer = self._waiting.get(int(found[1])) if found else None
        if answer is not None and not answer.done():
            answer.set_exception(BrowserReplyTooLarge(bytes_max=MESSAGE_BYTES_MAX))
