"""Test features of newer IRC servers: accounts, message ids and echoed messages.

No installable server has them, so a scripted server follows the specifications line by line.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from pathlib import Path

import pytest
from connectors.irc_instance import (
    SECRETS,
    ScriptedIrcServer,
    listen_in_background,
    make_irc_connector,
    wait_until_true,
)

from retinue.connectors.base import ConnectionLost, Delivery, DeliveryFailed, FailureKind
from retinue.connectors.irc.irc_message import IrcMessage, parse_message
from retinue.connectors.irc.registration import IrcCredentials, IrcRegistration
from retinue.testing.fault_kit.kit_server import IntakeFault, build_part
from retinue.testing.loop_time import skip_loop_time_on_increase

WELCOME = (
    ":s 001 retinue :Welcome retinue!h@host",
    ":s 005 retinue CASEMAPPING=ascii NICKLEN=20 CHANNELLEN=50 :are supported",
    ":s 376 retinue :end",
)
ALL_CAPABILITIES = "message-tags account-tag server-time echo-message batch labeled-response"


def make_irc_replies(offered: str, *, more: Callable[[str], list[str]] = lambda line: []) -> Callable[[str], list[str]]:
    def reply_to(line: str) -> list[str]:
        match line.split():
            case ["CAP", "LS", _]:
                half = len(offered.split()) // 2
                first, last = " ".join(offered.split()[:half]), " ".join(offered.split()[half:])
                return [f":s CAP * LS * :{first}", f":s CAP * LS :{last}"]
            case ["CAP", "REQ", name]:
                return [f":s CAP * ACK {name}"]
            case ["CAP", "END"]:
                return list(WELCOME)
            case ["PING", token]:
                return [*more(line), f":s PONG s {token}"]
            case _:
                return more(line)

    return reply_to


async def test_an_irc_sender_with_an_account_tag_is_identified_and_verified_by_the_account(tmp_path: Path) -> None:
    async with ScriptedIrcServer(make_irc_replies(ALL_CAPABILITIES)) as irc_server:
        connector = make_irc_connector(tmp_path, irc_server.port)
        async with listen_in_background(connector) as server:
            irc_server.say(
                "@account=Maria;msgid=m1;time=2026-01-05T09:00:00.000Z :mia!m@h PRIVMSG #home :hello",
                ":mallory!m@h PRIVMSG #home :I am Maria",
                "@account=* :noor!m@h PRIVMSG #home :I am nobody",
                "@bot :counter!m@h PRIVMSG #home :I count",
            )
            await wait_until_true(lambda: len(server.committed) == 4)

    maria, mallory, noor, counter = server.committed
    assert (maria.sender.id, maria.sender.is_verified, maria.message_id) == ("account:maria", True, "m1")
    assert maria.sent_at is not None and maria.sent_at.year == 2026
    assert (mallory.sender.id, mallory.sender.is_verified) == ("mallory!m@h", False)
    assert (noor.sender.id, noor.sender.is_verified) == ("noor!m@h", False)
    assert counter.sender.is_program


async def test_an_irc_account_tag_is_ignored_unless_the_server_negotiated_account_tag(tmp_path: Path) -> None:
    async with (
        ScriptedIrcServer(make_irc_replies("multi-prefix")) as irc_server,
        listen_in_background(make_irc_connector(tmp_path, irc_server.port)) as server,
    ):
        irc_server.say("@account=maria;msgid=m1 :mallory!m@h PRIVMSG #home :hello")
        await wait_until_true(lambda: bool(server.committed))

    [received] = server.committed
    assert received.sender.id == "mallory!m@h"
    assert received.message_id != "m1"


async def test_an_irc_account_is_answered_at_its_current_nick_after_a_restart(tmp_path: Path) -> None:
    whois = [":s 311 retinue mia m h * :x", ":s 330 retinue mia Maria :is logged in as", ":s 318 retinue mia :end"]
    more = lambda line: whois if line.startswith("WHOIS mia") else []  # noqa: E731
    async with ScriptedIrcServer(make_irc_replies("message-tags account-tag", more=more)) as irc_server:
        async with listen_in_background(make_irc_connector(tmp_path, irc_server.port)) as server:
            irc_server.say("@account=Maria :mia!m@h PRIVMSG retinue :hello")
            await wait_until_true(lambda: bool(server.committed))
        again = make_irc_connector(tmp_path, irc_server.port)
        async with listen_in_background(again):
            await again.deliver(build_part("kit", server.committed[0].channel, "hello yourself", number=1))

    assert server.committed[0].channel == "account:maria"
    assert "PRIVMSG mia :hello yourself" in irc_server.read


async def test_a_message_for_an_irc_account_is_not_sent_to_a_nick_without_that_account(tmp_path: Path) -> None:
    whois = [":s 311 retinue maria m h * :x", ":s 318 retinue maria :end"]
    more = lambda line: whois if line.startswith("WHOIS") else []  # noqa: E731
    async with ScriptedIrcServer(make_irc_replies(ALL_CAPABILITIES, more=more)) as irc_server:
        connector = make_irc_connector(tmp_path, irc_server.port)
        async with listen_in_background(connector):
            with pytest.raises(DeliveryFailed) as failed:
                await connector.deliver(build_part("kit", "account:maria", "your secret", number=1))

    assert failed.value.permanent
    assert not any("secret" in line for line in irc_server.read)


def echo(line: str) -> list[str]:
    if not line.startswith("@label="):
        return []
    label, _, rest = line.removeprefix("@label=").partition(" ")
    return [f"@label={label};msgid=ours-{label} :retinue!h@host {rest}"]


async def test_an_echoed_irc_message_is_delivered_with_the_message_id_of_the_irc_server(tmp_path: Path) -> None:
    async with ScriptedIrcServer(make_irc_replies(ALL_CAPABILITIES, more=echo)) as irc_server:
        connector = make_irc_connector(tmp_path, irc_server.port)
        async with listen_in_background(connector) as server:
            delivery = await connector.deliver(build_part("kit", "#home", "hello", number=1))

    assert delivery.receipt.startswith("ours-")
    assert server.committed == []  # the bot's own messages are not received as someone else's


async def test_an_irc_message_without_an_echo_is_not_reported_as_delivered(tmp_path: Path) -> None:
    async with ScriptedIrcServer(make_irc_replies(ALL_CAPABILITIES)) as irc_server:
        connector = make_irc_connector(tmp_path, irc_server.port, answer_timeout_s=60.0)

        def count_pings_after_message() -> int:
            sent_at = next((at for at, line in enumerate(irc_server.read) if "PRIVMSG" in line), len(irc_server.read))
            return sum(line.startswith("PING") for line in irc_server.read[sent_at:])

        async with listen_in_background(connector), skip_loop_time_on_increase(60, count=count_pings_after_message):
            with pytest.raises(TimeoutError):
                await connector.deliver(build_part("kit", "#home", "hello", number=1))


@pytest.mark.parametrize(
    ("numeric", "kind", "permanent"),
    [
        ("403", FailureKind.INVALID_ADDRESS, True),
        ("404", FailureKind.INVALID_SENDER, True),
        ("417", FailureKind.TOO_LARGE, True),
        ("439", FailureKind.THROTTLED, False),
    ],
)
async def test_an_irc_error_numeric_becomes_the_matching_delivery_failure(
    tmp_path: Path, numeric: str, kind: FailureKind, permanent: bool
) -> None:
    more = lambda line: [f":s {numeric} retinue #home :no"] if line.startswith("PRIVMSG") else []  # noqa: E731
    async with ScriptedIrcServer(make_irc_replies("multi-prefix", more=more)) as irc_server:
        connector = make_irc_connector(tmp_path, irc_server.port)
        async with listen_in_background(connector):
            with pytest.raises(DeliveryFailed) as failed:
                await connector.deliver(build_part("kit", "#home", "hello", number=1))

    assert (failed.value.kind, failed.value.permanent) == (kind, permanent)
    assert (failed.value.retry_after_s is not None) is not permanent


async def test_a_partly_refused_irc_answer_is_neither_delivered_nor_failed(tmp_path: Path) -> None:
    more = lambda line: [":s 404 retinue #home :no"] if line == "PRIVMSG #home :two" else []  # noqa: E731
    async with ScriptedIrcServer(make_irc_replies("multi-prefix", more=more)) as irc_server:
        connector = make_irc_connector(tmp_path, irc_server.port)
        async with listen_in_background(connector):
            with pytest.raises(ConnectionError, match="some of the lines"):
                await connector.deliver(build_part("kit", "#home", "one\ntwo", number=1))


async def test_an_irc_error_for_another_channel_does_not_fail_the_delivery(tmp_path: Path) -> None:
    more = lambda line: [":s 403 retinue #elsewhere :no"] if line.startswith("PRIVMSG") else []  # noqa: E731
    async with ScriptedIrcServer(make_irc_replies("multi-prefix", more=more)) as irc_server:
        connector = make_irc_connector(tmp_path, irc_server.port)
        async with listen_in_background(connector):
            assert isinstance(await connector.deliver(build_part("kit", "#home", "hello", number=1)), Delivery)


async def test_a_slow_intake_loses_no_irc_messages_and_keeps_the_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("retinue.connectors.irc.connector.PENDING_MAX", 5)
    async with ScriptedIrcServer(make_irc_replies("multi-prefix")) as irc_server:
        connector = make_irc_connector(tmp_path, irc_server.port, ping_after_s=1.0, answer_timeout_s=1.0)
        async with listen_in_background(connector) as server:
            server.intake_faults.extend([IntakeFault.FAILS_BEFORE] * 4)
            irc_server.say(*(f":m!m@h PRIVMSG #home :word {number}" for number in range(100)))
            await wait_until_true(lambda: len(server.committed) == 100)

    assert [each.text for each in server.committed] == [f"word {number}" for number in range(100)]
    assert server.connections_lost == 0


# Registration


def make_registration(**known: str) -> IrcRegistration:
    irc_registration = IrcRegistration(IrcCredentials(nick="retinue", username="retinue", real_name="Team", **known))
    irc_registration.start()
    return irc_registration


def read(irc_registration: IrcRegistration, raw: str) -> list[str]:
    line = parse_message(raw.encode())
    assert isinstance(line, IrcMessage)
    return [sent.decode().rstrip("\r\n") for sent in irc_registration.handle(line)]


def test_sasl_authentication_completes_before_the_irc_registration_ends() -> None:
    irc_registration = make_registration(account="retinue", account_password=SECRETS["account_password"])

    assert read(irc_registration, ":s CAP * LS :sasl=EXTERNAL,PLAIN account-tag") == [
        "CAP REQ :account-tag",
        "CAP REQ :sasl",
    ]
    assert read(irc_registration, ":s CAP * ACK :account-tag") == []
    assert read(irc_registration, ":s CAP * ACK :sasl") == ["AUTHENTICATE PLAIN"]
    [proof] = read(irc_registration, "AUTHENTICATE +")
    assert base64.b64decode(proof.split()[1]).decode() == "retinue\0retinue\0sésame"
    assert read(irc_registration, ":s 903 retinue :good") == ["CAP END"]
    assert not irc_registration.is_done
    read(irc_registration, ":s 376 retinue :end")
    assert irc_registration.is_done


def test_a_long_sasl_password_is_sent_to_the_irc_server_in_chunks() -> None:
    irc_registration = make_registration(account="h", account_password="x" * 296)

    pieces = [
        line.decode().split()[1] for line in irc_registration.handle(IrcMessage(command="AUTHENTICATE", params=("+",)))
    ]

    assert [len(piece) for piece in pieces] == [400, 1]
    assert pieces[1] == "+"


@pytest.mark.parametrize(
    ("line", "needs_owner"),
    [
        (":s 904 retinue :SASL failed", True),
        (":s 464 retinue :Password incorrect", True),
        (":s 465 retinue :banned", True),
        (":s 432 * retinue :bad nick", True),
        ("ERROR :Access denied: Bad password?", True),
        ("ERROR :Closing link: Throttled", False),
    ],
)
def test_a_refused_irc_registration_needs_the_owner_unless_the_refusal_is_throttling(
    line: str, needs_owner: bool
) -> None:
    with pytest.raises(ConnectionLost) as lost:
        read(make_registration(password="open sesame"), line)

    assert lost.value.needs_owner is needs_owner
    assert "open sesame" not in str(lost.value)


def test_irc_registration_fails_if_the_server_does_not_support_accounts() -> None:
    irc_registration = make_registration(account="retinue", account_password="x")
    read(irc_registration, ":s CAP * LS :multi-prefix")

    with pytest.raises(ConnectionLost, match="does not support accounts"):
        read(irc_registration, ":s 376 retinue :end")


def test_irc_registration_gives_up_after_four_taken_nicks() -> None:
    irc_registration = make_registration()
    tried = [read(irc_registration, ":s 433 * retinue :taken")[0] for _ in range(4)]

    assert tried == ["NICK retinue_", "NICK retinue__", "NICK retinue___", "NICK retinue____"]
    with pytest.raises(ConnectionLost, match="taken"):
        read(irc_registration, ":s 433 * retinue :taken")


def test_irc_passwords_do_not_appear_in_the_repr_of_a_registration() -> None:
    shown = repr(make_registration(password="open sesame", account="a", account_password="sésame"))

    assert "sesame" not in shown and "sésame" not in shown
