"""Builds one Bot API call from a delivery part, and chooses simpler options after a refusal. Pure:
the connector performs the calls.

One part is always one call. With two calls the second could fail after the first had arrived, and a
retry would duplicate the first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from retinue.connectors.base import Button, Parcel
from retinue.connectors.telegram.bot_api import MIB, Refused, Upload
from retinue.connectors.telegram.telegram_html import escaped, to_html
from retinue.domain.attachment import Attachment, safe_name

PHOTO_BYTES_MAX = 10 * MIB
ALBUM_MAX = 10
GENERAL_TOPIC = 1  # every forum has it, and Telegram rejects its id when something is sent there

_PHOTO, _VIDEO, _ANIMATION, _VOICE, _AUDIO, _DOCUMENT = "photo", "video", "animation", "voice", "audio", "document"
_KINDS: Mapping[str, str] = {
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
_ALBUMS = (frozenset({_PHOTO, _VIDEO}), frozenset({_AUDIO}), frozenset({_DOCUMENT}))


class Manner(Struct, frozen=True, kw_only=True):
    """How a part is sent: first the best way, and a simpler one after each refusal that calls for
    it."""

    chat: int
    topic: int | None = None
    quote: str = ""
    formatted: bool = True
    as_documents: bool = False
    previews: bool = False


class Request(Struct, frozen=True, kw_only=True):
    method: str
    arguments: Mapping[str, Any]
    uploads: tuple[Upload, ...] = ()

    @property
    def is_album(self) -> bool:
        return self.method == "sendMediaGroup"


def request_for(parcel: Parcel, manner: Manner, path_of: Callable[[Attachment], Path]) -> Request:
    target = _target(manner) | _keyboard(parcel.buttons)
    if not parcel.files:
        return Request(method="sendMessage", arguments=target | words(parcel.text, manner))
    kinds = _kinds(parcel.files, manner)
    uploads = tuple(_upload(n, file, path_of) for n, file in enumerate(parcel.files))
    caption = _caption(parcel.text, manner)
    if len(parcel.files) == 1:
        [kind], [upload] = kinds, uploads
        arguments = target | caption | {kind: f"attach://{upload.part}"}
        return Request(method=f"send{kind.capitalize()}", arguments=arguments, uploads=uploads)
    media = [{"type": kind, "media": f"attach://{each.part}"} for kind, each in zip(kinds, uploads, strict=True)]
    media[0] |= caption
    return Request(method="sendMediaGroup", arguments=target | {"media": media}, uploads=uploads)


def words(text: str, manner: Manner) -> dict[str, Any]:
    return {**_marked("text", text, manner), "link_preview_options": {"is_disabled": not manner.previews}}


def preview_for(text: str, shown: str, manner: Manner) -> Request:
    if not shown:
        return Request(method="sendMessage", arguments=_target(manner) | words(text, manner))
    target = {"chat_id": manner.chat, "message_id": int(shown)}
    return Request(method="editMessageText", arguments=target | words(text, manner))


def plainer(refused: Refused, manner: Manner) -> Manner | None:
    """The options for an immediate retry, or None if none would help. Each simplification is
    applied at most once."""
    said = refused.description.casefold()
    if refused.migrated_to is not None and refused.migrated_to != manner.chat:
        return replace(manner, chat=refused.migrated_to, topic=None)
    if refused.status != 400:
        return None
    if manner.formatted and any(each in said for each in ("can't parse entities", "is too long", "text is empty")):
        return replace(manner, formatted=False)
    if manner.quote and "repl" in said and "not found" in said:
        return replace(manner, quote="")
    if not manner.as_documents and ("photo_" in said or "image_process" in said):
        return replace(manner, as_documents=True)
    return None


def storable(text: str) -> str:
    """Replace lone surrogates, which no call could encode."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _marked(key: str, text: str, manner: Manner) -> dict[str, Any]:
    text = storable(text)
    html = to_html(text) if manner.formatted else ""
    if not html or html == escaped(text):
        return {key: text}
    return {key: html, "parse_mode": "HTML"}


def _caption(text: str, manner: Manner) -> dict[str, Any]:
    return _marked("caption", text, manner) if text.strip() else {}


def _target(manner: Manner) -> dict[str, Any]:
    target: dict[str, Any] = {"chat_id": manner.chat}
    if manner.topic is not None and manner.topic != GENERAL_TOPIC:
        target["message_thread_id"] = manner.topic
    if manner.quote:
        target["reply_parameters"] = {"message_id": int(manner.quote)}
    return target


def _keyboard(rows: Sequence[Sequence[Button]]) -> dict[str, Any]:
    if not rows:
        return {}
    keys = [[{"text": storable(each.label), "callback_data": each.data} for each in row] for row in rows]
    return {"reply_markup": {"inline_keyboard": keys}}


def _kinds(files: Sequence[Attachment], manner: Manner) -> list[str]:
    """The media kind of each file. Kinds that cannot share an album are all sent as documents,
    which is always possible."""
    kinds = [_DOCUMENT if manner.as_documents else _kind(each) for each in files]
    if len(files) == 1 or any(set(kinds) <= together for together in _ALBUMS):
        return kinds
    return [_DOCUMENT] * len(files)


def _kind(file: Attachment) -> str:
    kind = _KINDS.get(file.media_type.partition(";")[0].strip().casefold(), _DOCUMENT)
    return _DOCUMENT if kind == _PHOTO and file.size_bytes > PHOTO_BYTES_MAX else kind


def _upload(number: int, file: Attachment, path_of: Callable[[Attachment], Path]) -> Upload:
    return Upload(
        part=f"file{number}",
        path=path_of(file),
        name=safe_name(file.name),  # it is used in a header
        media_type=file.media_type,
        size_bytes=file.size_bytes,
    )
