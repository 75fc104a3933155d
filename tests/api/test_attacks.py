"""Hostile clients are refused or limited, and the server still serves other clients."""

from __future__ import annotations

import base64
import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from api.tcp_server import ApiClient, WebSocketClient, open_api_client
from cli.server_process import environment
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from retinue.testing.wait_conditions import WAIT_LIMIT_S

STATUS = "/api/server/status"
LIMITS = """
[server.limits]
request_wait_s = 3.0
connections_max = 200
sign_in_attempts_max = 4
requests_per_minute = 100000
"""


@pytest.fixture(scope="module")
def api_client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiClient]:
    with open_api_client(tmp_path_factory.mktemp("attacks"), LIMITS) as api_client:
        yield api_client


def is_serving(api_client: ApiClient) -> bool:
    """Whether a well-behaved client is still served over TCP."""
    return api_client.ask("POST", STATUS, {}, token=api_client.token).status == 200


def read_to_end(link: socket.socket) -> bytes:
    heard = b""
    try:
        while piece := link.recv(65536):
            heard += piece
    except (ConnectionResetError, BrokenPipeError):
        pass
    return heard


def memory_bytes(api_client: ApiClient) -> int:
    process = api_client.process._process  # pyright: ignore[reportPrivateUsage]
    assert process is not None
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))


@pytest.mark.spec("C90.origin")
def test_a_dns_rebinding_attack_with_a_foreign_host_name_is_refused(api_client: ApiClient) -> None:
    for host in ("evil.example", f"evil.example:{api_client.port}", "127.0.0.1.evil.example"):
        refused = api_client.ask("POST", STATUS, {}, token=api_client.token, headers={"host": host})
        assert (refused.status, refused.code) == (421, "request.host_unknown")
        assert api_client.ask("GET", "/", headers={"host": host}).status == 421
    assert is_serving(api_client)


@pytest.mark.spec("C90.origin")
def test_a_cross_site_request_attack_is_refused_even_with_a_valid_cookie(api_client: ApiClient) -> None:
    cookie = {"cookie": api_client.sign_in(), "x-retinue": "1"}
    assert api_client.ask("POST", STATUS, {}, headers={**cookie, "origin": api_client.address}).status == 200
    for origin in (
        "http://evil.example",
        "null",
        "http://localhost:3000",
        f"https://{api_client.host}:{api_client.port}",
    ):
        refused = api_client.ask("POST", STATUS, {}, headers={**cookie, "origin": origin})
        assert (refused.status, refused.code) == (403, "request.foreign_origin")
        preflight = api_client.ask(
            "OPTIONS", STATUS, headers={"origin": origin, "access-control-request-method": "POST"}
        )
        assert preflight.status == 403
        assert "access-control-allow-origin" not in preflight.headers
        with pytest.raises(InvalidStatus) as socket_refused:
            connect(
                f"ws://{api_client.host}:{api_client.port}/api/live", additional_headers={**cookie, "origin": origin}
            )
        assert socket_refused.value.response.status_code == 403
    with connect(
        f"ws://{api_client.host}:{api_client.port}/api/live",
        additional_headers={"cookie": cookie["cookie"], "origin": api_client.address},
    ) as websocket:
        websocket.send('{"type":"hello","protocol":2}')
        assert '"hello"' in str(websocket.recv(timeout=WAIT_LIMIT_S))
    with pytest.raises(InvalidStatus):  # a cookie that is not a session of this server
        connect(f"ws://{api_client.host}:{api_client.port}/api/live", additional_headers={"cookie": cookie["cookie"]})


def test_a_websocket_without_a_sign_in_is_refused_with_the_error_code(api_client: ApiClient) -> None:
    with pytest.raises(InvalidStatus) as refused:
        connect(f"ws://{api_client.host}:{api_client.port}/api/live")
    assert refused.value.response.status_code == 401
    assert b"auth.not_signed_in" in (refused.value.response.body or b"")


@pytest.mark.spec("C90.lockout")
def test_a_token_guessing_attack_locks_out_new_sign_ins_but_not_the_signed_in_owner(tmp_path: Path) -> None:
    with open_api_client(tmp_path, LIMITS) as api_client:
        assert is_serving(api_client)  # this client has signed in from this address before
        guesses = [api_client.ask("POST", STATUS, {}, token=f"guess-{number}") for number in range(6)]
        assert [each.status for each in guesses] == [401, 401, 401, 401, 429, 429]
        assert guesses[-1].code == "auth.locked_out"
        assert int(guesses[-1].headers["retry-after"]) > 60
        code = api_client.ask("POST", "/api/token/code", {}, token=api_client.token).json["code"]
        assert api_client.ask("POST", "/api/sign-in", {"code": code}).status == 429  # limited
        assert is_serving(api_client)
        assert api_client.ask("POST", STATUS, {}, token=api_client.token, by_socket=True).status == 200
        for _ in range(10):
            assert api_client.ask("POST", STATUS, {}, token="guess", by_socket=True).status == 401
        assert api_client.ask("POST", STATUS, {}, token=api_client.token, by_socket=True).status == 200
        assert "auth.locked_out" in api_client.log
        assert "guess-" not in api_client.log


def test_a_browser_with_a_signed_out_cookie_is_not_locked_out(api_client: ApiClient) -> None:
    browser = {"cookie": api_client.sign_in(), "x-retinue": "1"}
    assert api_client.ask("POST", "/api/sign-out", {}, headers=browser).status == 200
    assert {api_client.ask("POST", STATUS, {}, headers=browser).status for _ in range(10)} == {401}
    assert api_client.sign_in()


def test_an_attack_with_requests_sent_byte_by_byte_times_out_while_others_are_served(api_client: ApiClient) -> None:
    slow_head, slow_body, silent = api_client.raw(), api_client.raw(), api_client.raw()
    opening = f"POST {STATUS} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {api_client.token}\r\n"
    slow_body.sendall(f"{opening}content-length: 100\r\n\r\n".encode())
    began = time.monotonic()
    head = iter(b"GET /api/health HTTP/1.1\r\nx-slow: " + b"y" * 100_000)
    done: set[socket.socket] = set()
    while {slow_head, slow_body} - done and time.monotonic() - began < WAIT_LIMIT_S:
        for link, piece in ((slow_head, bytes([next(head)])), (slow_body, b"{")):
            if link not in done:
                try:
                    link.sendall(piece)
                    link.setblocking(False)
                    if b"request.too_slow" in link.recv(4096):
                        done.add(link)
                except BlockingIOError:
                    pass
                except (ConnectionResetError, BrokenPipeError):
                    done.add(link)
                finally:
                    link.setblocking(True)
        assert is_serving(api_client)
        time.sleep(0.05)  # sleep: the pace of the attack
    assert done == {slow_head, slow_body}
    assert b"request.too_slow" in read_to_end(silent)
    for link in (slow_head, slow_body, silent):
        link.close()


def test_a_thousand_half_open_connections_do_not_block_other_requests(api_client: ApiClient) -> None:
    links: list[socket.socket] = []
    try:
        for number in range(1000):
            link = api_client.raw()
            link.sendall(b"POST /api/server/status HTTP/1.1\r\nhost: localhost\r\n")
            links.append(link)
            if number % 100 == 99:
                assert is_serving(api_client)
        counts = api_client.ask("GET", "/api/metrics", token=api_client.token).body.decode()
        held = next(line for line in counts.splitlines() if line.startswith("retinue_connections "))
        assert int(held.split()[1]) <= 200
        assert 'code="request.evicted"' in counts
    finally:
        for link in links:
            link.close()
    assert is_serving(api_client)


def test_a_request_body_of_100_megabytes_is_refused_and_never_held_in_memory(api_client: ApiClient) -> None:
    assert is_serving(api_client)
    before = memory_bytes(api_client)
    piece = b"x" * 1_000_000
    for chunked in (False, True):
        link = api_client.raw()
        head = f"POST /api/envelope/send HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {api_client.token}\r\n"
        head += "transfer-encoding: chunked\r\n\r\n" if chunked else "content-length: 100000000\r\n\r\n"
        link.sendall(head.encode())
        most = before
        try:
            for number in range(100):
                link.sendall(b"%x\r\n%s\r\n" % (len(piece), piece) if chunked else piece)
                if number % 20 == 0:
                    most = max(most, memory_bytes(api_client))
                    assert is_serving(api_client)
        except (BrokenPipeError, ConnectionResetError):
            pass
        assert b"413" in read_to_end(link).partition(b"\r\n")[0]
        assert most - before < 80_000_000
        link.close()
    # Without a token, the body is not read into memory.
    link = api_client.raw()
    link.sendall(b"POST /api/envelope/send HTTP/1.1\r\nhost: localhost\r\ncontent-length: 15000000\r\n\r\n")
    assert b"401" in link.recv(4096).partition(b"\r\n")[0]
    link.close()


def test_endless_request_headers_are_refused(api_client: ApiClient) -> None:
    number = 0
    with contextlib.closing(api_client.raw()) as link:
        try:
            link.sendall(b"GET / HTTP/1.1\r\nhost: localhost\r\n")
            for number in range(40_000):
                link.sendall(b"x-%d: %s\r\n" % (number, b"y" * 1000))
        except (BrokenPipeError, ConnectionResetError):
            pass
    # The connection ends long before 40 MB were sent. The kernel buffers a few MB before the server reads them.
    assert number < 39_999
    assert is_serving(api_client)


def test_a_request_that_is_not_http_gets_the_standard_error_format(api_client: ApiClient) -> None:
    link = api_client.raw()
    link.sendall(b"\x16\x03\x01\x02\x00 hello\r\n\r\n")
    assert b'"request.not_http"' in read_to_end(link)
    link.close()


def send_pings(websocket: WebSocketClient) -> None:
    """Send pings and read the answers as fast as the server allows."""
    for _ in range(1000):
        websocket.say("ping")
        websocket.receive_frame()


@pytest.mark.spec("C89.caps")
def test_a_flood_of_frames_closes_only_the_websocket_that_sent_them(api_client: ApiClient) -> None:
    with api_client.websocket() as quiet, api_client.websocket(follow=[{"session": "*"}]) as loud:
        assert quiet.receive_frame()["type"] == "hello"
        assert loud.receive_frame()["type"] == "hello"
        with pytest.raises(ConnectionClosed) as closed:
            send_pings(loud)
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 4429
        assert quiet.receive_pending() == []
        assert is_serving(api_client)
    with api_client.websocket() as oversized_sender:
        assert oversized_sender.receive_frame()["type"] == "hello"
        oversized_sender.link.send("x" * 70_000)
        with pytest.raises(ConnectionClosed) as closed:
            oversized_sender.receive_frame()
        assert closed.value.rcvd is not None and closed.value.rcvd.code == 1009


def test_a_websocket_client_that_does_not_read_its_answers_uses_little_memory(api_client: ApiClient) -> None:
    before = memory_bytes(api_client)
    with api_client.websocket() as deaf:
        try:
            for _ in range(20_000):
                deaf.say("ping", nonce="x" * 60)
        except ConnectionClosed:
            pass  # read quickly enough to count as a flood
        assert is_serving(api_client)
        assert memory_bytes(api_client) - before < 50_000_000


def test_unread_websocket_pongs_do_not_accumulate_in_memory(api_client: ApiClient) -> None:
    before = memory_bytes(api_client)
    link = api_client.raw()
    key = base64.b64encode(os.urandom(16)).decode()
    link.sendall(
        f"GET /api/live HTTP/1.1\r\nhost: localhost\r\nconnection: upgrade\r\nupgrade: websocket\r\n"
        f"sec-websocket-version: 13\r\nsec-websocket-key: {key}\r\n"
        f"authorization: Bearer {api_client.token}\r\n\r\n".encode()
    )
    assert b"101" in link.recv(4096)
    ping = b"\x89\xfd" + b"\0\0\0\0" + b"p" * 125  # a masked ping of 125 bytes
    sent = 0
    link.settimeout(5)  # time limit: the server closes a connection whose client does not read for this long
    try:
        for _ in range(2000):
            link.sendall(ping * 200)
            sent += 1
    except OSError:  # closed by the server, or not read any more
        pass
    assert sent < 2000
    assert memory_bytes(api_client) - before < 50_000_000
    assert is_serving(api_client)
    link.close()


def test_a_taken_exposed_or_invalid_listen_address_is_reported_with_the_next_step(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken = f"127.0.0.1:{other.getsockname()[1]}"
        for listen, code in ((taken, "listen.port_taken"), ("0.0.0.0:0", "listen.exposed"), ("what", "listen.invalid")):
            done = subprocess.run(
                [sys.executable, "-m", "retinue.app.server"],
                env=environment(tmp_path / "home", RETINUE_LISTEN=listen),
                capture_output=True,
                text=True,
                timeout=WAIT_LIMIT_S,
            )
            assert done.returncode == 1
            assert f"[{code}]" in done.stderr
            assert "try: " in done.stderr
            if code == "listen.port_taken":
                assert "enabled = false" in done.stderr
