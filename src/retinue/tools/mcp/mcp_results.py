"""Converts results from MCP servers: text wrapped as untrusted content, and attachments."""

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
from retinue.domain.storable_text import make_storable
from retinue.domain.tool import RESULT_CHARS_MAX
from retinue.domain.trust import Trust
from retinue.store.envelopes.attachment_files import AttachmentFiles
from retinue.text.quantity import format_quantity
from retinue.text.untrusted_wrapper import WRAPPING_CHARS_MAX, remove_markers, wrap_untrusted
from retinue.tools.base import ToolOutput

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


class ResultSource(Struct, frozen=True, kw_only=True):
    """The MCP server and tool that a result came from. `id` is the secret id of the untrusted content markers."""

    server: str
    tool: str
    id: str


class _ResultBuilder(Struct):
    """Collects the parts of a result from an MCP server."""

    files: AttachmentFiles | None
    texts: list[str] = field(default_factory=list[str])
    attachments: list[Attachment] = field(default_factory=list[Attachment])
    chars: int = 0

    def add_text(self, text: str) -> None:
        if self.chars <= TEXT_CHARS_MAX:  # the rest is cut in any case
            self.texts.append(text)
        self.chars += len(text) + 1

    async def add_attachment(self, data: str, media_type: str) -> None:
        """Store an attachment if models can read its type. Otherwise add a line of text about it.

        The declared type is not verified.
        """
        kind = media_type.partition(";")[0].strip().lower()
        ending = MEDIA_TYPES.get(kind)
        if self.files is None or ending is None or len(self.attachments) >= ATTACHMENTS_MAX:
            self.add_text(f"[{kind[:60]}, about {len(data) * 3 // 4:,} bytes, not stored]")
            return
        if len(data) > ATTACHMENT_BYTES_MAX * 4 // 3 + 4:
            self.add_text(f"[{kind} of more than {ATTACHMENT_BYTES_MAX:,} bytes, not stored]")
            return
        try:
            content = base64.b64decode(data, validate=True)
            name = f"result-{len(self.attachments) + 1}.{ending}"
            kept = await asyncio.to_thread(self.files.store, [content], name=name, media_type=kind)
        except (binascii.Error, ValueError):
            self.add_text(f"[{kind}, not stored: it is not valid base64]")
        except RetinueError as error:
            self.add_text(f"[{kind}, not stored: {error.because}]")
        else:
            self.attachments.append(kept)
            self.add_text(f"[attached: {kept.name}]")


async def convert_result(
    result: types.CallToolResult, *, source: ResultSource, files: AttachmentFiles | None
) -> ToolOutput:
    reading = _ResultBuilder(files)
    for block in result.content[:PARTS_MAX]:
        match block.type:
            case "text":
                reading.add_text(block.text)
            case "image" | "audio":
                await reading.add_attachment(block.data, block.mime_type)
            case "resource":
                await _add_resource(block.resource, reading)
            case "resource_link":
                reading.add_text(f"[resource: {block.uri[:2_000]}  {(block.description or block.name)[:500]}]")
    if len(result.content) > PARTS_MAX:
        reading.add_text(f"[{format_quantity(len(result.content) - PARTS_MAX, 'more part')}]")
    if result.structured_content is not None and not _is_repeated(result.structured_content, reading.texts):
        reading.add_text(json.dumps(result.structured_content, ensure_ascii=False))
    return _wrap_output(reading, source, failed=bool(result.is_error))


async def convert_resource(
    contents: Sequence[types.TextResourceContents | types.BlobResourceContents],
    *,
    source: ResultSource,
    files: AttachmentFiles | None,
) -> ToolOutput:
    reading = _ResultBuilder(files)
    for each in contents[:PARTS_MAX]:
        await _add_resource(each, reading)
    return _wrap_output(reading, source)


def build_text_output(text: str, *, source: ResultSource, failed: bool = False) -> ToolOutput:
    """Return the tool output for a server's text that is not a result, such as an error message."""
    reading = _ResultBuilder(None)
    reading.add_text(text)
    return _wrap_output(reading, source, failed=failed)


async def _add_resource(resource: Any, builder: _ResultBuilder) -> None:
    text: str | None = getattr(resource, "text", None)
    if text is not None:
        builder.add_text(f"[{str(resource.uri)[:2_000]}]\n{text}")
    else:
        builder.add_text(f"[{str(resource.uri)[:2_000]}]")
        await builder.add_attachment(resource.blob, resource.mime_type or "application/octet-stream")


def _is_repeated(structured: object, texts: Sequence[str]) -> bool:
    """Return whether a text already contains the structured content. Most servers send the same content twice."""
    for text in texts:
        try:
            if json.loads(text) == structured:
                return True
        except (ValueError, RecursionError):
            continue
    return False


def _wrap_output(builder: _ResultBuilder, result_source: ResultSource, *, failed: bool = False) -> ToolOutput:
    # Neutralize forged markers before cutting: the replacement may be longer than the marker.
    text = remove_markers(make_storable("\n".join(builder.texts))[:TEXT_CHARS_MAX], id=result_source.id)
    cut = builder.chars - 1 > TEXT_CHARS_MAX
    source = {
        "from": "MCP server",
        "server": result_source.server,
        "tool": result_source.tool,
        "note": f"truncated: {builder.chars - TEXT_CHARS_MAX} more characters" if cut else "",
    }
    return ToolOutput(
        text=wrap_untrusted(text[:TEXT_CHARS_MAX], id=result_source.id, source=source),
        trust=Trust.UNTRUSTED,
        attachments=tuple(builder.attachments),
        failed=failed,
    )
