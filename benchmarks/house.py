"""The whole daemon, with a model that makes the floor's own request. `python -m benchmarks.house HOME PORT`."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from pathlib import Path
from zoneinfo import ZoneInfo

import msgspec

from benchmarks.wire import WirePool
from retinue.config import Settings
from retinue.config.settings import Listen
from retinue.daemon import Parts, run
from retinue.domain.agent import Agent
from retinue.domain.model import ModelFacts, ModelRef
from retinue.domain.record import Record, Reply, Stop, Usage, UserTurn
from retinue.engine.lanes import Slots
from retinue.logs import set_up_logs
from retinue.models.base import Chunk, Ended, Prompt, Text, WireCache
from retinue.real import RandomIds, RealClock
from retinue.store.connection import NO_FAULTS

SESSIONS_MAX = 100


class MockReply(msgspec.Struct):
    text: str


class BenchModel:
    """Joins pre-encoded records into a body, as the real clients will."""

    name = "bench"

    def __init__(self, port: int) -> None:
        self._pool = WirePool(port)
        self._wire = WireCache()
        self._decode = msgspec.json.Decoder(MockReply).decode

    @property
    def facts(self) -> ModelFacts:
        return ModelFacts(ref=ModelRef("", self.name), price=None)

    async def reply(self, prompt: Prompt, *, key: str = "") -> AsyncIterator[Chunk]:
        parts = [b'{"messages":[', *self._wire.of(prompt.session, prompt.records, encode), b"null]}"]
        reply = self._decode(await self._pool.request(parts))
        yield Text(reply.text)
        yield Ended(Stop.END, Usage(input_tokens=100, output_tokens=40))


def encode(record: Record) -> bytes:
    match record.body:
        case UserTurn(text=text):
            return msgspec.json.encode({"role": "user", "content": text}) + b","
        case Reply(text=text):
            return msgspec.json.encode({"role": "assistant", "content": text}) + b","
        case _:
            return b""


def main() -> None:
    home, port = Path(sys.argv[1]), int(sys.argv[2])
    set_up_logs(sys.stderr)
    settings = Settings(home=home, store=home / "house.db", zone=ZoneInfo("UTC"), listen=Listen(enabled=False))
    parts = Parts(
        clock=RealClock(),
        ids=RandomIds(),
        faults=NO_FAULTS,
        models=[BenchModel(port)],
        staff=[Agent(name="bench", model="bench", concurrency=SESSIONS_MAX)],
        slots=Slots(main=SESSIONS_MAX),
    )
    run(settings, parts, announce=False)


if __name__ == "__main__":
    main()
