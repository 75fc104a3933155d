"""Supervises one MCP server: starts it, restarts it after a failure, and sends requests to it.

Every call to the server ends with a result or with the reason why there is none.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from datetime import datetime, timedelta
from random import Random
from typing import TYPE_CHECKING, Any, TypeVar, cast

from retinue.config.mcp import McpServerSettings
from retinue.domain.errors import RetinueError
from retinue.domain.ports import Clock
from retinue.tools.base import ToolFailed
from retinue.tools.mcp.errors import (
    McpCallInterrupted,
    McpCallTimeout,
    McpConnectionLost,
    McpQueueTimeout,
    McpServerBusy,
    McpServerUnavailable,
)
from retinue.tools.mcp.mcp_client import McpConnection, import_mcp, open_connection
from retinue.tools.mcp.server_status import McpConnectionState, McpConnectionStatus, McpServerDependencies
from retinue.tools.mcp.stdio_transport import STDERR_LOG
from retinue.tools.mcp.tool_list import McpToolList, build_tool_list

if TYPE_CHECKING:
    import mcp_types as types

log = logging.getLogger(__name__)

RETRY_FIRST_S = 1.0
RETRY_MAX_S = 300.0
HEALTHY_AFTER_S = 60.0  # after this time a connection counts as healthy and its failures are forgotten
REFRESH_S = 300.0  # interval after which the tool list is read again without a change event
CHANGES_PAUSE_S = 1.0  # between two reads of a list that keeps changing
TIMEOUTS_MAX = 3  # consecutive timeouts after which the server is restarted
QUEUED_CALLS_MAX = 256  # calls that may wait for a free slot
RESOURCES_MAX = 200

T = TypeVar("T")


class McpServerSupervisor:
    """Starts one MCP server, restarts it after a failure, and sends requests to it.

    `find_approved_hash` returns the hash of the approved tool list, or None. `on_change` is called
    when the status changes.
    """

    def __init__(
        self,
        name: str,
        settings: McpServerSettings,
        dependencies: McpServerDependencies,
        *,
        clock: Clock,
        random: Random,
        find_approved_hash: Callable[[str], Awaitable[str | None]],
        on_change: Callable[[], None],
    ) -> None:
        self.name = name
        self.settings = settings
        self._dependencies = dependencies
        self._clock = clock
        self._random = random
        self._find_approved_hash = find_approved_hash
        self._on_change = on_change
        self.approved_tools: McpToolList | None = None  # last tool list, if approved; kept while the server is away
        self._connection: McpConnection | None = None
        self._wake = asyncio.Event()
        self._is_restart_requested = self._is_recheck_requested = self._is_closing = False
        self._failures = self._timeouts = self._queued_calls = 0
        self._call_slots = asyncio.Semaphore(settings.parallel_calls_max)
        self._task: asyncio.Task[None] | None = None
        off = not settings.enabled
        self.status = McpConnectionStatus(
            name=name,
            state=McpConnectionState.OFF if off else McpConnectionState.STARTING,
            because=f"mcp.{name}.enabled is false" if off else "it was not started yet",
        )

    # --- lifecycle ---

    def start(self) -> None:
        if self.settings.enabled and self._task is None:
            self._task = asyncio.create_task(self._supervise(), name=f"mcp {self.name}")

    async def close(self) -> None:
        self._is_closing = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    def restart(self) -> None:
        """Stop the server and start it again at once."""
        self._is_restart_requested = True
        self._failures = 0
        self._wake.set()

    def recheck_approval(self) -> None:
        """Check again whether the tool list is approved. Called when an approval was given or revoked."""
        self._is_recheck_requested = True
        self._wake.set()

    async def _supervise(self) -> None:
        while not self._is_closing:  # a cancellation can be swallowed by another error, so check the flag too
            self._is_restart_requested = self._is_recheck_requested = False
            began_at, connection = self._clock.now(), McpConnection(self._wake.set)
            self._set_status(
                McpConnectionState.STARTING, "it was started and has not answered yet", "", self.status.tool_list
            )
            try:
                await self._run_connection(connection)
                error: Exception | None = None
            except Exception as met:  # noqa: BLE001 - every exception is a failure of the MCP server, not ours
                error = met
            self._connection = None
            if self._clock.now() - began_at >= timedelta(seconds=HEALTHY_AFTER_S):
                self._failures = 0
            if not (self._is_restart_requested or self._is_closing):
                await self._back_off(error, connection)

    async def _run_connection(self, connection: McpConnection) -> None:
        await import_mcp()
        async with AsyncExitStack() as stack:
            async with asyncio.timeout(self.settings.start_timeout_s):
                await stack.enter_async_context(
                    open_connection(connection, self.name, self.settings, self._dependencies)
                )
                found = await self._read_tool_list(connection)
            self._connection, self._timeouts = connection, 0
            await self._check_approval(found)
            while True:
                await self._wait_for_wake()
                if connection.is_closed:
                    raise McpConnectionLost(because=self._end_reason)
                if self._is_restart_requested:
                    return
                if self._is_recheck_requested and not connection.tools_changed:
                    self._is_recheck_requested = False
                    await self._check_approval(found)
                    continue
                connection.tools_changed = self._is_recheck_requested = False
                async with asyncio.timeout(self.settings.start_timeout_s):
                    found = await self._read_tool_list(connection)
                await self._check_approval(found)
                await asyncio.sleep(CHANGES_PAUSE_S)

    async def _wait_for_wake(self) -> None:
        """Wait until there is something to check, at most until the refresh interval has passed."""
        take_back = self._clock.call_later(REFRESH_S, self._wake.set)
        try:
            await self._wake.wait()
        finally:
            take_back()
            self._wake.clear()

    async def _read_tool_list(self, connection: McpConnection) -> McpToolList:
        listed = await connection.list_tools()
        own = self.settings
        return build_tool_list(self.name, listed, resources=connection.has_resources, allow=own.allow, deny=own.deny)

    async def _check_approval(self, found: McpToolList) -> None:
        """Set the status of the server according to whether the owner has approved this tool list."""
        approved = await self._find_approved_hash(self.name)
        self.approved_tools = found if found.hash == approved else None
        if self.approved_tools is not None:
            self._set_status(McpConnectionState.READY, "", "", found)
            return
        because = "its tools have changed since they were approved" if approved else "its tools are not approved yet"
        self._set_status(McpConnectionState.WAITING, because, f"retinue mcp approve {self.name}", found)

    async def _back_off(self, error: Exception | None, connection: McpConnection) -> None:
        """Wait with exponential back-off and jitter.

        The jitter keeps servers that failed together from restarting together.
        """
        because, try_this = self._explain_failure(error, connection)
        wait_s = min(RETRY_MAX_S, RETRY_FIRST_S * 2 ** min(self._failures, 20)) * self._random.uniform(0.75, 1.25)
        self._failures += 1
        retry_at = self._clock.now() + timedelta(seconds=wait_s)
        self._set_status(McpConnectionState.FAILED, because, try_this, self.status.tool_list, retry_at=retry_at)
        log.warning("mcp server failed", extra={"server": self.name, "because": because, "retry_s": round(wait_s)})
        waited = asyncio.Event()  # not the time of day, which can be set back

        def end_wait() -> None:
            waited.set()
            self._wake.set()

        take_back = self._clock.call_later(wait_s, end_wait)
        try:
            while not (self._is_restart_requested or waited.is_set()):
                self._wake.clear()
                await self._wake.wait()
        finally:
            take_back()

    def _set_status(
        self,
        state: McpConnectionState,
        because: str,
        try_this: str,
        found: McpToolList | None,
        *,
        retry_at: datetime | None = None,
    ) -> None:
        before = self.status
        self.status = McpConnectionStatus(
            name=self.name, state=state, because=because, try_this=try_this, tool_list=found, retry_at=retry_at
        )
        if before != self.status:
            self._on_change()

    def _explain_failure(self, error: Exception | None, connection: McpConnection) -> tuple[str, str]:
        """Return the reason for a failure, and the next step.

        Neither contains text from the MCP server, because that text may contain secrets.
        """
        look = f"check its settings, then: retinue mcp restart {self.name}"
        match met := _find_first_error(error):
            case RetinueError():
                return met.because or met.sentence, met.try_this or look
            case TimeoutError():
                return f"it did not answer within {self.settings.start_timeout_s:g} s", look
            case OSError():
                return met.strerror or "the operating system refused to start it", look
            case _ if self.settings.url is None:
                return self._end_reason, look
            case _ if connection.error_status:
                return f"it answered with status {connection.error_status}", look
            case _:
                return f"it cannot be reached ({type(met).__name__})", look

    @property
    def _end_reason(self) -> str:
        if self.settings.url is not None:
            return "the connection was lost"
        return f"its process has ended; its error output is in {self._dependencies.folder / self.name / STDERR_LOG}"

    # --- requests ---

    async def call_tool(self, tool: str, arguments: dict[str, Any]) -> types.CallToolResult:
        return await self._send_request(lambda connection: connection.call_tool(tool, arguments))

    async def list_resources(self) -> list[types.Resource]:
        page = await self._send_request(lambda connection: connection.client.list_resources())
        return page.resources[:RESOURCES_MAX]

    async def read_resource(self, uri: str) -> types.ReadResourceResult:
        return await self._send_request(lambda connection: connection.client.read_resource(uri))

    async def _send_request(self, request: Callable[[McpConnection], Awaitable[T]]) -> T:
        """Send a request to the MCP server.

        Raises `MCPError` for an error response, and `ToolFailed` for any other failure.
        """
        connection, approved = self._connection, self.approved_tools
        if connection is None or connection.is_closed or approved is None or not self.status.is_usable:
            raise build_unusable_error(self.status)
        if self._queued_calls >= QUEUED_CALLS_MAX:
            raise McpServerBusy(self.name, calls_max=QUEUED_CALLS_MAX)
        self._queued_calls += 1
        waiting = True
        try:
            async with asyncio.timeout(self.settings.call_timeout_s):
                async with self._call_slots:
                    self._queued_calls -= 1
                    waiting = False
                    if (
                        self.approved_tools is None or self.approved_tools.hash != approved.hash
                    ):  # changed while the call waited for a slot
                        raise build_unusable_error(self.status)
                    answer = await _cancel_on_close(connection, request(connection))
        except TimeoutError:
            if not waiting:
                self._count_timeout(connection)
            timeout = McpQueueTimeout if waiting else McpCallTimeout
            raise timeout(self.name, timeout_s=self.settings.call_timeout_s) from None
        except ToolFailed:
            raise
        except Exception as error:
            raise self._handle_error(connection, error) from error
        finally:
            self._queued_calls -= waiting
        self._timeouts = 0
        return answer

    def _count_timeout(self, connection: McpConnection) -> None:
        self._timeouts += 1
        if self._timeouts >= TIMEOUTS_MAX and self._connection is connection:
            self.restart()

    def _handle_error(self, connection: McpConnection, error: Exception) -> Exception:
        """Return the error to raise for a failed request.

        After a connection error, the connection is also marked as closed, so that the supervisor
        connects again.
        """
        from mcp.shared.exceptions import MCPError
        from mcp_types import CONNECTION_CLOSED

        met = _find_first_error(error)
        if isinstance(met, MCPError) and met.error.code != CONNECTION_CLOSED and not connection.is_closed:
            if connection.error_status:
                connection.mark_closed()  # the server may have ended the session, and reconnecting is cheap
            return met
        connection.mark_closed()
        return McpCallInterrupted(self.name)


def build_unusable_error(status: McpConnectionStatus) -> McpServerUnavailable:
    return McpServerUnavailable(status.name, state=status.state, because=status.because)


async def _cancel_on_close(connection: McpConnection, request: Awaitable[T]) -> T:
    """Await a request, and cancel the request when the connection closes. A broken connection may never answer."""
    answer = asyncio.ensure_future(request)
    gone = asyncio.ensure_future(connection.closed.wait())
    try:
        await asyncio.wait((answer, gone), return_when=asyncio.FIRST_COMPLETED)
        if answer.done():
            return answer.result()
        raise McpConnectionLost
    finally:
        gone.cancel()
        answer.cancel()
        await asyncio.gather(answer, gone, return_exceptions=True)


def _find_first_error(error: BaseException | None) -> BaseException | None:
    """Return the first error inside nested exception groups."""
    while isinstance(error, BaseExceptionGroup):
        error = cast("BaseExceptionGroup[BaseException]", error).exceptions[0]
    return error
