"""A model for houses in which everything happens: it does what it is asked for in the mail itself."""

from __future__ import annotations

from retinue.domain.record import UserTurn
from retinue.domain.tool import ToolResult
from retinue.models.base import Prompt
from retinue.testing.scripted_model import Line, calls, says


def script(prompt: Prompt) -> Line:
    """What the model does is asked for in the mail itself."""
    match prompt.records[-1].body:
        case ToolResult():
            return says("that is done", cost_microusd=300)
        case UserTurn(text=text) if "use a tool" in text:
            return calls("append_line", text="hello")
        case UserTurn(text=text) if "fail" in text:
            return says("", fails="the model is out of order")
        case UserTurn(text=text) if "be slow" in text:
            return says("at last", after_s=600)
        case UserTurn(text=text) if "hush" in text:
            return says("NO_REPLY")
        case _:
            return says("very well", cost_microusd=700)
