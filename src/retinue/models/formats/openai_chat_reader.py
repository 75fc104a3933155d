"""Reads replies in the format `openai-chat`, as written by a dozen different servers.

Calls are detected by their presence: the finish reason that a server reports is often wrong.
"""

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
from retinue.models.formats.think_tags import ThinkTags
from retinue.models.formats.wire_formats import anything, arguments_of
from retinue.models.provider_http import malformed
from retinue.models.tool_call_limits import CALLS_MAX, UNPARSED, too_many_calls

_DONE = b"[DONE]"
_STOPS = {
    "length": Stop.LENGTH,
    "max_tokens": Stop.LENGTH,
    "model_length": Stop.LENGTH,
    "content_filter": Stop.FILTERED,
    "safety": Stop.FILTERED,
    "refusal": Stop.FILTERED,
}
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_GROWING = ("text", "summary", "data")  # fields of a reasoning detail that arrive in pieces
_BROKEN = frozenset({"error", "insufficient_system_resource"})


class _Function(msgspec.Struct):
    name: str | None = None
    arguments: str | dict[str, Any] | None = None


class _CallDelta(msgspec.Struct):
    index: int | None = None
    id: str | int | None = None
    function: _Function | None = None


class _Delta(msgspec.Struct, gc=False):
    content: str | list[Any] | None = None
    reasoning_content: Any = None
    reasoning: Any = None
    reasoning_details: Any = None
    refusal: str | None = None
    tool_calls: list[_CallDelta] | None = None


class _Choice(msgspec.Struct, gc=False):
    index: int | None = None
    delta: _Delta | None = None
    message: _Delta | None = None
    finish_reason: str | None = None
    usage: Any = None
    error: Any = None


class _Groq(msgspec.Struct):
    usage: Any = None
    error: Any = None


class _Event(msgspec.Struct, gc=False):
    choices: list[_Choice] | None = None
    usage: Any = None
    error: Any = None
    object: Any = None
    x_groq: _Groq | None = None


_decode = msgspec.json.Decoder(_Event).decode


class _Asked:
    """A tool call that is still being received."""

    __slots__ = ("arguments", "id", "index", "name")

    def __init__(self, index: int | None) -> None:
        self.index = index
        self.id = ""
        self.name = ""
        self.arguments: list[str] = []

    @property
    def whole(self) -> bool:
        return bool(self.arguments) and self.arguments[-1].endswith("}") and UNPARSED not in self._read()

    def call(self, number: int) -> Call:
        return Call(id=self.id or f"call_{number}", tool=self.name, arguments=self._read())

    def _read(self) -> dict[str, Any]:
        return arguments_of("".join(self.arguments))


class _Detail:
    """A reasoning detail as it must be sent back. Its text is joined once, however many pieces it has."""

    __slots__ = ("_fields", "_grown")

    def __init__(self, first: dict[str, Any]) -> None:
        self._fields: dict[str, Any] = {}
        self._grown: dict[str, list[str]] = {}
        self.add(first)

    def continued_by(self, new: dict[str, Any]) -> bool:
        known = self._fields
        same = known.get("type") == new.get("type") and known.get("index") == new.get("index")
        return same and known.get("id") in (None, new.get("id"))

    def add(self, new: dict[str, Any]) -> None:
        for name, value in new.items():
            if name in _GROWING and isinstance(value, str):
                self._grown.setdefault(name, []).append(value)
                self._fields.setdefault(name, None)  # keeps its position among the fields
            elif value is not None or name not in self._fields:
                self._fields[name] = value

    @property
    def whole(self) -> dict[str, Any]:
        return {**self._fields, **{name: "".join(pieces) for name, pieces in self._grown.items()}}


class ChatReader:
    """Reads one reply."""

    def __init__(self, provider: str) -> None:
        self._provider = provider
        self._tags = ThinkTags()
        self._asked: list[_Asked] = []
        self._told = 0  # number of calls emitted
        self._details: list[_Detail] = []
        self._usage: Usage | None = None
        self._reason: str | None = None
        self._refused = False
        self._spoke = False
        self._over = False
        self.done = False

    def read(self, name: bytes, data: bytes) -> Iterable[Chunk]:
        try:
            event = _decode(data)
        except _UNREADABLE as error:
            said = data.strip()
            if said == _DONE:
                self._over = self.done = True
                return self._held()
            if not said:
                return ()
            raise self._unread(data, error) from None
        if event.error or event.object == "error" or name == b"error":
            raise self._failed(event.error, data)
        if self._tags.passed and not self._details and (words := _only_words(event)):
            return (Text(words),)  # the fast path: almost every event is only text
        return self._chunks(event)

    def whole(self, body: bytes) -> Iterable[Chunk]:
        try:
            event = _decode(body)
        except _UNREADABLE as error:
            raise self._unread(body, error) from None
        if event.error or event.object == "error":
            raise self._failed(event.error, body)
        if not event.choices:
            raise malformed(self._provider, "it sent JSON without a reply in it")
        self._over = True
        return [*self._chunks(event), *self._held()]

    def rest(self) -> Iterable[Chunk]:
        """Return held-back calls if all are complete: they are a reply, although the server gave no finish reason."""
        if self._over or self._reason is not None or not all(asked.whole for asked in self._asked):
            return ()
        self._over = bool(self._asked)
        return self._held()

    def end(self) -> Ended:
        if not self._over and self._reason is None:
            raise error_messages.broke_off(self._provider)
        stop = _STOPS.get(self._reason or "", Stop.END)
        if self._refused:
            stop = Stop.FILTERED
        elif self._asked and stop is Stop.END:
            stop = Stop.CALLS
        return Ended(stop, self._usage or Usage(estimated=True))

    def _unread(self, data: bytes, error: Exception) -> ModelFailed:
        if not isinstance(error, msgspec.ValidationError):
            return malformed(self._provider, "it sent something that is no JSON")
        return self._unusual(data) or malformed(self._provider, f"it sent what we cannot read: {error}")

    def _unusual(self, data: bytes) -> ModelFailed | None:
        """Return the error in an unusual body, such as a list with one object."""
        found = anything(data)
        if isinstance(found, list) and found:
            found = cast("list[Any]", found)[0]
        error = cast("dict[str, Any]", found).get("error") if isinstance(found, dict) else None
        return error_messages.in_stream(self._provider, error) if error else None

    def _failed(self, error: Any, data: bytes) -> ModelFailed:
        return error_messages.in_stream(self._provider, error or anything(data))

    def _chunks(self, event: _Event) -> Iterator[Chunk]:
        for choice in event.choices or ():
            if choice.index:
                continue  # we requested one reply
            if choice.error:
                raise error_messages.in_stream(self._provider, choice.error)
            said = choice.delta
            if said is None and not self._spoke:
                said = choice.message  # besides deltas, some servers repeat everything so far in it
            if said is not None:
                yield from self._said(said)
            self._count(choice.usage)
            if choice.finish_reason:
                if choice.finish_reason in _BROKEN:
                    raise error_messages.in_stream(self._provider, {"message": "", "code": choice.finish_reason})
                self._reason = choice.finish_reason
                yield from self._held()
        self._count(event.usage)
        if event.x_groq is not None:
            if event.x_groq.error:
                raise error_messages.in_stream(self._provider, event.x_groq.error)
            if self._usage is None:
                self._count(event.x_groq.usage)
        if not event.choices and event.usage is not None and self._spoke:
            self._over = True  # usage comes last, even without a finish reason
            yield from self._held()

    def _said(self, said: _Delta) -> Iterator[Chunk]:
        if thought := self._thought(said):
            self._spoke = True
            yield Thinking(thought)
        if said.content:
            self._spoke = True
            if isinstance(said.content, str):
                yield from self._words(said.content)
            else:
                for part in said.content:
                    yield from self._part(part)
        if said.refusal:
            self._spoke = self._refused = True
            yield Text(said.refusal)
        if said.tool_calls:
            self._spoke = True
            yield from self._sealed()
            for delta in said.tool_calls:
                self._ask(delta)

    def _thought(self, said: _Delta) -> str:
        """Return the thinking, from one of three fields. If two have it, they have the same text."""
        details = self._add_details(said.reasoning_details) if said.reasoning_details else ""
        words = next(
            (words for words in (said.reasoning_content, said.reasoning) if words and isinstance(words, str)), details
        )
        if words:
            self._tags.off()
        return words

    def _add_details(self, details: Any) -> str:
        """Merge the pieces of each detail, as they must be sent back. Returns their text."""
        words = ""
        for detail in cast("list[Any]", details) if isinstance(details, list) else ():
            if not isinstance(detail, dict):
                continue
            new = cast("dict[str, Any]", detail)
            said = new.get("text") or new.get("summary")
            words += said if isinstance(said, str) else ""
            if self._details and self._details[-1].continued_by(new):
                self._details[-1].add(new)
            else:
                self._details.append(_Detail(new))
        return words

    def _words(self, content: str) -> Iterator[Chunk]:
        for chunk in self._tags.feed(content):
            if isinstance(chunk, Text):
                yield from self._sealed()
            yield chunk

    def _part(self, part: Any) -> Iterator[Chunk]:
        """Read structured content: text, or thinking made of text."""
        if not isinstance(part, dict):
            return
        known = cast("dict[str, Any]", part)
        match known.get("type"):
            case "text" if isinstance(text := known.get("text"), str) and text:
                yield from self._words(text)
            case "thinking":
                thoughts = known.get("thinking")
                for thought in cast("list[Any]", thoughts) if isinstance(thoughts, list) else [thoughts]:
                    text = cast("dict[str, Any]", thought).get("text") if isinstance(thought, dict) else thought
                    if isinstance(text, str) and text:
                        self._tags.off()
                        yield Thinking(text)
            case _:
                pass

    def _ask(self, delta: _CallDelta) -> None:
        function = delta.function or _Function()
        id_ = "" if delta.id is None else str(delta.id)
        asked = self._meant(delta.index, id_, function)
        if asked is None:
            if len(self._asked) >= CALLS_MAX:
                raise too_many_calls(self._provider)
            asked = _Asked(delta.index)
            self._asked.append(asked)
        asked.id = asked.id or id_
        asked.name = asked.name or function.name or ""
        if isinstance(function.arguments, str):
            asked.arguments.append(function.arguments)
        elif function.arguments:
            asked.arguments.append(msgspec.json.encode(function.arguments).decode())

    def _meant(self, index: int | None, id_: str, function: _Function) -> _Asked | None:
        """Return the call that a delta belongs to; None for a new one.

        Matches by index, which not every server increments.
        """
        asked = next((one for one in reversed(self._asked) if index is None or one.index == index), None)
        if asked is None or not function.name or not asked.name:
            return asked  # only the first delta has a name, so without one it continues
        if id_ and asked.id and id_ != asked.id:
            return None
        # A repeated name without an id is another call if it has arguments and the previous call is complete.
        return None if function.arguments and asked.whole else asked

    def _sealed(self) -> Iterator[Chunk]:
        if self._details:
            seal = msgspec.json.encode([detail.whole for detail in self._details]).decode()
            self._details = []
            yield Seals(PieceKind.THINKING, seal)

    def _held(self) -> Iterator[Chunk]:
        """Yield what was held back until complete. Can be called more than once."""
        yield from self._tags.end()
        for number, asked in enumerate(self._asked[self._told :], start=self._told + 1):
            self._told = number
            yield Asks(asked.call(number))
        yield from self._sealed()

    def _count(self, usage: Any) -> None:
        found = usage_of(usage)
        if found is not None:
            self._usage = found


def _only_words(event: _Event) -> str | None:
    choices = event.choices
    if choices is None or len(choices) != 1 or event.usage is not None or event.x_groq is not None:
        return None
    choice = choices[0]
    said = choice.delta
    if said is None or choice.index or choice.finish_reason or choice.usage is not None or choice.error:
        return None
    if said.tool_calls or said.reasoning_content or said.reasoning or said.reasoning_details or said.refusal:
        return None
    return said.content if isinstance(said.content, str) else None
