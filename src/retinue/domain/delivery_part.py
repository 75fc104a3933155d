"""Parcels: what of an envelope leaves the house at once, and what the place it goes to can."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from retinue.domain.attachment import Attachment
from retinue.domain.envelope import Envelope


class Unit(StrEnum):
    """How a place counts the length of words."""

    CHARACTERS = "characters"
    UTF16 = "utf-16"
    BYTES = "bytes"


class Abilities(Struct, frozen=True, kw_only=True):
    """What a place can. What it cannot, the house does in another way, or does without."""

    text_max: int = 4000  # in one message, counted in `unit`
    unit: Unit = Unit.CHARACTERS
    caption_max: int = 0  # words beside a file; 0: they go on their own, after it
    files: bool = False
    file_bytes_max: int = 0
    album_max: int = 1  # files in one message
    quotes: bool = False  # a message may point to another
    edits: bool = False  # a message of ours may be changed: `Edits`
    reacts: bool = False  # `Reacts`
    types: bool = False  # it can be shown that someone writes: `Types`
    buttons: bool = False
    formats: bool = False  # the connector renders Markdown; else the marks stand there as they are written
    lines: bool = True  # a message may have several lines


NO_ABILITIES = Abilities()


class Button(Struct, frozen=True):
    """`data` comes back as the text of a press (`Heard.PRESS`)."""

    label: str
    data: str


class Parcel(Struct, frozen=True, kw_only=True):
    """One message to one room: a whole envelope, or as much of it as the place takes at once.

    `envelope` is for its address and its id; the words to send are `text`, which may be fewer. `quote` is the
    platform's id of a message in the same room. `key` is the same whenever the same part is sent again.
    """

    envelope: Envelope
    text: str
    files: tuple[Attachment, ...] = ()
    quote: str = ""
    buttons: tuple[tuple[Button, ...], ...] = ()  # in rows
    index: int = 0
    count: int = 1

    @property
    def room(self) -> str:
        return self.envelope.recipient.rest

    @property
    def key(self) -> str:
        return self.envelope.id if self.count == 1 else f"{self.envelope.id}/{self.index}"


def whole(envelope: Envelope) -> Parcel:
    """All of an envelope at once, where its place has no bounds."""
    return Parcel(envelope=envelope, text=envelope.text, files=envelope.attachments)
