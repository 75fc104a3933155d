"""Reads replies in the format `openai-responses`: items that start, grow and finish, each under its index."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, cast

import msgspec

from retinue.domain.model import ModelFailed
from retinue.domain.record import PieceKind, Stop, Usage
from retinue.domain.tool import Call
from retinue.models import error_messages
from retinue.models.base import Asks, Chunk, Ended, Seals, Text, Thinking
from retinue.models.formats.openai_usage import usage_of
from retinue.models.formats.wire_formats import anything, arguments_of
from retinue.models.provider_http import malformed

ITEMS_MAX = 1_000  # per reply
SERVER_ITEM_BYTES_MAX = 256 * 1024  # a picture that it generated is not sent back

LEFT_OUT = "_left_out"  # marks an item that is too large to keep: only its existence is recorded

_DONE = b"[DONE]"
_STOPS = {"max_output_tokens": Stop.LENGTH, "content_filter": Stop.FILTERED}


class _Event(msgspec.Struct):
    type: str = ""
    delta: Any = None
    item: Any = None
    output_index: int | None = None
    response: msgspec.Raw = msgspec.Raw()
    error: Any = None


class _Response(msgspec.Struct):
    status: str | None = None
    output: list[Any] | None = None
    usage: Any = None
    error: Any = None
    incomplete_details: Any = None


_decoder = msgspec.json.Decoder(_Event)
_response_decoder = msgspec.json.Decoder(_Response)


class _Item:
    """The state of an item that is still being received."""

    __slots__ = ("id", "said", "sealed", "thoughts")

    def __init__(self) -> None:
        self.id: str | None = None
        self.said = False  # its text was streamed
        self.thoughts: list[str] = []  # raw thinking, which is not shown
        self.sealed = False


class ResponsesReader:
    """Reads one reply."""

    def __init__(self, provider: str) -> None:
        self._provider = provider
        self._items: dict[int, _Item] = {}
        self._asked: set[str] = set()
        self._spoke = False
        self._refused = False
        self._ended: Ended | None = None

    @property
    def done(self) -> bool:
        return self._ended is not None

    def read(self, name: bytes, data: bytes) -> Iterable[Chunk]:
        data = data.strip()
        if not data or data == _DONE:
            return ()
        try:
            event = _decoder.decode(data)
        except msgspec.ValidationError as error:
            raise malformed(self._provider, f"it sent what we cannot read: {error}") from None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise malformed(self._provider, "it sent something that is no JSON") from None
        return self._chunks(event, name, data)

    def whole(self, body: bytes) -> Iterable[Chunk]:
        response = self._response(body)
        if not response.error and response.output is None:
            raise malformed(self._provider, "it sent JSON without a reply in it")
        return list(self._over(response))

    def end(self) -> Ended:
        if self._ended is None:
            raise error_messages.broke_off(self._provider)
        return self._ended

    def _chunks(self, event: _Event, name: bytes, data: bytes) -> Iterator[Chunk]:
        match event.type:
            case "response.output_text.delta":
                yield from self._words(event)
            case "response.refusal.delta":
                self._refused = True
                yield from self._words(event)
            case "response.reasoning_summary_text.delta":
                if isinstance(event.delta, str) and event.delta:
                    self._item(event).said = self._spoke = True
                    yield Thinking(event.delta)
            case "response.reasoning_text.delta":
                if isinstance(event.delta, str):
                    self._item(event).thoughts.append(event.delta)
            case "response.output_item.added":
                yield from self._thought_through(event)
                self._item(event).id = _id(event.item)
            case "response.output_item.done":
                yield from self._done(event.item, self._item(event))
            case "response.completed" | "response.incomplete" | "response.failed" | "response.cancelled":
                yield from self._over(self._response(event.response))
            case _:
                if event.type == "error" or name == b"error" or event.error:
                    raise self._failed(event.error, data)

    def _words(self, event: _Event) -> Iterator[Chunk]:
        yield from self._thought_through(event)
        if isinstance(event.delta, str) and event.delta:
            self._item(event).said = self._spoke = True
            yield Text(event.delta)

    def _item(self, event: _Event) -> _Item:
        index = event.output_index if event.output_index is not None else -1
        found = self._items.setdefault(index, _Item())
        if len(self._items) > ITEMS_MAX:
            raise malformed(self._provider, f"its reply has more than {ITEMS_MAX:,} parts")
        return found

    def _thought_through(self, event: _Event) -> Iterator[Chunk]:
        """Emit raw thinking that is still open when the next item begins.

        Some servers finish it only after that item, which is too late: thinking comes first.
        """
        for index, item in self._items.items():
            if item.thoughts and not item.sealed and index != event.output_index:
                text = {"type": "reasoning_text", "text": "".join(item.thoughts)}
                item.sealed = True
                yield _reasoning({"id": item.id, "content": [text]})

    def _done(self, item: Any, known: _Item) -> Iterator[Chunk]:
        if not isinstance(item, dict):
            return
        self._spoke = True
        told = cast("dict[str, Any]", item)
        match told.get("type"):
            case "message":
                yield from self._message(told, known)
            case "reasoning":
                if not known.said:
                    yield from (Thinking(text) for text in _texts(told.get("summary")))
                if not known.sealed or told.get("encrypted_content"):
                    known.sealed = True
                    yield _reasoning(told)
            case "function_call":
                yield from self._call(told)
            case str():
                seal = msgspec.json.encode(told)
                if len(seal) > SERVER_ITEM_BYTES_MAX:
                    seal = msgspec.json.encode({"type": told["type"], "id": _id(told), LEFT_OUT: True})
                yield Seals(PieceKind.SERVER, seal.decode())
            case _:
                pass

    def _message(self, told: dict[str, Any], known: _Item) -> Iterator[Chunk]:
        for part in _parts(told.get("content")):
            refusal = part.get("refusal")
            if isinstance(refusal, str):
                self._refused = True
            words = refusal or part.get("text")
            if not known.said and isinstance(words, str) and words:
                yield Text(words)
        if isinstance(phase := told.get("phase"), str) and phase:
            yield Seals(PieceKind.TEXT, msgspec.json.encode({"phase": phase}).decode())

    def _call(self, told: dict[str, Any]) -> Iterator[Chunk]:
        id_, name, arguments = told.get("call_id"), told.get("name"), told.get("arguments")
        id_ = id_ if isinstance(id_, str) and id_ else f"call_{len(self._asked) + 1}"
        if id_ in self._asked or not isinstance(name, str):
            return
        self._asked.add(id_)
        given = arguments_of(arguments) if isinstance(arguments, str) else arguments
        yield Asks(Call(id=id_, tool=name, arguments=cast("dict[str, Any]", given) if isinstance(given, dict) else {}))

    def _over(self, response: _Response) -> Iterator[Chunk]:
        if response.error:
            raise error_messages.in_stream(self._provider, response.error)
        details = response.incomplete_details
        reason = cast("dict[str, Any]", details).get("reason") if isinstance(details, dict) else None
        match response.status:
            case "completed" | "incomplete" | None:
                pass
            case status:
                raise error_messages.in_stream(
                    self._provider, {"code": "server_error", "message": f"the reply is {status}"}
                )
        spoke = self._spoke
        for item in response.output or ():
            # Usually everything has arrived before. A call that has not must not be lost.
            is_call = isinstance(item, dict) and cast("dict[str, Any]", item).get("type") == "function_call"
            if is_call or not spoke:
                yield from self._done(item, _Item())
        stop = _STOPS.get(
            reason if isinstance(reason, str) else "", Stop.END if response.status != "incomplete" else Stop.LENGTH
        )
        if self._refused:
            stop = Stop.FILTERED
        elif self._asked and stop is Stop.END:
            stop = Stop.CALLS
        self._ended = Ended(stop, usage_of(response.usage) or Usage(estimated=True))

    def _response(self, body: bytes | msgspec.Raw) -> _Response:
        try:
            return _response_decoder.decode(body)
        except msgspec.ValidationError as error:
            raise malformed(self._provider, f"it sent what we cannot read: {error}") from None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise malformed(self._provider, "it sent something that is no JSON") from None

    def _failed(self, error: Any, data: bytes) -> ModelFailed:
        return error_messages.in_stream(self._provider, error or anything(data))


def _reasoning(item: dict[str, Any]) -> Seals:
    """Build the chunk with reasoning as it must be sent back."""
    kept: dict[str, Any] = {"type": "reasoning", "summary": item.get("summary") or []}
    for name in ("id", "content", "encrypted_content"):
        if value := item.get(name):
            kept[name] = value
    return Seals(PieceKind.THINKING, msgspec.json.encode(kept).decode())


def _id(item: Any) -> str | None:
    found = cast("dict[str, Any]", item).get("id") if isinstance(item, dict) else None
    return found if isinstance(found, str) else None


def _parts(content: Any) -> Iterator[dict[str, Any]]:
    if isinstance(content, list):
        for part in cast("list[Any]", content):
            if isinstance(part, dict):
                yield cast("dict[str, Any]", part)


def _texts(content: Any) -> Iterator[str]:
    for part in _parts(content):
        if isinstance(text := part.get("text"), str) and text:
            yield text
