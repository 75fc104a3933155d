"""Operations on MCP servers: status, offered tools, and approval of their current tool list."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, cast

import msgspec

from retinue.domain.agent import PermissionLevel
from retinue.domain.principal import Principal
from retinue.domain.shared_errors import McpServerNotFound
from retinue.domain.times import format_time as show_time
from retinue.operations.base import EmptyRequest, Operation, Services
from retinue.operations.doctor_registry import DoctorCheck, DoctorContext, DoctorFinding, build_problem, build_warning
from retinue.operations.mcp.errors import McpHashMismatch, McpToolsUnknown
from retinue.text.quantity import format_quantity
from retinue.tools.mcp.server_pool import McpServerPool
from retinue.tools.mcp.server_status import McpConnectionState, McpConnectionStatus

DIFF_LINES_MAX = 2_000
HASH_DIGITS_MIN = 8
HASH_DIGITS_SHOWN = 12

McpServerName = Annotated[str, msgspec.Meta(description="name of an MCP server")]


class McpServerNameRequest(msgspec.Struct, forbid_unknown_fields=True):
    name: McpServerName


class McpApproveRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Approve the tools of an MCP server. Without a hash, show what would be approved and change nothing."""

    name: McpServerName
    hash: Annotated[
        str,
        msgspec.Meta(description="hash of the tools that you read; without it, the tools are shown but not approved"),
    ] = ""


class McpServerStatus(msgspec.Struct, frozen=True, rename={"try_this": "try"}):
    """Status of one MCP server.

    `tools` lists all offered tools. `omitted_tools` lists the tools that are not used, with the reasons.
    """

    name: str
    state: McpConnectionState
    because: str
    try_this: str
    hash: str
    retry_at: str
    agents: list[str]
    tools: list[str]
    omitted_tools: dict[str, str]


class McpServerList(msgspec.Struct, frozen=True):
    servers: list[McpServerStatus]


class McpServerDetails(msgspec.Struct, frozen=True):
    """One MCP server. `content` is its complete tool list, and `lines` is the same list as text.

    `diff` shows what has changed since the last approval. Without an approval, the whole list is new.
    """

    server: McpServerStatus
    content: str
    diff: list[str]
    approved_by: str
    approved_at: str
    lines: list[str]


class McpApproved(msgspec.Struct, frozen=True, rename={"try_this": "try"}):
    """Result of an approval. `approved` is false if the tool list was only shown. `lines` is the result as text."""

    server: McpServerStatus
    approved: bool
    diff: list[str]
    try_this: str
    lines: list[str]


class McpRevoked(msgspec.Struct, frozen=True):
    name: str
    revoked: bool


def find_mcp_servers(holder: object) -> McpServerPool | None:
    """Return the pool of MCP servers of a `Services` or `DoctorContext`, or None if the server has no MCP support."""
    return cast("McpServerPool | None", getattr(holder, "mcp", None))


async def list_mcp_servers(services: Services, caller: Principal, request: EmptyRequest) -> McpServerList:
    servers = find_mcp_servers(services)
    return McpServerList([_to_status(servers, each) for each in servers.list_statuses()] if servers is not None else [])


async def show_mcp_server(services: Services, caller: Principal, request: McpServerNameRequest) -> McpServerDetails:
    servers, status = _require_server(services, request.name)
    pin = await servers.find_approval(request.name)
    content = status.tool_list.content if status.tool_list is not None else ""
    difference = _diff_lines(pin.content if pin else "", content)
    good = f"approved by {pin.decided_by}, {show_time(pin.at, services.zone)}" if pin else "not approved yet"
    changes = ["", "changes since then:", *difference] if pin and difference else []
    return McpServerDetails(
        server=_to_status(servers, status),
        content=content,
        diff=difference,
        approved_by=pin.decided_by if pin else "",
        approved_at=pin.at.isoformat() if pin else "",
        lines=[*_heading_lines(status), good, "", *content.split("\n"), *changes],
    )


async def approve_mcp_server(services: Services, caller: Principal, request: McpApproveRequest) -> McpApproved:
    """Approve the tool list of an MCP server, if it still has the hash of the list that the caller has read."""
    servers, status = _require_server(services, request.name)
    offered = status.tool_list
    if offered is None:
        raise McpToolsUnknown(request.name, because=status.because, try_this=status.try_this)
    pin = await servers.find_approval(request.name)
    difference = _diff_lines(pin.content if pin else "", offered.content)
    if not request.hash:
        again = f"retinue mcp approve {request.name} --hash {offered.hash[:HASH_DIGITS_SHOWN]}"
        shown = difference or ["nothing has changed since the approval"]
        lines = [
            *_heading_lines(status),
            "",
            *shown,
            "",
            "To approve these tools:",
            f"  {again}",
        ]
        return McpApproved(_to_status(servers, status), False, difference, again, lines)
    by = str(caller.address)
    if len(request.hash) < HASH_DIGITS_MIN or not await servers.approve(request.name, request.hash, by=by):
        raise McpHashMismatch(request.name)
    lines = [*_heading_lines(status)[:1], "its tools are approved"]
    return McpApproved(_to_status(servers, status), True, difference, "", lines)


async def revoke_mcp_server(services: Services, caller: Principal, request: McpServerNameRequest) -> McpRevoked:
    """Revoke the approval of an MCP server. Its tools are not used until it is approved again."""
    servers, _ = _require_server(services, request.name)
    return McpRevoked(request.name, await servers.revoke(request.name))


async def restart_mcp_server(services: Services, caller: Principal, request: McpServerNameRequest) -> McpServerStatus:
    """Restart an MCP server at once, even if it failed and its next retry is scheduled for later."""
    servers, status = _require_server(services, request.name)
    servers.restart(request.name)
    return _to_status(servers, status)


def _require_server(services: Services, name: str) -> tuple[McpServerPool, McpConnectionStatus]:
    servers = find_mcp_servers(services)
    for each in servers.list_statuses() if servers is not None else ():
        if each.name == name and servers is not None:
            return servers, each
    raise McpServerNotFound(name)


def _to_status(servers: McpServerPool, status: McpConnectionStatus) -> McpServerStatus:
    offered, settings = status.tool_list, servers.find_settings(status.name)
    return McpServerStatus(
        name=status.name,
        state=status.state,
        because=status.because,
        try_this=status.try_this,
        hash=offered.hash if offered is not None else "",
        retry_at=status.retry_at.isoformat() if status.retry_at is not None else "",
        agents=list(settings.agents) if settings is not None else [],
        tools=[offer.name for offer in offered.tools] if offered is not None else [],
        omitted_tools=dict(offered.excluded) if offered is not None else {},
    )


def _heading_lines(status: McpConnectionStatus) -> list[str]:
    because = f": {status.because}" if status.because else ""
    lines = [f"MCP server {status.name}", f"{status.state}{because}"]
    if status.tool_list is not None:
        lines.append(f"hash {status.tool_list.hash}")
    return lines


def _diff_lines(before: str, after: str) -> list[str]:
    """Return the changes to a tool list since its approval, as lines of a diff. Without an approval, all is new."""
    import difflib  # lazy: only needed if something has changed

    if not before:
        lines = [f"+{line}" for line in after.split("\n")] if after else []
    else:
        lines = list(difflib.unified_diff(before.split("\n"), after.split("\n"), "approved", "now", lineterm="", n=2))
    if len(lines) <= DIFF_LINES_MAX:
        return lines
    return [*lines[:DIFF_LINES_MAX], f"[{format_quantity(len(lines) - DIFF_LINES_MAX, 'more line')}]"]


# --- doctor check ---


async def _gather_statuses(context: DoctorContext) -> Sequence[McpConnectionStatus] | None:
    servers = find_mcp_servers(context)
    return None if servers is None else servers.list_statuses()


def _evaluate_statuses(statuses: Sequence[McpConnectionStatus]) -> list[DoctorFinding]:
    found: list[DoctorFinding] = []
    for each in statuses:
        sentence = f"the MCP server '{each.name}' is {each.state}"
        if each.state is McpConnectionState.FAILED:
            found.append(build_problem(sentence, because=each.because, try_this=each.try_this))
        elif each.state is McpConnectionState.WAITING:
            found.append(build_warning(sentence, because=each.because, try_this=each.try_this))
        elif each.state is McpConnectionState.READY and each.tool_list is not None and each.tool_list.excluded:
            unfit = ", ".join(sorted(each.tool_list.excluded))[:300]
            details = f"see `retinue mcp show {each.name}`"
            found.append(
                build_warning(f"{sentence}, without {unfit}", because="these tools cannot be used", try_this=details)
            )
    return found


MCP_SERVERS_CHECK = DoctorCheck(
    name="mcp",
    ok_message="every MCP server is in use",
    gather=_gather_statuses,
    evaluate=_evaluate_statuses,
)


OPERATIONS = (
    Operation(
        name="mcp.list",
        summary="List MCP servers and their status.",
        parameters=EmptyRequest,
        handler=list_mcp_servers,
        result=McpServerList,
        permission=PermissionLevel.PRIVILEGED,
    ),
    Operation(
        name="mcp.show",
        summary="Show the tools of an MCP server, and what changed since they were approved.",
        parameters=McpServerNameRequest,
        handler=show_mcp_server,
        result=McpServerDetails,
        permission=PermissionLevel.PRIVILEGED,
    ),
    Operation(
        name="mcp.approve",
        summary="Approve the current tools of an MCP server after reading them.",
        parameters=McpApproveRequest,
        handler=approve_mcp_server,
        result=McpApproved,
        permission=PermissionLevel.BOSS,
        has_effect=True,
    ),
    Operation(
        name="mcp.revoke",
        summary="Revoke the approval of an MCP server's tools.",
        parameters=McpServerNameRequest,
        handler=revoke_mcp_server,
        result=McpRevoked,
        permission=PermissionLevel.BOSS,
        has_effect=True,
    ),
    Operation(
        name="mcp.restart",
        summary="Restart an MCP server.",
        parameters=McpServerNameRequest,
        handler=restart_mcp_server,
        result=McpServerStatus,
        permission=PermissionLevel.BOSS,
        has_effect=True,
    ),
)
