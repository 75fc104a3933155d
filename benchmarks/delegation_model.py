"""A model that sends the same request as the floor, and delegates if its message asks for it."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Sequence

from benchmarks.core_model import CoreModel
from retinue.domain.model import ModelFacts, ModelRef
from retinue.domain.record import Record, StopReason, Usage, UserTurn
from retinue.domain.tool import Call, ToolResult
from retinue.models.base import EndChunk, ModelPrompt, ReplyChunk, ToolCallChunk

HELPER = "helper"
ASK = "Ask the helper"
SPAWN_PATTERN = re.compile(r"Send out (\d+)")
CALLS_PER_REPLY = 50


class DelegatingModel(CoreModel):
    """A model that delegates: with `Ask the helper` it asks one agent; with `Send out N` it starts N subagents."""

    name = "delegating"

    def __init__(self, port: int) -> None:
        super().__init__(port)
        self.facts = ModelFacts(ref=ModelRef("", self.name), price=None, window_tokens=self.facts.window_tokens)

    async def reply(self, prompt: ModelPrompt, *, key: str = "") -> AsyncIterator[ReplyChunk]:
        chunks = [chunk async for chunk in super().reply(prompt, key=key)]
        words, made = _newest_message(prompt.records)
        wanted = SPAWN_PATTERN.search(words)
        if ASK in words and not made:
            yield ToolCallChunk(
                Call(id="c0", tool="agents_message", arguments={"agentId": HELPER, "content": "plain work"})
            )
            yield EndChunk(StopReason.CALLS, Usage(input_tokens=100, output_tokens=40))
        elif wanted is not None and made < int(wanted[1]):
            for number in range(made, min(made + CALLS_PER_REPLY, int(wanted[1]))):
                yield ToolCallChunk(
                    Call(id=f"c{number}", tool="sessions_spawn", arguments={"task": f"small task {number}"})
                )
            yield EndChunk(StopReason.CALLS, Usage(input_tokens=100, output_tokens=40))
        else:
            for chunk in chunks:
                yield chunk


def _newest_message(records: Sequence[Record]) -> tuple[str, int]:
    """Return the text of the newest message and the number of results since. The search starts at
    the end, to use little CPU."""
    made = 0
    for record in reversed(records):
        if isinstance(record.body, UserTurn):
            return record.body.text, made
        made += isinstance(record.body, ToolResult)
    return "", made
