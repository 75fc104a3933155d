"""The rim of models over HTTP: whatever a server does, there is a reply or a reason in our words."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from models.replay import KEY, Answer, Then, facts_of, hear, linked, model_at, prompt_of, provider

from retinue.domain.model import ModelFailed, ModelFailureKind
from retinue.domain.record import UserTurn
from retinue.models import provider_http
from retinue.models.base import EndChunk, ReplyChunk, TextChunk
from retinue.models.provider_http import HttpModel, ProviderConnections, ProviderRequest, is_event_stream
from retinue.testing.loop_time import skip_loop_time
from retinue.testing.wait_conditions import wait_until

CHAT = "openai-chat"

SILENCE_S = 60.0
STALE_S = 40.0  # twice that is less than the first byte may take


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow this machine is, a line that is closed at once is found to be so in time."""
    monkeypatch.setattr(provider_http, "STALE_CONNECTION_S", STALE_S)


def said(*words: str, finish: str | None = "stop", done: bool = True) -> str:
    """A stream with these words in it."""
    events = [{"choices": [{"index": 0, "delta": {"content": word}}]} for word in words]
    if finish:
        events.append({"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]})
    return "".join(f"data: {json.dumps(event)}\n\n" for event in events) + ("data: [DONE]\n\n" if done else "")


HELLO = said("Hel", "lo.")


@pytest.fixture
async def link() -> AsyncIterator[ProviderConnections]:
    async with linked() as link:
        yield link


async def failure_of(model: HttpModel, key: str = KEY) -> ModelFailed:
    with pytest.raises(ModelFailed) as failed:
        await collect(model, key=key)
    return failed.value


async def collect(model: HttpModel, *, key: str = KEY) -> list[ReplyChunk]:
    return [chunk async for chunk in model.reply(prompt_of(), key=key)]


async def test_a_reply_comes_word_by_word_as_the_server_sends_it(link: ProviderConnections) -> None:
    first = said("Hel", finish=None, done=False)
    async with provider(Answer(body=first, then=Then.HANG)) as server:
        chunks = model_at(link, server.url, CHAT).reply(prompt_of(), key=KEY)
        assert await anext(chunks) == TextChunk("Hel")  # though the server never says more
        assert isinstance(chunks, AsyncGenerator)
        await chunks.aclose()


async def test_a_server_that_says_nothing_is_given_up(link: ProviderConnections) -> None:
    async with provider(Answer(before=Then.HANG)) as server:
        failed = await failure_of(model_at(link, server.url, CHAT, first_byte_s=0.05))
    assert failed.failure is ModelFailureKind.TIMEOUT
    assert "0.05 seconds" in failed.because


async def test_a_server_that_answers_200_and_says_nothing_is_given_up(link: ProviderConnections) -> None:
    async with provider(Answer(body="", then=Then.HANG)) as server:
        failed = await failure_of(model_at(link, server.url, CHAT, first_byte_s=0.05))
    assert failed.failure is ModelFailureKind.TIMEOUT


async def test_a_server_that_falls_silent_is_given_up_and_what_came_was_told(link: ProviderConnections) -> None:
    async with provider(Answer(body=said("Hel", finish=None, done=False), then=Then.HANG)) as server:
        model = model_at(link, server.url, CHAT, silence_s=SILENCE_S)
        chunks = model.reply(prompt_of(), key=KEY)
        assert await anext(chunks) == TextChunk("Hel")
        waiting = asyncio.ensure_future(anext(chunks))

        def later() -> bool:
            skip_loop_time(SILENCE_S)
            return waiting.done()

        await wait_until(later, "the server is given up", limit_s=100 * SILENCE_S)
        with pytest.raises(ModelFailed) as failed:
            await waiting
    assert failed.value.failure is ModelFailureKind.TIMEOUT
    assert failed.value.may_be_charged
    assert "stopped in the middle of its reply" in failed.value.sentence


async def test_a_listener_who_takes_his_time_is_not_the_server_falling_silent(link: ProviderConnections) -> None:
    body = said("Hel", "lo.")
    async with provider(Answer(body=body, cuts=[body.index("\n\n") + 2])) as server:
        model = model_at(link, server.url, CHAT, silence_s=SILENCE_S)
        heard: list[ReplyChunk] = []
        async for chunk in model.reply(prompt_of(), key=KEY):
            skip_loop_time(2 * SILENCE_S)
            await asyncio.sleep(0.001)  # sleep: timers that are due go off before this one
            heard.append(chunk)
    assert heard[:2] == [TextChunk("Hel"), TextChunk("lo.")]
    assert isinstance(heard[-1], EndChunk)


async def test_a_stream_that_was_ended_is_over_though_the_line_stays_open(
    link: ProviderConnections, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(provider_http, "CONNECTION_END_S", 0.02)
    async with provider(Answer(body=HELLO, then=Then.HANG)) as server:
        heard = await hear(model_at(link, server.url, CHAT, silence_s=3600))
    assert heard["text"] == "Hello."


MESSAGE = [
    {"type": "message_start", "message": {"type": "message", "usage": {"input_tokens": 3, "output_tokens": 1}}},
    {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": "Hello."}},
    {"type": "content_block_stop", "index": 0},
    {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 2}},
    {"type": "message_stop"},
]
RESPONSE = [
    {"type": "response.output_text.delta", "output_index": 0, "delta": "Hello."},
    {"type": "response.completed", "response": {"status": "completed", "output": []}},
]


@pytest.mark.parametrize(("format_", "events"), [("anthropic", MESSAGE), ("openai-responses", RESPONSE)])
async def test_the_last_event_of_a_format_ends_a_reply_though_the_line_stays_open(
    link: ProviderConnections, monkeypatch: pytest.MonkeyPatch, format_: str, events: list[dict[str, Any]]
) -> None:
    monkeypatch.setattr(provider_http, "CONNECTION_END_S", 0.02)
    body = "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events)
    async with provider(Answer(body=body, then=Then.HANG)) as server:
        heard = await hear(model_at(link, server.url, format_, silence_s=3600))
    assert (heard["text"], heard["finish"]) == ("Hello.", "stop")


async def test_a_stream_that_was_ended_is_over_though_the_line_is_cut(link: ProviderConnections) -> None:
    for body in (HELLO, said("Hello.", done=False)):
        async with provider(Answer(body=body, then=Then.CUT)) as server:
            assert (await hear(model_at(link, server.url, CHAT)))["text"] == "Hello."


async def test_a_line_cut_in_the_middle_is_a_broken_connection(link: ProviderConnections) -> None:
    async with provider(Answer(body=said("Hel", finish=None, done=False), then=Then.CUT)) as server:
        failed = await failure_of(model_at(link, server.url, CHAT))
    assert failed.failure is ModelFailureKind.CONNECTION
    assert failed.may_be_charged


async def test_a_line_cut_before_any_answer_is_a_broken_connection(link: ProviderConnections) -> None:
    async with provider(Answer(before=Then.CUT)) as server:
        failed = await failure_of(model_at(link, server.url, CHAT))
    assert failed.failure is ModelFailureKind.CONNECTION


class KeepsLines:
    """A server that answers so many requests on a line, and closes it when the next one has come."""

    def __init__(self, requests_each: int, *, begins: bytes = b"", skips_s: float = 0) -> None:
        self.lines = 0
        self.requests = 0
        self._requests_each = requests_each
        self._begins = begins
        self._skips_s = skips_s

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.lines += 1
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
async def keeping(server: KeepsLines) -> AsyncGenerator[str]:
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    finally:
        listening.close()


async def test_a_kept_line_that_the_server_closes_is_no_failure_of_the_next_request(link: ProviderConnections) -> None:
    server = KeepsLines(requests_each=2)
    async with keeping(server) as url:
        model = model_at(link, url, CHAT)
        for _ in range(6):
            assert (await hear(model))["text"] == "Hello."
    assert server.lines == 3  # two replies on each, and each third request went out again on the next


async def test_a_new_line_that_the_server_closes_is_a_broken_connection_and_is_not_asked_again(
    link: ProviderConnections,
) -> None:
    server = KeepsLines(requests_each=0)
    async with keeping(server) as url:
        failed = await failure_of(model_at(link, url, CHAT))
    assert failed.failure is ModelFailureKind.CONNECTION
    assert server.requests == 1


async def test_a_kept_line_that_is_closed_later_may_have_cost_something_and_is_not_asked_again(
    link: ProviderConnections,
) -> None:
    skip_loop_time(0)  # so that it can be skipped for whoever looks at it from here on
    server = KeepsLines(requests_each=1, skips_s=2 * STALE_S)
    async with keeping(server) as url:
        model = model_at(link, url, CHAT)
        await hear(model)
        failed = await failure_of(model)
    assert failed.failure is ModelFailureKind.CONNECTION
    assert failed.may_be_charged
    assert server.requests == 2


async def test_a_kept_line_that_is_closed_after_a_part_of_an_answer_is_not_asked_again(
    link: ProviderConnections,
) -> None:
    server = KeepsLines(requests_each=1, begins=b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\ndata:")
    async with keeping(server) as url:
        model = model_at(link, url, CHAT)
        await hear(model)
        failed = await failure_of(model)
    assert failed.failure is ModelFailureKind.CONNECTION
    assert failed.may_be_charged
    assert server.requests == 2


async def test_nobody_there_is_no_reply_begun(link: ProviderConnections) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        failed = await failure_of(model_at(link, f"http://127.0.0.1:{taken.getsockname()[1]}", CHAT))
    assert failed.failure is ModelFailureKind.CONNECTION
    assert not failed.may_be_charged
    assert "the connection was refused" in failed.because


@pytest.mark.parametrize("type_", ["application/json", "text/plain", "text/html; charset=utf-8", ""])
async def test_a_stream_is_known_by_its_beginning_whatever_its_type_says(link: ProviderConnections, type_: str) -> None:
    headers = {"content-type": type_} if type_ else {}
    async with provider(Answer(body=HELLO, headers=headers)) as server:
        assert (await hear(model_at(link, server.url, CHAT)))["text"] == "Hello."


async def test_a_whole_body_is_read_though_it_is_called_a_stream(link: ProviderConnections) -> None:
    reply = {"choices": [{"message": {"content": "Hello."}, "finish_reason": "stop"}]}
    answer = Answer(body="\n " + json.dumps(reply), headers={"content-type": "text/event-stream"})
    async with provider(answer) as server:
        assert (await hear(model_at(link, server.url, CHAT)))["text"] == "Hello."


@pytest.mark.parametrize("body", ["<html><body>welcome</body></html>", "data: <html>\n\n", "\x00\x01", "[]", "{}", "7"])
async def test_garbage_with_a_200_is_no_reply(link: ProviderConnections, body: str) -> None:
    for format_ in ("openai-chat", "openai-responses"):
        async with provider(Answer(body=body)) as server:
            failed = await failure_of(model_at(link, server.url, format_))
        assert failed.failure is ModelFailureKind.MALFORMED, format_
        assert body not in str(failed.sentence + failed.because)


async def test_nothing_at_all_with_a_200_is_no_reply(link: ProviderConnections) -> None:
    for format_ in ("openai-chat", "openai-responses"):
        async with provider(Answer(body="")) as server:
            assert (await failure_of(model_at(link, server.url, format_))).failure is ModelFailureKind.MALFORMED


async def test_a_redirect_is_refused_and_the_key_stays_where_it_belongs(link: ProviderConnections) -> None:
    async with provider(Answer(body=HELLO)) as elsewhere:
        moved = Answer(status=307, headers={"location": f"{elsewhere.url}/v1/chat/completions"})
        async with provider(moved) as server:
            failed = await failure_of(model_at(link, server.url, CHAT))
        assert elsewhere.asked == []
        assert len(server.asked) == 1
    assert failed.status == 307
    assert "redirects" in failed.sentence


async def test_a_reply_without_end_is_stopped(link: ProviderConnections, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provider_http, "REPLY_BYTES_MAX", 2_000)
    for body in (said(*["word "] * 200), "{" + " " * 5_000 + "}", "\n" * 5_000):
        async with provider(Answer(body=body, then=Then.HANG)) as server:
            failed = await failure_of(model_at(link, server.url, CHAT))
        assert failed.failure is ModelFailureKind.MALFORMED
        assert "2,000 bytes" in failed.because


async def test_of_a_refusal_only_so_much_is_read(link: ProviderConnections, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provider_http, "ERROR_BYTES_MAX", 1_000)
    async with provider(Answer(status=500, body="x" * 100_000, then=Then.HANG)) as server:
        failed = await failure_of(model_at(link, server.url, CHAT))
    assert (failed.failure, failed.status) == (ModelFailureKind.SERVER, 500)


async def test_a_refusal_that_breaks_off_is_still_that_refusal(
    link: ProviderConnections, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(provider_http, "ERROR_BODY_TIMEOUT_S", 0.05)
    for then in (Then.CUT, Then.HANG):
        async with provider(Answer(status=429, headers={"retry-after": "7"}, body='{"err', then=then)) as server:
            failed = await failure_of(model_at(link, server.url, CHAT))
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
async def test_the_key_is_in_no_error(link: ProviderConnections, answer: Answer) -> None:
    for format_ in ("openai-chat", "openai-responses"):
        async with provider(answer) as server:
            failed = await failure_of(model_at(link, server.url, format_))
        assert server.last.headers["authorization"] == f"Bearer {KEY}"
        words = [failed.sentence, failed.because, failed.try_this, str(failed), repr(failed)]
        assert not any(KEY in word for word in words)


async def test_the_key_is_in_no_repr_of_a_request_and_in_no_url(link: ProviderConnections) -> None:
    model = model_at(link, "http://127.0.0.1:1", CHAT)
    request: ProviderRequest = model._provider_format.build_request(prompt_of(), model._target, KEY)  # pyright: ignore[reportPrivateUsage]
    assert KEY in str(dict(request.headers))
    assert KEY not in repr(request)
    assert KEY not in request.url


async def test_headers_that_may_hold_a_secret_are_in_no_repr_of_a_target(link: ProviderConnections) -> None:
    model = model_at(link, "http://127.0.0.1:1", CHAT, headers={"x-api-key": KEY})
    assert KEY not in repr(model._target)  # pyright: ignore[reportPrivateUsage]


async def test_without_a_key_no_key_is_sent(link: ProviderConnections) -> None:
    async with provider(Answer(body=HELLO)) as server:
        await hear(model_at(link, server.url, CHAT), key="")
    assert "authorization" not in server.last.headers


async def test_headers_of_the_settings_go_with_every_request_and_win(link: ProviderConnections) -> None:
    async with provider(Answer(body=HELLO)) as server:
        await hear(model_at(link, server.url, CHAT, headers={"x-team": "kitchen", "accept": "*/*"}))
    assert server.last.headers["x-team"] == "kitchen"
    assert server.last.headers["accept"] == "*/*"
    assert "cookie" not in server.last.headers


@pytest.mark.parametrize(("turns", "repeated"), [(1, 200_000), (300, 100), (40, 20_000)])
async def test_a_long_body_goes_out_whole(link: ProviderConnections, turns: int, repeated: int) -> None:
    texts = [f"{number} " + "0123456789" * repeated for number in range(turns)]
    async with provider(Answer(body=HELLO)) as server:
        await hear(model_at(link, server.url, CHAT), prompt_of(*(UserTurn(text=text) for text in texts)))
    assert [message["content"] for message in server.last.body["messages"][1:]] == texts
    assert server.last.headers["content-type"] == "application/json"


async def test_a_listener_who_leaves_closes_the_line(link: ProviderConnections) -> None:
    async with provider(
        Answer(body=said("Hel", finish=None, done=False), then=Then.HANG), Answer(body=HELLO)
    ) as server:
        model = model_at(link, server.url, CHAT)
        chunks = model.reply(prompt_of(), key=KEY)
        await anext(chunks)
        assert isinstance(chunks, AsyncGenerator)
        await chunks.aclose()
        assert (await hear(model))["text"] == "Hello."
        assert link.pool.idle_count == 0


async def test_a_cancelled_listener_is_cancelled_and_nothing_else(link: ProviderConnections) -> None:
    async with provider(Answer(before=Then.HANG)) as server:
        task = asyncio.create_task(collect(model_at(link, server.url, CHAT)))
        await wait_until(lambda: server.asked, "the server is asked", poll_s=0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


def test_what_a_body_is_is_said_as_soon_as_it_can_be() -> None:
    undecided: list[Any] = [b"", b" \n", b"d", b"dat", b"\n\neve", b"\xef", b"\xef\xbb\xbf"]
    assert [is_event_stream(begin) for begin in undecided] == [None] * len(undecided)
    streams = [b"data:", b": OK", b"\r\n\r\nevent: x", b"\xef\xbb\xbfid: 1", b"retry: 3"]
    assert all(is_event_stream(begin) is True for begin in streams)
    assert not any(is_event_stream(begin) for begin in (b"{", b"<html>", b"dates", b"[", b"\xef{"))


async def test_a_model_is_known_by_its_name_and_facts(link: ProviderConnections) -> None:
    facts = facts_of("acme", "small-1")
    model = model_at(link, "http://127.0.0.1:1", CHAT, facts=facts)
    assert (model.name, model.facts) == ("acme/small-1", facts)
