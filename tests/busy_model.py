"""A scripted model for tests with mixed activity: each message says what the model does."""

from __future__ import annotations

from retinue.domain.record import UserTurn
from retinue.domain.tool import ToolResult
from retinue.models.base import ModelPrompt
from retinue.testing.scripted_model import ScriptedReply, text_reply, tool_call_reply


def script(prompt: ModelPrompt) -> ScriptedReply:
    """Does what the text of the message asks for."""
    match prompt.records[-1].body:
        case ToolResult():
            return text_reply("that is done", cost_microusd=300)
        case UserTurn(text=text) if "use a tool" in text:
            return tool_call_reply("append_line", text="hello")
        case UserTurn(text=text) if "fail" in text:
            return text_reply("", fails="the model is out of order")
        case UserTurn(text=text) if "be slow" in text:
            return text_reply("at last", after_s=600)
        case UserTurn(text=text) if "hush" in text:
            return text_reply("NO_REPLY")
        case _:
            return text_reply("very well", cost_microusd=700)
