"""A runner that first waits until the session files of the mirror are up to date."""

from __future__ import annotations

from typing import Protocol

from retinue.domain.ports import Journal, RunApprovals, RunObserver
from retinue.runners.base import RunAnswer, RunAssignment, Runner


class MirrorCatchUp(Protocol):
    """A session mirror that can be awaited."""

    async def catch_up(self) -> None: ...


class MirrorRunner:
    """Waits for the mirror, then takes turns with another runner."""

    def __init__(self, runner: Runner, mirror: MirrorCatchUp) -> None:
        self._runner = runner
        self._mirror = mirror

    async def take_turns(
        self, assignment: RunAssignment, journal: Journal, approvals: RunApprovals, observer: RunObserver
    ) -> RunAnswer:
        await self._mirror.catch_up()
        return await self._runner.take_turns(assignment, journal, approvals, observer)
