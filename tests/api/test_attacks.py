"""What hostile callers try at the door: they are refused within bounds, and others are answered meanwhile."""

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
from api.tcp_server import Live, Rim, open_rim
from cli.server_process import environment
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from retinue.testing.wait_conditions import WAIT_LIMIT_S

STATUS = "/api/house/status"
LIMITS = """
[house.limits]
request_wait_s = 3.0
connections_max = 200
sign_in_attempts_max = 4
requests_per_minute = 100000
"""


@pytest.fixture(scope="module")
def rim(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rim]:
    with open_rim(tmp_path_factory.mktemp("attacks"), LIMITS) as rim:
        yield rim


def answers(rim: Rim) -> bool:
    """Whether a guest who does nothing wrong is served by TCP."""
    return rim.ask("POST", STATUS, {}, token=rim.token).status == 200


def read_to_end(link: socket.socket) -> bytes:
    heard = b""
    try:
        while piece := link.recv(65536):
            heard += piece
    except (ConnectionResetError, BrokenPipeError):
        pass
    return heard


def memory_bytes(rim: Rim) -> int:
    process = rim.process._process  # pyright: ignore[reportPrivateUsage]
    assert process is not None
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))


@pytest.mark.spec("C90.origin")
def test_a_name_that_was_pointed_at_this_machine_opens_nothing(rim: Rim) -> None:
    for host in ("evil.example", f"evil.example:{rim.port}", "127.0.0.1.evil.example"):
        refused = rim.ask("POST", STATUS, {}, token=rim.token, headers={"host": host})
        assert (refused.status, refused.code) == (421, "request.host_unknown")
        assert rim.ask("GET", "/", headers={"host": host}).status == 421
    assert answers(rim)


@pytest.mark.spec("C90.origin")
def test_a_page_of_another_site_is_refused_even_with_a_good_cookie(rim: Rim) -> None:
    cookie = {"cookie": rim.sign_in(), "x-retinue": "1"}
    assert rim.ask("POST", STATUS, {}, headers={**cookie, "origin": rim.address}).status == 200
    for origin in ("http://evil.example", "null", "http://localhost:3000", f"https://{rim.host}:{rim.port}"):
        refused = rim.ask("POST", STATUS, {}, headers={**cookie, "origin": origin})
        assert (refused.status, refused.code) == (403, "request.foreign_origin")
        preflight = rim.ask("OPTIONS", STATUS, headers={"origin": origin, "access-control-request-method": "POST"})
        assert preflight.status == 403
        assert "access-control-allow-origin" not in preflight.headers
        with pytest.raises(InvalidStatus) as socket_refused:
            connect(f"ws://{rim.host}:{rim.port}/api/live", additional_headers={**cookie, "origin": origin})
        assert socket_refused.value.response.status_code == 403
    with connect(
        f"ws://{rim.host}:{rim.port}/api/live", additional_headers={"cookie": cookie["cookie"], "origin": rim.address}
    ) as live:
        live.send('{"type":"hello","protocol":1}')
        assert '"hello"' in str(live.recv(timeout=WAIT_LIMIT_S))
    with pytest.raises(InvalidStatus):  # a cookie that no page of ours vouches for
        connect(f"ws://{rim.host}:{rim.port}/api/live", additional_headers={"cookie": cookie["cookie"]})


def test_who_is_turned_away_from_a_socket_reads_why(rim: Rim) -> None:
    with pytest.raises(InvalidStatus) as refused:
        connect(f"ws://{rim.host}:{rim.port}/api/live")
    assert refused.value.response.status_code == 401
    assert b"auth.not_signed_in" in (refused.value.response.body or b"")


@pytest.mark.spec("C90.lockout")
def test_guessing_tokens_ends_in_a_lock_out_that_the_owner_does_not_feel(tmp_path: Path) -> None:
    with open_rim(tmp_path, LIMITS) as rim:
        assert answers(rim)  # signed in from this address before
        guesses = [rim.ask("POST", STATUS, {}, token=f"guess-{number}") for number in range(6)]
        assert [each.status for each in guesses] == [401, 401, 401, 401, 429, 429]
        assert guesses[-1].code == "auth.locked_out"
        assert int(guesses[-1].headers["retry-after"]) > 60
        code = rim.ask("POST", "/api/token/code", {}, token=rim.token).json["code"]
        assert rim.ask("POST", "/api/sign-in", {"code": code}).status == 429  # what is new from there waits
        assert answers(rim)
        assert rim.ask("POST", STATUS, {}, token=rim.token, by_socket=True).status == 200
        for _ in range(10):
            assert rim.ask("POST", STATUS, {}, token="guess", by_socket=True).status == 401
        assert rim.ask("POST", STATUS, {}, token=rim.token, by_socket=True).status == 200
        assert "auth.locked_out" in rim.log
        assert "guess-" not in rim.log


def test_a_browser_with_an_old_cookie_does_not_lock_itself_out(rim: Rim) -> None:
    browser = {"cookie": rim.sign_in(), "x-retinue": "1"}
    assert rim.ask("POST", "/api/sign-out", {}, headers=browser).status == 200
    assert {rim.ask("POST", STATUS, {}, headers=browser).status for _ in range(10)} == {401}
    assert rim.sign_in()


def test_a_request_sent_byte_by_byte_is_given_up_while_others_are_served(rim: Rim) -> None:
    slow_head, slow_body, silent = rim.raw(), rim.raw(), rim.raw()
    opening = f"POST {STATUS} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {rim.token}\r\n"
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
        assert answers(rim)
        time.sleep(0.05)  # sleep: the pace of the attack
    assert done == {slow_head, slow_body}
    assert b"request.too_slow" in read_to_end(silent)
    for link in (slow_head, slow_body, silent):
        link.close()


def test_a_thousand_half_open_sockets_leave_room_for_one_who_asks(rim: Rim) -> None:
    links: list[socket.socket] = []
    try:
        for number in range(1000):
            link = rim.raw()
            link.sendall(b"POST /api/house/status HTTP/1.1\r\nhost: localhost\r\n")
            links.append(link)
            if number % 100 == 99:
                assert answers(rim)
        counts = rim.ask("GET", "/api/metrics", token=rim.token).body.decode()
        held = next(line for line in counts.splitlines() if line.startswith("retinue_connections "))
        assert int(held.split()[1]) <= 200
        assert 'code="request.evicted"' in counts
    finally:
        for link in links:
            link.close()
    assert answers(rim)


def test_a_hundred_megabytes_are_refused_and_never_held(rim: Rim) -> None:
    assert answers(rim)
    before = memory_bytes(rim)
    piece = b"x" * 1_000_000
    for chunked in (False, True):
        link = rim.raw()
        head = f"POST /api/envelope/send HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {rim.token}\r\n"
        head += "transfer-encoding: chunked\r\n\r\n" if chunked else "content-length: 100000000\r\n\r\n"
        link.sendall(head.encode())
        most = before
        try:
            for number in range(100):
                link.sendall(b"%x\r\n%s\r\n" % (len(piece), piece) if chunked else piece)
                if number % 20 == 0:
                    most = max(most, memory_bytes(rim))
                    assert answers(rim)
        except (BrokenPipeError, ConnectionResetError):
            pass
        assert b"413" in read_to_end(link).partition(b"\r\n")[0]
        assert most - before < 80_000_000
        link.close()
    # Without a token, nothing of it is read into memory at all.
    link = rim.raw()
    link.sendall(b"POST /api/envelope/send HTTP/1.1\r\nhost: localhost\r\ncontent-length: 15000000\r\n\r\n")
    assert b"401" in link.recv(4096).partition(b"\r\n")[0]
    link.close()


def test_an_endless_head_is_refused(rim: Rim) -> None:
    number = 0
    with contextlib.closing(rim.raw()) as link:
        try:
            link.sendall(b"GET / HTTP/1.1\r\nhost: localhost\r\n")
            for number in range(40_000):
                link.sendall(b"x-%d: %s\r\n" % (number, b"y" * 1000))
        except (BrokenPipeError, ConnectionResetError):
            pass
    # Cut off long before forty megabytes were through. The system itself takes a few from us before anyone reads them.
    assert number < 39_999
    assert answers(rim)


def test_what_is_no_http_gets_the_houses_error_form(rim: Rim) -> None:
    link = rim.raw()
    link.sendall(b"\x16\x03\x01\x02\x00 hello\r\n\r\n")
    assert b'"request.not_http"' in read_to_end(link)
    link.close()


def flood(live: Live) -> None:
    """Ask, read the answer, ask again: as fast as the house lets us."""
    for _ in range(1000):
        live.say("ping")
        live.hear()


@pytest.mark.spec("C89.caps")
def test_a_flood_of_frames_ends_its_own_socket_alone(rim: Rim) -> None:
    with rim.live() as quiet, rim.live(follow=[{"session": "*"}]) as loud:
        assert quiet.hear()["type"] == "hello"
        assert loud.hear()["type"] == "hello"
        with pytest.raises(ConnectionClosed) as closed:
            flood(loud)
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 4429
        assert quiet.settle() == []
        assert answers(rim)
    with rim.live() as rude:
        assert rude.hear()["type"] == "hello"
        rude.link.send("x" * 70_000)
        with pytest.raises(ConnectionClosed) as closed:
            rude.hear()
        assert closed.value.rcvd is not None and closed.value.rcvd.code == 1009


def test_who_asks_without_reading_the_answers_is_not_listened_to(rim: Rim) -> None:
    before = memory_bytes(rim)
    with rim.live() as deaf:
        try:
            for _ in range(20_000):
                deaf.say("ping", nonce="x" * 60)
        except ConnectionClosed:
            pass  # read quickly enough to be counted as a flood
        assert answers(rim)
        assert memory_bytes(rim) - before < 50_000_000


def test_pings_whose_pongs_nobody_reads_do_not_pile_up(rim: Rim) -> None:
    before = memory_bytes(rim)
    link = rim.raw()
    key = base64.b64encode(os.urandom(16)).decode()
    link.sendall(
        f"GET /api/live HTTP/1.1\r\nhost: localhost\r\nconnection: upgrade\r\nupgrade: websocket\r\n"
        f"sec-websocket-version: 13\r\nsec-websocket-key: {key}\r\nauthorization: Bearer {rim.token}\r\n\r\n".encode()
    )
    assert b"101" in link.recv(4096)
    ping = b"\x89\xfd" + b"\0\0\0\0" + b"p" * 125  # a ping of 125 bytes, masked with nothing
    sent = 0
    link.settimeout(5)  # time limit: a line that is full for so long is taken for one that is no longer read
    try:
        for _ in range(2000):
            link.sendall(ping * 200)
            sent += 1
    except OSError:  # cut off, or no longer read
        pass
    assert sent < 2000
    assert memory_bytes(rim) - before < 50_000_000
    assert answers(rim)
    link.close()


def test_a_port_that_is_taken_is_told_with_what_to_do(tmp_path: Path) -> None:
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
