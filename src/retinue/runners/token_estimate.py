"""Estimates the size of a context. Token counts from a provider are used as they are, and newer records are estimated.

The estimate is four characters per token for ASCII, and three bytes of UTF-8 per token for other
text. A Cyrillic character thus counts as two thirds of a token, and a Chinese character as one. An
image has a fixed size.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from msgspec import Struct

from retinue.domain.attachment import Attachment
from retinue.domain.record import (
    ContextStart,
    Note,
    Record,
    RecordKind,
    Reply,
    Summary,
    UserTurn,
    are_all_text,
    record_texts,
)
from retinue.domain.tool import Call, ToolResult, ToolSpec
from retinue.models.formats.message_parts import get_record_text
from retinue.models.usage_validation import is_counted
from retinue.runners.model_context import FLUSH_HEAD, leading_summary

CHARS_PER_TOKEN = 4
IMAGE_CHARS = 512
IMAGE_BYTES = 16_384  # for the cost limit, at two bytes per token: images are billed by their pixel size
FILE_CHARS = 128  # a file other than an image is one line about it
PDF = "application/pdf"  # except PDF, which some providers read page by page: see `_weight_of_attachment`
PDF_BYTES_MAX = 400_000
IMAGE_PLACEHOLDER = "<image>"
BASE64_CHARS_MIN = 64
RECORDS_PER_BATCH = 64  # records per batch

# Weights are in twelfths of a token, so that both rates are whole numbers and rounding errors do not add up.
_TWELFTHS = 12
_ASCII_TWELFTHS = _TWELFTHS // CHARS_PER_TOKEN
_OTHER_BYTE_TWELFTHS = _TWELFTHS // 3
_NOT_ASCII = bytes(range(128, 256))

# Data URLs, and the bare base64 of common formats. A long string alone is not an image.
_PNG, _JPEG, _GIF, _WEBP = "iVBORw0KGgo", "/9j/", "R0lGOD", "UklGR"
_INLINE_IMAGE = re.compile(
    r"data:image/[\w.+-]{1,40}(?:;[\w=.-]{1,40}){0,4};base64,[A-Za-z0-9+/_-]+={0,2}"
    rf"|(?:{_PNG}|{_JPEG}|{_GIF}|{_WEBP})[A-Za-z0-9+/]{{{BASE64_CHARS_MIN},}}={{0,2}}"
)


def replace_images(text: str) -> str:
    """Return the text with each inline image replaced by `<image>`."""
    return _INLINE_IMAGE.sub(IMAGE_PLACEHOLDER, text) if _may_contain_image(text) else text


def contains_image(text: str) -> bool:
    return _may_contain_image(text) and _INLINE_IMAGE.search(text) is not None


def _may_contain_image(text: str) -> bool:
    # Most text contains no image, and these checks are many times faster than the pattern. They are written out
    # because a loop would be slower. A character is found faster than a string, and each marker has a rare one.
    if len(text) <= BASE64_CHARS_MIN:
        return False
    if ";" in text and ";base64," in text:
        return True
    if "G" in text and (_PNG in text or _GIF in text or _WEBP in text):
        return True
    return "j" in text and _JPEG in text


def _is_plain_ascii(text: str) -> bool:
    """Whether text is ASCII without images, as most text is. Its bytes then need not be counted."""
    return text.isascii() and not _may_contain_image(text)


class TextWeight(NamedTuple):
    """The size that a text or a record adds to a context. `chars` counts toward the emergency limit."""

    twelfths: int = 0
    chars: int = 0
    size_bytes: int = 0

    def add(self, other: TextWeight) -> TextWeight:
        return TextWeight(self.twelfths + other.twelfths, self.chars + other.chars, self.size_bytes + other.size_bytes)

    @property
    def tokens(self) -> int:
        return _divide_rounding_up(self.twelfths, _TWELFTHS)


NO_WEIGHT = TextWeight()
CACHED_TOOL_WEIGHTS_MAX = 4_096
_TOOL_WEIGHTS: dict[int, tuple[ToolSpec, TextWeight]] = {}


def weight_of_text(text: str) -> TextWeight:
    images = 0
    plain = text
    if _may_contain_image(text):
        plain, images = _INLINE_IMAGE.subn("", text)
    elif text.isascii():
        length = len(text)
        return TextWeight(length * _ASCII_TWELFTHS, length, length)
    return TextWeight(
        _twelfths(plain) + images * IMAGE_CHARS * _ASCII_TWELFTHS,
        len(plain) + images * len(IMAGE_PLACEHOLDER),
        len(text.encode(errors="surrogatepass")),
    )


def _twelfths(text: str) -> int:
    if text.isascii():
        return len(text) * _ASCII_TWELFTHS
    encoded = text.encode(errors="surrogatepass")
    plain = len(encoded.translate(None, _NOT_ASCII))
    return plain * _ASCII_TWELFTHS + (len(encoded) - plain) * _OTHER_BYTE_TWELFTHS


def tokens_of_text(text: str) -> int:
    return weight_of_text(text).tokens


def weight_of_record(record: Record, *, result_chars_max: int | None = None) -> TextWeight:
    """Return how much a record adds to the size of a context.

    Only the first `result_chars_max` characters of a tool result are counted, because only these
    are sent to the model.
    """
    match record.body:
        case Reply() as reply:
            weight = weight_of_text(reply.text)
            if reply.thinking:
                # Some providers get it back, others do not. The emergency limit counts text only.
                weight = weight.add(weight_of_text(reply.thinking)._replace(chars=0))
            for call in reply.calls:
                weight = weight.add(_weight_of_call(call))
            if reply.pieces:
                weight = weight._replace(size_bytes=weight.size_bytes + sum(len(p.seal) for p in reply.pieces))
            return weight
        case ToolResult(output=output):
            weight = weight_of_text(output)
            if result_chars_max is not None and len(output) > result_chars_max:
                sent = weight_of_text(output[:result_chars_max])
                weight = weight._replace(twelfths=sent.twelfths, size_bytes=sent.size_bytes)
            return weight
        case UserTurn(text=text, attachments=attachments):
            weight = weight_of_text(text)
            for attachment in attachments:
                weight = weight.add(_weight_of_attachment(attachment))
            return weight
        case Note(text=text) | ContextStart(text=text) | Summary(text=text):
            return weight_of_text(text)


def _weight_of_call(call: Call) -> TextWeight:
    return weight_of_text(call.tool + compact_json(call.arguments))


def _weight_of_attachment(attachment: Attachment) -> TextWeight:
    if attachment.media_type.startswith("image/"):
        return TextWeight(IMAGE_CHARS * _ASCII_TWELFTHS, len(IMAGE_PLACEHOLDER), IMAGE_BYTES)
    if attachment.media_type == PDF:
        size_bytes = min(2 * attachment.size_bytes, PDF_BYTES_MAX)  # a page of few bytes is billed as a page
        return TextWeight(FILE_CHARS * _ASCII_TWELFTHS, FILE_CHARS, max(size_bytes, FILE_CHARS))
    return TextWeight(FILE_CHARS * _ASCII_TWELFTHS, FILE_CHARS, FILE_CHARS)


def weight_of_tools(tools: Sequence[ToolSpec]) -> TextWeight:
    weight = NO_WEIGHT
    for tool in tools:
        weight = weight.add(_weight_of_tool(tool))
    return weight


def _weight_of_tool(tool: ToolSpec) -> TextWeight:
    """Return the weight of a tool. It is cached, because many sessions have the same tools."""
    known = _TOOL_WEIGHTS.get(id(tool))
    if known is None or known[0] is not tool:
        if len(_TOOL_WEIGHTS) >= CACHED_TOOL_WEIGHTS_MAX:
            _TOOL_WEIGHTS.clear()
        weight = weight_of_text(tool.name + tool.description + compact_json(tool.parameters))
        known = _TOOL_WEIGHTS[id(tool)] = (tool, weight)
    return known[1]


def compact_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)


class ContextSize(Struct, frozen=True, kw_only=True):
    """The size of a context. It includes instructions and tools, unless the comment of a field says otherwise."""

    tokens: int
    records_tokens: int  # estimated tokens of the records only, by characters: compared with the emergency limit
    size_bytes: int
    base_tokens: int  # tokens of instructions and tools
    counted_tokens: int  # tokens counted by a provider; 0 if none
    new_bytes: int  # bytes of the records after the counted part
    is_flushed: bool  # a memory flush was requested since the newest summary
    counted_by: str = ""  # the model that counted; another one may count more
    base_growth_bytes: int = 0  # growth of instructions and tools since the count


class ContextMeter:
    """Measures one context as it grows. Each record is measured once, whatever the number of turns.

    A different or compacted context is measured from the start.
    """

    def __init__(self) -> None:
        self._result_chars_max: int | None = None
        self._base: tuple[str, Sequence[ToolSpec], TextWeight] = ("", (), NO_WEIGHT)
        self._restart(())

    def measure(
        self,
        records: Sequence[Record],
        *,
        instructions: str = "",
        tools: Sequence[ToolSpec] = (),
        result_chars_max: int | None = None,
    ) -> ContextSize:
        """Measure the records of an arranged context. At most `result_chars_max` characters of a result are counted."""
        if result_chars_max != self._result_chars_max or not self._continues_with(records):
            self._result_chars_max = result_chars_max
            self._restart(records)
        self._add_new(records)
        if records:
            self._first, self._last = records[0], records[-1]
        head = self._weight_of_base(instructions, tools)
        self._base_bytes = head.size_bytes
        return ContextSize(
            tokens=self._tokens(head),
            records_tokens=_divide_rounding_up(self._chars, CHARS_PER_TOKEN),
            size_bytes=head.size_bytes + self._bytes,
            base_tokens=head.tokens,
            counted_tokens=self._counted_tokens,
            new_bytes=self._bytes - self._counted_bytes,
            counted_by=self._counted_by,
            base_growth_bytes=max(head.size_bytes - self._counted_base_bytes, 0),
            is_flushed=self._is_flushed,
        )

    def _tokens(self, head: TextWeight) -> int:
        if self._counted_tokens:
            return self._counted_tokens + _divide_rounding_up(self._twelfths - self._counted_twelfths, _TWELFTHS)
        return _divide_rounding_up(head.twelfths + self._twelfths, _TWELFTHS)

    def _continues_with(self, records: Sequence[Record]) -> bool:
        if not self._count:
            return False
        count = self._count
        return len(records) >= count and records[0] is self._first and records[count - 1] is self._last

    def _restart(self, records: Sequence[Record]) -> None:
        summary = leading_summary(records)
        # Replies from before the summary counted a context that no longer exists.
        self._counted_after_seq = summary.seq if summary is not None else -1
        self._first: Record | None = None
        self._last: Record | None = None
        self._count = 0
        self._twelfths = self._chars = self._bytes = 0
        self._counted_tokens = self._counted_twelfths = self._counted_bytes = 0
        self._base_bytes = self._counted_base_bytes = 0  # as last measured; as measured for the counted part
        self._counted_by = ""
        self._is_flushed = False

    def _add_new(self, records: Sequence[Record]) -> None:
        """Add new records. If a provider has counted the tokens of a new reply, that count replaces the estimate.

        The count covers the reply and everything before it. Only the records after the last such
        reply are estimated.
        """
        first, self._count = self._count, len(records)
        known = next((at for at in range(len(records) - 1, first - 1, -1) if self._is_counted_reply(records[at])), None)
        if known is not None:
            reply = records[known].body
            assert isinstance(reply, Reply)
            self._add_records(records[first : known + 1])
            # Cached tokens are part of the input tokens, and are counted once.
            self._counted_tokens = reply.usage.input_tokens + reply.usage.output_tokens
            self._counted_twelfths, self._counted_bytes = self._twelfths, self._bytes
            # Measured with the answered request. If the base was not measured, as after a restart, all of it is new.
            self._counted_base_bytes = self._base_bytes
            self._counted_by = reply.model
            first = known + 1
        self._add_records(records[first:])

    def _is_counted_reply(self, record: Record) -> bool:
        if record.kind is not RecordKind.ASSISTANT:
            return False
        return isinstance(record.body, Reply) and record.seq > self._counted_after_seq and is_counted(record.body.usage)

    def _add_records(self, records: Sequence[Record]) -> None:
        for at in range(0, len(records), RECORDS_PER_BATCH):
            some = records[at : at + RECORDS_PER_BATCH]
            if are_all_text(some) and _is_plain_ascii(text := "".join(record_texts(some))):
                self._add_ascii(len(text))  # the same sums as below, faster
            else:
                self._add_each(some)

    def _add_ascii(self, chars: int) -> None:
        self._twelfths += chars * _ASCII_TWELFTHS
        self._chars += chars
        self._bytes += chars

    def _add_each(self, records: Sequence[Record]) -> None:
        bare = 0
        for record in records:
            text = get_record_text(record)
            if text and _is_plain_ascii(text):
                bare += len(text)
                continue
            twelfths, chars, size = weight_of_record(record, result_chars_max=self._result_chars_max)
            self._twelfths += twelfths
            self._chars += chars
            self._bytes += size
            body = record.body
            if isinstance(body, Note) and body.text.startswith(FLUSH_HEAD) and record.seq > self._counted_after_seq:
                self._is_flushed = True
        self._add_ascii(bare)

    def _weight_of_base(self, instructions: str, tools: Sequence[ToolSpec]) -> TextWeight:
        known, offered, weight = self._base
        if known != instructions or not (offered is tools or list(offered) == list(tools)):
            weight = weight_of_text(instructions).add(weight_of_tools(tools))
            self._base = (instructions, tools, weight)
        return weight


def estimate_tokens(records: Sequence[Record], *, instructions: str = "", tools: Sequence[ToolSpec] = ()) -> int:
    return ContextMeter().measure(records, instructions=instructions, tools=tools).tokens


def estimate_records_tokens(records: Sequence[Record]) -> int:
    """Return the number of characters of the records, divided by four. An image counts as the text `<image>`."""
    return ContextMeter().measure(records).records_tokens


def estimate_size_bytes(records: Sequence[Record], *, instructions: str = "", tools: Sequence[ToolSpec] = ()) -> int:
    """Estimate how many bytes a model call sends, for a cost limit. An image counts as `IMAGE_BYTES` bytes."""
    return ContextMeter().measure(records, instructions=instructions, tools=tools).size_bytes


def _divide_rounding_up(value: int, by: int) -> int:
    return -(-value // by)
