"""Connects to an email account: reads emails over IMAP and sends them over SMTP.

A channel, `ADDRESS/THREAD`, is one thread with one correspondent. If another person replies in the
thread, that person has a separate channel. An answer goes only to the address in the channel's name.
"""

from __future__ import annotations

from retinue.connectors.base import Connector, ConnectorContext, Platform, SettingQuestion
from retinue.connectors.email.settings import EmailSettings


def make_connector(settings: EmailSettings, context: ConnectorContext) -> Connector:
    from retinue.connectors.email.connector import EmailConnector

    return EmailConnector.create(settings, context)


PLATFORM = Platform(
    name="email",
    title="Email",
    settings=EmailSettings,
    make_connector=make_connector,
    questions=(
        SettingQuestion(
            key="address",
            ask="Email address",
            help="a dedicated account, such as agents@example.org",
        ),
        SettingQuestion(key="imap_host", ask="IMAP server (port 993)", help="such as imap.example.org"),
        SettingQuestion(key="smtp_host", ask="SMTP server (port 465)", help="such as smtp.example.org"),
        SettingQuestion(key="password", ask="Password", secret=True, help="many providers have app passwords for this"),
        SettingQuestion(
            key="authserv_id",
            ask="First word of the Authentication-Results header of an email received in this account",
            help="it names the server that verifies senders; without it, no sender is verified",
        ),
    ),
    next_steps=(
        "Send an email to the address. If it is refused, check the access rules: `retinue connector show NAME`.",
        "Emails that arrived before the connector was added are not read.",
    ),
)
