"""`retinue mcp serve`: an MCP server on stdin and stdout that forwards every request to the server.

For MCP clients that start their servers themselves. Requests are made with `RETINUE_TOKEN`, or with
the owner's token from the data directory.
"""

from __future__ import annotations

import json
import sys

from retinue.cli import client
from retinue.cli.errors import OK, CliError, UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, BinaryIO

CALL_S = 3_600.0  # a tool call may take long; the server enforces the actual limit
AT_ONCE_MAX = 16
LINE_BYTES_MAX = 16 * 1024 * 1024
INTERNAL_ERROR, PARSE_ERROR = -32603, -32700


USAGE = """usage: retinue mcp serve [--agent NAME]

Be an MCP server on this program's input and output: the operations of the house, and an agent's tools. For programs
that start their servers themselves; others reach the house at /mcp.

options:
  --agent NAME  whose tools are offered beside the operations
"""


def command(words: list[str]) -> int:
    match words:
        case []:
            return serve()
        case ["-h" | "--help"]:
            sys.stdout.write(USAGE)
            return OK
        case ["--agent", agent]:
            return serve(agent)
        case _:
            raise UsageError(
                f"unrecognized arguments: {' '.join(words)}",
                because="retinue mcp serve takes no such words",
                try_this="retinue mcp serve --agent NAME",
            )


def serve(agent: str = "", *, heard: BinaryIO | None = None, said: BinaryIO | None = None) -> int:
    """Forward requests until stdin ends. They run concurrently, and each response is written when it is ready."""
    from concurrent.futures import ThreadPoolExecutor
    from threading import BoundedSemaphore, Lock
    from urllib.parse import quote

    path = f"/mcp?agent={quote(agent, safe='')}" if agent else "/mcp"
    source, target, writing = heard or sys.stdin.buffer, said or sys.stdout.buffer, Lock()
    turns = BoundedSemaphore(AT_ONCE_MAX)

    def hand_on(line: bytes) -> None:
        try:
            if answer := _answer(path, line):
                with writing:
                    target.write(answer.rstrip(b"\n") + b"\n")
                    target.flush()
        finally:
            turns.release()

    with ThreadPoolExecutor(AT_ONCE_MAX) as several:
        while line := source.readline(LINE_BYTES_MAX):
            if line.strip():
                turns.acquire()  # back-pressure: unread requests wait in the client's pipe
                several.submit(hand_on, line)
    return OK


def _answer(path: str, line: bytes) -> bytes:
    """Return the server's response. A connection error becomes a response too, so that the client sees it."""
    try:
        say = client._request  # pyright: ignore[reportPrivateUsage]
        asked = client._asked  # pyright: ignore[reportPrivateUsage]
        return asked(lambda host: say("POST", path, host, line), timeout_s=CALL_S)
    except CliError as error:
        return _error(line, INTERNAL_ERROR, "\n".join(error.lines()))


def _error(line: bytes, code: int, message: str) -> bytes:
    try:
        asked: Any = json.loads(line)
    except ValueError:
        asked, code, message = {"id": None}, PARSE_ERROR, "this is not JSON"
    if not isinstance(asked, dict) or "id" not in asked:
        return b""  # a JSON-RPC notification gets no response
    error = {"code": code, "message": message}
    return json.dumps({"jsonrpc": "2.0", "id": asked["id"], "error": error}).encode()


if __name__ == "__main__":
    sys.exit(serve(*sys.argv[1:2]))
