"""pydantic-ai as the oracle: what it reads out of a reply we read too, and what it asks with we ask with."""

from __future__ import annotations

import importlib
import importlib.util
import random
from typing import Any

import pytest
from models.oracle import Made, made_up, said_in, told_in
from models.replay import KEY, facts_of, hear, linked, model_at, prompt_of, provider

from retinue.domain.record import Note, Reply, UserTurn
from retinue.domain.tool import Call, ToolResult, ToolSpec
from retinue.models import pydantic_ai_messages

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("pydantic_ai") is None, reason="pydantic-ai is not installed: requirements/slow.txt"
    ),
    pytest.mark.filterwarnings("ignore"),  # of the libraries below, about themselves
]

FORMATS = ("openai-chat", "openai-responses", "anthropic", "google")
SEEDS = range(60)
FACTS = facts_of("oracle", "some-model")
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


def theirs(format_: str, url: str) -> Any:
    """A model of pydantic-ai's that speaks this format, at this address."""

    def of(module: str, name: str) -> Any:
        return getattr(importlib.import_module(f"pydantic_ai.{module}"), name)

    match format_:
        case "anthropic":
            made = of("providers.anthropic", "AnthropicProvider")(base_url=url, api_key=KEY)
            return of("models.anthropic", "AnthropicModel")("claude-sonnet-4-5", provider=made)
        case "google":
            made = of("providers.google", "GoogleProvider")(base_url=url, api_key=KEY)
            return of("models.google", "GoogleModel")("gemini-2.5-pro", provider=made)
        case _:
            made = of("providers.openai", "OpenAIProvider")(base_url=url, api_key=KEY)
            name = "OpenAIChatModel" if format_ == "openai-chat" else "OpenAIResponsesModel"
            return of("models.openai", name)("some-model", provider=made)


async def ask_theirs(model: Any, prompt: Any) -> Any:
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
    async with stream as heard:
        async for _ in heard:
            pass
        return heard.get()


def read_by_them(response: Any) -> dict[str, Any]:
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


def read_by_us(heard: dict[str, Any]) -> dict[str, Any]:
    usage = {name: heard["usage"][name] for name in ("input", "output", "cache_read", "reasoning")}
    calls = [(call["name"], call["arguments"]) for call in heard["tool_calls"]]
    return {
        "text": heard["text"],
        "thinking": heard["thinking"],
        "calls": calls,
        "usage": usage,
        "finish": heard["finish"],
    }


def as_we_mean_it(format_: str, read: dict[str, Any], made: Made) -> dict[str, Any]:
    """What they read otherwise, and we do on purpose."""
    otherwise = dict(read)
    if format_ in ("openai-responses", "google") and made.calls:
        # Calls that are there are the reason, whatever the server says of why it stopped: here, that it did.
        otherwise["finish"] = "tool_call"
    return otherwise


@pytest.mark.parametrize("format_", FORMATS)
async def test_a_reply_is_read_as_the_oracle_reads_it(format_: str) -> None:
    async with linked() as link:
        for seed in SEEDS:
            made = made_up(seed)
            async with provider(said_in(format_, made, seed), seed=seed) as server:
                ours = read_by_us(await hear(model_at(link, server.url, format_, facts=FACTS)))
                oracle = read_by_them(await ask_theirs(theirs(format_, server.url), prompt_of()))
            assert ours == as_we_mean_it(format_, oracle, made), f"seed {seed}: {made}"


def history(seed: int) -> list[Any]:
    """Turns with calls of all sorts and their results, as a session has them."""
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
async def test_a_history_is_told_as_the_oracle_tells_it(format_: str) -> None:
    async with linked() as link:
        for seed in SEEDS:
            prompt = prompt_of(*history(seed), tools=[TOOL])
            async with provider(said_in(format_, made_up(seed), seed)) as server:
                await hear(model_at(link, server.url, format_, facts=FACTS), prompt)
                await ask_theirs(theirs(format_, server.url), prompt)
                ours, oracle = (told_in(format_, asked.body) for asked in server.asked)
            assert ours == oracle, f"seed {seed}"


@pytest.mark.parametrize("format_", FORMATS)
async def test_tools_and_bounds_are_told_as_the_oracle_tells_them(format_: str) -> None:
    async with linked() as link, provider(said_in(format_, made_up(1), 1)) as server:
        prompt = prompt_of(tools=[TOOL], output_tokens_max=1234)
        await hear(model_at(link, server.url, format_, facts=FACTS), prompt)
        await ask_theirs(theirs(format_, server.url), prompt)
        ours, oracle = (asked.body for asked in server.asked)
    assert "1234" in str(ours) and "1234" in str(oracle)
    assert _tool(format_, ours) == _tool(format_, oracle) == ("read", "Reads.", TOOL.parameters)
    paths = [
        asked.path.partition("?")[0].rpartition("/")[2].replace("some-model", "gemini-2.5-pro")
        for asked in server.asked
    ]
    assert paths[0] == paths[1]


def _tool(format_: str, body: Any) -> tuple[str, str, Any]:
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
