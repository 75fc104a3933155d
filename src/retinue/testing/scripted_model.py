"""A model for tests: it replies from a script or by a rule, with delays and failures on demand."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from retinue.domain.model import DEFAULT_WINDOW_TOKENS, FREE_PRICE, ModelFacts, ModelFailureKind, ModelRef, Price
from retinue.domain.ports import Clock
from retinue.domain.record import StopReason, Usage
from retinue.domain.tool import Call
from retinue.models.base import EndChunk, ModelPrompt, ReplyChunk, TextChunk, ThinkingChunk, ToolCallChunk
from retinue.testing.errors import ScriptedFailure, ScriptEnded


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptedReply:
    """One reply in the script of a model: text, tool calls, or a failure."""

    text: str = ""
    calls: tuple[tuple[str, dict[str, Any]], ...] = ()
    thinking: str = ""
    after_s: float = 0.0
    once: Callable[[], Awaitable[object]] | None = None  # awaited before the reply is sent
    fails: str = ""
    failure: ModelFailureKind = ModelFailureKind.BAD_REQUEST  # a failure that is not retried
    retry_after_s: float | None = None
    usage: Usage | None = None  # None: a few tokens
    stop: StopReason | None = None
    cost_microusd: int = 0


def text_reply(text: str, **kw: Any) -> ScriptedReply:
    """Return a reply that consists of text."""
    return ScriptedReply(text=text, **kw)


def tool_call_reply(tool: str, **arguments: Any) -> ScriptedReply:
    """Return a reply that makes one tool call."""
    return ScriptedReply(calls=((tool, arguments),))


@dataclass(slots=True)
class ScriptedModel:
    """A model that replies from `script`.

    When the script is exhausted, the model replies by `rule`. If there is no rule, it raises
    `ModelFailed`, so that a test notices an unexpected model call. `will_reply` extends the script.
    `prompts` contains every prompt that the model got.

        model.will_reply("Hello.", tool_call_reply("append_line", text="milk"), "Done.")
    """

    clock: Clock
    name: str = "scripted"
    rule: Callable[[ModelPrompt], ScriptedReply] | None = None
    price_microusd: int = 0  # per call
    window_tokens: int = DEFAULT_WINDOW_TOKENS
    vision: bool = False
    script: deque[ScriptedReply] = field(default_factory=deque[ScriptedReply])
    prompts: list[ModelPrompt] = field(default_factory=list[ModelPrompt])
    chunk_chars: int = 12

    def will_reply(self, *replies: str | ScriptedReply) -> None:
        """Append replies to the script. A string is a text reply."""
        self.script.extend(text_reply(line) if isinstance(line, str) else line for line in replies)

    @property
    def facts(self) -> ModelFacts:
        price = Price(call=self.price_microusd) if self.price_microusd else FREE_PRICE
        return ModelFacts(
            ref=ModelRef("", self.name), price=price, window_tokens=self.window_tokens, vision=self.vision
        )

    async def reply(self, prompt: ModelPrompt, *, key: str = "") -> AsyncIterator[ReplyChunk]:
        self.prompts.append(replace(prompt, records=tuple(prompt.records)))
        line = self._next_reply(prompt)
        if line.after_s:
            await self.clock.sleep(line.after_s)
        if line.once is not None:
            await line.once()
        if line.fails:
            raise ScriptedFailure(line.fails, failure=line.failure, retry_after_s=line.retry_after_s)
        if line.thinking:
            yield ThinkingChunk(line.thinking)
        for piece in split_text(line.text, self.chunk_chars):
            yield TextChunk(piece)
        for i, (tool, arguments) in enumerate(line.calls):
            yield ToolCallChunk(Call(id=f"c{i}", tool=tool, arguments=arguments))
        usage = line.usage or Usage(input_tokens=10, output_tokens=5, cost_microusd=line.cost_microusd)
        yield EndChunk(line.stop or (StopReason.CALLS if line.calls else StopReason.END), usage)

    def _next_reply(self, prompt: ModelPrompt) -> ScriptedReply:
        if self.script:
            return self.script.popleft()
        if self.rule is not None:
            return self.rule(prompt)
        raise ScriptEnded


def split_text(text: str, size: int) -> Sequence[str]:
    return [text[i : i + size] for i in range(0, len(text), size)]
