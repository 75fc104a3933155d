"""HTTP/1.1 client for the server's socket. It uses only the standard library, so that a command starts fast."""

from __future__ import annotations

import _socket  # the C part of `socket`; importing the rest would add a sixth to the duration of a command
import json
import os
import time

from retinue.cli.errors import EXIT_AMBIGUOUS, EXIT_FAILED, CliError, ServerNotAnswering

TYPE_CHECKING = False  # importing `typing` would take longer than importing this module
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

CALL_TIMEOUT_S = 30.0
STREAM_HEAD_TIMEOUT_S = 5.0  # time to receive the response head of an event stream
READ_BYTES = 64 * 1024
HEAD_BYTES_MAX = 64 * 1024
UNCERTAIN_RETRY_S_MIN = 30.0  # minimum time to retry when a request may have arrived
RETRY_FIRST_S = 0.05
RETRY_MAX_S = 1.0


class ApiError(CliError):
    """An error response from the server."""

    def __init__(self, error: dict[str, Any]) -> None:
        code = str(error.get("code") or "server.internal_error")
        super().__init__(
            str(error.get("sentence") or "the server sent an error without a message"),
            code=code,
            because=str(error.get("because") or ""),
            try_this=str(error.get("try") or ""),
            exit_code=EXIT_AMBIGUOUS if code == "id.ambiguous" else EXIT_FAILED,
        )
        self.error = error

    def to_lines(self) -> list[str]:
        if self.exit_code != EXIT_AMBIGUOUS:
            return super().to_lines()
        candidates: list[str] = self.error.get("candidates", [])
        matches: int = self.error.get("matches", len(candidates))
        shown = [*super().to_lines(), f"match-count: {matches}"]
        if matches > len(candidates):
            shown += ["candidates-truncated: true", f"candidates-shown: {len(candidates)}"]
        return shown + [f"candidate-id: {candidate}" for candidate in candidates]

    def to_dict(self) -> dict[str, object]:
        return {**super().to_dict(), **self.error}


def get_data_dir() -> str:
    """Return the data directory: `RETINUE_HOME`, or `~/.retinue`."""
    named = os.path.expanduser(os.environ.get("RETINUE_HOME") or "~/.retinue")
    if os.path.isabs(named):
        return named
    raise CliError(
        f"invalid value for RETINUE_HOME: '{named}'",
        code="config.path_invalid",
        because="it must be an absolute path, or begin with ~",
        try_this="set it to a path such as ~/.retinue",
    )


def _read_server_file(name: str) -> str:
    """Return the content of a file that the server writes for clients, such as the path of its socket."""
    path = os.path.join(get_data_dir(), name)
    try:
        with open(path, encoding="utf-8") as file:
            return file.read().strip()
    except FileNotFoundError:
        raise ServerNotAnswering("no server was ever started there") from None
    except OSError as error:
        raise ServerNotAnswering(f"cannot read {path} ({error.strerror})") from None


def has_server_url() -> bool:
    """Whether `RETINUE_URL` is set. Commands then connect to this URL instead of the socket in the data directory."""
    return bool(os.environ.get("RETINUE_URL"))


def _get_token() -> str:
    """Return the token for requests: `RETINUE_TOKEN` if it is set, otherwise the owner's token.

    For commands that an agent runs, the server sets `RETINUE_TOKEN`.
    """
    return os.environ.get("RETINUE_TOKEN") or _read_server_file("owner-token")


def _connect(timeout_s: float, *, sends_token: bool = True) -> tuple[_socket.socket, str]:
    """Connect to the server. Returns the socket and the value for the Host header."""
    if has_server_url():
        from retinue.cli.tcp_connection import connect, parse_url

        return connect(parse_url(os.environ["RETINUE_URL"]), timeout_s, sends_token=sends_token)
    try:
        path = _read_server_file("socket")
    except ServerNotAnswering:
        from retinue.cli.tcp_connection import connect_recorded

        if (connection := connect_recorded(get_data_dir(), timeout_s)) is not None:
            return connection
        raise
    link = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    link.settimeout(timeout_s)
    try:
        link.connect(path)
    except OSError as error:
        link.close()
        raise ServerNotAnswering(f"no answer at {path} ({error.strerror or error})") from None
    return link, "retinue"


def _build_request(
    method: str, path: str, host: str, body: bytes = b"", *, key: str = "", token: str | None = None
) -> bytes:
    """Return the bytes of a request. `token` defaults to the caller's token; an empty one is not sent."""
    head = f"{method} {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n"
    if bearer := _get_token() if token is None else token:
        head += f"Authorization: Bearer {bearer}\r\n"
    if key:
        head += f"Idempotency-Key: {_validate_key(key)}\r\n"
    if body:
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    return head.encode("latin-1", "replace") + b"\r\n" + body


def _validate_key(key: str) -> str:
    if key.isascii() and key.isprintable() and key == key.strip():
        return key
    raise CliError(
        "invalid idempotency key",
        code="key.invalid",
        because="it must contain only printable ASCII characters, without spaces at the start or end",
        try_this="use a random key; if you retry the request, use the same key again",
    )


def _send(link: _socket.socket, request: bytes) -> None:
    try:
        link.sendall(request)
    except (BrokenPipeError, ConnectionResetError):
        pass  # the server may reject a request before reading all of it; its response can still be read


def _receive(link: _socket.socket) -> bytes:
    data = link.recv(READ_BYTES)
    if not data:
        raise ConnectionResetError("the connection was closed")
    return data


def _read_head(link: _socket.socket) -> tuple[int, dict[str, str], bytes]:
    """Read the head of a response. Returns the status, the headers and the part of the body already received."""
    data = b""
    while b"\r\n\r\n" not in data:
        if len(data) > HEAD_BYTES_MAX:
            raise ValueError("the response head is too long")
        data += _receive(link)
    head, _, rest = data.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    headers: dict[str, str] = {}
    for line in lines:
        name, _, value = line.partition(":")
        headers[name.strip().lower()] = value.strip()
    return int(first.partition(" ")[2][:3]), headers, rest


def _read_body(link: _socket.socket, headers: dict[str, str], received: bytes) -> bytes:
    if headers.get("transfer-encoding", "").lower() == "chunked":
        chunks = ChunkedDecoder()
        body = chunks.feed(received)
        while not chunks.is_complete:
            body += chunks.feed(_receive(link))
        return body
    size = int(headers.get("content-length", "0"))
    parts = [received]
    left = size - len(received)
    while left > 0:
        parts.append(_receive(link))
        left -= len(parts[-1])
    return b"".join(parts)


class ChunkedDecoder:
    """Decodes HTTP chunked transfer encoding incrementally."""

    def __init__(self) -> None:
        self.is_complete = False
        self._buffer = b""

    def feed(self, data: bytes) -> bytes:
        self._buffer += data
        chunks: list[bytes] = []
        while not self.is_complete:
            line, newline, rest = self._buffer.partition(b"\r\n")
            if not newline:
                break
            size = int(line.partition(b";")[0], 16)
            if len(rest) < size + 2:
                break
            self.is_complete = size == 0
            chunks.append(rest[:size])
            self._buffer = rest[size + 2 :]
        return b"".join(chunks)


def call_raw(
    operation: str, parameters: dict[str, Any] | None = None, *, key: str = "", timeout_s: float = CALL_TIMEOUT_S
) -> bytes:
    """Call an operation and return the response body. A second call with the same key has no effect."""
    body = json.dumps(parameters or {}).encode()
    path = "/api/" + operation.replace(".", "/")
    return _send_request(lambda host: _build_request("POST", path, host, body, key=key), timeout_s=timeout_s)


def _send_request(build_request: Callable[[str], bytes], *, timeout_s: float, sends_token: bool = True) -> bytes:
    """Send one request and return the response body. `build_request` is called with the value for the Host header."""
    link, host = _connect(timeout_s, sends_token=sends_token)
    try:
        _send(link, build_request(host))
        status, headers, received = _read_head(link)
        answer = _read_body(link, headers, received)
    except (OSError, ValueError) as error:
        raise ServerNotAnswering(f"the connection broke before the response ({error})", may_have_arrived=True) from None
    finally:
        link.close()
    if status >= 400:
        raise parse_error(answer)
    return answer


def call(operation: str, parameters: dict[str, Any] | None = None) -> dict[str, Any]:
    """Call an operation and return the decoded response."""
    return json.loads(call_raw(operation, parameters))


def list_plugin_operations() -> list[Any]:
    """Return the operations of plugins, in the form of `operation_table.OPERATIONS`."""
    path = "/api/operations?source=plugins"
    return json.loads(_send_request(lambda host: _build_request("GET", path, host), timeout_s=CALL_TIMEOUT_S))[
        "commands"
    ]


def redeem_invitation(invitation: str) -> dict[str, Any]:
    """Exchange an invitation for a token. The request contains no token, because the caller does not have one yet."""
    body = json.dumps({"invitation": invitation}).encode()
    return json.loads(
        _send_request(
            lambda host: _build_request("POST", "/api/join", host, body, token=""),
            timeout_s=CALL_TIMEOUT_S,
            sends_token=False,
        )
    )


def parse_error(body: bytes) -> ApiError:
    try:
        error: dict[str, Any] = json.loads(body)["error"]
    except (ValueError, KeyError, TypeError):
        error = {}
    return ApiError(error)


def send_until_accepted(envelope: dict[str, Any], *, wait_s: float, on_waiting: Callable[[], None]) -> dict[str, Any]:
    """Send an envelope, and retry until it is accepted. The idempotency key ensures that it is accepted only once.

    If the server is not running, this waits at most `wait_s` for it, or longer if the connection broke after the
    request was sent. `on_waiting` is called once, before the first retry.
    """
    began_at = time.monotonic()
    pause_s = RETRY_FIRST_S
    has_called_back = False
    while True:
        try:
            return call("envelope.send", envelope)
        except ServerNotAnswering as closed:
            if closed.may_have_arrived:
                wait_s = max(wait_s, UNCERTAIN_RETRY_S_MIN)
            if time.monotonic() - began_at >= wait_s:
                raise
        if not has_called_back:
            has_called_back = True
            on_waiting()
        time.sleep(pause_s)
        pause_s = min(pause_s * 2, RETRY_MAX_S)


class EventStream:
    """A connection that receives a session's deltas, and its events after a cursor. `fileno()` is for `select`."""

    def __init__(self, *, after: int, session: str) -> None:
        self._link, host = _connect(STREAM_HEAD_TIMEOUT_S)
        self._chunks = ChunkedDecoder()
        self._buffer = b""
        try:
            _send(self._link, _build_request("GET", f"/api/events?after={after}&session={session}", host))
            status, headers, received = _read_head(self._link)
            if status >= 400:
                raise parse_error(_read_body(self._link, headers, received))
        except (OSError, ValueError) as error:
            self.close()
            raise ServerNotAnswering(
                f"the connection broke before the response ({error})", may_have_arrived=True
            ) from None
        except CliError:
            self.close()
            raise
        self._buffer = self._chunks.feed(received)

    def fileno(self) -> int:
        return self._link.fileno()

    def close(self) -> None:
        self._link.close()

    def receive(self) -> list[tuple[str, dict[str, Any]]]:
        """Receive bytes and return the events that are now complete. This blocks, so call `select` first."""
        try:
            self._buffer += self._chunks.feed(_receive(self._link))
            if self._chunks.is_complete:
                raise ConnectionResetError("the server closed the stream")
            return self.take_buffered()
        except (OSError, ValueError) as error:
            raise ServerNotAnswering(f"the connection broke ({error})", may_have_arrived=True) from None

    def take_buffered(self) -> list[tuple[str, dict[str, Any]]]:
        """Return the complete events in the buffer, without receiving more bytes."""
        *blocks, self._buffer = self._buffer.split(b"\n\n")
        return [event for block in blocks if (event := _parse_event(block)) is not None]


def _parse_event(block: bytes) -> tuple[str, dict[str, Any]] | None:
    """Parse one server-sent event. Returns None for a comment, which the server sends as a keep-alive."""
    name, data = "", b""
    for line in block.split(b"\n"):
        if line.startswith(b"event: "):
            name = line[7:].decode()
        elif line.startswith(b"data: "):
            data = line[6:]
    return (name, json.loads(data)) if data else None
