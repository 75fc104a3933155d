"""A tool for simulations that starts a background job, as an envelope to `agent:background` does."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from retinue.domain.delegation import DelegationKind
from retinue.domain.delegation_request import DelegateWork, DelegationRequest
from retinue.domain.errors import RetinueError
from retinue.domain.ids import short_id
from retinue.domain.tool import ToolSpec
from retinue.testing.tools import AppendLineArguments
from retinue.tools.base import ToolContext, as_tool_failed, schema_of


@dataclass(frozen=True, slots=True)
class StartJobTool:
    """A tool that starts a background job with its text as the task."""

    delegate: DelegateWork
    arguments: type[msgspec.Struct] = AppendLineArguments
    spec: ToolSpec = field(
        default_factory=lambda: ToolSpec(
            name="start_job",
            description="Have a job done in the background.",
            parameters=schema_of(AppendLineArguments),
            is_repeatable=True,
        )
    )

    async def perform(self, arguments: AppendLineArguments, context: ToolContext) -> str:
        delegation_request = DelegationRequest(
            kind=DelegationKind.BACKGROUND,
            run=context.run,
            call=context.call,
            target=context.agent.name,
            text=arguments.text,
            trust=context.trust,
        )
        try:
            delegated = await self.delegate(delegation_request)
        except RetinueError as error:
            raise as_tool_failed(error) from error
        return f"Taken as a job in the background (envelope {short_id(delegated.delegation.id)})."
