"""Operation that calls a tool directly, outside of any run, for scripts and the web app.

Tool policy applies to these calls too, with additional rules.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import msgspec

from retinue.agents.agent_directory import ensure_agent_directory, ensure_workspace
from retinue.domain.agent import PermissionLevel
from retinue.domain.decision import DecisionKind
from retinue.domain.principal import Principal
from retinue.domain.tool import Call
from retinue.operations.base import Operation, Services
from retinue.operations.tool.errors import ToolNeedsApproval, ToolNotFound
from retinue.operations.tool_context import build_tool_context
from retinue.policy.tools.tool_policy import CallSource
from retinue.tools.toolbox import Toolbox, TurnContext


class ToolInvokeRequest(msgspec.Struct, forbid_unknown_fields=True):
    tool: str
    args: Annotated[dict[str, Any], msgspec.Meta(description="arguments of the call")] = {}
    agent: Annotated[str, msgspec.Meta(description="agent that calls the tool; default: the default agent")] = ""
    session: Annotated[str, msgspec.Meta(description="id of a session of the agent; default: no session")] = ""


class ToolInvokeResult(msgspec.Struct):
    tool: str
    output: str
    failed: bool


async def invoke_tool(services: Services, caller: Principal, request: ToolInvokeRequest) -> ToolInvokeResult:
    """Call a tool directly, outside of any run.

    A call that needs an approval is refused, because only a run can request an approval.
    """
    return await call_tool_directly(services, caller, request, call_source=CallSource.INVOKE)


async def call_tool_directly(
    services: Services, caller: Principal, request: ToolInvokeRequest, *, call_source: CallSource
) -> ToolInvokeResult:
    toolbox = services.toolbox
    if toolbox is None:
        raise ToolNotFound(request.tool, because="this server was started without tools")
    agent = request.agent or await services.store.read(services.default_agent)
    occasion = await build_tool_context(services, caller, agent=agent, session=request.session, entry_point=call_source)
    home = ensure_agent_directory(services.data_dir, occasion.agent.name)
    ensure_workspace(occasion.rights.workspace, agent_directory=home)
    call = Call(id=occasion.run[:8], tool=request.tool, arguments=request.args)
    return await _decide_and_perform(toolbox, call, occasion, mark_effect_started=services.mark_effect_started)


async def _decide_and_perform(
    toolbox: Toolbox, call: Call, context: TurnContext, *, mark_effect_started: Callable[[], None]
) -> ToolInvokeResult:
    if toolbox.spec(call.tool) is None:
        raise ToolNotFound(call.tool)
    plan = await toolbox.decide_direct_call(call, context)
    match plan.decision.kind:
        case DecisionKind.DENY:
            raise ToolNotFound(call.tool, because=plan.decision.because, setting=plan.decision.setting_key)
        case DecisionKind.ASK:
            raise ToolNeedsApproval(call.tool, because=plan.decision.because)
        case DecisionKind.ALLOW:
            mark_effect_started()
            result = await toolbox.perform(call, plan.context, is_recorded=False)
    return ToolInvokeResult(tool=call.tool, output=result.output, failed=result.failed)


OPERATIONS = (
    Operation(
        name="tool.invoke",
        summary="Call a tool directly, as an agent would.",
        parameters=ToolInvokeRequest,
        handler=invoke_tool,
        permission=PermissionLevel.BOSS,
        has_effect=True,
        claims_key=True,
        result=ToolInvokeResult,
    ),
)
