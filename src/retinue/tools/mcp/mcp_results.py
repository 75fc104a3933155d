"""Converts results of MCP servers: text wrapped as untrusted content, and attachments."""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

from retinue.domain.attachment import Attachment
from retinue.domain.errors import RetinueError
from retinue.domain.storable_text import storable
from retinue.domain.tool import RESULT_CHARS_MAX
from retinue.domain.trust import Trust
from retinue.store.envelopes.attachment_files import Files
from retinue.text.untrusted_wrapper import WRAPPING_CHARS_MAX, harmless, wrap
from retinue.tools.base import Output

if TYPE_CHECKING:
    import mcp_types as types

TEXT_CHARS_MAX = RESULT_CHARS_MAX - WRAPPING_CHARS_MAX
"""The wrapped result must not be truncated: a wrapper without its end marker protects nothing."""
PARTS_MAX = 500
ATTACHMENTS_MAX = 8
ATTACHMENT_BYTES_MAX = 5 * 1024 * 1024
MEDIA_TYPES = {
    "image/png": "png",
    "image/jpeg": "jpg",
    "image/gif": "gif",
    "image/webp": "webp",
    "audio/wav": "wav",
    "audio/mpeg": "mp3",
}


class Of(Struct, frozen=True, kw_only=True):
    """The source of a result. `id` is the secret id of the untrusted content markers."""

    server: str
    tool: str
    id: str


class _Reading(Struct):
    """Collects the parts of a result."""

    files: Files | None
    texts: list[str] = field(default_factory=list[str])
    attachments: list[Attachment] = field(default_factory=list[Attachment])
    chars: int = 0

    def say(self, text: str) -> None:
        if self.chars <= TEXT_CHARS_MAX:  # the rest is cut in any case
            self.texts.append(text)
        self.chars += len(text) + 1

    async def attach(self, data: str, media_type: str) -> None:
        """Store an attachment of a type that models can read. The declared type is not verified."""
        kind = media_type.partition(";")[0].strip().lower()
        ending = MEDIA_TYPES.get(kind)
        if self.files is None or ending is None or len(self.attachments) >= ATTACHMENTS_MAX:
            self.say(f"[{kind[:60]}, about {len(data) * 3 // 4:,} bytes, not kept]")
            return
        if len(data) > ATTACHMENT_BYTES_MAX * 4 // 3 + 4:
            self.say(f"[{kind} of more than {ATTACHMENT_BYTES_MAX:,} bytes, not kept]")
            return
        try:
            content = base64.b64decode(data, validate=True)
            name = f"result-{len(self.attachments) + 1}.{ending}"
            kept = await asyncio.to_thread(self.files.keep, [content], name=name, media_type=kind)
        except (binascii.Error, ValueError):
            self.say(f"[{kind} that cannot be read]")
        except RetinueError as error:
            self.say(f"[{kind}, not kept: {error.because}]")
        else:
            self.attachments.append(kept)
            self.say(f"[attached: {kept.name}]")


async def read(result: types.CallToolResult, *, of: Of, files: Files | None) -> Output:
    reading = _Reading(files)
    for block in result.content[:PARTS_MAX]:
        match block.type:
            case "text":
                reading.say(block.text)
            case "image" | "audio":
                await reading.attach(block.data, block.mime_type)
            case "resource":
                await _resource(block.resource, reading)
            case "resource_link":
                reading.say(f"[resource: {block.uri[:2_000]}  {(block.description or block.name)[:500]}]")
    if len(result.content) > PARTS_MAX:
        reading.say(f"[{len(result.content) - PARTS_MAX} more parts]")
    if result.structured_content is not None and not _is_said(result.structured_content, reading.texts):
        reading.say(json.dumps(result.structured_content, ensure_ascii=False))
    return _wrapped(reading, of, failed=bool(result.is_error))


async def read_resource(
    contents: Sequence[types.TextResourceContents | types.BlobResourceContents],
    *,
    of: Of,
    files: Files | None,
) -> Output:
    reading = _Reading(files)
    for each in contents[:PARTS_MAX]:
        await _resource(each, reading)
    return _wrapped(reading, of)


def words(text: str, *, of: Of, failed: bool = False) -> Output:
    """Return a text of a server that is not a result, such as an error message."""
    reading = _Reading(None)
    reading.say(text)
    return _wrapped(reading, of, failed=failed)


async def _resource(resource: Any, reading: _Reading) -> None:
    text: str | None = getattr(resource, "text", None)
    if text is not None:
        reading.say(f"[{str(resource.uri)[:2_000]}]\n{text}")
    else:
        reading.say(f"[{str(resource.uri)[:2_000]}]")
        await reading.attach(resource.blob, resource.mime_type or "application/octet-stream")


def _is_said(structured: object, texts: Sequence[str]) -> bool:
    """Return whether a text already contains the structured content, as most servers send both."""
    for text in texts:
        try:
            if json.loads(text) == structured:
                return True
        except (ValueError, RecursionError):
            continue
    return False


def _wrapped(reading: _Reading, of: Of, *, failed: bool = False) -> Output:
    # Neutralize forged markers before cutting: the replacement may be longer than the marker.
    text = harmless(storable("\n".join(reading.texts))[:TEXT_CHARS_MAX], id=of.id)
    cut = reading.chars - 1 > TEXT_CHARS_MAX
    source = {
        "from": "MCP server",
        "server": of.server,
        "tool": of.tool,
        "note": f"cut: {reading.chars - TEXT_CHARS_MAX} more characters" if cut else "",
    }
    return Output(
        text=wrap(text[:TEXT_CHARS_MAX], id=of.id, source=source),
        trust=Trust.UNTRUSTED,
        attachments=tuple(reading.attachments),
        failed=failed,
    )
