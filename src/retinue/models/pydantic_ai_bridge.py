"""Uses any pydantic-ai model as one of ours, for providers without a wire format here.

pydantic-ai comes with the extra `bridge`, and is imported at the first call. Records are converted
to its messages, and its events to our chunks. None of it is stored, so the extra can be removed
again.
"""

from __future__ import annotations

import asyncio
import importlib
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import AsyncExitStack
from typing import Any

from retinue.config.models import ModelSettings
from retinue.domain.model import Failure, ModelFacts, ModelFailed, ModelRef
from retinue.domain.record import PieceKind, Stop, Usage
from retinue.models import error_messages, pydantic_ai_messages
from retinue.models.base import Asks, Chunk, Ended, Prompt, Seals, Text, Thinking
from retinue.models.formats.wire_formats import arguments_of, effort_of
from retinue.models.provider_http import FIRST_BYTE_S, SILENCE_S

EXTRA = "retinue[bridge]"
MODELS_KEPT_MAX = 8  # per bridged model, by key: frequent key changes rebuild them

# Builds a pydantic-ai model for a key; without one, pydantic-ai reads the environment itself.
Make = Callable[[str], Any]

_STOPS = {"length": Stop.LENGTH, "content_filter": Stop.FILTERED}
_FAILURES: Mapping[str, Failure] = {
    "ModelRateLimitError": Failure.RATE_LIMIT,
    "ModelQuotaExceededError": Failure.QUOTA,
    "ModelOverloadedError": Failure.OVERLOADED,
    "ModelUnavailableError": Failure.OVERLOADED,
    "ModelServerError": Failure.SERVER,
    "ModelTimeoutError": Failure.TIMEOUT,
    "ModelRequestTimeout": Failure.TIMEOUT,
    "ModelConnectionError": Failure.CONNECTION,
    "ModelContextWindowExceededError": Failure.CONTEXT_OVERFLOW,
    "ModelAuthenticationError": Failure.AUTH,
    "ModelNotFoundError": Failure.NOT_FOUND,
    "ModelRequestRejectedError": Failure.BAD_REQUEST,
    "ContentFilterError": Failure.CONTENT_FILTER,
    "UnexpectedModelBehavior": Failure.MALFORMED,
    "UserError": Failure.BAD_REQUEST,
}
_BY_STATUS = {403: Failure.PERMISSION, 413: Failure.TOO_LARGE}


def inferred(name: str) -> Make:
    """Return a function that builds the model for a pydantic-ai name such as `groq:llama-3.3-70b-versatile`."""

    def make(key: str) -> Any:
        models, providers = _library("models"), _library("providers")

        def provider(provider_name: str) -> Any:
            return providers.infer_provider_class(provider_name)(api_key=key)

        try:
            return models.infer_model(name, provider_factory=provider) if key else models.infer_model(name)
        except (ImportError, ValueError, TypeError) as error:
            raise ModelFailed(
                f"pydantic-ai cannot make the model '{name[:64]}'",
                because=error_messages.clean(str(error))
                or "it knows no such provider, or needs more than a key for it",
                try_this="write it as bridge/PROVIDER:MODEL; a package that it misses is installed beside retinue",
                code="model.bridge",
                failure=Failure.NOT_FOUND,
            ) from None

    return make


class Bridges:
    """The models that the settings name as bridge/NAME, each created at first use."""

    def __init__(self, facts: Callable[[ModelRef], ModelFacts]) -> None:
        self._facts = facts
        self._made: dict[ModelRef, Bridge] = {}

    def find(self, ref: ModelRef, _: ModelSettings) -> Bridge:
        """Return the model. A new one is created only if its settings have changed."""
        facts, kept = self._facts(ref), self._made.get(ref)
        if kept is None or kept.facts != facts:
            kept = self._made[ref] = Bridge(facts, inferred(ref.model))
        return kept


class Bridge:
    """One pydantic-ai model. It makes one attempt, like all models: retries of the libraries below are disabled."""

    def __init__(
        self, facts: ModelFacts, make: Make, *, first_byte_s: float = FIRST_BYTE_S, silence_s: float = SILENCE_S
    ) -> None:
        self._facts = facts
        self._make = make
        self._first_byte_s = first_byte_s
        self._silence_s = silence_s
        self._made: OrderedDict[str, Any] = OrderedDict()

    @property
    def name(self) -> str:
        return str(self._facts.ref)

    @property
    def facts(self) -> ModelFacts:
        return self._facts

    async def reply(self, prompt: Prompt, *, key: str = "") -> AsyncIterator[Chunk]:
        direct = _library("direct")
        messages = pydantic_ai_messages.messages(_library("messages"), prompt, self._facts)
        parameters = pydantic_ai_messages.parameters(_library("models"), _library("tools"), prompt, self._facts)
        hearing = _Hearing()
        async with AsyncExitStack() as open_:
            try:
                stream = await _patiently(
                    open_.enter_async_context(
                        direct.model_request_stream(
                            self._model(key),
                            messages,
                            model_settings=_settings(prompt, self._facts),
                            model_request_parameters=parameters,
                        )
                    ),
                    self._first_byte_s,
                )
                events = aiter(stream)
                while True:
                    wait_s = self._silence_s if hearing.begun else self._first_byte_s
                    event = await _patiently(anext(events, None), wait_s)
                    if event is None:
                        break
                    for chunk in hearing.hear(event):
                        yield chunk
                for chunk in hearing.rest():
                    yield chunk
                yield _ended(stream.get(), asked=hearing.asked)
            except TimeoutError as error:
                patience_s = self._silence_s if hearing.begun else self._first_byte_s
                raise error_messages.too_slow(self.name, begun=hearing.begun, patience_s=patience_s) from error
            except Exception as error:
                if told := self._told(error, begun=hearing.begun):
                    raise told from None  # its cause may quote the request
                raise

    def _model(self, key: str) -> Any:
        made = self._made.pop(key, None)
        if made is None:
            made = self._make(key)
            client: Any = getattr(made, "client", None)
            if client is not None and hasattr(client, "max_retries"):
                client.max_retries = 0
        self._made[key] = made
        if len(self._made) > MODELS_KEPT_MAX:
            self._made.popitem(last=False)
        return made

    def _told(self, error: Exception, *, begun: bool) -> ModelFailed | None:
        """Convert an error to `ModelFailed`; None if it has nothing to do with the model."""
        kinds = [kind.__name__ for kind in type(error).__mro__ if kind.__module__.startswith("pydantic_ai.")]
        failure = next((_FAILURES[kind] for kind in kinds if kind in _FAILURES), None)
        if failure is None:
            if not kinds:
                return None
            failure = Failure.SERVER
        status: int | None = getattr(error, "status_code", None)
        if failure is Failure.BAD_REQUEST or failure is Failure.AUTH:
            failure = _BY_STATUS.get(status or 0, failure)
        if failure is Failure.CONNECTION and getattr(error, "phase", None) not in ("pool", "connect"):
            begun = True  # sent, and perhaps charged
        return error_messages.known(
            self.name,
            failure,
            getattr(error, "body", None) or str(error),
            status=status,
            headers=getattr(error, "headers", None) or {},
            begun=begun or bool(getattr(error, "in_stream", False)),
        )


class _Hearing:
    """Converts events to chunks. Calls and signatures are emitted when their part is complete."""

    def __init__(self) -> None:
        self.begun = False
        self.asked = False
        self._open: dict[int, Any] = {}

    def hear(self, event: Any) -> Iterator[Chunk]:
        self.begun = True
        match event.event_kind:
            case "part_start":
                self._open[event.index] = event.part
                yield from _words(event.part.part_kind, getattr(event.part, "content", None))
            case "part_delta":
                yield from _words(event.delta.part_delta_kind, getattr(event.delta, "content_delta", None))
            case "part_end":
                self._open.pop(event.index, None)
                yield from self._whole(event.part)
            case _:
                pass

    def rest(self) -> Iterator[Chunk]:
        """Yield the parts whose end was never reported."""
        for part in self._open.values():
            yield from self._whole(part)
        self._open.clear()

    def _whole(self, part: Any) -> Iterator[Chunk]:
        match part.part_kind:
            case "tool-call":
                self.asked = True
                arguments = arguments_of(part.args or "") if isinstance(part.args, str | None) else part.args
                yield Asks(pydantic_ai_messages.call(part, arguments))
                if seal := pydantic_ai_messages.seal(part):
                    yield Seals(PieceKind.CALL, seal)
            case "thinking":
                if seal := pydantic_ai_messages.seal(part):
                    yield Seals(PieceKind.THINKING, seal)
            case "text":
                if part.content and (seal := pydantic_ai_messages.seal(part)):
                    yield Seals(PieceKind.TEXT, seal)
            case _:
                pass


async def _patiently(awaited: Awaitable[Any], patience_s: float) -> Any:
    async with asyncio.timeout(patience_s):
        return await awaited


def _words(kind: str, words: Any) -> Iterator[Chunk]:
    if isinstance(words, str) and words:
        if kind == "text":
            yield Text(words)
        elif kind == "thinking":
            yield Thinking(words)


def _settings(prompt: Prompt, facts: ModelFacts) -> dict[str, Any]:
    settings: dict[str, Any] = {"max_tokens": prompt.output_tokens_max, "max_retries": 0}
    if (effort := effort_of(prompt.effort, facts)) is not None:
        settings["thinking"] = False if effort == "none" else effort
    return settings


def _ended(response: Any, *, asked: bool) -> Ended:
    stop = _STOPS.get(response.finish_reason or "", Stop.END)
    if asked and stop is Stop.END:
        stop = Stop.CALLS
    usage = response.usage
    if not usage.has_values():
        return Ended(stop, Usage(estimated=True))
    return Ended(
        stop,
        Usage(
            input_tokens=usage.input_tokens,
            output_tokens=usage.output_tokens,
            cache_read_tokens=usage.cache_read_tokens,
            cache_write_tokens=usage.cache_write_tokens,
            reasoning_tokens=_reasoning(usage.details),
        ),
    )


def _reasoning(details: Mapping[str, int]) -> int:
    names = ("reasoning_tokens", "thinking_tokens", "thoughts_tokens")
    return next((details[name] for name in names if name in details), 0)


def _library(part: str) -> Any:
    try:
        return importlib.import_module(f"pydantic_ai.{part}")
    except ImportError:
        raise ModelFailed(
            "models over the bridge need pydantic-ai",
            because="it is not installed with this house",
            try_this=f"pip install '{EXTRA}'",
            code="model.bridge-missing",
            failure=Failure.NOT_FOUND,
        ) from None
