"""`panels_*` and `open_url`: read and change the panels in the web app of the person an agent works
for.

The content of panels is untrusted. A title or a context repeats whatever the panel shows, such as
an email, a web page or a file that a stranger wrote.

The person's own browser opens a link with everything in its address, so `open_url` sends data out.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated, Any, ClassVar
from urllib.parse import urlsplit

import msgspec

from retinue.domain.errors import RetinueError
from retinue.domain.tool import Effect, ToolSpec
from retinue.tools.base import Scene, Tool, ToolFailed, as_tool_failed, schema_of
from retinue.tools.notify import person_of
from retinue.tools.ui_windows import NAME_LENGTH_MAX, TITLE_LENGTH_MAX, Panel, Window, Windows

URL_LENGTH_MAX = 2_000
PANEL_TYPE = "panel-type"  # key in a command; `type` is the type of the WebSocket frame

_encode = msgspec.json.Encoder().encode
_READS = frozenset({Effect.READS_PRIVATE, Effect.READS_UNTRUSTED})
_WRITES = frozenset({Effect.WRITES})

Meta = msgspec.Meta
Name = Annotated[str, Meta(min_length=1, max_length=NAME_LENGTH_MAX)]
PanelId = Annotated[str, Meta(min_length=1, max_length=NAME_LENGTH_MAX, description="The id of a panel, as listed")]
WindowId = Annotated[str, Meta(max_length=NAME_LENGTH_MAX, description="Which window; left out, the one last used")]


class Region(StrEnum):
    """Where a panel goes: beside another panel, or as a tab with it."""

    TAB = "tab"
    LEFT = "left"
    RIGHT = "right"
    TOP = "top"
    BOTTOM = "bottom"


class ListArguments(msgspec.Struct, forbid_unknown_fields=True):
    context: Annotated[bool, Meta(description="Also what each panel says of its content")] = True


class NoArguments(msgspec.Struct, forbid_unknown_fields=True):
    pass


class OpenArguments(msgspec.Struct, forbid_unknown_fields=True):
    type: Annotated[Name, Meta(description="What kind of panel: run, files, notes; panels_tree tells all types")]
    title: Annotated[str, Meta(max_length=TITLE_LENGTH_MAX)] = ""
    session: Annotated[str, Meta(max_length=NAME_LENGTH_MAX, description="The session it is to show")] = ""
    region: Region = Region.TAB
    beside: Annotated[str, Meta(max_length=NAME_LENGTH_MAX, description="The panel next to which it goes")] = ""
    focus: bool = True
    window: WindowId = ""


class PanelArguments(msgspec.Struct, forbid_unknown_fields=True):
    panel: PanelId
    window: WindowId = ""


class MoveArguments(msgspec.Struct, forbid_unknown_fields=True):
    panel: PanelId
    beside: Annotated[PanelId, Meta(description="The panel next to which it goes")]
    region: Region = Region.TAB
    window: WindowId = ""


class ReplaceArguments(msgspec.Struct, forbid_unknown_fields=True):
    panel: PanelId
    type: Annotated[Name, Meta(description="What kind of panel takes its place")]
    session: Annotated[str, Meta(max_length=NAME_LENGTH_MAX, description="The session it is to show")] = ""
    window: WindowId = ""


class UrlArguments(msgspec.Struct, forbid_unknown_fields=True):
    url: Annotated[str, Meta(min_length=1, max_length=URL_LENGTH_MAX, description="http or https")]
    window: WindowId = ""


class _OnScreen:
    """Base of the panel tools. They act on the windows of the person the run works for.

    An agent has these tools only if a rule names them, because few agents need them.
    """

    name: ClassVar[str]
    description: ClassVar[str]
    effects: ClassVar[frozenset[Effect]] = _WRITES
    capability: ClassVar[str] = "panels.write"
    arguments: type[msgspec.Struct]

    def __init__(self, windows: Windows) -> None:
        self.windows = windows
        self.spec = ToolSpec(
            name=self.name,
            description=self.description,
            parameters=_schema(self.arguments),
            effects=self.effects,
            capabilities=frozenset({self.capability}),
            repeatable=Effect.READS_PRIVATE in self.effects,
            by_name=True,
        )

    async def perform(self, arguments: Any, scene: Scene) -> str:
        person = person_of(scene)
        if person is None:
            raise ToolFailed(
                "nobody's screen is yours to use here",
                because="no person's words are being worked on",
                try_this="say it in your answer instead",
                code="panel.nobody",
            )
        try:
            return await self._do(arguments, person, scene.agent.name)
        except ToolFailed:
            raise
        except RetinueError as error:
            raise as_tool_failed(error) from error

    @abstractmethod
    async def _do(self, arguments: Any, person: str, agent: str) -> str: ...


def _schema(arguments: type[msgspec.Struct]) -> dict[str, Any]:
    """Inline the regions, because not every provider follows references."""
    schema = schema_of(arguments)
    if "region" in schema["properties"]:
        regions = {"type": "string", "enum": [region.value for region in Region], "default": Region.TAB.value}
        schema["properties"]["region"] = regions
    return schema


# --- reading ---


class PanelsList(_OnScreen):
    name = "panels_list"
    description = "List the panels in the windows of the person you work for, the window last used first."
    effects = _READS
    capability = "panels.read"
    arguments = ListArguments

    async def _do(self, arguments: ListArguments, person: str, agent: str) -> str:
        self.windows.find(person)
        return _told([_window(each, context=arguments.context) for each in self.windows.of(person)])


class PanelsSelected(_OnScreen):
    name = "panels_selected"
    description = "Show the panel that the person you work for has selected, in the window last used."
    effects = _READS
    capability = "panels.read"
    arguments = ListArguments

    async def _do(self, arguments: ListArguments, person: str, agent: str) -> str:
        window = self.windows.find(person)
        chosen = [panel for panel in window.inventory.panels if panel.id == window.inventory.selected]
        shown = _panel(chosen[0], context=arguments.context) if chosen else None
        return _told({"window": window.id, "selected": shown})


class PanelsTree(_OnScreen):
    name = "panels_tree"
    description = "Show how the panels of the person you work for are laid out, and which types there are to open."
    effects = _READS
    capability = "panels.read"
    arguments = NoArguments

    async def _do(self, arguments: NoArguments, person: str, agent: str) -> str:
        self.windows.find(person)
        return _told(
            [_window(each, context=False) | {"layout": each.inventory.layout} for each in self.windows.of(person)]
        )


def _told(found: Any) -> str:
    return _encode(found).decode()


def _window(window: Window, *, context: bool) -> dict[str, Any]:
    panels = [_panel(panel, context=context) for panel in window.inventory.panels]
    return {"window": window.id, "selected": window.inventory.selected, "panels": panels}


def _panel(panel: Panel, *, context: bool) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "id": panel.id,
        "type": panel.type,
        "title": panel.title,
        "visible": panel.visible,
        "binding": panel.binding,
    }
    return shown | {"context": panel.context} if context else shown


# --- changing ---


class PanelsOpen(_OnScreen):
    name = "panels_open"
    description = "Open a panel on the screen of the person you work for."
    arguments = OpenArguments

    async def _do(self, arguments: OpenArguments, person: str, agent: str) -> str:
        window = self.windows.find(person, window=arguments.window, panel=arguments.beside)
        made = await self.windows.command(
            window,
            "open",
            agent=agent,
            **{PANEL_TYPE: arguments.type},
            title=arguments.title,
            binding=arguments.session or None,
            region=arguments.region,
            beside=arguments.beside or None,
            focus=arguments.focus,
        )
        return f"Opened {made or 'it'} in window {window.id}."


class PanelsClose(_OnScreen):
    name = "panels_close"
    description = "Close a panel on the screen of the person you work for."
    arguments = PanelArguments

    async def _do(self, arguments: PanelArguments, person: str, agent: str) -> str:
        window = self.windows.find(person, window=arguments.window, panel=arguments.panel)
        await self.windows.command(window, "close", agent=agent, panel=arguments.panel)
        return f"Closed {arguments.panel}."


class PanelsMove(_OnScreen):
    name = "panels_move"
    description = "Move a panel beside another one, or into its tabs."
    arguments = MoveArguments

    async def _do(self, arguments: MoveArguments, person: str, agent: str) -> str:
        window = self.windows.find(person, window=arguments.window, panel=arguments.panel)
        self.windows.find(person, window=window.id, panel=arguments.beside)  # both panels must be in the same window
        await self.windows.command(
            window, "move", agent=agent, panel=arguments.panel, beside=arguments.beside, region=arguments.region
        )
        return f"Moved {arguments.panel}."


class PanelsReplace(_OnScreen):
    name = "panels_replace"
    description = "Put another panel in the place of one."
    arguments = ReplaceArguments

    async def _do(self, arguments: ReplaceArguments, person: str, agent: str) -> str:
        window = self.windows.find(person, window=arguments.window, panel=arguments.panel)
        made = await self.windows.command(
            window,
            "replace",
            agent=agent,
            panel=arguments.panel,
            **{PANEL_TYPE: arguments.type},
            binding=arguments.session or None,
        )
        return f"Replaced {arguments.panel}{f' by {made}' if made else ''}."


class PanelsFocus(_OnScreen):
    name = "panels_focus"
    description = "Bring a panel before the person you work for."
    arguments = PanelArguments

    async def _do(self, arguments: PanelArguments, person: str, agent: str) -> str:
        window = self.windows.find(person, window=arguments.window, panel=arguments.panel)
        await self.windows.command(window, "focus", agent=agent, panel=arguments.panel)
        return f"{arguments.panel} has the focus."


class OpenUrl(_OnScreen):
    """Opens a link in the person's browser. Fails if the person has no window open; the server
    opens nothing itself.
    """

    name = "open_url"
    description = "Put a link before the person you work for, to be opened in their browser."
    effects = frozenset({Effect.SENDS_OUT})
    capability = "links.open"
    arguments = UrlArguments

    async def _do(self, arguments: UrlArguments, person: str, agent: str) -> str:
        url = _checked(arguments.url)
        window = self.windows.find(person, window=arguments.window)
        await self.windows.command(window, "open-url", agent=agent, url=url)
        return f"Opened in window {window.id}."


def _checked(url: str) -> str:
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
        raise ToolFailed(
            "this link cannot be opened",
            because="a link is http:// or https:// with a host, no name or password before it, and no spaces in it",
            try_this="https://example.org/",
            code="link.invalid",
        )
    return url


_ALL: Sequence[type[_OnScreen]] = (
    PanelsList,
    PanelsSelected,
    PanelsTree,
    PanelsOpen,
    PanelsClose,
    PanelsMove,
    PanelsReplace,
    PanelsFocus,
    OpenUrl,
)


def screen_tools(windows: Windows) -> tuple[Tool, ...]:
    return tuple(each(windows) for each in _ALL)
