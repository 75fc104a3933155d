"""The near end of a Telegram connector, as its tests play it: a shelf, a house that takes in what it hears, parcels."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Any

from retinue.app.clock_and_ids import RealClock
from retinue.connectors.base import Button, ConnectionLost, ConnectorContext, DeliveryPart, InboundMessage
from retinue.connectors.telegram import PLATFORM, TelegramSettings
from retinue.connectors.telegram.connector import TelegramConnector
from retinue.domain import address
from retinue.domain.attachment import Attachment
from retinue.domain.envelope import NO_CONTEXT, Envelope, EnvelopeKind, EnvelopeStatus, Receipt
from retinue.domain.errors import StoreError
from retinue.domain.ids import EnvelopeId
from retinue.domain.ports import Clock
from retinue.domain.trust import Trust
from retinue.testing.telegram_server import TOKEN, TelegramServer
from retinue.testing.wait_conditions import wait_until

LIMIT_S = 60.0  # for an answer: no busy machine reaches it, and a test that is about it skips it
MOMENT = datetime(2026, 1, 5, 9, 0, tzinfo=UTC)


@dataclass(slots=True)
class Words:
    """A shelf that outlives its connector, as the store does."""

    kept: dict[str, str] = field(default_factory=dict[str, str])
    puts: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])

    async def get(self, key: str) -> str | None:
        return self.kept.get(key)

    async def put(self, key: str, value: str) -> None:
        self.kept[key] = value
        self.puts.append((key, value))


class House:
    """Takes in what it is handed, unless it is told not to."""

    def __init__(self) -> None:
        self.heard: list[InboundMessage] = []
        self.offered = 0
        self.will_lose = 0  # how often the store fails before it takes anything
        self.before: Callable[[InboundMessage], None] = lambda incoming: None

    async def accept(self, incoming: InboundMessage) -> Receipt | None:
        self.offered += 1
        self.before(incoming)
        if self.will_lose:
            self.will_lose -= 1
            raise StoreError("the disk is full", code="store.disk_full")
        self.heard.append(incoming)
        return Receipt(envelope=EnvelopeId(f"{self.offered:032x}"), session=None, event_seq=self.offered)

    async def until_heard(self, count: int) -> list[InboundMessage]:
        await until(lambda: len(self.heard) >= count)
        return self.heard

    @property
    def texts(self) -> list[str]:
        return [each.text for each in self.heard]


async def until(holds: Callable[[], bool]) -> None:
    await wait_until(holds, "it holds", poll_s=0.001)


def bot(
    telegram: TelegramServer | str,
    *,
    shelf: Words | None = None,
    files: Path | None = None,
    clock: Clock | None = None,
    token: str = TOKEN,
    **settings: Any,
) -> TelegramConnector:
    """A connector made as the house makes one."""
    url = telegram if isinstance(telegram, str) else telegram.url
    own = TelegramSettings(token_env="BOT", api_base=url, **{"poll_s": 5, "timeout_s": LIMIT_S, **settings})
    made = PLATFORM.make_connector(
        own,
        ConnectorContext(
            name="family",
            clock=clock or RealClock(),
            random=Random(7),
            state=shelf or Words(),
            get_attachment_path=lambda attachment: (files or Path("/nowhere")) / attachment.hash,
            read_secret=lambda key: {"token": token}[key],
        ),
    )
    assert isinstance(made, TelegramConnector)
    return made


@asynccontextmanager
async def listening(connector: TelegramConnector, house: House) -> AsyncGenerator[list[Exception]]:
    """What the house does around `listen`: call again when the line broke, and keep why it did."""
    lost: list[Exception] = []

    async def again_and_again() -> None:
        while True:
            try:
                await connector.listen(house.accept)
            except (ConnectionLost, StoreError) as error:
                lost.append(error)
                await asyncio.sleep(0.01)  # sleep: the house pauses before it calls again

    task = asyncio.create_task(again_and_again())
    try:
        yield lost
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert task.cancelled(), "listening does not end when it is cancelled"


def parcel(
    text: str = "",
    *,
    room: str = "42",
    files: tuple[Attachment, ...] = (),
    quote: str = "",
    buttons: Sequence[Sequence[Button]] = (),
) -> DeliveryPart:
    envelope = Envelope(
        seq=1,
        id=EnvelopeId(f"{1:032x}"),
        sender=address.agent_address("ada", "0" * 32),
        recipient=address.parse_address(f"channel:family:{room}"),
        session=None,
        kind=EnvelopeKind.ANSWER,
        text=text,
        attachments=files,
        context=NO_CONTEXT,
        reply_to=None,
        trust=Trust.AGENT,
        source="test",
        idempotency_key="1",
        silent=False,
        deliver_at=None,
        expires_at=None,
        due_at=MOMENT,
        status=EnvelopeStatus.CLAIMED,
        attempts=1,
        accepted_at=MOMENT,
        claimed_at=MOMENT,
        settled_at=None,
        run=None,
        steered_into=None,
        retry_of=None,
    )
    return DeliveryPart(
        envelope=envelope, text=text, files=files, quoted_message_id=quote, buttons=tuple(map(tuple, buttons))
    )


def stored(folder: Path, content: bytes, name: str, media_type: str) -> Attachment:
    """A file as the house keeps one."""
    digest = sha256(content + name.encode()).hexdigest()
    (folder / digest).write_bytes(content)
    return Attachment(hash=digest, name=name, media_type=media_type, size_bytes=len(content))
