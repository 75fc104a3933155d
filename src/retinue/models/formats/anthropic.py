"""Wire format of Anthropic's Messages API: contexts as content blocks, replies as a stream of blocks.

Each record is encoded once, as the blocks it adds to a message. Roles and cache breakpoints are put
around those bytes anew for each request.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any, cast

import msgspec

from retinue.config.models import Quirk
from retinue.domain.record import PieceKind, Plain, Record, RecordKind, Reply, Stop, UserTurn
from retinue.domain.tool import Call, ToolResult, ToolSpec
from retinue.models.base import Prompt, WireCache
from retinue.models.error_classification import Said
from retinue.models.formats.anthropic_reader import REDACTED, AnthropicReader
from retinue.models.formats.file_parts import PDF, files
from retinue.models.formats.message_parts import Part, parts, said_plainly, said_to_model
from retinue.models.formats.role_alternation import GO_ON, MARKED_MAX, OPENING, Sides, Turns
from retinue.models.formats.wire_formats import PLAIN_IDS, Heads, effort_of, fitting, merged, named, opened
from retinue.models.provider_http import Request, Target
from retinue.models.request_repairs import Omitted, Repair, Scope

VERSION = "2023-06-01"
TOKEN_BEGINS = "sk-ant-oat"  # an OAuth token of an account, not an API key: it is sent differently
TOKEN_BETA = "oauth-2025-04-20"
IMAGE_BYTES_MAX = 5 * 1024 * 1024 * 3 // 4  # 5 MiB of base64

THINKING_TOKENS: Mapping[str, int] = {"low": 2_048, "medium": 8_192, "high": 16_384, "xhigh": 32_768}
THINKING_TOKENS_MIN = 1_024  # the provider's minimum
ANSWER_TOKENS_MIN = 1_024  # what thinking must leave of `max_tokens`

EMPTY_RESULT = "[no output]"

# Newer models verify that nothing before their thinking has changed: instructions, tools, messages. A
# compaction changes them, and so does a new agent. Without the earlier thinking, such a request is
# accepted.
_THOUGHTS_REFUSED = (("thinking", "bound to a different"), ("prefix_mismatch_behavior",), ("signature", "thinking"))

_OURS = ("messages", "system", "tools")
_CACHED = b',"cache_control":{"type":"ephemeral"}}'
_encode = msgspec.json.encode


class AnthropicWire:
    """Encodes for Anthropic, and for every provider with the same API."""

    def __init__(self, cache: WireCache) -> None:
        self._cache = cache
        self._heads = Heads()

    def request(self, prompt: Prompt, target: Target, key: str) -> Request:
        until = target.omitted.thoughts_until
        form = ("anthropic", target.provider, target.facts.vision, prompt.media is not None, until)
        messages = self._messages(prompt, target, form)
        tools = prompt.tools if target.facts.tools else ()
        also = cast("list[Any]", target.params.get("tools") or [])
        head = self._heads.of(
            prompt.instructions, tools, lambda: _head(prompt.instructions, tools, also), form=str(also)
        )
        plain = merged(_plain(prompt, target), target.params, granted=prompt.output_tokens_max, without=_OURS)
        body = [opened(plain), head, b',"messages":[', *messages, b"]}"]
        return Request(f"{target.url.rstrip('/')}/messages", _headers(target, key), body)

    def reader(self, target: Target) -> AnthropicReader:
        return AnthropicReader(target.provider)

    def repair(self, said: Said, prompt: Prompt, target: Target) -> Repair | None:
        """Omit the thinking so far. If `params` sets how a mismatch is handled, its refusal is reported instead."""
        words = said.message.lower()
        if not any(all(part in words for part in parts) for parts in _THOUGHTS_REFUSED):
            return None
        thinking = target.params.get("thinking")
        if isinstance(thinking, dict) and "block_binding" in thinking:
            return None
        until = max((record.seq for record in prompt.records), default=0)
        if until <= target.omitted.thoughts_until:
            return None
        return Repair(scope=Scope.SESSION, omitted=Omitted(thoughts_until=until))

    def _messages(self, prompt: Prompt, target: Target, form: Hashable) -> list[bytes]:
        """Encode messages with alternating roles, and cache breakpoints on the last two of the user.

        The next request finds the older breakpoint where this request has its newer one.
        """

        def encode(record: Record) -> bytes:
            return _blocks(record, prompt, target)

        records = prompt.records
        woven = self._cache.woven(prompt.session, records, encode, _Woven, form=form)
        if woven.paused:  # whether content from before a pause is sent depends on what came after it
            woven = Turns(_SIDES)
            woven.add(records, _closed(records, self._cache.of(prompt.session, records, encode, form=form), target))
        out, ends = woven.told(may_end_with_model=_paused(records, target.provider))
        for at in ends[-MARKED_MAX:]:
            out[at] = out[at][:-1] + _CACHED
        return out


def _headers(target: Target, key: str) -> dict[str, str]:
    plain = {"content-type": "application/json", "accept": "text/event-stream", "anthropic-version": VERSION}
    headers = {**plain, **target.headers}
    if key.startswith(TOKEN_BEGINS):
        headers["authorization"] = f"Bearer {key}"
        betas = headers.get("anthropic-beta")
        headers["anthropic-beta"] = f"{betas},{TOKEN_BETA}" if betas else TOKEN_BETA
    elif key:
        headers["x-api-key"] = key
    return headers


def _plain(prompt: Prompt, target: Target) -> dict[str, Any]:
    settings: dict[str, Any] = {"model": target.model, "max_tokens": prompt.output_tokens_max, "stream": True}
    effort = effort_of(prompt.effort, target.facts)
    if effort is None or (effort == "none" and Quirk.ADAPTIVE not in target.quirks):
        return settings
    if effort == "none":
        settings["thinking"] = {"type": "disabled"}  # newer models think unless it is disabled
        return settings
    if Quirk.ADAPTIVE in target.quirks:
        # Newer models return no thinking unless a summary is requested.
        settings["thinking"] = {"type": "adaptive", "display": "summarized"}
        settings["output_config"] = {"effort": effort}
        return settings
    wanted = THINKING_TOKENS.get(effort, THINKING_TOKENS["high"])
    budget = min(wanted, prompt.output_tokens_max - ANSWER_TOKENS_MIN)
    if budget >= THINKING_TOKENS_MIN and _may_think(prompt.records, target):
        settings["thinking"] = {"type": "enabled", "budget_tokens": budget}
    return settings


def _may_think(records: Sequence[Record], target: Target) -> bool:
    """Whether thinking can be enabled.

    Between a call and its result it cannot: the reply with the call must begin with thinking.

    A reply of another provider, or from before thinking was enabled, does not. Neither does one
    whose thinking is omitted. The next turn can think again.
    """
    last = next((record for record in reversed(records) if isinstance(record.body, Reply)), None)
    if last is None or not (reply := cast("Reply", last.body)).calls:
        return True
    first = next(iter(_sendable(reply, target, last.seq)), None)
    return first is not None and first.kind is PieceKind.THINKING


def _head(instructions: str, tools: Sequence[ToolSpec], also: Sequence[Any]) -> bytes:
    """Encode the instructions, and the tools after those from the settings.

    The provider reads tools first, so the cache breakpoint on the instructions covers both.
    """
    offered = b",".join(_encode(tool) for tool in [*also, *map(_tool, tools)])
    system = _text(instructions) if instructions.strip() else b""
    if system:
        system = b',"system":[' + system[:-1] + _CACHED + b"]"
    elif offered:
        offered = offered[:-1] + _CACHED
    return system + (b',"tools":[' + offered + b"]" if offered else b"")


def _tool(tool: ToolSpec) -> dict[str, Any]:
    schema = tool.parameters or {"type": "object", "properties": {}}
    return {"name": tool.name, "description": tool.description, "input_schema": schema}


# --- history ---


def _paused(records: Sequence[Record], provider: str) -> bool:
    """Whether the provider paused and asked for its content back to continue."""
    last = records[-1].body if records else None
    return isinstance(last, Reply) and last.stop is Stop.PAUSED and last.provider == provider


def _is_pause(record: Record) -> bool:
    if type(record) is Plain:  # a plain record never is, and reading its body would decode it
        return False
    return isinstance(record.body, Reply) and record.body.stop is Stop.PAUSED


def _closed(records: Sequence[Record], wires: Sequence[bytes], target: Target) -> Sequence[bytes]:
    """Remove tool uses that were open in a pause which the provider never continued: it would wait
    for their results.
    """
    left = [
        number
        for number, record in enumerate(records[:-1])
        if _is_pause(record) and records[number + 1].kind is not RecordKind.ASSISTANT
    ]
    if not left:
        return wires
    closed = list(wires)
    for number in left:
        closed[number] = _reply(cast("Reply", records[number].body), target, records[number].seq, closed=True)
    return closed


def _blocks(record: Record, prompt: Prompt, target: Target) -> bytes:
    """Encode what a record adds to its message: comma-separated blocks, or nothing."""
    if words := said_plainly(record):
        return _text(words) if words.strip() else b""
    match record.body:
        case Reply() as reply:
            return _reply(reply, target, record.seq)
        case ToolResult() as result:
            return _encode(_result(result))
        case UserTurn() as turn if turn.attachments:
            return b",".join(_encode(block) for block in _turn(turn, prompt, target))
        case body:
            text = said_to_model(body)
            return _text(text) if text and text.strip() else b""


def _text(text: str) -> bytes:
    return b'{"type":"text","text":' + _encode(text) + b"}"


_SIDES = Sides(
    user=b'{"role":"user","content":[',
    model=b'{"role":"assistant","content":[',
    opening=_text(OPENING),
    go_on=_text(GO_ON),
)


class _Woven(Turns):
    """The turns of a session, and whether the provider ever paused in one."""

    def __init__(self) -> None:
        super().__init__(_SIDES)
        self.paused = False

    def add(self, records: Sequence[Record], wires: Sequence[bytes]) -> None:
        self.paused |= any(map(_is_pause, records))
        super().add(records, wires)


def _result(result: ToolResult) -> dict[str, Any]:
    content = result.output if result.output.strip() else EMPTY_RESULT
    block: dict[str, Any] = {"type": "tool_result", "tool_use_id": fitting(result.call, PLAIN_IDS), "content": content}
    return {**block, "is_error": True} if result.failed else block


def _turn(turn: UserTurn, prompt: Prompt, target: Target) -> Iterator[dict[str, Any]]:
    """Yield files first, as the provider recommends, then the text."""
    lines: list[str] = [turn.text] if turn.text.strip() else []
    for file in files(turn, prompt.media, target.facts, image_bytes_max=IMAGE_BYTES_MAX):
        if file.line:
            lines.append(file.line)
            continue
        source = {"type": "base64", "media_type": file.media_type, "data": file.base64}
        yield {"type": "document" if file.media_type == PDF else "image", "source": source}
    for line in lines:
        yield {"type": "text", "text": line}


def _reply(reply: Reply, target: Target, seq: int, *, closed: bool = False) -> bytes:
    sendable = list(_sendable(reply, target, seq))
    if closed:
        sendable = _without_open_uses(sendable)
    return b",".join(_block(part) for part in sendable)


def _sendable(reply: Reply, target: Target, seq: int) -> Iterator[Part]:
    """Yield the parts to send. The provider refuses thinking without its own signature, and blank text."""
    without_thoughts = seq <= target.omitted.thoughts_until
    for part in parts(reply, provider=target.provider):
        match part.kind:
            case PieceKind.THINKING if without_thoughts or not part.seal or part.seal[0] in "[{":
                continue  # omitted, unsigned, or signed by the same provider in another format
            case PieceKind.TEXT if not part.text.strip():
                continue
            case _:
                yield part


def _block(part: Part) -> bytes:
    match part.kind:
        case PieceKind.TEXT:
            return _text(part.text)
        case PieceKind.THINKING if part.seal.startswith(REDACTED):
            return _encode({"type": "redacted_thinking", "data": part.seal.removeprefix(REDACTED)})
        case PieceKind.THINKING:
            return _encode({"type": "thinking", "thinking": part.text, "signature": part.seal})
        case PieceKind.CALL:
            call = cast("Call", part.call)
            id_, name = fitting(call.id, PLAIN_IDS), named(call.tool)
            return _encode({"type": "tool_use", "id": id_, "name": name, "input": call.arguments})
        case PieceKind.SERVER:
            return part.seal.encode()


def _without_open_uses(sent: Sequence[Part]) -> list[Part]:
    blocks: list[dict[str, Any]] = [
        msgspec.json.decode(part.seal) if part.kind is PieceKind.SERVER else {} for part in sent
    ]
    ended = {block.get("tool_use_id") for block in blocks}
    return [
        part
        for part, block in zip(sent, blocks, strict=True)
        if not str(block.get("type", "")).endswith("_tool_use") or block.get("id") in ended
    ]
