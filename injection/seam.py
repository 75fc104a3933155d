"""The one place where the sweep meets the house: is this call allowed, asked about, or denied?"""

from __future__ import annotations

from datetime import date

from retinue.domain.decision import Decision
from retinue.domain.tool import Call
from retinue.policy import origin
from retinue.policy.origin_rules import OriginPolicy
from retinue.tools.toolbox import Occasion, Toolbox


async def decide(
    toolbox: Toolbox, policy: OriginPolicy | None, call: Call, occasion: Occasion, today: date
) -> Decision:
    """The chain of the toolbox, and then the origin rule over the same records. Without a policy there is no rule."""
    chain = (await toolbox.judge(call, occasion)).decision
    spec = toolbox.spec(call.tool)
    if spec is None or policy is None or not chain.allowed:
        return chain
    return origin.decide(policy, spec, call, origin.context_of(occasion.context), today=today).decision
