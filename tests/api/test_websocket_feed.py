"""Live news over a WebSocket: what is followed, what is left out, and how a client comes back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from api.tcp_server import Live, Rim, open_rim
from websockets.exceptions import ConnectionClosed, InvalidStatus

from retinue.testing.wait_conditions import wait_until_sync

LIMITS = "[house.limits]\nrequest_wait_s = 3.0\nwebsockets_max = 8\nenvelopes_per_minute = 10000\n"


@pytest.fixture(scope="module")
def rim(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rim]:
    with open_rim(tmp_path_factory.mktemp("live"), LIMITS) as rim:
        yield rim


def send(rim: Rim, text: str, *, conversation: str, as_: str = "", client: str = "") -> dict[str, Any]:
    headers = {"x-retinue-client": client} if client else None
    parameters = {"to": "agent:guide", "text": text, "conversation": conversation}
    return rim.do("envelope.send", as_=as_, headers=headers, **parameters)


def answered(rim: Rim, sent: dict[str, Any], *, as_: str = "") -> None:
    """Wait until an envelope has come to its end."""
    wait_until_sync(
        lambda: rim.do("envelope.show", as_=as_, id=sent["envelope"])["status"] == "done", "the envelope is done"
    )


def sessions_in(heard: list[dict[str, Any]]) -> set[str]:
    return {event["session"] for event in heard if event["type"] in ("news", "delta")}


def news_in(heard: list[dict[str, Any]]) -> set[str]:
    return {event["news"] for event in heard if event["type"] == "news"}


def closed_by(live: Live) -> tuple[int, str]:
    with pytest.raises(ConnectionClosed) as closed:
        live.until("never")
    assert closed.value.rcvd is not None
    return closed.value.rcvd.code, closed.value.rcvd.reason


@pytest.mark.spec("A14", "C89.version")
def test_a_hello_with_another_protocol_version_is_refused_with_a_code_and_a_reason(rim: Rim) -> None:
    with rim.live(protocol=2) as live:
        assert closed_by(live) == (4406, "unsupported protocol 2; this server has protocol 1")
    with rim.live() as live:
        hello = {"type": "hello", "protocol": 1, "cursor": 0, "partials": [], "nested": []}
        assert live.hear() | {"cursor": 0} == hello


def test_frames_that_are_not_understood_end_the_connection(rim: Rim) -> None:
    for frame in ("{", '{"type":"nonsense"}', '{"type":"subscribe"}', '{"type":"hello","protocol":1}', "\x00"):
        with rim.live() as live:
            live.hear()
            live.link.send(frame)
            assert closed_by(live)[0] == 4400


@pytest.mark.spec("A15")
def test_one_socket_follows_several_sessions_and_hears_nothing_of_others(rim: Rim) -> None:
    a, b, c = (send(rim, "echo first", conversation=f"several-{name}") for name in "abc")
    for sent in (a, b, c):
        answered(rim, sent)
    with rim.live(follow=[{"session": a["session"]}]) as live:
        live.hear()
        live.say("subscribe", session=b["session"])
        live.until("subscribed", session=b["session"])
        for name in "abc":
            answered(rim, send(rim, f"echo second {name}", conversation=f"several-{name}"))
        heard = live.settle()
        assert sessions_in(heard) == {a["session"], b["session"]}
        assert not any("first" in json.dumps(event) for event in heard)  # from now on, not from before
        live.say("unsubscribe", session=a["session"])
        live.until("unsubscribed", session=a["session"])
        for name in "abc":
            answered(rim, send(rim, f"echo third {name}", conversation=f"several-{name}"))
        assert sessions_in(live.settle()) == {b["session"]}


@pytest.mark.spec("A16")
def test_a_mask_filters_by_kind_of_news_by_tool_and_by_phase(rim: Rim) -> None:
    masks: dict[str, dict[str, list[str]]] = {
        "kinds": {"events": ["news"], "news": ["run.started", "run.ended"]},
        "tools": {"events": ["news"], "tools": ["read"]},
        "phases": {"phases": ["thinking", "final"]},
        "all": {},
    }
    first = send(rim, "be silent", conversation="masks")
    answered(rim, first)
    heard: dict[str, list[dict[str, Any]]] = {}
    for name, mask in masks.items():
        with rim.live(follow=[{"session": first["session"], "mask": mask}]) as live:
            live.hear()
            for text in ("call session_status; read SOUL.md", "think about tea"):
                answered(rim, send(rim, text, conversation="masks"))
            heard[name] = live.settle()
    assert news_in(heard["kinds"]) == {"run.started", "run.ended"}
    assert not any(event["type"] == "delta" for event in heard["kinds"])
    opened = [e["tool"] for e in heard["tools"] if e["type"] == "news" and e["news"] == "step.opened"]
    assert opened == ["read"]
    results = [e["record"] for e in heard["tools"] if e.get("news") == "step.closed" and e["record"]["kind"] == "tool"]
    assert [record["body"]["tool"] for record in results] == ["read"]
    assert {e["kind"] for e in heard["phases"] if e["type"] == "delta"} == {"thinking"}
    assert {"run.ended", "run.started"} <= news_in(heard["phases"])  # a run's start has no phase: lists do not apply
    assert "step.opened" not in news_in(heard["phases"])
    opened = [e["tool"] for e in heard["all"] if e["type"] == "news" and e["news"] == "step.opened"]
    assert sorted(opened) == ["read", "session_status"]
    assert {e["kind"] for e in heard["all"] if e["type"] == "delta"} == {"thinking", "text"}


def test_a_mask_with_a_word_it_does_not_know_is_told_so(rim: Rim) -> None:
    with rim.live(follow=[{"session": "*", "mask": {"phases": ["dusk"]}}]) as live:
        assert live.until("error")[-1]["error"]["code"] == "live.filter_invalid"


@pytest.mark.spec("A17")
def test_the_sender_does_not_hear_its_own_words_and_other_clients_do(rim: Rim) -> None:
    follow = [{"session": "*"}]
    with rim.live(client="phone", follow=follow) as phone, rim.live(client="desk", follow=follow) as desk:
        phone.hear()
        desk.hear()
        for number in range(10):
            answered(rim, send(rim, f"echo only-once-{number}", conversation="echo", client="phone"))
        by_phone, by_desk = phone.settle(), desk.settle()

    def own_words(heard: list[dict[str, Any]]) -> list[str]:
        accepted = [e for e in heard if e["type"] == "news" and e["news"] == "envelope.accepted"]
        turns = [e["record"]["body"] for e in heard if e.get("record", {}).get("kind") == "user"]
        return [e["text"] for e in accepted if e["from"] == "person:owner"] + [t["text"] for t in turns]

    assert own_words(by_phone) == []
    assert len(own_words(by_desk)) == 20  # each accepted, and each read by the agent
    answers = [e["text"] for e in by_phone if e["type"] == "news" and e["news"] == "envelope.accepted"]
    assert answers == [f"only-once-{number}" for number in range(10)]
    assert {"run.started", "run.ended"} <= news_in(by_phone)


def test_a_client_of_another_person_cannot_make_us_deaf_by_its_name(rim: Rim) -> None:
    token = rim.member("noor")
    with rim.live(client="phone", follow=[{"session": "*"}]) as phone:
        phone.hear()
        answered(rim, send(rim, "echo from noor", conversation="names", as_=token, client="phone"), as_=token)
        assert any(e.get("text") == "echo from noor" for e in phone.settle())


@pytest.mark.spec("A21")
def test_a_run_goes_on_when_its_watcher_is_gone_and_whoever_comes_back_sees_where_it_is(rim: Rim) -> None:
    with rim.live(follow=[{"session": "*"}]) as live:
        live.hear()
        sent = send(rim, "count to 60", conversation="count")
        live.until("delta", session=sent["session"])
    rim.process.wait_for_words(sent["session"], " 20 ")
    with rim.live(after=sent["cursor"], follow=[{"session": sent["session"]}]) as live:
        hello = live.hear()
        (partial,) = hello["partials"]
        assert " 20 " in partial["text"]
        heard = live.until("news", news="run.ended")
        said = partial["text"]
        for event in heard:
            if event["type"] == "delta" and event["attempt"] == partial["attempt"]:
                said = said[: event["offset"]] + event["text"]
        assert said.split() == heard[-1]["record"]["body"]["text"].split()
    answered(rim, sent)


def test_news_is_resumed_from_a_cursor_without_a_gap_and_an_unknown_cursor_is_reset(rim: Rim) -> None:
    sents = [send(rim, f"echo {number}", conversation="resume") for number in range(6)]
    for sent in sents:
        answered(rim, sent)
    session = sents[0]["session"]
    with rim.live(after=0, follow=[{"session": session}]) as live:
        whole = [e["seq"] for e in live.settle() if e["type"] == "news"]
        assert whole == sorted(whole)
    with rim.live(follow=[{"session": "*"}]) as live:
        live.hear()
        live.say("subscribe", session=session, after=whole[4])
        rest = live.until("subscribed", session=session)
        assert [e["seq"] for e in rest if e["type"] == "news"] == whole[5:]
        answered(rim, send(rim, "echo after", conversation="resume"))
        more = [e["seq"] for e in live.settle() if e["type"] == "news" and e["session"] == session]
        assert more == sorted(set(more)) and more[0] > whole[-1]
    with rim.live(after=10**9, follow=[{"session": "*"}]) as live:
        assert live.hear()["type"] == "reset"
        assert live.hear()["type"] == "hello"
        live.say("subscribe", session=session, after=10**9)
        assert live.until("subscribed", session=session)[0]["type"] == "reset"


def test_server_sent_events_and_the_socket_tell_the_same_news(rim: Rim) -> None:
    sent = send(rim, "call session_status", conversation="both")
    answered(rim, sent)
    with rim.live(after=0, follow=[{"session": sent["session"]}]) as live:
        by_socket = [e for e in live.settle() if e["type"] == "news"]
    link = rim.raw()
    head = f"GET /api/news?after=0&session={sent['session']} HTTP/1.1\r\nhost: localhost\r\n"
    link.sendall(f"{head}authorization: Bearer {rim.token}\r\n\r\n".encode())
    text = b""
    while f'"seq":{by_socket[-1]["seq"]},'.encode() not in text or not text.endswith(b"\n\n\r\n"):
        text += link.recv(65536)
    link.close()
    lines = [line.removeprefix(b"data: ") for line in text.split(b"\n") if line.startswith(b"data: ")]
    by_stream = [event for event in map(json.loads, lines) if "news" in event]
    assert by_stream == [{k: v for k, v in event.items() if k != "type"} for event in by_socket]


@pytest.mark.spec("C89.scopes")
def test_a_member_follows_what_they_see_and_nothing_else(rim: Rim) -> None:
    token = rim.member("maria")
    mine = send(rim, "echo secret", conversation="sight")
    with rim.live(as_=token, follow=[{"session": "*"}, {"session": mine["session"]}]) as live:
        assert live.until("error")[-1]["error"]["code"] == "session.not_found"
        answered(rim, send(rim, "count to 10", conversation="sight"))
        hers = send(rim, "echo hers", conversation="hers", as_=token)
        answered(rim, hers, as_=token)
        assert sessions_in(live.settle()) == {hers["session"]}
        live.say("subscribe", session=mine["session"])
        assert live.until("error")[-1]["error"]["code"] == "session.not_found"


def test_a_revoked_token_ends_what_it_follows(rim: Rim) -> None:
    made = rim.do("token.create", label="short")
    with rim.live(as_=made["token"], follow=[{"session": "*"}]) as live:
        live.hear()
        rim.do("token.revoke", id=made["id"])

        def closed() -> ConnectionClosed | None:
            try:
                live.settle()
            except ConnectionClosed as error:
                return error
            return None

        error = wait_until_sync(closed, "the socket is closed", poll_s=0.5)
        assert error is not None and error.rcvd is not None
        assert error.rcvd.code == 4401


def test_a_socket_lives_longer_than_a_request_may_take(rim: Rim) -> None:
    with rim.live() as live:
        live.hear()
        with rim.raw() as slow:
            slow.sendall(b"GET /api/health HTTP/1.1\r\n")
            assert b"request.too_slow" in slow.recv(4096)  # so long may a request take
        assert live.settle() == []


def test_so_many_sockets_for_one_principal_and_no_more(rim: Rim) -> None:
    token = rim.member("ines")
    open_: list[Any] = []
    try:
        for _ in range(8):
            context = rim.live(as_=token)
            open_.append((context, context.__enter__()))
        with pytest.raises(InvalidStatus) as refused, rim.live(as_=token):
            pass
        assert refused.value.response.status_code == 429
        assert "retry-after" in refused.value.response.headers
    finally:
        for context, _ in open_:
            context.__exit__(None, None, None)
    with rim.live(as_=token) as live:
        assert live.hear()["type"] == "hello"


def test_a_client_that_does_not_read_holds_up_nobody_and_little_memory(tmp_path: Path) -> None:
    with open_rim(tmp_path, LIMITS) as rim:
        process = rim.process._process  # pyright: ignore[reportPrivateUsage]
        assert process is not None

        def memory_bytes() -> int:
            lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
            return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))

        # It reads a little ahead into a queue of its own, and then no more until it is asked.
        with rim.live(follow=[{"session": "*"}]) as deaf:
            deaf.hear()
            words = "w" * 40_000
            before = memory_bytes()
            # All at once: a client that does not answer a ping is dropped after a while, so this must not take long.
            sent = [send(rim, f"echo {number} {words}", conversation=f"deaf-{number % 40}") for number in range(120)]
            for each in sent:
                answered(rim, each)
            assert memory_bytes() - before < 150_000_000
            newest = rim.do("house.status")["cursor"]
            seqs = [e["seq"] for e in deaf.until("news", seq=newest) if e["type"] == "news"]
            assert seqs == list(range(1, newest + 1))  # nothing of the news is missing


def test_the_house_says_that_it_closes(tmp_path: Path) -> None:
    with open_rim(tmp_path) as rim, rim.live() as live:
        live.hear()
        rim.process.close()
        assert closed_by(live)[0] == 1012
        assert not (rim.process.home / "address").exists()
