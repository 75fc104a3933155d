"""Model operations: which models are available, and which one would be called now, with the reason."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from models.settings_catalog import make_catalog
from operations.operations_instance import OperationsServer, agent, open_operations_server, person

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
async def server(tmp_path: Path) -> AsyncIterator[OperationsServer]:
    async with open_operations_server(LocalInstance(tmp_path)) as made:
        catalog = make_catalog(tmp_path, SETTINGS, ANTHROPIC_API_KEY="sk-very-private")
        made.services = replace(made.services, catalog=lambda: catalog)
        yield made


async def test_model_list_shows_the_allowed_models_with_price_window_and_missing_keys(server: OperationsServer) -> None:
    listed = await server.ask(MARIA, "model.list")
    opus, gpt, rack, *rest = listed["models"]
    assert (opus["number"], opus["model"], opus["alias"]) == (1, "anthropic/claude-opus-4-5", "opus")
    assert (opus["window_tokens"], opus["vision"], opus["default"]) == (200_000, True, True)
    assert opus["price"] == "$5.00 in, $25.00 out" and "missing" not in opus
    assert (gpt["model"], gpt["missing"]) == ("openai/gpt-5.2", "set OPENAI_API_KEY")
    assert (rack["model"], rack["price"]) == ("rack/qwen3", "unknown")
    assert [each["model"] for each in rest] == ["guide", "local"] and rest[0]["price"] == "free"
    assert listed["allow"] == ["opus", "openai/*", "rack/*"]


async def test_model_show_explains_the_model_chain_of_each_agent_and_missing_keys(
    server: OperationsServer,
) -> None:
    await server.ask(OWNER, "agent.register", name="clara", model={"primary": "openai/gpt-5", "fallbacks": ["guide"]})
    await server.ask(OWNER, "agent.register", name="dora")
    shown = await server.ask(MARIA, "model.show")
    assert shown["default"] == "anthropic/claude-opus-4-5"
    agents = {each["agent"]: each for each in shown["agents"]}
    assert {"ada", "bo", "clara", "dora"} <= set(agents)
    assert [link["model"] for link in agents["clara"]["chain"]] == ["openai/gpt-5", "guide"]
    first = agents["clara"]["chain"][0]
    assert (first["because"], first["missing"]) == ("the model of clara", "set OPENAI_API_KEY")
    assert [link["model"] for link in agents["dora"]["chain"]] == ["anthropic/claude-opus-4-5", "openai/gpt-5.2"]
    assert agents["dora"]["chain"][1]["because"] == "a fallback of the server"


async def test_model_show_lists_the_model_chosen_for_a_session_before_the_agents_model(
    server: OperationsServer,
) -> None:
    await server.ask(OWNER, "agent.register", name="dora")
    _, session = await server.converse(MARIA, "hello")
    await server.server.store.write(
        lambda conn: sessions.set_model_choice(conn, session, SessionOptions(model="rack/qwen3", effort="low")),
        point="setup",
    )
    await server.ask(OWNER, "agent.set", name="ada", model="guide", fallbacks=[])
    [ada] = (await server.ask(MARIA, "model.show", session=session))["agents"]
    assert [link["model"] for link in ada["chain"]] == ["rack/qwen3", "guide"]
    assert (ada["agent"], ada["session"], ada["effort"]) == ("ada", session, "low")
    with pytest.raises(Conflict, match="belongs to ada"):
        await server.ask(MARIA, "model.show", session=session, agent="bo")
    with pytest.raises(NotFound):
        await server.ask(person("noor"), "model.show", session=session)


async def test_model_show_explains_why_an_agents_model_cannot_be_used(server: OperationsServer) -> None:
    await server.ask(OWNER, "agent.set", name="bo", model="groq/x")
    [bo] = (await server.ask(MARIA, "model.show", agent="bo"))["agents"]
    assert bo["chain"] == [] and "groq/x is not allowed" in bo["error"] and "models.allow" in bo["error"]
    await server.ask(OWNER, "agent.set", name="bo", runner="claude")
    [bo] = (await server.ask(MARIA, "model.show", agent="bo"))["agents"]
    assert "chooses the model" in bo["error"]


async def test_model_show_includes_the_current_state_from_explain_model_chain(server: OperationsServer) -> None:
    async def explain_chain(agent: Agent, mind: SessionOptions, chain: Sequence[ModelRef]) -> list[str]:
        return [f"{chain[0]} cools down until noon"]

    server.services = replace(server.services, explain_model_chain=explain_chain)
    await server.ask(OWNER, "agent.set", name="bo", model="guide")
    [bo] = (await server.ask(MARIA, "model.show", agent="bo"))["agents"]
    assert bo["current"] == ["guide cools down until noon"]


async def test_an_agent_sees_its_own_model_chain_and_a_guest_sees_none(server: OperationsServer) -> None:
    shown = await server.ask(agent("bo"), "model.show")
    assert [each["agent"] for each in shown["agents"]] == ["bo"]
    with pytest.raises(NotFound):
        await server.ask(agent("bo"), "model.show", agent="ada")
    for operation in ("model.show", "model.list"):
        with pytest.raises(Exception, match="you cannot call"):
            await server.ask(GUS, operation)


async def test_model_operations_never_return_a_provider_key(server: OperationsServer) -> None:
    for operation in ("model.show", "model.list"):
        assert "sk-very-private" not in str(await server.ask(OWNER, operation))


async def test_a_retired_model_is_flagged_in_model_show_and_model_list(server: OperationsServer) -> None:
    await server.ask(
        OWNER, "agent.register", name="dora", model={"primary": "opus", "fallbacks": ["openai/gpt-5-mini"]}
    )
    shown = await server.ask(MARIA, "model.show", agent="dora")
    first, second = shown["agents"][0]["chain"]
    assert first["retired"] == "retires 2026-11-24, use anthropic/claude-opus-5-5"
    assert second["retired"] == "retires 2026-12-11, use openai/gpt-5.6-terra"
    assert "  retired: retires 2026-12-11, use openai/gpt-5.6-terra" in format_lines("model.show", shown)
    listed = await server.ask(MARIA, "model.list")
    assert shown["catalog_date"] == listed["catalog_date"] == "2026-11-16"
    assert [each["model"] for each in listed["models"] if "retired" in each] == ["anthropic/claude-opus-4-5"]


async def test_model_show_prints_the_chain_as_lines_in_the_terminal(server: OperationsServer) -> None:
    await server.ask(OWNER, "agent.register", name="dora")
    form = await server.ask(MARIA, "model.show", agent="dora")
    assert format_lines("model.show", form) == [
        "default: anthropic/claude-opus-4-5 (the server's default (`models.default`))",
        "catalog-date: 2026-11-16",
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
    listed = format_for_terminal("model.list", await server.ask(MARIA, "model.list"), 120)
    assert listed[0].split()[:3] == ["number", "model", "alias"]


# --- models of agents ---


@pytest.mark.spec("C105.setting")
async def test_an_agents_model_and_fallbacks_can_be_set_in_one_parameter(server: OperationsServer) -> None:
    made = await server.ask(OWNER, "agent.register", name="clara", model={"primary": "opus", "fallbacks": ["guide"]})
    assert (made["model"], made["fallbacks"]) == ("opus", ["guide"])
    none = await server.ask(OWNER, "agent.set", name="clara", model={"fallbacks": []})
    assert (none["model"], none["fallbacks"]) == ("opus", [])
    default = await server.ask(OWNER, "agent.set", name="clara", model="default", clear=["fallbacks"])
    assert (default["model"], default["fallbacks"]) == ("", None)
    with pytest.raises(Invalid, match="the fallback models are given twice"):
        await server.ask(OWNER, "agent.set", name="clara", model={"fallbacks": ["guide"]}, fallbacks=["local"])


@pytest.mark.parametrize("given", [{"model": "openai/"}, {"model": {"primary": "a b"}}, {"fallbacks": ["/x"]}])
async def test_setting_an_invalid_model_reference_for_an_agent_is_refused(
    server: OperationsServer, given: dict[str, Any]
) -> None:
    with pytest.raises(Invalid) as refused:
        await server.ask(OWNER, "agent.set", name="ada", **given)
    assert refused.value.code == "agent.field_invalid"


async def test_the_budget_limits_of_an_agent_can_be_set_and_are_shown(server: OperationsServer) -> None:
    caps: dict[str, Any] = {"tree_microusd_max": 3, "day_microusd_max": 4, "month_microusd_max": 0}
    await server.ask(OWNER, "agent.set", name="ada", **caps)
    shown = await server.ask(OWNER, "agent.show", name="ada")
    assert {name: shown[name] for name in caps} == caps
    with pytest.raises(Invalid):
        await server.ask(OWNER, "agent.set", name="ada", day_microusd_max=-1)


@pytest.mark.spec("H80")
@pytest.mark.parametrize("operation", ["agent.register", "agent.set"])
async def test_an_effort_for_an_agent_that_its_model_does_not_support_is_refused(
    server: OperationsServer, operation: str
) -> None:
    name = "clara" if operation == "agent.register" else "ada"
    with pytest.raises(Invalid, match="invalid value for effort") as refused:
        await server.ask(OWNER, operation, name=name, effort="extreme")
    assert "none, low, medium, high, xhigh" in refused.value.because
    with pytest.raises(Invalid, match="openai/gpt-5 does not support the effort 'xhigh'") as unsupported:
        await server.ask(OWNER, operation, name=name, model="openai/gpt-5", effort="xhigh")
    assert "low, medium, high" in unsupported.value.because
    kept = await server.ask(OWNER, operation, name=name, model="openai/gpt-5", effort="high")
    assert kept["effort"] == "high"
    plain = await server.ask(OWNER, "agent.set", name=name, effort="default")
    assert plain["effort"] is None


def test_the_model_parameters_of_agent_operations_are_texts_on_the_command_line() -> None:
    found = {each.name: each for each in describe_parameters(OPERATIONS["agent.set"])}
    assert (found["model"].kind, found["model"].repeated) == (ParameterKind.TEXT, False)
    assert (found["fallbacks"].kind, found["fallbacks"].repeated) == (ParameterKind.TEXT, True)
    shown = {each.name: each for each in describe_parameters(OPERATIONS["model.show"])}
    assert shown["agent"].positional
