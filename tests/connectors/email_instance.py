"""Helpers for email tests: emails, delivery parts, a fake intake, and a TCP proxy that can cut a connection."""

from __future__ import annotations

import asyncio
import email.policy
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from email.message import EmailMessage
from email.utils import format_datetime
from pathlib import Path
from random import Random

from retinue.app.clock_and_ids import RealClock
from retinue.connectors.base import Accept, ConnectorContext, DeliveryPart, InboundMessage
from retinue.connectors.email.connector import EmailConnector
from retinue.connectors.email.settings import EmailSecurity, EmailSettings
from retinue.domain import address
from retinue.domain.attachment import Attachment
from retinue.domain.envelope import NO_CONTEXT, Envelope, EnvelopeKind, EnvelopeStatus, Receipt
from retinue.domain.ids import EnvelopeId
from retinue.domain.ports import Clock
from retinue.domain.trust import Trust
from retinue.testing.email_servers import AUTHSERV, MARIA_ADDRESS, SERVER_ADDRESS, EmailServers
from retinue.testing.wait_conditions import WAIT_LIMIT_S

# --- emails, delivery parts and a fake intake ---


def make_email(
    text: str,
    *,
    sender: str = f"Maria Example <{MARIA_ADDRESS}>",
    to: str = SERVER_ADDRESS,
    subject: str = "Lunch",
    message_id: str = "<first@example.org>",
    now: datetime | None = None,
    **fields: str,
) -> EmailMessage:
    made = EmailMessage(policy=email.policy.SMTP)
    made["From"], made["To"], made["Subject"] = sender, to, subject
    made["Date"] = format_datetime(now or RealClock().now())
    made["Message-ID"] = message_id
    for name, value in fields.items():
        made[name.replace("_", "-")] = value
    made.set_content(text)
    return made


def make_delivery_part(
    channel: str,
    text: str,
    *,
    id: str = "a" * 32,
    quote: str = "",
    files: tuple[Attachment, ...] = (),
    index: int = 0,
    count: int = 1,
) -> DeliveryPart:
    at = datetime(2026, 3, 4, 5, 6, 7, tzinfo=UTC)
    envelope = Envelope(
        seq=1,
        id=EnvelopeId(id),
        sender=address.parse_address("agent:ada"),
        recipient=address.parse_address(f"channel:post:{channel}"),
        session=None,
        kind=EnvelopeKind.ANSWER,
        text=text,
        attachments=files,
        context=NO_CONTEXT,
        reply_to=None,
        trust=Trust.AGENT,
        source="run",
        idempotency_key="1",
        silent=False,
        deliver_at=None,
        expires_at=None,
        due_at=at,
        status=EnvelopeStatus.CLAIMED,
        attempts=1,
        accepted_at=at,
        claimed_at=at,
        settled_at=None,
        run=None,
        steered_into=None,
        retry_of=None,
    )
    return DeliveryPart(envelope=envelope, text=text, quoted_message_id=quote, files=files, index=index, count=count)


class InMemoryConnectorState:
    def __init__(self) -> None:
        self.entries: dict[str, str] = {}

    async def get(self, key: str) -> str | None:
        return self.entries.get(key)

    async def put(self, key: str, value: str) -> None:
        self.entries[key] = value


class FakeIntake:
    """A fake `accept`: keeps the messages it gets, and accepts, refuses or fails as a test sets it."""

    def __init__(self) -> None:
        self.received: list[InboundMessage] = []
        self.refuse = False
        self.fail_times = 0
        self.files: dict[str, bytes] = {}
        self._arrived = asyncio.Event()

    async def accept(self, incoming: InboundMessage) -> Receipt | None:
        if self.fail_times:
            self.fail_times -= 1
            raise RuntimeError("the store failed")
        for each in incoming.files:
            self.files[each.name] = b"".join([chunk async for chunk in each.fetch()])
        self.received.append(incoming)
        self._arrived.set()
        return None if self.refuse else Receipt(envelope=EnvelopeId("e" * 32), session=None, event_seq=1)

    async def wait_for_messages(self, count: int) -> list[InboundMessage]:
        """Wait for this many messages and return all received so far."""
        async with asyncio.timeout(WAIT_LIMIT_S):
            while len(self.received) < count:
                self._arrived.clear()
                await self._arrived.wait()
        return self.received


def connector(
    mail_servers: EmailServers,
    *,
    connector_state: InMemoryConnectorState | None = None,
    clock: Clock | None = None,
    password: str = "secret-retinue",
    path_of: Callable[[Attachment], Path] = lambda _: Path("/nowhere"),
    **settings: object,
) -> EmailConnector:
    known: dict[str, object] = {
        "address": SERVER_ADDRESS,
        "display_name": "The Team",
        "username": "retinue",
        "imap_host": "127.0.0.1",
        "imap_port": mail_servers.imap,
        "imap_security": EmailSecurity.NONE,
        "smtp_host": "127.0.0.1",
        "smtp_port": mail_servers.smtp,
        "smtp_security": EmailSecurity.NONE,
        "authserv_id": AUTHSERV,
    }
    around = ConnectorContext(
        name="post",
        clock=clock or RealClock(),
        random=Random(1),
        state=connector_state or InMemoryConnectorState(),
        get_attachment_path=path_of,
        read_secret=lambda _: password,
    )
    return EmailConnector.create(EmailSettings(**{**known, **settings}), around)  # type: ignore[arg-type]


@asynccontextmanager
async def listen_in_background(made: EmailConnector, accept: Accept) -> AsyncGenerator[asyncio.Task[None]]:
    """Run `listen` until the end of the block, or until its connection breaks."""
    task = asyncio.create_task(made.listen(accept))
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


# --- a TCP proxy ---


class TcpProxy:
    """Relays between a client and a real server. `to_server` and `to_client` see each piece and return what is sent on;
    None cuts the connection."""

    def __init__(self, port: int) -> None:
        self.port = 0
        self.to_server: Callable[[bytes], bytes | None] = lambda piece: piece
        self.to_client: Callable[[bytes], bytes | None] = lambda piece: piece
        self.pieces = 0  # that were relayed or held
        self._thawed = asyncio.Event()
        self._thawed.set()
        self._target = port
        self._tasks: set[asyncio.Task[None]] = set()
        self._ends: list[asyncio.StreamWriter] = []

    def freeze(self) -> None:
        """Stop relaying without closing the connection."""
        self._thawed.clear()

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target)
        self._ends += [writer, far_writer]
        ways = [
            asyncio.create_task(self._copy_bytes(reader, far_writer, lambda piece: self.to_server(piece))),
            asyncio.create_task(self._copy_bytes(far_reader, writer, lambda piece: self.to_client(piece))),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for end in (writer, far_writer):
                end.transport.abort()
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            self._tasks.discard(task)

    async def _copy_bytes(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, transform: Callable[[bytes], bytes | None]
    ) -> None:
        while piece := await reader.read(65536):
            self.pieces += 1
            await self._thawed.wait()
            seen = transform(piece)
            if seen is None:
                return
            writer.write(seen)
            await writer.drain()

    @staticmethod
    @asynccontextmanager
    async def to(port: int) -> AsyncGenerator[TcpProxy]:
        proxy = TcpProxy(port)
        server = await asyncio.start_server(proxy._relay, "127.0.0.1", 0)
        proxy.port = server.sockets[0].getsockname()[1]
        try:
            yield proxy
        finally:
            server.close()
            proxy._thawed.set()
            for end in proxy._ends:
                end.transport.abort()
            await asyncio.gather(*proxy._tasks)
            await asyncio.sleep(0)  # aborted transports are removed in the next iteration of the event loop
            await server.wait_closed()
