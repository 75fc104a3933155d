"""If a provider has retired a model, the waiting person reads what to use instead."""

from __future__ import annotations

from pathlib import Path

from flows.fake_provider import Provider, build_instance, error_answer, list_texts_to, provider, provider_section, says
from models.settings_catalog import make_catalog

from retinue.domain.agent import Agent
from retinue.domain.envelope import Outcome
from retinue.operations.doctor_registry import DoctorContext, DoctorHealth
from retinue.operations.server.doctor_checks import check_retired_models, gather_agent_facts
from retinue.testing.local_instance import LocalInstance, LocalServer

RETIRED_MODEL_ERROR = error_answer(404, "models/gemini-2.5-pro is not found for API version v1beta.", type_="NOT_FOUND")


def build_provider_instance(root: Path, provider_server: Provider, *models: str) -> LocalInstance:
    toml = provider_section("google", provider_server.url, format_="google") + provider_section(
        "deepseek", provider_server.url
    )
    first, *others = models
    ada = Agent(name="ada", model=first, fallbacks=tuple(others), instructions="Be brief.")
    return build_instance(root, toml, agents=(ada,))


async def send_and_read_failure(server: LocalServer) -> str:
    receipt = await server.send("hello")
    assert (await server.wait_for_outcome(receipt.envelope)).outcome is Outcome.DEAD
    return (await list_texts_to(server))[-1]


async def test_a_retired_model_fails_with_the_name_of_its_replacement(tmp_path: Path) -> None:
    async with provider() as provider_server:
        provider_server.always(RETIRED_MODEL_ERROR)
        async with build_provider_instance(tmp_path, provider_server, "google/gemini-2.5-pro").run() as server:
            failure_text = await send_and_read_failure(server)
    head, because, try_this = failure_text.split("\n")
    assert head == "Something went wrong: google no longer offers gemini-2.5-pro [model.retired]"
    assert "2026-10-16" in because
    assert "retinue agent set NAME --model google/gemini-3.8-flash" in try_this


async def test_if_every_model_of_a_chain_is_retired_each_replacement_is_named(tmp_path: Path) -> None:
    async with provider() as provider_server:
        provider_server.always(RETIRED_MODEL_ERROR)
        async with build_provider_instance(
            tmp_path, provider_server, "google/gemini-2.5-pro", "deepseek/deepseek-chat"
        ).run() as server:
            failure_text = await send_and_read_failure(server)
    assert "google/gemini-2.5-pro: google no longer offers gemini-2.5-pro, use google/gemini-3.8-flash" in failure_text
    assert (
        "deepseek/deepseek-chat: deepseek no longer offers deepseek-chat, use deepseek/deepseek-flash" in failure_text
    )


async def test_a_fallback_answer_names_the_retired_model_and_its_replacement(tmp_path: Path) -> None:
    async with provider() as provider_server:
        provider_server.rule = lambda asked: (
            says("Yes.") if asked.path.endswith("/chat/completions") else RETIRED_MODEL_ERROR
        )
        async with build_provider_instance(
            tmp_path, provider_server, "google/gemini-2.5-pro", "deepseek/deepseek-flash"
        ).run() as server:
            answer = await server.wait_for_answer((await server.send("hello")).envelope)
    assert answer.startswith("Yes.")
    assert "google no longer offers gemini-2.5-pro, use google/gemini-3.8-flash" in answer


async def test_the_doctor_warns_about_an_agent_whose_model_is_being_retired(tmp_path: Path) -> None:
    async with (
        provider() as provider_server,
        build_provider_instance(tmp_path, provider_server, "google/gemini-2.5-pro").run() as server,
    ):
        catalog = make_catalog(tmp_path)
        now = server.instance.clock.now()
        facts = await gather_agent_facts(
            DoctorContext(data_dir=tmp_path, environment={}, now=now, store=server.store, catalog=catalog)
        )
    assert facts is not None
    [found] = check_retired_models(facts)
    assert found.health is DoctorHealth.WARNING
    assert "google/gemini-2.5-pro" in found.because and "use google/gemini-3.8-flash" in found.because
