"""The Telegram peer of the fault test suite: a fake Telegram on loopback, which keeps messages as Telegram does."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from retinue.connectors.base import Connector, ConnectorContext
from retinue.connectors.telegram import PLATFORM, TelegramSettings
from retinue.testing.fake_telegram import Json
from retinue.testing.fault_kit.peer import BasePeer, HostPort, PeerFault
from retinue.testing.telegram_server import TOKEN, TelegramFault, TelegramServer, throttle_fault

GROUP = -1001
RETRY_AFTER_S = 3


class _RepeatingTelegram(TelegramServer):
    """A fake Telegram that can send updates twice, or in reverse order."""

    sends_twice = False
    sends_reversed = False

    def get_updates(self, offset: int | None, limit: int) -> list[Json]:
        found = super().get_updates(offset, limit)
        updates = [each for each in found for _ in range(2)] if self.sends_twice else found
        return updates[::-1] if self.sends_reversed else updates


class TelegramPeer(BasePeer):
    """Connects the fault test suite to the Telegram connector, with `TelegramServer`."""

    platform = PLATFORM.name
    factory = "telegram"
    channel = "42"
    other_channel = str(GROUP)
    secrets: Mapping[str, str] = {"token": TOKEN}

    def __init__(self) -> None:
        self.server = _RepeatingTelegram()
        self.server.add_group(GROUP)

    async def start(self, folder: Path) -> Mapping[str, HostPort]:
        await self.server.start()
        at = urlsplit(self.server.url)
        assert at.hostname is not None
        assert at.port is not None
        return {"telegram": (at.hostname, at.port)}

    async def stop(self) -> None:
        await self.server.stop()

    async def restart(self) -> None:
        await self.server.stop()
        await self.server.start()

    def create_connector(self, context: ConnectorContext, addresses: Mapping[str, HostPort]) -> Connector:
        host, port = addresses["telegram"]
        settings = TelegramSettings(token_env="BOT", api_base=f"http://{host}:{port}", poll_s=1, timeout_s=60)
        return PLATFORM.make_connector(settings, context)

    async def send_as_person(self, channel: str, text: str) -> None:
        self.server.person_sends(text, chat_id=int(channel))

    async def list_texts(self, channel: str) -> list[str]:
        return self.server.list_bot_texts(int(channel))

    async def start_fault(self, fault: PeerFault) -> None:
        match fault:
            case PeerFault.REFUSES:
                self.server.will_fail("sendMessage", TelegramFault(status=502, description="Bad Gateway"))
            case PeerFault.THROTTLES:
                self.server.will_fail("sendMessage", throttle_fault(RETRY_AFTER_S))
            case PeerFault.FORBIDS:
                self.server.chats[int(self.channel)].block_reason = "bot was blocked by the user"
            case PeerFault.REVOKED:
                self.server.revoke_token()
            case PeerFault.REPEATS:
                self.server.sends_twice = True
            case PeerFault.SHUFFLES:
                self.server.sends_reversed = True
            case _:
                await super().start_fault(fault)

    async def stop_fault(self, fault: PeerFault) -> None:
        self.server.chats[int(self.channel)].block_reason = ""
        self.server.token = TOKEN
        self.server.sends_twice = self.server.sends_reversed = False
