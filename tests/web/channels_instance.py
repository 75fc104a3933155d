"""A house with lines to the outside, as the screen of the doors shows them: a stand-in for Telegram in a thread of its
own, where people write, and a store into which a stumble is written as the house itself writes one."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from api.tcp_server import Rim, open_rim
from web.conftest import SETTINGS

from retinue.app.clock_and_ids import RandomIds, RealClock
from retinue.connectors.base import Incoming, Speaker
from retinue.connectors.supervisor.poison_messages import to_json
from retinue.domain.times import to_ms
from retinue.store.channels import poison_messages
from retinue.testing.fake_telegram import Json, Room, person
from retinue.testing.telegram_server import TelegramServer
from retinue.testing.waiting import WAIT_LIMIT_S, wait_until_sync

NOOR = person(4711, "Noor", username="noor")
DOORS = """
[connectors.family]
kind = "telegram"
token_file = "{good}"
api_base = "{url}"
poll_s = 5
dm = "pairing"
pairing_max = 20
catch_up_hours = 0

[connectors.street]
kind = "telegram"
token_file = "{bad}"
api_base = "{url}"
dm = "open"

[connectors.work]
kind = "irc"
enabled = false
host = "127.0.0.1"
nick = "retinue"
"""


class Street:
    """Telegram and the people there, for tests that are not on a loop."""

    def __init__(self, telegram: TelegramServer, loop: asyncio.AbstractEventLoop) -> None:
        self.telegram = telegram
        self._loop = loop

    def call(self, work: Callable[[], Any]) -> Any:
        async def body() -> Any:
            made = work()
            return await made if asyncio.iscoroutine(made) else made

        return asyncio.run_coroutine_threadsafe(body(), self._loop).result(WAIT_LIMIT_S)

    def meet(self, id_: int, name: str) -> Json:
        """Somebody who can write to the bot in person."""
        self.call(lambda: self.telegram.rooms.setdefault(id_, Room(id=id_)))
        return person(id_, name)

    def says(self, text: str, by: Json) -> None:
        self.call(lambda: self.telegram.says(text, room=by["id"], by=by))

    def texts(self, by: Json) -> list[str]:
        """What the house has told them."""
        return self.call(lambda: self.telegram.texts(by["id"]))

    def until(self, holds: Callable[[], bool]) -> None:
        wait_until_sync(holds, "the other end has it")


@contextmanager
def open_street() -> Iterator[Street]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    async def begin() -> TelegramServer:
        server = TelegramServer()
        await server.start()
        return server

    telegram = asyncio.run_coroutine_threadsafe(begin(), loop).result(WAIT_LIMIT_S)
    street = Street(telegram, loop)
    try:
        yield street
    finally:
        street.call(telegram.stop)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(WAIT_LIMIT_S)
        loop.close()


def secrets_in(folder: Path, street: Street) -> dict[str, str]:
    """What `DOORS` has to be told: where Telegram is, a token that it knows, and one that it does not."""
    files = {"good": street.telegram.token, "bad": "777:of-somebody-else"}
    for name, token in files.items():
        (folder / name).write_text(token)
        (folder / name).chmod(0o600)
    return {"url": street.telegram.url, **{name: str(folder / name) for name in files}}


@contextmanager
def open_house(folder: Path, street: Street) -> Iterator[Rim]:
    with open_rim(folder, SETTINGS + DOORS.format(**secrets_in(folder, street))) as rim:
        yield rim


def stumble(rim: Rim, text: str, *, message_id: str, because: str, by: str = "4711") -> None:
    """A message that the house could not take in, as its switchboard would have put it aside."""
    incoming = Incoming(
        room=by, message_id=message_id, text=text, peer=by, service="telegram", speaker=Speaker(id=by, name="Noor")
    )
    engine = sa.create_engine(f"sqlite:///{rim.process.home / 'house.db'}")
    with engine.begin() as conn:
        poison_messages.put(
            conn,
            id_=RandomIds().new(),
            instance="family",
            room=by,
            message_id=message_id,
            body=to_json(incoming),
            because=because,
            tries=3,
            at_ms=to_ms(RealClock().now()),
        )
    engine.dispose()
