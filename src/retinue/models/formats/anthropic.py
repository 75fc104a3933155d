"""Wire format of Anthropic's Messages API.

A context is encoded as content blocks, and a reply is a stream of content blocks. Each record is
encoded once, as the blocks it adds to a message. Roles and cache breakpoints are added around those
bytes for each request.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any, cast

import msgspec

from retinue.config.models import ProviderQuirk
from retinue.domain.record import Record, RecordKind, Reply, ReplyPieceKind, StopReason, TextRecord, UserTurn
from retinue.domain.tool import Call, ToolResult, ToolSpec
from retinue.models.base import ModelPrompt
from retinue.models.encoded_context_cache import EncodedContextCache
from retinue.models.error_classification import ErrorBody
from retinue.models.formats.anthropic_reader import REDACTED_PREFIX, AnthropicReader
from retinue.models.formats.file_parts import PDF, build_file_parts
from retinue.models.formats.message_parts import ReplyPart, get_record_text, get_text_for_model, split_reply
from retinue.models.formats.role_alternation import (
    CONTINUE_TEXT,
    MARKED_TURNS_MAX,
    OPENING_TEXT,
    AlternatingTurns,
    RoleTemplates,
)
from retinue.models.formats.wire_formats import (
    PLAIN_IDS,
    RequestHeadCache,
    check_effort,
    encode_open_object,
    fit_call_id,
    fit_tool_name,
    merge_params,
)
from retinue.models.provider_http import ModelTarget, ProviderRequest
from retinue.models.request_repairs import OmittedParts, RepairScope, RequestRepair

API_VERSION = "2023-06-01"
OAUTH_TOKEN_PREFIX = "sk-ant-oat"  # an OAuth token of an account, not an API key: it is sent differently
OAUTH_BETA = "oauth-2025-04-20"
IMAGE_BYTES_MAX = 5 * 1024 * 1024 * 3 // 4  # 5 MiB of base64

THINKING_TOKENS: Mapping[str, int] = {"low": 2_048, "medium": 8_192, "high": 16_384, "xhigh": 32_768}
THINKING_TOKENS_MIN = 1_024  # the provider's minimum
ANSWER_TOKENS_MIN = 1_024  # what thinking must leave of `max_tokens`

EMPTY_RESULT = "[no output]"

# Newer models verify that nothing before their thinking has changed: instructions, tools, messages. A
# compaction changes them, and so does a new agent. Without the earlier thinking, such a request is
# accepted.
_THINKING_REFUSALS = (("thinking", "bound to a different"), ("prefix_mismatch_behavior",), ("signature", "thinking"))

_OWN_FIELDS = ("messages", "system", "tools")
_CACHE_CONTROL = b',"cache_control":{"type":"ephemeral"}}'
_encode = msgspec.json.encode


class AnthropicFormat:
    """Encodes requests for Anthropic, and for other providers with the same API."""

    def __init__(self, cache: EncodedContextCache) -> None:
        self._cache = cache
        self._head_cache = RequestHeadCache()

    def build_request(self, prompt: ModelPrompt, target: ModelTarget, key: str) -> ProviderRequest:
        until = target.omitted.thinking_until_seq
        form = ("anthropic", target.provider, target.facts.vision, prompt.media is not None, until)
        messages = self._encode_messages(prompt, target, form)
        tools = prompt.tools if target.facts.tools else ()
        also = cast("list[Any]", target.params.get("tools") or [])
        head = self._head_cache.get_or_encode(
            prompt.instructions, tools, lambda: _encode_head(prompt.instructions, tools, also), format_key=str(also)
        )
        plain = merge_params(
            _build_settings(prompt, target),
            target.params,
            output_tokens_max=prompt.output_tokens_max,
            without=_OWN_FIELDS,
        )
        body = [encode_open_object(plain), head, b',"messages":[', *messages, b"]}"]
        return ProviderRequest(f"{target.url.rstrip('/')}/messages", _build_headers(target, key), body)

    def make_reader(self, target: ModelTarget) -> AnthropicReader:
        return AnthropicReader(target.provider)

    def find_repair(self, error_body: ErrorBody, prompt: ModelPrompt, target: ModelTarget) -> RequestRepair | None:
        """Return a repair that omits the thinking of earlier replies, if the provider refused that thinking.

        None for other errors. None also if `params` in the settings has `thinking.block_binding`,
        the provider's own option for this case.
        """
        words = error_body.message.lower()
        if not any(all(part in words for part in parts) for parts in _THINKING_REFUSALS):
            return None
        thinking = target.params.get("thinking")
        if isinstance(thinking, dict) and "block_binding" in thinking:
            return None
        until = max((record.seq for record in prompt.records), default=0)
        if until <= target.omitted.thinking_until_seq:
            return None
        return RequestRepair(scope=RepairScope.SESSION, omitted=OmittedParts(thinking_until_seq=until))

    def _encode_messages(self, prompt: ModelPrompt, target: ModelTarget, format_key: Hashable) -> list[bytes]:
        """Encode messages with alternating roles, and with cache breakpoints on the last two user messages.

        The newer breakpoint of this request is the older one of the next request, which can then
        read the cache.
        """

        def encode(record: Record) -> bytes:
            return _encode_record(record, prompt, target)

        records = prompt.records
        woven = self._cache.join_records(prompt.session, records, encode, _MessageTurns, format_key=format_key)
        if woven.has_pause:  # whether content from before a pause is sent depends on what came after it
            woven = AlternatingTurns(_ROLE_TEMPLATES)
            woven.add(
                records,
                _close_pauses(
                    records, self._cache.encode_records(prompt.session, records, encode, format_key=format_key), target
                ),
            )
        out, ends = woven.close_turns(can_end_with_model=_ends_with_pause(records, target.provider))
        for at in ends[-MARKED_TURNS_MAX:]:
            out[at] = out[at][:-1] + _CACHE_CONTROL
        return out


def _build_headers(target: ModelTarget, key: str) -> dict[str, str]:
    plain = {"content-type": "application/json", "accept": "text/event-stream", "anthropic-version": API_VERSION}
    headers = {**plain, **target.headers}
    if key.startswith(OAUTH_TOKEN_PREFIX):
        headers["authorization"] = f"Bearer {key}"
        betas = headers.get("anthropic-beta")
        headers["anthropic-beta"] = f"{betas},{OAUTH_BETA}" if betas else OAUTH_BETA
    elif key:
        headers["x-api-key"] = key
    return headers


def _build_settings(prompt: ModelPrompt, target: ModelTarget) -> dict[str, Any]:
    settings: dict[str, Any] = {"model": target.model, "max_tokens": prompt.output_tokens_max, "stream": True}
    effort = check_effort(prompt.effort, target.facts)
    if effort is None or (effort == "none" and ProviderQuirk.ADAPTIVE not in target.quirks):
        return settings
    if effort == "none":
        settings["thinking"] = {"type": "disabled"}  # newer models think unless it is disabled
        return settings
    if ProviderQuirk.ADAPTIVE in target.quirks:
        # Newer models return no thinking unless a summary is requested.
        settings["thinking"] = {"type": "adaptive", "display": "summarized"}
        settings["output_config"] = {"effort": effort}
        return settings
    wanted = THINKING_TOKENS.get(effort, THINKING_TOKENS["high"])
    budget = min(wanted, prompt.output_tokens_max - ANSWER_TOKENS_MIN)
    if budget >= THINKING_TOKENS_MIN and _can_enable_thinking(prompt.records, target):
        settings["thinking"] = {"type": "enabled", "budget_tokens": budget}
    return settings


def _can_enable_thinking(records: Sequence[Record], target: ModelTarget) -> bool:
    """Whether thinking can be enabled for this request.

    If the last reply has tool calls, the provider requires that it begins with thinking. The reply
    may have no thinking that can be sent back: another provider made it, thinking was off, or its
    thinking is omitted. Then thinking stays off until there is a reply without calls.
    """
    last = next((record for record in reversed(records) if isinstance(record.body, Reply)), None)
    if last is None or not (reply := cast("Reply", last.body)).calls:
        return True
    first = next(iter(_iterate_sendable(reply, target, last.seq)), None)
    return first is not None and first.kind is ReplyPieceKind.THINKING


def _encode_head(instructions: str, tools: Sequence[ToolSpec], extra_tools: Sequence[Any]) -> bytes:
    """Encode the instructions and the tools: first the tools from the settings, then the agent's tools.

    The provider reads tools first, so a cache breakpoint on the instructions covers both.
    """
    offered = b",".join(_encode(tool) for tool in [*extra_tools, *map(_build_tool, tools)])
    system = _encode_text(instructions) if instructions.strip() else b""
    if system:
        system = b',"system":[' + system[:-1] + _CACHE_CONTROL + b"]"
    elif offered:
        offered = offered[:-1] + _CACHE_CONTROL
    return system + (b',"tools":[' + offered + b"]" if offered else b"")


def _build_tool(tool: ToolSpec) -> dict[str, Any]:
    schema = tool.parameters or {"type": "object", "properties": {}}
    return {"name": tool.name, "description": tool.description, "input_schema": schema}


# --- history ---


def _ends_with_pause(records: Sequence[Record], provider: str) -> bool:
    """Whether this provider paused the last reply. The provider continues the reply when it is sent back."""
    last = records[-1].body if records else None
    return isinstance(last, Reply) and last.stop is StopReason.PAUSED and last.provider == provider


def _is_pause(record: Record) -> bool:
    if type(record) is TextRecord:  # a plain record is never a pause, and reading its body would decode it
        return False
    return isinstance(record.body, Reply) and record.body.stop is StopReason.PAUSED


def _close_pauses(records: Sequence[Record], encoded: Sequence[bytes], target: ModelTarget) -> Sequence[bytes]:
    """Remove the provider's own tool uses from replies that the provider paused and never continued.

    Otherwise the provider would expect the results of these tool uses.
    """
    left = [
        number
        for number, record in enumerate(records[:-1])
        if _is_pause(record) and records[number + 1].kind is not RecordKind.ASSISTANT
    ]
    if not left:
        return encoded
    closed = list(encoded)
    for number in left:
        closed[number] = _encode_reply(cast("Reply", records[number].body), target, records[number].seq, closed=True)
    return closed


def _encode_record(record: Record, prompt: ModelPrompt, target: ModelTarget) -> bytes:
    """Encode the content blocks of a record, separated by commas. Empty if the record has no content."""
    if words := get_record_text(record):
        return _encode_text(words) if words.strip() else b""
    match record.body:
        case Reply() as reply:
            return _encode_reply(reply, target, record.seq)
        case ToolResult() as result:
            return _encode(_build_result(result))
        case UserTurn() as turn if turn.attachments:
            return b",".join(_encode(block) for block in _build_user_blocks(turn, prompt, target))
        case body:
            text = get_text_for_model(body)
            return _encode_text(text) if text and text.strip() else b""


def _encode_text(text: str) -> bytes:
    return b'{"type":"text","text":' + _encode(text) + b"}"


_ROLE_TEMPLATES = RoleTemplates(
    user=b'{"role":"user","content":[',
    model=b'{"role":"assistant","content":[',
    opening=_encode_text(OPENING_TEXT),
    continuation=_encode_text(CONTINUE_TEXT),
)


class _MessageTurns(AlternatingTurns):
    """Alternating turns of a session. `has_pause` is true if the provider paused one of the replies."""

    def __init__(self) -> None:
        super().__init__(_ROLE_TEMPLATES)
        self.has_pause = False

    def add(self, records: Sequence[Record], encoded: Sequence[bytes]) -> None:
        self.has_pause |= any(map(_is_pause, records))
        super().add(records, encoded)


def _build_result(result: ToolResult) -> dict[str, Any]:
    content = result.output if result.output.strip() else EMPTY_RESULT
    block: dict[str, Any] = {
        "type": "tool_result",
        "tool_use_id": fit_call_id(result.call, PLAIN_IDS),
        "content": content,
    }
    return {**block, "is_error": True} if result.failed else block


def _build_user_blocks(turn: UserTurn, prompt: ModelPrompt, target: ModelTarget) -> Iterator[dict[str, Any]]:
    """Yield the blocks of a user turn: files first, as the provider recommends, then the text."""
    lines: list[str] = [turn.text] if turn.text.strip() else []
    for file in build_file_parts(turn, prompt.media, target.facts, image_bytes_max=IMAGE_BYTES_MAX):
        if file.note:
            lines.append(file.note)
            continue
        source = {"type": "base64", "media_type": file.media_type, "data": file.base64}
        yield {"type": "document" if file.media_type == PDF else "image", "source": source}
    for line in lines:
        yield {"type": "text", "text": line}


def _encode_reply(reply: Reply, target: ModelTarget, seq: int, *, closed: bool = False) -> bytes:
    sendable = list(_iterate_sendable(reply, target, seq))
    if closed:
        sendable = _drop_open_tool_uses(sendable)
    return b",".join(_encode_part(part) for part in sendable)


def _iterate_sendable(reply: Reply, target: ModelTarget, seq: int) -> Iterator[ReplyPart]:
    """Yield the parts of a reply that can be sent back.

    The provider refuses blank text, and thinking that it has not signed.
    """
    without_thoughts = seq <= target.omitted.thinking_until_seq
    for part in split_reply(reply, provider=target.provider):
        match part.kind:
            case ReplyPieceKind.THINKING if without_thoughts or not part.signature or part.signature[0] in "[{":
                continue  # omitted, unsigned, or signed by the same provider in another format
            case ReplyPieceKind.TEXT if not part.text.strip():
                continue
            case _:
                yield part


def _encode_part(part: ReplyPart) -> bytes:
    match part.kind:
        case ReplyPieceKind.TEXT:
            return _encode_text(part.text)
        case ReplyPieceKind.THINKING if part.signature.startswith(REDACTED_PREFIX):
            return _encode({"type": "redacted_thinking", "data": part.signature.removeprefix(REDACTED_PREFIX)})
        case ReplyPieceKind.THINKING:
            return _encode({"type": "thinking", "thinking": part.text, "signature": part.signature})
        case ReplyPieceKind.CALL:
            call = cast("Call", part.call)
            id_, name = fit_call_id(call.id, PLAIN_IDS), fit_tool_name(call.tool)
            return _encode({"type": "tool_use", "id": id_, "name": name, "input": call.arguments})
        case ReplyPieceKind.SERVER:
            return part.signature.encode()


def _drop_open_tool_uses(sent: Sequence[ReplyPart]) -> list[ReplyPart]:
    blocks: list[dict[str, Any]] = [
        msgspec.json.decode(part.signature) if part.kind is ReplyPieceKind.SERVER else {} for part in sent
    ]
    ended = {block.get("tool_use_id") for block in blocks}
    return [
        part
        for part, block in zip(sent, blocks, strict=True)
        if not str(block.get("type", "")).endswith("_tool_use") or block.get("id") in ended
    ]
