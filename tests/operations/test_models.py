"""What the house says about its models: what there is to choose from, and who would be asked now, and why."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from models.settings_catalog import catalog_of
from operations.operations_instance import DeskHouse, agent, desk_house, person

from retinue.cli.formatters import format_for_terminal, format_lines
from retinue.domain.agent import Agent
from retinue.domain.errors import Conflict, Invalid, NotFound
from retinue.domain.model import ModelRef
from retinue.domain.session import SessionOptions
from retinue.domain.structs import replace
from retinue.operations.catalog import OPERATIONS
from retinue.operations.parameter_schema import ParameterKind, describe_parameters
from retinue.store.sessions import sessions
from retinue.testing.local_instance import LocalInstance

OWNER, MARIA, GUS = person("owner"), person("maria"), person("gus")

SETTINGS = """
[models]
default = { primary = "opus", fallbacks = ["openai/gpt-5.2"] }
allow = ["opus", "openai/*", "rack/*"]
[models.entries."anthropic/claude-opus-4-5"]
alias = "opus"
[models.entries."rack/qwen3"]
window_tokens = 16384
[providers.rack]
url = "http://10.0.0.5:8000/v1"
"""


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[DeskHouse]:
    async with desk_house(LocalInstance(tmp_path)) as made:
        catalog = catalog_of(tmp_path, SETTINGS, ANTHROPIC_API_KEY="sk-very-private")
        made.desk = replace(made.desk, catalog=lambda: catalog)
        yield made


async def test_the_models_to_choose_from_are_listed_with_what_is_known_of_them(house: DeskHouse) -> None:
    listed = await house.ask(MARIA, "model.list")
    opus, gpt, rack, *rest = listed["models"]
    assert (opus["number"], opus["model"], opus["alias"]) == (1, "anthropic/claude-opus-4-5", "opus")
    assert (opus["window-tokens"], opus["vision"], opus["default"]) == (200_000, True, True)
    assert opus["price"] == "$5.00 in, $25.00 out" and "missing" not in opus
    assert (gpt["model"], gpt["missing"]) == ("openai/gpt-5.2", "set OPENAI_API_KEY")
    assert (rack["model"], rack["price"]) == ("rack/qwen3", "unknown")
    assert [each["model"] for each in rest] == ["guide", "local"] and rest[0]["price"] == "free"
    assert listed["allow"] == ["opus", "openai/*", "rack/*"]


async def test_who_would_be_asked_now_is_shown_for_each_agent_with_the_reason_and_what_is_missing(
    house: DeskHouse,
) -> None:
    await house.ask(OWNER, "agent.register", name="clara", model={"primary": "openai/gpt-5", "fallbacks": ["guide"]})
    await house.ask(OWNER, "agent.register", name="dora")
    shown = await house.ask(MARIA, "model.show")
    assert shown["default"] == "anthropic/claude-opus-4-5"
    agents = {each["agent"]: each for each in shown["agents"]}
    assert {"ada", "bo", "clara", "dora"} <= set(agents)
    assert [link["model"] for link in agents["clara"]["chain"]] == ["openai/gpt-5", "guide"]
    first = agents["clara"]["chain"][0]
    assert (first["because"], first["missing"]) == ("the model of clara", "set OPENAI_API_KEY")
    assert [link["model"] for link in agents["dora"]["chain"]] == ["anthropic/claude-opus-4-5", "openai/gpt-5.2"]
    assert agents["dora"]["chain"][1]["because"] == "a fallback of the server"


async def test_what_was_chosen_for_a_session_counts_there_and_ends_at_the_agents_own(house: DeskHouse) -> None:
    await house.ask(OWNER, "agent.register", name="dora")
    _, session = await house.converse(MARIA, "hello")
    await house.house.store.write(
        lambda conn: sessions.set_model_choice(conn, session, SessionOptions(model="rack/qwen3", effort="low")),
        point="setup",
    )
    await house.ask(OWNER, "agent.set", name="ada", model="guide", fallbacks=[])
    [ada] = (await house.ask(MARIA, "model.show", session=session))["agents"]
    assert [link["model"] for link in ada["chain"]] == ["rack/qwen3", "guide"]
    assert (ada["agent"], ada["session"], ada["effort"]) == ("ada", session, "low")
    with pytest.raises(Conflict, match="belongs to ada"):
        await house.ask(MARIA, "model.show", session=session, agent="bo")
    with pytest.raises(NotFound):
        await house.ask(person("noor"), "model.show", session=session)


async def test_an_agent_whose_model_cannot_be_asked_is_shown_with_the_refusal(house: DeskHouse) -> None:
    await house.ask(OWNER, "agent.set", name="bo", model="groq/x")
    [bo] = (await house.ask(MARIA, "model.show", agent="bo"))["agents"]
    assert bo["chain"] == [] and "groq/x is not allowed" in bo["refused"] and "models.allow" in bo["refused"]
    await house.ask(OWNER, "agent.set", name="bo", runner="claude")
    [bo] = (await house.ask(MARIA, "model.show", agent="bo"))["agents"]
    assert "chooses the model" in bo["refused"]


async def test_how_the_models_of_a_chain_stand_is_told_by_whoever_knows(house: DeskHouse) -> None:
    async def why_now(agent: Agent, mind: SessionOptions, chain: Sequence[ModelRef]) -> list[str]:
        return [f"{chain[0]} cools down until noon"]

    house.desk = replace(house.desk, explain_model_chain=why_now)
    await house.ask(OWNER, "agent.set", name="bo", model="guide")
    [bo] = (await house.ask(MARIA, "model.show", agent="bo"))["agents"]
    assert bo["now"] == ["guide cools down until noon"]


async def test_an_agent_sees_its_own_models_and_a_guest_none(house: DeskHouse) -> None:
    shown = await house.ask(agent("bo"), "model.show")
    assert [each["agent"] for each in shown["agents"]] == ["bo"]
    with pytest.raises(NotFound):
        await house.ask(agent("bo"), "model.show", agent="ada")
    for operation in ("model.show", "model.list"):
        with pytest.raises(Exception, match="you cannot call"):
            await house.ask(GUS, operation)


async def test_no_answer_about_models_holds_a_key(house: DeskHouse) -> None:
    for operation in ("model.show", "model.list"):
        assert "sk-very-private" not in str(await house.ask(OWNER, operation))


async def test_a_model_that_ends_is_flagged_wherever_models_are_listed(house: DeskHouse) -> None:
    await house.ask(OWNER, "agent.register", name="dora", model={"primary": "opus", "fallbacks": ["openai/gpt-5-mini"]})
    shown = await house.ask(MARIA, "model.show", agent="dora")
    first, second = shown["agents"][0]["chain"]
    assert first["retired"] == "retires 2026-11-24, use anthropic/claude-opus-5-5"
    assert second["retired"] == "retires 2026-12-11, use openai/gpt-5.6-terra"
    assert "  retired: retires 2026-12-11, use openai/gpt-5.6-terra" in format_lines("model.show", shown)
    listed = await house.ask(MARIA, "model.list")
    assert shown["known-on"] == listed["known-on"] == "2026-11-16"
    assert [each["model"] for each in listed["models"] if "retired" in each] == ["anthropic/claude-opus-4-5"]


async def test_people_read_the_chain_one_under_the_other(house: DeskHouse) -> None:
    await house.ask(OWNER, "agent.register", name="dora")
    form = await house.ask(MARIA, "model.show", agent="dora")
    assert format_lines("model.show", form) == [
        "default: anthropic/claude-opus-4-5 (the server's default (`models.default`))",
        "known-on: 2026-11-16",
        "",
        "agent: dora",
        "effort: default",
        "model-1: anthropic/claude-opus-4-5 (the server's default (`models.default`))",
        "  window-tokens: 200000",
        "  price: $5.00 in, $25.00 out",
        "  retired: retires 2026-11-24, use anthropic/claude-opus-5-5",
        "model-2: openai/gpt-5.2 (a fallback of the server)",
        "  window-tokens: 400000",
        "  price: $1.75 in, $14.00 out",
        "  missing: set OPENAI_API_KEY",
    ]
    assert format_for_terminal("model.show", form, 100) == format_lines("model.show", form)
    listed = format_for_terminal("model.list", await house.ask(MARIA, "model.list"), 120)
    assert listed[0].split()[:3] == ["number", "model", "alias"]


# --- what agents are set to ---


@pytest.mark.spec("C105.setting")
async def test_an_agents_model_can_be_given_with_its_fallbacks_in_one(house: DeskHouse) -> None:
    made = await house.ask(OWNER, "agent.register", name="clara", model={"primary": "opus", "fallbacks": ["guide"]})
    assert (made["model"], made["fallbacks"]) == ("opus", ["guide"])
    none = await house.ask(OWNER, "agent.set", name="clara", model={"fallbacks": []})
    assert (none["model"], none["fallbacks"]) == ("opus", [])
    house_s = await house.ask(OWNER, "agent.set", name="clara", model="default", clear=["fallbacks"])
    assert (house_s["model"], house_s["fallbacks"]) == ("", None)
    with pytest.raises(Invalid, match="the fallback models are given twice"):
        await house.ask(OWNER, "agent.set", name="clara", model={"fallbacks": ["guide"]}, fallbacks=["local"])


@pytest.mark.parametrize("given", [{"model": "openai/"}, {"model": {"primary": "a b"}}, {"fallbacks": ["/x"]}])
async def test_a_reference_that_names_no_model_is_refused(house: DeskHouse, given: dict[str, Any]) -> None:
    with pytest.raises(Invalid) as refused:
        await house.ask(OWNER, "agent.set", name="ada", **given)
    assert refused.value.code == "agent.field_invalid"


async def test_the_caps_of_an_agent_can_be_set_and_are_shown(house: DeskHouse) -> None:
    caps: dict[str, Any] = {"tree_microusd_max": 3, "day_microusd_max": 4, "month_microusd_max": 0}
    await house.ask(OWNER, "agent.set", name="ada", **caps)
    shown = await house.ask(OWNER, "agent.show", name="ada")
    assert {name: shown[name] for name in caps} == caps
    with pytest.raises(Invalid):
        await house.ask(OWNER, "agent.set", name="ada", day_microusd_max=-1)


@pytest.mark.spec("H80")
@pytest.mark.parametrize("operation", ["agent.register", "agent.set"])
async def test_an_effort_is_one_of_the_list_and_one_that_the_model_cannot_take_is_said(
    house: DeskHouse, operation: str
) -> None:
    name = "clara" if operation == "agent.register" else "ada"
    with pytest.raises(Invalid, match="invalid value for effort") as refused:
        await house.ask(OWNER, operation, name=name, effort="extreme")
    assert "none, low, medium, high, xhigh" in refused.value.because
    with pytest.raises(Invalid, match="openai/gpt-5 does not support the effort 'xhigh'") as said:
        await house.ask(OWNER, operation, name=name, model="openai/gpt-5", effort="xhigh")
    assert "low, medium, high" in said.value.because
    kept = await house.ask(OWNER, operation, name=name, model="openai/gpt-5", effort="high")
    assert kept["effort"] == "high"
    plain = await house.ask(OWNER, "agent.set", name=name, effort="default")
    assert plain["effort"] is None


def test_a_model_is_typed_as_a_text_on_the_command_line() -> None:
    found = {each.name: each for each in describe_parameters(OPERATIONS["agent.set"])}
    assert (found["model"].kind, found["model"].repeated) == (ParameterKind.TEXT, False)
    assert (found["fallbacks"].kind, found["fallbacks"].repeated) == (ParameterKind.TEXT, True)
    shown = {each.name: each for each in describe_parameters(OPERATIONS["model.show"])}
    assert shown["agent"].place
