"""The loop over a real line: what a model reads of its calls, when it is stopped, and what a person reads of that."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest
from faults import time_passing
from flows.fake_provider import Asked, Provider, Said, calls, calls_made, household_of, provider, says, section, told

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
async def server() -> AsyncGenerator[Provider]:
    async with provider() as made:
        yield made


def house_of(root: Path, server: Provider, *, format_: str = "openai-chat", more: str = "", **kw: Any) -> LocalInstance:
    return household_of(root, section("mock", server.url, format_=format_) + more, **kw)


async def answered(house: LocalServer, text: str = "hello", **kw: Any) -> str:
    return await house.wait_for_answer((await house.send(text, **kw)).envelope)


class NoArguments(msgspec.Struct, forbid_unknown_fields=True):
    pass


@dataclass(frozen=True, slots=True)
class Breaks:
    """A tool with a bug in it."""

    arguments: type[msgspec.Struct] = NoArguments
    spec: ToolSpec = field(
        default_factory=lambda: ToolSpec(name="breaks", description="Breaks.", parameters=schema_of(NoArguments))
    )

    async def perform(self, arguments: NoArguments, context: ToolContext) -> str:
        raise ZeroDivisionError("by nothing")


# What a model reads of its calls


@pytest.mark.spec("D17")
@pytest.mark.parametrize("format_", FORMATS)
async def test_mishaps_of_calls_are_results_that_the_model_reads(
    tmp_path: Path, server: Provider, format_: str
) -> None:
    wrong = [("fly", {}), ("append_line", {"text": 7}), ("append_line", '{"text": "no end'), ("breaks", {})]
    server.will(calls(*wrong), says("I see."))
    household = house_of(tmp_path, server, format_=format_, tools=[Breaks()])
    async with household.run() as house:
        assert await answered(house) == "I see."
    results = server.asked[-1].results
    assert len(results) == len(wrong), "each call has its own"
    [unknown] = [result for result in results if result.startswith("No tool named 'fly'. Your tools are: ")]
    [misfit] = [
        result for result in results if "Invalid arguments for 'append_line': Expected `str`, got `int`" in result
    ]
    [broken] = [result for result in results if result == "'breaks' failed: ZeroDivisionError: by nothing"]
    [cut] = [result for result in results if result not in (unknown, misfit, broken)]
    assert "append_line" in unknown and "arguments" in cut
    assert not household.witness_file.exists()
    if format_ == "anthropic":
        blocks = [block for message in server.asked[-1].body["messages"] for block in message["content"]]
        assert [block["is_error"] for block in blocks if block.get("type") == "tool_result"] == [True] * 4


@pytest.mark.parametrize("format_", FORMATS)
async def test_calls_made_at_once_are_all_performed_and_read_in_their_order(
    tmp_path: Path, server: Provider, format_: str
) -> None:
    server.will(calls(*(("append_line", {"text": word}) for word in "abc"), text="Three lines."), says("Written."))
    household = house_of(tmp_path, server, format_=format_)
    async with household.run() as house:
        assert await answered(house) == "Written."
    assert [line.split()[1] for line in household.witness_file.read_text().splitlines()] == ["a", "b", "c"]
    assert server.asked[-1].results == ["appended"] * 3
    assert len(server.asked) == 2


async def test_after_a_restart_a_model_is_sent_the_very_same_bytes(tmp_path: Path, server: Provider) -> None:
    picture = base64.b64encode(b"\x89PNG" + bytes(99)).decode()
    server.will(
        says('Words and "signs": \\ \n \x7f ü 語 \U0001f600'),
        calls(("append_line", {"text": "ü"}), text="One line."),
        says("Written."),
        *(says(f"number {number}") for number in range(100)),
    )
    household = house_of(tmp_path, server)
    texts = ["hello", f"look: data:image/png;base64,{picture}", "\ttabs </and> tags \u2028", *"abcdefgh" * 10]
    async with household.run() as house:
        for text in texts:
            await answered(house, text)
    async with household.run() as house:
        await answered(house, "and now?")
    before, after = (asked.raw.partition(b'"messages":')[2] for asked in server.asked[-2:])
    assert len(json.loads(before.removesuffix(b"}"))) > 2 * len(texts)
    assert after.startswith(before.removesuffix(b"]}"))


# When it is stopped


@pytest.mark.spec("D16", "A23")
async def test_a_limit_that_cuts_off_calls_is_told(tmp_path: Path, server: Provider) -> None:
    numbers = iter(range(100))
    server.rule = lambda asked: calls(("append_line", {"text": str(next(numbers))}), text="Still at it.")
    household = house_of(tmp_path, server, agents=(replace(ADA, turns_max=3),))
    async with household.run() as house:
        text = await answered(house)
    assert text == "Still at it.\n\n[I stopped after 3 turns, which is this agent's limit (turns_max).]"
    assert len(server.asked) == 3
    assert len(household.witness_file.read_text().splitlines()) == 3


@pytest.mark.spec("D16", "A23")
async def test_a_limit_reached_with_the_answer_is_not_told(tmp_path: Path, server: Provider) -> None:
    server.will(calls(("append_line", {"text": "a"})), calls(("append_line", {"text": "b"})), says("All done."))
    async with house_of(tmp_path, server, agents=(replace(ADA, turns_max=3),)).run() as house:
        assert await answered(house) == "All done."


async def test_the_same_calls_again_and_again_end_in_words(tmp_path: Path, server: Provider) -> None:
    server.always(calls(("append_line", {"text": "again"})))
    household = house_of(tmp_path, server)
    async with household.run() as house:
        text = await answered(house)
    words = f"I stopped because I made the same calls {REPEATS_MAX} times with the same results"
    assert text == f"[{words}.]"
    assert len(server.asked) == REPEATS_MAX


# What is no plain answer


@pytest.mark.parametrize(("format_", "stop"), [("openai-chat", "content_filter"), ("anthropic", "refusal")])
async def test_a_refusal_is_told_as_one(tmp_path: Path, server: Provider, format_: str, stop: str) -> None:
    server.always(Said(stop=stop))
    async with house_of(tmp_path, server, format_=format_).run() as house:
        settled = await house.wait_for_outcome((await house.send("hello")).envelope)
        [text] = await told(house)
        rows = await calls_made(house)
    assert settled.outcome is Outcome.DEAD
    assert text.split("\n") == [
        "Something went wrong: mock/m1 refused to answer [model.refused]",
        "because: the model, or a content filter of its provider, refused it",
        "try: rephrase the message, or give the agent another model",
    ]
    assert [(row.failure, row.next_move) for row in rows] == [("content_filter", "give-up")]


async def test_a_reply_that_pauses_goes_on_with_its_own_words_and_is_one_answer(
    tmp_path: Path, server: Provider
) -> None:
    server.will(
        says("It opens ", stop="pause_turn"), Said(thinking="Hm.", stop="pause_turn"), says("at seven."), says("Yes.")
    )
    async with house_of(tmp_path, server, format_="anthropic").run() as house:
        asked = await house.send("When does the bakery open?")
        assert await house.wait_for_answer(asked.envelope) == "It opens at seven."
        assert await answered(house, "Really?") == "Yes."
        replies = [record.body for record in await house.list_records(asked.session) if isinstance(record.body, Reply)]
    assert [reply.text for reply in replies] == ["It opens ", "", "at seven.", "Yes."]
    last = server.asked[1].body["messages"][-1]
    assert last["role"] == "assistant" and "It opens" in str(last["content"])


@pytest.mark.spec("C49", "D20.text", "D20.context")
@pytest.mark.parametrize("token", ["NO_REPLY", "[[SILENT_REPLY]]", " NO_REPLY\n"])
async def test_a_silent_token_is_silence_only_where_it_is_the_whole_reply(
    tmp_path: Path, server: Provider, token: str
) -> None:
    server.will(says(token), says(f"They said {token.strip()}."), says("Hm."))
    async with house_of(tmp_path, server).run() as house:
        silent = await house.send("just so you know")
        settled = await house.wait_for_outcome(silent.envelope)
        assert (settled.outcome, settled.answer) == (Outcome.ANSWERED, None)
        assert await answered(house, "and?") == f"They said {token.strip()}."
        await answered(house, "so?")
        assert await told(house) == [f"They said {token.strip()}.", "Hm."]
    spoken = [message["content"] for message in server.asked[-1].body["messages"] if message["role"] == "assistant"]
    assert spoken == [f"They said {token.strip()}."], "silence is no part of the context"


async def test_a_reply_that_ran_out_of_room_is_said_to_be_cut_off(tmp_path: Path, server: Provider) -> None:
    server.will(says("Once upon a", stop="length"))
    async with house_of(tmp_path, server).run() as house:
        assert await answered(house) == "Once upon a\n\n[cut off here: the reply reached its maximum length]"


async def test_thinking_that_leaves_no_room_for_an_answer_is_told(tmp_path: Path, server: Provider) -> None:
    server.always(Said(thinking="Hmm. " * 50, stop="length"))
    household = house_of(tmp_path, server)
    async with household.run() as house, time_passing(household):
        await house.wait_for_outcome((await house.send("hello")).envelope)
        [text] = await told(house)
    assert text.startswith("Something went wrong: mock/m1 did not get to an answer [model.only_thinking]")
    assert "because: it used all output tokens for thinking" in text


# Pictures

CAT = b"\x89PNG\r\n\x1a\n of a cat"
AS_DATA_URL = f"data:image/png;base64,{base64.b64encode(CAT).decode()}"


def with_eyes(household: LocalInstance, files: AttachmentFiles) -> LocalInstance:
    """A loop that can look at attachments, in the place of the one without files."""

    def engine(store: Any, clock: Any, ids: Any, runners: Any, **kw: Any) -> EmbeddedEngine:
        asker = ModelCaller(household.loop_parts.models, clock, household.zone, media=StoredAttachmentReader(files))
        return EmbeddedEngine(store, clock, ids, {"loop": ToolLoop(asker, Toolbox([]))}, **kw)

    household.create_engine = engine
    return household


def pictures(asked: Asked) -> list[str]:
    parts = [
        part
        for message in asked.body["messages"]
        if isinstance(message["content"], list)
        for part in message["content"]
    ]
    return [part["image_url"]["url"] for part in parts if part.get("type") == "image_url"]


async def test_a_picture_is_shown_to_a_model_that_sees(tmp_path: Path, server: Provider) -> None:
    server.always(says("A cat."))
    files = AttachmentFiles(tmp_path / "files")
    cat = files.store([CAT], name="cat.png", media_type="image/png")
    household = house_of(tmp_path, server, more='[models.entries."mock/m1"]\nvision = true\n')
    async with with_eyes(household, files).run() as house:
        assert await answered(house, "Who is this?", attachments=(cat,)) == "A cat."
    assert pictures(server.asked[0]) == [AS_DATA_URL]


@pytest.mark.spec("C105.image_model")
async def test_a_picture_that_the_model_cannot_see_goes_to_the_one_for_pictures(
    tmp_path: Path, server: Provider
) -> None:
    server.always(says("A cat."))
    files = AttachmentFiles(tmp_path / "files")
    cat = files.store([CAT], name="cat.png", media_type="image/png")
    more = '[models.image]\nprimary = "mock/eyes"\n[models.entries."mock/eyes"]\nvision = true\nparams = { seed = 7 }\n'
    async with with_eyes(house_of(tmp_path, server, more=more), files).run() as house:
        assert await answered(house, "Who is this?", attachments=(cat,)) == "A cat."
        assert await answered(house, "And its name?") == "A cat."
    assert [asked.model for asked in server.asked] == ["eyes", "m1"]
    assert pictures(server.asked[0]) == [AS_DATA_URL]
    assert server.asked[0].body["seed"] == 7, "what the settings say of that model goes with its request"
    assert pictures(server.asked[1]) == [] and "cat.png" in server.asked[1].raw.decode()
