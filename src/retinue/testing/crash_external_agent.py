"""The external agent of the crash test: an HTTP server on loopback that is not killed with the server.

The external agent receives requests over HTTP and answers with signed callbacks. It trusts nothing.
It writes to disk what it received, what it is about to send, and how the server responded, before
it acts on any of these.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from retinue.net.signatures import (
    MESSAGE_ID_HEADER,
    REQUEST_ID_HEADER,
    SIGNATURE_HEADER,
    TIMESTAMP_HEADER,
    SignaturePurpose,
    sign_message,
)
from retinue.testing import crash_script as script
from retinue.testing.crash_client import RETRY_PAUSE_S, ApiConnection, ConnectionClosed, RequestRefused, read_head
from retinue.testing.crash_log import CallbackEntry, CallbackResultEntry, ComplaintEntry, CrashLog, RequestEntry

KEY_NAME = "RETINUE_TEST_FAR_KEY"
KEY = "a key that the two share"
ANSWER_WAIT_S = 12.0  # how long the server waits for an answer
CALLBACK_S_MAX = 60.0
_BEHAVIORS = {"at-once": 4, "soon": 8, "twice": 4, "more": 3, "busy": 3, "unsure": 2, "late": 1, "never": 1}


@dataclass(slots=True)
class CrashExternalAgent:
    """Answers every request in the text protocol of `crash_script`. The id of a request determines its answer."""

    data_dir: Path
    log: CrashLog
    url: str = ""
    _server: asyncio.Server | None = None
    _seen_requests: set[str] = field(default_factory=set[str])
    _refused_requests: set[str] = field(default_factory=set[str])  # requests that were refused once
    _tasks: set[asyncio.Task[None]] = field(default_factory=set[asyncio.Task[None]])

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port: int = self._server.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{port}/in"

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def is_busy(self) -> bool:
        """Whether the external agent still has a callback to send."""
        return bool(self._tasks)

    # --- requests ---

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            _, headers = await read_head(reader)
            body = await reader.readexactly(int(headers["content-length"]))
            status = await self._handle_request(headers, body)
            if status:
                writer.write(f"HTTP/1.1 {status} Noted\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode())
                await writer.drain()
        except (OSError, EOFError, ValueError, LookupError):
            pass  # the server was killed during the request
        finally:
            writer.close()

    async def _handle_request(self, headers: dict[str, str], body: bytes) -> int:
        """Handle a request, and return the status of the response. 0 closes the connection without a response."""
        request_body = json.loads(body)
        envelope, session = request_body["id"], request_body["sessionId"]
        at = headers[TIMESTAMP_HEADER.lower()]
        expected = sign_message(
            KEY, SignaturePurpose.MESSAGE, timestamp=at, session=session, message_id=envelope, body=body
        )
        if headers[SIGNATURE_HEADER.lower()] != expected:
            await self.log.write(ComplaintEntry(t=time.monotonic(), text=f"the request {envelope} is not signed"))
            return 400
        chance = random.Random(envelope)
        mood = chance.choices(list(_BEHAVIORS), list(_BEHAVIORS.values()))[0]
        if mood == "busy" and envelope not in self._refused_requests:
            self._refused_requests.add(envelope)
            return 503
        first = envelope not in self._seen_requests
        self._seen_requests.add(envelope)
        text = request_body["message"]["text"]
        await self.log.write(RequestEntry(t=time.monotonic(), envelope=envelope, session=session, text=text))
        path = request_body["callbackUrl"].partition("//")[2].partition("/")[2]
        if first:
            answering = self._start_task(
                self._answer_request(envelope, session, f"/{path}", script.external_answer(text), mood)
            )
            if mood == "at-once":
                await asyncio.wait({answering}, timeout=1)  # time limit: either order of the two answers is correct
        return 0 if mood == "unsure" and first else 202

    def _start_task(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # --- callbacks ---

    async def _answer_request(self, request: str, session: str, path: str, text: str, behavior: str) -> None:
        callback = CallbackEntry(
            t=time.monotonic(), session=session, message=f"{request}-1", request=request, text=text
        )
        match behavior:
            case "never":
                return
            case "twice":
                await asyncio.gather(self._send_callback(callback, path), self._send_callback(callback, path))
            case "more":
                await self._send_callback(callback, path)
                more = script.unrequested_message(request)
                await self._send_callback(
                    CallbackEntry(
                        t=time.monotonic(), session=session, message=f"{request}-2", request=request, text=more
                    ),
                    path,
                )
            case "late":
                await asyncio.sleep(ANSWER_WAIT_S + 0.5)  # sleep: it answers too late
                await self._send_callback(callback, path)
            case "at-once":
                await self._send_callback(callback, path)
            case _:
                await asyncio.sleep(random.Random(request).random() * 0.3)  # sleep: it works for a while
                await self._send_callback(callback, path)

    async def _send_callback(self, callback: CallbackEntry, path: str) -> None:
        """Send a callback, and retry it with the same id until the server responds."""
        await self.log.write(callback)
        line, until = ApiConnection(self.data_dir), time.monotonic() + CALLBACK_S_MAX  # time limit: as for any client
        try:
            while time.monotonic() < until:
                try:
                    heard = await line.post(path, callback.text.encode(), _sign_headers(callback))
                    break
                except RequestRefused as refused:
                    if not refused.is_temporary:
                        return await self.log.write(
                            ComplaintEntry(t=time.monotonic(), text=f"{callback.message} was refused: {refused}")
                        )
                except ConnectionClosed:
                    pass
                await asyncio.sleep(RETRY_PAUSE_S)  # sleep: before the server is called again
            else:
                return None
        finally:
            line.close()
        await self.log.write(
            CallbackResultEntry(
                t=time.monotonic(),
                session=callback.session,
                message=callback.message,
                envelope=heard["envelope"],
                answers=heard["answered_envelope"],
            )
        )


def _sign_headers(callback: CallbackEntry) -> dict[str, str]:
    at, body = str(int(time.time())), callback.text.encode()
    signature = sign_message(
        KEY,
        SignaturePurpose.CALLBACK,
        timestamp=at,
        session=callback.session,
        message_id=callback.message,
        request_id=callback.request,
        body=body,
    )
    return {
        TIMESTAMP_HEADER: at,
        MESSAGE_ID_HEADER: callback.message,
        REQUEST_ID_HEADER: callback.request,
        SIGNATURE_HEADER: signature,
    }
