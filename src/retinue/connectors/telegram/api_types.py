"""Types of the Bot API: only the fields that the connector uses, each with a default if it may be missing.

`updates.parse_update` decodes each update separately, so an update that does not match these types
does not affect the others.
"""

from __future__ import annotations

from msgspec import Struct, field


class TelegramUser(Struct, frozen=True, kw_only=True):
    id: int
    is_bot: bool = False
    first_name: str = ""
    last_name: str = ""
    username: str = ""
    can_read_all_group_messages: bool = True  # only set for our own bot, in the response to getMe

    @property
    def name(self) -> str:
        return f"{self.first_name} {self.last_name}".strip()


class TelegramChat(Struct, frozen=True, kw_only=True):
    id: int
    type: str = "private"
    title: str = ""
    username: str = ""
    first_name: str = ""
    last_name: str = ""

    @property
    def is_private(self) -> bool:
        return self.type == "private"

    @property
    def name(self) -> str:
        return self.title or f"{self.first_name} {self.last_name}".strip()


class MessageEntity(Struct, frozen=True, kw_only=True):
    """A formatted range of text, measured in UTF-16 code units."""

    type: str
    offset: int
    length: int
    user: TelegramUser | None = None


class TelegramFile(Struct, frozen=True, kw_only=True):
    """A photo in one size, or any other file. The fields that are set depend on the kind of file."""

    file_id: str
    file_unique_id: str = ""
    file_size: int | None = None
    file_name: str = ""
    mime_type: str = ""
    file_path: str = ""  # from getFile
    width: int = 0
    height: int = 0
    emoji: str = ""  # of a sticker
    is_animated: bool = False
    is_video: bool = False


class Location(Struct, frozen=True, kw_only=True):
    latitude: float
    longitude: float


class Venue(Struct, frozen=True, kw_only=True):
    title: str = ""
    address: str = ""


class Contact(Struct, frozen=True, kw_only=True):
    phone_number: str = ""
    first_name: str = ""
    last_name: str = ""


class PollOption(Struct, frozen=True, kw_only=True):
    text: str = ""


class Poll(Struct, frozen=True, kw_only=True):
    question: str = ""
    options: tuple[PollOption, ...] = ()


class Dice(Struct, frozen=True, kw_only=True):
    emoji: str = ""
    value: int = 0


class MessageOrigin(Struct, frozen=True, kw_only=True):
    """The source of a forwarded message."""

    sender_user: TelegramUser | None = None
    sender_user_name: str = ""
    sender_chat: TelegramChat | None = None
    chat: TelegramChat | None = None


class TextQuote(Struct, frozen=True, kw_only=True):
    text: str = ""


class AnyObject(Struct, frozen=True):
    """An object of the Bot API. Only its presence matters, so its fields are not decoded."""


class TelegramMessage(Struct, frozen=True, kw_only=True):
    message_id: int
    chat: TelegramChat
    date: int = 0
    sender: TelegramUser | None = field(name="from", default=None)
    sender_chat: TelegramChat | None = None
    is_automatic_forward: bool = False
    edit_date: int | None = None
    message_thread_id: int | None = None
    is_topic_message: bool = False
    media_group_id: str = ""
    reply_to_message: TelegramMessage | None = None
    quote: TextQuote | None = None
    forward_origin: MessageOrigin | None = None
    text: str = ""
    caption: str = ""
    entities: tuple[MessageEntity, ...] = ()
    caption_entities: tuple[MessageEntity, ...] = ()
    photo: tuple[TelegramFile, ...] = ()
    video: TelegramFile | None = None
    video_note: TelegramFile | None = None
    animation: TelegramFile | None = None
    document: TelegramFile | None = None
    voice: TelegramFile | None = None
    audio: TelegramFile | None = None
    sticker: TelegramFile | None = None
    location: Location | None = None
    venue: Venue | None = None
    contact: Contact | None = None
    poll: Poll | None = None
    dice: Dice | None = None
    migrate_to_chat_id: int | None = None
    migrate_from_chat_id: int | None = None
    forum_topic_created: AnyObject | None = None
    # Content that we cannot read. The agent learns only that something was sent.
    story: AnyObject | None = None
    game: AnyObject | None = None
    invoice: AnyObject | None = None
    paid_media: AnyObject | None = None
    checklist: AnyObject | None = None


class CallbackQuery(Struct, frozen=True, kw_only=True):
    id: str
    sender: TelegramUser = field(name="from")
    message: TelegramMessage | None = None
    data: str = ""


class ReactionType(Struct, frozen=True, kw_only=True):
    type: str
    emoji: str = ""


class MessageReaction(Struct, frozen=True, kw_only=True):
    chat: TelegramChat
    message_id: int
    date: int = 0
    user: TelegramUser | None = None
    actor_chat: TelegramChat | None = None
    old_reaction: tuple[ReactionType, ...] = ()
    new_reaction: tuple[ReactionType, ...] = ()


class TelegramUpdate(Struct, frozen=True, kw_only=True):
    update_id: int
    message: TelegramMessage | None = None
    edited_message: TelegramMessage | None = None
    callback_query: CallbackQuery | None = None
    message_reaction: MessageReaction | None = None


class UndecodedUpdate(Struct, frozen=True, kw_only=True):
    """The id of an update that cannot be decoded."""

    update_id: int


ALLOWED_UPDATES = ("message", "edited_message", "callback_query", "message_reaction")


class WebhookInfo(Struct, frozen=True, kw_only=True):
    url: str = ""


class SentMessage(Struct, frozen=True, kw_only=True):
    """The id of a message that Telegram accepted from the bot."""

    message_id: int


class ResponseParameters(Struct, frozen=True, kw_only=True):
    retry_after: float | None = None
    migrate_to_chat_id: int | None = None
