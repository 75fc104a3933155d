"""Which model a run calls if policy excludes some of them."""

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


class UnpricedModel(ScriptedModel):
    """A model with an unknown price."""

    @property
    def facts(self) -> ModelFacts:
        return replace(ScriptedModel.facts.fget(self), price=None)  # pyright: ignore[reportOptionalCall]


def make_ada(model: str, *fallbacks: str) -> Agent:
    return Agent(name="ada", model=model, fallbacks=fallbacks, day_microusd_max=1_000_000)


@pytest.fixture
def instance(tmp_path: Path) -> LocalInstance:
    instance = LocalInstance(tmp_path)
    small = ScriptedModel(instance.clock, name="small", window_tokens=8_000)
    instance.models = (instance.model, small, UnpricedModel(instance.clock, name="unpriced"))
    return instance


@pytest.mark.parametrize(
    ("first", "why"),
    [
        ("unpriced", "unpriced cannot be used under a budget, because its price is unknown"),
        ("small", "the context window of small is too small: 8,000 tokens"),
    ],
)
async def test_a_model_call_skips_a_model_without_a_price_or_with_a_small_window_for_its_fallback(
    instance: LocalInstance, first: str, why: str
) -> None:
    instance.agents = (make_ada(first, "scripted"),)
    instance.model.will_reply("At six.")
    async with instance.run(drain_s=0) as server:
        posted = await server.send("When?")
        assert (
            await server.wait_for_answer(posted.envelope)
            == f"At six.\n\n[answered by scripted instead of {first}: {why}]"
        )
        assert (await server.execute_sql("SELECT count(*) FROM model_calls WHERE model = :first", first=first)) == [
            (0,)
        ]


async def test_the_failure_notice_of_a_model_call_names_the_first_failure_and_every_skipped_fallback(
    instance: LocalInstance,
) -> None:
    instance.agents = (make_ada("scripted", "small", "unpriced"),)
    instance.model.will_reply(ScriptedReply(fails="no such luck", failure=ModelFailureKind.AUTH))
    async with instance.run(drain_s=0) as server:
        posted = await server.send("When?")
        assert (await server.wait_for_outcome(posted.envelope)).outcome is Outcome.DEAD
        (notice,) = [each.text for each in await server.list_envelopes_to("maria")]
    assert "scripted: the key was rejected" in notice
    assert "small: the context window of small is too small: 8,000 tokens" in notice
    assert "unpriced: unpriced cannot be used under a budget, because its price is unknown" in notice


@pytest.mark.parametrize(("only", "code"), [("unpriced", "model.price_unknown"), ("small", "model.window_too_small")])
async def test_a_model_call_without_a_fallback_is_refused_with_a_code_for_an_unpriced_or_small_model(
    instance: LocalInstance, only: str, code: str
) -> None:
    instance.agents = (make_ada(only),)
    async with instance.run(drain_s=0) as server:
        settled = await server.wait_for_outcome((await server.send("When?")).envelope)
        assert settled.because.startswith(f"{code}: ")


async def test_a_model_call_answered_by_a_fallback_names_the_replaced_model_with_its_own_reason(
    instance: LocalInstance,
) -> None:
    """The first was in cooldown, the second failed, the third answered: the notice once said that the first had
    failed."""
    unable = ScriptedModel(instance.clock, name="unable")
    instance.models = (*instance.models, unable)
    instance.agents = (make_ada("far/resting", "unable", "scripted"),)
    environment = {"FAR_KEY": "sk-far"}
    toml = '[providers.far]\nurl = "http://127.0.0.1:9"\nkey = { env = "FAR_KEY" }\n'
    instance.settings = load_configuration({"RETINUE_HOME": str(instance.root), **environment}, text=toml).settings
    instance.environment = environment
    unable.will_reply(ScriptedReply(fails="too much", failure=ModelFailureKind.AUTH))
    instance.model.will_reply("At six.")
    async with instance.run(drain_s=0) as server:
        credential = Credential(id="far:settings", provider="far", source="env:FAR_KEY")
        mark = cooldowns.build_failure_record(
            credential, "resting", ModelFailureKind.RATE_LIMIT, at=instance.clock.now(), retry_after_s=3_600
        )
        assert mark is not None
        await server.store.write(
            lambda conn: credentials.mark_failed(conn, mark, cooldowns.apply_failure), point="test"
        )
        posted = await server.send("When?")
        answer = await server.wait_for_answer(posted.envelope)
    assert answer == "At six.\n\n[answered by scripted instead of far/resting: it is in cooldown]"
