"""Supervises one MCP server: starts it, restarts it after a failure, and sends requests to it.

Every call ends with a result or with the reason why there is none.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from datetime import datetime, timedelta
from random import Random
from typing import TYPE_CHECKING, Any, TypeVar, cast

from retinue.config.mcp import McpServer
from retinue.domain.errors import RetinueError
from retinue.domain.ports import Clock
from retinue.tools.base import ToolFailed
from retinue.tools.mcp.mcp_client import Line, load, opened
from retinue.tools.mcp.server_status import Needs, Standing, State
from retinue.tools.mcp.stdio_transport import LOG
from retinue.tools.mcp.tool_list import Listing, listing

if TYPE_CHECKING:
    import mcp_types as types

log = logging.getLogger(__name__)

RETRY_FIRST_S = 1.0
RETRY_MAX_S = 300.0
SOUND_S = 60.0  # after this time a connection counts as healthy and its failures are forgotten
REFRESH_S = 300.0  # interval after which the tool list is read again without a change event
CHANGES_PAUSE_S = 1.0  # between two reads of a list that keeps changing
HANGS_MAX = 3  # consecutive timeouts after which the server is restarted
WAITING_MAX = 256  # calls that may wait for a free slot
RESOURCES_MAX = 200

T = TypeVar("T")


class Lost(RetinueError):
    """The connection to a server was lost."""

    code = "mcp.lost"


class Server:
    """Supervises one MCP server.

    `find_approved_hash` returns the hash of the approved tool list, or None. `on_change` is called
    when the status changes.
    """

    def __init__(
        self,
        name: str,
        settings: McpServer,
        needs: Needs,
        *,
        clock: Clock,
        chance: Random,
        approved: Callable[[str], Awaitable[str | None]],
        changed: Callable[[], None],
    ) -> None:
        self.name = name
        self.settings = settings
        self._needs = needs
        self._clock = clock
        self._chance = chance
        self._approved = approved
        self._changed = changed
        self.good: Listing | None = None  # last tool list, if approved; kept while the server is away
        self._line: Line | None = None
        self._stirred = asyncio.Event()
        self._again = self._look = self._closing = False
        self._failures = self._hangs = self._waiting = 0
        self._turns = asyncio.Semaphore(settings.parallel)
        self._task: asyncio.Task[None] | None = None
        off = not settings.enabled
        self.standing = Standing(
            name=name,
            state=State.OFF if off else State.STARTING,
            because=f"mcp.{name}.enabled is false" if off else "it was not heard of yet",
        )

    # --- lifecycle ---

    def start(self) -> None:
        if self.settings.enabled and self._task is None:
            self._task = asyncio.create_task(self._keep(), name=f"mcp {self.name}")

    async def close(self) -> None:
        self._closing = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    def restart(self) -> None:
        """Stop the server and start it again at once."""
        self._again = True
        self._failures = 0
        self._stirred.set()

    def look_again(self) -> None:
        """Check the approval again after it changed."""
        self._look = True
        self._stirred.set()

    async def _keep(self) -> None:
        while not self._closing:  # a cancellation can be swallowed by another error, so check the flag too
            self._again = self._look = False
            began_at, line = self._clock.now(), Line(self._stirred.set)
            self._stand(State.STARTING, "it was begun and has not answered yet", "", self.standing.listing)
            try:
                await self._live(line)
                error: Exception | None = None
            except Exception as met:  # noqa: BLE001 - whatever a server does, it is the server that has failed
                error = met
            self._line = None
            if self._clock.now() - began_at >= timedelta(seconds=SOUND_S):
                self._failures = 0
            if not (self._again or self._closing):
                await self._pause(error, line)

    async def _live(self, line: Line) -> None:
        await load()
        async with AsyncExitStack() as stack:
            async with asyncio.timeout(self.settings.start_s):
                await stack.enter_async_context(opened(line, self.name, self.settings, self._needs))
                found = await self._list(line)
            self._line, self._hangs = line, 0
            await self._judge(found)
            while True:
                await self._stir()
                if line.lost:
                    raise Lost("it ended", because=self._ended_because)
                if self._again:
                    return
                if self._look and not line.changed:
                    self._look = False
                    await self._judge(found)
                    continue
                line.changed = self._look = False
                async with asyncio.timeout(self.settings.start_s):
                    found = await self._list(line)
                await self._judge(found)
                await asyncio.sleep(CHANGES_PAUSE_S)

    async def _stir(self) -> None:
        """Wait until there is something to check, at most until the refresh interval has passed."""
        take_back = self._clock.later(REFRESH_S, self._stirred.set)
        try:
            await self._stirred.wait()
        finally:
            take_back()
            self._stirred.clear()

    async def _list(self, line: Line) -> Listing:
        said = await line.tools()
        own = self.settings
        return listing(self.name, said, resources=line.has_resources, allow=own.allow, deny=own.deny)

    async def _judge(self, found: Listing) -> None:
        """Set the status by whether the owner has approved this tool list."""
        good = await self._approved(self.name)
        self.good = found if found.hash == good else None
        if self.good is not None:
            self._stand(State.READY, "", "", found)
            return
        because = "its tools changed since they were found good" if good else "nobody has looked at its tools yet"
        self._stand(State.WAITING, because, f"retinue mcp approve {self.name}", found)

    async def _pause(self, error: Exception | None, line: Line) -> None:
        """Wait with exponential back-off and jitter, so that servers that failed together do not
        restart together.
        """
        because, try_this = self._told(error, line)
        wait_s = min(RETRY_MAX_S, RETRY_FIRST_S * 2 ** min(self._failures, 20)) * self._chance.uniform(0.75, 1.25)
        self._failures += 1
        retry_at = self._clock.now() + timedelta(seconds=wait_s)
        self._stand(State.FAILED, because, try_this, self.standing.listing, retry_at=retry_at)
        log.warning("mcp server failed", extra={"server": self.name, "because": because, "retry_s": round(wait_s)})
        take_back = self._clock.later(wait_s, self._stirred.set)
        try:
            while not self._again and self._clock.now() < retry_at:
                self._stirred.clear()
                await self._stirred.wait()
        finally:
            take_back()

    def _stand(
        self, state: State, because: str, try_this: str, found: Listing | None, *, retry_at: datetime | None = None
    ) -> None:
        before = self.standing
        self.standing = Standing(
            name=self.name, state=state, because=because, try_this=try_this, listing=found, retry_at=retry_at
        )
        if before != self.standing:
            self._changed()

    def _told(self, error: Exception | None, line: Line) -> tuple[str, str]:
        """Return the reason of a failure in our own text, because the server's text may contain
        secrets.
        """
        look = f"look at its settings, then: retinue mcp restart {self.name}"
        match met := _leaf(error):
            case RetinueError():
                return met.because or met.sentence, met.try_this or look
            case TimeoutError():
                return f"it did not answer within {self.settings.start_s:g} s", look
            case OSError():
                return met.strerror or "the system would not have it", look
            case _ if self.settings.url is None:
                return self._ended_because, look
            case _ if line.status:
                return f"it answered with status {line.status}", look
            case _:
                return f"it cannot be reached ({type(met).__name__})", look

    @property
    def _ended_because(self) -> str:
        if self.settings.url is not None:
            return "the line to it broke"
        return f"it ended; what it said aside is in {self._needs.folder / self.name / LOG}"

    # --- requests ---

    async def call(self, tool: str, arguments: dict[str, Any]) -> types.CallToolResult:
        return await self._ask(lambda line: line.call(tool, arguments))

    async def resources(self) -> list[types.Resource]:
        page = await self._ask(lambda line: line.client.list_resources())
        return page.resources[:RESOURCES_MAX]

    async def resource(self, uri: str) -> types.ReadResourceResult:
        return await self._ask(lambda line: line.client.read_resource(uri))

    async def _ask(self, asking: Callable[[Line], Awaitable[T]]) -> T:
        """Send a request. Raises `MCPError` for an error response, and `ToolFailed` for everything
        else.
        """
        line, good = self._line, self.good
        if line is None or line.lost or good is None or not self.standing.usable:
            raise unusable(self.standing)
        if self._waiting >= WAITING_MAX:
            raise ToolFailed(
                f"the MCP server '{self.name}' is busy",
                because=f"{WAITING_MAX} calls wait for it already",
                try_this="try again in a while",
                code="mcp.busy",
            )
        self._waiting += 1
        waiting = True
        try:
            async with asyncio.timeout(self.settings.call_s):
                async with self._turns:
                    self._waiting -= 1
                    waiting = False
                    if self.good is None or self.good.hash != good.hash:  # changed while the call waited for a slot
                        raise unusable(self.standing)
                    answer = await _unless_gone(line, asking(line))
        except TimeoutError:
            if not waiting:
                self._hung(line)
            raise self._slow(asked=not waiting) from None
        except ToolFailed:
            raise
        except Exception as error:
            raise self._met(line, error) from error
        finally:
            self._waiting -= waiting
        self._hangs = 0
        return answer

    def _slow(self, *, asked: bool) -> ToolFailed:
        because = "it takes longer, or it hangs; whether it did what was asked, nobody knows"
        return ToolFailed(
            f"the MCP server '{self.name}' did not answer within {self.settings.call_s:g} s",
            because=because if asked else "other calls were before this one, and it was not given to it",
            try_this="look whether it was done before you ask again" if asked else "try again in a while",
            code="mcp.slow",
        )

    def _hung(self, line: Line) -> None:
        self._hangs += 1
        if self._hangs >= HANGS_MAX and self._line is line:
            self.restart()

    def _met(self, line: Line, error: Exception) -> Exception:
        """Reconnect after a connection error. An error response is returned to the caller."""
        from mcp.shared.exceptions import MCPError
        from mcp_types import CONNECTION_CLOSED

        met = _leaf(error)
        if isinstance(met, MCPError) and met.error.code != CONNECTION_CLOSED and not line.lost:
            if line.status:
                line.ended()  # the server may have ended the session, and reconnecting is cheap
            return met
        line.ended()
        return ToolFailed(
            f"the MCP server '{self.name}' ended while it was asked",
            because="the line to it broke; whether it did what was asked, nobody knows",
            try_this="look whether it was done, then try again in a while",
            code="mcp.lost",
        )


def unusable(standing: Standing) -> ToolFailed:
    return ToolFailed(
        f"the MCP server '{standing.name}' cannot be used now",
        because=f"it is {standing.state}: {standing.because}" if standing.because else "it has just ended",
        try_this="go on without it; the owner can see more with: retinue mcp list",
        code="mcp.unusable",
    )


async def _unless_gone(line: Line, asking: Awaitable[T]) -> T:
    """Await a request, and cancel it when the connection closes. A broken connection may never
    answer.
    """
    answer = asyncio.ensure_future(asking)
    gone = asyncio.ensure_future(line.gone.wait())
    try:
        await asyncio.wait((answer, gone), return_when=asyncio.FIRST_COMPLETED)
        if answer.done():
            return answer.result()
        raise Lost("the line is gone")
    finally:
        gone.cancel()
        answer.cancel()
        await asyncio.gather(answer, gone, return_exceptions=True)


def _leaf(error: BaseException | None) -> BaseException | None:
    """Return the first error inside nested exception groups."""
    while isinstance(error, BaseExceptionGroup):
        error = cast("BaseExceptionGroup[BaseException]", error).exceptions[0]
    return error
