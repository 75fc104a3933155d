"""The mock provider: answers every request on loopback at once, or after a set latency, and always with the same words.

It speaks three ways, told apart by the path. `/v1/chat` is the floor's own: one small body of JSON. The other two are
streams as real providers send them, a chunk for each event: OpenAI's chat completions and Anthropic's messages.
Whoever says the words of a tool last is asked for that call first, and answered once its result is there.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import sys
from collections.abc import Iterable, Mapping
from typing import Any, cast

WORDS = 40
ASKS_FOR = "Please make this call: "
TOOL, LOOK = "clock", "session_status"  # one that is journaled as an effect would be, and one that only looks
ARGUMENTS: Mapping[str, Mapping[str, str]] = {TOOL: {"zone": "UTC"}, LOOK: {}}
_CALL_ID = "call_000000"  # counted up in its place, so that every call has one of its own

_LENGTH = re.compile(rb"content-length: *(\d+)", re.I)
_STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
_REPLY = json.dumps({"text": "word " * WORDS}).encode()
_PLAIN = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(_REPLY) + _REPLY


def _chunked(events: Iterable[bytes]) -> bytes:
    return _STREAM + b"".join(b"%x\r\n%b\r\n" % (len(event), event) for event in events) + b"0\r\n\r\n"


def _chat(deltas: Iterable[Mapping[str, Any]], reason: str) -> bytes:
    base = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "mock"}
    choices: list[list[Any]] = [[{"index": 0, "delta": delta, "finish_reason": None}] for delta in deltas]
    choices.append([{"index": 0, "delta": {}, "finish_reason": reason}])
    usage = {"prompt_tokens": 100, "completion_tokens": WORDS, "total_tokens": 100 + WORDS}
    events = [{**base, "choices": choice} for choice in choices] + [{**base, "choices": [], "usage": usage}]
    return _chunked([*(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events), b"data: [DONE]\n\n"])


def _messages(block: Mapping[str, Any], deltas: Iterable[Mapping[str, Any]], reason: str) -> bytes:
    message = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "mock",
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {"input_tokens": 100, "output_tokens": 1},
    }
    events: list[dict[str, Any]] = [
        {"type": "message_start", "message": message},
        {"type": "content_block_start", "index": 0, "content_block": block},
        *({"type": "content_block_delta", "index": 0, "delta": delta} for delta in deltas),
        {"type": "content_block_stop", "index": 0},
        {
            "type": "message_delta",
            "delta": {"stop_reason": reason, "stop_sequence": None},
            "usage": {"output_tokens": WORDS},
        },
        {"type": "message_stop"},
    ]
    return _chunked(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode() for event in events)


def _chat_call(tool: str, arguments: str) -> bytes:
    call = {"index": 0, "id": _CALL_ID, "type": "function", "function": {"name": tool, "arguments": arguments}}
    return _chat(({"role": "assistant", "content": None, "tool_calls": [call]},), "tool_calls")


def _messages_call(tool: str, arguments: str) -> bytes:
    block = {"type": "tool_use", "id": _CALL_ID, "name": tool, "input": {}}
    return _messages(block, ({"type": "input_json_delta", "partial_json": arguments},), "tool_use")


TOLD = {tool: json.dumps(arguments) for tool, arguments in ARGUMENTS.items()}
CHAT_WORDS = _chat(({"role": "assistant", "content": "word "} for _ in range(WORDS)), "stop")
CHAT_CALLS = {tool: _chat_call(tool, arguments) for tool, arguments in TOLD.items()}
MESSAGES_WORDS = _messages(
    {"type": "text", "text": ""}, ({"type": "text_delta", "text": "word "} for _ in range(WORDS)), "end_turn"
)
MESSAGES_CALLS = {tool: _messages_call(tool, arguments) for tool, arguments in TOLD.items()}


def answer_to(head: bytes, body: bytes) -> bytes:
    """What is said to a request. Its body is only searched from the end: what is asked must not be what is measured."""
    if b"/chat/completions" in head:
        tool = _wanted(body, b'"role":"tool"')
        return _numbered(CHAT_CALLS[tool]) if tool else CHAT_WORDS
    if b"/messages" in head:
        tool = _wanted(body, b'"tool_result"')
        return _numbered(MESSAGES_CALLS[tool]) if tool else MESSAGES_WORDS
    return _PLAIN


_ASKS_FOR = ASKS_FOR.encode()
_numbers = itertools.count(1)


def _numbered(call: bytes) -> bytes:
    return call.replace(_CALL_ID.encode(), b"call_%06d" % next(_numbers))


def _wanted(body: bytes, result: bytes) -> str | None:
    """The tool that was asked for, and has not been called yet."""
    asked = body.rfind(_ASKS_FOR)
    if asked <= body.rfind(result):
        return None
    return next(tool for tool in ARGUMENTS if body.startswith(tool.encode(), asked + len(_ASKS_FOR)))


class Mock(asyncio.Protocol):
    def __init__(self, latency_s: float) -> None:
        self._latency_s = latency_s
        self._buffer = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one in all but name

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            return
        head = bytes(self._buffer[:end])
        told = _LENGTH.search(head)
        assert told is not None, "a request without a length"
        whole = end + 4 + int(told[1])
        if len(self._buffer) < whole:
            return
        answer = answer_to(head[: head.find(b"\r")], bytes(self._buffer[end + 4 : whole]))
        del self._buffer[:whole]
        if self._latency_s:
            asyncio.get_running_loop().call_later(self._latency_s, self._transport.write, answer)
        else:
            self._transport.write(answer)


async def serve(latency_s: float) -> None:
    server = await asyncio.get_running_loop().create_server(lambda: Mock(latency_s), "127.0.0.1", 0)
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve(float(sys.argv[1])))
