"""The HTTP client of the command line, against a server that sends bad responses."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from cli.fake_server import STREAM_HEAD, Request, chunk, event, reply, run_fake_server

from retinue.cli import client
from retinue.cli.client import ApiError, ChunkedDecoder, EventStream, call, send_until_accepted
from retinue.cli.errors import CliError, ServerNotAnswering


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RETINUE_HOME", str(tmp_path))
    monkeypatch.delenv("RETINUE_TOKEN", raising=False)
    return tmp_path


def test_a_call_of_the_cli_client_sends_the_operation_and_returns_the_response(home: Path) -> None:
    with run_fake_server(home, lambda _, link: reply(link, {"grüße": "日本"})) as server:
        assert call("server.status", {"id": "é"}) == {"grüße": "日本"}

    [request] = server.received
    assert (request.method, request.path, request.body) == ("POST", "/api/server/status", {"id": "é"})
    assert request.headers["authorization"] == "Bearer sesame"


def test_a_token_in_the_environment_of_the_cli_client_overrides_the_owner_token(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RETINUE_TOKEN", "mine")
    with run_fake_server(home, lambda _, link: reply(link, {})) as server:
        call("server.status")

    assert server.received[0].headers["authorization"] == "Bearer mine"


def test_the_cli_client_reads_a_response_completely_however_it_is_split(home: Path) -> None:
    def send_byte_by_byte(_: Request, link: socket.socket) -> None:
        for byte in STREAM_HEAD + chunk(b'{"a": ') + chunk(b'"' + b"x" * 300 + b'"}') + b"0\r\n\r\n":
            link.sendall(bytes([byte]))

    with run_fake_server(home, send_byte_by_byte):
        assert call("server.status") == {"a": "x" * 300}


def test_a_refused_call_of_the_cli_client_raises_the_error_of_the_server(home: Path) -> None:
    error = {"code": "agent.not_found", "sentence": "no agent 'x'", "because": "none", "try": "retinue status"}
    with (
        run_fake_server(home, lambda _, link: reply(link, {"error": error}, status=404)),
        pytest.raises(ApiError) as caught,
    ):
        call("envelope.send")

    assert caught.value.to_lines() == ["error: no agent 'x' [agent.not_found]", "because: none", "try: retinue status"]
    assert caught.value.exit_code == 1


def test_a_call_of_the_cli_client_refused_without_a_message_raises_an_api_error(home: Path) -> None:
    def send_plain_error(_: Request, link: socket.socket) -> None:
        link.sendall(b"HTTP/1.1 500 Oops\r\nContent-Length: 4\r\n\r\nOops")

    with run_fake_server(home, send_plain_error), pytest.raises(ApiError, match="sent an error without a message"):
        call("server.status")


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"HTTP/1.1",
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{",
        STREAM_HEAD + b"5\r\n{",
        STREAM_HEAD + b"what?\r\n",
        b"nonsense\r\n\r\n",
        b"x" * 100_000,
    ],
)
def test_the_cli_client_reports_after_an_interrupted_response_that_its_request_may_have_arrived(
    home: Path, said: bytes
) -> None:
    with run_fake_server(home, lambda _, link: link.sendall(said)), pytest.raises(ServerNotAnswering) as caught:
        call("server.status")

    assert caught.value.may_have_arrived
    assert caught.value.exit_code == 3


def test_the_cli_client_reports_that_its_request_has_not_arrived_if_no_server_is_running(home: Path) -> None:
    with pytest.raises(ServerNotAnswering, match="no server is running in") as never_opened:
        call("server.status")
    with run_fake_server(home, lambda _, link: reply(link, {})):
        pass
    with pytest.raises(ServerNotAnswering, match="no server is running in") as left_behind:
        call("server.status")

    assert not never_opened.value.may_have_arrived
    assert not left_behind.value.may_have_arrived
    assert "no answer at" in left_behind.value.because


def test_the_cli_client_refuses_a_relative_data_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RETINUE_HOME", "here")
    with pytest.raises(CliError, match="invalid value for RETINUE_HOME: 'here'"):
        call("server.status")


def test_the_cli_client_repeats_an_interrupted_send_with_the_same_idempotency_key(home: Path) -> None:
    told: list[bool] = []

    def close_twice(_: Request, link: socket.socket) -> None:
        if len(server.received) > 2:
            reply(link, {"envelope": "1"})

    with run_fake_server(home, close_twice) as server:
        sent = send_until_accepted({"text": "hello", "key": "k"}, wait_s=0, on_waiting=lambda: told.append(True))

    assert sent == {"envelope": "1"}
    assert [request.body["key"] for request in server.received] == ["k", "k", "k"]
    assert told == [True]


def test_the_cli_client_waits_for_a_stopped_server_only_if_requested(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sleeps: list[float] = []
    monkeypatch.setattr(client.time, "sleep", sleeps.append)
    monkeypatch.setattr(client.time, "monotonic", lambda: sum(sleeps))
    with pytest.raises(ServerNotAnswering):
        send_until_accepted({"key": "k"}, wait_s=0, on_waiting=lambda: pytest.fail("the client waits"))
    assert not sleeps

    with pytest.raises(ServerNotAnswering):
        send_until_accepted({"key": "k"}, wait_s=0.05, on_waiting=lambda: None)
    assert sleeps


def test_the_cli_client_does_not_repeat_a_refused_send(home: Path) -> None:
    reused = {"error": {"code": "key.reused"}}
    with run_fake_server(home, lambda _, link: reply(link, reused, status=409)) as server, pytest.raises(ApiError):
        send_until_accepted({"key": "k"}, wait_s=10, on_waiting=lambda: pytest.fail("the client waits"))

    assert len(server.received) == 1


def test_the_cli_client_reads_events_from_a_cursor_however_the_stream_is_split(home: Path) -> None:
    said = event("hello", {"cursor": 7}) + b": still here\n\n" + event("event", {"seq": 8, "text": "日本\n\n"})

    def send_in_pieces(_: Request, link: socket.socket) -> None:
        link.sendall(STREAM_HEAD + chunk(said[:11]))
        for start in range(11, len(said), 5):
            for byte in chunk(said[start : start + 5]):
                link.sendall(bytes([byte]))

    with run_fake_server(home, send_in_pieces) as server:
        stream = EventStream(after=7, session="s")
        events = stream.take_buffered()
        while len(events) < 2:
            events += stream.receive()
        with pytest.raises(ServerNotAnswering):
            stream.receive()
        stream.close()

    assert server.received[0].path == "/api/events?after=7&session=s"
    assert events == [("hello", {"cursor": 7}), ("event", {"seq": 8, "text": "日本\n\n"})]


def test_the_cli_client_reports_the_reason_of_a_refused_event_stream(home: Path) -> None:
    error = {"code": "auth.not_signed_in", "sentence": "not signed in"}
    refuse = run_fake_server(home, lambda _, link: reply(link, {"error": error}, status=401))
    with refuse, pytest.raises(ApiError, match="not signed in"):
        EventStream(after=0, session="s")


def test_the_cli_client_decodes_http_chunks_with_extensions() -> None:
    chunks = ChunkedDecoder()

    assert chunks.feed(b"3;x=y\r\nabc\r\n0\r\n\r\n") == b"abc"
    assert chunks.is_complete


def test_an_ambiguous_id_error_of_the_cli_client_lists_its_candidates_and_has_its_own_exit_code() -> None:
    error = {
        "code": "id.ambiguous",
        "sentence": "the id 'aaaaaaaa' is ambiguous: it matches aaaaaaaa1, aaaaaaaa2 and 21 more",
        "because": "a short id must match exactly one object, and this id matches 23",
        "try": "use one of these longer ids",
        "candidates": ["aaaaaaaa1", "aaaaaaaa2"],
        "matches": 23,
    }

    assert ApiError(error).exit_code == 4
    assert ApiError(error).to_lines()[3:] == [
        "match-count: 23",
        "candidates-truncated: true",
        "candidates-shown: 2",
        "candidate-id: aaaaaaaa1",
        "candidate-id: aaaaaaaa2",
    ]
