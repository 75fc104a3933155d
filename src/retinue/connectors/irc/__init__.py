"""Connects to IRC servers: one server per connector."""

from __future__ import annotations

from retinue.connectors.base import Connector, ConnectorContext, Platform, SettingQuestion
from retinue.connectors.irc.settings import IrcSettings


def make_connector(settings: IrcSettings, context: ConnectorContext) -> Connector:
    from retinue.connectors.irc.connector import IrcConnector  # imported only on servers that use it

    return IrcConnector(settings, context)


PLATFORM = Platform(
    name="irc",
    title="IRC",
    settings=IrcSettings,
    make_connector=make_connector,
    questions=(
        SettingQuestion(key="host", ask="Server", help="host name, such as irc.libera.chat"),
        SettingQuestion(key="port", ask="Port", default="6697", help="6697 is the default port for TLS"),
        SettingQuestion(key="nick", ask="Nick", default="retinue"),
        SettingQuestion(key="channels", ask="Channels to join", help="such as #home; separate them with commas"),
        SettingQuestion(
            key="account_password",
            ask="Password of the account on the network, if there is one",
            secret=True,
            help="then also set `account` to the name of the account",
        ),
    ),
    next_steps=(
        "Mention the agent's nick in a channel that it joined, or send it a private message.",
        "Give access by account where the network has accounts: a nick is not proof of identity.",
    ),
)
