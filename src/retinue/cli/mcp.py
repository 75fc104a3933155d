"""Runs `retinue mcp serve`: an MCP server on stdin and stdout that forwards every request to the server.

It is for MCP clients that start MCP servers as child processes. Requests use the token in `RETINUE_TOKEN`, otherwise
the owner's token from the data directory.
"""

from __future__ import annotations

import json
import sys

from retinue.cli import client
from retinue.cli.errors import EXIT_OK, CliError, UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, BinaryIO

MCP_CALL_TIMEOUT_S = 3_600.0  # a tool call may take a long time; the server enforces the actual limit
CONCURRENT_REQUESTS_MAX = 16
LINE_BYTES_MAX = 16 * 1024 * 1024
INTERNAL_ERROR, PARSE_ERROR = -32603, -32700


USAGE = """usage: retinue mcp serve [--agent NAME]

Serve MCP on stdin and stdout: the operations of the server, and the tools of an agent. Use it for MCP clients that
start their servers themselves. Other clients connect to the server at /mcp.

options:
  --agent NAME  agent whose tools are offered too
"""


def run_command(arguments: list[str]) -> int:
    match arguments:
        case []:
            return serve()
        case ["-h" | "--help"]:
            sys.stdout.write(USAGE)
            return EXIT_OK
        case ["--agent", agent]:
            return serve(agent)
        case _:
            raise UsageError(
                f"unrecognized arguments: {' '.join(arguments)}",
                because="retinue mcp serve has no such option or argument",
                try_this="retinue mcp serve --agent NAME",
            )


def serve(agent: str = "", *, stdin: BinaryIO | None = None, stdout: BinaryIO | None = None) -> int:
    """Forward MCP requests until stdin ends.

    Requests run concurrently, and each response is written when it is ready.
    """
    from concurrent.futures import ThreadPoolExecutor
    from threading import BoundedSemaphore, Lock
    from urllib.parse import quote

    path = f"/mcp?agent={quote(agent, safe='')}" if agent else "/mcp"
    source, target, writing = stdin or sys.stdin.buffer, stdout or sys.stdout.buffer, Lock()
    turns = BoundedSemaphore(CONCURRENT_REQUESTS_MAX)

    def forward(line: bytes) -> None:
        try:
            if answer := _forward_request(path, line):
                with writing:
                    target.write(answer.rstrip(b"\n") + b"\n")
                    target.flush()
        finally:
            turns.release()

    with ThreadPoolExecutor(CONCURRENT_REQUESTS_MAX) as several:
        while line := source.readline(LINE_BYTES_MAX):
            if line.strip():
                turns.acquire()  # back-pressure: unread requests wait in the client's pipe
                several.submit(forward, line)
    return EXIT_OK


def _forward_request(path: str, line: bytes) -> bytes:
    """Forward one request and return the server's response. A connection error is returned as a JSON-RPC error."""
    try:
        build_request = client._build_request  # pyright: ignore[reportPrivateUsage]
        send_request = client._send_request  # pyright: ignore[reportPrivateUsage]
        return send_request(lambda host: build_request("POST", path, host, line), timeout_s=MCP_CALL_TIMEOUT_S)
    except CliError as error:
        return _build_error(line, INTERNAL_ERROR, "\n".join(error.to_lines()))


def _build_error(line: bytes, code: int, message: str) -> bytes:
    try:
        request: Any = json.loads(line)
    except ValueError:
        request, code, message = {"id": None}, PARSE_ERROR, "the request is not JSON"
    if not isinstance(request, dict) or "id" not in request:
        return b""  # a JSON-RPC notification gets no response
    error = {"code": code, "message": message}
    return json.dumps({"jsonrpc": "2.0", "id": request["id"], "error": error}).encode()


if __name__ == "__main__":
    sys.exit(serve(*sys.argv[1:2]))
