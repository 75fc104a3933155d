"""Builds one Bot API call from a delivery part, and chooses simpler options after a refusal.

One part is always one call. With two calls, the second could fail after the first had succeeded, and
a retry would send the first again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from retinue.connectors.base import Button, DeliveryPart
from retinue.connectors.telegram.bot_api import MIB, TelegramRefused, TelegramUpload
from retinue.connectors.telegram.telegram_html import escape_html, to_html
from retinue.domain.attachment import Attachment, safe_file_name

PHOTO_BYTES_MAX = 10 * MIB
ALBUM_MAX = 10
GENERAL_TOPIC = 1  # every forum has it, and Telegram rejects its id when something is sent there

_PHOTO, _VIDEO, _ANIMATION, _VOICE, _AUDIO, _DOCUMENT = "photo", "video", "animation", "voice", "audio", "document"
_MEDIA_KINDS: Mapping[str, str] = {
    "image/jpeg": _PHOTO,
    "image/png": _PHOTO,
    "image/webp": _PHOTO,
    "image/gif": _ANIMATION,
    "video/mp4": _VIDEO,
    "audio/ogg": _VOICE,
    "audio/mpeg": _AUDIO,
    "audio/mp4": _AUDIO,
    "audio/x-m4a": _AUDIO,
}
# the kinds that Telegram accepts in one album
_ALBUM_KINDS = (frozenset({_PHOTO, _VIDEO}), frozenset({_AUDIO}), frozenset({_DOCUMENT}))


class TelegramSendOptions(Struct, frozen=True, kw_only=True):
    """The options for sending a part, such as formatting. The first attempt uses the preferred options.

    After a refusal, `simplify_options` chooses simpler options.
    """

    chat: int
    topic: int | None = None
    quote: str = ""
    formatted: bool = True
    as_documents: bool = False
    previews: bool = False


class BotApiRequest(Struct, frozen=True, kw_only=True):
    method: str
    arguments: Mapping[str, Any]
    uploads: tuple[TelegramUpload, ...] = ()

    @property
    def is_album(self) -> bool:
        return self.method == "sendMediaGroup"


def build_request(
    part: DeliveryPart, options: TelegramSendOptions, get_attachment_path: Callable[[Attachment], Path]
) -> BotApiRequest:
    target = _build_target(options) | _build_keyboard(part.buttons)
    if not part.files:
        return BotApiRequest(method="sendMessage", arguments=target | build_text(part.text, options))
    kinds = _choose_media_kinds(part.files, options)
    uploads = tuple(_build_upload(n, file, get_attachment_path) for n, file in enumerate(part.files))
    caption = _build_caption(part.text, options)
    if len(part.files) == 1:
        [kind], [upload] = kinds, uploads
        arguments = target | caption | {kind: f"attach://{upload.field_name}"}
        return BotApiRequest(method=f"send{kind.capitalize()}", arguments=arguments, uploads=uploads)
    media = [{"type": kind, "media": f"attach://{each.field_name}"} for kind, each in zip(kinds, uploads, strict=True)]
    media[0] |= caption
    return BotApiRequest(method="sendMediaGroup", arguments=target | {"media": media}, uploads=uploads)


def build_text(text: str, options: TelegramSendOptions) -> dict[str, Any]:
    return {**_format_text("text", text, options), "link_preview_options": {"is_disabled": not options.previews}}


def build_preview(text: str, preview_id: str, options: TelegramSendOptions) -> BotApiRequest:
    if not preview_id:
        return BotApiRequest(method="sendMessage", arguments=_build_target(options) | build_text(text, options))
    target = {"chat_id": options.chat, "message_id": int(preview_id)}
    return BotApiRequest(method="editMessageText", arguments=target | build_text(text, options))


def simplify_options(refused: TelegramRefused, options: TelegramSendOptions) -> TelegramSendOptions | None:
    """Return the options for an immediate retry, or None if no options would help.

    Each simplification is applied at most once.
    """
    description = refused.description.casefold()
    if refused.migrated_to is not None and refused.migrated_to != options.chat:
        return replace(options, chat=refused.migrated_to, topic=None)
    if refused.status != 400:
        return None
    if options.formatted and any(
        each in description for each in ("can't parse entities", "is too long", "text is empty")
    ):
        return replace(options, formatted=False)
    if options.quote and "repl" in description and "not found" in description:
        return replace(options, quote="")
    if not options.as_documents and ("photo_" in description or "image_process" in description):
        return replace(options, as_documents=True)
    return None


def replace_lone_surrogates(text: str) -> str:
    """Replace lone surrogates in text, because a request cannot encode them."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _format_text(key: str, text: str, options: TelegramSendOptions) -> dict[str, Any]:
    text = replace_lone_surrogates(text)
    html = to_html(text) if options.formatted else ""
    if not html or html == escape_html(text):
        return {key: text}
    return {key: html, "parse_mode": "HTML"}


def _build_caption(text: str, options: TelegramSendOptions) -> dict[str, Any]:
    return _format_text("caption", text, options) if text.strip() else {}


def _build_target(options: TelegramSendOptions) -> dict[str, Any]:
    target: dict[str, Any] = {"chat_id": options.chat}
    if options.topic is not None and options.topic != GENERAL_TOPIC:
        target["message_thread_id"] = options.topic
    if options.quote:
        target["reply_parameters"] = {"message_id": int(options.quote)}
    return target


def _build_keyboard(rows: Sequence[Sequence[Button]]) -> dict[str, Any]:
    if not rows:
        return {}
    keys = [[{"text": replace_lone_surrogates(each.label), "callback_data": each.data} for each in row] for row in rows]
    return {"reply_markup": {"inline_keyboard": keys}}


def _choose_media_kinds(files: Sequence[Attachment], options: TelegramSendOptions) -> list[str]:
    """Return the media kind of each file.

    Files whose kinds cannot share an album are all sent as documents, which is always possible.
    """
    kinds = [_DOCUMENT if options.as_documents else _get_media_kind(each) for each in files]
    if len(files) == 1 or any(set(kinds) <= together for together in _ALBUM_KINDS):
        return kinds
    return [_DOCUMENT] * len(files)


def _get_media_kind(file: Attachment) -> str:
    kind = _MEDIA_KINDS.get(file.media_type.partition(";")[0].strip().casefold(), _DOCUMENT)
    return _DOCUMENT if kind == _PHOTO and file.size_bytes > PHOTO_BYTES_MAX else kind


def _build_upload(number: int, file: Attachment, get_attachment_path: Callable[[Attachment], Path]) -> TelegramUpload:
    return TelegramUpload(
        field_name=f"file{number}",
        path=get_attachment_path(file),
        name=safe_file_name(file.name),  # it is used in a header
        media_type=file.media_type,
        size_bytes=file.size_bytes,
    )
