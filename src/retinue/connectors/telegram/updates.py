"""Converts Telegram updates to inbound messages.

Users are identified by their ids, because they can change their names at any time.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import UTC, datetime
from mimetypes import guess_extension

import msgspec
from msgspec.structs import replace

from retinue.connectors.base import InboundKind, InboundMessage, PlatformUser, QuotedMessage, RemoteFile
from retinue.connectors.telegram.api_types import (
    CallbackQuery,
    MessageEntity,
    MessageOrigin,
    MessageReaction,
    TelegramChat,
    TelegramFile,
    TelegramMessage,
    TelegramUpdate,
    TelegramUser,
    UndecodedUpdate,
)
from retinue.domain.envelope import EnvelopeContext
from retinue.domain.session_keys import ChatType

SERVICE = "telegram"
QUOTED_LENGTH_MAX = 1200  # characters
NAME_LENGTH_MAX = 64  # characters
UNREADABLE = "(unsupported content)"

_COMMAND = re.compile(r"/[A-Za-z0-9_]+@(?P<bot>[A-Za-z0-9_]+)")

FetchFile = Callable[[str], AsyncIterator[bytes]]
"""Streams the bytes of the file with this id."""


def parse_update(raw: bytes | msgspec.Raw) -> TelegramUpdate | UndecodedUpdate:
    """Decode an update. If the update has an unknown form, only its id is decoded."""
    try:
        return msgspec.json.decode(raw, type=TelegramUpdate)
    except msgspec.ValidationError:
        return msgspec.json.decode(raw, type=UndecodedUpdate)


def to_inbound(update: TelegramUpdate, *, me: TelegramUser, fetch: FetchFile) -> InboundMessage | None:
    """Convert an update to an inbound message. Returns None if it contains no message, button press or reaction."""
    if update.message is not None:
        return _convert_message(update.message, me, fetch)
    if update.edited_message is not None:
        return _convert_message(update.edited_message, me, fetch)
    if update.callback_query is not None:
        return _convert_press(update.callback_query)
    if update.message_reaction is not None:
        return _convert_reaction(update.message_reaction, update.update_id)
    return None


def merge_album(parts: Sequence[InboundMessage]) -> InboundMessage:
    """Merge the parts of an album into one message, with the first part's id and the text and files of all parts."""
    first = parts[0]
    if len(parts) == 1:
        return first
    return replace(
        first,
        text="\n\n".join(each.text for each in parts if each.text),
        files=tuple(file for each in parts for file in each.files),
        mentioned=any(each.mentioned for each in parts),
        forwarded=any(each.forwarded for each in parts),
        quoted=next((each.quoted for each in parts if each.quoted is not None), None),
    )


def get_channel(message: TelegramMessage) -> tuple[str, str]:
    """Return the channel of a message and, if it is a topic, the group that contains it.

    Otherwise, the group is an empty string.
    """
    chat = str(message.chat.id)
    if message.is_topic_message and message.message_thread_id is not None:
        return f"{chat}/{message.message_thread_id}", chat
    return chat, ""


def parse_channel(channel: str) -> tuple[int, int | None] | None:
    """Return the chat id and topic id of a channel, or None if the channel is invalid."""
    chat, slash, topic = channel.partition("/")
    if not _is_number(chat.removeprefix("-")) or (slash and not _is_number(topic)):
        return None
    return int(chat), int(topic) if slash else None


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 18


def _convert_message(message: TelegramMessage, me: TelegramUser, fetch: FetchFile) -> InboundMessage | None:
    if (moved := _convert_migration(message)) is not None:
        return moved
    text, files = _get_text(message), _get_files(message, fetch)
    if not text and not files:
        return None  # a service message: someone joined or left, or a picture was changed
    channel, parent = get_channel(message)
    sender = _build_user(message.sender, message.sender_chat, is_bot=message.is_automatic_forward)
    quoted = _build_quoted(message, me)
    entities = message.entities or message.caption_entities
    mentioned = _is_mentioned(message.text or message.caption, entities, me) or (quoted is not None and quoted.ours)
    return InboundMessage(
        channel=channel,
        message_id=str(message.message_id),
        text=_mark_forwarded(message.forward_origin, _strip_own_mention(text, me)),
        sender=sender,
        peer=str(message.chat.id) if message.chat.is_private else "",
        service=SERVICE,
        parent=parent,
        files=files,
        album=message.media_group_id,
        quoted=quoted,
        mentioned=mentioned,
        forwarded=message.forward_origin is not None,
        sent_at=_parse_time(message.edit_date or message.date),  # an old message may be edited today
        context=_build_context(sender, message.chat, is_topic=bool(parent)),
        revision=str(message.edit_date) if message.edit_date is not None else "",
    )


def _convert_press(query: CallbackQuery) -> InboundMessage | None:
    if query.message is None or not query.data:
        return None  # a button of an inline message in a chat without the bot: not our message
    channel, parent = get_channel(query.message)
    chat = query.message.chat
    sender = _build_user(query.sender, None)
    return InboundMessage(
        kind=InboundKind.PRESS,
        channel=channel,
        message_id=query.id,
        text=query.data,
        sender=sender,  # the user who pressed it, not the recipient of the message
        peer=str(chat.id) if chat.is_private else "",
        service=SERVICE,
        parent=parent,
        quoted=QuotedMessage(
            message_id=str(query.message.message_id), text=query.message.text[:QUOTED_LENGTH_MAX], ours=True
        ),
        mentioned=True,
        context=_build_context(sender, chat, is_topic=bool(parent)),
    )


def _convert_reaction(reaction: MessageReaction, update_id: int) -> InboundMessage | None:
    before = {each.emoji for each in reaction.old_reaction if each.emoji}
    now = [each.emoji for each in reaction.new_reaction if each.emoji]
    new = [emoji for emoji in now if emoji not in before]
    if not new and (now or not before):
        return None  # one of several was removed, or it is a custom emoji without a character
    sender = _build_user(reaction.user, reaction.actor_chat)
    return InboundMessage(
        kind=InboundKind.REACTION,
        channel=str(reaction.chat.id),  # Telegram does not report the topic
        message_id=f"reaction-{update_id}",
        text=new[-1] if new else "",
        sender=sender,
        peer=str(reaction.chat.id) if reaction.chat.is_private else "",
        service=SERVICE,
        quoted=QuotedMessage(message_id=str(reaction.message_id)),
        sent_at=_parse_time(reaction.date),
        context=_build_context(sender, reaction.chat, is_topic=False),
    )


def _convert_migration(message: TelegramMessage) -> InboundMessage | None:
    """Convert the report that a group became a supergroup, which has a new id.

    Both chats report it. Both reports get the same message id, so they are processed as one message.
    """
    if message.migrate_to_chat_id is not None:
        old, new = message.chat.id, message.migrate_to_chat_id
    elif message.migrate_from_chat_id is not None:
        old, new = message.migrate_from_chat_id, message.chat.id
    else:
        return None
    return InboundMessage(
        kind=InboundKind.MOVED,
        channel=str(old),
        message_id=f"moved-{new}",
        text=str(new),
        sender=_build_user(message.sender, message.sender_chat),
        service=SERVICE,
        sent_at=_parse_time(message.date),
    )


def _build_user(user: TelegramUser | None, chat: TelegramChat | None, *, is_bot: bool = False) -> PlatformUser:
    """Return the author of a message.

    If a message was sent in the name of a chat, the chat is its author, and its user is only a
    placeholder.
    """
    if chat is not None:
        return PlatformUser(id=str(chat.id), name=_one_line(chat.name), username=chat.username, is_program=is_bot)
    if user is None:
        return PlatformUser(id="", is_program=True)
    return PlatformUser(id=str(user.id), name=_one_line(user.name), username=user.username, is_program=user.is_bot)


def _build_context(sender: PlatformUser, chat: TelegramChat, *, is_topic: bool) -> EnvelopeContext:
    kind = ChatType.DIRECT if chat.is_private else ChatType.THREAD if is_topic else ChatType.GROUP
    title = "" if chat.is_private else _one_line(chat.name)
    return EnvelopeContext(sender_name=sender.name, username=sender.username, chat_title=title, chat_type=kind)


def _build_quoted(message: TelegramMessage, me: TelegramUser) -> QuotedMessage | None:
    answered = message.reply_to_message
    if answered is None or answered.forum_topic_created is not None:
        return None  # every message in a topic is a reply to the one that created it
    text = message.quote.text if message.quote is not None else _get_text(answered)
    author = _build_user(answered.sender, answered.sender_chat)
    return QuotedMessage(
        message_id=str(answered.message_id),
        text=text[:QUOTED_LENGTH_MAX],
        author=author.name,
        ours=author.id == str(me.id),
    )


def _is_mentioned(text: str, entities: Sequence[MessageEntity], me: TelegramUser) -> bool:
    return any(_is_mention(_get_entity_text(text, each), each, me) for each in entities)


def _is_mention(text: str, entity: MessageEntity, me: TelegramUser) -> bool:
    name = me.username.casefold()
    match entity.type:
        case "mention":
            return bool(name) and text.casefold() == f"@{name}"
        case "text_mention":
            return entity.user is not None and entity.user.id == me.id
        case "bot_command":
            command = _COMMAND.fullmatch(text)
            return command is not None and command["bot"].casefold() == name
        case _:
            return False


def _get_entity_text(text: str, entity: MessageEntity) -> str:
    units = text.encode("utf-16-le", "surrogatepass")
    start, end = 2 * max(entity.offset, 0), 2 * max(entity.offset + entity.length, 0)
    return units[start:end].decode("utf-16-le", "replace")


def _strip_own_mention(text: str, me: TelegramUser) -> str:
    """Remove the bot's name from a command: `/new@our_bot` becomes `/new`. A command to another bot is unchanged."""
    command = _COMMAND.match(text)
    if command is None or not me.username or command["bot"].casefold() != me.username.casefold():
        return text
    return text[: command.start("bot") - 1] + text[command.end() :]


def _mark_forwarded(origin: MessageOrigin | None, text: str) -> str:
    """Insert the line `[forwarded from NAME]` before forwarded text.

    The sender did not write the text, so it cannot be a command.
    """
    if origin is None:
        return text
    source = origin.sender_user or origin.sender_chat or origin.chat
    name = source.name if source is not None else origin.sender_user_name
    return f"[forwarded from {_one_line(name).replace(']', ')') or 'unknown'}]\n{text}"


def _get_text(message: TelegramMessage) -> str:
    """Return the text of a message, or a description of content that is neither text nor a file."""
    if message.text or message.caption:
        return message.text or message.caption
    if message.sticker is not None:
        return message.sticker.emoji
    if message.venue is not None:
        return (
            f"[place: {_one_line(message.venue.title)}, {_one_line(message.venue.address)}{_format_location(message)}]"
        )
    if message.location is not None:
        return f"[location{_format_location(message)}]"
    if message.contact is not None:
        name = _one_line(f"{message.contact.first_name} {message.contact.last_name}")
        return f"[contact: {name}, {_one_line(message.contact.phone_number)}]"
    if message.poll is not None:
        options = "".join(f"\n- {each.text}" for each in message.poll.options)
        return f"[poll: {message.poll.question}]{options}"
    if message.dice is not None:
        return f"{message.dice.emoji} {message.dice.value}"
    unread = (message.story, message.game, message.invoice, message.paid_media, message.checklist)
    return UNREADABLE if any(each is not None for each in unread) else ""


def _format_location(message: TelegramMessage) -> str:
    return f" at {message.location.latitude}, {message.location.longitude}" if message.location is not None else ""


def _get_files(message: TelegramMessage, fetch: FetchFile) -> tuple[RemoteFile, ...]:
    """Return the file of a message, if it has one.

    Telegram also lists an animation as a document, and a photo in several sizes. Only one of them is returned.
    """
    stem = str(message.message_id)
    if message.photo:
        largest = max(message.photo, key=lambda size: (size.width * size.height, size.file_size or 0))
        return (_build_remote_file(largest, f"photo-{stem}", "image/jpeg", fetch),)
    sticker = message.sticker
    if sticker is not None:
        drawn = "application/x-tgsticker" if sticker.is_animated else "video/webm" if sticker.is_video else "image/webp"
        return (_build_remote_file(sticker, f"sticker-{stem}", drawn, fetch),)
    kinds = (
        (message.animation, "animation", "video/mp4"),
        (message.video, "video", "video/mp4"),
        (message.video_note, "video-note", "video/mp4"),
        (message.voice, "voice", "audio/ogg"),
        (message.audio, "audio", "audio/mpeg"),
        (message.document, "document", "application/octet-stream"),
    )
    return tuple(
        _build_remote_file(file, f"{kind}-{stem}", media, fetch) for file, kind, media in kinds if file is not None
    )[:1]


_EXTENSIONS = {"audio/ogg": ".ogg", "application/x-tgsticker": ".tgs", "application/octet-stream": ".bin"}


def _build_remote_file(file: TelegramFile, name: str, media_type: str, fetch: FetchFile) -> RemoteFile:
    kind = file.mime_type or media_type
    ending = _EXTENSIONS.get(kind) or guess_extension(kind) or ""
    file_id = file.file_id
    return RemoteFile(
        name=file.file_name or f"{name}{ending}",
        media_type=kind,
        size_bytes=file.file_size,
        fetch=lambda: fetch(file_id),
    )


def _parse_time(seconds: int) -> datetime | None:
    try:
        return datetime.fromtimestamp(seconds, UTC) if seconds > 0 else None
    except (OverflowError, ValueError, OSError):
        return None


def _one_line(name: str) -> str:
    return " ".join(name.split())[:NAME_LENGTH_MAX]
