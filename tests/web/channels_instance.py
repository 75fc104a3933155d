"""A server with connectors for the Channels screen: a fake Telegram in its own thread, and poison messages written
directly to the database."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from api.tcp_server import ApiClient, open_api_client
from web.conftest import SETTINGS

from retinue.app.clock_and_ids import RandomIds, RealClock
from retinue.connectors.base import InboundMessage, PlatformUser
from retinue.connectors.supervisor.poison_messages import to_json
from retinue.domain.times import to_ms
from retinue.store.channels import poison_messages
from retinue.testing.fake_telegram import FakeChat, Json, build_user
from retinue.testing.telegram_server import TelegramServer
from retinue.testing.wait_conditions import WAIT_LIMIT_S, wait_until_sync

NOOR = build_user(4711, "Noor", username="noor")
CONNECTOR_SETTINGS = """
[connectors.family]
platform = "telegram"
token_file = "{good}"
api_base = "{url}"
poll_s = 5
dm_policy = "pairing"
pairing_max = 20
catch_up_hours = 0

[connectors.public]
platform = "telegram"
token_file = "{bad}"
api_base = "{url}"
dm_policy = "open"

[connectors.work]
platform = "irc"
enabled = false
host = "127.0.0.1"
nick = "retinue"
"""


class FakeTelegramUsers:
    """A fake Telegram and its users, for tests without an event loop."""

    def __init__(self, server: TelegramServer, loop: asyncio.AbstractEventLoop) -> None:
        self.server = server
        self._loop = loop

    def run_on_loop(self, work: Callable[[], Any]) -> Any:
        async def body() -> Any:
            result = work()
            return await result if asyncio.iscoroutine(result) else result

        return asyncio.run_coroutine_threadsafe(body(), self._loop).result(WAIT_LIMIT_S)

    def add_user(self, id_: int, name: str) -> Json:
        """Add a user who can send direct messages to the bot."""
        self.run_on_loop(lambda: self.server.chats.setdefault(id_, FakeChat(id=id_)))
        return build_user(id_, name)

    def send_message(self, text: str, by: Json) -> None:
        self.run_on_loop(lambda: self.server.person_sends(text, chat_id=by["id"], sender=by))

    def bot_texts(self, by: Json) -> list[str]:
        """The texts that the bot sent to this user."""
        return self.run_on_loop(lambda: self.server.list_bot_texts(by["id"]))

    def wait_until(self, holds: Callable[[], bool]) -> None:
        wait_until_sync(holds, "telegram received it")


@contextmanager
def open_fake_telegram() -> Iterator[FakeTelegramUsers]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    async def start_server() -> TelegramServer:
        server = TelegramServer()
        await server.start()
        return server

    server = asyncio.run_coroutine_threadsafe(start_server(), loop).result(WAIT_LIMIT_S)
    telegram = FakeTelegramUsers(server, loop)
    try:
        yield telegram
    finally:
        telegram.run_on_loop(server.stop)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(WAIT_LIMIT_S)
        loop.close()


def write_tokens(folder: Path, telegram: FakeTelegramUsers) -> dict[str, str]:
    """Values for `CONNECTOR_SETTINGS`: the URL of the fake Telegram, a valid token and an invalid one."""
    files = {"good": telegram.server.token, "bad": "777:unknown-token"}
    for name, token in files.items():
        (folder / name).write_text(token)
        (folder / name).chmod(0o600)
    return {"url": telegram.server.url, **{name: str(folder / name) for name in files}}


@contextmanager
def open_channels_server(folder: Path, telegram: FakeTelegramUsers) -> Iterator[ApiClient]:
    with open_api_client(folder, SETTINGS + CONNECTOR_SETTINGS.format(**write_tokens(folder, telegram))) as server:
        yield server


def add_poison_message(server: ApiClient, text: str, *, message_id: str, because: str, by: str = "4711") -> None:
    """Store an inbound message that raised an error at every attempt, as the connector supervisor does."""
    message = InboundMessage(
        channel=by,
        message_id=message_id,
        text=text,
        peer=by,
        service="telegram",
        sender=PlatformUser(id=by, name="Noor"),
    )
    # The server may be writing at the same time.
    engine = sa.create_engine(f"sqlite:///{server.process.home / 'retinue.db'}", connect_args={"timeout": WAIT_LIMIT_S})
    with engine.begin() as conn:
        poison_messages.upsert(
            conn,
            id_=RandomIds().new(),
            connector="family",
            channel=by,
            message_id=message_id,
            body=to_json(message),
            because=because,
            tries=3,
            at_ms=to_ms(RealClock().now()),
        )
    engine.dispose()
