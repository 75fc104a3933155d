"""Work that is handed on, where its run is no more."""

from __future__ import annotations

from pathlib import Path

import pytest

from retinue.domain.agent import Agent
from retinue.domain.delegation import DelegationKind, DelegationState
from retinue.domain.delegation_request import DelegationRequest
from retinue.domain.errors import NotAllowed
from retinue.domain.trust import Trust
from retinue.engine.lanes import SlotLimits
from retinue.testing.local_instance import LocalInstance
from retinue.testing.scripted_model import ScriptedReply


async def test_a_worker_that_was_away_hands_nothing_on_for_a_run_that_has_ended_meanwhile(tmp_path: Path) -> None:
    """Its intent was stored when another worker gave the run up, and then a call waited for ever in nobody's run."""
    household = LocalInstance(tmp_path)
    household.agents = tuple(Agent(name=name, model="scripted") for name in ("ada", "bo"))
    household.model.will_reply("done")
    async with household.run() as house:
        await house.wait_for_outcome((await house.send("go")).envelope)
        ((run,),) = await house.execute_sql("SELECT id FROM runs")
        handing = DelegationRequest(
            kind=DelegationKind.MESSAGE, run=run, call="c-1", target="bo", text="help", trust=Trust.OWNER, wait_s=60.0
        )
        with pytest.raises(NotAllowed) as refused:
            await house.engine.delegate(handing)
        assert refused.value.code == "delegation.no_run"
        assert await house.execute_sql("SELECT id FROM delegations") == []


async def test_a_repeated_call_leaves_the_failure_of_its_background_job_to_be_read(tmp_path: Path) -> None:
    """The call only says that there is a job. It took the notice of its failure with it, and no model ever read it."""
    household = LocalInstance(tmp_path, slots=SlotLimits(main=1, background=0))  # the job waits
    household.model.will_reply(ScriptedReply(text="started", after_s=10), "noted")
    async with household.run() as house:
        asked = await house.send("go")
        await house.wait_for(lambda _: len(household.model.prompts) == 1, what="the model to be asked")
        ((run,),) = await house.execute_sql("SELECT id FROM runs")
        handing = DelegationRequest(
            kind=DelegationKind.BACKGROUND, run=run, call="c-1", target="ada", text="tidy up", trust=Trust.OWNER
        )
        job = (await house.engine.delegate(handing)).delegation
        assert job.target_session is not None
        await house.engine.cancel(job.target_session, by="test", reason="it is not needed", clear_due=True)

        again = await house.engine.delegate(handing)
        assert again.delegation.state is DelegationState.CANCELLED

        await household.clock.advance(10)
        assert await house.wait_for_answer(asked.envelope) == "started"
        await house.wait_for(lambda _: len(household.model.prompts) == 2, what="the notice to be read")
        assert "Background job failed: Stopped before it was processed" in str(household.model.prompts[1])
