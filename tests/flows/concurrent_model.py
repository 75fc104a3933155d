"""A scripted rule for a model that several runs call at once: each reply depends on the last message of its prompt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from retinue.domain.record import Reply, UserTurn
from retinue.models.base import ModelPrompt
from retinue.testing.scripted_model import ScriptedModel, ScriptedReply, text_reply, tool_call_reply

SUBAGENT_ENDED_TEXT = "has ended:"  # in the notice about each subagent


def set_scripted_rule(
    model: ScriptedModel, parts: Mapping[str, Sequence[str | ScriptedReply] | str | ScriptedReply]
) -> None:
    """Give the replies for each text that a message may contain, one after the other. The first text that matches
    counts.
    """

    def rule(prompt: ModelPrompt) -> ScriptedReply:
        at = max(index for index, record in enumerate(prompt.records) if isinstance(record.body, UserTurn))
        turn = prompt.records[at].body
        assert isinstance(turn, UserTurn)
        said = sum(isinstance(record.body, Reply) for record in prompt.records[at:])
        for words, lines in parts.items():
            if words in turn.text:
                chosen = [lines] if isinstance(lines, str | ScriptedReply) else list(lines)
                assert said < len(chosen), f"no reply left for {words!r}: {prompt.records[-1].body}"
                line = chosen[said]
                return text_reply(line) if isinstance(line, str) else line
        raise AssertionError(f"no reply for {turn.text!r}")

    model.rule = rule


def spawn_call(task: str = "Count the chairs.", **more: Any) -> ScriptedReply:
    return tool_call_reply("sessions_spawn", task=task, **more)
