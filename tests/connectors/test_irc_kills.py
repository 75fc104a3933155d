"""Test conversations on IRC through ngIRCd, with a server process that is killed in between.

ngIRCd has no accounts, so no sender is verified there: senders are answered only where the access policy is open. What
accounts change is tested with a scripted server.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator

import pytest
from connectors.irc_instance import ScriptedIrcServer
from connectors.server_process import (
    AFTER_ACCEPT,
    AFTER_PLATFORM_SEND,
    BETWEEN_PARTS,
    ServerWithProvider,
    open_server_with_provider,
)
from flows.fake_provider import says

from retinue.testing.fault_kit.irc_peer import IrcPerson, NgircdServer
from retinue.testing.wait_conditions import wait_until

HOME, GARDEN = "#home", "#garden"
SETTINGS = """
[connectors.irc]
platform = "irc"
host = "127.0.0.1"
port = PORT
tls = false
nick = "retinue"
channels = ["#home", "#garden"]
flood_lines = 1000
dm_policy = "open"
group_policy = "allowlist"
group_allow_from = ["*"]

[connectors.irc.groups."#home"]
activation = "mention"

[connectors.strict]
platform = "irc"
host = "127.0.0.1"
port = PORT
tls = false
nick = "porter"
dm_policy = "pairing"

[connectors.newer]
platform = "irc"
host = "127.0.0.1"
port = NEWER
tls = false
nick = "retinue"
"""
pytestmark = pytest.mark.timeout(300)  # a server starts many times, on a machine that may be busy
LONG = "\n\n".join(f"{number}. " + "words that go on " * 40 for number in range(1, 6))


def reply_like_server_with_accounts(line: str) -> list[str]:
    """Reply as a server with accounts does, as far as these tests need it."""
    match line.split():
        case ["CAP", "LS", *_]:
            return [":s CAP * LS :message-tags account-tag"]
        case ["CAP", "REQ", *names]:
            return [f":s CAP * ACK {' '.join(names)}"]
        case ["CAP", "END"]:
            return [":s 001 retinue :Welcome retinue!h@host", ":s 376 retinue :end"]
        case ["PING", token]:
            return [f":s PONG s {token}"]
        case ["WHOIS", nick]:
            about = f"retinue {nick}"
            return [f":s 311 {about} m h * :Maria", f":s 330 {about} maria :is logged in as", f":s 318 {about} :end"]
        case _:
            return []


@pytest.fixture(scope="module")
async def irc_server(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[NgircdServer]:
    irc_server = NgircdServer(tmp_path_factory.mktemp("ngircd"))
    await irc_server.open()
    yield irc_server
    await irc_server.close()


@pytest.fixture(scope="module")
async def accounts_server() -> AsyncGenerator[ScriptedIrcServer]:
    async with ScriptedIrcServer(reply_like_server_with_accounts) as irc_server:
        yield irc_server


@pytest.fixture(scope="module")
async def shared_server(
    irc_server: NgircdServer, accounts_server: ScriptedIrcServer, tmp_path_factory: pytest.TempPathFactory
) -> AsyncGenerator[ServerWithProvider]:
    settings = SETTINGS.replace("PORT", str(irc_server.port)).replace("NEWER", str(accounts_server.port))
    async with open_server_with_provider(tmp_path_factory.mktemp("irc"), settings, secrets={}) as server:
        await server.retinue("identity", "link", "owner", "newer", "--id", "account:maria")
        yield server


@pytest.fixture
async def maria(irc_server: NgircdServer) -> AsyncGenerator[IrcPerson]:
    person = IrcPerson(irc_server.port)
    await person.connect(HOME, GARDEN)
    yield person
    await person.disconnect()


@pytest.fixture
async def server(shared_server: ServerWithProvider, maria: IrcPerson) -> AsyncGenerator[ServerWithProvider]:
    """The server, once it is in its channels."""
    if not shared_server.is_open:
        await shared_server.open()
    await wait_until_in_channels(maria)
    yield shared_server
    await shared_server.check_nothing_is_lost()


async def wait_until_in_channels(person: IrcPerson) -> None:
    async def is_in_channels() -> bool:
        return "retinue" in await person.list_names(HOME) and "retinue" in await person.list_names(GARDEN)

    await wait_until(is_in_channels, "the bot is in its channels", poll_s=0.05)


async def wait_until_online(person: IrcPerson, nick: str) -> None:
    """Wait until the IRC server lists this nick as online. It need not be in a channel."""

    async def is_on() -> bool:
        before = len(person.lines)
        person.send_lines(f"ISON {nick}")
        await person.wait_until_read()
        return any(" 303 " in line and nick in line.rpartition(":")[2].split() for line in person.lines[before:])

    await wait_until(is_on, f"{nick} is on the server", poll_s=0.05, describe=lambda: person.lines[-10:])


def read(person: IrcPerson, channel: str) -> list[str]:
    return [text for _, where, text in person.received if where == channel]


async def wait_for_text(person: IrcPerson, word: str, *, channel: str = HOME) -> None:
    await wait_until(
        lambda: any(word in text for text in read(person, channel)),
        f"an answer with {word!r} is there",
        describe=lambda: person.received,
    )


async def test_a_mention_is_answered_in_its_irc_channel_and_a_direct_message_privately(
    server: ServerWithProvider, maria: IrcPerson
) -> None:
    # First a message without an answer: lines are read in order, so it was read when a later line is answered.
    await maria.say(HOME, "not to you, ask-nobody")  # the bot's nick anywhere in a line would be a mention
    await maria.say(GARDEN, "retinue: ask-garden")
    await maria.say(HOME, "retinue: what about ask-room?")
    await wait_for_text(maria, "An answer to ask-room.")
    await maria.say("retinue", "and what about ask-alone?")
    await wait_for_text(maria, "An answer to ask-alone.", channel="maria")
    await server.wait_until_idle()

    assert read(maria, HOME) == ["An answer to ask-room."]
    assert read(maria, "maria") == ["An answer to ask-alone."]
    assert read(maria, GARDEN) == []


async def test_an_irc_nick_without_an_account_gets_no_reply_and_no_pairing_code(
    server: ServerWithProvider, maria: IrcPerson
) -> None:
    await wait_until_online(maria, "porter")  # it is in no channel, and may have lost its connection in another test
    await maria.say("porter", "let me in, ask-porter")
    await maria.say("retinue", "and now ask-open")
    await wait_for_text(maria, "An answer to ask-open.", channel="maria")
    await wait_until(
        lambda: server.query_database("select 1 from envelopes where text like '%wrote to strict%'"),
        "the owner is notified",
    )
    await server.wait_until_idle()

    assert read(maria, "maria") == ["An answer to ask-open."]
    assert (await server.call("pairing.list"))["pairings"] == []


async def test_the_owner_is_recognized_only_by_the_irc_account(
    server: ServerWithProvider, accounts_server: ScriptedIrcServer
) -> None:
    def list_sent_messages() -> list[str]:
        return [line for line in accounts_server.read if line.startswith("PRIVMSG")]

    await wait_until(lambda: "CAP END" in accounts_server.current, "the server is connected")
    accounts_server.say(":maria!m@example.org PRIVMSG retinue :ask-without")
    accounts_server.say("@account=mallory :maria!m@example.org PRIVMSG retinue :ask-other")
    accounts_server.say("@account=maria :maria!m@example.org PRIVMSG retinue :ask-account")
    await wait_until(list_sent_messages, "an answer is there", describe=lambda: accounts_server.read)
    await server.wait_until_idle()

    assert list_sent_messages() == ["PRIVMSG maria :An answer to ask-account."]


async def test_a_long_answer_is_sent_to_irc_as_lines_in_order(server: ServerWithProvider, maria: IrcPerson) -> None:
    server.replies["ask-long"] = says(LONG)
    await maria.say(HOME, "retinue: at length, ask-long")
    await wait_for_text(maria, "5. ")
    await server.wait_until_idle()
    await maria.wait_until_read()

    lines = read(maria, HOME)
    assert len(lines) > 5
    assert " ".join(lines).split() == LONG.split()


async def test_a_killed_server_answers_each_irc_message_once_and_never_resends_an_uncertain_delivery(
    server: ServerWithProvider, maria: IrcPerson
) -> None:
    cut_off = LONG.replace("words", "parts")
    server.replies["ask-cut-off"] = says(cut_off)
    await server.reopen(crash_point=AFTER_ACCEPT)
    await wait_until_in_channels(maria)
    await maria.say(HOME, "retinue: are you there, ask-accepted?")
    await server.wait_until_crashed()
    await server.open(crash_point=BETWEEN_PARTS)
    await wait_for_text(maria, "An answer to ask-accepted.")
    await maria.say(HOME, "retinue: something long, ask-cut-off")
    await server.wait_until_crashed()
    await server.open(crash_point=AFTER_PLATFORM_SEND)
    await wait_until_in_channels(maria)
    await maria.say("retinue", "something short, ask-doubt")
    await server.wait_until_crashed()
    await server.open()
    await wait_until_in_channels(maria)
    await maria.say(HOME, "retinue: and then, ask-after?")
    await wait_for_text(maria, "An answer to ask-after.")
    await server.wait_until_idle()

    accepted, part, after = read(maria, HOME)
    assert (accepted, after) == ("An answer to ask-accepted.", "An answer to ask-after.")
    assert " ".join(cut_off.split()).startswith(part)
    assert read(maria, "maria") == ["An answer to ask-doubt."]
    assert read(maria, GARDEN) == []
    assert server.list_delivery_outcomes("5. parts that go on") == ["interrupted"]
    assert server.list_delivery_outcomes("An answer to ask-doubt") == ["interrupted"]


async def test_the_irc_connector_rejoins_its_channels_after_the_irc_server_restarts(
    server: ServerWithProvider, irc_server: NgircdServer, maria: IrcPerson
) -> None:
    await irc_server.close()
    await irc_server.open()
    back = IrcPerson(irc_server.port, nick="maria2")
    await back.connect(HOME, GARDEN)
    try:
        await wait_until_in_channels(back)
        await back.say(HOME, "retinue: there again, ask-again?")
        await wait_for_text(back, "An answer to ask-again.")
    finally:
        await back.disconnect()

    assert read(back, HOME) == ["An answer to ask-again."]
