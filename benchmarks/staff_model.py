"""A model that makes the floor's own request, and hands work on where its mail asks for it."""

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
SEND = re.compile(r"Send out (\d+)")
AT_ONCE = 50  # calls of one reply


class StaffModel(CoreModel):
    """`Ask the helper` has one agent asked, and `Send out N` has N subagents sent out."""

    name = "staff"

    def __init__(self, port: int) -> None:
        super().__init__(port)
        self.facts = ModelFacts(ref=ModelRef("", self.name), price=None, window_tokens=self.facts.window_tokens)

    async def reply(self, prompt: ModelPrompt, *, key: str = "") -> AsyncIterator[ReplyChunk]:
        chunks = [chunk async for chunk in super().reply(prompt, key=key)]
        words, made = _asked(prompt.records)
        wanted = SEND.search(words)
        if ASK in words and not made:
            yield ToolCallChunk(
                Call(id="c0", tool="agents_message", arguments={"agentId": HELPER, "content": "plain work"})
            )
            yield EndChunk(StopReason.CALLS, Usage(input_tokens=100, output_tokens=40))
        elif wanted is not None and made < int(wanted[1]):
            for number in range(made, min(made + AT_ONCE, int(wanted[1]))):
                yield ToolCallChunk(
                    Call(id=f"c{number}", tool="sessions_spawn", arguments={"task": f"small task {number}"})
                )
            yield EndChunk(StopReason.CALLS, Usage(input_tokens=100, output_tokens=40))
        else:
            for chunk in chunks:
                yield chunk


def _asked(records: Sequence[Record]) -> tuple[str, int]:
    """What the newest mail says, and how many results came since. From the end: a model has no CPU in a real house."""
    made = 0
    for record in reversed(records):
        if isinstance(record.body, UserTurn):
            return record.body.text, made
        made += isinstance(record.body, ToolResult)
    return "", made
