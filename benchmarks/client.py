"""A client of the server: it sends over the socket, follows events, and notices when a message has been answered."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

from benchmarks.raw_http import Wire, take_open_wire, unix_wire

ANSWER_S_MAX = 60.0


class Client:
    def __init__(self, home: Path, *, agent: str = "core") -> None:
        self._home = home
        self._agent = agent
        self._free: list[Wire] = []
        self._answered: dict[str, asyncio.Future[float]] = {}
        self._early: dict[str, float] = {}
        self._follow: asyncio.Task[None] | None = None
        self._writer: asyncio.StreamWriter | None = None  # a stream whose writer is dropped is closed

    @property
    def _path(self) -> str:
        return (self._home / "socket").read_text()

    @property
    def _token(self) -> str:
        return (self._home / "owner-token").read_text().strip()

    async def call(self, operation: str, parameters: dict[str, Any]) -> Any:
        wire = take_open_wire(self._free) or await unix_wire(self._path)
        headers = f"authorization: Bearer {self._token}\r\ncontent-type: application/json\r\n".encode()
        path = ("/api/" + operation.replace(".", "/")).encode()
        answer = json.loads(await wire.request([json.dumps(parameters).encode()], path=path, headers=headers))
        self._free.append(wire)
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer

    async def follow(self) -> None:
        """Start following the event stream, to see answers."""
        reader, self._writer = await asyncio.open_unix_connection(self._path, limit=1 << 22)
        head = f"GET /api/events HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {self._token}\r\n\r\n"
        self._writer.write(head.encode())
        while (await reader.readline()).strip():
            pass
        started = asyncio.Event()
        self._follow = asyncio.create_task(self._listen(reader, started))
        await started.wait()

    async def _listen(self, reader: asyncio.StreamReader, started: asyncio.Event) -> None:
        while True:
            line = await reader.readline()
            if not line:
                return
            if line.startswith(b"event: hello"):
                started.set()
            if line.startswith(b"data: ") and b'"run.ended"' in line:
                event = json.loads(line[6:])
                for envelope in event["envelopes"]:
                    waiting = self._answered.pop(envelope, None)
                    if event["outcome"] not in ("answered", "noted"):
                        raise RuntimeError(f"not answered: {event}")
                    if waiting is not None:
                        waiting.set_result(time.perf_counter())
                    else:
                        self._early[envelope] = time.perf_counter()

    async def ask(self, text: str, conversation: str, *, agent: str = "") -> float:
        """Send a message, wait for the answer, and return the elapsed seconds."""
        before = time.perf_counter()
        sent = await self.call(
            "envelope.send", {"to": f"agent:{agent or self._agent}", "text": text, "conversation": conversation}
        )
        envelope = sent["envelope"]
        if envelope in self._early:
            return self._early.pop(envelope) - before
        waiting = self._answered[envelope] = asyncio.get_running_loop().create_future()
        assert self._follow is not None
        await asyncio.wait({waiting, self._follow}, timeout=ANSWER_S_MAX, return_when=asyncio.FIRST_COMPLETED)
        if not waiting.done():
            raise RuntimeError("no answer came") from (self._follow.exception() if self._follow.done() else None)
        return waiting.result() - before

    def check(self) -> None:
        """Raise the error that ended the event stream, if there was one."""
        if self._follow is not None and self._follow.done():
            self._follow.result()

    def close(self) -> None:
        if self._follow is not None:
            self._follow.cancel()
        for wire in self._free:
            wire.close()
