"""Call a tool outside any run, for scripts and the web app.

Policy applies, with additional rules for direct calls.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import msgspec

from retinue.agents.agent_directory import ensure_home, ensure_workspace
from retinue.domain.agent import PermissionLevel
from retinue.domain.decision import Verdict
from retinue.domain.errors import NotAllowed, NotFound
from retinue.domain.principal import Principal
from retinue.domain.tool import Call
from retinue.operations.base import Desk, Operation
from retinue.operations.tool_context import occasion_for
from retinue.policy.tools.tools import Door
from retinue.tools.toolbox import Occasion, Toolbox


class Invoke(msgspec.Struct, forbid_unknown_fields=True):
    tool: str
    args: Annotated[dict[str, Any], msgspec.Meta(description="the arguments of the call")] = {}
    agent: Annotated[str, msgspec.Meta(description="as which agent; left out, who answers where nobody is named")] = ""
    session: Annotated[str, msgspec.Meta(description="in which of its sessions")] = ""


class Invoked(msgspec.Struct):
    tool: str
    output: str
    failed: bool


async def invoke(desk: Desk, caller: Principal, asked: Invoke) -> Invoked:
    """Call a tool directly.

    A call that needs approval is refused, because only a conversation can ask for one.
    """
    return await call_directly(desk, caller, asked, door=Door.INVOKE)


async def call_directly(desk: Desk, caller: Principal, asked: Invoke, *, door: Door) -> Invoked:
    toolbox = desk.toolbox
    if toolbox is None:
        raise _no_tool(asked.tool, "this house was opened without any")
    agent = asked.agent or await desk.store.read(desk.default_agent)
    occasion = await occasion_for(desk, caller, agent=agent, session=asked.session, door=door)
    home = ensure_home(desk.home, occasion.agent.name)
    ensure_workspace(occasion.rights.workspace, home=home)
    call = Call(id=occasion.run[:8], tool=asked.tool, arguments=asked.args)
    return await _perform(toolbox, call, occasion, effect_begins=desk.effect_begins)


async def _perform(toolbox: Toolbox, call: Call, occasion: Occasion, *, effect_begins: Callable[[], None]) -> Invoked:
    if toolbox.spec(call.tool) is None:
        raise _no_tool(call.tool, "no tool of this house has that name")
    plan = await toolbox.decide_directly(call, occasion)
    match plan.decision.verdict:
        case Verdict.DENY:
            raise _no_tool(call.tool, plan.decision.because, plan.decision.key)
        case Verdict.ASK:
            raise NotAllowed(
                f"'{call.tool}' is asked about first, and here is nobody to ask",
                because=plan.decision.because,
                try_this="let the agent do it in a conversation, or grant it: retinue grant add",
                code="tool.asks",
            )
        case Verdict.ALLOW:
            effect_begins()
            result = await toolbox.perform(call, plan.scene, kept=False)
    return Invoked(tool=call.tool, output=result.output, failed=result.failed)


def _no_tool(name: str, because: str, key: str = "") -> NotFound:
    return NotFound(
        f"there is no tool '{name[:64]}' here",
        because=because,
        try_this=f"change {key}" if key else "list them: retinue tool list",
        code="tool.not-found",
    )


OPERATIONS = (
    Operation(
        name="tool.invoke",
        summary="Call a tool directly, as an agent would.",
        parameters=Invoke,
        handler=invoke,
        permission=PermissionLevel.BOSS,
        effect=True,
        claims_key=True,
        result=Invoked,
    ),
)
