"""Delivery parts, each of which becomes one outbound platform message, and the capabilities of connectors."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from retinue.domain.attachment import Attachment
from retinue.domain.envelope import Envelope


class LengthUnit(StrEnum):
    """The unit in which a platform measures the length of text."""

    CHARACTERS = "characters"
    UTF16 = "utf-16"
    BYTES = "bytes"


class ConnectorCapabilities(Struct, frozen=True, kw_only=True):
    """What a connector's platform supports. The server replaces or omits everything else."""

    text_max: int = 4000  # per message, measured in `unit`
    unit: LengthUnit = LengthUnit.CHARACTERS
    caption_max: int = 0  # text sent with a file; 0: the text is sent separately, after the file
    can_send_files: bool = False
    file_bytes_max: int = 0
    album_max: int = 1  # files per message
    can_quote: bool = False  # a message can quote another
    can_edit: bool = False  # our messages can be edited: `Edits`
    can_react: bool = False  # `Reacts`
    can_show_typing: bool = False  # a typing indicator can be shown: `Types`
    can_show_buttons: bool = False
    can_render_markdown: bool = False  # the connector renders Markdown; otherwise the markup is sent as plain text
    can_break_lines: bool = True  # a message may have several lines


NO_CAPABILITIES = ConnectorCapabilities()


class Button(Struct, frozen=True):
    """A button below a message. When it is pressed, `data` arrives as the text of an inbound message."""

    label: str
    data: str


class DeliveryPart(Struct, frozen=True, kw_only=True):
    """One platform message to one channel: a whole envelope, or one part of an envelope that is too large.

    `envelope` provides the address and the id. The text to send is `text`, which may be shorter than
    the text of the envelope. `quoted_message_id` is the platform id of the message to quote, which is
    in the same channel. `key` is the same for every attempt to send this part.
    """

    envelope: Envelope
    text: str
    files: tuple[Attachment, ...] = ()
    quoted_message_id: str = ""
    buttons: tuple[tuple[Button, ...], ...] = ()
    index: int = 0
    count: int = 1

    @property
    def channel(self) -> str:
        return self.envelope.recipient.rest

    @property
    def key(self) -> str:
        return self.envelope.id if self.count == 1 else f"{self.envelope.id}/{self.index}"


def make_single_part(envelope: Envelope) -> DeliveryPart:
    """Return an envelope as a single delivery part, for a platform without length limits."""
    return DeliveryPart(envelope=envelope, text=envelope.text, files=envelope.attachments)
