"""Compactions and the power: cut at every commit around one, a run goes on, and nothing is lost, doubled or unpaid."""

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
from contracts.engine_instance import Hands, answers_to, notices_to, opened, power_cuts, results, rows, until
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

WINDOW = 40_000
PRICE = 700
LONG = "the cat is on the roof again\n" * 2_000  # about 15,000 tokens
MARIA = terminal_origin("maria")


class NoArguments(msgspec.Struct, forbid_unknown_fields=True):
    pass


@dataclass(frozen=True, slots=True)
class Look:
    """Long to read, and may simply be looked at again."""

    arguments: type[msgspec.Struct] = NoArguments
    spec: ToolSpec = field(
        default_factory=lambda: ToolSpec(
            name="look", description="Look.", parameters=schema_of(NoArguments), is_repeatable=True
        )
    )

    async def perform(self, arguments: NoArguments, context: ToolContext) -> str:
        return "a page full of words\n" * 1_400  # about 7,000 tokens


@pytest.fixture
def hands() -> Iterator[Hands]:
    hands = Hands()
    yield hands
    hands.let_go()


@pytest.fixture(scope="module")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("empty") / "house.db"
    prepare_sqlite(path)
    return path


@pytest.fixture
def new_household(tmp_path: Path, empty_store: Path, hands: Hands) -> Callable[[], LocalInstance]:
    """A house whose model counts what it reads, and costs the same each time."""
    numbers = itertools.count()

    def make() -> LocalInstance:
        root = tmp_path / f"house-{next(numbers)}"
        root.mkdir()
        shutil.copy(empty_store, root)
        household = LocalInstance(root, tools=[Look()], wrap_store=hands.over)
        household.model.window_tokens = WINDOW
        household.model.price_microusd = PRICE
        household.model.rule = partial(reply, looks=0)
        return household

    return make


@pytest.fixture
def household(new_household: Callable[[], LocalInstance]) -> LocalInstance:
    return new_household()


def reply(prompt: ModelPrompt, *, looks: int) -> ScriptedReply:
    """A summary where one is asked for; else as many looks as the newest turn wants, and then an answer."""
    usage = Usage(input_tokens=max(sum(map(chars, prompt.records)) // 4, 1), output_tokens=5)
    if is_summary(prompt):
        return text_reply("It was about a cat.", usage=usage)
    looked = sum(isinstance(record.body, ToolResult) for record in prompt.records)
    if looks and looked < looks and "Enough was seen." not in told(prompt):
        return ScriptedReply(calls=(("look", {}),), usage=usage)
    return text_reply("Yes.", usage=usage)


def chars(record: Record) -> int:
    body = record.body
    return len(body.output) if isinstance(body, ToolResult) else len(body.text)


def told(prompt: ModelPrompt) -> str:
    return "".join(record.body.text for record in prompt.records if isinstance(record.body, Summary))


def is_summary(prompt: ModelPrompt) -> bool:
    return prompt.session.endswith("/summary")


def turns(household: LocalInstance) -> list[ModelPrompt]:
    return [prompt for prompt in household.model.prompts if not is_summary(prompt)]


async def conversation(house: LocalServer) -> None:
    """Two messages. Between them they are too much, so that the second begins with a compaction."""
    for key, text in (("one", f"Is the cat there?\n{LONG}"), ("two", f"Is it still there?\n{LONG[:25_000]}")):
        receipt = await house.send(text, key=key, origin=MARIA)
        await house.wait_for_outcome(receipt.envelope)


async def long_run(house: LocalServer) -> None:
    """One message, and so much to look at for it that the run is compacted in its middle."""
    receipt = await house.send("Look around, and mind the cat.", key="one", origin=MARIA)
    await house.wait_for_outcome(receipt.envelope)


async def by_hand(house: LocalServer) -> None:
    """A message, and then a wish to have it told in short."""
    for key, text in (("one", f"Is the cat there?\n{LONG}"), ("two", "/compact mind the roof")):
        receipt = await house.send(text, key=key, origin=MARIA)
        await house.wait_for_outcome(receipt.envelope)
    await house.wait_until_idle()


async def check(house: LocalServer, *, messages: int, summaries: int = 1) -> None:
    """What must hold however the story was interrupted."""
    ((id_,),) = await rows(house, "SELECT id FROM sessions")
    session, records = await house.get_session(id_), await house.list_records(id_)
    assert [record.seq for record in records] == list(range(1, len(records) + 1))
    read = Counter(envelope for r in records if isinstance(r.body, UserTurn) for envelope in r.body.envelopes)
    assert set(read.values()) == {1} and len(read) == messages, "each message was read, and once"
    made = [record.body for record in records if isinstance(record.body, Summary)]
    assert len(made) == session.compactions == summaries
    assert session.context_start_seq == made[-1].kept_from
    asked = [call.id for r in records if isinstance(r.body, Reply) for call in r.body.calls]
    assert sorted(set(asked)) == sorted(result.call for result in results(records)), "a result for each call"
    assert await rows(house, "SELECT count(*) FROM steps WHERE state = 'open'") == [(0,)]
    await check_money(house)


async def check_money(house: LocalServer) -> None:
    """Every call that was made is paid for; one that may have been made is taken as paid, and marked."""
    paid = [tuple(row) for row in await rows(house, "SELECT settled_microusd, held_microusd, unknown FROM money")]
    assert {(settled, held) for settled, held, _ in paid} == {(PRICE, 0)}
    made = len(house.instance.model.prompts)
    unknown = sum(bool(row[2]) for row in paid)
    assert len(paid) - unknown <= made <= len(paid) and unknown <= 1


async def check_context(house: LocalServer) -> None:
    """What was last asked is what the store has, up to the answer."""
    ((id_,),) = await rows(house, "SELECT id FROM sessions")
    session = await house.get_session(id_)
    stored = [record for record in await house.list_records(id_) if record.seq >= session.context_start_seq]
    last = turns(house.instance)[-1].records
    assert [(r.seq, r.body) for r in context_from_records(stored)[: len(last)]] == [(r.seq, r.body) for r in last]


@pytest.mark.spec("D23")
async def test_wherever_the_power_is_cut_around_a_compaction_the_conversation_goes_on(
    new_household: Callable[[], LocalInstance], hands: Hands
) -> None:
    stories = 0
    async for house in power_cuts(new_household, hands, conversation):
        stories += 1
        await check(house, messages=2)
        await check_context(house)
        assert await answers_to(house, "maria") == ["Yes.", "Yes."]
        assert (await notices_to(house, "maria")).count(COMPACTING_NOTICE) == 1
        last = turns(house.instance)[-1].records
        assert isinstance(last[0].body, Summary) and isinstance(last[-1].body, UserTurn)
        assert "Is it still there?" in last[-1].body.text
    assert stories > 10


@pytest.mark.spec("C42")
async def test_wherever_the_power_is_cut_in_a_long_run_it_is_compacted_once_and_comes_to_its_answer(
    new_household: Callable[[], LocalInstance], hands: Hands
) -> None:
    def make() -> LocalInstance:
        household = new_household()
        household.model.rule = looks_around
        return household

    def looks_around(prompt: ModelPrompt) -> ScriptedReply:
        line = reply(prompt, looks=4)
        return text_reply("Enough was seen.", usage=line.usage) if is_summary(prompt) else line

    stories = 0
    async for house in power_cuts(make, hands, long_run):
        stories += 1
        await check(house, messages=1)
        await check_context(house)
        assert await answers_to(house, "maria") == ["Yes."]
        last = turns(house.instance)[-1].records
        assert isinstance(last[0].body, Summary) and "mind the cat" in last[0].body.text
        steps = await rows(house, "SELECT turn, idx FROM steps WHERE idx >= 0 ORDER BY turn, idx")
        numbers = [turn for turn, idx in steps if idx == 0]
        assert numbers == list(range(len(numbers))), "turn numbers go on behind a compaction"
    assert stories > 10


@pytest.mark.spec("C32")
async def test_wherever_the_power_is_cut_a_wish_to_compact_is_carried_out_once_and_told_truly(
    new_household: Callable[[], LocalInstance], hands: Hands
) -> None:
    ends: Counter[bool] = Counter()
    async for house in power_cuts(new_household, hands, by_hand):
        await check(house, messages=2)
        first, now, done = await answers_to(house, "maria")
        assert (first, now) == ("Yes.", "Compacting this conversation. You get a message when it is done.")
        assert done.startswith("Compacted: about ") and done.endswith("(compactions so far: 1).")
        ends["are left" in done] += 1
        summaries = [prompt for prompt in house.instance.model.prompts if is_summary(prompt)]
        assert all("Pay special attention to this: mind the roof" in shown(prompt) for prompt in summaries)
    assert ends[True] and ends[False], compacted_before_notice(1, 1)


def shown(prompt: ModelPrompt) -> str:
    return "".join(record.body.text for record in prompt.records if isinstance(record.body, UserTurn))


@pytest.mark.parametrize("point", ["model.before", "model.after"])
async def test_a_summary_that_nobody_saw_the_end_of_is_paid_for_as_far_as_anyone_knows(
    household: LocalInstance, point: str
) -> None:
    async with household.run() as house:
        household.crash_points = fault = CrashAt(point, 2, house)  # after the reply to the first message
        house.crash()
    async with household.run() as house:
        fault.house = house
        await house.wait_for_outcome((await house.send(f"Is the cat there?\n{LONG}", key="one", origin=MARIA)).envelope)
        receipt = await house.send(f"Is it still there?\n{LONG[:25_000]}", key="two", origin=MARIA)
        await until(lambda: fault.reached, what="the power to go")
    household.crash_points = NO_FAULTS
    async with opened(household) as house:
        assert await house.wait_for_answer(receipt.envelope) == "Yes."
        await check(house, messages=2)
        unknown = await rows(house, "SELECT idx < 0, settled_microusd, held_microusd FROM money WHERE unknown")
        assert [tuple(row) for row in unknown] == [(1, PRICE, 0)]
        left = await rows(house, "SELECT state FROM steps WHERE idx < 0 ORDER BY idx DESC")
        assert sorted(state for (state,) in left) == ["closed", "interrupted"]


async def test_a_note_before_a_compaction_is_in_the_store_before_a_model_reads_it(household: LocalInstance) -> None:
    """Otherwise what it was told and what its answer rests on could be two things after a crash."""
    household.model.price_microusd = 0
    household.tools = [Look(spec=ToolSpec(name="write", description="", parameters=schema_of(NoArguments)))]
    household.model.rule = lambda _: text_reply("Yes.", usage=Usage(input_tokens=18_000, output_tokens=5))
    async with opened(household) as house:
        receipt = await house.send("hello", origin=MARIA)
        await house.wait_for_outcome(receipt.envelope)
        household.model.will_reply(text_reply("Yes.", after_s=10))
        asked = await house.send("go on", origin=MARIA)
        await until(lambda: any(map(holds_note, household.model.prompts)), what="the note to be read")
        assert any(isinstance(record.body, Note) for record in await house.list_records(receipt.session))
        await household.clock.advance(10)
        assert await house.wait_for_answer(asked.envelope) == "Yes."


def holds_note(prompt: ModelPrompt) -> bool:
    return any(isinstance(record.body, Note) for record in prompt.records)


async def test_a_summary_that_no_budget_allows_does_not_stand_in_the_way_of_a_reply_that_one_does(
    household: LocalInstance, hands: Hands
) -> None:
    """The model for small work had no price: with a cap, a long conversation was answered by that complaint alone."""
    toml = """
[providers.far]
url = "http://127.0.0.1:9"

[models]
utility = "far/small"

[budgets]
house_day_usd = 5
"""
    household.settings = load_configuration({"RETINUE_HOME": str(household.root)}, text=toml).settings
    async with opened(household) as house:
        for text in (LONG, LONG[:25_000]):
            posted = await house.send(text, origin=MARIA)
            assert await house.wait_for_answer(posted.envelope) == "Yes."
        assert await house.execute_sql("SELECT compactions FROM sessions") == [(0,)]
