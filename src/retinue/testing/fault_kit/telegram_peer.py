"""The Telegram peer: the fake on loopback, which keeps messages as Telegram does."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from retinue.connectors.base import Connector, Surroundings
from retinue.connectors.telegram import KIND, TelegramSettings
from retinue.testing.fake_telegram import Json
from retinue.testing.fault_kit.peer import At, PlainBench, Trouble
from retinue.testing.telegram_server import TOKEN, Fault, TelegramServer, throttled

GROUP = -1001
RETRY_AFTER_S = 3


class _Teller(TelegramServer):
    """A Telegram that can send updates twice, or in reverse order."""

    twice = False
    backwards = False

    def news(self, offset: int | None, limit: int) -> list[Json]:
        found = super().news(offset, limit)
        told = [each for each in found for _ in range(2)] if self.twice else found
        return told[::-1] if self.backwards else told


class TelegramBench(PlainBench):
    """Telegram over `TelegramServer`."""

    kind = KIND.name
    made_by = "telegram"
    room = "42"
    other_room = str(GROUP)
    secrets: Mapping[str, str] = {"token": TOKEN}

    def __init__(self) -> None:
        self.server = _Teller()
        self.server.add_group(GROUP)

    async def open(self, folder: Path) -> Mapping[str, At]:
        await self.server.start()
        at = urlsplit(self.server.url)
        assert at.hostname is not None
        assert at.port is not None
        return {"telegram": (at.hostname, at.port)}

    async def close(self) -> None:
        await self.server.stop()

    async def restart(self) -> None:
        await self.server.stop()
        await self.server.start()

    def connector(self, surroundings: Surroundings, at: Mapping[str, At]) -> Connector:
        host, port = at["telegram"]
        settings = TelegramSettings(token_env="BOT", api_base=f"http://{host}:{port}", poll_s=1, timeout_s=60)
        return KIND.make(settings, surroundings)

    async def say(self, room: str, text: str) -> None:
        self.server.says(text, room=int(room))

    async def standing(self, room: str) -> list[str]:
        return self.server.texts(int(room))

    async def begin(self, trouble: Trouble) -> None:
        match trouble:
            case Trouble.REFUSES:
                self.server.will("sendMessage", Fault(status=502, description="Bad Gateway"))
            case Trouble.THROTTLES:
                self.server.will("sendMessage", throttled(RETRY_AFTER_S))
            case Trouble.FORBIDS:
                self.server.rooms[int(self.room)].shut = "bot was blocked by the user"
            case Trouble.REVOKED:
                self.server.revoke()
            case Trouble.REPEATS:
                self.server.twice = True
            case Trouble.SHUFFLES:
                self.server.backwards = True
            case _:
                await super().begin(trouble)

    async def end(self, trouble: Trouble) -> None:
        self.server.rooms[int(self.room)].shut = ""
        self.server.token = TOKEN
        self.server.twice = self.server.backwards = False
