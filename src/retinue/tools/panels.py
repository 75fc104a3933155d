"""The tools `panels_*` and `open_url`: read and change the panels in the web app of the person an agent works for.

The content of panels is untrusted. A panel's title or context repeats what the panel shows, such as
an email, a web page or a file that a stranger wrote.

The person's browser requests the complete address of a link, so `open_url` can send data to the
outside.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated, Any, ClassVar
from urllib.parse import urlsplit

import msgspec

from retinue.domain.errors import RetinueError
from retinue.domain.tool import ToolEffect, ToolSpec
from retinue.tools.base import Tool, ToolContext, ToolFailed, as_tool_failed, schema_of
from retinue.tools.errors import LinkInvalid, PanelPersonMissing
from retinue.tools.notify import person_of
from retinue.tools.ui_windows import NAME_LENGTH_MAX, TITLE_LENGTH_MAX, Panel, Window, WindowRegistry

URL_LENGTH_MAX = 2_000
PANEL_TYPE_KEY = "panel_type"  # key in a command; `type` is the type of the WebSocket frame

_encode = msgspec.json.Encoder().encode
_READS = frozenset({ToolEffect.READS_PRIVATE, ToolEffect.READS_UNTRUSTED})
_WRITES = frozenset({ToolEffect.WRITES})

Meta = msgspec.Meta
Name = Annotated[str, Meta(min_length=1, max_length=NAME_LENGTH_MAX)]
PanelId = Annotated[
    str, Meta(min_length=1, max_length=NAME_LENGTH_MAX, description="Id of a panel, as returned by panels_list")
]
WindowId = Annotated[
    str, Meta(max_length=NAME_LENGTH_MAX, description="Id of a window. Default: the most recently used one")
]


class PanelRegion(StrEnum):
    """Where to put a panel: on a side of another panel, or as a tab next to it."""

    TAB = "tab"
    LEFT = "left"
    RIGHT = "right"
    TOP = "top"
    BOTTOM = "bottom"


class PanelsListArguments(msgspec.Struct, forbid_unknown_fields=True):
    context: Annotated[bool, Meta(description="Whether to include the description of each panel's content")] = True


class PanelsTreeArguments(msgspec.Struct, forbid_unknown_fields=True):
    pass


class PanelsOpenArguments(msgspec.Struct, forbid_unknown_fields=True):
    type: Annotated[Name, Meta(description="Panel type, such as run, files or notes; panels_tree returns all types")]
    title: Annotated[str, Meta(max_length=TITLE_LENGTH_MAX)] = ""
    session: Annotated[str, Meta(max_length=NAME_LENGTH_MAX, description="Session to show in the panel")] = ""
    region: PanelRegion = PanelRegion.TAB
    beside: Annotated[
        str, Meta(max_length=NAME_LENGTH_MAX, description="Id of the panel to place this panel next to")
    ] = ""
    focus: bool = True
    window: WindowId = ""


class PanelArguments(msgspec.Struct, forbid_unknown_fields=True):
    panel: PanelId
    window: WindowId = ""


class PanelsMoveArguments(msgspec.Struct, forbid_unknown_fields=True):
    panel: PanelId
    beside: Annotated[PanelId, Meta(description="Id of the panel to place this panel next to")]
    region: PanelRegion = PanelRegion.TAB
    window: WindowId = ""


class PanelsReplaceArguments(msgspec.Struct, forbid_unknown_fields=True):
    panel: PanelId
    type: Annotated[Name, Meta(description="Type of the new panel")]
    session: Annotated[str, Meta(max_length=NAME_LENGTH_MAX, description="Session to show in the panel")] = ""
    window: WindowId = ""


class OpenUrlArguments(msgspec.Struct, forbid_unknown_fields=True):
    url: Annotated[str, Meta(min_length=1, max_length=URL_LENGTH_MAX, description="http or https URL")]
    window: WindowId = ""


class _PanelTool:
    """Base class of the panel tools. They act on the browser windows of the person for whom the run works.

    An agent has these tools only if a rule names them, because few agents need them.
    """

    name: ClassVar[str]
    description: ClassVar[str]
    effects: ClassVar[frozenset[ToolEffect]] = _WRITES
    capability: ClassVar[str] = "panels.write"
    arguments: type[msgspec.Struct]

    def __init__(self, windows: WindowRegistry) -> None:
        self.windows = windows
        self.spec = ToolSpec(
            name=self.name,
            description=self.description,
            parameters=_build_schema(self.arguments),
            effects=self.effects,
            capabilities=frozenset({self.capability}),
            is_repeatable=ToolEffect.READS_PRIVATE in self.effects,
            must_be_named=True,
        )

    async def perform(self, arguments: Any, context: ToolContext) -> str:
        person = person_of(context)
        if person is None:
            raise PanelPersonMissing
        try:
            return await self._execute(arguments, person, context.agent.name)
        except ToolFailed:
            raise
        except RetinueError as error:
            raise as_tool_failed(error) from error

    @abstractmethod
    async def _execute(self, arguments: Any, person: str, agent: str) -> str: ...


def _build_schema(arguments: type[msgspec.Struct]) -> dict[str, Any]:
    """Return the schema of the arguments with the regions inlined, because not every provider follows references."""
    schema = schema_of(arguments)
    if "region" in schema["properties"]:
        regions = {"type": "string", "enum": [region.value for region in PanelRegion], "default": PanelRegion.TAB.value}
        schema["properties"]["region"] = regions
    return schema


# --- reading ---


class PanelsListTool(_PanelTool):
    name = "panels_list"
    description = (
        "List the panels in the web app windows of the person you work for, the most recently used window first."
    )
    effects = _READS
    capability = "panels.read"
    arguments = PanelsListArguments

    async def _execute(self, arguments: PanelsListArguments, person: str, agent: str) -> str:
        self.windows.find_window(person)
        return _encode_json(
            [_describe_window(each, context=arguments.context) for each in self.windows.list_windows(person)]
        )


class PanelsSelectedTool(_PanelTool):
    name = "panels_selected"
    description = "Return the panel that the person you work for has selected in the most recently used window."
    effects = _READS
    capability = "panels.read"
    arguments = PanelsListArguments

    async def _execute(self, arguments: PanelsListArguments, person: str, agent: str) -> str:
        window = self.windows.find_window(person)
        chosen = [panel for panel in window.inventory.panels if panel.id == window.inventory.selected]
        shown = _describe_panel(chosen[0], context=arguments.context) if chosen else None
        return _encode_json({"window": window.id, "selected": shown})


class PanelsTreeTool(_PanelTool):
    name = "panels_tree"
    description = "Return the layout of the panels of the person you work for, and the panel types that can be opened."
    effects = _READS
    capability = "panels.read"
    arguments = PanelsTreeArguments

    async def _execute(self, arguments: PanelsTreeArguments, person: str, agent: str) -> str:
        self.windows.find_window(person)
        return _encode_json(
            [
                _describe_window(each, context=False) | {"layout": each.inventory.layout}
                for each in self.windows.list_windows(person)
            ]
        )


def _encode_json(found: Any) -> str:
    return _encode(found).decode()


def _describe_window(window: Window, *, context: bool) -> dict[str, Any]:
    panels = [_describe_panel(panel, context=context) for panel in window.inventory.panels]
    return {"window": window.id, "selected": window.inventory.selected, "panels": panels}


def _describe_panel(panel: Panel, *, context: bool) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "id": panel.id,
        "type": panel.type,
        "title": panel.title,
        "visible": panel.visible,
        "binding": panel.binding,
    }
    return shown | {"context": panel.context} if context else shown


# --- changing ---


class PanelsOpenTool(_PanelTool):
    name = "panels_open"
    description = "Open a panel in the web app of the person you work for."
    arguments = PanelsOpenArguments

    async def _execute(self, arguments: PanelsOpenArguments, person: str, agent: str) -> str:
        window = self.windows.find_window(person, window=arguments.window, panel=arguments.beside)
        made = await self.windows.send_command(
            window,
            "open",
            agent=agent,
            **{PANEL_TYPE_KEY: arguments.type},
            title=arguments.title,
            binding=arguments.session or None,
            region=arguments.region,
            beside=arguments.beside or None,
            focus=arguments.focus,
        )
        return f"Opened {made or 'the panel'} in window {window.id}."


class PanelsCloseTool(_PanelTool):
    name = "panels_close"
    description = "Close a panel in the web app of the person you work for."
    arguments = PanelArguments

    async def _execute(self, arguments: PanelArguments, person: str, agent: str) -> str:
        window = self.windows.find_window(person, window=arguments.window, panel=arguments.panel)
        await self.windows.send_command(window, "close", agent=agent, panel=arguments.panel)
        return f"Closed {arguments.panel}."


class PanelsMoveTool(_PanelTool):
    name = "panels_move"
    description = "Move a panel beside another one, or into its tabs."
    arguments = PanelsMoveArguments

    async def _execute(self, arguments: PanelsMoveArguments, person: str, agent: str) -> str:
        window = self.windows.find_window(person, window=arguments.window, panel=arguments.panel)
        self.windows.find_window(
            person, window=window.id, panel=arguments.beside
        )  # both panels must be in the same window
        await self.windows.send_command(
            window, "move", agent=agent, panel=arguments.panel, beside=arguments.beside, region=arguments.region
        )
        return f"Moved {arguments.panel}."


class PanelsReplaceTool(_PanelTool):
    name = "panels_replace"
    description = "Replace a panel with another one."
    arguments = PanelsReplaceArguments

    async def _execute(self, arguments: PanelsReplaceArguments, person: str, agent: str) -> str:
        window = self.windows.find_window(person, window=arguments.window, panel=arguments.panel)
        made = await self.windows.send_command(
            window,
            "replace",
            agent=agent,
            panel=arguments.panel,
            **{PANEL_TYPE_KEY: arguments.type},
            binding=arguments.session or None,
        )
        return f"Replaced {arguments.panel}{f' with {made}' if made else ''}."


class PanelsFocusTool(_PanelTool):
    name = "panels_focus"
    description = "Select a panel in the web app of the person you work for."
    arguments = PanelArguments

    async def _execute(self, arguments: PanelArguments, person: str, agent: str) -> str:
        window = self.windows.find_window(person, window=arguments.window, panel=arguments.panel)
        await self.windows.send_command(window, "focus", agent=agent, panel=arguments.panel)
        return f"{arguments.panel} has the focus."


class OpenUrlTool(_PanelTool):
    """The tool `open_url`: opens a link in the person's browser. It fails if the person has no
    window open; the server itself opens nothing."""

    name = "open_url"
    description = "Open a link in the browser of the person you work for."
    effects = frozenset({ToolEffect.SENDS_OUT})
    capability = "links.open"
    arguments = OpenUrlArguments

    async def _execute(self, arguments: OpenUrlArguments, person: str, agent: str) -> str:
        url = _check_link(arguments.url)
        window = self.windows.find_window(person, window=arguments.window)
        await self.windows.send_command(window, "open_url", agent=agent, url=url)
        return f"Opened in window {window.id}."


def _check_link(url: str) -> str:
    """Return the URL if it is plain http or https. Other schemes could run or read something in the
    browser.
    """
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and "@" not in parts.netloc
        _ = parts.port  # raises ValueError if it is not a number
    except ValueError:
        good = False
    if not good or not url.isprintable() or " " in url or "\\" in url:
        raise LinkInvalid
    return url


_TOOL_CLASSES: Sequence[type[_PanelTool]] = (
    PanelsListTool,
    PanelsSelectedTool,
    PanelsTreeTool,
    PanelsOpenTool,
    PanelsCloseTool,
    PanelsMoveTool,
    PanelsReplaceTool,
    PanelsFocusTool,
    OpenUrlTool,
)


def build_panel_tools(windows: WindowRegistry) -> tuple[Tool, ...]:
    return tuple(each(windows) for each in _TOOL_CLASSES)
