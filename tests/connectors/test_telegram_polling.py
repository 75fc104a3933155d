"""Test polling: no message is lost or confirmed too early, whatever fails."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from datetime import timedelta
from typing import Any

import pytest
from connectors.telegram_instance import (
    ACCEPTED_AT,
    REQUEST_TIMEOUT_S,
    InMemoryConnectorState,
    TelegramSetup,
    bot,
    listen_in_background,
    wait_until_true,
)

from retinue.app.clock_and_ids import RealClock
from retinue.connectors.base import ConnectionLost, InboundKind, InboundMessage
from retinue.connectors.telegram.connector import TelegramConnector
from retinue.connectors.telegram.errors import CONFLICT_JITTER, CONFLICT_S_MAX
from retinue.connectors.telegram.poll_offset import DAMAGED_KEY, KEY, VALID_FOR, PollOffset, parse_offset
from retinue.domain.envelope import Receipt
from retinue.domain.errors import StoreError
from retinue.testing.loop_time import skip_loop_time_on_increase
from retinue.testing.telegram_server import TelegramFault, TelegramServer, throttle_fault


@pytest.fixture
async def telegram() -> AsyncGenerator[TelegramServer]:
    async with TelegramServer() as server:
        yield server


def get_offset(connector_state: InMemoryConnectorState) -> int:
    offset = parse_offset(connector_state.entries[KEY])
    assert offset is not None
    return offset.update_id


async def listen_until_connection_lost(connector: TelegramConnector, server: TelegramSetup) -> ConnectionLost:
    with pytest.raises(ConnectionLost) as lost:
        await connector.listen(server.accept)
    return lost.value


@pytest.mark.spec("D57")
async def test_the_poll_offset_is_stored_only_after_all_earlier_updates_were_accepted(telegram: TelegramServer) -> None:
    connector_state, server = InMemoryConnectorState(), TelegramSetup()
    offsets_before = list[int]()
    server.before_accept = lambda _: offsets_before.append(
        get_offset(connector_state) if KEY in connector_state.entries else 0
    )
    for text in ("one", "two", "three"):
        telegram.person_sends(text)

    async with listen_in_background(bot(telegram, connector_state=connector_state), server):
        await wait_until_true(lambda: KEY in connector_state.entries and get_offset(connector_state) == 5_003)

    assert server.texts == ["one", "two", "three"]
    # On a slow machine, earlier updates may be confirmed before the next one is accepted.
    assert all(offset <= update for offset, update in zip(offsets_before, (5_000, 5_001, 5_002), strict=True))


@pytest.mark.spec("D57")
async def test_polling_resumes_at_the_stored_offset_after_a_restart(telegram: TelegramServer) -> None:
    connector_state, server = InMemoryConnectorState(), TelegramSetup()
    telegram.person_sends("one")
    async with listen_in_background(bot(telegram, connector_state=connector_state), server):
        await wait_until_true(lambda: KEY in connector_state.entries)
    telegram.person_sends("two, while nobody was there")

    async with listen_in_background(bot(telegram, connector_state=connector_state), server):
        await server.wait_for_messages(2)

    assert server.texts == ["one", "two, while nobody was there"]


async def test_a_telegram_update_that_could_not_be_stored_is_polled_again(telegram: TelegramServer) -> None:
    connector_state, server = InMemoryConnectorState(), TelegramSetup()
    server.store_failures_left = 2
    telegram.person_sends("one")
    telegram.person_sends("two")

    async with listen_in_background(bot(telegram, connector_state=connector_state), server):
        await server.wait_for_messages(2)
        await wait_until_true(lambda: connector_state.entries.get(KEY, "").split()[1:2] == ["5002"])

    assert server.texts == ["one", "two"]


async def test_a_store_error_in_one_telegram_channel_does_not_block_others_or_confirm_its_update(
    telegram: TelegramServer,
) -> None:
    telegram.add_group(-1001)
    connector_state, server = InMemoryConnectorState(), TelegramSetup()

    def fail_for_the_group(incoming: InboundMessage) -> None:
        if incoming.channel == "-1001" and server.offered < 6:
            server.store_failures_left = 1

    server.before_accept = fail_for_the_group
    telegram.person_sends("mine")
    telegram.person_sends("the group's", chat_id=-1001)
    telegram.person_sends("mine, too")

    async with listen_in_background(bot(telegram, connector_state=connector_state), server):
        await wait_until_true(lambda: "the group's" in server.texts)

    assert set(server.texts) == {"mine", "the group's", "mine, too"}
    offsets = [int(value.split()[1]) for key, value in connector_state.puts if key == KEY]
    assert offsets[0] == 5_001  # up to the update of the group, and not beyond


async def test_a_slow_telegram_update_does_not_block_other_channels_and_is_not_confirmed(
    telegram: TelegramServer,
) -> None:
    telegram.add_group(-1001)
    connector_state, server, downloaded = InMemoryConnectorState(), TelegramSetup(), asyncio.Event()

    async def accept(incoming: InboundMessage) -> Receipt | None:
        if incoming.text == "a film":
            await downloaded.wait()
        return await server.accept(incoming)

    listener = asyncio.create_task(bot(telegram, connector_state=connector_state).listen(accept))
    telegram.person_sends("a film")
    telegram.person_sends("hello", chat_id=-1001)
    await server.wait_for_messages(1)
    telegram.person_sends("still there?", chat_id=-1001)
    await server.wait_for_messages(2)
    kept_meanwhile = get_offset(connector_state) if KEY in connector_state.entries else 5_000
    downloaded.set()
    await wait_until_true(lambda: KEY in connector_state.entries and get_offset(connector_state) == 5_003)
    listener.cancel()
    await asyncio.gather(listener, return_exceptions=True)

    assert server.texts == ["hello", "still there?", "a film"]
    assert kept_meanwhile == 5_000


async def test_a_telegram_message_held_for_coalescing_is_not_confirmed_and_does_not_block_the_next_one(
    telegram: TelegramServer,
) -> None:
    """The server may hold a message to join it with the next ones. None is confirmed before all are stored."""
    held, connector_state, both = list[str](), InMemoryConnectorState(), asyncio.Event()

    async def accept(incoming: InboundMessage) -> None:
        held.append(incoming.text)
        if len(held) == 2:
            assert KEY not in connector_state.entries
            both.set()
        await both.wait()

    listener = asyncio.create_task(bot(telegram, connector_state=connector_state).listen(accept))
    telegram.person_sends("what is")
    await wait_until_true(lambda: held == ["what is"])
    telegram.person_sends("on today?")
    await wait_until_true(lambda: KEY in connector_state.entries and get_offset(connector_state) == 5_002)
    listener.cancel()
    await asyncio.gather(listener, return_exceptions=True)

    assert held == ["what is", "on today?"]


async def test_telegram_messages_of_one_channel_keep_their_order_when_the_first_must_be_retried(
    telegram: TelegramServer,
) -> None:
    server, tries = TelegramSetup(), 0
    next_offered, tried_again, stored = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def accept(incoming: InboundMessage) -> Receipt | None:
        nonlocal tries
        if incoming.text == "slow, then lost":
            tries += 1
            if tries == 1:
                await next_offered.wait()
                raise StoreError("the disk is full", code="store.disk_full")
            tried_again.set()
            for _ in range(10):
                await asyncio.sleep(0)  # an update that was not taken back would overtake it here
            receipt = await server.accept(incoming)
            stored.set()
            return receipt
        if tries == 1:
            next_offered.set()
            await tried_again.wait()  # still being offered when the other one fails
        else:
            await stored.wait()  # the server stores the messages of a channel in the order of the calls
        return await server.accept(incoming)

    server_like = TelegramSetup()
    server_like.accept = accept  # type: ignore[method-assign]
    telegram.person_sends("slow, then lost")
    telegram.person_sends("after it")
    async with listen_in_background(bot(telegram), server_like):
        await server.wait_for_messages(2)

    assert server.texts == ["slow, then lost", "after it"]


async def test_a_telegram_update_is_polled_again_after_a_crash_before_its_offset_was_stored(
    telegram: TelegramServer,
) -> None:
    class FailingConnectorState(InMemoryConnectorState):
        async def put(self, key: str, value: str) -> None:
            if key == KEY:
                raise asyncio.CancelledError

    server = TelegramSetup()
    telegram.person_sends("one")
    task = asyncio.create_task(bot(telegram, connector_state=FailingConnectorState()).listen(server.accept))
    await asyncio.gather(task, return_exceptions=True)

    async with listen_in_background(bot(telegram), server):
        await server.wait_for_messages(2)

    assert [each.message_id for each in server.received] == [server.received[0].message_id] * 2


@pytest.mark.spec("D57")
@pytest.mark.parametrize("damaged", ["{", "777", "777 abc 1", "9" * 500, "777 5001 -1"])
async def test_a_damaged_poll_offset_is_kept_for_inspection_and_no_update_is_missed(
    telegram: TelegramServer, caplog: pytest.LogCaptureFixture, damaged: str
) -> None:
    connector_state, server = InMemoryConnectorState({KEY: damaged}), TelegramSetup()
    telegram.person_sends("one")

    async with listen_in_background(bot(telegram, connector_state=connector_state), server):
        await server.wait_for_messages(1)
        await wait_until_true(lambda: bool(connector_state.entries[KEY]))

    assert get_offset(connector_state) == 5_001
    assert connector_state.entries[DAMAGED_KEY] == damaged[:200]
    assert [each.message for each in caplog.records if each.levelno >= logging.WARNING] == [
        "stored offset is damaged and ignored"
    ]


async def test_the_stored_poll_offset_of_another_telegram_bot_is_ignored(telegram: TelegramServer) -> None:
    connector_state = InMemoryConnectorState({KEY: str(PollOffset(bot=1, update_id=999_999, at=RealClock().now()))})
    server = TelegramSetup()
    telegram.person_sends("one")

    async with listen_in_background(bot(telegram, connector_state=connector_state), server):
        await server.wait_for_messages(1)

    assert server.texts == ["one"]


def test_a_poll_offset_is_invalid_after_its_lifetime_or_for_another_bot() -> None:
    offset = PollOffset(bot=777, update_id=5, at=ACCEPTED_AT)

    assert offset.is_valid(bot=777, now=ACCEPTED_AT + timedelta(days=1))
    assert not offset.is_valid(bot=777, now=ACCEPTED_AT + VALID_FOR)
    assert not offset.is_valid(bot=778, now=ACCEPTED_AT)
    assert parse_offset(str(offset)) == offset


async def test_a_telegram_update_that_a_poll_returns_twice_is_received_once(telegram: TelegramServer) -> None:
    server = TelegramSetup()
    telegram.person_sends("one")
    telegram.updates *= 2

    async with listen_in_background(bot(telegram), server):
        await server.wait_for_messages(1)

    assert server.texts == ["one"]


async def test_several_polled_batches_of_telegram_updates_are_received_in_order(telegram: TelegramServer) -> None:
    server = TelegramSetup()
    for number in range(250):
        telegram.person_sends(str(number))

    async with listen_in_background(bot(telegram), server):
        await server.wait_for_messages(250)

    assert server.texts == [str(number) for number in range(250)]


async def test_a_telegram_album_at_the_end_of_a_full_polled_batch_is_received_in_full(telegram: TelegramServer) -> None:
    server = TelegramSetup()
    for number in range(98):
        telegram.person_sends(str(number))
    for _ in range(4):
        telegram.person_sends_file("photo", b"1", album="g1")

    async with listen_in_background(bot(telegram), server):
        await server.wait_for_messages(99)

    assert [len(each.files) for each in server.received] == [0] * 98 + [4]


@pytest.mark.parametrize(
    "fault",
    [
        TelegramFault(breaks=True),
        TelegramFault(breaks=True, arrives=True),
        TelegramFault(hangs=True),
        TelegramFault(status=502, body=b"<html>Bad Gateway</html>"),
        TelegramFault(status=500, description="Internal Server Error"),
        TelegramFault(body=b"{", status=200),
        throttle_fault(1),
    ],
    ids=["breaks", "breaks-after", "half-open", "502", "500", "garbage", "429"],
)
@pytest.mark.parametrize("method", ["getMe", "getUpdates"])
async def test_a_failed_telegram_request_raises_connection_lost_and_polling_recovers(
    telegram: TelegramServer, fault: TelegramFault, method: str
) -> None:
    server = TelegramSetup()
    telegram.will_fail(method, fault)
    telegram.person_sends("one")

    async with (
        skip_loop_time_on_increase(REQUEST_TIMEOUT_S + 1, count=lambda: telegram.hang_count),
        listen_in_background(bot(telegram, poll_s=1), server) as lost,
    ):
        await server.wait_for_messages(1)

    assert server.texts == ["one"]
    assert [type(each) for each in lost] == [ConnectionLost]
    assert telegram.token not in "".join(map(str, lost))


async def test_polling_recovers_after_a_telegram_restart(telegram: TelegramServer) -> None:
    server = TelegramSetup()
    async with listen_in_background(bot(telegram), server) as lost:
        telegram.person_sends("one")
        await server.wait_for_messages(1)
        await telegram.stop()
        await wait_until_true(lambda: bool(lost))
        await telegram.start()
        telegram.person_sends("two")
        await server.wait_for_messages(2)

    assert server.texts == ["one", "two"]


async def test_throttled_polling_reports_the_retry_delay(telegram: TelegramServer) -> None:
    telegram.will_fail("getUpdates", throttle_fault(17))

    lost = await listen_until_connection_lost(bot(telegram), TelegramSetup())

    assert (lost.retry_after_s, lost.needs_owner) == (17, False)


@pytest.mark.spec("H75")
async def test_a_conflicting_poller_increases_the_retry_delay_each_time(telegram: TelegramServer) -> None:
    connector, server, waits = bot(telegram), TelegramSetup(), list[float]()
    conflict = TelegramFault(status=409, description="Conflict: terminated by other getUpdates request")
    for _ in range(8):
        telegram.will_fail("getUpdates", conflict)
        lost = await listen_until_connection_lost(connector, server)
        assert (lost.code, lost.needs_owner) == ("telegram.bot_in_use", False)
        assert lost.retry_after_s is not None
        waits.append(lost.retry_after_s)
    telegram.person_sends("one")

    async with listen_in_background(connector, server):
        await server.wait_for_messages(1)

    assert waits[0] < waits[3] < CONFLICT_S_MAX * (1 + CONFLICT_JITTER)
    assert max(waits) <= CONFLICT_S_MAX * (1 + CONFLICT_JITTER)


@pytest.mark.spec("H75")
async def test_one_of_two_pollers_of_the_same_bot_gets_a_conflict_error(telegram: TelegramServer) -> None:
    server = TelegramSetup()
    first = asyncio.create_task(bot(telegram, poll_s=50).listen(server.accept))  # one poll for the whole test
    await wait_until_true(lambda: telegram.poll_count == 1)
    second = asyncio.create_task(bot(telegram).listen(server.accept))

    done, _ = await asyncio.wait([first, second], return_when=asyncio.FIRST_COMPLETED)
    second.cancel()
    await asyncio.gather(first, second, return_exceptions=True)

    assert done == {first}
    assert isinstance(lost := first.exception(), ConnectionLost)
    assert lost.sentence == "another program receives the updates of this bot"


async def test_polling_with_an_existing_telegram_webhook_needs_the_owner_unless_clear_webhook_is_set(
    telegram: TelegramServer,
) -> None:
    telegram.webhook = "https://elsewhere.example/hook"
    server = TelegramSetup()

    lost = await listen_until_connection_lost(bot(telegram), server)
    telegram.person_sends("one")
    async with listen_in_background(bot(telegram, clear_webhook=True), server):
        await server.wait_for_messages(1)

    assert lost.needs_owner
    assert "clear_webhook" in lost.try_this


async def test_the_telegram_command_menu_is_set_once_and_removed_when_disabled(telegram: TelegramServer) -> None:
    connector_state, server = InMemoryConnectorState(), TelegramSetup()

    def list_menu_calls() -> list[str]:
        return [method for method, _ in telegram.calls if method.endswith("MyCommands")]

    async def poll_once(**settings: Any) -> None:
        polls = telegram.poll_count
        async with listen_in_background(bot(telegram, connector_state=connector_state, **settings), server):
            await wait_until_true(lambda: telegram.poll_count > polls)

    telegram.will_fail("setMyCommands", throttle_fault(17))
    await poll_once()  # it listens all the same
    assert telegram.commands_by_scope == {}
    await poll_once()
    await poll_once()
    (scope, menu) = telegram.commands_by_scope.popitem()
    assert scope == "all_private_chats"
    shown = {each["command"]: each["description"] for each in menu}
    assert shown["status"] == "show the status of this conversation" and "abort" not in shown
    assert list_menu_calls() == ["setMyCommands"]  # the throttled call is not recorded
    await poll_once(command_menu=False)
    await poll_once(command_menu=False)
    assert list_menu_calls() == ["setMyCommands", "deleteMyCommands"]
    await poll_once()
    assert list_menu_calls()[-1] == "setMyCommands" and telegram.commands_by_scope


@pytest.mark.parametrize("token", ["777:wrong", "not a token at all/../x", ""])
async def test_a_telegram_token_rejected_during_polling_needs_the_owner_and_is_not_in_the_error(
    telegram: TelegramServer, token: str
) -> None:
    lost = await listen_until_connection_lost(bot(telegram, token=token), TelegramSetup())

    assert (lost.needs_owner, lost.code) == (True, "connector.token_rejected")
    assert not token or token not in str(lost)


async def test_a_token_revoked_during_polling_needs_the_owner(telegram: TelegramServer) -> None:
    server = TelegramSetup()
    async with listen_in_background(bot(telegram, poll_s=1), server) as lost:
        await wait_until_true(lambda: telegram.poll_count > 0)
        telegram.revoke_token()
        await wait_until_true(lambda: any(isinstance(each, ConnectionLost) and each.needs_owner for each in lost))


async def test_polling_reports_an_unreachable_telegram_server_without_the_token() -> None:
    async with TelegramServer() as telegram:
        url, token = telegram.url, telegram.token

    lost = await listen_until_connection_lost(bot(url), TelegramSetup())

    assert "cannot reach" in lost.sentence
    assert token not in str(lost)
    assert lost.__cause__ is None


async def test_polling_writes_neither_the_telegram_token_nor_message_texts_to_logs_and_errors(
    telegram: TelegramServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    server = TelegramSetup()
    telegram.will_fail(
        "getUpdates", TelegramFault(breaks=True), TelegramFault(status=400, description=f"no /bot{telegram.token}/x")
    )
    telegram.person_sends("a secret thing")

    async with listen_in_background(bot(telegram), server) as lost:
        await server.wait_for_messages(1)

    logged = caplog.text + "".join(map(str, lost))
    assert telegram.token not in logged
    assert "a secret thing" not in logged
    assert len(lost) == 2


async def test_polling_stores_a_telegram_group_move_before_the_server_accepts_it(telegram: TelegramServer) -> None:
    connector_state, server, known = InMemoryConnectorState(), TelegramSetup(), list[str | None]()
    server.before_accept = lambda incoming: (
        known.append(connector_state.entries.get("moved--55")) if incoming.kind is InboundKind.MOVED else None
    )
    telegram.add_group(-55, type="group")
    telegram.migrate_group(-55, -10055)

    async with listen_in_background(bot(telegram, connector_state=connector_state), server):
        await server.wait_for_messages(2)

    assert known == ["-10055", "-10055"]
