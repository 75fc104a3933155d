"""The email peer: dovecot and exim as independent servers, and two people who write to the connector."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping
from contextlib import AbstractContextManager
from email.message import EmailMessage
from email.utils import format_datetime
from pathlib import Path

from retinue.app.clock_and_ids import RealClock
from retinue.connectors.base import Connector, Surroundings
from retinue.connectors.email import KIND
from retinue.connectors.email.email_addresses import digest
from retinue.connectors.email.settings import MailSettings, Security
from retinue.testing.email_servers import AUTHSERV, HOUSE, Office, running_office
from retinue.testing.fault_kit.harness import SHELF
from retinue.testing.fault_kit.peer import At, PlainBench, Trouble
from retinue.testing.waiting import wait_until

PASSWORD = "secret-house"
ROOT = "beginning@example.org"  # the email that every thread here goes back to


def _room(person: str) -> str:
    return f"{person}@example.org/{digest(ROOT)}"


class MailBench(PlainBench):
    """Email over the servers of `email_servers`."""

    kind = KIND.name
    made_by = "email"
    room = _room("maria")
    other_room = _room("noor")
    secrets: Mapping[str, str] = {"password": PASSWORD}
    exempt: Mapping[str, str] = {
        "throttled": "an SMTP server that asks for patience does not say for how long: it is a bad moment as any other",
        "told-out-of-order": "a mailbox numbers its mail as it comes in, and is read by these numbers",
    }

    def __init__(self) -> None:
        self._running: AbstractContextManager[Office] | None = None
        self._office: Office | None = None
        self._folder = Path()
        self._twice = False
        self._numbers = itertools.count(1)

    @property
    def office(self) -> Office:
        assert self._office is not None, "the place is not open"
        return self._office

    async def open(self, folder: Path) -> Mapping[str, At]:
        self._folder = folder
        self._running = running_office()
        self._office = await asyncio.to_thread(self._running.__enter__)
        return {"imap": ("127.0.0.1", self.office.imap), "smtp": ("127.0.0.1", self.office.smtp)}

    async def close(self) -> None:
        if self._running is not None:
            await asyncio.to_thread(self._running.__exit__, None, None, None)

    async def restart(self) -> None:
        await asyncio.to_thread(self.office.restart)

    def connector(self, surroundings: Surroundings, at: Mapping[str, At]) -> Connector:
        settings = MailSettings(
            address=HOUSE,
            username="house",
            password_env="PASSWORD",
            imap_host=at["imap"][0],
            imap_port=at["imap"][1],
            imap_security=Security.NONE,
            smtp_host=at["smtp"][0],
            smtp_port=at["smtp"][1],
            smtp_security=Security.NONE,
            authserv_id=AUTHSERV,
            idle_s=20.0,
            answer_s=60.0,
            mails_per_hour=10_000,
        )
        return KIND.make(settings, surroundings)

    async def ready(self, connector: Connector | None) -> None:
        """Wait until the connector has read the mailbox once: earlier emails are not for it."""
        shelf = self._folder / SHELF
        await wait_until(
            lambda: shelf.exists() and "heard/INBOX" in shelf.read_text(), "it has looked into the mailbox"
        )

    async def say(self, room: str, text: str) -> None:
        who = room.partition("@")[0]
        mail = EmailMessage()
        mail["From"], mail["To"], mail["Subject"] = f"{who}@example.org", HOUSE, "Re: beginning"
        mail["Message-ID"] = f"<{who}.{next(self._numbers)}@example.org>"
        mail["References"] = f"<{ROOT}>"
        mail["Date"] = format_datetime(RealClock().now())
        mail.set_content(text)
        for _ in range(2 if self._twice else 1):
            await asyncio.to_thread(self.office.hand_in, bytes(mail), sender=f"{who}@example.org", login=who)

    async def standing(self, room: str) -> list[str]:
        await self.office.settle()
        mails = await asyncio.to_thread(self.office.mailbox, room.partition("@")[0])
        return [str(each.get_content()).strip() for each in mails]

    async def begin(self, trouble: Trouble) -> None:
        match trouble:
            case Trouble.REFUSES:
                self.office.be_busy_once()
            case Trouble.FORBIDS:
                self.office.close_mailbox(closed=True)
            case Trouble.REVOKED:
                await asyncio.to_thread(self.office.set_password, "house", "another")
            case Trouble.REPEATS:
                self._twice = True
            case _:
                await super().begin(trouble)

    async def end(self, trouble: Trouble) -> None:
        self.office.close_mailbox(closed=False)
        if trouble is Trouble.REVOKED:
            await asyncio.to_thread(self.office.set_password, "house", PASSWORD)
        self._twice = False
