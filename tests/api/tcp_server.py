"""A real server that listens on TCP, and clients that connect to it with plain sockets."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cli.server_process import ServerProcess
from websockets.sync.client import ClientConnection, connect

from retinue.testing.wait_conditions import WAIT_LIMIT_S


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        return self.json["error"]["code"]


class ApiClient:
    """A client of one server, over TCP or its Unix socket."""

    def __init__(self, process: ServerProcess) -> None:
        self.process = process
        self.address = (process.home / "address").read_text()
        self.host, _, port = self.address.removeprefix("http://").rpartition(":")
        self.port = int(port)
        self.token = (process.home / "owner-token").read_text().strip()
        self.socket = (process.home / "socket").read_text()

    @property
    def log(self) -> str:
        return self.process.log.read_text()

    def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        token: str | None = None,
        by_socket: bool = False,
        headers: dict[str, str] | None = None,
    ) -> Answer:
        """Send a request, without a token unless one is given."""
        line = http.client.HTTPConnection(self.host, self.port, timeout=WAIT_LIMIT_S)
        if by_socket:
            line.sock = socket.socket(socket.AF_UNIX)
            line.sock.settimeout(WAIT_LIMIT_S)
            line.sock.connect(self.socket)
        sent = dict(headers or {})
        if token is not None:
            sent["authorization"] = f"Bearer {token}"
        try:
            content = json.dumps(body) if isinstance(body, dict) else body
            line.request(method, path, content, sent)
            answer = line.getresponse()
            return Answer(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())
        finally:
            line.close()

    def do(self, operation: str, *, as_: str = "", headers: dict[str, str] | None = None, **parameters: Any) -> Any:
        """Perform an operation as the owner, or with the token `as_`."""
        path = "/api/" + operation.replace(".", "/")
        answer = self.ask("POST", path, parameters, token=as_ or self.token, headers=headers)
        assert answer.status == 200, answer.body
        return answer.json

    def sign_in(self) -> str:
        """Sign in as the owner and return the browser cookie."""
        code = self.do("token.code")["code"]
        answer = self.ask("POST", "/api/sign-in", {"code": code})
        assert answer.status == 200, answer.body
        return answer.headers["set-cookie"].partition(";")[0]

    def raw(self) -> socket.socket:
        return socket.create_connection((self.host, self.port), timeout=WAIT_LIMIT_S)

    @contextmanager
    def websocket(self, *, as_: str = "", **hello: Any) -> Iterator[WebSocketClient]:
        headers = {"authorization": f"Bearer {as_ or self.token}"}
        with connect(f"ws://{self.host}:{self.port}/api/live", additional_headers=headers) as link:
            websocket = WebSocketClient(link)
            websocket.say("hello", **{"protocol": 2, **hello})
            yield websocket

    def member(self, name: str) -> str:
        """Add a person and return their token."""
        invitation = self.do("person.invite", name=name)["invitation"]
        answer = self.ask("POST", "/api/join", {"invitation": invitation})
        assert answer.status == 200, answer.body
        return answer.json["token"]


class WebSocketClient:
    """A WebSocket connection to the server."""

    def __init__(self, link: ClientConnection) -> None:
        self.link = link

    def say(self, kind: str, **body: Any) -> None:
        self.link.send(json.dumps({"type": kind, **body}))

    def receive_frame(self, within_s: float = WAIT_LIMIT_S) -> dict[str, Any]:
        return json.loads(self.link.recv(timeout=within_s))

    def until(self, kind: str, **wanted: Any) -> list[dict[str, Any]]:
        """Receive frames up to and including the first of this kind with these values."""
        heard = [self.receive_frame()]
        while heard[-1]["type"] != kind or any(heard[-1].get(name) != value for name, value in wanted.items()):
            heard.append(self.receive_frame())
        return heard

    def receive_pending(self) -> list[dict[str, Any]]:
        """Receive every frame that was sent before the answer to this ping."""
        self.say("ping", nonce="settle")
        return self.until("pong", nonce="settle")[:-1]


@contextmanager
def open_api_client(folder: Path, settings: str = "") -> Iterator[ApiClient]:
    home = folder / "home"
    home.mkdir(parents=True)
    if settings:
        (home / "retinue.toml").write_text(settings)
    process = ServerProcess(home)
    process.open()
    try:
        yield ApiClient(process)
    finally:
        process.close()
