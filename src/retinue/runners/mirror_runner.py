"""A runner that waits until the session mirror has written its files, and then calls another runner."""

from __future__ import annotations

from typing import Protocol

from retinue.domain.ports import Journal, RunApprovals, RunObserver
from retinue.runners.base import RunAnswer, RunAssignment, Runner


class MirrorCatchUp(Protocol):
    """Interface of the session mirror: waits until the mirrored files are up to date."""

    async def catch_up(self) -> None: ...


class MirrorRunner:
    """Waits for the session mirror, then passes the run to another runner."""

    def __init__(self, runner: Runner, mirror: MirrorCatchUp) -> None:
        self._runner = runner
        self._mirror = mirror

    async def take_turns(
        self, assignment: RunAssignment, journal: Journal, approvals: RunApprovals, observer: RunObserver
    ) -> RunAnswer:
        await self._mirror.catch_up()
        return await self._runner.take_turns(assignment, journal, approvals, observer)
