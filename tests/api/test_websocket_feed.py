"""Live events over a WebSocket: filters, missed events and reconnection."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from api.tcp_server import ApiClient, WebSocketClient, open_api_client
from websockets.exceptions import ConnectionClosed, InvalidStatus

from retinue.testing.wait_conditions import wait_until_sync

LIMITS = "[server.limits]\nrequest_wait_s = 3.0\nwebsockets_max = 8\nenvelopes_per_minute = 10000\n"


@pytest.fixture(scope="module")
def api_client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiClient]:
    with open_api_client(tmp_path_factory.mktemp("live"), LIMITS) as api_client:
        yield api_client


def send(api_client: ApiClient, text: str, *, conversation: str, as_: str = "", client: str = "") -> dict[str, Any]:
    headers = {"x-retinue-client": client} if client else None
    parameters = {"to": "agent:guide", "text": text, "conversation": conversation}
    return api_client.do("envelope.send", as_=as_, headers=headers, **parameters)


def wait_until_done(api_client: ApiClient, sent: dict[str, Any], *, as_: str = "") -> None:
    """Wait until an envelope is done."""
    wait_until_sync(
        lambda: api_client.do("envelope.show", as_=as_, id=sent["envelope"])["status"] == "done", "the envelope is done"
    )


def sessions_in(heard: list[dict[str, Any]]) -> set[str]:
    return {event["session"] for event in heard if event["type"] in ("event", "delta")}


def event_kinds_in(heard: list[dict[str, Any]]) -> set[str]:
    return {event["event"] for event in heard if event["type"] == "event"}


def read_close_code(websocket: WebSocketClient) -> tuple[int, str]:
    with pytest.raises(ConnectionClosed) as read_close_error:
        websocket.until("never")
    assert read_close_error.value.rcvd is not None
    return read_close_error.value.rcvd.code, read_close_error.value.rcvd.reason


@pytest.mark.spec("A14", "C89.version")
def test_a_websocket_hello_with_another_protocol_version_is_refused_with_a_code_and_a_reason(
    api_client: ApiClient,
) -> None:
    old_filter = [{"session": "*", "mask": {"events": ["news"]}}]  # its fields do not matter
    with api_client.websocket(protocol=1, follow=old_filter) as websocket:
        assert read_close_code(websocket) == (4406, "unsupported protocol 1; this server has protocol 2")
    with api_client.websocket() as websocket:
        hello = {"type": "hello", "protocol": 2, "cursor": 0, "partials": [], "nested": []}
        assert websocket.receive_frame() | {"cursor": 0} == hello


def test_invalid_websocket_frames_close_the_connection(api_client: ApiClient) -> None:
    for frame in ("{", '{"type":"nonsense"}', '{"type":"subscribe"}', '{"type":"hello","protocol":2}', "\x00"):
        with api_client.websocket() as websocket:
            websocket.receive_frame()
            websocket.link.send(frame)
            assert read_close_code(websocket)[0] == 4400


@pytest.mark.spec("A15")
def test_one_websocket_follows_several_sessions_and_no_others(api_client: ApiClient) -> None:
    a, b, c = (send(api_client, "echo first", conversation=f"several-{name}") for name in "abc")
    for sent in (a, b, c):
        wait_until_done(api_client, sent)
    with api_client.websocket(follow=[{"session": a["session"]}]) as websocket:
        websocket.receive_frame()
        websocket.say("subscribe", session=b["session"])
        websocket.until("subscribed", session=b["session"])
        for name in "abc":
            wait_until_done(api_client, send(api_client, f"echo second {name}", conversation=f"several-{name}"))
        heard = websocket.receive_pending()
        assert sessions_in(heard) == {a["session"], b["session"]}
        assert not any("first" in json.dumps(event) for event in heard)  # events from now on, not earlier ones
        websocket.say("unsubscribe", session=a["session"])
        websocket.until("unsubscribed", session=a["session"])
        for name in "abc":
            wait_until_done(api_client, send(api_client, f"echo third {name}", conversation=f"several-{name}"))
        assert sessions_in(websocket.receive_pending()) == {b["session"]}


@pytest.mark.spec("A16")
def test_a_websocket_filter_selects_events_by_kind_tool_and_phase(api_client: ApiClient) -> None:
    masks: dict[str, dict[str, list[str]]] = {
        "kinds": {"types": ["event"], "kinds": ["run.started", "run.ended"]},
        "tools": {"types": ["event"], "tools": ["read"]},
        "phases": {"phases": ["thinking", "final"]},
        "all": {},
    }
    first = send(api_client, "be silent", conversation="masks")
    wait_until_done(api_client, first)
    heard: dict[str, list[dict[str, Any]]] = {}
    for name, mask in masks.items():
        with api_client.websocket(follow=[{"session": first["session"], "filter": mask}]) as websocket:
            websocket.receive_frame()
            for text in ("call session_status; read SOUL.md", "think about tea"):
                wait_until_done(api_client, send(api_client, text, conversation="masks"))
            heard[name] = websocket.receive_pending()
    assert event_kinds_in(heard["kinds"]) == {"run.started", "run.ended"}
    assert not any(event["type"] == "delta" for event in heard["kinds"])
    opened = [e["tool"] for e in heard["tools"] if e["type"] == "event" and e["event"] == "step.opened"]
    assert opened == ["read"]
    results = [e["record"] for e in heard["tools"] if e.get("event") == "step.closed" and e["record"]["kind"] == "tool"]
    assert [record["body"]["tool"] for record in results] == ["read"]
    assert {e["kind"] for e in heard["phases"] if e["type"] == "delta"} == {"thinking"}
    assert {"run.ended", "run.started"} <= event_kinds_in(
        heard["phases"]
    )  # the start of a run has no phase, so lists of phases do not apply
    assert "step.opened" not in event_kinds_in(heard["phases"])
    opened = [e["tool"] for e in heard["all"] if e["type"] == "event" and e["event"] == "step.opened"]
    assert sorted(opened) == ["read", "session_status"]
    assert {e["kind"] for e in heard["all"] if e["type"] == "delta"} == {"thinking", "text"}


def test_a_websocket_event_filter_with_an_unknown_value_is_refused(api_client: ApiClient) -> None:
    with api_client.websocket(follow=[{"session": "*", "filter": {"phases": ["dusk"]}}]) as websocket:
        assert websocket.until("error")[-1]["error"]["code"] == "live.filter_invalid"


@pytest.mark.spec("A17")
def test_a_websocket_client_does_not_get_its_own_messages_and_other_clients_do(api_client: ApiClient) -> None:
    follow = [{"session": "*"}]
    with (
        api_client.websocket(client="phone", follow=follow) as phone,
        api_client.websocket(client="desktop", follow=follow) as desktop,
    ):
        phone.receive_frame()
        desktop.receive_frame()
        for number in range(10):
            wait_until_done(
                api_client, send(api_client, f"echo only-once-{number}", conversation="echo", client="phone")
            )
        by_phone, by_desktop = phone.receive_pending(), desktop.receive_pending()

    def owner_texts(heard: list[dict[str, Any]]) -> list[str]:
        accepted = [e for e in heard if e["type"] == "event" and e["event"] == "envelope.accepted"]
        turns = [e["record"]["body"] for e in heard if e.get("record", {}).get("kind") == "user"]
        return [e["text"] for e in accepted if e["from"] == "person:owner"] + [t["text"] for t in turns]

    assert owner_texts(by_phone) == []
    assert len(owner_texts(by_desktop)) == 20  # each was accepted and read by the agent
    answers = [e["text"] for e in by_phone if e["type"] == "event" and e["event"] == "envelope.accepted"]
    assert answers == [f"only-once-{number}" for number in range(10)]
    assert {"run.started", "run.ended"} <= event_kinds_in(by_phone)


def test_a_websocket_client_name_of_another_person_does_not_hide_their_messages(api_client: ApiClient) -> None:
    token = api_client.member("noor")
    with api_client.websocket(client="phone", follow=[{"session": "*"}]) as phone:
        phone.receive_frame()
        wait_until_done(
            api_client, send(api_client, "echo from noor", conversation="names", as_=token, client="phone"), as_=token
        )
        assert any(e.get("text") == "echo from noor" for e in phone.receive_pending())


@pytest.mark.spec("A21")
def test_a_reconnecting_websocket_client_gets_the_current_text_of_a_running_run(api_client: ApiClient) -> None:
    with api_client.websocket(follow=[{"session": "*"}]) as websocket:
        websocket.receive_frame()
        sent = send(api_client, "count to 60", conversation="count")
        websocket.until("delta", session=sent["session"])
    api_client.process.wait_for_partial_text(sent["session"], " 20 ")
    with api_client.websocket(after=sent["cursor"], follow=[{"session": sent["session"]}]) as websocket:
        hello = websocket.receive_frame()
        (partial,) = hello["partials"]
        assert " 20 " in partial["text"]
        heard = websocket.until("event", event="run.ended")
        said = partial["text"]
        for event in heard:
            if event["type"] == "delta" and event["attempt"] == partial["attempt"]:
                said = said[: event["offset"]] + event["text"]
        assert said.split() == heard[-1]["record"]["body"]["text"].split()
    wait_until_done(api_client, sent)


def test_websocket_events_resume_from_a_cursor_without_a_gap_and_an_unknown_cursor_is_reset(
    api_client: ApiClient,
) -> None:
    sents = [send(api_client, f"echo {number}", conversation="resume") for number in range(6)]
    for sent in sents:
        wait_until_done(api_client, sent)
    session = sents[0]["session"]
    with api_client.websocket(after=0, follow=[{"session": session}]) as websocket:
        all_seqs = [e["seq"] for e in websocket.receive_pending() if e["type"] == "event"]
        assert all_seqs == sorted(all_seqs)
    with api_client.websocket(follow=[{"session": "*"}]) as websocket:
        websocket.receive_frame()
        websocket.say("subscribe", session=session, after=all_seqs[4])
        rest = websocket.until("subscribed", session=session)
        assert [e["seq"] for e in rest if e["type"] == "event"] == all_seqs[5:]
        wait_until_done(api_client, send(api_client, "echo after", conversation="resume"))
        more = [e["seq"] for e in websocket.receive_pending() if e["type"] == "event" and e["session"] == session]
        assert more == sorted(set(more)) and more[0] > all_seqs[-1]
    with api_client.websocket(after=10**9, follow=[{"session": "*"}]) as websocket:
        assert websocket.receive_frame()["type"] == "reset"
        assert websocket.receive_frame()["type"] == "hello"
        websocket.say("subscribe", session=session, after=10**9)
        assert websocket.until("subscribed", session=session)[0]["type"] == "reset"


def test_server_sent_events_and_the_websocket_deliver_the_same_events(api_client: ApiClient) -> None:
    sent = send(api_client, "call session_status", conversation="both")
    wait_until_done(api_client, sent)
    with api_client.websocket(after=0, follow=[{"session": sent["session"]}]) as websocket:
        by_socket = [e for e in websocket.receive_pending() if e["type"] == "event"]
    link = api_client.raw()
    head = f"GET /api/events?after=0&session={sent['session']} HTTP/1.1\r\nhost: localhost\r\n"
    link.sendall(f"{head}authorization: Bearer {api_client.token}\r\n\r\n".encode())
    text = b""
    while f'"seq":{by_socket[-1]["seq"]},'.encode() not in text or not text.endswith(b"\n\n\r\n"):
        text += link.recv(65536)
    link.close()
    lines = [line.removeprefix(b"data: ") for line in text.split(b"\n") if line.startswith(b"data: ")]
    by_stream = [event for event in map(json.loads, lines) if "event" in event]
    assert by_stream == [{k: v for k, v in event.items() if k != "type"} for event in by_socket]


@pytest.mark.spec("C89.scopes")
def test_a_member_follows_over_a_websocket_only_sessions_that_they_can_see(api_client: ApiClient) -> None:
    token = api_client.member("maria")
    mine = send(api_client, "echo secret", conversation="sight")
    with api_client.websocket(as_=token, follow=[{"session": "*"}, {"session": mine["session"]}]) as websocket:
        assert websocket.until("error")[-1]["error"]["code"] == "session.not_found"
        wait_until_done(api_client, send(api_client, "count to 10", conversation="sight"))
        hers = send(api_client, "echo hers", conversation="hers", as_=token)
        wait_until_done(api_client, hers, as_=token)
        assert sessions_in(websocket.receive_pending()) == {hers["session"]}
        websocket.say("subscribe", session=mine["session"])
        assert websocket.until("error")[-1]["error"]["code"] == "session.not_found"


def test_revoking_a_token_closes_its_websocket(api_client: ApiClient) -> None:
    made = api_client.do("token.create", label="short")
    with api_client.websocket(as_=made["token"], follow=[{"session": "*"}]) as websocket:
        websocket.receive_frame()
        api_client.do("token.revoke", id=made["id"])

        def read_close_error() -> ConnectionClosed | None:
            try:
                websocket.receive_pending()
            except ConnectionClosed as error:
                return error
            return None

        error = wait_until_sync(read_close_error, "the socket is closed", poll_s=0.5)
        assert error is not None and error.rcvd is not None
        assert error.rcvd.code == 4401


def test_a_websocket_outlives_the_request_time_limit(api_client: ApiClient) -> None:
    with api_client.websocket() as websocket:
        websocket.receive_frame()
        with api_client.raw() as slow:
            slow.sendall(b"GET /api/health HTTP/1.1\r\n")
            assert b"request.too_slow" in slow.recv(4096)  # the maximum time of a request
        assert websocket.receive_pending() == []


def test_websockets_per_principal_are_limited(api_client: ApiClient) -> None:
    token = api_client.member("ines")
    open_: list[Any] = []
    try:
        for _ in range(8):
            context = api_client.websocket(as_=token)
            open_.append((context, context.__enter__()))
        with pytest.raises(InvalidStatus) as refused, api_client.websocket(as_=token):
            pass
        assert refused.value.response.status_code == 429
        assert "retry-after" in refused.value.response.headers
    finally:
        for context, _ in open_:
            context.__exit__(None, None, None)
    with api_client.websocket(as_=token) as websocket:
        assert websocket.receive_frame()["type"] == "hello"


def read_seqs(api_client: ApiClient, websocket: WebSocketClient, *, until: int) -> list[int]:
    """Read events up to this number; their numbers. A client that was disconnected continues where it was."""
    seqs: list[int] = []
    with suppress(ConnectionClosed):  # on a slow machine, a ping was not answered in time
        while seqs[-1:] != [until]:
            frame = websocket.receive_frame()
            seqs += [frame["seq"]] if frame["type"] == "event" else []
        return seqs
    after = seqs[-1] if seqs else 0
    with api_client.websocket(after=after, follow=[{"session": "*"}]) as again:
        return seqs + [e["seq"] for e in again.until("event", seq=until) if e["type"] == "event"]


def test_a_websocket_client_that_does_not_read_uses_little_memory_and_misses_no_event(tmp_path: Path) -> None:
    with open_api_client(tmp_path, LIMITS) as api_client:
        process = api_client.process._process  # pyright: ignore[reportPrivateUsage]
        assert process is not None

        def memory_bytes() -> int:
            lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
            return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))

        # The client library reads a few frames into its own queue, then no more until the test reads.
        with api_client.websocket(follow=[{"session": "*"}]) as deaf:
            deaf.receive_frame()
            words = "w" * 40_000
            before = memory_bytes()
            # All at once: a client that does not answer a ping is disconnected, so this should be quick.
            sent = [
                send(api_client, f"echo {number} {words}", conversation=f"deaf-{number % 40}") for number in range(120)
            ]
            for each in sent:
                wait_until_done(api_client, each)
            assert memory_bytes() - before < 150_000_000
            newest = api_client.do("server.status")["cursor"]
            assert read_seqs(api_client, deaf, until=newest) == list(range(1, newest + 1))  # no event is missing


def test_the_server_closes_websockets_with_a_code_when_it_stops(tmp_path: Path) -> None:
    with open_api_client(tmp_path) as api_client, api_client.websocket() as websocket:
        websocket.receive_frame()
        api_client.process.close()
        assert read_close_code(websocket)[0] == 1012
        assert not (api_client.process.home / "address").exists()
