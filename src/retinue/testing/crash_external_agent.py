"""The external agent of the crash test: an HTTP server on loopback that survives every kill of the server.

It receives requests by HTTP and answers with signed callbacks. Like the clients it trusts nothing:
what it received, what it is about to send, and the server's response are on disk before they count.
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

from retinue.net.signatures import ABOUT, LETTER, SIGNATURE, TIMESTAMP, Purpose, signed
from retinue.testing import crash_script as script
from retinue.testing.crash_client import CALL_AGAIN_S, Closed, Line, Refused, read_head
from retinue.testing.crash_log import Brought, Complaint, Heard, Log, Said

KEY_NAME = "RETINUE_TEST_FAR_KEY"
KEY = "a key that the two share"
WAIT_S = 12.0  # how long the server waits for an answer
TRIED_S_MAX = 60.0
_MOODS = {"at-once": 4, "soon": 8, "twice": 4, "more": 3, "busy": 3, "unsure": 2, "late": 1, "never": 1}


@dataclass(slots=True)
class FarSide:
    """Answers every request in the language of `crash_script`. The id of a request determines how."""

    home: Path
    log: Log
    url: str = ""
    _server: asyncio.Server | None = None
    _known: set[str] = field(default_factory=set[str])
    _busy: set[str] = field(default_factory=set[str])  # requests that were refused once
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
    def talking(self) -> bool:
        """Whether a callback is still to be sent."""
        return bool(self._tasks)

    # --- requests ---

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            _, headers = await read_head(reader)
            body = await reader.readexactly(int(headers["content-length"]))
            status = await self._take(headers, body)
            if status:
                writer.write(f"HTTP/1.1 {status} Noted\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode())
                await writer.drain()
        except (OSError, EOFError, ValueError, LookupError):
            pass  # the server was killed during the request
        finally:
            writer.close()

    async def _take(self, headers: dict[str, str], body: bytes) -> int:
        """Handle a request. Returns the status to respond with; 0 closes the connection without a response."""
        told = json.loads(body)
        letter, session = told["id"], told["sessionId"]
        at = headers[TIMESTAMP.lower()]
        expected = signed(KEY, Purpose.MESSAGE, at=at, session=session, letter=letter, body=body)
        if headers[SIGNATURE.lower()] != expected:
            await self.log.write(Complaint(t=time.monotonic(), text=f"the letter {letter} is not signed"))
            return 400
        chance = random.Random(letter)
        mood = chance.choices(list(_MOODS), list(_MOODS.values()))[0]
        if mood == "busy" and letter not in self._busy:
            self._busy.add(letter)
            return 503
        first = letter not in self._known
        self._known.add(letter)
        text = told["message"]["text"]
        await self.log.write(Brought(t=time.monotonic(), letter=letter, session=session, text=text))
        path = told["callbackUrl"].partition("//")[2].partition("/")[2]
        if first:
            answering = self._do(self._answer(letter, session, f"/{path}", script.answered_elsewhere(text), mood))
            if mood == "at-once":
                await asyncio.wait({answering}, timeout=1)  # time limit: either order of the two answers is correct
        return 0 if mood == "unsure" and first else 202

    def _do(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # --- callbacks ---

    async def _answer(self, letter: str, session: str, path: str, text: str, mood: str) -> None:
        said = Said(t=time.monotonic(), session=session, message=f"{letter}-1", request=letter, text=text)
        match mood:
            case "never":
                return
            case "twice":
                await asyncio.gather(self._say(said, path), self._say(said, path))
            case "more":
                await self._say(said, path)
                more = script.by_the_way(letter)
                await self._say(
                    Said(t=time.monotonic(), session=session, message=f"{letter}-2", request=letter, text=more), path
                )
            case "late":
                await asyncio.sleep(WAIT_S + 0.5)  # sleep: it answers too late
                await self._say(said, path)
            case "at-once":
                await self._say(said, path)
            case _:
                await asyncio.sleep(random.Random(letter).random() * 0.3)  # sleep: it works for a while
                await self._say(said, path)

    async def _say(self, said: Said, path: str) -> None:
        """Send a callback, repeated with the same id until the server responds."""
        await self.log.write(said)
        line, until = Line(self.home), time.monotonic() + TRIED_S_MAX  # time limit: as of any client
        try:
            while time.monotonic() < until:
                try:
                    heard = await line.post(path, said.text.encode(), _headers(said))
                    break
                except Refused as refused:
                    if not refused.for_now:
                        return await self.log.write(
                            Complaint(t=time.monotonic(), text=f"{said.message} was refused: {refused}")
                        )
                except Closed:
                    pass
                await asyncio.sleep(CALL_AGAIN_S)  # sleep: before the server is called again
            else:
                return None
        finally:
            line.hang_up()
        await self.log.write(
            Heard(
                t=time.monotonic(),
                session=said.session,
                message=said.message,
                envelope=heard["envelope"],
                answers=heard["answers"],
            )
        )


def _headers(said: Said) -> dict[str, str]:
    at, body = str(int(time.time())), said.text.encode()
    signature = signed(
        KEY, Purpose.CALLBACK, at=at, session=said.session, letter=said.message, about=said.request, body=body
    )
    return {TIMESTAMP: at, LETTER: said.message, ABOUT: said.request, SIGNATURE: signature}
