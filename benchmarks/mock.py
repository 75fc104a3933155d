"""The mock provider: it answers every request on loopback at once, or after a set latency, always with the same text.

The path selects one of three formats. `/v1/chat` is the floor's own, one small JSON body. The other two are streams
as real providers send them, with one chunk per event: OpenAI's chat completions and Anthropic's messages.
A request that names a tool at its end gets that call as the first reply, and text once the result is there.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import sys
from collections.abc import Iterable, Mapping
from typing import Any, cast

REPLY_WORDS = 40
ASKS_FOR = "Please make this call: "
TOOL, LOOK = "clock", "session_status"  # one that is journaled like an effect, and a read-only one
ARGUMENTS: Mapping[str, Mapping[str, str]] = {TOOL: {"zone": "UTC"}, LOOK: {}}
_CALL_ID = "call_000000"  # replaced by a number of the same length, so that every call has its own id

_LENGTH = re.compile(rb"content-length: *(\d+)", re.I)
_STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
_REPLY = json.dumps({"text": "word " * REPLY_WORDS}).encode()
_PLAIN = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(_REPLY) + _REPLY


def _chunked(events: Iterable[bytes]) -> bytes:
    return _STREAM + b"".join(b"%x\r\n%b\r\n" % (len(event), event) for event in events) + b"0\r\n\r\n"


def _chat(deltas: Iterable[Mapping[str, Any]], reason: str) -> bytes:
    base = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "mock"}
    choices: list[list[Any]] = [[{"index": 0, "delta": delta, "finish_reason": None}] for delta in deltas]
    choices.append([{"index": 0, "delta": {}, "finish_reason": reason}])
    usage = {"prompt_tokens": 100, "completion_tokens": REPLY_WORDS, "total_tokens": 100 + REPLY_WORDS}
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
            "usage": {"output_tokens": REPLY_WORDS},
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


ARGUMENTS_JSON = {tool: json.dumps(arguments) for tool, arguments in ARGUMENTS.items()}
CHAT_WORDS = _chat(({"role": "assistant", "content": "word "} for _ in range(REPLY_WORDS)), "stop")
CHAT_CALLS = {tool: _chat_call(tool, arguments) for tool, arguments in ARGUMENTS_JSON.items()}
MESSAGES_WORDS = _messages(
    {"type": "text", "text": ""}, ({"type": "text_delta", "text": "word "} for _ in range(REPLY_WORDS)), "end_turn"
)
MESSAGES_CALLS = {tool: _messages_call(tool, arguments) for tool, arguments in ARGUMENTS_JSON.items()}


def answer_to(head: bytes, body: bytes) -> bytes:
    """Return the answer to a request. Its body is searched only from the end, to keep the mock's own cost small."""
    if b"/chat/completions" in head:
        tool = _requested_tool(body, b'"role":"tool"')
        return _with_next_call_id(CHAT_CALLS[tool]) if tool else CHAT_WORDS
    if b"/messages" in head:
        tool = _requested_tool(body, b'"tool_result"')
        return _with_next_call_id(MESSAGES_CALLS[tool]) if tool else MESSAGES_WORDS
    return _PLAIN


_ASKS_FOR = ASKS_FOR.encode()
_call_numbers = itertools.count(1)


def _with_next_call_id(call: bytes) -> bytes:
    return call.replace(_CALL_ID.encode(), b"call_%06d" % next(_call_numbers))


def _requested_tool(body: bytes, result: bytes) -> str | None:
    """Return the requested tool if it has not been called yet."""
    asked = body.rfind(_ASKS_FOR)
    if asked <= body.rfind(result):
        return None
    return next(tool for tool in ARGUMENTS if body.startswith(tool.encode(), asked + len(_ASKS_FOR)))


class Mock(asyncio.Protocol):
    def __init__(self, latency_s: float) -> None:
        self._latency_s = latency_s
        self._buffer = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(
            asyncio.Transport, transport
        )  # uvloop's transport has another type with the same methods

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            return
        head = bytes(self._buffer[:end])
        content_length = _LENGTH.search(head)
        assert content_length is not None, "the request has no content-length"
        whole = end + 4 + int(content_length[1])
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
