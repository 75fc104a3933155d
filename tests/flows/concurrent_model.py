"""A model that several runs ask at once: what it says goes by what each has to answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from retinue.domain.record import Reply, UserTurn
from retinue.models.base import ModelPrompt
from retinue.testing.scripted_model import ScriptedModel, ScriptedReply, text_reply, tool_call_reply

ENDED = "has ended:"  # what is told of every subagent


def plays(model: ScriptedModel, parts: Mapping[str, Sequence[str | ScriptedReply] | str | ScriptedReply]) -> None:
    """For each words that mail may hold, what is said to it, one reply after the other. The first that fits counts."""

    def rule(prompt: ModelPrompt) -> ScriptedReply:
        at = max(index for index, record in enumerate(prompt.records) if isinstance(record.body, UserTurn))
        turn = prompt.records[at].body
        assert isinstance(turn, UserTurn)
        said = sum(isinstance(record.body, Reply) for record in prompt.records[at:])
        for words, lines in parts.items():
            if words in turn.text:
                chosen = [lines] if isinstance(lines, str | ScriptedReply) else list(lines)
                assert said < len(chosen), f"asked once more about {words!r}: {prompt.records[-1].body}"
                line = chosen[said]
                return text_reply(line) if isinstance(line, str) else line
        raise AssertionError(f"nobody plays {turn.text!r}")

    model.rule = rule


def spawn(task: str = "Count the chairs.", **more: Any) -> ScriptedReply:
    return tool_call_reply("sessions_spawn", task=task, **more)
