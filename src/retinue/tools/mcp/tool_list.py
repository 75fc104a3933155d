"""Reads the tool list of an MCP server: limits it, sanitizes it, and hashes it to detect changes.
Pure.

A list that is not approved, or that has changed since, is not used. A server that was harmless
yesterday may send models other instructions today.
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

from retinue.domain.tool import Effect
from retinue.text.glob_match import matches_glob
from retinue.text.untrusted_wrapper import harmless
from retinue.tools.mcp.schemas import Json, Unfit, flat
from retinue.tools.mcp.tool_names import tool_name

TOOLS_MAX = 200  # per server
DESCRIPTION_CHARS_MAX = 4_000
NAME_CHARS_MAX = 256
SCHEMA_CHARS_MAX = 40_000
RESOURCES = "resources"

READS, WRITES, DESTROYS = "mcp.read", "mcp.write", "mcp.destroy"
_UNSEEN = frozenset({"Cc", "Cf", "Co", "Cn", "Cs", "Zl", "Zp"})
_NOBODY = "0" * 32


class Hints(Struct, frozen=True, kw_only=True):
    """A server's hints about the effects of a tool. None means unknown, and the worse case is
    assumed.
    """

    read_only: bool | None = None
    destructive: bool | None = None
    idempotent: bool | None = None
    open_world: bool | None = None


class Said(Struct, frozen=True, kw_only=True):
    """One tool as the server describes it."""

    name: str
    description: str = ""
    schema: Any = msgspec.field(default_factory=dict[str, Any])
    hints: Hints = Hints()


class Offer(Struct, frozen=True, kw_only=True):
    """One tool as agents see it. `name` is the name here, `server_tool_name` the name on the
    server.
    """

    name: str
    theirs: str
    description: str
    parameters: Json
    hints: Hints

    @property
    def effects(self) -> frozenset[Effect]:
        """Every result is untrusted content, and every call sends data to the server."""
        effects = {Effect.READS_UNTRUSTED}
        if self.hints.read_only is not True:
            effects.add(Effect.WRITES)
        if self.hints.open_world is not False:
            effects.add(Effect.SENDS_OUT)
        return frozenset(effects)

    @property
    def repeatable(self) -> bool:
        return self.hints.read_only is True or self.hints.idempotent is True

    @property
    def capabilities(self) -> frozenset[str]:
        if self.hints.read_only is True:
            return frozenset({READS})
        return frozenset({WRITES}) if self.hints.destructive is False else frozenset({WRITES, DESTROYS})


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """The tools of a server. `content` is the text that the owner approves, and `hash` its hash.

    `excluded` maps each unused tool to the reason: the settings exclude it, or it cannot be used.
    """

    offers: tuple[Offer, ...] = ()
    left_out: Mapping[str, str] = field(default_factory=dict[str, str])
    resources: bool = False
    content: str = ""
    hash: str = ""


def listing(
    server: str,
    tools: Sequence[Said],
    *,
    resources: bool = False,
    allow: Iterable[str] = ("*",),
    deny: Iterable[str] = (),
) -> Listing:
    """Build the tool list as it would be used. The order in which a server lists its tools is
    ignored.
    """
    allowed, denied = tuple(allow), tuple(deny)
    offers: dict[str, Offer] = {}
    left_out: dict[str, str] = {}
    taken = tool_name(server, RESOURCES) if resources else ""
    for said in sorted(tools, key=lambda each: each.name):
        shown = plain(said.name)[:NAME_CHARS_MAX]
        if any(matches_glob(glob, said.name) for glob in denied) or not any(
            matches_glob(glob, said.name) for glob in allowed
        ):
            left_out[shown] = "the settings of this server leave it out"
            continue
        try:
            offer = _offer(server, said)
        except Unfit as unfit:
            left_out[shown] = str(unfit)
            continue
        if offer.name in offers or offer.name == taken:
            left_out[shown] = f"there is a tool of that name already: {offer.name}"
        elif len(offers) >= TOOLS_MAX:
            left_out[shown] = f"a server may bring {TOOLS_MAX} tools"
        else:
            offers[offer.name] = offer
    content = _content(offers.values(), resources=resources)
    return Listing(
        offers=tuple(offers.values()),
        left_out=left_out,
        resources=resources,
        content=content,
        hash=hashlib.sha256(content.encode(errors="surrogatepass")).hexdigest(),
    )


def _offer(server: str, said: Said) -> Offer:
    if not said.name or len(said.name) > NAME_CHARS_MAX:
        raise Unfit(f"its name has more than {NAME_CHARS_MAX} characters, or none")
    parameters = flat(said.schema, clean=plain)
    if len(json.dumps(parameters)) > SCHEMA_CHARS_MAX:
        raise Unfit(f"its schema has more than {SCHEMA_CHARS_MAX:,} characters")
    description = plain(said.description)
    if len(description) > DESCRIPTION_CHARS_MAX:
        raise Unfit(f"its description has more than {DESCRIPTION_CHARS_MAX:,} characters")
    return Offer(
        name=tool_name(server, said.name),
        theirs=said.name,
        description=description,
        parameters=parameters,
        hints=said.hints,
    )


def plain(text: str) -> str:
    """Remove invisible characters and anything that looks like one of our markers.

    So the text that the owner approves is the text that a model reads.
    """
    seen = "".join(each for each in text if each in "\n\t" or unicodedata.category(each) not in _UNSEEN)
    return harmless(seen, id=_NOBODY)


def _content(offers: Iterable[Offer], *, resources: bool) -> str:
    """Return the text for approval. It contains everything that a model reads or that rules depend
    on.
    """
    lines: list[str] = []
    for offer in offers:
        effects = ", ".join(sorted(offer.effects))
        again = "may be repeated" if offer.repeatable else "is not repeated"
        lines += [f"tool {offer.name}  ({json.dumps(offer.theirs)})", f"  effects: {effects}; {again}"]
        lines += [f"  can: {', '.join(sorted(offer.capabilities))}"]
        lines += [f"  | {line}" for line in offer.description.split("\n")]
        schema = json.dumps(offer.parameters, indent=1, sort_keys=True, ensure_ascii=False)
        lines += [f"  {line}" for line in schema.split("\n")]
    if resources:
        lines.append("its resources can be listed and read")
    return "\n".join(lines)
