"""A fake server on a Unix socket that sends exactly the bytes that a test gives it."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Script = Callable[["Request", socket.socket], None]


@dataclass(frozen=True, slots=True)
class Request:
    method: str
    path: str
    headers: dict[str, str]
    body: dict[str, Any]


class FakeServer:
    """Reads one request at a time and passes it to the script."""

    def __init__(self, home: Path, script: Script) -> None:
        self.home = home
        self.received: list[Request] = []
        self._script = script
        path = home / "s"
        home.mkdir(parents=True, exist_ok=True)
        (home / "owner-token").write_text("sesame\n")
        (home / "socket").write_text(str(path))
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()
        (self.home / "s").unlink()

    def _serve(self) -> None:
        while True:
            try:
                link, _ = self._listener.accept()
            except OSError:
                return
            with link:
                try:
                    request = read_request(link)
                    self.received.append(request)
                    self._script(request, link)
                except OSError:
                    continue


@contextmanager
def run_fake_server(home: Path, script: Script) -> Iterator[FakeServer]:
    server = FakeServer(home, script)
    try:
        yield server
    finally:
        server.close()


def read_request(link: socket.socket) -> Request:
    received = b""
    while b"\r\n\r\n" not in received:
        received += receive(link)
    head, _, body = received.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    while len(body) < int(headers.get("content-length", "0")):
        body += receive(link)
    method, path, _ = first.split(" ")
    return Request(method, path, headers, json.loads(body or b"{}"))


def receive(link: socket.socket) -> bytes:
    received = link.recv(65536)
    if not received:
        raise ConnectionResetError
    return received


def reply(link: socket.socket, form: dict[str, Any], *, status: int = 200) -> None:
    body = json.dumps(form).encode()
    link.sendall(f"HTTP/1.1 {status} Whatever\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)


STREAM_HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


def event(name: str, data: dict[str, Any]) -> bytes:
    return f"event: {name}\ndata: {json.dumps(data)}\n\n".encode()
