"""The email peer of the fault test suite: real dovecot and exim servers, and two people who write emails."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping
from contextlib import AbstractContextManager
from email.message import EmailMessage
from email.utils import format_datetime
from pathlib import Path

from retinue.app.clock_and_ids import RealClock
from retinue.connectors.base import Connector, ConnectorContext
from retinue.connectors.email import PLATFORM
from retinue.connectors.email.email_addresses import digest
from retinue.connectors.email.settings import EmailSecurity, EmailSettings
from retinue.testing.email_servers import AUTHSERV, SERVER_ADDRESS, EmailServers, run_email_servers
from retinue.testing.fault_kit.harness import STATE_FILE
from retinue.testing.fault_kit.peer import BasePeer, HostPort, PeerFault
from retinue.testing.wait_conditions import wait_until

PASSWORD = "secret-retinue"
THREAD_ROOT = "beginning@example.org"  # the email that every thread here goes back to


def _channel_of(person: str) -> str:
    return f"{person}@example.org/{digest(THREAD_ROOT)}"


class EmailPeer(BasePeer):
    """Connects the fault test suite to the email connector, with the servers of `email_servers`."""

    platform = PLATFORM.name
    factory = "email"
    channel = _channel_of("maria")
    other_channel = _channel_of("noor")
    secrets: Mapping[str, str] = {"password": PASSWORD}
    exemptions: Mapping[str, str] = {
        "throttled": "an SMTP server that throttles does not say for how long: it is a temporary failure",
        "messages-reordered": "a mailbox numbers its messages on arrival, and is read in this order",
    }

    def __init__(self) -> None:
        self._context: AbstractContextManager[EmailServers] | None = None
        self._servers: EmailServers | None = None
        self._folder = Path()
        self._sends_twice = False
        self._numbers = itertools.count(1)

    @property
    def servers(self) -> EmailServers:
        assert self._servers is not None, "the platform is not running"
        return self._servers

    async def start(self, folder: Path) -> Mapping[str, HostPort]:
        self._folder = folder
        self._context = run_email_servers()
        self._servers = await asyncio.to_thread(self._context.__enter__)
        return {"imap": ("127.0.0.1", self.servers.imap), "smtp": ("127.0.0.1", self.servers.smtp)}

    async def stop(self) -> None:
        if self._context is not None:
            await asyncio.to_thread(self._context.__exit__, None, None, None)

    async def restart(self) -> None:
        await asyncio.to_thread(self.servers.restart)

    def create_connector(self, context: ConnectorContext, addresses: Mapping[str, HostPort]) -> Connector:
        settings = EmailSettings(
            address=SERVER_ADDRESS,
            username="retinue",
            password_env="PASSWORD",
            imap_host=addresses["imap"][0],
            imap_port=addresses["imap"][1],
            imap_security=EmailSecurity.NONE,
            smtp_host=addresses["smtp"][0],
            smtp_port=addresses["smtp"][1],
            smtp_security=EmailSecurity.NONE,
            authserv_id=AUTHSERV,
            idle_s=20.0,
            answer_timeout_s=60.0,
            emails_per_hour=10_000,
        )
        return PLATFORM.make_connector(settings, context)

    async def wait_until_ready(self, connector: Connector | None) -> None:
        """Wait until the connector has read the mailbox once, because it ignores emails that arrived earlier."""
        state_file = self._folder / STATE_FILE
        await wait_until(
            lambda: state_file.exists() and "heard/INBOX" in state_file.read_text(),
            "the connector has checked the mailbox",
        )

    async def send_as_person(self, channel: str, text: str) -> None:
        who = channel.partition("@")[0]
        mail = EmailMessage()
        mail["From"], mail["To"], mail["Subject"] = f"{who}@example.org", SERVER_ADDRESS, "Re: beginning"
        mail["Message-ID"] = f"<{who}.{next(self._numbers)}@example.org>"
        mail["References"] = f"<{THREAD_ROOT}>"
        mail["Date"] = format_datetime(RealClock().now())
        mail.set_content(text)
        for _ in range(2 if self._sends_twice else 1):
            await asyncio.to_thread(self.servers.send_email, bytes(mail), sender=f"{who}@example.org", login=who)

    async def list_texts(self, channel: str) -> list[str]:
        await self.servers.wait_until_delivered()
        mails = await asyncio.to_thread(self.servers.read_mailbox, channel.partition("@")[0])
        return [str(each.get_content()).strip() for each in mails]

    async def start_fault(self, fault: PeerFault) -> None:
        match fault:
            case PeerFault.REFUSES:
                self.servers.refuse_next()
            case PeerFault.FORBIDS:
                self.servers.set_mailbox_closed(closed=True)
            case PeerFault.REVOKED:
                await asyncio.to_thread(self.servers.set_password, "retinue", "another")
            case PeerFault.REPEATS:
                self._sends_twice = True
            case _:
                await super().start_fault(fault)

    async def stop_fault(self, fault: PeerFault) -> None:
        self.servers.set_mailbox_closed(closed=False)
        if fault is PeerFault.REVOKED:
            await asyncio.to_thread(self.servers.set_password, "retinue", PASSWORD)
        self._sends_twice = False
