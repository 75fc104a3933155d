"""Whole conversations on IRC, by ngIRCd, with a house in a process of its own that is killed in the midst of them.

ngIRCd has no accounts, so nobody there is anybody for certain: whoever is answered is so because a door is open. What
an account changes is asked of a server that says what newer ones say.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator

import pytest
from connectors.irc_instance import ToldServer
from connectors.server_process import AFTER_ACCEPT, BETWEEN_PARTS, IN_DOUBT, RealHouse, real_house
from flows.fake_provider import says

from retinue.testing.fault_kit.irc_peer import IrcPerson, NgircdServer
from retinue.testing.wait_conditions import wait_until

HOME, GARDEN = "#home", "#garden"
SETTINGS = """
[connectors.irc]
kind = "irc"
host = "127.0.0.1"
port = PORT
tls = false
nick = "house"
rooms = ["#home", "#garden"]
flood_lines = 1000
dm = "open"
group_policy = "allowlist"
group_allow_from = ["*"]

[connectors.irc.groups."#home"]
activation = "mention"

[connectors.strict]
kind = "irc"
host = "127.0.0.1"
port = PORT
tls = false
nick = "porter"
dm = "pairing"

[connectors.newer]
kind = "irc"
host = "127.0.0.1"
port = NEWER
tls = false
nick = "house"
"""
pytestmark = pytest.mark.timeout(300)  # a house is opened again and again, on a machine that may be busy
LONG = "\n\n".join(f"{number}. " + "words that go on " * 40 for number in range(1, 6))


def newer(line: str) -> list[str]:
    """A server with accounts, as far as it is asked."""
    match line.split():
        case ["CAP", "LS", *_]:
            return [":s CAP * LS :message-tags account-tag"]
        case ["CAP", "REQ", *names]:
            return [f":s CAP * ACK {' '.join(names)}"]
        case ["CAP", "END"]:
            return [":s 001 house :Welcome house!h@host", ":s 376 house :end"]
        case ["PING", token]:
            return [f":s PONG s {token}"]
        case ["WHOIS", nick]:
            about = f"house {nick}"
            return [f":s 311 {about} m h * :Maria", f":s 330 {about} maria :is logged in as", f":s 318 {about} :end"]
        case _:
            return []


@pytest.fixture(scope="module")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[NgircdServer]:
    server = NgircdServer(tmp_path_factory.mktemp("ngircd"))
    await server.open()
    yield server
    await server.close()


@pytest.fixture(scope="module")
async def accounts() -> AsyncGenerator[ToldServer]:
    async with ToldServer(newer) as server:
        yield server


@pytest.fixture(scope="module")
async def standing(
    server: NgircdServer, accounts: ToldServer, tmp_path_factory: pytest.TempPathFactory
) -> AsyncGenerator[RealHouse]:
    settings = SETTINGS.replace("PORT", str(server.port)).replace("NEWER", str(accounts.port))
    async with real_house(tmp_path_factory.mktemp("irc"), settings, secrets={}) as house:
        await house.retinue("identity", "link", "owner", "newer", "--id", "account:maria")
        yield house


@pytest.fixture
async def maria(server: NgircdServer) -> AsyncGenerator[IrcPerson]:
    person = IrcPerson(server.port)
    await person.connect(HOME, GARDEN)
    yield person
    await person.disconnect()


@pytest.fixture
async def house(standing: RealHouse, maria: IrcPerson) -> AsyncGenerator[RealHouse]:
    """Once it is in its rooms."""
    if not standing.is_open:
        await standing.open()
    await inside(maria)
    yield standing
    await standing.holds()


async def inside(person: IrcPerson) -> None:
    async def came() -> bool:
        return "house" in await person.list_names(HOME) and "house" in await person.list_names(GARDEN)

    await wait_until(came, "the house is in its rooms", poll_s=0.05)


async def connected(person: IrcPerson, nick: str) -> None:
    """Until somebody with this nick is on the server, as the server has it. They need not be in a room."""

    async def is_on() -> bool:
        before = len(person.lines)
        person.send_lines(f"ISON {nick}")
        await person.wait_until_read()
        return any(" 303 " in line and nick in line.rpartition(":")[2].split() for line in person.lines[before:])

    await wait_until(is_on, f"{nick} is on the server", poll_s=0.05, describe=lambda: person.lines[-10:])


def read(person: IrcPerson, room: str) -> list[str]:
    return [text for _, where, text in person.received if where == room]


async def answered(person: IrcPerson, word: str, *, room: str = HOME) -> None:
    await wait_until(
        lambda: any(word in text for text in read(person, room)),
        f"an answer with {word!r} is there",
        describe=lambda: person.received,
    )


async def test_whoever_names_the_house_is_answered_in_that_room_and_alone_where_they_asked_alone(
    house: RealHouse, maria: IrcPerson
) -> None:
    # First what is not answered: lines are read in order, so it was read when a later line is answered.
    await maria.say(HOME, "not to you, ask-nobody")  # its name anywhere in a line would be a mention
    await maria.say(GARDEN, "house: ask-garden")
    await maria.say(HOME, "house: what about ask-room?")
    await answered(maria, "An answer to ask-room.")
    await maria.say("house", "and what about ask-alone?")
    await answered(maria, "An answer to ask-alone.", room="maria")
    await house.until_quiet()

    assert read(maria, HOME) == ["An answer to ask-room."]
    assert read(maria, "maria") == ["An answer to ask-alone."]
    assert read(maria, GARDEN) == []


async def test_a_nick_that_nobody_vouches_for_is_told_nothing_and_shown_no_code(
    house: RealHouse, maria: IrcPerson
) -> None:
    await connected(maria, "porter")  # it is in no room, and may have lost its connection in another test
    await maria.say("porter", "let me in, ask-porter")
    await maria.say("house", "and now ask-open")
    await answered(maria, "An answer to ask-open.", room="maria")
    await wait_until(
        lambda: house.rows("select 1 from envelopes where text like '%wrote to strict%'"), "the owner is told"
    )
    await house.until_quiet()

    assert read(maria, "maria") == ["An answer to ask-open."]
    assert (await house.call("pairing.list"))["pairings"] == []


async def test_the_owner_is_known_by_an_account_and_by_nothing_else(house: RealHouse, accounts: ToldServer) -> None:
    def told() -> list[str]:
        return [line for line in accounts.read if line.startswith("PRIVMSG")]

    await wait_until(lambda: "CAP END" in accounts.current, "the server is connected")
    accounts.say(":maria!m@example.org PRIVMSG house :ask-without")
    accounts.say("@account=mallory :maria!m@example.org PRIVMSG house :ask-other")
    accounts.say("@account=maria :maria!m@example.org PRIVMSG house :ask-account")
    await wait_until(told, "an answer is there", describe=lambda: accounts.read)
    await house.until_quiet()

    assert told() == ["PRIVMSG maria :An answer to ask-account."]


async def test_a_long_answer_comes_line_by_line_in_order(house: RealHouse, maria: IrcPerson) -> None:
    house.said["ask-long"] = says(LONG)
    await maria.say(HOME, "house: at length, ask-long")
    await answered(maria, "5. ")
    await house.until_quiet()
    await maria.wait_until_read()

    lines = read(maria, HOME)
    assert len(lines) > 5
    assert " ".join(lines).split() == LONG.split()


async def test_a_killed_house_answers_once_and_sends_nothing_again_that_may_have_arrived(
    house: RealHouse, maria: IrcPerson
) -> None:
    cut_off = LONG.replace("words", "parts")
    house.said["ask-cut-off"] = says(cut_off)
    await house.reopen(dies_at=AFTER_ACCEPT)
    await inside(maria)
    await maria.say(HOME, "house: are you there, ask-accepted?")
    await house.dies()
    await house.open(dies_at=BETWEEN_PARTS)
    await answered(maria, "An answer to ask-accepted.")
    await maria.say(HOME, "house: something long, ask-cut-off")
    await house.dies()
    await house.open(dies_at=IN_DOUBT)
    await inside(maria)
    await maria.say("house", "something short, ask-doubt")
    await house.dies()
    await house.open()
    await inside(maria)
    await maria.say(HOME, "house: and then, ask-after?")
    await answered(maria, "An answer to ask-after.")
    await house.until_quiet()

    accepted, part, after = read(maria, HOME)
    assert (accepted, after) == ("An answer to ask-accepted.", "An answer to ask-after.")
    assert " ".join(cut_off.split()).startswith(part)
    assert read(maria, "maria") == ["An answer to ask-doubt."]
    assert read(maria, GARDEN) == []
    assert house.outcomes("5. parts that go on") == ["interrupted"]
    assert house.outcomes("An answer to ask-doubt") == ["interrupted"]


async def test_a_server_that_comes_back_finds_the_house_in_its_rooms_again(
    house: RealHouse, server: NgircdServer, maria: IrcPerson
) -> None:
    await server.close()
    await server.open()
    back = IrcPerson(server.port, nick="maria2")
    await back.connect(HOME, GARDEN)
    try:
        await inside(back)
        await back.say(HOME, "house: there again, ask-again?")
        await answered(back, "An answer to ask-again.")
    finally:
        await back.disconnect()

    assert read(back, HOME) == ["An answer to ask-again."]
