"""Compares names on IRC, and builds and parses the ids of users.

Anyone can take a nick that is not in use. If the server reports the account of a user, the account
identifies the user. Otherwise a user counts as the same only while `nick!user@host` stays the same.
"""

from __future__ import annotations

import re
from enum import StrEnum

from msgspec import Struct

from retinue.connectors.irc.irc_message import parse_pairs

ACCOUNT_PREFIX = "account:"
CHANNEL_PREFIXES = "#&+!"

_ASCII = str.maketrans({chr(letter): chr(letter + 32) for letter in range(ord("A"), ord("Z") + 1)})
_RFC1459_STRICT = {**_ASCII, **str.maketrans(r"[]" + "\\", r"{}|")}
_RFC1459 = {**_RFC1459_STRICT, ord("~"): "^"}  # tilde and circumflex were once the same character
_NICK = re.compile(r"[^\s\x00-\x20,:!@*?#&+$%~.][^\s\x00-\x20,!@*?]*")
_CHANNEL = re.compile(r"[^\s\x00-\x20,\x07]+")


class Casemapping(StrEnum):
    """The rule by which a server decides whether two names are equal (its `CASEMAPPING`)."""

    ASCII = "ascii"
    RFC1459_STRICT = "rfc1459-strict"
    RFC1459 = "rfc1459"

    def fold(self, name: str) -> str:
        match self:
            case Casemapping.ASCII:
                return name.translate(_ASCII)
            case Casemapping.RFC1459_STRICT:
                return name.translate(_RFC1459_STRICT)
            case Casemapping.RFC1459:
                return name.translate(_RFC1459)


def parse_casemapping(text: str) -> Casemapping:
    try:
        return Casemapping(text.lower())
    except ValueError:
        return Casemapping.ASCII


class IrcServerFeatures(Struct, frozen=True, kw_only=True):
    """The server's features that the connector uses, as announced during registration (numeric `005`)."""

    casemapping: Casemapping = Casemapping.RFC1459
    channel_prefixes: str = "#&"
    nick_bytes_max: int = 30
    channel_bytes_max: int = 64

    def fold(self, name: str) -> str:
        return self.casemapping.fold(name)

    def is_channel(self, name: str) -> bool:
        return name[:1] in self.channel_prefixes and len(name) > 1 and _CHANNEL.fullmatch(name) is not None

    @property
    def target_bytes_max(self) -> int:
        return max(self.nick_bytes_max, self.channel_bytes_max)


def apply_isupport(features: IrcServerFeatures, tokens: tuple[str, ...]) -> IrcServerFeatures:
    """Return the features, updated with the tokens of one `005` message. Unknown tokens are ignored."""
    values = parse_pairs(tokens)
    return IrcServerFeatures(
        casemapping=parse_casemapping(values["CASEMAPPING"]) if "CASEMAPPING" in values else features.casemapping,
        channel_prefixes="".join(
            mark for mark in values.get("CHANTYPES", features.channel_prefixes) if mark in CHANNEL_PREFIXES
        ),
        nick_bytes_max=_parse_limit(values.get("NICKLEN", ""), features.nick_bytes_max),
        channel_bytes_max=_parse_limit(values.get("CHANNELLEN", ""), features.channel_bytes_max),
    )


def _parse_limit(text: str, default: int) -> int:
    # A server that announces names of unlimited length would leave no space for the text.
    return min(int(text), 200) if text.isascii() and text.isdigit() and int(text) > 0 else default


class IrcUser(Struct, frozen=True, kw_only=True):
    """The user of a private channel: an account, or a nick with its user and host."""

    nick: str = ""
    user_at_host: str = ""
    account: str = ""


def make_user_id(source: str, account: str, features: IrcServerFeatures) -> str:
    """Return the id of a user: the account if the server reports one, or else `nick!user@host`.

    Only an account proves who the user is.
    """
    return features.fold(f"{ACCOUNT_PREFIX}{account}" if account else source)


def parse_user(channel: str) -> IrcUser | None:
    """Parse the name of a private channel. Returns None if it names no user to whom IRC can deliver."""
    if channel.startswith(ACCOUNT_PREFIX):
        account = channel.removeprefix(ACCOUNT_PREFIX)
        return IrcUser(account=account) if _NICK.fullmatch(account) else None
    nick, _, user_at_host = channel.partition("!")
    if not _NICK.fullmatch(nick) or (user_at_host and "@" not in user_at_host):
        return None
    return IrcUser(nick=nick, user_at_host=user_at_host)
