"""Work that is handed on, where its run is no more."""

from __future__ import annotations

from pathlib import Path

import pytest

from retinue.domain.agent import Agent
from retinue.domain.delegation import DelegationKind, DelegationState
from retinue.domain.delegation_request import Handing
from retinue.domain.errors import NotAllowed
from retinue.domain.trust import Trust
from retinue.engine.lanes import Slots
from retinue.testing.local_instance import Household
from retinue.testing.scripted_model import Line


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


async def test_a_repeated_call_leaves_the_failure_of_its_background_job_to_be_read(tmp_path: Path) -> None:
    """The call only says that there is a job. It took the notice of its failure with it, and no model ever read it."""
    household = Household(tmp_path, slots=Slots(main=1, background=0))  # the job waits
    household.model.will_reply(Line(text="started", after_s=10), "noted")
    async with household.open() as house:
        asked = await house.post("go")
        await house.eventually(lambda _: len(household.model.prompts) == 1, what="the model to be asked")
        ((run,),) = await house.sql("SELECT id FROM runs")
        handing = Handing(
            kind=DelegationKind.BACKGROUND, run=run, call="c-1", target="ada", text="tidy up", trust=Trust.OWNER
        )
        job = (await house.engine.hand_over(handing)).delegation
        assert job.to is not None
        await house.engine.cancel(job.to, by="test", why="it is not needed", clear_due=True)

        again = await house.engine.hand_over(handing)
        assert again.delegation.state is DelegationState.CANCELLED

        await household.clock.advance(10)
        assert await house.answer_to(asked.envelope) == "started"
        await house.eventually(lambda _: len(household.model.prompts) == 2, what="the notice to be read")
        assert "Background job failed: Stopped before it was read" in str(household.model.prompts[1])
