"""Names on IRC: which are the same, who somebody is, and what may be written to.

Nothing about a nick lasts. Where the server vouches for an account, that is who somebody is; where it does not, the
whole of `nick!user@host` has to be the same.
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
_OLD = {**_STRICT, ord("~"): "^"}  # a tilde and a circumflex were once one letter
_NICK = re.compile(r"[^\s\x00-\x20,:!@*?#&+$%~.][^\s\x00-\x20,!@*?]*")
_ROOM = re.compile(r"[^\s\x00-\x20,\x07]+")


class Casing(StrEnum):
    """What a server means by the same name (its `CASEMAPPING`)."""

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
    """What a server said about itself when it let us in (`005`), as far as it concerns us."""

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
    """With one more `005` read. What is not understood changes nothing."""
    said = pairs(words)
    return Manners(
        casing=casing_named(said["CASEMAPPING"]) if "CASEMAPPING" in said else manners.casing,
        room_marks="".join(mark for mark in said.get("CHANTYPES", manners.room_marks) if mark in ROOM_MARKS),
        nick_bytes_max=_number(said.get("NICKLEN", ""), manners.nick_bytes_max),
        room_bytes_max=_number(said.get("CHANNELLEN", ""), manners.room_bytes_max),
    )


def _number(word: str, otherwise: int) -> int:
    # A server that boasts of endless names would leave no place for words.
    return min(int(word), 200) if word.isascii() and word.isdigit() and int(word) > 0 else otherwise


class Whom(Struct, frozen=True, kw_only=True):
    """Whom a room that is one person's means: an account, or exactly this one at this host."""

    nick: str = ""
    user_at_host: str = ""
    account: str = ""


def speaker_id(source: str, account: str, manners: Manners) -> str:
    """Who it is. Of an account the server's word, else all that is seen of them, which is no proof."""
    return manners.fold(f"{ACCOUNT}{account}" if account else source)


def whom(room: str) -> Whom | None:
    """The person behind a room of two; None where it is no such room, or no name that may be written to."""
    if room.startswith(ACCOUNT):
        account = room.removeprefix(ACCOUNT)
        return Whom(account=account) if _NICK.fullmatch(account) else None
    nick, _, user_at_host = room.partition("!")
    if not _NICK.fullmatch(nick) or (user_at_host and "@" not in user_at_host):
        return None
    return Whom(nick=nick, user_at_host=user_at_host)
