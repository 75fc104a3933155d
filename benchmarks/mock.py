"""The mock model: answers every request on loopback with the same small reply, after a set latency."""

from __future__ import annotations

import asyncio
import sys
from typing import cast

REPLY = b'{"text":"' + b"word " * 40 + b'"}'
ANSWER = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(REPLY), REPLY)


class Mock(asyncio.Protocol):
    def __init__(self, latency_s: float) -> None:
        self._latency_s = latency_s
        self._buffer = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one in all but name

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            return
        at = self._buffer.find(b"content-length: ")
        length = int(self._buffer[at + 16 : self._buffer.find(b"\r", at)])
        if len(self._buffer) < end + 4 + length:
            return
        del self._buffer[: end + 4 + length]
        if self._latency_s:
            asyncio.get_running_loop().call_later(self._latency_s, self._transport.write, ANSWER)
        else:
            self._transport.write(ANSWER)


async def serve(latency_s: float) -> None:
    server = await asyncio.get_running_loop().create_server(lambda: Mock(latency_s), "127.0.0.1", 0)
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve(float(sys.argv[1])))
