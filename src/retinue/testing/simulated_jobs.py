"""A tool for simulations that starts a background job, in the same way as a message to `agent:background`."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from retinue.domain.delegation import DelegationKind
from retinue.domain.delegation_request import Handing, HandOver
from retinue.domain.errors import RetinueError
from retinue.domain.ids import short
from retinue.domain.tool import ToolSpec
from retinue.testing.tools import AppendLineArguments
from retinue.tools.base import Scene, as_tool_failed, schema_of


@dataclass(frozen=True, slots=True)
class StartJob:
    """Delegates its text to a background job."""

    hand_over: HandOver
    arguments: type[msgspec.Struct] = AppendLineArguments
    spec: ToolSpec = field(
        default_factory=lambda: ToolSpec(
            name="start_job",
            description="Have a job done in the background.",
            parameters=schema_of(AppendLineArguments),
            repeatable=True,
        )
    )

    async def perform(self, arguments: AppendLineArguments, scene: Scene) -> str:
        handing = Handing(
            kind=DelegationKind.BACKGROUND,
            run=scene.run,
            call=scene.call,
            target=scene.agent.name,
            text=arguments.text,
            trust=scene.trust,
        )
        try:
            handed = await self.hand_over(handing)
        except RetinueError as error:
            raise as_tool_failed(error) from error
        return f"Taken as a job in the background (envelope {short(handed.delegation.id)})."
