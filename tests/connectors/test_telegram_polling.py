"""Nothing that is said is lost or confirmed too early, whatever happens to the line, to Telegram or to the house."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from datetime import timedelta
from typing import Any

import pytest
from connectors.telegram_instance import LIMIT_S, MOMENT, House, Words, bot, listening, until

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


def offset_in(shelf: Words) -> int:
    offset = parse_offset(shelf.kept[KEY])
    assert offset is not None
    return offset.update_id


async def lost_by(connector: TelegramConnector, house: House) -> ConnectionLost:
    with pytest.raises(ConnectionLost) as lost:
        await connector.listen(house.accept)
    return lost.value


@pytest.mark.spec("D57")
async def test_the_offset_is_kept_once_the_house_has_everything_before_it(telegram: TelegramServer) -> None:
    shelf, house = Words(), House()
    kept_before = list[bool]()
    house.before = lambda _: kept_before.append(KEY in shelf.kept)
    for text in ("one", "two", "three"):
        telegram.person_sends(text)

    async with listening(bot(telegram, shelf=shelf), house):
        await house.until_heard(3)
        await until(lambda: KEY in shelf.kept)

    assert house.texts == ["one", "two", "three"]
    assert kept_before == [False, False, False]
    assert offset_in(shelf) == 5_003


@pytest.mark.spec("D57")
async def test_a_house_that_comes_back_goes_on_where_it_was(telegram: TelegramServer) -> None:
    shelf, house = Words(), House()
    telegram.person_sends("one")
    async with listening(bot(telegram, shelf=shelf), house):
        await until(lambda: KEY in shelf.kept)
    telegram.person_sends("two, while nobody was there")

    async with listening(bot(telegram, shelf=shelf), house):
        await house.until_heard(2)

    assert house.texts == ["one", "two, while nobody was there"]


async def test_what_the_house_could_not_take_is_offered_again(telegram: TelegramServer) -> None:
    shelf, house = Words(), House()
    house.will_lose = 2
    telegram.person_sends("one")
    telegram.person_sends("two")

    async with listening(bot(telegram, shelf=shelf), house):
        await house.until_heard(2)
        await until(lambda: shelf.kept.get(KEY, "").split()[1:2] == ["5002"])

    assert house.texts == ["one", "two"]


async def test_what_one_room_could_not_take_holds_up_no_other_and_is_not_confirmed(telegram: TelegramServer) -> None:
    telegram.add_group(-1001)
    shelf, house = Words(), House()

    def full_for_the_group(incoming: InboundMessage) -> None:
        if incoming.room == "-1001" and house.offered < 6:
            house.will_lose = 1

    house.before = full_for_the_group
    telegram.person_sends("mine")
    telegram.person_sends("the group's", chat_id=-1001)
    telegram.person_sends("mine, too")

    async with listening(bot(telegram, shelf=shelf), house):
        await until(lambda: "the group's" in house.texts)

    assert set(house.texts) == {"mine", "the group's", "mine, too"}
    offsets = [int(value.split()[1]) for key, value in shelf.puts if key == KEY]
    assert offsets[0] == 5_001  # up to the group's, and not beyond


async def test_a_room_whose_mail_takes_long_keeps_no_other_waiting_and_is_not_confirmed(
    telegram: TelegramServer,
) -> None:
    telegram.add_group(-1001)
    shelf, house, downloaded = Words(), House(), asyncio.Event()

    async def accept(incoming: InboundMessage) -> Receipt | None:
        if incoming.text == "a film":
            await downloaded.wait()
        return await house.accept(incoming)

    listener = asyncio.create_task(bot(telegram, shelf=shelf).listen(accept))
    telegram.person_sends("a film")
    telegram.person_sends("hello", chat_id=-1001)
    await house.until_heard(1)
    telegram.person_sends("still there?", chat_id=-1001)
    await house.until_heard(2)
    kept_meanwhile = offset_in(shelf) if KEY in shelf.kept else 5_000
    downloaded.set()
    await until(lambda: KEY in shelf.kept and offset_in(shelf) == 5_003)
    listener.cancel()
    await asyncio.gather(listener, return_exceptions=True)

    assert house.texts == ["hello", "still there?", "a film"]
    assert kept_meanwhile == 5_000


async def test_words_that_wait_for_more_words_get_them(telegram: TelegramServer) -> None:
    """A house may hold what somebody says until they pause; none of it is confirmed before all of it is stored."""
    held, shelf, both = list[str](), Words(), asyncio.Event()

    async def accept(incoming: InboundMessage) -> None:
        held.append(incoming.text)
        if len(held) == 2:
            assert KEY not in shelf.kept
            both.set()
        await both.wait()

    listener = asyncio.create_task(bot(telegram, shelf=shelf).listen(accept))
    telegram.person_sends("what is")
    await until(lambda: held == ["what is"])
    telegram.person_sends("on today?")
    await until(lambda: KEY in shelf.kept and offset_in(shelf) == 5_002)
    listener.cancel()
    await asyncio.gather(listener, return_exceptions=True)

    assert held == ["what is", "on today?"]


async def test_nothing_overtakes_what_the_house_could_not_take_in_its_room(telegram: TelegramServer) -> None:
    house, tries, next_offered, tried_again = House(), 0, asyncio.Event(), asyncio.Event()

    async def accept(incoming: InboundMessage) -> Receipt | None:
        nonlocal tries
        if incoming.text == "slow, then lost":
            tries += 1
            if tries == 1:
                await next_offered.wait()
                raise StoreError("the disk is full", code="store.disk_full")
            tried_again.set()
            for _ in range(10):
                await asyncio.sleep(0)  # what was not taken back would overtake it here
        elif tries == 1:
            next_offered.set()
            await tried_again.wait()  # still on offer when the other is lost
        return await house.accept(incoming)

    house_like = House()
    house_like.accept = accept  # type: ignore[method-assign]
    telegram.person_sends("slow, then lost")
    telegram.person_sends("after it")
    async with listening(bot(telegram), house_like):
        await house.until_heard(2)

    assert house.texts == ["slow, then lost", "after it"]


async def test_a_crash_between_accepting_and_keeping_the_offset_offers_it_again(telegram: TelegramServer) -> None:
    class Broken(Words):
        async def put(self, key: str, value: str) -> None:
            if key == KEY:
                raise asyncio.CancelledError

    house = House()
    telegram.person_sends("one")
    task = asyncio.create_task(bot(telegram, shelf=Broken()).listen(house.accept))
    await asyncio.gather(task, return_exceptions=True)

    async with listening(bot(telegram), house):
        await house.until_heard(2)

    assert [each.message_id for each in house.heard] == [house.heard[0].message_id] * 2


@pytest.mark.spec("D57")
@pytest.mark.parametrize("damaged", ["{", "777", "777 abc 1", "9" * 500, "777 5001 -1"])
async def test_a_damaged_offset_is_put_aside_and_nothing_is_missed(
    telegram: TelegramServer, caplog: pytest.LogCaptureFixture, damaged: str
) -> None:
    shelf, house = Words({KEY: damaged}), House()
    telegram.person_sends("one")

    async with listening(bot(telegram, shelf=shelf), house):
        await house.until_heard(1)
        await until(lambda: bool(shelf.kept[KEY]))

    assert offset_in(shelf) == 5_001
    assert shelf.kept[DAMAGED_KEY] == damaged[:200]
    assert [each.message for each in caplog.records if each.levelno >= logging.WARNING] == [
        "stored offset is damaged and ignored"
    ]


async def test_the_offset_of_another_bot_is_not_used(telegram: TelegramServer) -> None:
    shelf = Words({KEY: str(PollOffset(bot=1, update_id=999_999, at=RealClock().now()))})
    house = House()
    telegram.person_sends("one")

    async with listening(bot(telegram, shelf=shelf), house):
        await house.until_heard(1)

    assert house.texts == ["one"]


def test_an_offset_means_nothing_after_telegram_may_have_counted_anew() -> None:
    offset = PollOffset(bot=777, update_id=5, at=MOMENT)

    assert offset.is_valid(bot=777, now=MOMENT + timedelta(days=1))
    assert not offset.is_valid(bot=777, now=MOMENT + VALID_FOR)
    assert not offset.is_valid(bot=778, now=MOMENT)
    assert parse_offset(str(offset)) == offset


async def test_what_telegram_tells_twice_at_once_is_one_message_with_its_words_once(telegram: TelegramServer) -> None:
    house = House()
    telegram.person_sends("one")
    telegram.updates *= 2

    async with listening(bot(telegram), house):
        await house.until_heard(1)

    assert house.texts == ["one"]


async def test_more_than_one_batch_is_heard_in_order(telegram: TelegramServer) -> None:
    house = House()
    for number in range(250):
        telegram.person_sends(str(number))

    async with listening(bot(telegram), house):
        await house.until_heard(250)

    assert house.texts == [str(number) for number in range(250)]


async def test_an_album_at_the_end_of_a_full_batch_is_not_cut(telegram: TelegramServer) -> None:
    house = House()
    for number in range(98):
        telegram.person_sends(str(number))
    for _ in range(4):
        telegram.person_sends_file("photo", b"1", album="g1")

    async with listening(bot(telegram), house):
        await house.until_heard(99)

    assert [len(each.files) for each in house.heard] == [0] * 98 + [4]


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
async def test_a_line_that_fails_is_lost_and_found_again(
    telegram: TelegramServer, fault: TelegramFault, method: str
) -> None:
    house = House()
    telegram.will_fail(method, fault)
    telegram.person_sends("one")

    async with (
        skip_loop_time_on_increase(LIMIT_S + 1, count=lambda: telegram.hang_count),
        listening(bot(telegram, poll_s=1), house) as lost,
    ):
        await house.until_heard(1)

    assert house.texts == ["one"]
    assert [type(each) for each in lost] == [ConnectionLost]
    assert telegram.token not in "".join(map(str, lost))


async def test_telegram_may_restart_while_we_listen(telegram: TelegramServer) -> None:
    house = House()
    async with listening(bot(telegram), house) as lost:
        telegram.person_sends("one")
        await house.until_heard(1)
        await telegram.stop()
        await until(lambda: bool(lost))
        await telegram.start()
        telegram.person_sends("two")
        await house.until_heard(2)

    assert house.texts == ["one", "two"]


async def test_being_throttled_says_for_how_long(telegram: TelegramServer) -> None:
    telegram.will_fail("getUpdates", throttle_fault(17))

    lost = await lost_by(bot(telegram), House())

    assert (lost.retry_after_s, lost.needs_owner) == (17, False)


@pytest.mark.spec("H75")
async def test_somebody_else_who_listens_is_made_room_for_longer_each_time(telegram: TelegramServer) -> None:
    connector, house, waits = bot(telegram), House(), list[float]()
    conflict = TelegramFault(status=409, description="Conflict: terminated by other getUpdates request")
    for _ in range(8):
        telegram.will_fail("getUpdates", conflict)
        lost = await lost_by(connector, house)
        assert (lost.code, lost.needs_owner) == ("telegram.bot_in_use", False)
        assert lost.retry_after_s is not None
        waits.append(lost.retry_after_s)
    telegram.person_sends("one")

    async with listening(connector, house):
        await house.until_heard(1)

    assert waits[0] < waits[3] < CONFLICT_S_MAX * (1 + CONFLICT_JITTER)
    assert max(waits) <= CONFLICT_S_MAX * (1 + CONFLICT_JITTER)


@pytest.mark.spec("H75")
async def test_of_two_who_listen_as_one_bot_one_is_told_so(telegram: TelegramServer) -> None:
    house = House()
    first = asyncio.create_task(bot(telegram).listen(house.accept))
    await until(lambda: telegram.poll_count == 1)
    second = asyncio.create_task(bot(telegram).listen(house.accept))

    done, _ = await asyncio.wait([first, second], return_when=asyncio.FIRST_COMPLETED)
    second.cancel()
    await asyncio.gather(first, second, return_exceptions=True)

    assert done == {first}
    assert isinstance(lost := first.exception(), ConnectionLost)
    assert lost.sentence == "another program receives the updates of this bot"


async def test_a_webhook_in_the_way_is_for_the_owner_unless_it_may_be_removed(telegram: TelegramServer) -> None:
    telegram.webhook = "https://elsewhere.example/hook"
    house = House()

    lost = await lost_by(bot(telegram), house)
    telegram.person_sends("one")
    async with listening(bot(telegram, clear_webhook=True), house):
        await house.until_heard(1)

    assert lost.needs_owner
    assert "clear_webhook" in lost.try_this


async def test_commands_stand_in_the_menu_of_the_bot_and_are_told_once(telegram: TelegramServer) -> None:
    shelf, house = Words(), House()

    def told() -> list[str]:
        return [method for method, _ in telegram.calls if method.endswith("MyCommands")]

    async def listens(**settings: Any) -> None:
        polls = telegram.poll_count
        async with listening(bot(telegram, shelf=shelf, **settings), house):
            await until(lambda: telegram.poll_count > polls)

    telegram.will_fail("setMyCommands", throttle_fault(17))
    await listens()  # it hears all the same
    assert telegram.commands_by_scope == {}
    await listens()
    await listens()
    (scope, menu) = telegram.commands_by_scope.popitem()
    assert scope == "all_private_chats"
    shown = {each["command"]: each["description"] for each in menu}
    assert shown["status"] == "show the status of this conversation" and "abort" not in shown
    assert told() == ["setMyCommands"]  # the one that was throttled is not among the calls that arrived
    await listens(command_menu=False)
    await listens(command_menu=False)
    assert told() == ["setMyCommands", "deleteMyCommands"]
    await listens()
    assert told()[-1] == "setMyCommands" and telegram.commands_by_scope


@pytest.mark.parametrize("token", ["777:wrong", "not a token at all/../x", ""])
async def test_a_token_that_is_refused_is_for_the_owner_and_is_not_repeated(
    telegram: TelegramServer, token: str
) -> None:
    lost = await lost_by(bot(telegram, token=token), House())

    assert (lost.needs_owner, lost.code) == (True, "connector.token_rejected")
    assert not token or token not in str(lost)


async def test_a_token_revoked_while_we_listen_is_for_the_owner(telegram: TelegramServer) -> None:
    house = House()
    async with listening(bot(telegram, poll_s=1), house) as lost:
        await until(lambda: telegram.poll_count > 0)
        telegram.revoke_token()
        await until(lambda: any(isinstance(each, ConnectionLost) and each.needs_owner for each in lost))


async def test_no_line_at_all_is_said_without_the_token() -> None:
    async with TelegramServer() as telegram:
        url, token = telegram.url, telegram.token

    lost = await lost_by(bot(url), House())

    assert "cannot reach" in lost.sentence
    assert token not in str(lost)
    assert lost.__cause__ is None


async def test_no_log_line_has_the_token_or_what_was_said(
    telegram: TelegramServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    house = House()
    telegram.will_fail(
        "getUpdates", TelegramFault(breaks=True), TelegramFault(status=400, description=f"no /bot{telegram.token}/x")
    )
    telegram.person_sends("a secret thing")

    async with listening(bot(telegram), house) as lost:
        await house.until_heard(1)

    said = caplog.text + "".join(map(str, lost))
    assert telegram.token not in said
    assert "a secret thing" not in said
    assert len(lost) == 2


async def test_a_move_is_known_before_the_house_hears_of_it(telegram: TelegramServer) -> None:
    shelf, house, known = Words(), House(), list[str | None]()
    house.before = lambda incoming: (
        known.append(shelf.kept.get("moved--55")) if incoming.kind is InboundKind.MOVED else None
    )
    telegram.add_group(-55, type="group")
    telegram.migrate_group(-55, -10055)

    async with listening(bot(telegram, shelf=shelf), house):
        await house.until_heard(2)

    assert known == ["-10055", "-10055"]
