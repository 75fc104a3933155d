"""Names on IRC: which are equal, who a user is, and which names can be written to.

Nothing about a nick is permanent. If the server vouches for an account, the account identifies the
user. If it does not, the whole of `nick!user@host` has to be the same.
"""

from __future__ import annotations

import re
from enum import StrEnum

from msgspec import Struct

from retinue.connectors.irc.irc_message import pairs

ACCOUNT = "account:"
ROOM_MARKS = "#&+!"

_ASCII = str.maketrans({chr(letter): chr(letter + 32) for letter in range(ord("A"), ord("Z") + 1)})
_STRICT = {**_ASCII, **str.maketrans(r"[]" + "\\", r"{}|")}
_OLD = {**_STRICT, ord("~"): "^"}  # tilde and circumflex were once the same character
_NICK = re.compile(r"[^\s\x00-\x20,:!@*?#&+$%~.][^\s\x00-\x20,!@*?]*")
_ROOM = re.compile(r"[^\s\x00-\x20,\x07]+")


class Casing(StrEnum):
    """Which names a server treats as equal (its `CASEMAPPING`)."""

    ASCII = "ascii"
    STRICT = "rfc1459-strict"
    OLD = "rfc1459"

    def fold(self, name: str) -> str:
        match self:
            case Casing.ASCII:
                return name.translate(_ASCII)
            case Casing.STRICT:
                return name.translate(_STRICT)
            case Casing.OLD:
                return name.translate(_OLD)


def casing_named(word: str) -> Casing:
    try:
        return Casing(word.lower())
    except ValueError:
        return Casing.ASCII


class Manners(Struct, frozen=True, kw_only=True):
    """The features that a server announced during registration (`005`), as far as we use them."""

    casing: Casing = Casing.OLD
    room_marks: str = "#&"
    nick_bytes_max: int = 30
    room_bytes_max: int = 64

    def fold(self, name: str) -> str:
        return self.casing.fold(name)

    def is_room(self, name: str) -> bool:
        return name[:1] in self.room_marks and len(name) > 1 and _ROOM.fullmatch(name) is not None

    @property
    def target_bytes_max(self) -> int:
        return max(self.nick_bytes_max, self.room_bytes_max)


def manners_after(manners: Manners, words: tuple[str, ...]) -> Manners:
    """The features after one more `005`. Unknown tokens change nothing."""
    said = pairs(words)
    return Manners(
        casing=casing_named(said["CASEMAPPING"]) if "CASEMAPPING" in said else manners.casing,
        room_marks="".join(mark for mark in said.get("CHANTYPES", manners.room_marks) if mark in ROOM_MARKS),
        nick_bytes_max=_number(said.get("NICKLEN", ""), manners.nick_bytes_max),
        room_bytes_max=_number(said.get("CHANNELLEN", ""), manners.room_bytes_max),
    )


def _number(word: str, otherwise: int) -> int:
    # A server that announces unlimited names would leave no space for the text.
    return min(int(word), 200) if word.isascii() and word.isdigit() and int(word) > 0 else otherwise


class Whom(Struct, frozen=True, kw_only=True):
    """The user behind a private channel: an account, or exactly this nick at this host."""

    nick: str = ""
    user_at_host: str = ""
    account: str = ""


def speaker_id(source: str, account: str, manners: Manners) -> str:
    """The id of a user: the account if the server vouches for one, else the whole source, which
    proves nothing."""
    return manners.fold(f"{ACCOUNT}{account}" if account else source)


def whom(room: str) -> Whom | None:
    """The user of a private channel; None if it is not one, or its name cannot be written to."""
    if room.startswith(ACCOUNT):
        account = room.removeprefix(ACCOUNT)
        return Whom(account=account) if _NICK.fullmatch(account) else None
    nick, _, user_at_host = room.partition("!")
    if not _NICK.fullmatch(nick) or (user_at_host and "@" not in user_at_host):
        return None
    return Whom(nick=nick, user_at_host=user_at_host)
