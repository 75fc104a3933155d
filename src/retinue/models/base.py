"""What replies. A model is handed the whole context and answers with a stream; nothing else is asked of it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from retinue.domain.errors import NotFound, RetinueError
from retinue.domain.ids import SessionId
from retinue.domain.record import Record, Stop, Usage
from retinue.domain.tool import Call, ToolSpec

WIRE_CACHE_BYTES_MAX = 16 * 1024 * 1024


class ModelFailed(RetinueError):
    """The model could not reply, in words for the person who waits."""

    code = "model.failed"


@dataclass(frozen=True, slots=True)
class Text:
    text: str


@dataclass(frozen=True, slots=True)
class Thinking:
    text: str


@dataclass(frozen=True, slots=True)
class Asks:
    """A tool call, complete."""

    call: Call


@dataclass(frozen=True, slots=True)
class Ended:
    """Always the last chunk of a reply that came through whole."""

    stop: Stop
    usage: Usage


Chunk = Text | Thinking | Asks | Ended


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """Everything a model is given for one reply."""

    session: SessionId
    instructions: str
    records: Sequence[Record]
    tools: Sequence[ToolSpec]


class Model(Protocol):
    """Replies to a prompt as a stream that ends with `Ended`, or raises `ModelFailed`."""

    @property
    def name(self) -> str: ...

    def reserve_microusd(self, prompt: Prompt) -> int:
        """The most this reply can cost: reserved before it is asked for."""
        ...

    def reply(self, prompt: Prompt) -> AsyncIterator[Chunk]: ...


class Models:
    """Which models this house can ask, by name."""

    def __init__(self, models: Sequence[Model]) -> None:
        self._models = {model.name: model for model in models}

    def find(self, name: str) -> Model:
        found = self._models.get(name)
        if found is None:
            known = ", ".join(sorted(self._models))
            raise NotFound(
                f"there is no model '{name}' here",
                because=f"this house knows {known}",
                try_this="give the agent one of these",
                code="model.not-found",
            )
        return found


class WireCache:
    """Records as bytes, encoded once: the cost of a turn does not grow with the history.

    Bounded in bytes, rebuilt from records when something was evicted, never stored.
    """

    def __init__(self, bytes_max: int = WIRE_CACHE_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._size_bytes = 0
        self._kept: OrderedDict[tuple[str, int], bytes] = OrderedDict()

    @property
    def size_bytes(self) -> int:
        return self._size_bytes

    def of(self, record: Record, encode: Callable[[Record], bytes]) -> bytes:
        key = (record.session, record.seq)
        wire = self._kept.get(key)
        if wire is not None:
            self._kept.move_to_end(key)
            return wire
        wire = encode(record)
        self._kept[key] = wire
        self._size_bytes += len(wire)
        while self._size_bytes > self._bytes_max and len(self._kept) > 1:
            _, evicted = self._kept.popitem(last=False)
            self._size_bytes -= len(evicted)
        return wire
