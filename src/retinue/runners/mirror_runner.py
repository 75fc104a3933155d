"""A runner that first waits until the session files of the mirror are up to date."""

from __future__ import annotations

from typing import Protocol

from retinue.domain.ports import Ask, Journal, Tell
from retinue.runners.base import Assignment, Finished, Runner


class CatchesUp(Protocol):
    """A session mirror that can be awaited."""

    async def catch_up(self) -> None: ...


class Mirrored:
    """Waits for the mirror, then takes turns with another runner."""

    def __init__(self, runner: Runner, mirror: CatchesUp) -> None:
        self._runner = runner
        self._mirror = mirror

    async def work(self, assignment: Assignment, journal: Journal, ask: Ask, tell: Tell) -> Finished:
        await self._mirror.catch_up()
        return await self._runner.work(assignment, journal, ask, tell)
