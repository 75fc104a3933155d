"""Work that is handed on, where its run is no more."""

from __future__ import annotations

from pathlib import Path

import pytest

from retinue.domain.agent import Agent
from retinue.domain.delegation import DelegationKind
from retinue.domain.errors import NotAllowed
from retinue.domain.handing import Handing
from retinue.domain.trust import Trust
from retinue.testing.household import Household


async def test_a_worker_that_was_away_hands_nothing_on_for_a_run_that_has_ended_meanwhile(tmp_path: Path) -> None:
    """Its intent was stored when another worker gave the run up, and then a call waited for ever in nobody's run."""
    household = Household(tmp_path)
    household.agents = tuple(Agent(name=name, model="scripted") for name in ("ada", "bo"))
    household.model.will_reply("done")
    async with household.open() as house:
        await house.outcome((await house.post("go")).envelope)
        ((run,),) = await house.sql("SELECT id FROM runs")
        handing = Handing(
            kind=DelegationKind.MESSAGE, run=run, call="c-1", target="bo", text="help", trust=Trust.OWNER, wait_s=60.0
        )
        with pytest.raises(NotAllowed) as refused:
            await house.engine.hand_over(handing)
        assert refused.value.code == "delegation.no-run"
        assert await house.sql("SELECT id FROM delegations") == []
