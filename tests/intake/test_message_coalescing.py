"""Texts written one after the other are one envelope, and none of them is confirmed before it is stored."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

import pytest
from connector_instance import Street, bind, heard, kept, offered, said
from faults import StoreFails, until

from retinue.connectors.base import InboundMessage
from retinue.domain.access import DmPolicy, GroupPolicy
from retinue.domain.envelope import EnvelopeKind, Receipt
from retinue.domain.errors import StoreError
from retinue.intake.message_coalescing import MERGED_MAX, WINDOWS_MAX
from retinue.testing.local_instance import LocalServer

WINDOW_S = 2.0


@pytest.fixture
def street(tmp_path: Path) -> Street:
    return Street.at(tmp_path, dm=DmPolicy.OPEN, debounce_ms=round(WINDOW_S * 1000), messages_per_minute=1000)


Accepting = asyncio.Task[Receipt | None]


async def say(house: LocalServer, *messages: InboundMessage) -> list[Accepting]:
    """Hand in one after the other, as a connector does that does not wait for what it is told."""
    tasks: list[Accepting] = []
    for message in messages:
        tasks.append(asyncio.create_task(house.connector_intake.accept("quiet", message)))
        await asyncio.sleep(0)
    for _ in range(50):
        await asyncio.sleep(0)
    return tasks


async def pause(street: Street, seconds: float = WINDOW_S) -> None:
    await street.household.clock.advance(seconds)


async def confirmed(street: Street, tasks: list[Accepting]) -> list[Receipt | None]:
    """Pause until each has its answer: the store takes real time over what it stores."""
    while not all(task.done() for task in tasks):
        await pause(street)
        await asyncio.sleep(0.002)  # sleep: the store takes real time over what it stores
    return [task.result() for task in tasks]


@pytest.mark.spec("C19")
async def test_texts_of_one_speaker_within_the_window_are_one_envelope(street: Street) -> None:
    async with street.household.run() as house:
        first = await say(house, said("one", id_="1"))
        await pause(street, WINDOW_S / 2)
        more = await say(house, said("two", id_="2"), said("three", id_="3"))
        await pause(street, WINDOW_S / 2)
        assert not any(task.done() for task in (*first, *more)), "nothing is confirmed before it is stored"
        assert await heard(house) == []
        await pause(street)
        receipts = await asyncio.gather(*first, *more)
        [envelope] = await heard(house)
        assert envelope.text == "one\ntwo\nthree"
        assert {each.envelope for each in receipts if each is not None} == {envelope.id}


@pytest.mark.spec("C19")
async def test_each_of_the_texts_is_known_when_it_is_delivered_again_even_after_a_crash(street: Street) -> None:
    messages = [said("one", id_="1"), said("two", id_="2"), said("three", id_="3")]
    async with street.household.run() as house:
        tasks = await say(house, *messages)
        await pause(street)
        await asyncio.gather(*tasks)
        house.crash()
    async with street.household.run() as house:
        for message in reversed(messages):
            [again] = await confirmed(street, await say(house, message))
            assert again is not None and again.duplicate
        tasks = await say(house, *messages)
        await pause(street)
        await asyncio.gather(*tasks)
        assert [each.text for each in await heard(house)] == ["one\ntwo\nthree"]


@pytest.mark.spec("C19")
async def test_a_text_of_several_that_is_changed_is_an_edit_of_their_envelope(street: Street) -> None:
    async with street.household.run() as house:
        tasks = await say(house, said("one", id_="1"), said("two", id_="2"))
        await pause(street)
        await asyncio.gather(*tasks)
        [first] = await heard(house)
        [task] = await say(house, said("two and a half", id_="2", revision="09:01"))
        edit = await kept(house, await task)
        assert edit.reply_to == first.id
        assert edit.text == f"[edit of {first.id[:8]}]\ntwo and a half"


@pytest.mark.spec("C19")
async def test_files_and_commands_do_not_wait_and_what_waited_goes_before_them(street: Street) -> None:
    async with street.household.run() as house:
        tasks = await say(
            house,
            said("look at this", id_="1"),
            said("", id_="2", files=(offered("a.txt", b"x"),)),
            said("/status", id_="3"),
        )
        receipts = await asyncio.gather(*tasks)
        assert all(receipts)
        texts = [(each.text, len(each.attachments)) for each in await heard(house)]
        assert texts == [("look at this", 0), ("", 1), ("/status", 0)]


async def test_two_who_speak_in_one_room_are_kept_in_their_order(street: Street) -> None:
    street.set(group_policy=GroupPolicy.OPEN)
    async with street.household.run() as house:
        said_in_turn = [
            said(f"{by}{n}", by=by, room="-1", id_=f"{by}{n}", mentioned=True)
            for by, n in (("a", 1), ("a", 2), ("b", 1), ("a", 3))
        ]
        await confirmed(street, await say(house, *said_in_turn))
        assert [each.text for each in await heard(house)] == ["a1\na2", "b1", "a3"]


async def test_whoever_never_pauses_is_heard_all_the_same(street: Street) -> None:
    async with street.household.run() as house:
        tasks: list[Accepting] = []
        for number in range(WINDOWS_MAX * 2 + 2):
            tasks += await say(house, said(str(number), id_=str(number)))
            await pause(street, WINDOW_S / 2)
        await until(lambda: any(task.done() for task in tasks), "the first of them was stored")
        await confirmed(street, tasks)
        texts = "\n".join(each.text for each in await heard(house))
        assert texts.split("\n") == [str(number) for number in range(WINDOWS_MAX * 2 + 2)]


async def test_so_many_texts_and_no_more_are_one_envelope(street: Street) -> None:
    async with street.household.run() as house:
        tasks = await say(house, *(said(str(number), id_=str(number)) for number in range(MERGED_MAX + 1)))
        await confirmed(street, tasks)
        assert [len(each.text.split("\n")) for each in await heard(house)] == [MERGED_MAX, 1]


async def test_what_could_not_be_stored_is_confirmed_to_nobody_and_taken_when_it_is_offered_again(
    street: Street,
) -> None:
    messages = [said("one", id_="1"), said("two", id_="2")]
    street.household.crash_points = StoreFails("accept.before-commit", times=1)
    async with street.household.run() as house:
        tasks = await say(house, *messages)
        await pause(street)
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(each, StoreError) for each in ended)
        assert await heard(house) == []
        tasks = await say(house, *messages)
        await pause(street)
        assert all(await asyncio.gather(*tasks))
        assert [each.text for each in await heard(house)] == ["one\ntwo"]


async def test_what_could_not_be_stored_is_not_overtaken_by_what_was_said_after_it(street: Street) -> None:
    messages = [said("one", id_="1"), said("", id_="2", files=(offered("two.txt", b"two"),))]
    street.household.crash_points = StoreFails("accept.before-commit", times=1)
    async with street.household.run() as house:
        ended = await asyncio.gather(*await say(house, *messages), return_exceptions=True)
        assert all(isinstance(each, StoreError) for each in ended), "nor is it confirmed"
        await confirmed(street, await say(house, *messages))
        assert [each.text for each in await heard(house)] == ["one", ""]


async def test_what_was_overheard_is_told_once_though_two_wait_to_be_told(street: Street) -> None:
    street.set(group_policy=GroupPolicy.OPEN)
    async with street.household.run() as house:
        aside = partial(said, room="-1")
        await house.connector_intake.accept("quiet", aside("it rains", by="c", id_="c1"))
        tasks = await say(house, aside("one", by="a", id_="a1", mentioned=True))
        tasks += await say(house, aside("two", by="b", id_="b1", mentioned=True))
        await house.connector_intake.accept("quiet", aside("it pours", by="c", id_="c2"))
        await confirmed(street, tasks)
        await confirmed(street, await say(house, aside("three", by="a", id_="a2", mentioned=True)))
        notes = [each.text for each in await heard(house) if each.kind is EnvelopeKind.SYSTEM]
        assert [("it rains" in note, "it pours" in note) for note in notes] == [(True, False), (False, True)]


async def test_texts_for_several_agents_reach_each_of_them_whenever_the_house_falls(street: Street) -> None:
    street.set(group_policy=GroupPolicy.OPEN)
    texts = [said(text, room="-1", id_=text, mentioned=True) for text in ("one", "two")]
    street.household.crash_points = StoreFails("accept.before-commit", times=1, after=1)
    async with street.household.run() as house:
        await bind(house, "ada", "bob")
        tasks = await say(house, *texts)
        await pause(street)
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(each, StoreError) for each in ended)
        await confirmed(street, await say(house, *texts))
        found = {(each.recipient.name, each.text) for each in await heard(house)}
        assert found == {("ada", "one\ntwo"), ("bob", "one\ntwo")}


async def test_whoever_hangs_up_while_they_wait_has_still_been_heard(street: Street) -> None:
    async with street.household.run() as house:
        [task] = await say(house, said("one", id_="1"))
        task.cancel()
        await pause(street)
        await house.wait_until_idle()
        assert [each.text for each in await heard(house)] == ["one"]
        [receipt] = await confirmed(street, await say(house, said("one", id_="1")))
        assert receipt is not None and receipt.duplicate


async def test_without_a_window_nothing_waits(street: Street) -> None:
    street.set(debounce_ms=0)
    async with street.household.run() as house:
        for number in range(2):
            assert await house.connector_intake.accept("quiet", said("x", id_=str(number))) is not None
        assert len(await heard(house)) == 2
