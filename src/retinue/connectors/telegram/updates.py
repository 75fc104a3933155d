"""Converts Telegram updates to inbound messages. Pure: an update in, a message or None out.

Ids are permanent. Names can be changed by their owners at any time.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import UTC, datetime
from mimetypes import guess_extension

import msgspec
from msgspec.structs import replace

from retinue.connectors.base import Heard, Incoming, OfferedFile, Quoted, Speaker
from retinue.connectors.telegram.api_types import (
    CallbackQuery,
    Chat,
    Entity,
    Message,
    MessageReaction,
    Origin,
    TelegramFile,
    Update,
    UpdateId,
    User,
)
from retinue.domain.envelope import Context
from retinue.domain.session_keys import ChatType

SERVICE = "telegram"
QUOTED_LENGTH_MAX = 1200  # characters
NAME_LENGTH_MAX = 64  # characters
UNREADABLE = "(something that cannot be read here)"

_COMMAND = re.compile(r"/[A-Za-z0-9_]+@(?P<bot>[A-Za-z0-9_]+)")

Fetch = Callable[[str], AsyncIterator[bytes]]
"""The bytes behind a file's id, as they come."""


def read(raw: bytes | msgspec.Raw) -> Update | UpdateId:
    """Decode an update. If its form is unknown, only its id is decoded."""
    try:
        return msgspec.json.decode(raw, type=Update)
    except msgspec.ValidationError:
        return msgspec.json.decode(raw, type=UpdateId)


def heard(update: Update, *, me: User, fetch: Fetch) -> Incoming | None:
    """Convert an update. Returns None if it contains no message, press or reaction."""
    if update.message is not None:
        return _message(update.message, me, fetch)
    if update.edited_message is not None:
        return _message(update.edited_message, me, fetch)
    if update.callback_query is not None:
        return _press(update.callback_query)
    if update.message_reaction is not None:
        return _reaction(update.message_reaction, update.update_id)
    return None


def as_one(parts: Sequence[Incoming]) -> Incoming:
    """Merge an album into one message. It has the id of the first part, and the texts and files of
    all."""
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


def room_of(message: Message) -> tuple[str, str]:
    """The channel of a message, and the channel that this one is a topic of."""
    chat = str(message.chat.id)
    if message.is_topic_message and message.message_thread_id is not None:
        return f"{chat}/{message.message_thread_id}", chat
    return chat, ""


def place_of(room: str) -> tuple[int, int | None] | None:
    """The chat and topic ids of a channel; None if it is not a valid channel."""
    chat, slash, topic = room.partition("/")
    if not _is_number(chat.removeprefix("-")) or (slash and not _is_number(topic)):
        return None
    return int(chat), int(topic) if slash else None


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 18


def _message(message: Message, me: User, fetch: Fetch) -> Incoming | None:
    if (moved := _moved(message)) is not None:
        return moved
    text, files = _words(message), _files(message, fetch)
    if not text and not files:
        return None  # a service message: someone joined or left, or a picture was changed
    room, parent = room_of(message)
    speaker = _speaker(message.sender, message.sender_chat, program=message.is_automatic_forward)
    quoted = _quoted(message, me)
    entities = message.entities or message.caption_entities
    mentioned = _is_named(message.text or message.caption, entities, me) or (quoted is not None and quoted.ours)
    return Incoming(
        room=room,
        message_id=str(message.message_id),
        text=_forwarded(message.forward_origin, _to_us(text, me)),
        speaker=speaker,
        peer=str(message.chat.id) if message.chat.is_private else "",
        service=SERVICE,
        parent=parent,
        files=files,
        album=message.media_group_id,
        quoted=quoted,
        mentioned=mentioned,
        forwarded=message.forward_origin is not None,
        said_at=_moment(message.edit_date or message.date),  # an old message may be edited today
        context=_context(speaker, message.chat, topic=bool(parent)),
        revision=str(message.edit_date) if message.edit_date is not None else "",
    )


def _press(query: CallbackQuery) -> Incoming | None:
    if query.message is None or not query.data:
        return None  # a button of an inline message in a chat without the bot: not our message
    room, parent = room_of(query.message)
    chat = query.message.chat
    speaker = _speaker(query.sender, None)
    return Incoming(
        kind=Heard.PRESS,
        room=room,
        message_id=query.id,
        text=query.data,
        speaker=speaker,  # the user who pressed it, not the recipient of the message
        peer=str(chat.id) if chat.is_private else "",
        service=SERVICE,
        parent=parent,
        quoted=Quoted(message_id=str(query.message.message_id), text=query.message.text[:QUOTED_LENGTH_MAX], ours=True),
        mentioned=True,
        context=_context(speaker, chat, topic=bool(parent)),
    )


def _reaction(reaction: MessageReaction, update_id: int) -> Incoming | None:
    before = {each.emoji for each in reaction.old_reaction if each.emoji}
    now = [each.emoji for each in reaction.new_reaction if each.emoji]
    new = [emoji for emoji in now if emoji not in before]
    if not new and (now or not before):
        return None  # one of several was removed, or it is a custom emoji without a character
    speaker = _speaker(reaction.user, reaction.actor_chat)
    return Incoming(
        kind=Heard.REACTION,
        room=str(reaction.chat.id),  # Telegram does not report the topic
        message_id=f"reaction-{update_id}",
        text=new[-1] if new else "",
        speaker=speaker,
        peer=str(reaction.chat.id) if reaction.chat.is_private else "",
        service=SERVICE,
        quoted=Quoted(message_id=str(reaction.message_id)),
        said_at=_moment(reaction.date),
        context=_context(speaker, reaction.chat, topic=False),
    )


def _moved(message: Message) -> Incoming | None:
    """A group that became a supergroup has a new id. Both chats report it; equal ids make it one
    message."""
    if message.migrate_to_chat_id is not None:
        old, new = message.chat.id, message.migrate_to_chat_id
    elif message.migrate_from_chat_id is not None:
        old, new = message.migrate_from_chat_id, message.chat.id
    else:
        return None
    return Incoming(
        kind=Heard.MOVED,
        room=str(old),
        message_id=f"moved-{new}",
        text=str(new),
        speaker=_speaker(message.sender, message.sender_chat),
        service=SERVICE,
        said_at=_moment(message.date),
    )


def _speaker(user: User | None, chat: Chat | None, *, program: bool = False) -> Speaker:
    """The author of a message. One sent as a chat has a placeholder user too, so the chat counts as
    the author."""
    if chat is not None:
        return Speaker(id=str(chat.id), name=_one_line(chat.name), username=chat.username, is_program=program)
    if user is None:
        return Speaker(id="", is_program=True)
    return Speaker(id=str(user.id), name=_one_line(user.name), username=user.username, is_program=user.is_bot)


def _context(speaker: Speaker, chat: Chat, *, topic: bool) -> Context:
    kind = ChatType.DIRECT if chat.is_private else ChatType.THREAD if topic else ChatType.GROUP
    title = "" if chat.is_private else _one_line(chat.name)
    return Context(sender_name=speaker.name, username=speaker.username, chat_title=title, chat_type=kind)


def _quoted(message: Message, me: User) -> Quoted | None:
    answered = message.reply_to_message
    if answered is None or answered.forum_topic_created is not None:
        return None  # every message in a topic is a reply to the one that created it
    text = message.quote.text if message.quote is not None else _words(answered)
    author = _speaker(answered.sender, answered.sender_chat)
    return Quoted(
        message_id=str(answered.message_id),
        text=text[:QUOTED_LENGTH_MAX],
        author=author.name,
        ours=author.id == str(me.id),
    )


def _is_named(text: str, entities: Sequence[Entity], me: User) -> bool:
    return any(_names(_slice(text, each), each, me) for each in entities)


def _names(words: str, entity: Entity, me: User) -> bool:
    name = me.username.casefold()
    match entity.type:
        case "mention":
            return bool(name) and words.casefold() == f"@{name}"
        case "text_mention":
            return entity.user is not None and entity.user.id == me.id
        case "bot_command":
            command = _COMMAND.fullmatch(words)
            return command is not None and command["bot"].casefold() == name
        case _:
            return False


def _slice(text: str, entity: Entity) -> str:
    units = text.encode("utf-16-le", "surrogatepass")
    start, end = 2 * max(entity.offset, 0), 2 * max(entity.offset + entity.length, 0)
    return units[start:end].decode("utf-16-le", "replace")


def _to_us(text: str, me: User) -> str:
    """Remove our name from a command: `/new@our_bot` becomes `/new`. A command to another bot is
    unchanged."""
    command = _COMMAND.match(text)
    if command is None or not me.username or command["bot"].casefold() != me.username.casefold():
        return text
    return text[: command.start("bot") - 1] + text[command.end() :]


def _forwarded(origin: Origin | None, text: str) -> str:
    """Mark forwarded text as such: the sender did not write it, and it is no command."""
    if origin is None:
        return text
    source = origin.sender_user or origin.sender_chat or origin.chat
    name = source.name if source is not None else origin.sender_user_name
    return f"[forwarded from {_one_line(name).replace(']', ')') or 'somebody'}]\n{text}"


def _words(message: Message) -> str:
    """The text of a message. For content that is neither text nor a file, a description of it."""
    if message.text or message.caption:
        return message.text or message.caption
    if message.sticker is not None:
        return message.sticker.emoji
    if message.venue is not None:
        return f"[place: {_one_line(message.venue.title)}, {_one_line(message.venue.address)}{_at(message)}]"
    if message.location is not None:
        return f"[location{_at(message)}]"
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


def _at(message: Message) -> str:
    return f" at {message.location.latitude}, {message.location.longitude}" if message.location is not None else ""


def _files(message: Message, fetch: Fetch) -> tuple[OfferedFile, ...]:
    """The file of a message. Telegram lists an animation as a document too, and a photo in several
    sizes."""
    stem = str(message.message_id)
    if message.photo:
        largest = max(message.photo, key=lambda size: (size.width * size.height, size.file_size or 0))
        return (_offered(largest, f"photo-{stem}", "image/jpeg", fetch),)
    sticker = message.sticker
    if sticker is not None:
        drawn = "application/x-tgsticker" if sticker.is_animated else "video/webm" if sticker.is_video else "image/webp"
        return (_offered(sticker, f"sticker-{stem}", drawn, fetch),)
    kinds = (
        (message.animation, "animation", "video/mp4"),
        (message.video, "video", "video/mp4"),
        (message.video_note, "video-note", "video/mp4"),
        (message.voice, "voice", "audio/ogg"),
        (message.audio, "audio", "audio/mpeg"),
        (message.document, "document", "application/octet-stream"),
    )
    return tuple(_offered(file, f"{kind}-{stem}", media, fetch) for file, kind, media in kinds if file is not None)[:1]


_ENDINGS = {"audio/ogg": ".ogg", "application/x-tgsticker": ".tgs", "application/octet-stream": ".bin"}


def _offered(file: TelegramFile, name: str, media_type: str, fetch: Fetch) -> OfferedFile:
    kind = file.mime_type or media_type
    ending = _ENDINGS.get(kind) or guess_extension(kind) or ""
    file_id = file.file_id
    return OfferedFile(
        name=file.file_name or f"{name}{ending}",
        media_type=kind,
        size_bytes=file.file_size,
        fetch=lambda: fetch(file_id),
    )


def _moment(seconds: int) -> datetime | None:
    try:
        return datetime.fromtimestamp(seconds, UTC) if seconds > 0 else None
    except (OverflowError, ValueError, OSError):
        return None


def _one_line(name: str) -> str:
    return " ".join(name.split())[:NAME_LENGTH_MAX]
