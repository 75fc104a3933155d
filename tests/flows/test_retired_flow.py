"""A model that its provider has switched off: the person who waits reads what to use instead."""

from __future__ import annotations

from pathlib import Path

from flows.fake_provider import Provider, household_of, provider, refuses, says, section, told
from models.settings_catalog import catalog_of

from retinue.domain.agent import Agent
from retinue.domain.envelope import Outcome
from retinue.operations.doctor_registry import DoctorContext, DoctorHealth
from retinue.operations.server.doctor_checks import check_retired_models, gather_agent_facts
from retinue.testing.local_instance import LocalInstance, LocalServer

GONE = refuses(404, "models/gemini-2.5-pro is not found for API version v1beta.", type_="NOT_FOUND")


def house_of(root: Path, server: Provider, *models: str) -> LocalInstance:
    toml = section("google", server.url, format_="google") + section("deepseek", server.url)
    first, *others = models
    ada = Agent(name="ada", model=first, fallbacks=tuple(others), instructions="Be brief.")
    return household_of(root, toml, agents=(ada,))


async def failed(house: LocalServer) -> str:
    receipt = await house.send("hello")
    assert (await house.wait_for_outcome(receipt.envelope)).outcome is Outcome.DEAD
    return (await told(house))[-1]


async def test_a_retired_model_fails_with_the_name_of_its_replacement(tmp_path: Path) -> None:
    async with provider() as server:
        server.always(GONE)
        async with house_of(tmp_path, server, "google/gemini-2.5-pro").run() as house:
            said = await failed(house)
    head, because, try_this = said.split("\n")
    assert head == "Something went wrong: google no longer offers gemini-2.5-pro [model.retired]"
    assert "2026-10-16" in because
    assert "retinue agent set NAME --model google/gemini-3.8-flash" in try_this


async def test_where_every_model_of_a_chain_is_gone_each_replacement_is_named(tmp_path: Path) -> None:
    async with provider() as server:
        server.always(GONE)
        async with house_of(tmp_path, server, "google/gemini-2.5-pro", "deepseek/deepseek-chat").run() as house:
            said = await failed(house)
    assert "google/gemini-2.5-pro: google no longer offers gemini-2.5-pro, use google/gemini-3.8-flash" in said
    assert "deepseek/deepseek-chat: deepseek no longer offers deepseek-chat, use deepseek/deepseek-flash" in said


async def test_an_answer_of_a_fallback_says_which_model_is_gone_and_what_to_use(tmp_path: Path) -> None:
    async with provider() as server:
        server.rule = lambda asked: says("Yes.") if asked.path.endswith("/chat/completions") else GONE
        async with house_of(tmp_path, server, "google/gemini-2.5-pro", "deepseek/deepseek-flash").run() as house:
            answer = await house.wait_for_answer((await house.send("hello")).envelope)
    assert answer.startswith("Yes.")
    assert "google no longer offers gemini-2.5-pro, use google/gemini-3.8-flash" in answer


async def test_the_doctor_warns_of_an_agent_whose_model_ends(tmp_path: Path) -> None:
    async with provider() as server, house_of(tmp_path, server, "google/gemini-2.5-pro").run() as house:
        catalog = catalog_of(tmp_path)
        now = house.instance.clock.now()
        facts = await gather_agent_facts(
            DoctorContext(data_dir=tmp_path, environment={}, now=now, store=house.store, catalog=catalog)
        )
    assert facts is not None
    [found] = check_retired_models(facts)
    assert found.health is DoctorHealth.WARNING
    assert "google/gemini-2.5-pro" in found.because and "use google/gemini-3.8-flash" in found.because
