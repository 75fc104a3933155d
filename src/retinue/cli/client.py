"""HTTP/1.1 client for the server's socket, written on the standard library so that a command starts fast."""

from __future__ import annotations

import _socket  # the C part of `socket`; importing the rest would add a sixth to the duration of a command
import json
import os
import time

from retinue.cli.errors import AMBIGUOUS, FAILED, CliError, HouseClosed

TYPE_CHECKING = False  # importing `typing` would take longer than importing this module
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

CALL_S = 30.0
GREETING_S = 5.0  # time to receive the response head of an event stream
READ_BYTES = 64 * 1024
HEAD_BYTES_MAX = 64 * 1024
BROKEN_LINE_S = 30.0  # minimum time to retry when a request may have arrived
RETRY_FIRST_S = 0.05
RETRY_MAX_S = 1.0


class Refused(CliError):
    """An error response from the server."""

    def __init__(self, error: dict[str, Any]) -> None:
        code = str(error.get("code") or "house.broke")
        super().__init__(
            str(error.get("sentence") or "the house refused without a word"),
            code=code,
            because=str(error.get("because") or ""),
            try_this=str(error.get("try") or ""),
            exits=AMBIGUOUS if code == "id.ambiguous" else FAILED,
        )
        self.error = error

    def lines(self) -> list[str]:
        if self.exits != AMBIGUOUS:
            return super().lines()
        candidates: list[str] = self.error.get("candidates", [])
        matches: int = self.error.get("matches", len(candidates))
        shown = [*super().lines(), f"match-count: {matches}"]
        if matches > len(candidates):
            shown += ["candidates-truncated: true", f"candidates-shown: {len(candidates)}"]
        return shown + [f"candidate-id: {candidate}" for candidate in candidates]

    def form(self) -> dict[str, object]:
        return {**super().form(), **self.error}


def home() -> str:
    """Return the data directory: `RETINUE_HOME`, or `~/.retinue`."""
    named = os.path.expanduser(os.environ.get("RETINUE_HOME") or "~/.retinue")
    if os.path.isabs(named):
        return named
    raise CliError(
        f"RETINUE_HOME is '{named}'",
        code="config.invalid",
        because="it must be an absolute path, or one from ~",
        try_this="RETINUE_HOME=~/.retinue",
    )


def _kept(name: str) -> str:
    """Read a file that the server wrote into the data directory for clients."""
    path = os.path.join(home(), name)
    try:
        with open(path, encoding="utf-8") as file:
            return file.read().strip()
    except FileNotFoundError:
        raise HouseClosed(f"no house was ever opened in {home()}") from None
    except OSError as error:
        raise HouseClosed(f"{path} cannot be read ({error.strerror})") from None


def is_elsewhere() -> bool:
    """Whether `RETINUE_URL` names the server, instead of the socket in the data directory."""
    return bool(os.environ.get("RETINUE_URL"))


def _token() -> str:
    """Return `RETINUE_TOKEN` if it is set (an agent's child processes have their own), or the owner's token."""
    return os.environ.get("RETINUE_TOKEN") or _kept("owner-token")


def _connect(timeout_s: float) -> tuple[_socket.socket, str]:
    """Connect to the server. Returns the socket and the value for the Host header."""
    if is_elsewhere():
        from retinue.cli.tcp import connect, parse_url

        return connect(parse_url(os.environ["RETINUE_URL"]), timeout_s)
    try:
        path = _kept("socket")
    except HouseClosed:
        from retinue.cli.tcp import recorded

        if (line := recorded(home(), timeout_s)) is not None:
            return line
        raise
    link = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    link.settimeout(timeout_s)
    try:
        link.connect(path)
    except OSError as error:
        link.close()
        raise HouseClosed(f"nobody answers at {path} ({error.strerror or error})") from None
    return link, "retinue"


def _request(method: str, path: str, host: str, body: bytes = b"", *, key: str = "", token: str | None = None) -> bytes:
    """Build a request. `token` defaults to the caller's; an empty one sends no Authorization header."""
    head = f"{method} {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n"
    if bearer := _token() if token is None else token:
        head += f"Authorization: Bearer {bearer}\r\n"
    if key:
        head += f"Idempotency-Key: {_header(key)}\r\n"
    if body:
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    return head.encode("latin-1", "replace") + b"\r\n" + body


def _header(key: str) -> str:
    if key.isascii() and key.isprintable() and key == key.strip():
        return key
    raise CliError(
        "this key cannot be used",
        code="key.invalid",
        because="a key that goes before an operation has printable ASCII characters only",
        try_this="use a random word, and the same one when you ask again",
    )


def _say(link: _socket.socket, request: bytes) -> None:
    try:
        link.sendall(request)
    except (BrokenPipeError, ConnectionResetError):
        pass  # the server may reject a request before reading all of it; its response can still be read


def _hear(link: _socket.socket) -> bytes:
    heard = link.recv(READ_BYTES)
    if not heard:
        raise ConnectionResetError("the line was cut")
    return heard


def _head(link: _socket.socket) -> tuple[int, dict[str, str], bytes]:
    """Read the response head. Returns status, headers and the part of the body already received."""
    heard = b""
    while b"\r\n\r\n" not in heard:
        if len(heard) > HEAD_BYTES_MAX:
            raise ValueError("an endless head")
        heard += _hear(link)
    head, _, rest = heard.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    headers: dict[str, str] = {}
    for line in lines:
        name, _, value = line.partition(":")
        headers[name.strip().lower()] = value.strip()
    return int(first.partition(" ")[2][:3]), headers, rest


def _body(link: _socket.socket, headers: dict[str, str], heard: bytes) -> bytes:
    if headers.get("transfer-encoding", "").lower() == "chunked":
        chunks = Chunks()
        body = chunks.feed(heard)
        while not chunks.ended:
            body += chunks.feed(_hear(link))
        return body
    size = int(headers.get("content-length", "0"))
    parts = [heard]
    left = size - len(heard)
    while left > 0:
        parts.append(_hear(link))
        left -= len(parts[-1])
    return b"".join(parts)


class Chunks:
    """Decodes HTTP chunked transfer encoding incrementally."""

    def __init__(self) -> None:
        self.ended = False
        self._waiting = b""

    def feed(self, heard: bytes) -> bytes:
        self._waiting += heard
        whole: list[bytes] = []
        while not self.ended:
            line, newline, rest = self._waiting.partition(b"\r\n")
            if not newline:
                break
            size = int(line.partition(b";")[0], 16)
            if len(rest) < size + 2:
                break
            self.ended = size == 0
            whole.append(rest[:size])
            self._waiting = rest[size + 2 :]
        return b"".join(whole)


def ask(operation: str, parameters: dict[str, Any] | None = None, *, key: str = "", timeout_s: float = CALL_S) -> bytes:
    """Call an operation and return the response body. An idempotency key makes repeated calls one."""
    body = json.dumps(parameters or {}).encode()
    path = "/api/" + operation.replace(".", "/")
    return _asked(lambda host: _request("POST", path, host, body, key=key), timeout_s=timeout_s)


def _asked(request: Callable[[str], bytes], *, timeout_s: float) -> bytes:
    """Send one request and return the response body. `build_request` gets the Host header's value."""
    link, host = _connect(timeout_s)
    try:
        _say(link, request(host))
        status, headers, heard = _head(link)
        answer = _body(link, headers, heard)
    except (OSError, ValueError) as error:
        raise HouseClosed(f"the line broke before it answered ({error})", asked=True) from None
    finally:
        link.close()
    if status >= 400:
        raise refusal(answer)
    return answer


def call(operation: str, parameters: dict[str, Any] | None = None) -> dict[str, Any]:
    """Call an operation and return its decoded response."""
    return json.loads(ask(operation, parameters))


def brought() -> list[Any]:
    """Return the operations of plugins, in the form of `operation_table.OPERATIONS`."""
    return json.loads(_asked(lambda host: _request("GET", "/api/operations?of=plugins", host), timeout_s=CALL_S))[
        "commands"
    ]


def join(invitation: str) -> dict[str, Any]:
    """Redeem an invitation. The caller has no identity yet, so no token is sent."""
    body = json.dumps({"invitation": invitation}).encode()
    return json.loads(_asked(lambda host: _request("POST", "/api/join", host, body, token=""), timeout_s=CALL_S))


def refusal(answer: bytes) -> Refused:
    try:
        error: dict[str, Any] = json.loads(answer)["error"]
    except (ValueError, KeyError, TypeError):
        error = {}
    return Refused(error)


def post(envelope: dict[str, Any], *, wait_s: float, waiting: Callable[[], None]) -> dict[str, Any]:
    """Send an envelope repeatedly until it is accepted. Its idempotency key makes the repeats one.

    Waits at most `wait_s` for a server that is down, and longer if the connection broke after the
    request was sent. Calls `on_waiting` once, before the first retry.
    """
    began_at = time.monotonic()
    pause_s = RETRY_FIRST_S
    told = False
    while True:
        try:
            return call("envelope.send", envelope)
        except HouseClosed as closed:
            if closed.asked:
                wait_s = max(wait_s, BROKEN_LINE_S)
            if time.monotonic() - began_at >= wait_s:
                raise
        if not told:
            told = True
            waiting()
        time.sleep(pause_s)
        pause_s = min(pause_s * 2, RETRY_MAX_S)


class Stream:
    """Stream of a session's events after a cursor, and its deltas. Has a `fileno()` for `select`."""

    def __init__(self, *, after: int, session: str) -> None:
        self._link, host = _connect(GREETING_S)
        self._chunks = Chunks()
        self._waiting = b""
        try:
            _say(self._link, _request("GET", f"/api/news?after={after}&session={session}", host))
            status, headers, heard = _head(self._link)
            if status >= 400:
                raise refusal(_body(self._link, headers, heard))
        except (OSError, ValueError) as error:
            self.close()
            raise HouseClosed(f"the line broke before it answered ({error})", asked=True) from None
        except CliError:
            self.close()
            raise
        self._waiting = self._chunks.feed(heard)

    def fileno(self) -> int:
        return self._link.fileno()

    def close(self) -> None:
        self._link.close()

    def receive(self) -> list[tuple[str, dict[str, Any]]]:
        """Receive bytes and return the complete events. Blocks if none are available: use `select` first."""
        try:
            self._waiting += self._chunks.feed(_hear(self._link))
            if self._chunks.ended:
                raise ConnectionResetError("the house ended it")
            return self.ready()
        except (OSError, ValueError) as error:
            raise HouseClosed(f"the line broke ({error})", asked=True) from None

    def ready(self) -> list[tuple[str, dict[str, Any]]]:
        """Return the complete events in the buffer."""
        *blocks, self._waiting = self._waiting.split(b"\n\n")
        return [event for block in blocks if (event := _event(block)) is not None]


def _event(block: bytes) -> tuple[str, dict[str, Any]] | None:
    """Parse one server-sent event. Returns None for a comment, which the server sends as keep-alive."""
    name, data = "", b""
    for line in block.split(b"\n"):
        if line.startswith(b"event: "):
            name = line[7:].decode()
        elif line.startswith(b"data: "):
            data = line[6:]
    return (name, json.loads(data)) if data else None
