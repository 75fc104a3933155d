"""Comparison with pydantic-ai: it reads the same from a reply and sends the same in a request as our formats."""

from __future__ import annotations

import importlib
import importlib.util
import random
from typing import Any

import pytest
from models.oracle import MadeReply, encode_reply, list_request_parts, make_random_reply
from models.replay import (
    KEY,
    collect_reply,
    make_http_model,
    make_model_facts,
    open_provider_connections,
    prompt_of,
    provider,
)

from retinue.domain.record import Note, Reply, UserTurn
from retinue.domain.tool import Call, ToolResult, ToolSpec
from retinue.models import pydantic_ai_messages

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("pydantic_ai") is None, reason="pydantic-ai is not installed: requirements/slow.txt"
    ),
    pytest.mark.filterwarnings("ignore"),  # warnings of the libraries below, about themselves
]

FORMATS = ("openai-chat", "openai-responses", "anthropic", "google")
SEEDS = range(60)
FACTS = make_model_facts("oracle", "some-model")
TOOL = ToolSpec(
    name="read",
    description="Reads.",
    parameters={
        "type": "object",
        "properties": {"path": {"type": "string"}},
        "required": ["path"],
        "additionalProperties": False,
    },
)


def make_pydantic_ai_model(format_: str, url: str) -> Any:
    """Return a model of pydantic-ai in this format, at this URL."""

    def load_attribute(module: str, name: str) -> Any:
        return getattr(importlib.import_module(f"pydantic_ai.{module}"), name)

    match format_:
        case "anthropic":
            made = load_attribute("providers.anthropic", "AnthropicProvider")(base_url=url, api_key=KEY)
            return load_attribute("models.anthropic", "AnthropicModel")("claude-sonnet-4-5", provider=made)
        case "google":
            made = load_attribute("providers.google", "GoogleProvider")(base_url=url, api_key=KEY)
            return load_attribute("models.google", "GoogleModel")("gemini-2.5-pro", provider=made)
        case _:
            made = load_attribute("providers.openai", "OpenAIProvider")(base_url=url, api_key=KEY)
            name = "OpenAIChatModel" if format_ == "openai-chat" else "OpenAIResponsesModel"
            return load_attribute("models.openai", name)("some-model", provider=made)


async def request_with_pydantic_ai(model: Any, prompt: Any) -> Any:
    library = {
        name: importlib.import_module(f"pydantic_ai.{name}") for name in ("direct", "messages", "models", "tools")
    }
    stream = library["direct"].model_request_stream(
        model,
        pydantic_ai_messages.build_messages(library["messages"], prompt, FACTS),
        model_settings={"max_tokens": prompt.output_tokens_max, "max_retries": 0},
        model_request_parameters=pydantic_ai_messages.build_parameters(
            library["models"], library["tools"], prompt, FACTS
        ),
    )
    async with stream as parts:
        async for _ in parts:
            pass
        return parts.get()


def normalize_pydantic_ai_reply(response: Any) -> dict[str, Any]:
    parts = response.parts
    usage = response.usage
    details = usage.details
    reasoning = details.get("reasoning_tokens", details.get("thoughts_tokens", 0))
    return {
        "text": "".join(part.content for part in parts if part.part_kind == "text"),
        "thinking": "".join(part.content for part in parts if part.part_kind == "thinking"),
        "calls": [(part.tool_name, part.args_as_dict()) for part in parts if part.part_kind == "tool-call"],
        "usage": {
            "input": usage.input_tokens,
            "output": usage.output_tokens,
            "cache_read": usage.cache_read_tokens,
            "reasoning": reasoning,
        },
        "finish": response.finish_reason,
    }


def normalize_collected_reply(collected: dict[str, Any]) -> dict[str, Any]:
    usage = {name: collected["usage"][name] for name in ("input", "output", "cache_read", "reasoning")}
    calls = [(call["name"], call["arguments"]) for call in collected["tool_calls"]]
    return {
        "text": collected["text"],
        "thinking": collected["thinking"],
        "calls": calls,
        "usage": usage,
        "finish": collected["finish"],
    }


def apply_intended_differences(format_: str, read: dict[str, Any], made: MadeReply) -> dict[str, Any]:
    """Apply the intended differences of our reading to what pydantic-ai read."""
    otherwise = dict(read)
    if format_ in ("openai-responses", "google") and made.calls:
        # A reply with calls finishes for them, even if the server says that it stopped.
        otherwise["finish"] = "tool_call"
    return otherwise


@pytest.mark.parametrize("format_", FORMATS)
async def test_a_random_reply_in_each_wire_format_is_read_as_by_the_pydantic_ai_oracle(format_: str) -> None:
    async with open_provider_connections() as link:
        for seed in SEEDS:
            made = make_random_reply(seed)
            async with provider(encode_reply(format_, made, seed), seed=seed) as server:
                ours = normalize_collected_reply(
                    await collect_reply(make_http_model(link, server.url, format_, facts=FACTS))
                )
                oracle = normalize_pydantic_ai_reply(
                    await request_with_pydantic_ai(make_pydantic_ai_model(format_, server.url), prompt_of())
                )
            assert ours == apply_intended_differences(format_, oracle, made), f"seed {seed}: {made}"


def make_random_history(seed: int) -> list[Any]:
    """Return turns with calls of all kinds and their results, as in a session."""
    chance = random.Random(seed)
    bodies: list[Any] = []
    for number in range(chance.randint(1, 6)):
        bodies.append(UserTurn(text=f"Question {number}: grüße 🦊"))
        if chance.random() < 0.3:
            bodies.append(Note(text="It is late."))
        calls = tuple(
            Call(id=f"call_{number}_{each}", tool="read", arguments={"path": f"/{each}", "deep": {"a": [1, None]}})
            for each in range(chance.choice((0, 1, 3)))
        )
        bodies.append(Reply(text="I look." if calls or chance.random() < 0.7 else "No.", calls=calls))
        for call in calls:
            bodies.append(ToolResult(call=call.id, tool="read", output=f"Result of {call.id}."))
        if calls:
            bodies.append(Reply(text=f"Answer {number}."))
    return [*bodies, UserTurn(text="And now?")]


@pytest.mark.parametrize("format_", FORMATS)
async def test_a_random_history_in_each_wire_format_is_sent_as_by_the_pydantic_ai_oracle(format_: str) -> None:
    async with open_provider_connections() as link:
        for seed in SEEDS:
            prompt = prompt_of(*make_random_history(seed), tools=[TOOL])
            async with provider(encode_reply(format_, make_random_reply(seed), seed)) as server:
                await collect_reply(make_http_model(link, server.url, format_, facts=FACTS), prompt)
                await request_with_pydantic_ai(make_pydantic_ai_model(format_, server.url), prompt)
                ours, oracle = (list_request_parts(format_, asked.body) for asked in server.asked)
            assert ours == oracle, f"seed {seed}"


@pytest.mark.parametrize("format_", FORMATS)
async def test_tools_and_output_limits_in_each_wire_format_are_sent_as_by_the_pydantic_ai_oracle(format_: str) -> None:
    async with open_provider_connections() as link, provider(encode_reply(format_, make_random_reply(1), 1)) as server:
        prompt = prompt_of(tools=[TOOL], output_tokens_max=1234)
        await collect_reply(make_http_model(link, server.url, format_, facts=FACTS), prompt)
        await request_with_pydantic_ai(make_pydantic_ai_model(format_, server.url), prompt)
        ours, oracle = (asked.body for asked in server.asked)
    assert "1234" in str(ours) and "1234" in str(oracle)
    assert _parse_first_tool(format_, ours) == _parse_first_tool(format_, oracle) == ("read", "Reads.", TOOL.parameters)
    paths = [
        asked.path.partition("?")[0].rpartition("/")[2].replace("some-model", "gemini-2.5-pro")
        for asked in server.asked
    ]
    assert paths[0] == paths[1]


def _parse_first_tool(format_: str, body: Any) -> tuple[str, str, Any]:
    tool = body["tools"][0]
    match format_:
        case "openai-chat":
            tool, schema = tool["function"], tool["function"]["parameters"]
        case "openai-responses":
            schema = tool["parameters"]
        case "anthropic":
            schema = tool["input_schema"]
        case _:
            tool = tool["functionDeclarations"][0]
            [schema] = [value for name, value in tool.items() if name.startswith("parameters")]
    return tool["name"], tool["description"], schema
