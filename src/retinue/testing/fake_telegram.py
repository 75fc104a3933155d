"""An in-memory Telegram for tests: chats, people, and the methods of the Bot API with their error texts.

Its behavior follows the Bot API documentation and the responses of the real server. It has no
network part: `telegram_server` adds HTTP.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from retinue.testing.telegram_html_parser import HtmlParseError, parse_html, utf16_length

TEXT_MAX = 4096
CAPTION_MAX = 1024
ALBUM_MAX = 10
BUTTON_BYTES_MAX = 64
DOWNLOAD_BYTES_MAX = 20 * 1024 * 1024
COMMANDS_MAX = 100
COMMAND_DESCRIPTION_MAX = 256
UPLOAD_BYTES_MAX = 50 * 1024 * 1024
START_DATE = 1_767_603_600
DEFAULT_UPDATES = ("message", "edited_message", "callback_query")  # reactions must be requested
REACTIONS = frozenset("👍👎🔥🎉🤩🙏👀❤👌😁🤔")
MEDIA_KINDS = ("photo", "video", "animation", "document", "voice", "audio")
_COMMAND = re.compile(r"[a-z0-9_]{1,32}")
_AUTO_ENTITIES = re.compile(
    r"(?P<mention>(?<!\w)@[A-Za-z0-9_]{3,32})|(?P<bot_command>(?<![\w/])/[A-Za-z0-9_]+(?:@\w+)?)"
)

Json = dict[str, Any]


class FakeTelegramError(Exception):
    """The error that Telegram returns for a call that it refuses."""

    def __init__(self, status: int, description: str, **parameters: int) -> None:
        super().__init__(description)
        self.status = status
        self.description = description
        self.parameters = parameters


def build_user(id: int, name: str, *, username: str = "", is_bot: bool = False) -> Json:
    found: Json = {"id": id, "is_bot": is_bot, "first_name": name}
    return found | ({"username": username} if username else {})


MARIA = build_user(42, "Maria", username="maria")


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadedFile:
    """A file, as Telegram received it from the bot."""

    name: str
    media_type: str
    content: bytes


@dataclass(slots=True, kw_only=True)
class FakeChat:
    """One chat with its messages."""

    id: int
    type: str = "private"
    title: str = ""
    topics: set[int] = field(default_factory=set[int])
    messages: dict[int, Json] = field(default_factory=dict[int, Json])
    migrated_to: int | None = None
    block_reason: str = ""  # why the bot may not write there, in Telegram's words

    @property
    def chat(self) -> Json:
        if self.type == "private":
            return {"id": self.id, "type": self.type, "first_name": "Maria"}
        return {"id": self.id, "type": self.type, "title": self.title} | ({"is_forum": True} if self.topics else {})


class FakeTelegram:
    """The state of Telegram, the actions of its users, and the methods that a bot can call."""

    def __init__(self, *, bot_id: int = 777, username: str = "retinue_bot") -> None:
        self.me: Json = build_user(bot_id, "Retinue", username=username, is_bot=True) | {
            "can_join_groups": True,
            "can_read_all_group_messages": True,
        }
        self.chats: dict[int, FakeChat] = {42: FakeChat(id=42)}
        self.updates: list[Json] = []
        self.allowed_updates: Sequence[str] = DEFAULT_UPDATES
        self.webhook = ""
        self.commands_by_scope: dict[str, list[Json]] = {}  # the displayed commands, by scope
        self.files: dict[str, UploadedFile] = {}
        self.actions: list[tuple[int, int | None, str]] = []
        self.reactions: dict[tuple[int, int], list[str]] = {}
        self.press_answers: dict[str, str] = {}
        self.calls: list[tuple[str, Json]] = []
        self._ids = itertools.count(100)
        self._update_ids = itertools.count(5_000)
        self._dates = itertools.count(START_DATE)

    # --- what people do ---

    def add_group(
        self, id: int, title: str = "Family", *, type: str = "supergroup", topics: Sequence[int] = ()
    ) -> FakeChat:
        room = self.chats[id] = FakeChat(id=id, type=type, title=title, topics=set(topics))
        return room

    def person_sends(
        self,
        text: str = "",
        *,
        chat_id: int = 42,
        sender: Json = MARIA,
        topic: int | None = None,
        reply_to: int | None = None,
        **content: Any,
    ) -> int:
        """Send a message as a person: text, or other `content`. Returns the message id."""
        where = self.chats[chat_id]
        message: Json = {"message_id": next(self._ids), "from": sender, "chat": where.chat, "date": next(self._dates)}
        if text:
            message |= {"text": text} | _mark_entities("entities", text)
        if "caption" in content:
            message |= _mark_entities("caption_entities", content["caption"])
        if topic is not None:
            message |= {"message_thread_id": topic, "is_topic_message": True}
        if reply_to is not None and reply_to in where.messages:
            message["reply_to_message"] = where.messages[reply_to]
        message |= content
        where.messages[message["message_id"]] = message
        self.queue_update("message", message)
        return message["message_id"]

    def person_sends_file(
        self,
        kind: str,
        content: bytes,
        *,
        name: str = "",
        media_type: str = "",
        chat_id: int = 42,
        caption: str = "",
        album: str = "",
        **more: Any,
    ) -> int:
        file = self._store_file(UploadedFile(name=name, media_type=media_type, content=content))
        file |= ({"file_name": name} if name else {}) | ({"mime_type": media_type} if media_type else {})
        small: Json = {"file_id": "thumbnail", "file_unique_id": "t", "width": 90, "height": 60, "file_size": 10}
        sent: Any = [small, file | {"width": 1280, "height": 853}] if kind == "photo" else file
        extra = {kind: sent} | ({"caption": caption} if caption else {}) | ({"media_group_id": album} if album else {})
        return self.person_sends(chat_id=chat_id, **extra, **more)

    def person_edits(self, message_id: int, text: str, *, chat_id: int = 42) -> None:
        message = self.chats[chat_id].messages[message_id]
        key = "text" if "text" in message else "caption"
        message |= {key: text, "edit_date": next(self._dates)}
        self.queue_update("edited_message", message)

    def person_presses(
        self, message_id: int, data: str, *, chat_id: int = 42, sender: Json = MARIA, id: str = ""
    ) -> str:
        press_id = id or f"press{next(self._ids)}"
        self.press_answers[press_id] = ""
        message = self.chats[chat_id].messages[message_id]
        self.queue_update(
            "callback_query", {"id": press_id, "from": sender, "message": message, "data": data, "chat_instance": "1"}
        )
        return press_id

    def person_reacts(
        self, message_id: int, emoji: Sequence[str], *, before: Sequence[str] = (), chat_id: int = 42
    ) -> None:
        body = {"chat": self.chats[chat_id].chat, "message_id": message_id, "date": next(self._dates), "user": MARIA}
        reaction = {
            key: [{"type": "emoji", "emoji": each} for each in signs]
            for key, signs in (("old_reaction", before), ("new_reaction", emoji))
        }
        self.queue_update("message_reaction", body | reaction)

    def migrate_group(self, old: int, new: int) -> None:
        """Migrate a group to a supergroup, and send the service messages in both chats."""
        room = self.chats[old]
        room.migrated_to = new
        self.add_group(new, room.title)
        self.person_sends(chat_id=old, migrate_to_chat_id=new)
        self.person_sends(chat_id=new, migrate_from_chat_id=old)

    def delete_message(self, message_id: int, *, chat_id: int = 42) -> None:
        del self.chats[chat_id].messages[message_id]

    def queue_update(self, kind: str, body: Json) -> None:
        """Queue an update for the bot, if the bot asked for updates of that kind."""
        if kind in self.allowed_updates:
            frozen: Json = json.loads(json.dumps(body))  # a snapshot: a later edit is another update
            self.updates.append({"update_id": next(self._update_ids), kind: frozen})
            self.on_update()

    def on_update(self) -> None:
        """Called when an update is queued. A subclass overrides this, to wake a bot that is waiting for updates."""

    # --- what the bot has sent ---

    def list_bot_messages(self, chat_id: int = 42) -> list[Json]:
        """Return the bot's messages in a chat, oldest first."""
        return [each for each in self.chats[chat_id].messages.values() if each["from"]["id"] == self.me["id"]]

    def list_bot_texts(self, chat_id: int = 42) -> list[str]:
        return [str(each.get("text") or each.get("caption") or "") for each in self.list_bot_messages(chat_id)]

    # --- Bot API ---

    def get_updates(self, offset: int | None, limit: int) -> list[Json]:
        """Return unconfirmed updates. A call with an offset confirms all updates before that offset."""
        if offset is not None and offset < 0:
            offset = self.updates[offset]["update_id"] if len(self.updates) >= -offset else None
        if offset:
            self.updates = [each for each in self.updates if each["update_id"] >= offset]
        return self.updates[: max(1, min(limit, 100))]

    def call_method(self, method: str, arguments: Json, uploads: Mapping[str, UploadedFile]) -> Any:
        """Perform one call of the bot. Raises `FakeTelegramError` if Telegram would refuse it."""
        self.calls.append((method, arguments))
        if any(len(each.content) > UPLOAD_BYTES_MAX for each in uploads.values()):
            raise FakeTelegramError(413, "Request Entity Too Large")
        act = getattr(self, f"_do_{method.lower()}", None)
        if act is not None:
            return act(arguments)
        kind = method.removeprefix("send").lower()
        if method == "sendMediaGroup":
            return self._do_album(arguments, uploads)
        if method.startswith("send") and kind in MEDIA_KINDS:
            return self._add_message(arguments, self._build_content(kind, arguments, uploads))
        raise FakeTelegramError(404, "Not Found")

    def _do_getme(self, _: Json) -> Json:
        return self.me

    def _do_getwebhookinfo(self, _: Json) -> Json:
        return {"url": self.webhook, "has_custom_certificate": False, "pending_update_count": len(self.updates)}

    def _do_deletewebhook(self, _: Json) -> bool:
        self.webhook = ""
        return True

    def _do_setmycommands(self, arguments: Json) -> bool:
        named = arguments["commands"]
        if not 1 <= len(named) <= COMMANDS_MAX or not all(_COMMAND.fullmatch(each["command"]) for each in named):
            raise FakeTelegramError(400, "Bad Request: BOT_COMMAND_INVALID")
        if not all(1 <= len(each["description"]) <= COMMAND_DESCRIPTION_MAX for each in named):
            raise FakeTelegramError(400, "Bad Request: BOT_COMMAND_DESCRIPTION_INVALID")
        self.commands_by_scope[arguments.get("scope", {}).get("type", "default")] = named
        return True

    def _do_deletemycommands(self, arguments: Json) -> bool:
        self.commands_by_scope.pop(arguments.get("scope", {}).get("type", "default"), None)
        return True

    def _do_sendmessage(self, arguments: Json) -> Json:
        shown, entities = _parse_text(arguments, "text")
        if not shown.strip():
            raise FakeTelegramError(400, "Bad Request: message text is empty")
        if utf16_length(shown) > TEXT_MAX:
            raise FakeTelegramError(400, "Bad Request: message is too long")
        return self._add_message(arguments, {"text": shown} | ({"entities": entities} if entities else {}))

    def _do_editmessagetext(self, arguments: Json) -> Json:
        message = self._find_message(arguments, "edit")
        shown, entities = _parse_text(arguments, "text")
        if utf16_length(shown) > TEXT_MAX:
            raise FakeTelegramError(400, "Bad Request: message is too long")
        if message.get("text") == shown and message.get("entities", []) == entities:
            raise FakeTelegramError(
                400,
                "Bad Request: message is not modified: specified new message content and reply markup are exactly the "
                "same as a current content and reply markup of the message",
            )
        message |= {"text": shown, "edit_date": next(self._dates)} | ({"entities": entities} if entities else {})
        message.pop("reply_markup", None)  # an edit without a keyboard removes the keyboard
        return message

    def _do_deletemessage(self, arguments: Json) -> bool:
        message = self._find_message(arguments, "delete")
        self.delete_message(message["message_id"], chat_id=message["chat"]["id"])
        return True

    def _do_sendchataction(self, arguments: Json) -> bool:
        channel = self._find_chat(arguments)
        self.actions.append((channel.id, arguments.get("message_thread_id"), str(arguments["action"])))
        return True

    def _do_setmessagereaction(self, arguments: Json) -> bool:
        message = self._find_message(arguments, "react")
        wanted: list[Json] = arguments.get("reaction", [])
        signs = [str(each["emoji"]) for each in wanted]
        if not set(signs) <= REACTIONS:
            raise FakeTelegramError(400, "Bad Request: REACTION_INVALID")
        self.reactions[message["chat"]["id"], message["message_id"]] = signs
        return True

    def _do_answercallbackquery(self, arguments: Json) -> bool:
        press_id = str(arguments["callback_query_id"])
        if press_id not in self.press_answers:
            raise FakeTelegramError(
                400, "Bad Request: query is too old and response timeout expired or query ID is invalid"
            )
        self.press_answers[press_id] = str(arguments.get("text", ""))
        return True

    def _do_getfile(self, arguments: Json) -> Json:
        file_id = str(arguments["file_id"])
        if file_id not in self.files:
            raise FakeTelegramError(400, "Bad Request: wrong file_id or the file is temporarily unavailable")
        size = len(self.files[file_id].content)
        if size > DOWNLOAD_BYTES_MAX:
            raise FakeTelegramError(400, "Bad Request: file is too big")
        return {"file_id": file_id, "file_unique_id": file_id, "file_size": size, "file_path": f"files/{file_id}.bin"}

    def _do_album(self, arguments: Json, uploads: Mapping[str, UploadedFile]) -> list[Json]:
        media: list[Json] = arguments["media"]
        kinds = {str(each["type"]) for each in media}
        if not 2 <= len(media) <= ALBUM_MAX:
            raise FakeTelegramError(400, "Bad Request: media group must include from 2 to 10 items")
        if not any(kinds <= together for together in ({"photo", "video"}, {"audio"}, {"document"})):
            raise FakeTelegramError(400, "Bad Request: can't use the media of the specified type in the album")
        contents = [
            self._build_content(str(each["type"]), {**each, each["type"]: each["media"]}, uploads) for each in media
        ]
        album = f"album{next(self._ids)}"
        return [self._add_message(arguments, each | {"media_group_id": album}) for each in contents]

    def _build_content(self, kind: str, arguments: Json, uploads: Mapping[str, UploadedFile]) -> Json:
        name = str(arguments.get(kind, "")).removeprefix("attach://")
        if name not in uploads:
            raise FakeTelegramError(400, f"Bad Request: there is no {kind} in the request")
        upload = uploads[name]
        if not upload.content:
            raise FakeTelegramError(400, "Bad Request: file must be non-empty")
        if kind == "photo" and upload.content.startswith(b"TOO WIDE"):
            raise FakeTelegramError(400, "Bad Request: PHOTO_INVALID_DIMENSIONS")
        shown, entities = _parse_text(arguments, "caption")
        if utf16_length(shown) > CAPTION_MAX:
            raise FakeTelegramError(400, "Bad Request: message caption is too long")
        file = self._store_file(upload) | {"file_name": upload.name, "mime_type": upload.media_type}
        caption = {"caption": shown} if shown else {}
        return (
            {kind: [file] if kind == "photo" else file} | caption | ({"caption_entities": entities} if entities else {})
        )

    def _add_message(self, arguments: Json, content: Json) -> Json:
        channel = self._find_chat(arguments)
        message: Json = {
            "message_id": next(self._ids),
            "from": self.me,
            "chat": channel.chat,
            "date": next(self._dates),
        }
        parameters: Json = arguments.get("reply_parameters", {})
        quote = parameters.get("message_id")
        if quote is not None:
            if quote not in channel.messages:
                raise FakeTelegramError(400, "Bad Request: message to be replied not found")
            message["reply_to_message"] = channel.messages[quote]
        thread = arguments.get("message_thread_id")
        if thread is not None:
            if thread not in channel.topics:
                raise FakeTelegramError(400, "Bad Request: message thread not found")
            message |= {"message_thread_id": thread, "is_topic_message": True}
        if "reply_markup" in arguments:
            keys = [key for row in arguments["reply_markup"]["inline_keyboard"] for key in row]
            if any(not 0 < len(str(key["callback_data"]).encode()) <= BUTTON_BYTES_MAX for key in keys):
                raise FakeTelegramError(400, "Bad Request: BUTTON_DATA_INVALID")
            message["reply_markup"] = arguments["reply_markup"]
        message |= content
        channel.messages[message["message_id"]] = message
        return message

    def _find_chat(self, arguments: Json) -> FakeChat:
        room = self.chats.get(int(arguments["chat_id"]))
        if room is None:
            raise FakeTelegramError(400, "Bad Request: chat not found")
        if room.migrated_to is not None:
            raise FakeTelegramError(
                400, "Bad Request: group chat was upgraded to a supergroup chat", migrate_to_chat_id=room.migrated_to
            )
        if room.block_reason:
            raise FakeTelegramError(403, f"Forbidden: {room.block_reason}")
        return room

    def _find_message(self, arguments: Json, verb: str) -> Json:
        message = self._find_chat(arguments).messages.get(int(arguments["message_id"]))
        if message is None:
            raise FakeTelegramError(400, f"Bad Request: message to {verb} not found")
        return message

    def _store_file(self, file: UploadedFile) -> Json:
        file_id = f"file{next(self._ids)}"
        self.files[file_id] = file
        return {"file_id": file_id, "file_unique_id": file_id, "file_size": len(file.content)}


def _parse_text(arguments: Json, key: str) -> tuple[str, list[Json]]:
    text = str(arguments.get(key, ""))
    if arguments.get("parse_mode") != "HTML":
        return text, []
    try:
        return parse_html(text)
    except HtmlParseError as unparsed:
        raise FakeTelegramError(400, f"Bad Request: can't parse entities: {unparsed}") from None


def _mark_entities(key: str, text: str) -> Json:
    """Return the entities for the mentions and commands that Telegram marks automatically in this text."""
    found = [
        {"type": each.lastgroup, "offset": utf16_length(text[: each.start()]), "length": utf16_length(each[0])}
        for each in _AUTO_ENTITIES.finditer(text)
    ]
    return {key: found} if found else {}
