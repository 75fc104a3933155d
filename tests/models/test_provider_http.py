"""Models over HTTP: whatever a server sends, the result is a reply or a `ModelFailed` with a reason."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from models.replay import (
    KEY,
    Answer,
    Then,
    collect_reply,
    make_http_model,
    make_model_facts,
    open_provider_connections,
    prompt_of,
    provider,
)

from retinue.domain.model import ModelFailed, ModelFailureKind
from retinue.domain.record import UserTurn
from retinue.models import provider_http
from retinue.models.base import EndChunk, ReplyChunk, TextChunk
from retinue.models.provider_http import HttpModel, ProviderConnections, ProviderRequest, is_event_stream
from retinue.testing.loop_time import skip_loop_time
from retinue.testing.wait_conditions import wait_until

CHAT = "openai-chat"

SILENCE_S = 60.0
STALE_S = 40.0  # twice that is less than the time limit for the first byte


@pytest.fixture(autouse=True)
def _long_stale_connection_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even on a slow machine, a connection that is closed at once is noticed within this time."""
    monkeypatch.setattr(provider_http, "STALE_CONNECTION_S", STALE_S)


def stream_of_words(*words: str, finish: str | None = "stop", done: bool = True) -> str:
    """Return a stream with these words."""
    events = [{"choices": [{"index": 0, "delta": {"content": word}}]} for word in words]
    if finish:
        events.append({"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]})
    return "".join(f"data: {json.dumps(event)}\n\n" for event in events) + ("data: [DONE]\n\n" if done else "")


HELLO = stream_of_words("Hel", "lo.")


@pytest.fixture
async def link() -> AsyncIterator[ProviderConnections]:
    async with open_provider_connections() as link:
        yield link


async def collect_failure(model: HttpModel, key: str = KEY) -> ModelFailed:
    with pytest.raises(ModelFailed) as failed:
        await collect(model, key=key)
    return failed.value


async def collect(model: HttpModel, *, key: str = KEY) -> list[ReplyChunk]:
    return [chunk async for chunk in model.reply(prompt_of(), key=key)]


async def test_chunks_of_a_model_reply_arrive_as_the_provider_sends_them(link: ProviderConnections) -> None:
    first = stream_of_words("Hel", finish=None, done=False)
    async with provider(Answer(body=first, then=Then.HANG)) as server:
        chunks = make_http_model(link, server.url, CHAT).reply(prompt_of(), key=KEY)
        assert await anext(chunks) == TextChunk("Hel")  # though the server sends no more
        assert isinstance(chunks, AsyncGenerator)
        await chunks.aclose()


async def test_a_provider_that_does_not_answer_an_http_request_times_out(link: ProviderConnections) -> None:
    async with provider(Answer(before=Then.HANG)) as server:
        failed = await collect_failure(make_http_model(link, server.url, CHAT, first_byte_s=0.05))
    assert failed.failure is ModelFailureKind.TIMEOUT
    assert "0.05 seconds" in failed.because


async def test_a_provider_that_answers_200_without_a_body_times_out(link: ProviderConnections) -> None:
    async with provider(Answer(body="", then=Then.HANG)) as server:
        failed = await collect_failure(make_http_model(link, server.url, CHAT, first_byte_s=0.05))
    assert failed.failure is ModelFailureKind.TIMEOUT


async def test_a_provider_that_stops_in_the_middle_times_out_after_its_first_chunks(link: ProviderConnections) -> None:
    async with provider(Answer(body=stream_of_words("Hel", finish=None, done=False), then=Then.HANG)) as server:
        model = make_http_model(link, server.url, CHAT, silence_s=SILENCE_S)
        chunks = model.reply(prompt_of(), key=KEY)
        assert await anext(chunks) == TextChunk("Hel")
        waiting = asyncio.ensure_future(anext(chunks))

        def is_done_after_silence() -> bool:
            skip_loop_time(SILENCE_S)
            return waiting.done()

        await wait_until(is_done_after_silence, "the server is given up", limit_s=100 * SILENCE_S)
        with pytest.raises(ModelFailed) as failed:
            await waiting
    assert failed.value.failure is ModelFailureKind.TIMEOUT
    assert failed.value.may_be_charged
    assert "stopped in the middle of its reply" in failed.value.sentence


async def test_a_slow_reader_of_a_provider_reply_does_not_cause_a_timeout(link: ProviderConnections) -> None:
    body, first_was_read = stream_of_words("Hel", "lo."), asyncio.Event()
    async with provider(Answer(body=body, cuts=[body.index("\n\n") + 2], held=first_was_read)) as server:
        model = make_http_model(link, server.url, CHAT, silence_s=SILENCE_S)
        chunks_read: list[ReplyChunk] = []
        async for chunk in model.reply(prompt_of(), key=KEY):
            skip_loop_time(2 * SILENCE_S)
            await asyncio.sleep(0.001)  # sleep: timers that are due run before this one
            first_was_read.set()
            chunks_read.append(chunk)
    assert chunks_read[:2] == [TextChunk("Hel"), TextChunk("lo.")]
    assert isinstance(chunks_read[-1], EndChunk)


async def test_a_provider_stream_with_its_end_marker_is_complete_if_the_connection_stays_open(
    link: ProviderConnections, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(provider_http, "CONNECTION_END_S", 0.02)
    async with provider(Answer(body=HELLO, then=Then.HANG)) as server:
        collected = await collect_reply(make_http_model(link, server.url, CHAT, silence_s=3600))
    assert collected["text"] == "Hello."


ANTHROPIC_EVENTS = [
    {"type": "message_start", "message": {"type": "message", "usage": {"input_tokens": 3, "output_tokens": 1}}},
    {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": "Hello."}},
    {"type": "content_block_stop", "index": 0},
    {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 2}},
    {"type": "message_stop"},
]
RESPONSES_EVENTS = [
    {"type": "response.output_text.delta", "output_index": 0, "delta": "Hello."},
    {"type": "response.completed", "response": {"status": "completed", "output": []}},
]


@pytest.mark.parametrize(
    ("format_", "events"), [("anthropic", ANTHROPIC_EVENTS), ("openai-responses", RESPONSES_EVENTS)]
)
async def test_the_final_event_of_a_provider_stream_ends_the_reply_if_the_connection_stays_open(
    link: ProviderConnections, monkeypatch: pytest.MonkeyPatch, format_: str, events: list[dict[str, Any]]
) -> None:
    monkeypatch.setattr(provider_http, "CONNECTION_END_S", 0.02)
    body = "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events)
    async with provider(Answer(body=body, then=Then.HANG)) as server:
        collected = await collect_reply(make_http_model(link, server.url, format_, silence_s=3600))
    assert (collected["text"], collected["finish"]) == ("Hello.", "stop")


async def test_a_provider_stream_with_its_end_marker_is_complete_if_the_connection_is_cut(
    link: ProviderConnections,
) -> None:
    for body in (HELLO, stream_of_words("Hello.", done=False)):
        async with provider(Answer(body=body, then=Then.CUT)) as server:
            assert (await collect_reply(make_http_model(link, server.url, CHAT)))["text"] == "Hello."


async def test_a_provider_connection_cut_in_the_middle_of_a_reply_is_a_connection_failure(
    link: ProviderConnections,
) -> None:
    async with provider(Answer(body=stream_of_words("Hel", finish=None, done=False), then=Then.CUT)) as server:
        failed = await collect_failure(make_http_model(link, server.url, CHAT))
    assert failed.failure is ModelFailureKind.CONNECTION
    assert failed.may_be_charged


async def test_a_provider_connection_cut_before_any_answer_is_a_connection_failure(link: ProviderConnections) -> None:
    async with provider(Answer(before=Then.CUT)) as server:
        failed = await collect_failure(make_http_model(link, server.url, CHAT))
    assert failed.failure is ModelFailureKind.CONNECTION


class KeepAliveServer:
    """A server that answers so many requests on a connection and closes it when it receives the next one."""

    def __init__(self, requests_each: int, *, begins: bytes = b"", skips_s: float = 0) -> None:
        self.connections = 0
        self.requests = 0
        self._requests_each = requests_each
        self._begins = begins
        self._skips_s = skips_s

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            for _ in range(self._requests_each):
                await self._read(reader)
                head = f"HTTP/1.1 200 OK\r\ncontent-length: {len(HELLO)}\r\n\r\n"
                writer.write(head.encode() + HELLO.encode())
            await self._read(reader)
            skip_loop_time(self._skips_s)
            writer.write(self._begins)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def _read(self, reader: asyncio.StreamReader) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r")[0])
        await reader.readexactly(length)
        self.requests += 1


@asynccontextmanager
async def running_keep_alive_server(server: KeepAliveServer) -> AsyncGenerator[str]:
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    finally:
        listening.close()


async def test_a_provider_request_is_repeated_if_its_reused_connection_was_closed_at_once(
    link: ProviderConnections,
) -> None:
    server = KeepAliveServer(requests_each=2)
    async with running_keep_alive_server(server) as url:
        model = make_http_model(link, url, CHAT)
        for _ in range(6):
            assert (await collect_reply(model))["text"] == "Hello."
    assert server.connections == 3  # two replies on each; each third request was repeated on the next


async def test_a_provider_request_is_not_repeated_if_its_new_connection_was_closed(
    link: ProviderConnections,
) -> None:
    server = KeepAliveServer(requests_each=0)
    async with running_keep_alive_server(server) as url:
        failed = await collect_failure(make_http_model(link, url, CHAT))
    assert failed.failure is ModelFailureKind.CONNECTION
    assert server.requests == 1


async def test_a_provider_request_is_not_repeated_if_its_reused_connection_closes_late(
    link: ProviderConnections,
) -> None:
    skip_loop_time(0)  # so that the loop's time can be skipped from here on
    server = KeepAliveServer(requests_each=1, skips_s=2 * STALE_S)
    async with running_keep_alive_server(server) as url:
        model = make_http_model(link, url, CHAT)
        await collect_reply(model)
        failed = await collect_failure(model)
    assert failed.failure is ModelFailureKind.CONNECTION
    assert failed.may_be_charged
    assert server.requests == 2


async def test_a_provider_request_is_not_repeated_if_its_connection_closes_after_a_partial_answer(
    link: ProviderConnections,
) -> None:
    server = KeepAliveServer(requests_each=1, begins=b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\ndata:")
    async with running_keep_alive_server(server) as url:
        model = make_http_model(link, url, CHAT)
        await collect_reply(model)
        failed = await collect_failure(model)
    assert failed.failure is ModelFailureKind.CONNECTION
    assert failed.may_be_charged
    assert server.requests == 2


async def test_a_provider_connection_that_is_refused_is_a_failure_without_a_charge(link: ProviderConnections) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        failed = await collect_failure(make_http_model(link, f"http://127.0.0.1:{taken.getsockname()[1]}", CHAT))
    assert failed.failure is ModelFailureKind.CONNECTION
    assert not failed.may_be_charged
    assert "the connection was refused" in failed.because


@pytest.mark.parametrize("type_", ["application/json", "text/plain", "text/html; charset=utf-8", ""])
async def test_a_provider_stream_is_detected_by_its_first_bytes_whatever_its_content_type(
    link: ProviderConnections, type_: str
) -> None:
    headers = {"content-type": type_} if type_ else {}
    async with provider(Answer(body=HELLO, headers=headers)) as server:
        assert (await collect_reply(make_http_model(link, server.url, CHAT)))["text"] == "Hello."


async def test_a_json_reply_of_a_provider_is_read_even_with_the_content_type_of_a_stream(
    link: ProviderConnections,
) -> None:
    reply = {"choices": [{"message": {"content": "Hello."}, "finish_reason": "stop"}]}
    answer = Answer(body="\n " + json.dumps(reply), headers={"content-type": "text/event-stream"})
    async with provider(answer) as server:
        assert (await collect_reply(make_http_model(link, server.url, CHAT)))["text"] == "Hello."


@pytest.mark.parametrize("body", ["<html><body>welcome</body></html>", "data: <html>\n\n", "\x00\x01", "[]", "{}", "7"])
async def test_garbage_from_a_provider_with_status_200_is_a_malformed_reply(
    link: ProviderConnections, body: str
) -> None:
    for format_ in ("openai-chat", "openai-responses"):
        async with provider(Answer(body=body)) as server:
            failed = await collect_failure(make_http_model(link, server.url, format_))
        assert failed.failure is ModelFailureKind.MALFORMED, format_
        assert body not in str(failed.sentence + failed.because)


async def test_an_empty_body_from_a_provider_with_status_200_is_a_malformed_reply(link: ProviderConnections) -> None:
    for format_ in ("openai-chat", "openai-responses"):
        async with provider(Answer(body="")) as server:
            assert (
                await collect_failure(make_http_model(link, server.url, format_))
            ).failure is ModelFailureKind.MALFORMED


async def test_a_provider_redirect_is_refused_and_the_key_is_not_sent_elsewhere(link: ProviderConnections) -> None:
    async with provider(Answer(body=HELLO)) as elsewhere:
        moved = Answer(status=307, headers={"location": f"{elsewhere.url}/v1/chat/completions"})
        async with provider(moved) as server:
            failed = await collect_failure(make_http_model(link, server.url, CHAT))
        assert elsewhere.asked == []
        assert len(server.asked) == 1
    assert failed.status == 307
    assert "redirects" in failed.sentence


async def test_a_provider_reply_without_end_is_stopped_at_the_byte_limit(
    link: ProviderConnections, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(provider_http, "REPLY_BYTES_MAX", 2_000)
    for body in (stream_of_words(*["word "] * 200), "{" + " " * 5_000 + "}", "\n" * 5_000):
        async with provider(Answer(body=body, then=Then.HANG)) as server:
            failed = await collect_failure(make_http_model(link, server.url, CHAT))
        assert failed.failure is ModelFailureKind.MALFORMED
        assert "2,000 bytes" in failed.because


async def test_an_error_body_of_a_provider_is_read_only_up_to_its_limit(
    link: ProviderConnections, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(provider_http, "ERROR_BYTES_MAX", 1_000)
    async with provider(Answer(status=500, body="x" * 100_000, then=Then.HANG)) as server:
        failed = await collect_failure(make_http_model(link, server.url, CHAT))
    assert (failed.failure, failed.status) == (ModelFailureKind.SERVER, 500)


async def test_a_truncated_error_body_of_a_provider_is_classified_by_status_and_headers(
    link: ProviderConnections, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(provider_http, "ERROR_BODY_TIMEOUT_S", 0.05)
    for then in (Then.CUT, Then.HANG):
        async with provider(Answer(status=429, headers={"retry-after": "7"}, body='{"err', then=then)) as server:
            failed = await collect_failure(make_http_model(link, server.url, CHAT))
        assert (failed.failure, failed.retry_after_s) == (ModelFailureKind.RATE_LIMIT, 7.0)


@pytest.mark.parametrize(
    "answer",
    [
        Answer(status=401, body=json.dumps({"error": {"message": f"Incorrect API key provided: {KEY}"}})),
        Answer(status=500, body=f"panic: authorization=Bearer {KEY}"),
        Answer(body=f"data: {json.dumps({'error': {'message': f'bad key {KEY}'}})}\n\n"),
        Answer(body=f"data: {KEY}\n\n"),
        Answer(status=307, headers={"location": f"http://127.0.0.1/?key={KEY}"}),
        Answer(before=Then.CUT),
    ],
)
async def test_the_api_key_is_in_no_error_of_a_provider_request(link: ProviderConnections, answer: Answer) -> None:
    for format_ in ("openai-chat", "openai-responses"):
        async with provider(answer) as server:
            failed = await collect_failure(make_http_model(link, server.url, format_))
        assert server.last.headers["authorization"] == f"Bearer {KEY}"
        words = [failed.sentence, failed.because, failed.try_this, str(failed), repr(failed)]
        assert not any(KEY in word for word in words)


async def test_the_api_key_is_not_in_the_repr_or_url_of_a_provider_request(link: ProviderConnections) -> None:
    model = make_http_model(link, "http://127.0.0.1:1", CHAT)
    request: ProviderRequest = model._provider_format.build_request(prompt_of(), model._target, KEY)  # pyright: ignore[reportPrivateUsage]
    assert KEY in str(dict(request.headers))
    assert KEY not in repr(request)
    assert KEY not in request.url


async def test_secret_headers_of_a_provider_are_not_in_the_repr_of_a_model_target(link: ProviderConnections) -> None:
    model = make_http_model(link, "http://127.0.0.1:1", CHAT, headers={"x-api-key": KEY})
    assert KEY not in repr(model._target)  # pyright: ignore[reportPrivateUsage]


async def test_a_provider_request_without_a_key_has_no_authorization_header(link: ProviderConnections) -> None:
    async with provider(Answer(body=HELLO)) as server:
        await collect_reply(make_http_model(link, server.url, CHAT), key="")
    assert "authorization" not in server.last.headers


async def test_headers_from_the_provider_settings_override_the_headers_of_a_request(link: ProviderConnections) -> None:
    async with provider(Answer(body=HELLO)) as server:
        await collect_reply(make_http_model(link, server.url, CHAT, headers={"x-team": "kitchen", "accept": "*/*"}))
    assert server.last.headers["x-team"] == "kitchen"
    assert server.last.headers["accept"] == "*/*"
    assert "cookie" not in server.last.headers


@pytest.mark.parametrize(("turns", "repeated"), [(1, 200_000), (300, 100), (40, 20_000)])
async def test_a_provider_request_with_a_long_body_is_sent_completely(
    link: ProviderConnections, turns: int, repeated: int
) -> None:
    texts = [f"{number} " + "0123456789" * repeated for number in range(turns)]
    async with provider(Answer(body=HELLO)) as server:
        await collect_reply(
            make_http_model(link, server.url, CHAT), prompt_of(*(UserTurn(text=text) for text in texts))
        )
    assert [message["content"] for message in server.last.body["messages"][1:]] == texts
    assert server.last.headers["content-type"] == "application/json"


async def test_closing_a_model_reply_early_closes_its_provider_connection(link: ProviderConnections) -> None:
    async with provider(
        Answer(body=stream_of_words("Hel", finish=None, done=False), then=Then.HANG), Answer(body=HELLO)
    ) as server:
        model = make_http_model(link, server.url, CHAT)
        chunks = model.reply(prompt_of(), key=KEY)
        await anext(chunks)
        assert isinstance(chunks, AsyncGenerator)
        await chunks.aclose()
        assert (await collect_reply(model))["text"] == "Hello."
        assert link.pool.idle_count == 0


async def test_cancelling_a_model_reply_over_http_raises_cancelled_error(link: ProviderConnections) -> None:
    async with provider(Answer(before=Then.HANG)) as server:
        task = asyncio.create_task(collect(make_http_model(link, server.url, CHAT)))
        await wait_until(lambda: server.asked, "the server is asked", poll_s=0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


def test_the_event_stream_of_a_provider_is_detected_from_as_few_bytes_as_possible() -> None:
    undecided: list[Any] = [b"", b" \n", b"d", b"dat", b"\n\neve", b"\xef", b"\xef\xbb\xbf"]
    assert [is_event_stream(begin) for begin in undecided] == [None] * len(undecided)
    streams = [b"data:", b": OK", b"\r\n\r\nevent: x", b"\xef\xbb\xbfid: 1", b"retry: 3"]
    assert all(is_event_stream(begin) is True for begin in streams)
    assert not any(is_event_stream(begin) for begin in (b"{", b"<html>", b"dates", b"[", b"\xef{"))


async def test_an_http_model_has_its_name_and_facts(link: ProviderConnections) -> None:
    facts = make_model_facts("acme", "small-1")
    model = make_http_model(link, "http://127.0.0.1:1", CHAT, facts=facts)
    assert (model.name, model.facts) == ("acme/small-1", facts)
