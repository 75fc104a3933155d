"""Waiting for what no event tells: what a server has read, what another process has written."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable

LOOK_S = 0.005


async def looking(holds: Callable[[], bool | Awaitable[bool]], *, every_s: float = LOOK_S) -> None:
    """Until it holds. Whoever calls bounds it."""
    while True:
        answer = holds()
        if await answer if inspect.isawaitable(answer) else answer:
            return
        await asyncio.sleep(every_s)
