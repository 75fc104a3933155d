"""The hand-made HTTP of the command line, against someone who answers badly."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from cli.fake_server import STREAM_HEAD, Request, chunk, event, fake_house, reply

from retinue.cli import client
from retinue.cli.client import ApiError, ChunkedDecoder, EventStream, call, send_until_accepted
from retinue.cli.errors import CliError, ServerNotAnswering


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RETINUE_HOME", str(tmp_path))
    monkeypatch.delenv("RETINUE_TOKEN", raising=False)
    return tmp_path


def test_an_operation_is_asked_for_and_its_answer_given_back(home: Path) -> None:
    with fake_house(home, lambda _, link: reply(link, {"grüße": "日本"})) as house:
        assert call("house.status", {"id": "é"}) == {"grüße": "日本"}

    [request] = house.heard
    assert (request.method, request.path, request.body) == ("POST", "/api/house/status", {"id": "é"})
    assert request.headers["authorization"] == "Bearer sesame"


def test_a_childs_own_token_wins_over_the_owners(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RETINUE_TOKEN", "mine")
    with fake_house(home, lambda _, link: reply(link, {})) as house:
        call("house.status")

    assert house.heard[0].headers["authorization"] == "Bearer mine"


def test_an_answer_is_read_whole_in_whatever_pieces_it_comes(home: Path) -> None:
    def slowly(_: Request, link: socket.socket) -> None:
        for byte in STREAM_HEAD + chunk(b'{"a": ') + chunk(b'"' + b"x" * 300 + b'"}') + b"0\r\n\r\n":
            link.sendall(bytes([byte]))

    with fake_house(home, slowly):
        assert call("house.status") == {"a": "x" * 300}


def test_a_refusal_has_all_that_the_house_said(home: Path) -> None:
    error = {"code": "agent.not_found", "sentence": "no agent 'x'", "because": "none", "try": "retinue status"}
    with fake_house(home, lambda _, link: reply(link, {"error": error}, status=404)), pytest.raises(ApiError) as caught:
        call("envelope.send")

    assert caught.value.to_lines() == ["error: no agent 'x' [agent.not_found]", "because: none", "try: retinue status"]
    assert caught.value.exit_code == 1


def test_a_refusal_without_words_is_still_an_error_with_a_code(home: Path) -> None:
    def grunt(_: Request, link: socket.socket) -> None:
        link.sendall(b"HTTP/1.1 500 Oops\r\nContent-Length: 4\r\n\r\nOops")

    with fake_house(home, grunt), pytest.raises(ApiError, match="sent an error without a message"):
        call("house.status")


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
def test_a_line_that_breaks_in_the_middle_is_a_closed_house_that_may_have_heard_us(home: Path, said: bytes) -> None:
    with fake_house(home, lambda _, link: link.sendall(said)), pytest.raises(ServerNotAnswering) as caught:
        call("house.status")

    assert caught.value.may_have_arrived
    assert caught.value.exit_code == 3


def test_no_home_and_no_listener_are_a_closed_house_that_heard_nothing(home: Path) -> None:
    with pytest.raises(ServerNotAnswering, match="no server is running in") as never_opened:
        call("house.status")
    with fake_house(home, lambda _, link: reply(link, {})):
        pass
    with pytest.raises(ServerNotAnswering, match="no server is running in") as left_behind:
        call("house.status")

    assert not never_opened.value.may_have_arrived
    assert not left_behind.value.may_have_arrived
    assert "no answer at" in left_behind.value.because


def test_a_home_that_is_no_absolute_path_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RETINUE_HOME", "here")
    with pytest.raises(CliError, match="invalid value for RETINUE_HOME: 'here'"):
        call("house.status")


def test_a_send_that_was_cut_off_is_repeated_with_the_same_key(home: Path) -> None:
    told: list[bool] = []

    def cut_off_twice(_: Request, link: socket.socket) -> None:
        if len(house.heard) > 2:
            reply(link, {"envelope": "1"})

    with fake_house(home, cut_off_twice) as house:
        sent = send_until_accepted({"text": "hello", "key": "k"}, wait_s=0, on_waiting=lambda: told.append(True))

    assert sent == {"envelope": "1"}
    assert [request.body["key"] for request in house.heard] == ["k", "k", "k"]
    assert told == [True]


def test_a_send_to_a_closed_house_waits_only_if_it_is_told_to(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    naps: list[float] = []
    monkeypatch.setattr(client.time, "sleep", naps.append)
    monkeypatch.setattr(client.time, "monotonic", lambda: sum(naps))
    with pytest.raises(ServerNotAnswering):
        send_until_accepted({"key": "k"}, wait_s=0, on_waiting=lambda: pytest.fail("it waits"))
    assert not naps

    with pytest.raises(ServerNotAnswering):
        send_until_accepted({"key": "k"}, wait_s=0.05, on_waiting=lambda: None)
    assert naps


def test_a_refused_send_is_not_repeated(home: Path) -> None:
    reused = {"error": {"code": "key.reused"}}
    with fake_house(home, lambda _, link: reply(link, reused, status=409)) as house, pytest.raises(ApiError):
        send_until_accepted({"key": "k"}, wait_s=10, on_waiting=lambda: pytest.fail("it waits"))

    assert len(house.heard) == 1


def test_news_is_read_from_a_cursor_on_in_whatever_pieces_it_comes(home: Path) -> None:
    said = event("hello", {"cursor": 7}) + b": still here\n\n" + event("news", {"seq": 8, "text": "日本\n\n"})

    def in_pieces(_: Request, link: socket.socket) -> None:
        link.sendall(STREAM_HEAD + chunk(said[:11]))
        for start in range(11, len(said), 5):
            for byte in chunk(said[start : start + 5]):
                link.sendall(bytes([byte]))

    with fake_house(home, in_pieces) as house:
        stream = EventStream(after=7, session="s")
        events = stream.take_buffered()
        while len(events) < 2:
            events += stream.receive()
        with pytest.raises(ServerNotAnswering):
            stream.receive()
        stream.close()

    assert house.heard[0].path == "/api/news?after=7&session=s"
    assert events == [("hello", {"cursor": 7}), ("news", {"seq": 8, "text": "日本\n\n"})]


def test_a_stream_that_is_refused_says_why(home: Path) -> None:
    error = {"code": "auth.not_signed_in", "sentence": "not signed in"}
    refuse = fake_house(home, lambda _, link: reply(link, {"error": error}, status=401))
    with refuse, pytest.raises(ApiError, match="not signed in"):
        EventStream(after=0, session="s")


def test_chunks_with_extensions_are_taken_apart() -> None:
    chunks = ChunkedDecoder()

    assert chunks.feed(b"3;x=y\r\nabc\r\n0\r\n\r\n") == b"abc"
    assert chunks.is_complete


def test_an_ambiguous_id_lists_its_candidates_and_has_an_exit_code_of_its_own() -> None:
    error = {
        "code": "id.ambiguous",
        "sentence": "the id 'aaaaaaaa' is ambiguous: it matches aaaaaaaa1, aaaaaaaa2 and 21 more",
        "because": "a short id must match exactly one thing, and this one matches 23",
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
