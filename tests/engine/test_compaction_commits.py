"""Compaction and power cuts at every commit: the run continues, and nothing is lost, repeated or left unpaid."""

from __future__ import annotations

import itertools
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import msgspec
import pytest
from contracts.engine_instance import (
    StoreControl,
    list_answers_to,
    list_notices_to,
    list_tool_results,
    query_rows,
    run_with_ledger_check,
    run_with_power_cuts,
    wait_until_true,
)
from contracts.engine_suspension import CrashAt

from retinue.config import load_configuration
from retinue.domain.record import Note, Record, Reply, Summary, Usage, UserTurn
from retinue.domain.tool import ToolResult, ToolSpec
from retinue.models.base import ModelPrompt
from retinue.runners.context_policy import COMPACTING_NOTICE, compacted_before_notice
from retinue.runners.model_context import context_from_records
from retinue.store.core.connection import NO_FAULTS
from retinue.store.open_store import prepare_sqlite
from retinue.testing.local_instance import LocalInstance, LocalServer, terminal_origin
from retinue.testing.scripted_model import ScriptedReply, text_reply
from retinue.tools.base import ToolContext, schema_of

WINDOW_TOKENS = 40_000
CALL_PRICE_MICROUSD = 700
LONG = "the cat is on the roof again\n" * 2_000  # about 15,000 tokens
MARIA_ORIGIN = terminal_origin("maria")


class NoArguments(msgspec.Struct, forbid_unknown_fields=True):
    pass


@dataclass(frozen=True, slots=True)
class LookTool:
    """A tool with a long result that may be repeated."""

    arguments: type[msgspec.Struct] = NoArguments
    spec: ToolSpec = field(
        default_factory=lambda: ToolSpec(
            name="look", description="Look.", parameters=schema_of(NoArguments), is_repeatable=True
        )
    )

    async def perform(self, arguments: NoArguments, context: ToolContext) -> str:
        return "a page full of words\n" * 1_400  # about 7,000 tokens


@pytest.fixture
def store_control() -> Iterator[StoreControl]:
    store_control = StoreControl()
    yield store_control
    store_control.cancel_pending_writes()


@pytest.fixture(scope="module")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("empty") / "retinue.db"
    prepare_sqlite(path)
    return path


@pytest.fixture
def new_instance(tmp_path: Path, empty_store: Path, store_control: StoreControl) -> Callable[[], LocalInstance]:
    """Return a function that makes instances whose model counts its input and has a fixed price per call."""
    numbers = itertools.count()

    def make() -> LocalInstance:
        root = tmp_path / f"instance-{next(numbers)}"
        root.mkdir()
        shutil.copy(empty_store, root)
        instance = LocalInstance(root, tools=[LookTool()], wrap_store=store_control.wrap)
        instance.model.window_tokens = WINDOW_TOKENS
        instance.model.price_microusd = CALL_PRICE_MICROUSD
        instance.model.rule = partial(reply_by_rule, look_calls=0)
        return instance

    return make


@pytest.fixture
def instance(new_instance: Callable[[], LocalInstance]) -> LocalInstance:
    return new_instance()


def reply_by_rule(prompt: ModelPrompt, *, look_calls: int) -> ScriptedReply:
    """Return a summary if one is requested; otherwise `look_calls` calls, and then an answer."""
    usage = Usage(input_tokens=max(sum(map(body_chars, prompt.records)) // 4, 1), output_tokens=5)
    if is_summary_prompt(prompt):
        return text_reply("It was about a cat.", usage=usage)
    looked = sum(isinstance(record.body, ToolResult) for record in prompt.records)
    if look_calls and looked < look_calls and "Enough was seen." not in summary_text(prompt):
        return ScriptedReply(calls=(("look", {}),), usage=usage)
    return text_reply("Yes.", usage=usage)


def body_chars(record: Record) -> int:
    body = record.body
    return len(body.output) if isinstance(body, ToolResult) else len(body.text)


def summary_text(prompt: ModelPrompt) -> str:
    return "".join(record.body.text for record in prompt.records if isinstance(record.body, Summary))


def is_summary_prompt(prompt: ModelPrompt) -> bool:
    return prompt.session.endswith("/summary")


def turn_prompts(instance: LocalInstance) -> list[ModelPrompt]:
    return [prompt for prompt in instance.model.prompts if not is_summary_prompt(prompt)]


async def send_two_long_messages(server: LocalServer) -> None:
    """Send two messages that together are too long, so that the second starts with a compaction."""
    for key, text in (("one", f"Is the cat there?\n{LONG}"), ("two", f"Is it still there?\n{LONG[:25_000]}")):
        receipt = await server.send(text, key=key, origin=MARIA_ORIGIN)
        await server.wait_for_outcome(receipt.envelope)


async def send_message_with_long_run(server: LocalServer) -> None:
    """Send one message whose tool results are so long that its run is compacted in the middle."""
    receipt = await server.send("Look around, and mind the cat.", key="one", origin=MARIA_ORIGIN)
    await server.wait_for_outcome(receipt.envelope)


async def send_message_and_compact_command(server: LocalServer) -> None:
    """Send a message, and then the command to compact."""
    for key, text in (("one", f"Is the cat there?\n{LONG}"), ("two", "/compact mind the roof")):
        receipt = await server.send(text, key=key, origin=MARIA_ORIGIN)
        await server.wait_for_outcome(receipt.envelope)
    await server.wait_until_idle()


async def check_history_and_money(server: LocalServer, *, messages: int, summaries: int = 1) -> None:
    """Check what must be true wherever the power was cut."""
    ((id_,),) = await query_rows(server, "SELECT id FROM sessions")
    session, records = await server.get_session(id_), await server.list_records(id_)
    assert [record.seq for record in records] == list(range(1, len(records) + 1))
    read = Counter(envelope for r in records if isinstance(r.body, UserTurn) for envelope in r.body.envelopes)
    assert set(read.values()) == {1} and len(read) == messages, "each message was read exactly once"
    made = [record.body for record in records if isinstance(record.body, Summary)]
    assert len(made) == session.compactions == summaries
    assert session.context_start_seq == made[-1].kept_from
    asked = [call.id for r in records if isinstance(r.body, Reply) for call in r.body.calls]
    assert sorted(set(asked)) == sorted(result.call for result in list_tool_results(records)), "a result for each call"
    assert await query_rows(server, "SELECT count(*) FROM steps WHERE state = 'open'") == [(0,)]
    await check_money(server)


async def check_money(server: LocalServer) -> None:
    """Each call is paid; one that may have been made counts as paid and is marked."""
    paid = [
        tuple(row)
        for row in await query_rows(server, "SELECT settled_microusd, held_microusd, cost_unknown FROM model_calls")
    ]
    assert {(settled, held) for settled, held, _ in paid} == {(CALL_PRICE_MICROUSD, 0)}
    made = len(server.instance.model.prompts)
    unknown = sum(bool(row[2]) for row in paid)
    assert len(paid) - unknown <= made <= len(paid) and unknown <= 1


async def check_context(server: LocalServer) -> None:
    """The last prompt has the records of the store, up to the answer."""
    ((id_,),) = await query_rows(server, "SELECT id FROM sessions")
    session = await server.get_session(id_)
    stored = [record for record in await server.list_records(id_) if record.seq >= session.context_start_seq]
    last = turn_prompts(server.instance)[-1].records
    assert [(r.seq, r.body) for r in context_from_records(stored)[: len(last)]] == [(r.seq, r.body) for r in last]


@pytest.mark.spec("D23")
async def test_a_conversation_continues_after_a_power_cut_at_any_commit_around_a_compaction(
    new_instance: Callable[[], LocalInstance], store_control: StoreControl
) -> None:
    cut_runs = 0
    async for server in run_with_power_cuts(new_instance, store_control, send_two_long_messages):
        cut_runs += 1
        await check_history_and_money(server, messages=2)
        await check_context(server)
        assert await list_answers_to(server, "maria") == ["Yes.", "Yes."]
        assert (await list_notices_to(server, "maria")).count(COMPACTING_NOTICE) == 1
        last = turn_prompts(server.instance)[-1].records
        assert isinstance(last[0].body, Summary) and isinstance(last[-1].body, UserTurn)
        assert "Is it still there?" in last[-1].body.text
    assert cut_runs > 10


@pytest.mark.spec("C42")
async def test_a_long_run_is_compacted_once_and_answers_after_a_power_cut_at_any_commit(
    new_instance: Callable[[], LocalInstance], store_control: StoreControl
) -> None:
    def make() -> LocalInstance:
        instance = new_instance()
        instance.model.rule = make_four_look_calls
        return instance

    def make_four_look_calls(prompt: ModelPrompt) -> ScriptedReply:
        line = reply_by_rule(prompt, look_calls=4)
        return text_reply("Enough was seen.", usage=line.usage) if is_summary_prompt(prompt) else line

    cut_runs = 0
    async for server in run_with_power_cuts(make, store_control, send_message_with_long_run):
        cut_runs += 1
        await check_history_and_money(server, messages=1)
        await check_context(server)
        assert await list_answers_to(server, "maria") == ["Yes."]
        last = turn_prompts(server.instance)[-1].records
        assert isinstance(last[0].body, Summary) and "mind the cat" in last[0].body.text
        steps = await query_rows(
            server, "SELECT turn, call_index FROM steps WHERE call_index >= 0 ORDER BY turn, call_index"
        )
        numbers = [turn for turn, idx in steps if idx == 0]
        assert numbers == list(range(len(numbers))), "turn numbers continue after a compaction"
    assert cut_runs > 10


@pytest.mark.spec("C32")
async def test_a_compact_command_runs_once_and_reports_correctly_after_a_power_cut_at_any_commit(
    new_instance: Callable[[], LocalInstance], store_control: StoreControl
) -> None:
    ends: Counter[bool] = Counter()
    async for server in run_with_power_cuts(new_instance, store_control, send_message_and_compact_command):
        await check_history_and_money(server, messages=2)
        first, now, done = await list_answers_to(server, "maria")
        assert (first, now) == ("Yes.", "Compacting this conversation. You will get a message when it is done.")
        assert done.startswith("Compacted: about ") and done.endswith("(compactions so far: 1).")
        ends["are left" in done] += 1
        summaries = [prompt for prompt in server.instance.model.prompts if is_summary_prompt(prompt)]
        assert all("Pay special attention to this: mind the roof" in user_text(prompt) for prompt in summaries)
    assert ends[True] and ends[False], compacted_before_notice(1, 1)


def user_text(prompt: ModelPrompt) -> str:
    return "".join(record.body.text for record in prompt.records if isinstance(record.body, UserTurn))


@pytest.mark.parametrize("point", ["model.before", "model.after"])
async def test_a_compaction_call_interrupted_by_a_power_cut_is_charged_and_marked_as_unknown_cost(
    instance: LocalInstance, point: str
) -> None:
    async with instance.run() as server:
        instance.crash_points = fault = CrashAt(point, 2, server)  # after the reply to the first message
        server.crash()
    async with instance.run() as server:
        fault.server = server
        await server.wait_for_outcome(
            (await server.send(f"Is the cat there?\n{LONG}", key="one", origin=MARIA_ORIGIN)).envelope
        )
        receipt = await server.send(f"Is it still there?\n{LONG[:25_000]}", key="two", origin=MARIA_ORIGIN)
        await wait_until_true(lambda: fault.reached, what="the power cut")
    instance.crash_points = NO_FAULTS
    async with run_with_ledger_check(instance) as server:
        assert await server.wait_for_answer(receipt.envelope) == "Yes."
        await check_history_and_money(server, messages=2)
        unknown = await query_rows(
            server, "SELECT call_index < 0, settled_microusd, held_microusd FROM model_calls WHERE cost_unknown"
        )
        assert [tuple(row) for row in unknown] == [(1, CALL_PRICE_MICROUSD, 0)]
        left = await query_rows(server, "SELECT state FROM steps WHERE call_index < 0 ORDER BY call_index DESC")
        assert sorted(state for (state,) in left) == ["closed", "interrupted"]


async def test_a_note_added_before_a_compaction_is_committed_before_the_model_reads_it(instance: LocalInstance) -> None:
    """Otherwise the prompt and the stored context could differ after a crash."""
    instance.model.price_microusd = 0
    instance.tools = [LookTool(spec=ToolSpec(name="write", description="", parameters=schema_of(NoArguments)))]
    instance.model.rule = lambda _: text_reply("Yes.", usage=Usage(input_tokens=18_000, output_tokens=5))
    async with run_with_ledger_check(instance) as server:
        receipt = await server.send("hello", origin=MARIA_ORIGIN)
        await server.wait_for_outcome(receipt.envelope)
        instance.model.will_reply(text_reply("Yes.", after_s=10))
        asked = await server.send("go on", origin=MARIA_ORIGIN)
        await wait_until_true(lambda: any(map(contains_note, instance.model.prompts)), what="the note to be read")
        assert any(isinstance(record.body, Note) for record in await server.list_records(receipt.session))
        await instance.clock.advance(10)
        assert await server.wait_for_answer(asked.envelope) == "Yes."


def contains_note(prompt: ModelPrompt) -> bool:
    return any(isinstance(record.body, Note) for record in prompt.records)


async def test_no_compaction_is_committed_if_the_budget_refuses_it_and_the_message_is_answered(
    instance: LocalInstance, store_control: StoreControl
) -> None:
    """The model for summaries had no price: with a budget, that error became the answer to a long conversation."""
    toml = """
[providers.far]
url = "http://127.0.0.1:9"

[models]
utility = "far/small"

[budgets]
instance_day_usd = 5
"""
    instance.settings = load_configuration({"RETINUE_HOME": str(instance.root)}, text=toml).settings
    async with run_with_ledger_check(instance) as server:
        for text in (LONG, LONG[:25_000]):
            posted = await server.send(text, origin=MARIA_ORIGIN)
            assert await server.wait_for_answer(posted.envelope) == "Yes."
        assert await server.execute_sql("SELECT compactions FROM sessions") == [(0,)]
