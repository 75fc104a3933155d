"""Builds a text outline of a web page, with refs to its elements.

The outline is built from the accessibility tree that Chromium computes, so page scripts cannot
change how it is built.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from msgspec import Struct, field

NODES_MAX = 20_000
REFS_MAX = 40_000
DEPTH_MAX = 12  # maximum indentation; deeper elements stay at it
NAME_CHARS_MAX = 300
LINK_CHARS_MAX = 300

_INTERACTIVE_ROLES = frozenset(
    {"button", "link", "textbox", "searchbox", "combobox", "checkbox", "radio", "switch", "slider", "spinbutton"}
    | {"menuitem", "menuitemcheckbox", "menuitemradio", "option", "tab", "treeitem", "listbox", "ColorWell", "Date"}
    | {"DateTime", "InputTime", "DisclosureTriangle", "PopUpButton"}
)
_SKIPPED_ROLES = frozenset(
    {
        "none",
        "generic",
        "presentation",
        "InlineTextBox",
        "LabelText",
        "LineBreak",
        "MenuListPopup",
        "RootWebArea",
        "Section",
    }
)
_INPUT_ROLES = ("textbox", "searchbox", "spinbutton")  # their content is their value
_STATES = ("checked", "selected", "expanded", "disabled", "required", "focused", "pressed")


class ElementRefs(Struct):
    """Maps refs to page elements. Refs are never reused.

    An element keeps its ref until the browser leaves the page, or until there are too many refs.
    """

    count: int = 0  # over all pages
    node_by_ref: dict[str, int] = field(default_factory=dict[str, int])
    ref_by_node: dict[int, str] = field(default_factory=dict[int, str])

    def get_ref(self, node: int) -> str:
        known = self.ref_by_node.get(node)
        if known is not None:
            return known
        if len(self.ref_by_node) >= REFS_MAX:
            self.clear()
        self.count += 1
        name = self.ref_by_node[node] = f"e{self.count}"
        self.node_by_ref[name] = node
        return name

    def clear(self) -> None:
        """Clear all refs after a navigation."""
        self.node_by_ref.clear()
        self.ref_by_node.clear()


class PageOutline(Struct):
    """Collects the outline of a web page, frame by frame."""

    refs: ElementRefs
    lines: list[str] = field(default_factory=list[str])

    def add_frame(self, nodes: Sequence[Mapping[str, Any]], *, depth: int = 0) -> None:
        """Add one frame of the page. `nodes` has the format of `Accessibility.getFullAXTree`."""
        if not nodes:
            return
        by_id = {str(node.get("nodeId")): node for node in nodes[:NODES_MAX]}
        # Iterative, because a page can be nested deeper than the recursion limit.
        left: list[tuple[Mapping[str, Any], int]] = [(nodes[0], depth)]
        seen: set[str] = set()
        while left:
            node, at = left.pop()
            node_id = str(node.get("nodeId"))
            if node_id in seen:
                continue
            seen.add(node_id)
            shown, below = self._add_line(node, at)
            children = (
                [] if shown == "leaf" else [by_id[str(each)] for each in node.get("childIds", []) if each in by_id]
            )
            left += [(child, below) for child in reversed(children)]

    def _add_line(self, node: Mapping[str, Any], depth: int) -> tuple[str, int]:
        """Add the line of a node of the accessibility tree, unless the node has none.

        Returns "leaf" if the node's children are not shown, otherwise an empty string. The second
        value is the depth of the children.
        """
        role, name = _value(node, "role"), " ".join(_value(node, "name").split())[:NAME_CHARS_MAX]
        if node.get("ignored") or role in _SKIPPED_ROLES:
            return "", depth
        indent = "  " * min(depth, DEPTH_MAX)
        if role == "StaticText":
            if name:
                self.lines.append(f"{indent}{name}")
            return "leaf", depth
        properties = _properties(node)
        ref = self._format_ref(node) if role in _INTERACTIVE_ROLES or properties.get("focusable") is True else ""
        words = [f"- {role}", *([f'"{name}"'] if name else []), *_describe_state(node, role, properties), ref]
        self.lines.append(indent + " ".join(filter(None, words)))
        # A single child only repeats the name.
        leaf = role in ("button", "link", "option", "tab", "heading") and name and len(node.get("childIds", [])) < 2
        return ("leaf" if leaf or role in _INPUT_ROLES else "", depth + 1)

    def _format_ref(self, node: Mapping[str, Any]) -> str:
        backend = node.get("backendDOMNodeId")
        if not isinstance(backend, int):
            return ""
        return f"[{self.refs.get_ref(backend)}]"


def _describe_state(node: Mapping[str, Any], role: str, properties: Mapping[str, Any]) -> list[str]:
    states: list[str] = []
    if level := properties.get("level"):
        states.append(f"level {level}")
    value = " ".join(_value(node, "value").split())[:NAME_CHARS_MAX]
    if value:
        states.append(f'= "{value}"')
    states += [state for state in _STATES if properties.get(state) in (True, "true", "mixed")]
    if role == "link" and isinstance(url := properties.get("url"), str) and url:
        states.append(f"-> {url[:LINK_CHARS_MAX]}")
    return states


def _value(node: Mapping[str, Any], key: str) -> str:
    found = node.get(key)
    value: object = cast("dict[str, object]", found).get("value") if isinstance(found, dict) else None
    return value if isinstance(value, str) else "" if value is None else str(value)


def _properties(node: Mapping[str, Any]) -> dict[str, Any]:
    return {
        str(each.get("name")): _property_value(each.get("value"))
        for each in cast("list[dict[str, Any]]", node.get("properties", []))
    }


def _property_value(value: Any) -> Any:
    return cast("dict[str, Any]", value).get("value") if isinstance(value, dict) else None
