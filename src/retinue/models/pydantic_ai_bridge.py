"""Calls any model that the library pydantic-ai supports, for providers whose wire format retinue does not implement.

pydantic-ai comes with the extra `bridge`, and is imported at the first call. Records are converted to its messages, and
its events to our chunks. Nothing of pydantic-ai is stored, so the extra can be removed again.
"""

from __future__ import annotations

import asyncio
import importlib
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import AsyncExitStack
from typing import Any

from retinue.config.models import ModelEntry
from retinue.domain.model import ModelFacts, ModelFailed, ModelFailureKind, ModelRef
from retinue.domain.record import ReplyPieceKind, StopReason, Usage
from retinue.models import error_messages, pydantic_ai_messages
from retinue.models.base import (
    EndChunk,
    ModelPrompt,
    ReplyChunk,
    SignatureChunk,
    TextChunk,
    ThinkingChunk,
    ToolCallChunk,
)
from retinue.models.errors import BridgedModelInvalid, BridgeNotInstalled, ModelTimedOut
from retinue.models.formats.wire_formats import check_effort, parse_arguments
from retinue.models.provider_http import FIRST_BYTE_S, SILENCE_S

EXTRA = "retinue[bridge]"
MODELS_CACHED_MAX = 8  # per bridged model, by key: frequent key changes rebuild them

# Builds a pydantic-ai model for a key; without one, pydantic-ai reads the environment itself.
MakeModel = Callable[[str], Any]

_STOPS = {"length": StopReason.LENGTH, "content_filter": StopReason.FILTERED}
_FAILURES: Mapping[str, ModelFailureKind] = {
    "ModelRateLimitError": ModelFailureKind.RATE_LIMIT,
    "ModelQuotaExceededError": ModelFailureKind.QUOTA,
    "ModelOverloadedError": ModelFailureKind.OVERLOADED,
    "ModelUnavailableError": ModelFailureKind.OVERLOADED,
    "ModelServerError": ModelFailureKind.SERVER,
    "ModelTimeoutError": ModelFailureKind.TIMEOUT,
    "ModelRequestTimeout": ModelFailureKind.TIMEOUT,
    "ModelConnectionError": ModelFailureKind.CONNECTION,
    "ModelContextWindowExceededError": ModelFailureKind.CONTEXT_OVERFLOW,
    "ModelAuthenticationError": ModelFailureKind.AUTH,
    "ModelNotFoundError": ModelFailureKind.NOT_FOUND,
    "ModelRequestRejectedError": ModelFailureKind.BAD_REQUEST,
    "ContentFilterError": ModelFailureKind.CONTENT_FILTER,
    "UnexpectedModelBehavior": ModelFailureKind.MALFORMED,
    "UserError": ModelFailureKind.BAD_REQUEST,
}
_BY_STATUS = {403: ModelFailureKind.PERMISSION, 413: ModelFailureKind.TOO_LARGE}


def infer_model_maker(name: str) -> MakeModel:
    """Return a function that builds the model for a pydantic-ai name such as `groq:llama-3.3-70b-versatile`."""

    def make(key: str) -> Any:
        models, providers = _import_library("models"), _import_library("providers")

        def provider(provider_name: str) -> Any:
            return providers.infer_provider_class(provider_name)(api_key=key)

        try:
            return models.infer_model(name, provider_factory=provider) if key else models.infer_model(name)
        except (ImportError, ValueError, TypeError) as error:
            raise BridgedModelInvalid(name, because=error_messages.clean_message(str(error))) from None

    return make


class BridgedModels:
    """The models named bridge/NAME in the settings, each created at first use."""

    def __init__(self, facts: Callable[[ModelRef], ModelFacts]) -> None:
        self._facts = facts
        self._models: dict[ModelRef, BridgedModel] = {}

    def find(self, ref: ModelRef, _: ModelEntry) -> BridgedModel:
        """Return the model with this reference. A new model is created only if its settings have changed."""
        facts, kept = self._facts(ref), self._models.get(ref)
        if kept is None or kept.facts != facts:
            kept = self._models[ref] = BridgedModel(facts, infer_model_maker(ref.model))
        return kept


class BridgedModel:
    """One pydantic-ai model.

    Like every model, it makes one attempt per call, so retries in the underlying libraries are disabled.
    """

    def __init__(
        self, facts: ModelFacts, make: MakeModel, *, first_byte_s: float = FIRST_BYTE_S, silence_s: float = SILENCE_S
    ) -> None:
        self._facts = facts
        self._make = make
        self._first_byte_s = first_byte_s
        self._silence_s = silence_s
        self._models: OrderedDict[str, Any] = OrderedDict()

    @property
    def name(self) -> str:
        return str(self._facts.ref)

    @property
    def facts(self) -> ModelFacts:
        return self._facts

    async def reply(self, prompt: ModelPrompt, *, key: str = "") -> AsyncIterator[ReplyChunk]:
        direct = _import_library("direct")
        messages = pydantic_ai_messages.build_messages(_import_library("messages"), prompt, self._facts)
        parameters = pydantic_ai_messages.build_parameters(
            _import_library("models"), _import_library("tools"), prompt, self._facts
        )
        hearing = _EventReader()
        async with AsyncExitStack() as open_:
            try:
                stream = await _await_with_timeout(
                    open_.enter_async_context(
                        direct.model_request_stream(
                            self._get_model(key),
                            messages,
                            model_settings=_build_settings(prompt, self._facts),
                            model_request_parameters=parameters,
                        )
                    ),
                    self._first_byte_s,
                )
                events = aiter(stream)
                while True:
                    wait_s = self._silence_s if hearing.has_begun else self._first_byte_s
                    event = await _await_with_timeout(anext(events, None), wait_s)
                    if event is None:
                        break
                    for chunk in hearing.read(event):
                        yield chunk
                for chunk in hearing.flush():
                    yield chunk
                yield _build_end(stream.get(), has_calls=hearing.has_calls)
            except TimeoutError as error:
                patience_s = self._silence_s if hearing.has_begun else self._first_byte_s
                raise ModelTimedOut(self.name, begun=hearing.has_begun, timeout_s=patience_s) from error
            except Exception as error:
                if failed := self._to_model_error(error, begun=hearing.has_begun):
                    raise failed from None  # its cause may quote the request
                raise

    def _get_model(self, key: str) -> Any:
        made = self._models.pop(key, None)
        if made is None:
            made = self._make(key)
            client: Any = getattr(made, "client", None)
            if client is not None and hasattr(client, "max_retries"):
                client.max_retries = 0
        self._models[key] = made
        if len(self._models) > MODELS_CACHED_MAX:
            self._models.popitem(last=False)
        return made

    def _to_model_error(self, error: Exception, *, begun: bool) -> ModelFailed | None:
        """Convert an error to `ModelFailed`. None if the error has nothing to do with the model."""
        kinds = [kind.__name__ for kind in type(error).__mro__ if kind.__module__.startswith("pydantic_ai.")]
        failure = next((_FAILURES[kind] for kind in kinds if kind in _FAILURES), None)
        if failure is None:
            if not kinds:
                return None
            failure = ModelFailureKind.SERVER
        status: int | None = getattr(error, "status_code", None)
        if failure is ModelFailureKind.BAD_REQUEST or failure is ModelFailureKind.AUTH:
            failure = _BY_STATUS.get(status or 0, failure)
        if failure is ModelFailureKind.CONNECTION and getattr(error, "phase", None) not in ("pool", "connect"):
            begun = True  # sent, and perhaps charged
        return error_messages.build_classified_error(
            self.name,
            failure,
            getattr(error, "body", None) or str(error),
            status=status,
            headers=getattr(error, "headers", None) or {},
            begun=begun or bool(getattr(error, "in_stream", False)),
        )


class _EventReader:
    """Converts the events of a pydantic-ai reply to our chunks.

    Calls and signatures are emitted when their part is complete.
    """

    def __init__(self) -> None:
        self.has_begun = False
        self.has_calls = False
        self._open_parts: dict[int, Any] = {}

    def read(self, event: Any) -> Iterator[ReplyChunk]:
        self.has_begun = True
        match event.event_kind:
            case "part_start":
                self._open_parts[event.index] = event.part
                yield from _build_text_chunks(event.part.part_kind, getattr(event.part, "content", None))
            case "part_delta":
                yield from _build_text_chunks(event.delta.part_delta_kind, getattr(event.delta, "content_delta", None))
            case "part_end":
                self._open_parts.pop(event.index, None)
                yield from self._read_complete_part(event.part)
            case _:
                pass

    def flush(self) -> Iterator[ReplyChunk]:
        """Yield the parts whose end was never reported."""
        for part in self._open_parts.values():
            yield from self._read_complete_part(part)
        self._open_parts.clear()

    def _read_complete_part(self, part: Any) -> Iterator[ReplyChunk]:
        match part.part_kind:
            case "tool-call":
                self.has_calls = True
                arguments = parse_arguments(part.args or "") if isinstance(part.args, str | None) else part.args
                yield ToolCallChunk(pydantic_ai_messages.build_call(part, arguments))
                if seal := pydantic_ai_messages.encode_signature(part):
                    yield SignatureChunk(ReplyPieceKind.CALL, seal)
            case "thinking":
                if seal := pydantic_ai_messages.encode_signature(part):
                    yield SignatureChunk(ReplyPieceKind.THINKING, seal)
            case "text":
                if part.content and (seal := pydantic_ai_messages.encode_signature(part)):
                    yield SignatureChunk(ReplyPieceKind.TEXT, seal)
            case _:
                pass


async def _await_with_timeout(awaited: Awaitable[Any], timeout_s: float) -> Any:
    async with asyncio.timeout(timeout_s):
        return await awaited


def _build_text_chunks(kind: str, text: Any) -> Iterator[ReplyChunk]:
    if isinstance(text, str) and text:
        if kind == "text":
            yield TextChunk(text)
        elif kind == "thinking":
            yield ThinkingChunk(text)


def _build_settings(prompt: ModelPrompt, facts: ModelFacts) -> dict[str, Any]:
    settings: dict[str, Any] = {"max_tokens": prompt.output_tokens_max, "max_retries": 0}
    if (effort := check_effort(prompt.effort, facts)) is not None:
        settings["thinking"] = False if effort == "none" else effort
    return settings


def _build_end(response: Any, *, has_calls: bool) -> EndChunk:
    stop = _STOPS.get(response.finish_reason or "", StopReason.END)
    if has_calls and stop is StopReason.END:
        stop = StopReason.CALLS
    usage = response.usage
    if not usage.has_values():
        return EndChunk(stop, Usage(estimated=True))
    return EndChunk(
        stop,
        Usage(
            input_tokens=usage.input_tokens,
            output_tokens=usage.output_tokens,
            cache_read_tokens=usage.cache_read_tokens,
            cache_write_tokens=usage.cache_write_tokens,
            reasoning_tokens=_count_reasoning_tokens(usage.details),
        ),
    )


def _count_reasoning_tokens(details: Mapping[str, int]) -> int:
    names = ("reasoning_tokens", "thinking_tokens", "thoughts_tokens")
    return next((details[name] for name in names if name in details), 0)


def _import_library(part: str) -> Any:
    try:
        return importlib.import_module(f"pydantic_ai.{part}")
    except ImportError:
        raise BridgeNotInstalled(EXTRA) from None
