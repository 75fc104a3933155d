"""IRC: one server per connector."""

from __future__ import annotations

from retinue.connectors.base import Connector, ConnectorKind, Question, Surroundings
from retinue.connectors.irc.settings import IrcSettings


def make(settings: IrcSettings, surroundings: Surroundings) -> Connector:
    from retinue.connectors.irc.connector import IrcConnector  # imported only on servers that use it

    return IrcConnector(settings, surroundings)


KIND = ConnectorKind(
    name="irc",
    title="IRC",
    settings=IrcSettings,
    make=make,
    questions=(
        Question(key="host", ask="Which server?", help="its name, such as irc.libera.chat"),
        Question(key="port", ask="On which port?", default="6697", help="6697 is the usual one with TLS"),
        Question(key="nick", ask="By which nick?", default="retinue"),
        Question(key="rooms", ask="Which rooms shall it enter?", help="such as #home; more than one with commas"),
        Question(
            key="account_password",
            ask="The password of its account there, if it has one?",
            secret=True,
            help="then set `account` to the name of the account, too",
        ),
    ),
    next_steps=(
        "say its nick in one of its rooms, or write to it directly",
        "let people in by their account where the network has accounts: a nick proves nothing",
    ),
)
