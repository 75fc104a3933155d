"""Email: a dedicated account, read by IMAP and sent by SMTP.

A channel is one thread with one correspondent, `ADDRESS/THREAD`. A person who joins a thread only
by its message ids gets a separate channel. An answer goes only to the address in the channel's
name.
"""

from __future__ import annotations

from retinue.connectors.base import Connector, ConnectorKind, Question, Surroundings
from retinue.connectors.email.settings import MailSettings


def _make(settings: MailSettings, surroundings: Surroundings) -> Connector:
    from retinue.connectors.email.connector import MailConnector

    return MailConnector.of(settings, surroundings)


KIND = ConnectorKind(
    name="email",
    title="E-mail",
    settings=MailSettings,
    make=_make,
    questions=(
        Question(
            key="address",
            ask="The address of the account",
            help="one that nobody else reads, such as house@example.org",
        ),
        Question(key="imap_host", ask="Where its mail is read (IMAP, port 993)", help="such as imap.example.org"),
        Question(key="smtp_host", ask="Where its mail is sent (SMTP, port 465)", help="such as smtp.example.org"),
        Question(key="password", ask="Its password", secret=True, help="many providers have one for programs alone"),
        Question(
            key="authserv_id",
            ask="The first word of Authentication-Results in a mail that you received there",
            help="it says who checks senders; without it nobody's address counts as proved",
        ),
    ),
    next_steps=(
        "Write a mail to the address, and see it refused or paired: `retinue connector show NAME`.",
        "Mail that lay there before stays unread by the house: it begins with the next one.",
    ),
)
