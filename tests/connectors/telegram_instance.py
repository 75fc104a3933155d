"""Helpers for tests of the Telegram connector: its stored state, a fake intake and delivery parts."""

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

REQUEST_TIMEOUT_S = 60.0  # for a response: no busy machine reaches it, and a test of the timeout skips it
ACCEPTED_AT = datetime(2026, 1, 5, 9, 0, tzinfo=UTC)


@dataclass(slots=True)
class InMemoryConnectorState:
    """Connector state that outlives its connector, as in the store."""

    entries: dict[str, str] = field(default_factory=dict[str, str])
    puts: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])

    async def get(self, key: str) -> str | None:
        return self.entries.get(key)

    async def put(self, key: str, value: str) -> None:
        self.entries[key] = value
        self.puts.append((key, value))


class TelegramSetup:
    """A fake intake: accepts messages, unless a test makes it fail."""

    def __init__(self) -> None:
        self.received: list[InboundMessage] = []
        self.offered = 0
        self.store_failures_left = 0  # how often the store fails before it accepts a message
        self.before_accept: Callable[[InboundMessage], None] = lambda incoming: None

    async def accept(self, incoming: InboundMessage) -> Receipt | None:
        self.offered += 1
        self.before_accept(incoming)
        if self.store_failures_left:
            self.store_failures_left -= 1
            raise StoreError("the disk is full", code="store.disk_full")
        self.received.append(incoming)
        return Receipt(envelope=EnvelopeId(f"{self.offered:032x}"), session=None, event_seq=self.offered)

    async def wait_for_messages(self, count: int) -> list[InboundMessage]:
        await wait_until_true(lambda: len(self.received) >= count)
        return self.received

    @property
    def texts(self) -> list[str]:
        return [each.text for each in self.received]


async def wait_until_true(condition: Callable[[], bool]) -> None:
    await wait_until(condition, "the condition is true", poll_s=0.001)


def bot(
    telegram: TelegramServer | str,
    *,
    connector_state: InMemoryConnectorState | None = None,
    files: Path | None = None,
    clock: Clock | None = None,
    token: str = TOKEN,
    **settings: Any,
) -> TelegramConnector:
    """Make a connector as the server does."""
    url = telegram if isinstance(telegram, str) else telegram.url
    own = TelegramSettings(token_env="BOT", api_base=url, **{"poll_s": 5, "timeout_s": REQUEST_TIMEOUT_S, **settings})
    made = PLATFORM.make_connector(
        own,
        ConnectorContext(
            name="family",
            clock=clock or RealClock(),
            random=Random(7),
            state=connector_state or InMemoryConnectorState(),
            get_attachment_path=lambda attachment: (files or Path("/nowhere")) / attachment.hash,
            read_secret=lambda key: {"token": token}[key],
        ),
    )
    assert isinstance(made, TelegramConnector)
    return made


@asynccontextmanager
async def listen_in_background(connector: TelegramConnector, server: TelegramSetup) -> AsyncGenerator[list[Exception]]:
    """Listen as the supervisor does: again after a lost connection. Yields the list of errors."""
    connection_errors: list[Exception] = []

    async def listen_forever() -> None:
        while True:
            try:
                await connector.listen(server.accept)
            except (ConnectionLost, StoreError) as error:
                connection_errors.append(error)
                await asyncio.sleep(0.01)  # sleep: the supervisor pauses before it listens again

    task = asyncio.create_task(listen_forever())
    try:
        yield connection_errors
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert task.cancelled(), "listening does not end when it is cancelled"


def make_delivery_part(
    text: str = "",
    *,
    channel: str = "42",
    files: tuple[Attachment, ...] = (),
    quote: str = "",
    buttons: Sequence[Sequence[Button]] = (),
) -> DeliveryPart:
    envelope = Envelope(
        seq=1,
        id=EnvelopeId(f"{1:032x}"),
        sender=address.agent_address("ada", "0" * 32),
        recipient=address.parse_address(f"channel:family:{channel}"),
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
        due_at=ACCEPTED_AT,
        status=EnvelopeStatus.CLAIMED,
        attempts=1,
        accepted_at=ACCEPTED_AT,
        claimed_at=ACCEPTED_AT,
        settled_at=None,
        run=None,
        steered_into=None,
        retry_of=None,
    )
    return DeliveryPart(
        envelope=envelope, text=text, files=files, quoted_message_id=quote, buttons=tuple(map(tuple, buttons))
    )


def store_attachment(folder: Path, content: bytes, name: str, media_type: str) -> Attachment:
    """Store an attachment as the server does."""
    digest = sha256(content + name.encode()).hexdigest()
    (folder / digest).write_bytes(content)
    return Attachment(hash=digest, name=name, media_type=media_type, size_bytes=len(content))
