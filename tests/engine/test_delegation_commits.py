"""Delegations by a run that has ended, and repeated delegation calls."""

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


async def test_a_delegation_from_a_run_that_has_ended_is_refused_and_commits_nothing(tmp_path: Path) -> None:
    """Its intent was stored when another worker ended the run, and the call then waited forever."""
    instance = LocalInstance(tmp_path)
    instance.agents = tuple(Agent(name=name, model="scripted") for name in ("ada", "bo"))
    instance.model.will_reply("done")
    async with instance.run() as server:
        await server.wait_for_outcome((await server.send("go")).envelope)
        ((run,),) = await server.execute_sql("SELECT id FROM runs")
        request = DelegationRequest(
            kind=DelegationKind.MESSAGE, run=run, call="c-1", target="bo", text="help", trust=Trust.OWNER, wait_s=60.0
        )
        with pytest.raises(NotAllowed) as refused:
            await server.engine.delegate(request)
        assert refused.value.code == "delegation.no_run"
        assert await server.execute_sql("SELECT id FROM delegations") == []


async def test_a_delegation_call_repeated_after_its_commit_keeps_the_failure_notice_of_its_job(tmp_path: Path) -> None:
    """The call's result only reports a job. It once consumed the notice of the job's failure, so no model read it."""
    instance = LocalInstance(tmp_path, slots=SlotLimits(main=1, background=0))  # the job waits
    instance.model.will_reply(ScriptedReply(text="started", after_s=10), "noted")
    async with instance.run() as server:
        asked = await server.send("go")
        await server.wait_for(lambda _: len(instance.model.prompts) == 1, what="the model to be asked")
        ((run,),) = await server.execute_sql("SELECT id FROM runs")
        request = DelegationRequest(
            kind=DelegationKind.BACKGROUND, run=run, call="c-1", target="ada", text="tidy up", trust=Trust.OWNER
        )
        job = (await server.engine.delegate(request)).delegation
        assert job.target_session is not None
        await server.engine.cancel(job.target_session, by="test", reason="it is not needed", clear_due=True)

        again = await server.engine.delegate(request)
        assert again.delegation.state is DelegationState.CANCELLED

        await instance.clock.advance(10)
        assert await server.wait_for_answer(asked.envelope) == "started"
        await server.wait_for(lambda _: len(instance.model.prompts) == 2, what="the notice to be read")
        assert "Background job failed: Stopped before it was processed" in str(instance.model.prompts[1])
