"""A small client of the Chrome DevTools Protocol: NUL-terminated JSON messages over two pipes."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import re
from collections.abc import Callable
from typing import Any

import msgspec

from retinue.tools.base import ToolFailed

CALL_S = 30.0
MESSAGE_BYTES_MAX = 48 * 1024 * 1024
_CHUNK_BYTES = 256 * 1024
_ID = re.compile(rb'\{"id":(\d{1,15}),')

Event = Callable[[str, dict[str, Any], str], None]
"""Called with the name, the parameters and the protocol session of each event. The last one is `gone`."""


class BrowserFailed(ToolFailed):
    """The browser did not perform a command."""

    code = "browser.failed"


class TooMuch(BrowserFailed):
    """The response exceeded the size limit."""

    code = "browser.too-much"


class Cdp:
    """Sends commands and dispatches events."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._listeners: list[Event] = []
        self._over = False
        self._task = asyncio.get_running_loop().create_task(self._listen())

    @property
    def open(self) -> bool:
        return not self._over

    def listen(self, event: Event) -> None:
        self._listeners.append(event)

    async def call(
        self, method: str, params: dict[str, Any] | None = None, *, session: str = "", timeout_s: float = CALL_S
    ) -> dict[str, Any]:
        """Send a command and return its result. Raises `BrowserFailed`."""
        if not self.open:
            raise _gone()
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
            raise _gone() from None
        except TimeoutError:
            raise BrowserFailed(
                "the browser does not answer",
                because=f"{method} took more than {timeout_s:g} seconds",
                try_this="close it, and open the page again",
                code="browser.timeout",
            ) from None
        finally:
            del self._waiting[number]
            if not answer.cancel() and not answer.cancelled():
                answer.exception()  # retrieve the exception so that asyncio does not log it

    async def close(self, *, grace_s: float = 0.0) -> None:
        """Close the connection. `grace_s` is the time to read remaining messages of a finished
        browser.
        """
        await asyncio.wait([self._task], timeout=grace_s)
        self._task.cancel()
        await asyncio.wait([self._task])
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()

    async def _listen(self) -> None:
        try:
            await self._read()
        except (OSError, msgspec.DecodeError):
            pass  # the browser ended, or sent an invalid message
        finally:
            self._over = True
            for answer in self._waiting.values():
                if not answer.done():
                    answer.set_exception(_gone())
            for listener in self._listeners:
                listener("gone", {}, "")

    async def _read(self) -> None:
        buffer = bytearray()
        beginning = b""  # of a message that exceeds the limit
        while chunk := await self._reader.read(_CHUNK_BYTES):
            *whole, rest = chunk.split(b"\0")
            for piece in whole:
                if beginning:
                    self._too_much(beginning)
                    beginning = b""
                else:
                    buffer += piece
                    self._hear(bytes(buffer))
                buffer.clear()
            if beginning:
                continue
            buffer += rest
            if len(buffer) > MESSAGE_BYTES_MAX:
                beginning = bytes(buffer[:64])
                buffer.clear()

    def _hear(self, raw: bytes) -> None:
        message: dict[str, Any] = msgspec.json.decode(raw, type=dict[str, Any])
        answer = self._waiting.get(message.get("id", 0))
        if answer is None:
            if "method" in message:
                for listener in self._listeners:
                    listener(message["method"], message.get("params", {}), message.get("sessionId", ""))
        elif not answer.done():
            if "error" in message:
                because = str(message["error"].get("message", ""))[:200]
                answer.set_exception(BrowserFailed("the browser could not do that", because=because))
            else:
                answer.set_result(message.get("result", {}))

    def _too_much(self, beginning: bytes) -> None:
        found = _ID.match(beginning)
        answer = self._waiting.get(int(found[1])) if found else None
        if answer is not None and not answer.done():
            answer.set_exception(
                TooMuch("there is too much on this page", because="the browser's answer was too large")
            )


def _gone() -> BrowserFailed:
    return BrowserFailed(
        "the browser is gone",
        because="it ended, or was closed",
        try_this="open the page again",
        code="browser.gone",
    )
