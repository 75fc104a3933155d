"""Test that texts sent in quick succession become one envelope, and that none is confirmed before it is stored."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

import pytest
from connector_instance import (
    ChatInstance,
    add_binding,
    inbound_message,
    list_inbound_envelopes,
    read_accepted_envelope,
    remote_file,
)
from faults import StoreFailure, poll_until

from retinue.connectors.base import InboundMessage
from retinue.domain.access import DmPolicy, GroupPolicy
from retinue.domain.envelope import EnvelopeKind, Receipt
from retinue.domain.errors import StoreError
from retinue.intake.message_coalescing import MERGED_MAX, WINDOWS_MAX
from retinue.testing.local_instance import LocalServer

WINDOW_S = 2.0


@pytest.fixture
def chat(tmp_path: Path) -> ChatInstance:
    return ChatInstance.at(
        tmp_path, dm_policy=DmPolicy.OPEN, debounce_ms=round(WINDOW_S * 1000), messages_per_minute=1000
    )


AcceptTask = asyncio.Task[Receipt | None]


async def accept_in_turn(server: LocalServer, *messages: InboundMessage) -> list[AcceptTask]:
    """Accept messages one after the other without waiting for a receipt, as a connector does."""
    tasks: list[AcceptTask] = []
    for message in messages:
        tasks.append(asyncio.create_task(server.connector_intake.accept("quiet", message)))
        await asyncio.sleep(0)
    for _ in range(50):
        await asyncio.sleep(0)
    return tasks


async def advance_clock(chat: ChatInstance, seconds: float = WINDOW_S) -> None:
    await chat.instance.clock.advance(seconds)


async def wait_for_receipts(chat: ChatInstance, tasks: list[AcceptTask]) -> list[Receipt | None]:
    """Advance the clock until each message has its result."""
    while not all(task.done() for task in tasks):
        await advance_clock(chat)
        await asyncio.sleep(0.002)  # sleep: the store takes real time over what it stores
    return [task.result() for task in tasks]


@pytest.mark.spec("C19")
async def test_texts_of_one_sender_within_the_coalescing_window_are_one_envelope(chat: ChatInstance) -> None:
    async with chat.instance.run() as server:
        first = await accept_in_turn(server, inbound_message("one", id_="1"))
        await advance_clock(chat, WINDOW_S / 2)
        more = await accept_in_turn(server, inbound_message("two", id_="2"), inbound_message("three", id_="3"))
        await advance_clock(chat, WINDOW_S / 2)
        assert not any(task.done() for task in (*first, *more)), "nothing is confirmed before it is stored"
        assert await list_inbound_envelopes(server) == []
        await advance_clock(chat)
        receipts = await asyncio.gather(*first, *more)
        [envelope] = await list_inbound_envelopes(server)
        assert envelope.text == "one\ntwo\nthree"
        assert {each.envelope for each in receipts if each is not None} == {envelope.id}


@pytest.mark.spec("C19")
async def test_each_coalesced_text_is_a_duplicate_when_redelivered_even_after_a_crash(chat: ChatInstance) -> None:
    messages = [inbound_message("one", id_="1"), inbound_message("two", id_="2"), inbound_message("three", id_="3")]
    async with chat.instance.run() as server:
        tasks = await accept_in_turn(server, *messages)
        await advance_clock(chat)
        await asyncio.gather(*tasks)
        server.crash()
    async with chat.instance.run() as server:
        for message in reversed(messages):
            [again] = await wait_for_receipts(chat, await accept_in_turn(server, message))
            assert again is not None and again.duplicate
        tasks = await accept_in_turn(server, *messages)
        await advance_clock(chat)
        await asyncio.gather(*tasks)
        assert [each.text for each in await list_inbound_envelopes(server)] == ["one\ntwo\nthree"]


@pytest.mark.spec("C19")
async def test_an_edit_of_one_coalesced_text_is_an_edit_of_the_shared_envelope(chat: ChatInstance) -> None:
    async with chat.instance.run() as server:
        tasks = await accept_in_turn(server, inbound_message("one", id_="1"), inbound_message("two", id_="2"))
        await advance_clock(chat)
        await asyncio.gather(*tasks)
        [first] = await list_inbound_envelopes(server)
        [task] = await accept_in_turn(server, inbound_message("two and a half", id_="2", revision="09:01"))
        edit = await read_accepted_envelope(server, await task)
        assert edit.reply_to == first.id
        assert edit.text == f"[edit of {first.id[:8]}]\ntwo and a half"


@pytest.mark.spec("C19")
async def test_files_and_commands_flush_the_coalescing_window_and_are_accepted_after_it(chat: ChatInstance) -> None:
    async with chat.instance.run() as server:
        tasks = await accept_in_turn(
            server,
            inbound_message("look at this", id_="1"),
            inbound_message("", id_="2", files=(remote_file("a.txt", b"x"),)),
            inbound_message("/status", id_="3"),
        )
        receipts = await asyncio.gather(*tasks)
        assert all(receipts)
        texts = [(each.text, len(each.attachments)) for each in await list_inbound_envelopes(server)]
        assert texts == [("look at this", 0), ("", 1), ("/status", 0)]


async def test_coalesced_texts_of_two_senders_in_one_channel_keep_their_order(chat: ChatInstance) -> None:
    chat.set(group_policy=GroupPolicy.OPEN)
    async with chat.instance.run() as server:
        messages_in_turn = [
            inbound_message(f"{by}{n}", by=by, channel="-1", id_=f"{by}{n}", mentioned=True)
            for by, n in (("a", 1), ("a", 2), ("b", 1), ("a", 3))
        ]
        await wait_for_receipts(chat, await accept_in_turn(server, *messages_in_turn))
        assert [each.text for each in await list_inbound_envelopes(server)] == ["a1\na2", "b1", "a3"]


async def test_coalesced_texts_of_a_sender_who_never_pauses_are_stored_after_the_maximum_number_of_windows(
    chat: ChatInstance,
) -> None:
    async with chat.instance.run() as server:
        tasks: list[AcceptTask] = []
        for number in range(WINDOWS_MAX * 2 + 2):
            tasks += await accept_in_turn(server, inbound_message(str(number), id_=str(number)))
            await advance_clock(chat, WINDOW_S / 2)
        await poll_until(lambda: any(task.done() for task in tasks), "the first message is stored")
        await wait_for_receipts(chat, tasks)
        texts = "\n".join(each.text for each in await list_inbound_envelopes(server))
        assert texts.split("\n") == [str(number) for number in range(WINDOWS_MAX * 2 + 2)]


async def test_at_most_the_maximum_number_of_texts_are_coalesced_into_one_envelope(chat: ChatInstance) -> None:
    async with chat.instance.run() as server:
        tasks = await accept_in_turn(
            server, *(inbound_message(str(number), id_=str(number)) for number in range(MERGED_MAX + 1))
        )
        await wait_for_receipts(chat, tasks)
        assert [len(each.text.split("\n")) for each in await list_inbound_envelopes(server)] == [MERGED_MAX, 1]


async def test_coalesced_texts_are_not_confirmed_after_a_store_error_and_accepted_when_offered_again(
    chat: ChatInstance,
) -> None:
    messages = [inbound_message("one", id_="1"), inbound_message("two", id_="2")]
    chat.instance.crash_points = StoreFailure("accept.before-commit", times=1)
    async with chat.instance.run() as server:
        tasks = await accept_in_turn(server, *messages)
        await advance_clock(chat)
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(each, StoreError) for each in ended)
        assert await list_inbound_envelopes(server) == []
        tasks = await accept_in_turn(server, *messages)
        await advance_clock(chat)
        assert all(await asyncio.gather(*tasks))
        assert [each.text for each in await list_inbound_envelopes(server)] == ["one\ntwo"]


async def test_a_later_message_is_not_stored_before_a_coalesced_text_that_failed(chat: ChatInstance) -> None:
    messages = [inbound_message("one", id_="1"), inbound_message("", id_="2", files=(remote_file("two.txt", b"two"),))]
    chat.instance.crash_points = StoreFailure("accept.before-commit", times=1)
    async with chat.instance.run() as server:
        ended = await asyncio.gather(*await accept_in_turn(server, *messages), return_exceptions=True)
        assert all(isinstance(each, StoreError) for each in ended), "it is not confirmed either"
        await wait_for_receipts(chat, await accept_in_turn(server, *messages))
        assert [each.text for each in await list_inbound_envelopes(server)] == ["one", ""]


async def test_ambient_messages_are_added_once_while_two_senders_wait_for_coalescing(chat: ChatInstance) -> None:
    chat.set(group_policy=GroupPolicy.OPEN)
    async with chat.instance.run() as server:
        aside = partial(inbound_message, channel="-1")
        await server.connector_intake.accept("quiet", aside("it rains", by="c", id_="c1"))
        tasks = await accept_in_turn(server, aside("one", by="a", id_="a1", mentioned=True))
        tasks += await accept_in_turn(server, aside("two", by="b", id_="b1", mentioned=True))
        await server.connector_intake.accept("quiet", aside("it pours", by="c", id_="c2"))
        await wait_for_receipts(chat, tasks)
        await wait_for_receipts(chat, await accept_in_turn(server, aside("three", by="a", id_="a2", mentioned=True)))
        notes = [each.text for each in await list_inbound_envelopes(server) if each.kind is EnvelopeKind.SYSTEM]
        assert [("it rains" in note, "it pours" in note) for note in notes] == [(True, False), (False, True)]


async def test_coalesced_texts_reach_each_bound_agent_once_after_a_partial_store_failure(chat: ChatInstance) -> None:
    chat.set(group_policy=GroupPolicy.OPEN)
    texts = [inbound_message(text, channel="-1", id_=text, mentioned=True) for text in ("one", "two")]
    chat.instance.crash_points = StoreFailure("accept.before-commit", times=1, after=1)
    async with chat.instance.run() as server:
        await add_binding(server, "ada", "bob")
        tasks = await accept_in_turn(server, *texts)
        await advance_clock(chat)
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(each, StoreError) for each in ended)
        await wait_for_receipts(chat, await accept_in_turn(server, *texts))
        found = {(each.recipient.name, each.text) for each in await list_inbound_envelopes(server)}
        assert found == {("ada", "one\ntwo"), ("bob", "one\ntwo")}


async def test_a_text_in_the_coalescing_window_is_stored_even_if_its_connector_stops_waiting(
    chat: ChatInstance,
) -> None:
    async with chat.instance.run() as server:
        [task] = await accept_in_turn(server, inbound_message("one", id_="1"))
        task.cancel()
        await advance_clock(chat)
        await server.wait_until_idle()
        assert [each.text for each in await list_inbound_envelopes(server)] == ["one"]
        [receipt] = await wait_for_receipts(chat, await accept_in_turn(server, inbound_message("one", id_="1")))
        assert receipt is not None and receipt.duplicate


async def test_without_a_coalescing_window_each_text_is_accepted_at_once(chat: ChatInstance) -> None:
    chat.set(debounce_ms=0)
    async with chat.instance.run() as server:
        for number in range(2):
            assert await server.connector_intake.accept("quiet", inbound_message("x", id_=str(number))) is not None
        assert len(await list_inbound_envelopes(server)) == 2
