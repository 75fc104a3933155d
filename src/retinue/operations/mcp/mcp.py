"""Operations on MCP servers: status, offered tools, and approval of their current tool list."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, cast

import msgspec

from retinue.domain.agent import PermissionLevel
from retinue.domain.errors import Conflict, NotFound
from retinue.domain.principal import Principal
from retinue.domain.times import show as show_time
from retinue.operations.base import Desk, Nothing, Operation
from retinue.operations.doctor_registry import Check, Found, Scene, problem, warning
from retinue.tools.mcp.server_pool import Servers
from retinue.tools.mcp.server_status import Standing, State

DIFFERENCE_LINES_MAX = 2_000
HASH_DIGITS_MIN = 8
HASH_DIGITS_SHOWN = 12

ServerName = Annotated[str, msgspec.Meta(description="an MCP server by name")]


class One(msgspec.Struct, forbid_unknown_fields=True):
    name: ServerName


class Approve(msgspec.Struct, forbid_unknown_fields=True):
    """Without a hash, show what would be approved and change nothing."""

    name: ServerName
    hash: Annotated[str, msgspec.Meta(description="of what you have read; without it you are shown that")] = ""


class McpShown(msgspec.Struct, frozen=True, rename={"try_this": "try", "retry_at": "retry-at", "left_out": "left-out"}):
    """Status of one server. `tools` lists all offered tools; `left_out` maps those never used to the reason."""

    name: str
    state: State
    because: str
    try_this: str
    hash: str
    retry_at: str
    agents: list[str]
    tools: list[str]
    left_out: dict[str, str]


class McpListed(msgspec.Struct, frozen=True):
    servers: list[McpShown]


class McpRead(msgspec.Struct, frozen=True, rename={"found_good_by": "found-good-by", "found_good_at": "found-good-at"}):
    """One server. `content` is its complete tool list, and `lines` is the same as text.

    `difference` is the change since the last approval, or everything if there was none.
    """

    server: McpShown
    content: str
    difference: list[str]
    found_good_by: str
    found_good_at: str
    lines: list[str]


class McpApproved(msgspec.Struct, frozen=True, rename={"try_this": "try"}):
    """`approved` is false if the tool list was only shown. `lines` is the answer as text."""

    server: McpShown
    approved: bool
    difference: list[str]
    try_this: str
    lines: list[str]


class McpRevoked(msgspec.Struct, frozen=True):
    name: str
    revoked: bool


def servers_of(holder: object) -> Servers | None:
    """Return the MCP servers of `Services` or `DoctorContext`, or None if the server has none."""
    return cast("Servers | None", getattr(holder, "mcp", None))


async def listed(desk: Desk, caller: Principal, asked: Nothing) -> McpListed:
    servers = servers_of(desk)
    return McpListed([_shown(servers, each) for each in servers.standings()] if servers is not None else [])


async def show(desk: Desk, caller: Principal, asked: One) -> McpRead:
    servers, standing = _one(desk, asked.name)
    pin = await servers.found_good(asked.name)
    content = standing.listing.content if standing.listing is not None else ""
    difference = _difference(pin.content if pin else "", content)
    good = f"found good by {pin.decided_by}, {show_time(pin.at, desk.zone)}" if pin else "found good by nobody yet"
    changes = ["", "since then:", *difference] if pin and difference else []
    return McpRead(
        server=_shown(servers, standing),
        content=content,
        difference=difference,
        found_good_by=pin.decided_by if pin else "",
        found_good_at=pin.at.isoformat() if pin else "",
        lines=[*_head(standing), good, "", *content.split("\n"), *changes],
    )


async def approve(desk: Desk, caller: Principal, asked: Approve) -> McpApproved:
    """Approve the tool list of a server, by the hash of what the caller has read."""
    servers, standing = _one(desk, asked.name)
    offered = standing.listing
    if offered is None:
        raise Conflict(
            f"the MCP server '{asked.name}' has not said what it offers",
            because=standing.because,
            try_this=standing.try_this or "wait a moment and ask again",
            code="mcp.not-heard",
        )
    pin = await servers.found_good(asked.name)
    difference = _difference(pin.content if pin else "", offered.content)
    if not asked.hash:
        again = f"retinue mcp approve {asked.name} --hash {offered.hash[:HASH_DIGITS_SHOWN]}"
        shown = difference or ["nothing has changed since it was found good"]
        lines = [*_head(standing), "", *shown, "", "If you have read this and want its tools used:", f"  {again}"]
        return McpApproved(_shown(servers, standing), False, difference, again, lines)
    by = str(caller.address)
    if len(asked.hash) < HASH_DIGITS_MIN or not await servers.approve(asked.name, asked.hash, by=by):
        raise Conflict(
            f"what the MCP server '{asked.name}' offers is not what was read",
            because="its tools changed, or the hash was mistyped",
            try_this=f"read it again: retinue mcp approve {asked.name}",
            code="mcp.changed",
        )
    lines = [*_head(standing)[:1], "its tools were found good as you read them"]
    return McpApproved(_shown(servers, standing), True, difference, "", lines)


async def revoke(desk: Desk, caller: Principal, asked: One) -> McpRevoked:
    """Revoke the approval of a server. Its tools are not used until it is approved again."""
    servers, _ = _one(desk, asked.name)
    return McpRevoked(asked.name, await servers.revoke(asked.name))


async def restart(desk: Desk, caller: Principal, asked: One) -> McpShown:
    """Restart a server, even while it waits for its next retry."""
    servers, standing = _one(desk, asked.name)
    servers.restart(asked.name)
    return _shown(servers, standing)


def _one(desk: Desk, name: str) -> tuple[Servers, Standing]:
    servers = servers_of(desk)
    for each in servers.standings() if servers is not None else ():
        if each.name == name and servers is not None:
            return servers, each
    raise NotFound(
        f"there is no MCP server '{name[:64]}'",
        because="no [mcp.NAME] of the settings is called so",
        try_this="look at `retinue mcp list`",
        code="mcp.not-found",
    )


def _shown(servers: Servers, standing: Standing) -> McpShown:
    offered, settings = standing.listing, servers.settings(standing.name)
    return McpShown(
        name=standing.name,
        state=standing.state,
        because=standing.because,
        try_this=standing.try_this,
        hash=offered.hash if offered is not None else "",
        retry_at=standing.retry_at.isoformat() if standing.retry_at is not None else "",
        agents=list(settings.agents) if settings is not None else [],
        tools=[offer.name for offer in offered.offers] if offered is not None else [],
        left_out=dict(offered.left_out) if offered is not None else {},
    )


def _head(standing: Standing) -> list[str]:
    because = f": {standing.because}" if standing.because else ""
    lines = [f"MCP server {standing.name}", f"{standing.state}{because}"]
    if standing.listing is not None:
        lines.append(f"hash {standing.listing.hash}")
    return lines


def _difference(before: str, after: str) -> list[str]:
    """Return the diff since the last approval, or everything if there was none."""
    import difflib  # lazy: only needed if something has changed

    if not before:
        lines = [f"+{line}" for line in after.split("\n")] if after else []
    else:
        lines = list(difflib.unified_diff(before.split("\n"), after.split("\n"), "found good", "now", lineterm="", n=2))
    if len(lines) <= DIFFERENCE_LINES_MAX:
        return lines
    return [*lines[:DIFFERENCE_LINES_MAX], f"[{len(lines) - DIFFERENCE_LINES_MAX} more lines]"]


# --- doctor check ---


async def _facts(scene: Scene) -> Sequence[Standing] | None:
    servers = servers_of(scene)
    return None if servers is None else servers.standings()


def _judge(standings: Sequence[Standing]) -> list[Found]:
    found: list[Found] = []
    for each in standings:
        sentence = f"the MCP server '{each.name}' is {each.state}"
        if each.state is State.FAILED:
            found.append(problem(sentence, because=each.because, try_this=each.try_this))
        elif each.state is State.WAITING:
            found.append(warning(sentence, because=each.because, try_this=each.try_this))
        elif each.state is State.READY and each.listing is not None and each.listing.left_out:
            unfit = ", ".join(sorted(each.listing.left_out))[:300]
            settings = f"look at `retinue mcp show {each.name}`"
            found.append(
                warning(f"{sentence}, without {unfit}", because="see why it leaves them out", try_this=settings)
            )
    return found


MCP_SERVERS = Check(name="mcp", looks_at="every MCP server that should be is used", gather=_facts, judge=_judge)


OPERATIONS = (
    Operation(
        name="mcp.list",
        summary="List MCP servers, and how they fare.",
        parameters=Nothing,
        handler=listed,
        result=McpListed,
        permission=PermissionLevel.PRIVILEGED,
    ),
    Operation(
        name="mcp.show",
        summary="Show all that an MCP server offers, and what changed since it was found good.",
        parameters=One,
        handler=show,
        result=McpRead,
        permission=PermissionLevel.PRIVILEGED,
    ),
    Operation(
        name="mcp.approve",
        summary="Find the tools of an MCP server good, once you have read what they say now.",
        parameters=Approve,
        handler=approve,
        result=McpApproved,
        permission=PermissionLevel.BOSS,
        effect=True,
    ),
    Operation(
        name="mcp.revoke",
        summary="Take back that the tools of an MCP server were found good.",
        parameters=One,
        handler=revoke,
        result=McpRevoked,
        permission=PermissionLevel.BOSS,
        effect=True,
    ),
    Operation(
        name="mcp.restart",
        summary="End an MCP server and begin it anew.",
        parameters=One,
        handler=restart,
        result=McpShown,
        permission=PermissionLevel.BOSS,
        effect=True,
    ),
)
