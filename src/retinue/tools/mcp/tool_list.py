"""Parses the tool list that an MCP server sent: limits its size, sanitizes it, and hashes it to detect changes.

A list is used only if a person has approved it and it has not changed since the approval. A server
that was harmless yesterday may send models other instructions today.
"""

from __future__ import annotations

import hashlib
import json
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
from msgspec import Struct

from retinue.domain.tool import ToolEffect
from retinue.text.glob_match import matches_glob
from retinue.text.untrusted_wrapper import remove_markers
from retinue.tools.mcp.schemas import Json, UnsupportedSchema, flatten_schema
from retinue.tools.mcp.tool_names import tool_name

TOOLS_MAX = 200  # per server
DESCRIPTION_CHARS_MAX = 4_000
NAME_CHARS_MAX = 256
SCHEMA_CHARS_MAX = 40_000
RESOURCES = "resources"

READ_CAPABILITY, WRITE_CAPABILITY, DESTROY_CAPABILITY = "mcp.read", "mcp.write", "mcp.destroy"
_INVISIBLE_CATEGORIES = frozenset({"Cc", "Cf", "Co", "Cn", "Cs", "Zl", "Zp"})
_NO_ID = "0" * 32


class ToolHints(Struct, frozen=True, kw_only=True):
    """A server's hints about the effects of a tool.

    If the server gives no hint (None), the tool is assumed to have the effect.
    """

    read_only: bool | None = None
    destructive: bool | None = None
    idempotent: bool | None = None
    open_world: bool | None = None


class ListedTool(Struct, frozen=True, kw_only=True):
    """One tool as the server describes it."""

    name: str
    description: str = ""
    schema: Any = msgspec.field(default_factory=dict[str, Any])
    hints: ToolHints = ToolHints()


class OfferedTool(Struct, frozen=True, kw_only=True):
    """One tool as agents see it. `name` is the name for agents, and `server_tool_name` the name on the server."""

    name: str
    server_tool_name: str
    description: str
    parameters: Json
    hints: ToolHints

    @property
    def effects(self) -> frozenset[ToolEffect]:
        """The effects of the tool. Its results are always untrusted content.

        Unless the server's hints exclude it, a call also counts as writing, and as sending data to
        the outside.
        """
        effects = {ToolEffect.READS_UNTRUSTED}
        if self.hints.read_only is not True:
            effects.add(ToolEffect.WRITES)
        if self.hints.open_world is not False:
            effects.add(ToolEffect.SENDS_OUT)
        return frozenset(effects)

    @property
    def repeatable(self) -> bool:
        return self.hints.read_only is True or self.hints.idempotent is True

    @property
    def capabilities(self) -> frozenset[str]:
        if self.hints.read_only is True:
            return frozenset({READ_CAPABILITY})
        return (
            frozenset({WRITE_CAPABILITY})
            if self.hints.destructive is False
            else frozenset({WRITE_CAPABILITY, DESTROY_CAPABILITY})
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class McpToolList:
    """The tools of a server. `content` is the text that the owner approves, and `hash` its hash.

    `excluded` maps each unused tool to the reason: the settings exclude it, or it cannot be used.
    """

    tools: tuple[OfferedTool, ...] = ()
    excluded: Mapping[str, str] = field(default_factory=dict[str, str])
    resources: bool = False
    content: str = ""
    hash: str = ""


def build_tool_list(
    server: str,
    tools: Sequence[ListedTool],
    *,
    resources: bool = False,
    allow: Iterable[str] = ("*",),
    deny: Iterable[str] = (),
) -> McpToolList:
    """Build the tool list that agents get, without excluded tools.

    The order in which a server lists its tools is ignored.
    """
    allowed, denied = tuple(allow), tuple(deny)
    offers: dict[str, OfferedTool] = {}
    excluded: dict[str, str] = {}
    taken = tool_name(server, RESOURCES) if resources else ""
    for listed in sorted(tools, key=lambda each: each.name):
        shown = sanitize_text(listed.name)[:NAME_CHARS_MAX]
        if any(matches_glob(glob, listed.name) for glob in denied) or not any(
            matches_glob(glob, listed.name) for glob in allowed
        ):
            excluded[shown] = "the settings of this server exclude it"
            continue
        try:
            offer = _build_offered_tool(server, listed)
        except UnsupportedSchema as unfit:
            excluded[shown] = str(unfit)
            continue
        if offer.name in offers or offer.name == taken:
            excluded[shown] = f"another tool already has this name: {offer.name}"
        elif len(offers) >= TOOLS_MAX:
            excluded[shown] = f"the limit is {TOOLS_MAX} tools for each server"
        else:
            offers[offer.name] = offer
    content = _build_approval_text(offers.values(), resources=resources)
    return McpToolList(
        tools=tuple(offers.values()),
        excluded=excluded,
        resources=resources,
        content=content,
        hash=hashlib.sha256(content.encode(errors="surrogatepass")).hexdigest(),
    )


def _build_offered_tool(server: str, listed: ListedTool) -> OfferedTool:
    if not listed.name or len(listed.name) > NAME_CHARS_MAX:
        raise UnsupportedSchema(f"its name must have 1 to {NAME_CHARS_MAX} characters")
    parameters = flatten_schema(listed.schema, sanitize=sanitize_text)
    if len(json.dumps(parameters)) > SCHEMA_CHARS_MAX:
        raise UnsupportedSchema(f"its schema has more than {SCHEMA_CHARS_MAX:,} characters")
    description = sanitize_text(listed.description)
    if len(description) > DESCRIPTION_CHARS_MAX:
        raise UnsupportedSchema(f"its description has more than {DESCRIPTION_CHARS_MAX:,} characters")
    return OfferedTool(
        name=tool_name(server, listed.name),
        server_tool_name=listed.name,
        description=description,
        parameters=parameters,
        hints=listed.hints,
    )


def sanitize_text(text: str) -> str:
    """Remove invisible characters and anything that looks like a marker of untrusted content.

    Thus the text that the owner approves is the text that a model reads.
    """
    seen = "".join(each for each in text if each in "\n\t" or unicodedata.category(each) not in _INVISIBLE_CATEGORIES)
    return remove_markers(seen, id=_NO_ID)


def _build_approval_text(tools: Iterable[OfferedTool], *, resources: bool) -> str:
    """Return the text that the owner approves.

    It contains everything that a model reads or that rules depend on.
    """
    lines: list[str] = []
    for offer in tools:
        effects = ", ".join(sorted(offer.effects))
        again = "may be repeated" if offer.repeatable else "is not repeated"
        lines += [f"tool {offer.name}  ({json.dumps(offer.server_tool_name)})", f"  effects: {effects}; {again}"]
        lines += [f"  can: {', '.join(sorted(offer.capabilities))}"]
        lines += [f"  | {line}" for line in offer.description.split("\n")]
        schema = json.dumps(offer.parameters, indent=1, sort_keys=True, ensure_ascii=False)
        lines += [f"  {line}" for line in schema.split("\n")]
    if resources:
        lines.append("its resources can be listed and read")
    return "\n".join(lines)
