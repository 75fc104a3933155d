"""A model for tests: replies in the order of a script or by a rule, with delays and failures on demand."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from retinue.domain.model import FREE, WINDOW_TOKENS, Failure, ModelFacts, ModelFailed, ModelRef, Price
from retinue.domain.ports import Clock
from retinue.domain.record import Stop, Usage
from retinue.domain.tool import Call
from retinue.models.base import Asks, Chunk, Ended, Prompt, Text, Thinking


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One reply of the script: text, tool calls, or a failure."""

    text: str = ""
    calls: tuple[tuple[str, dict[str, Any]], ...] = ()
    thinking: str = ""
    after_s: float = 0.0
    once: Callable[[], Awaitable[object]] | None = None  # awaited before the reply is sent
    fails: str = ""
    failure: Failure = Failure.BAD_REQUEST  # a failure that is not retried
    retry_after_s: float | None = None
    usage: Usage | None = None  # None: a few tokens
    stop: Stop | None = None
    cost_microusd: int = 0


def says(text: str, **kw: Any) -> Line:
    """Returns a reply that consists of text."""
    return Line(text=text, **kw)


def calls(tool: str, **arguments: Any) -> Line:
    """Returns a reply that makes one tool call."""
    return Line(calls=((tool, arguments),))


@dataclass(slots=True)
class ScriptedModel:
    """A model that replies from `script`, then by `rule`, and raises `ModelFailed` after that.

    `will_reply` extends the script. `prompts` holds every prompt the model was given. An exhausted
    script fails, so that a test notices an unexpected model call.

        model.will_reply("Hello.", tool_call_reply("append_line", text="milk"), "Done.")
    """

    clock: Clock
    name: str = "scripted"
    rule: Callable[[Prompt], Line] | None = None
    price_microusd: int = 0  # per call
    window_tokens: int = WINDOW_TOKENS
    vision: bool = False
    script: deque[Line] = field(default_factory=deque[Line])
    prompts: list[Prompt] = field(default_factory=list[Prompt])
    chunk_chars: int = 12

    def will_reply(self, *lines: str | Line) -> None:
        """Append replies to the script. A string is a text reply."""
        self.script.extend(says(line) if isinstance(line, str) else line for line in lines)

    @property
    def facts(self) -> ModelFacts:
        price = Price(call=self.price_microusd) if self.price_microusd else FREE
        return ModelFacts(
            ref=ModelRef("", self.name), price=price, window_tokens=self.window_tokens, vision=self.vision
        )

    async def reply(self, prompt: Prompt, *, key: str = "") -> AsyncIterator[Chunk]:
        self.prompts.append(replace(prompt, records=tuple(prompt.records)))
        line = self._next(prompt)
        if line.after_s:
            await self.clock.sleep(line.after_s)
        if line.once is not None:
            await line.once()
        if line.fails:
            raise ModelFailed(
                line.fails,
                because="the script says so",
                try_this="ask again",
                code="model.scripted",
                failure=line.failure,
                retry_after_s=line.retry_after_s,
            )
        if line.thinking:
            yield Thinking(line.thinking)
        for piece in pieces(line.text, self.chunk_chars):
            yield Text(piece)
        for i, (tool, arguments) in enumerate(line.calls):
            yield Asks(Call(id=f"c{i}", tool=tool, arguments=arguments))
        usage = line.usage or Usage(input_tokens=10, output_tokens=5, cost_microusd=line.cost_microusd)
        yield Ended(line.stop or (Stop.CALLS if line.calls else Stop.END), usage)

    def _next(self, prompt: Prompt) -> Line:
        if self.script:
            return self.script.popleft()
        if self.rule is not None:
            return self.rule(prompt)
        raise ModelFailed("the script has no more lines", because="it was asked once more", code="model.script-ended")


def pieces(text: str, size: int) -> Sequence[str]:
    return [text[i : i + size] for i in range(0, len(text), size)]
