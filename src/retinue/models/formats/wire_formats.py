"""Creates the wire formats by name, and has the functions that they share for building request bodies."""

from __future__ import annotations

import base64
import hashlib
import re
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, assert_never, cast

import msgspec

from retinue.config.models import WireFormat
from retinue.domain.attachment import Attachment
from retinue.domain.model import ModelFacts
from retinue.domain.tool import ToolSpec
from retinue.models.base import AttachmentReader
from retinue.models.encoded_context_cache import EncodedContextCache
from retinue.models.errors import EffortUnsupported
from retinue.models.provider_http import ProviderFormat
from retinue.models.tool_call_limits import UNPARSED

HEADS_MAX = 64
IMAGE_BYTES_MAX = 20 * 1024 * 1024
IMAGE_TYPES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})


def make_provider_format(format_: WireFormat, cache: EncodedContextCache) -> ProviderFormat:
    """Create the encoder of a format. Contexts are cached as bytes in `cache`, which all formats may share."""
    match format_:
        case WireFormat.OPENAI_CHAT:
            from retinue.models.formats.openai_chat import OpenAIChatFormat

            return OpenAIChatFormat(cache)
        case WireFormat.OPENAI_RESPONSES:
            from retinue.models.formats.openai_responses import OpenAIResponsesFormat

            return OpenAIResponsesFormat(cache)
        case WireFormat.ANTHROPIC:
            from retinue.models.formats.anthropic import AnthropicFormat

            return AnthropicFormat(cache)
        case WireFormat.GOOGLE:
            from retinue.models.formats.google import GoogleFormat

            return GoogleFormat(cache)
    assert_never(format_)


class RequestHeadCache:
    """Cache of encoded request heads. A head is the part of a request with the instructions and tools.

    A few entries suffice, because there are few agents and their instructions rarely change.
    """

    def __init__(self, heads_max: int = HEADS_MAX) -> None:
        self._heads_max = heads_max
        self._entries: OrderedDict[tuple[Hashable, str], tuple[list[ToolSpec], bytes]] = OrderedDict()

    def get_or_encode(
        self,
        instructions: str,
        tools: Sequence[ToolSpec],
        encode: Callable[[], bytes],
        *,
        format_key: Hashable = "",
    ) -> bytes:
        key = (format_key, instructions)
        offered = list(tools)
        kept = self._entries.pop(key, None)
        if kept is None or kept[0] != offered:
            kept = (offered, encode())
        self._entries[key] = kept
        if len(self._entries) > self._heads_max:
            self._entries.popitem(last=False)
        return kept[1]


def build_list_items(encoded: Iterable[bytes], *, first: bool) -> list[bytes]:
    """Return encoded records as the items of a JSON list, without its brackets.

    Each record begins with a comma or is empty. With `first`, the comma of the first record is removed.
    """
    items = [wire for wire in encoded if wire]
    if first and items:
        items[0] = items[0][1:]
    return items


# The budget is reserved for this model, for one reply and for at most the granted output. Settings
# cannot change the first two, and can only lower the third.
BUDGETED_PARAMS = frozenset({"model", "n", "best_of", "candidateCount"})
OUTPUT_LIMIT_PARAMS = frozenset({"max_tokens", "max_completion_tokens", "max_output_tokens", "maxOutputTokens"})


def merge_params(
    ours: Mapping[str, Any], params: Mapping[str, Any], *, output_tokens_max: int, without: Sequence[str] = ()
) -> dict[str, Any]:
    """Merge the settings' parameters into the fields of a request body.

    The settings win, except for the fields on which the budget depends.
    """
    extra = {name: value for name, value in params.items() if name not in without and name not in BUDGETED_PARAMS}
    for name in OUTPUT_LIMIT_PARAMS & extra.keys():
        extra[name] = min(extra[name], output_tokens_max) if isinstance(extra[name], int) else output_tokens_max
    return {**ours, **extra}


def encode_open_object(plain: Mapping[str, Any]) -> bytes:
    """Encode a JSON object without its closing brace, so that more fields can be added."""
    return msgspec.json.encode(plain)[:-1]


class CallIdRule(NamedTuple):
    """The format of tool call ids that a provider accepts."""

    pattern: re.Pattern[str]
    length: int  # of a replacement id


PLAIN_IDS = CallIdRule(re.compile(r"[A-Za-z0-9_-]{1,40}"), 32)


def fit_call_id(id_: str, rule: CallIdRule) -> str:
    """Return the id if the provider accepts it, else a replacement, which is the same for a call and its result."""
    if rule.pattern.fullmatch(id_):
        return id_
    return hashlib.sha256(id_.encode(errors="surrogatepass")).hexdigest()[: rule.length]


NAME_CHARS_MAX = 64
UNNAMED_TOOL = "unnamed"
_TOOL_NAME = re.compile(rf"[A-Za-z0-9_-]{{1,{NAME_CHARS_MAX}}}")
_INVALID_NAME_CHARS = re.compile(r"[^A-Za-z0-9_-]")


def fit_tool_name(tool: str) -> str:
    """Return a tool's name in a form that every provider accepts.

    Models sometimes call tools that do not exist, by names that a provider refuses. One such call
    must not block a session.
    """
    if _TOOL_NAME.fullmatch(tool):
        return tool
    return _INVALID_NAME_CHARS.sub("_", tool[:NAME_CHARS_MAX]) or UNNAMED_TOOL


def decode_json_or_none(data: bytes) -> Any:
    """Decode any JSON. Returns None if it is invalid."""
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None


def parse_arguments(text: str) -> dict[str, Any]:
    """Parse the arguments of a call.

    Unreadable arguments are kept under a name that no tool uses. The result of the call then
    explains the error.
    """
    if not text.strip():
        return {}
    try:
        found = msgspec.json.decode(text.encode(errors="surrogatepass"))
        if isinstance(found, str) and found.lstrip().startswith("{"):
            found = msgspec.json.decode(found)  # some servers encode JSON twice
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return {UNPARSED: text}
    if found is None:
        return {}
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {UNPARSED: text}


class AttachmentPart(NamedTuple):
    """An attachment as a model gets it: an image in base64, or a line of text about it."""

    media_type: str
    base64: str
    note: str


def build_attachment_parts(
    attachments: Sequence[Attachment], media: AttachmentReader | None, facts: ModelFacts, text: str
) -> Iterator[AttachmentPart]:
    """Yield the attachments of a turn whose text is `text`.

    A file other than an image is skipped if the text already contains its hash.
    """
    for attachment in attachments:
        is_image = attachment.media_type.startswith("image/")
        if not is_image:
            if attachment.hash not in text:
                yield AttachmentPart("", "", f"[attached: {_describe_attachment(attachment)}]")
            continue
        if not facts.vision:
            yield AttachmentPart("", "", f"[attached: {_describe_attachment(attachment)}; you cannot see images]")
        elif attachment.media_type not in IMAGE_TYPES or attachment.size_bytes > IMAGE_BYTES_MAX:
            yield AttachmentPart("", "", f"[attached: {_describe_attachment(attachment)}; it cannot be shown to you]")
        elif (data := media.read(attachment) if media is not None else None) is None:
            yield AttachmentPart("", "", f"[attached: {_describe_attachment(attachment)}; it is no longer kept]")
        else:
            yield AttachmentPart(attachment.media_type, base64.b64encode(data).decode(), "")


def _describe_attachment(attachment: Attachment) -> str:
    return f"{attachment.name}, {attachment.media_type}, {attachment.size_bytes} bytes"


def check_effort(effort: str | None, facts: ModelFacts) -> str | None:
    """Return the reasoning effort to request.

    Raises, before anything is sent, if the model is known not to support it.
    """
    if effort is None or facts.efforts is None or effort in facts.efforts:
        return effort
    if effort == "none" and not facts.efforts:
        return None  # it does not think at all
    raise EffortUnsupported(facts.ref, effort, supported=facts.efforts)
