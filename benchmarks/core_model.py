"""A model that sends the same request as the floor, so the rest is the cost of the server without a model client."""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec

from benchmarks.raw_http import WirePool
from retinue.domain.model import ModelFacts, ModelRef
from retinue.domain.record import Record, Reply, StopReason, Usage, UserTurn
from retinue.models.base import EndChunk, ModelPrompt, ReplyChunk, TextChunk
from retinue.models.encoded_context_cache import EncodedContextCache

WINDOW_TOKENS = 10_000_000


class MockReply(msgspec.Struct):
    text: str


class CoreModel:
    """Joins pre-encoded records into a body, as the real clients do."""

    name = "core"

    def __init__(self, port: int) -> None:
        self._pool = WirePool(port)
        self._wire = EncodedContextCache()
        self._decode = msgspec.json.Decoder(MockReply).decode
        self.facts = ModelFacts(ref=ModelRef("", self.name), price=None, window_tokens=WINDOW_TOKENS)

    async def reply(self, prompt: ModelPrompt, *, key: str = "") -> AsyncIterator[ReplyChunk]:
        parts = [b'{"messages":[', *self._wire.encode_records(prompt.session, prompt.records, encode), b"null]}"]
        reply = self._decode(await self._pool.request(parts))
        yield TextChunk(reply.text)
        yield EndChunk(StopReason.END, Usage(input_tokens=100, output_tokens=40))


def encode(record: Record) -> bytes:
    match record.body:
        case UserTurn(text=text):
            return msgspec.json.encode({"role": "user", "content": text}) + b","
        case Reply(text=text):
            return msgspec.json.encode({"role": "assistant", "content": text}) + b","
        case _:
            return b""
