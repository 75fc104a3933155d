"""Whom a run asks, where the house itself would not ask one of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from retinue.config import load_configuration
from retinue.domain.agent import Agent
from retinue.domain.credential import Credential
from retinue.domain.envelope import Outcome
from retinue.domain.model import ModelFacts, ModelFailureKind
from retinue.policy.limits import cooldowns
from retinue.store.agents import credentials
from retinue.testing.local_instance import LocalInstance
from retinue.testing.scripted_model import ScriptedModel, ScriptedReply


class Unpriced(ScriptedModel):
    """Nobody knows what it costs."""

    @property
    def facts(self) -> ModelFacts:
        return replace(ScriptedModel.facts.fget(self), price=None)  # pyright: ignore[reportOptionalCall]


def ada(model: str, *fallbacks: str) -> Agent:
    return Agent(name="ada", model=model, fallbacks=fallbacks, day_microusd_max=1_000_000)


@pytest.fixture
def household(tmp_path: Path) -> LocalInstance:
    household = LocalInstance(tmp_path)
    small = ScriptedModel(household.clock, name="small", window_tokens=8_000)
    household.models = (household.model, small, Unpriced(household.clock, name="unpriced"))
    return household


@pytest.mark.parametrize(
    ("first", "why"),
    [
        ("unpriced", "the price of unpriced is unknown"),
        ("small", "the context window of small is too small: 8,000 tokens"),
    ],
)
async def test_after_a_model_that_the_house_would_not_ask_the_next_is_asked(
    household: LocalInstance, first: str, why: str
) -> None:
    household.agents = (ada(first, "scripted"),)
    household.model.will_reply("At six.")
    async with household.run(drain_s=0) as house:
        posted = await house.send("When?")
        assert (
            await house.wait_for_answer(posted.envelope)
            == f"At six.\n\n[answered by scripted instead of {first}: {why}]"
        )
        assert (await house.execute_sql("SELECT count(*) FROM money WHERE model = :first", first=first)) == [(0,)]


async def test_a_fallback_that_cannot_be_asked_does_not_hide_why_the_first_failed(household: LocalInstance) -> None:
    household.agents = (ada("scripted", "small", "unpriced"),)
    household.model.will_reply(ScriptedReply(fails="no such luck", failure=ModelFailureKind.AUTH))
    async with household.run(drain_s=0) as house:
        posted = await house.send("When?")
        assert (await house.wait_for_outcome(posted.envelope)).outcome is Outcome.DEAD
        (notice,) = [each.text for each in await house.list_envelopes_to("maria")]
    assert "scripted: the key was rejected" in notice
    assert "small: the context window of small is too small: 8,000 tokens" in notice
    assert "unpriced: the price of unpriced is unknown" in notice


@pytest.mark.parametrize(("only", "code"), [("unpriced", "model.price_unknown"), ("small", "model.window_too_small")])
async def test_alone_it_is_refused_in_its_own_words(household: LocalInstance, only: str, code: str) -> None:
    household.agents = (ada(only),)
    async with household.run(drain_s=0) as house:
        settled = await house.wait_for_outcome((await house.send("When?")).envelope)
        assert settled.because.startswith(f"{code}: ")


async def test_what_one_model_failed_for_is_not_said_of_another(household: LocalInstance) -> None:
    """The first rested, the second failed, the third answered: that the first had failed was not so."""
    unable = ScriptedModel(household.clock, name="unable")
    household.models = (*household.models, unable)
    household.agents = (ada("far/resting", "unable", "scripted"),)
    environment = {"FAR_KEY": "sk-far"}
    toml = '[providers.far]\nurl = "http://127.0.0.1:9"\nkey = { env = "FAR_KEY" }\n'
    household.settings = load_configuration({"RETINUE_HOME": str(household.root), **environment}, text=toml).settings
    household.environment = environment
    unable.will_reply(ScriptedReply(fails="too much", failure=ModelFailureKind.AUTH))
    household.model.will_reply("At six.")
    async with household.run(drain_s=0) as house:
        credential = Credential(id="far:settings", provider="far", source="env:FAR_KEY")
        mark = cooldowns.build_failure_record(
            credential, "resting", ModelFailureKind.RATE_LIMIT, at=household.clock.now(), retry_after_s=3_600
        )
        assert mark is not None
        await house.store.write(lambda conn: credentials.mark_failed(conn, mark, cooldowns.apply_failure), point="test")
        posted = await house.send("When?")
        answer = await house.wait_for_answer(posted.envelope)
    assert answer == "At six.\n\n[answered by scripted instead of far/resting: it is in cooldown]"
