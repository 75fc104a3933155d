"""Errors of direct tool calls, which are made outside of any run."""

from __future__ import annotations

from retinue.domain.errors import NotAllowed, NotFound
from retinue.domain.shared_errors import shorten_name


class ToolNotFound(NotFound):
    """No tool has this name, or a rule hides the tool. `setting` is the setting with this rule."""

    code = "tool.not_found"

    def __init__(self, name: str, *, because: str = "", setting: str = "") -> None:
        super().__init__(
            f"no tool named '{shorten_name(name)}'",
            because=because,
            try_this=f"change {setting}" if setting else "list the tools: retinue tool list, or tools/list over MCP",
        )


class ToolsUnavailable(NotFound):
    """This server has no tools."""

    code = "tool.none"

    def __init__(self) -> None:
        super().__init__(
            "this server has no tools",
            because="it was started without tool support",
            try_this="start it with: retinue run",
        )


class ToolNeedsApproval(NotAllowed):
    """A direct call needs an approval, which only a run can request."""

    code = "tool.needs_approval"

    def __init__(self, tool: str, *, because: str) -> None:
        super().__init__(
            f"'{tool}' needs an approval, and a direct call cannot ask for one",
            because=because,
            try_this="let the agent call it in a conversation, or grant it: retinue grant add AGENT PERMISSION",
        )
