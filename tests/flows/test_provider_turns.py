"""The loop over a real connection: what a model reads of its calls, when it is stopped, and what a person reads."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest
from faults import advancing_clock
from flows.fake_provider import (
    Asked,
    FakeReply,
    Provider,
    build_instance,
    calls,
    calls_made,
    list_texts_to,
    provider,
    provider_section,
    says,
)

from retinue.domain.agent import Agent
from retinue.domain.envelope import Outcome
from retinue.domain.record import Reply
from retinue.domain.structs import replace
from retinue.domain.tool import ToolSpec
from retinue.engine.embedded_engine import EmbeddedEngine
from retinue.runners.attachment_reader import StoredAttachmentReader
from retinue.runners.loop import REPEATS_MAX, ToolLoop
from retinue.runners.model_call import ModelCaller
from retinue.store.envelopes.attachment_files import AttachmentFiles
from retinue.testing.local_instance import LocalInstance, LocalServer
from retinue.tools.base import ToolContext, schema_of
from retinue.tools.toolbox import Toolbox

FORMATS = ("openai-chat", "anthropic")
ADA = Agent(name="ada", model="mock/m1", instructions="Be brief.")


@pytest.fixture
async def provider_server() -> AsyncGenerator[Provider]:
    async with provider() as made:
        yield made


def build_provider_instance(
    root: Path, provider_server: Provider, *, format_: str = "openai-chat", more: str = "", **kw: Any
) -> LocalInstance:
    return build_instance(root, provider_section("mock", provider_server.url, format_=format_) + more, **kw)


async def send_and_wait_for_answer(server: LocalServer, text: str = "hello", **kw: Any) -> str:
    return await server.wait_for_answer((await server.send(text, **kw)).envelope)


class NoArguments(msgspec.Struct, forbid_unknown_fields=True):
    pass


@dataclass(frozen=True, slots=True)
class FailingTool:
    """A tool with a bug."""

    arguments: type[msgspec.Struct] = NoArguments
    spec: ToolSpec = field(
        default_factory=lambda: ToolSpec(name="breaks", description="Breaks.", parameters=schema_of(NoArguments))
    )

    async def perform(self, arguments: NoArguments, context: ToolContext) -> str:
        raise ZeroDivisionError("by nothing")


# --- what a model reads of its calls ---


@pytest.mark.spec("D17")
@pytest.mark.parametrize("format_", FORMATS)
async def test_errors_of_calls_are_results_that_the_provider_model_reads_in_the_next_turn(
    tmp_path: Path, provider_server: Provider, format_: str
) -> None:
    wrong = [("fly", {}), ("append_line", {"text": 7}), ("append_line", '{"text": "no end'), ("breaks", {})]
    provider_server.add_replies(calls(*wrong), says("I see."))
    instance = build_provider_instance(tmp_path, provider_server, format_=format_, tools=[FailingTool()])
    async with instance.run() as server:
        assert await send_and_wait_for_answer(server) == "I see."
    results = provider_server.asked[-1].results
    assert len(results) == len(wrong), "each call has its own result"
    [unknown] = [result for result in results if result.startswith("No tool named 'fly'. Your tools are: ")]
    [misfit] = [
        result for result in results if "Invalid arguments for 'append_line': Expected `str`, got `int`" in result
    ]
    [broken] = [result for result in results if result == "'breaks' failed: ZeroDivisionError: by nothing"]
    [cut] = [result for result in results if result not in (unknown, misfit, broken)]
    assert "append_line" in unknown and "arguments" in cut
    assert not instance.witness_file.exists()
    if format_ == "anthropic":
        blocks = [block for message in provider_server.asked[-1].body["messages"] for block in message["content"]]
        assert [block["is_error"] for block in blocks if block.get("type") == "tool_result"] == [True] * 4


@pytest.mark.parametrize("format_", FORMATS)
async def test_parallel_calls_of_one_provider_turn_are_all_performed_and_their_results_keep_the_order(
    tmp_path: Path, provider_server: Provider, format_: str
) -> None:
    provider_server.add_replies(
        calls(*(("append_line", {"text": word}) for word in "abc"), text="Three lines."), says("Written.")
    )
    instance = build_provider_instance(tmp_path, provider_server, format_=format_)
    async with instance.run() as server:
        assert await send_and_wait_for_answer(server) == "Written."
    assert [line.split()[1] for line in instance.witness_file.read_text().splitlines()] == ["a", "b", "c"]
    assert provider_server.asked[-1].results == ["appended"] * 3
    assert len(provider_server.asked) == 2


async def test_after_a_restart_the_next_turn_sends_the_provider_the_identical_request_prefix(
    tmp_path: Path, provider_server: Provider
) -> None:
    picture = base64.b64encode(b"\x89PNG" + bytes(99)).decode()
    provider_server.add_replies(
        says('Words and "signs": \\ \n \x7f ü 語 \U0001f600'),
        calls(("append_line", {"text": "ü"}), text="One line."),
        says("Written."),
        *(says(f"number {number}") for number in range(100)),
    )
    instance = build_provider_instance(tmp_path, provider_server)
    texts = ["hello", f"look: data:image/png;base64,{picture}", "\ttabs </and> tags \u2028", *"abcdefgh" * 10]
    async with instance.run() as server:
        for text in texts:
            await send_and_wait_for_answer(server, text)
    async with instance.run() as server:
        await send_and_wait_for_answer(server, "and now?")
    before, after = (asked.raw.partition(b'"messages":')[2] for asked in provider_server.asked[-2:])
    assert len(json.loads(before.removesuffix(b"}"))) > 2 * len(texts)
    assert after.startswith(before.removesuffix(b"]}"))


# --- stop ---


@pytest.mark.spec("D16", "A23")
async def test_a_turn_limit_that_cuts_off_calls_is_reported(tmp_path: Path, provider_server: Provider) -> None:
    numbers = iter(range(100))
    provider_server.rule = lambda asked: calls(("append_line", {"text": str(next(numbers))}), text="Still at it.")
    instance = build_provider_instance(tmp_path, provider_server, agents=(replace(ADA, turns_max=3),))
    async with instance.run() as server:
        text = await send_and_wait_for_answer(server)
    assert text == "Still at it.\n\n[I stopped after 3 turns, which is this agent's limit (turns_max).]"
    assert len(provider_server.asked) == 3
    assert len(instance.witness_file.read_text().splitlines()) == 3


@pytest.mark.spec("D16", "A23")
async def test_a_turn_limit_reached_with_the_answer_is_not_reported(tmp_path: Path, provider_server: Provider) -> None:
    provider_server.add_replies(
        calls(("append_line", {"text": "a"})), calls(("append_line", {"text": "b"})), says("All done.")
    )
    async with build_provider_instance(tmp_path, provider_server, agents=(replace(ADA, turns_max=3),)).run() as server:
        assert await send_and_wait_for_answer(server) == "All done."


async def test_endlessly_repeated_calls_in_provider_turns_end_the_run_with_an_explanation(
    tmp_path: Path, provider_server: Provider
) -> None:
    provider_server.always(calls(("append_line", {"text": "again"})))
    instance = build_provider_instance(tmp_path, provider_server)
    async with instance.run() as server:
        text = await send_and_wait_for_answer(server)
    words = f"I stopped because I made the same calls {REPEATS_MAX} times with the same results"
    assert text == f"[{words}.]"
    assert len(provider_server.asked) == REPEATS_MAX


# --- unusual replies ---


@pytest.mark.parametrize(("format_", "stop"), [("openai-chat", "content_filter"), ("anthropic", "refusal")])
async def test_a_provider_turn_with_a_refusal_is_reported_as_a_refusal(
    tmp_path: Path, provider_server: Provider, format_: str, stop: str
) -> None:
    provider_server.always(FakeReply(stop=stop))
    async with build_provider_instance(tmp_path, provider_server, format_=format_).run() as server:
        settled = await server.wait_for_outcome((await server.send("hello")).envelope)
        [text] = await list_texts_to(server)
        rows = await calls_made(server)
    assert settled.outcome is Outcome.DEAD
    assert text.split("\n") == [
        "Something went wrong: mock/m1 refused to answer [model.refused]",
        "because: the model, or a content filter of its provider, refused the request",
        "try: rephrase the message, or give the agent another model",
    ]
    assert [(row.failure, row.next_action) for row in rows] == [("content_filter", "give_up")]


async def test_a_paused_provider_turn_continues_and_becomes_one_answer(
    tmp_path: Path, provider_server: Provider
) -> None:
    provider_server.add_replies(
        says("It opens ", stop="pause_turn"),
        FakeReply(thinking="Hm.", stop="pause_turn"),
        says("at seven."),
        says("Yes."),
    )
    async with build_provider_instance(tmp_path, provider_server, format_="anthropic").run() as server:
        asked = await server.send("When does the bakery open?")
        assert await server.wait_for_answer(asked.envelope) == "It opens at seven."
        assert await send_and_wait_for_answer(server, "Really?") == "Yes."
        replies = [record.body for record in await server.list_records(asked.session) if isinstance(record.body, Reply)]
    assert [reply.text for reply in replies] == ["It opens ", "", "at seven.", "Yes."]
    last = provider_server.asked[1].body["messages"][-1]
    assert last["role"] == "assistant" and "It opens" in str(last["content"])


@pytest.mark.spec("C49", "D20.text", "D20.context")
@pytest.mark.parametrize("token", ["NO_REPLY", "[[SILENT_REPLY]]", " NO_REPLY\n"])
async def test_a_silent_token_in_a_turn_suppresses_the_answer_only_if_it_is_the_entire_reply(
    tmp_path: Path, provider_server: Provider, token: str
) -> None:
    provider_server.add_replies(says(token), says(f"They said {token.strip()}."), says("Hm."))
    async with build_provider_instance(tmp_path, provider_server).run() as server:
        silent = await server.send("just so you know")
        settled = await server.wait_for_outcome(silent.envelope)
        assert (settled.outcome, settled.answer) == (Outcome.ANSWERED, None)
        assert await send_and_wait_for_answer(server, "and?") == f"They said {token.strip()}."
        await send_and_wait_for_answer(server, "so?")
        assert await list_texts_to(server) == [f"They said {token.strip()}.", "Hm."]
    assistant_texts = [
        message["content"] for message in provider_server.asked[-1].body["messages"] if message["role"] == "assistant"
    ]
    assert assistant_texts == [f"They said {token.strip()}."], "NO_REPLY is not in the context"


async def test_a_provider_turn_that_reached_its_maximum_length_is_marked_as_cut_off(
    tmp_path: Path, provider_server: Provider
) -> None:
    provider_server.add_replies(says("Once upon a", stop="length"))
    async with build_provider_instance(tmp_path, provider_server).run() as server:
        assert (
            await send_and_wait_for_answer(server)
            == "Once upon a\n\n[cut off here: the reply reached its maximum length]"
        )


async def test_a_provider_turn_whose_thinking_uses_all_output_tokens_is_reported(
    tmp_path: Path, provider_server: Provider
) -> None:
    provider_server.always(FakeReply(thinking="Hmm. " * 50, stop="length"))
    instance = build_provider_instance(tmp_path, provider_server)
    async with instance.run() as server, advancing_clock(server):
        await server.wait_for_outcome((await server.send("hello")).envelope)
        [text] = await list_texts_to(server)
    assert text.startswith("Something went wrong: mock/m1 gave no answer [model.only_thinking]")
    assert "because: it used all output tokens for thinking" in text


# --- pictures ---

CAT = b"\x89PNG\r\n\x1a\n of a cat"
AS_DATA_URL = f"data:image/png;base64,{base64.b64encode(CAT).decode()}"


def with_attachment_reader(instance: LocalInstance, files: AttachmentFiles) -> LocalInstance:
    """Replace the loop with one that can read attachments."""

    def engine(store: Any, clock: Any, ids: Any, runners: Any, **kw: Any) -> EmbeddedEngine:
        model_caller = ModelCaller(
            instance.loop_parts.models, clock, instance.zone, media=StoredAttachmentReader(files)
        )
        return EmbeddedEngine(store, clock, ids, {"loop": ToolLoop(model_caller, Toolbox([]))}, **kw)

    instance.create_engine = engine
    return instance


def list_image_urls(asked: Asked) -> list[str]:
    parts = [
        part
        for message in asked.body["messages"]
        if isinstance(message["content"], list)
        for part in message["content"]
    ]
    return [part["image_url"]["url"] for part in parts if part.get("type") == "image_url"]


async def test_in_a_turn_of_a_provider_model_with_vision_the_model_gets_the_picture(
    tmp_path: Path, provider_server: Provider
) -> None:
    provider_server.always(says("A cat."))
    files = AttachmentFiles(tmp_path / "files")
    cat = files.store([CAT], name="cat.png", media_type="image/png")
    instance = build_provider_instance(tmp_path, provider_server, more='[models.entries."mock/m1"]\nvision = true\n')
    async with with_attachment_reader(instance, files).run() as server:
        assert await send_and_wait_for_answer(server, "Who is this?", attachments=(cat,)) == "A cat."
    assert list_image_urls(provider_server.asked[0]) == [AS_DATA_URL]


@pytest.mark.spec("C105.image_model")
async def test_in_a_turn_of_a_provider_model_without_vision_a_picture_goes_to_the_image_model(
    tmp_path: Path, provider_server: Provider
) -> None:
    provider_server.always(says("A cat."))
    files = AttachmentFiles(tmp_path / "files")
    cat = files.store([CAT], name="cat.png", media_type="image/png")
    more = '[models.image]\nprimary = "mock/eyes"\n[models.entries."mock/eyes"]\nvision = true\nparams = { seed = 7 }\n'
    async with with_attachment_reader(
        build_provider_instance(tmp_path, provider_server, more=more), files
    ).run() as server:
        assert await send_and_wait_for_answer(server, "Who is this?", attachments=(cat,)) == "A cat."
        assert await send_and_wait_for_answer(server, "And its name?") == "A cat."
    assert [asked.model for asked in provider_server.asked] == ["eyes", "m1"]
    assert list_image_urls(provider_server.asked[0]) == [AS_DATA_URL]
    assert provider_server.asked[0].body["seed"] == 7, "the settings of the model are in its request"
    assert list_image_urls(provider_server.asked[1]) == [] and "cat.png" in provider_server.asked[1].raw.decode()
