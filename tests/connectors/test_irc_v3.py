"""What newer servers can: accounts, names for messages, echoes. No server that can be installed here does, so one says
what it is told to, line by line as the specifications have it.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from pathlib import Path

import pytest
from connectors.irc_instance import SECRETS, ToldServer, connector_in, listening, until

from retinue.connectors.base import ConnectionLost, Delivery, DeliveryFailed, FailureKind
from retinue.connectors.irc.irc_message import IrcMessage, parse_message
from retinue.connectors.irc.registration import IrcCredentials, IrcRegistration
from retinue.testing.fault_kit.kit_server import IntakeFault, build_part
from retinue.testing.loop_time import skip_loop_time_on_increase

WELCOME = (
    ":s 001 house :Welcome house!h@host",
    ":s 005 house CASEMAPPING=ascii NICKLEN=20 CHANNELLEN=50 :are supported",
    ":s 376 house :end",
)
ALL = "message-tags account-tag server-time echo-message batch labeled-response"


def told(offered: str, *, more: Callable[[str], list[str]] = lambda line: []) -> Callable[[str], list[str]]:
    def answers(line: str) -> list[str]:
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

    return answers


async def test_whoever_has_an_account_is_known_by_it(tmp_path: Path) -> None:
    async with ToldServer(told(ALL)) as server:
        connector = connector_in(tmp_path, server.port)
        async with listening(connector) as house:
            server.say(
                "@account=Maria;msgid=m1;time=2026-01-05T09:00:00.000Z :mia!m@h PRIVMSG #home :hello",
                ":mallory!m@h PRIVMSG #home :I am Maria",
                "@account=* :noor!m@h PRIVMSG #home :I am nobody",
                "@bot :counter!m@h PRIVMSG #home :I count",
            )
            await until(lambda: len(house.committed) == 4)

    maria, mallory, noor, counter = house.committed
    assert (maria.speaker.id, maria.speaker.vouched, maria.message_id) == ("account:maria", True, "m1")
    assert maria.said_at is not None and maria.said_at.year == 2026
    assert (mallory.speaker.id, mallory.speaker.vouched) == ("mallory!m@h", False)
    assert (noor.speaker.id, noor.speaker.vouched) == ("noor!m@h", False)
    assert counter.speaker.is_program


async def test_an_account_that_the_server_did_not_promise_to_tell_is_not_believed(tmp_path: Path) -> None:
    async with ToldServer(told("multi-prefix")) as server, listening(connector_in(tmp_path, server.port)) as house:
        server.say("@account=maria;msgid=m1 :mallory!m@h PRIVMSG #home :hello")
        await until(lambda: bool(house.committed))

    [heard] = house.committed
    assert heard.speaker.id == "mallory!m@h"
    assert heard.message_id != "m1"


async def test_an_account_is_answered_by_the_nick_it_has_now_also_after_a_restart(tmp_path: Path) -> None:
    whois = [":s 311 house mia m h * :x", ":s 330 house mia Maria :is logged in as", ":s 318 house mia :end"]
    more = lambda line: whois if line.startswith("WHOIS mia") else []  # noqa: E731
    async with ToldServer(told("message-tags account-tag", more=more)) as server:
        async with listening(connector_in(tmp_path, server.port)) as house:
            server.say("@account=Maria :mia!m@h PRIVMSG house :hello")
            await until(lambda: bool(house.committed))
        again = connector_in(tmp_path, server.port)
        async with listening(again):
            await again.deliver(build_part("kit", house.committed[0].room, "hello yourself", number=1))

    assert house.committed[0].room == "account:maria"
    assert "PRIVMSG mia :hello yourself" in server.read


async def test_an_account_whose_nick_is_somebody_elses_is_not_written_to(tmp_path: Path) -> None:
    whois = [":s 311 house maria m h * :x", ":s 318 house maria :end"]
    more = lambda line: whois if line.startswith("WHOIS") else []  # noqa: E731
    async with ToldServer(told(ALL, more=more)) as server:
        connector = connector_in(tmp_path, server.port)
        async with listening(connector):
            with pytest.raises(DeliveryFailed) as failed:
                await connector.deliver(build_part("kit", "account:maria", "your secret", number=1))

    assert failed.value.permanent
    assert not any("secret" in line for line in server.read)


def echo(line: str) -> list[str]:
    if not line.startswith("@label="):
        return []
    label, _, rest = line.removeprefix("@label=").partition(" ")
    return [f"@label={label};msgid=ours-{label} :house!h@host {rest}"]


async def test_what_is_echoed_is_proven_by_the_name_the_server_gave_it(tmp_path: Path) -> None:
    async with ToldServer(told(ALL, more=echo)) as server:
        connector = connector_in(tmp_path, server.port)
        async with listening(connector) as house:
            delivery = await connector.deliver(build_part("kit", "#home", "hello", number=1))

    assert delivery.receipt.startswith("ours-")
    assert house.committed == []  # our own words are not heard as somebody's


async def test_what_is_read_and_not_echoed_is_not_called_delivered(tmp_path: Path) -> None:
    async with ToldServer(told(ALL)) as server:
        connector = connector_in(tmp_path, server.port, answer_s=60.0)

        def asked_after_it() -> int:
            said = next((at for at, line in enumerate(server.read) if "PRIVMSG" in line), len(server.read))
            return sum(line.startswith("PING") for line in server.read[said:])

        async with listening(connector), skip_loop_time_on_increase(60, count=asked_after_it):
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
async def test_what_the_server_has_against_it_is_told(
    tmp_path: Path, numeric: str, kind: FailureKind, permanent: bool
) -> None:
    more = lambda line: [f":s {numeric} house #home :no"] if line.startswith("PRIVMSG") else []  # noqa: E731
    async with ToldServer(told("multi-prefix", more=more)) as server:
        connector = connector_in(tmp_path, server.port)
        async with listening(connector):
            with pytest.raises(DeliveryFailed) as failed:
                await connector.deliver(build_part("kit", "#home", "hello", number=1))

    assert (failed.value.kind, failed.value.permanent) == (kind, permanent)
    assert (failed.value.retry_after_s is not None) is not permanent


async def test_half_of_an_answer_is_neither_delivered_nor_refused(tmp_path: Path) -> None:
    more = lambda line: [":s 404 house #home :no"] if line == "PRIVMSG #home :two" else []  # noqa: E731
    async with ToldServer(told("multi-prefix", more=more)) as server:
        connector = connector_in(tmp_path, server.port)
        async with listening(connector):
            with pytest.raises(ConnectionError, match="some of the lines"):
                await connector.deliver(build_part("kit", "#home", "one\ntwo", number=1))


async def test_a_refusal_of_something_else_is_not_taken_for_ours(tmp_path: Path) -> None:
    more = lambda line: [":s 403 house #elsewhere :no"] if line.startswith("PRIVMSG") else []  # noqa: E731
    async with ToldServer(told("multi-prefix", more=more)) as server:
        connector = connector_in(tmp_path, server.port)
        async with listening(connector):
            assert isinstance(await connector.deliver(build_part("kit", "#home", "hello", number=1)), Delivery)


async def test_when_the_house_is_slow_the_server_waits_and_nothing_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("retinue.connectors.irc.connector.PENDING_MAX", 5)
    async with ToldServer(told("multi-prefix")) as server:
        connector = connector_in(tmp_path, server.port, silence_s=1.0, answer_s=1.0)
        async with listening(connector) as house:
            house.intake_faults.extend([IntakeFault.FAILS_BEFORE] * 4)
            server.say(*(f":m!m@h PRIVMSG #home :word {number}" for number in range(100)))
            await until(lambda: len(house.committed) == 100)

    assert [each.text for each in house.committed] == [f"word {number}" for number in range(100)]
    assert house.connections_lost == 0


# Coming in


def arriving(**known: str) -> IrcRegistration:
    arrival = IrcRegistration(IrcCredentials(nick="house", username="house", real_name="The House", **known))
    arrival.start()
    return arrival


def read(arrival: IrcRegistration, raw: str) -> list[str]:
    line = parse_message(raw.encode())
    assert isinstance(line, IrcMessage)
    return [said.decode().rstrip("\r\n") for said in arrival.handle(line)]


def test_we_prove_our_account_before_we_are_in() -> None:
    arrival = arriving(account="house", account_password=SECRETS["account_password"])

    assert read(arrival, ":s CAP * LS :sasl=EXTERNAL,PLAIN account-tag") == ["CAP REQ :account-tag", "CAP REQ :sasl"]
    assert read(arrival, ":s CAP * ACK :account-tag") == []
    assert read(arrival, ":s CAP * ACK :sasl") == ["AUTHENTICATE PLAIN"]
    [proof] = read(arrival, "AUTHENTICATE +")
    assert base64.b64decode(proof.split()[1]).decode() == "house\0house\0sésame"
    assert read(arrival, ":s 903 house :good") == ["CAP END"]
    assert not arrival.is_done
    read(arrival, ":s 376 house :end")
    assert arrival.is_done


def test_a_long_password_goes_in_pieces() -> None:
    arrival = arriving(account="h", account_password="x" * 296)

    pieces = [line.decode().split()[1] for line in arrival.handle(IrcMessage(command="AUTHENTICATE", params=("+",)))]

    assert [len(piece) for piece in pieces] == [400, 1]
    assert pieces[1] == "+"


@pytest.mark.parametrize(
    ("said", "needs_owner"),
    [
        (":s 904 house :SASL failed", True),
        (":s 464 house :Password incorrect", True),
        (":s 465 house :banned", True),
        (":s 432 * house :bad nick", True),
        ("ERROR :Access denied: Bad password?", True),
        ("ERROR :Closing link: Throttled", False),
    ],
)
def test_a_server_that_will_not_have_us_is_told_to_the_owner(said: str, needs_owner: bool) -> None:
    with pytest.raises(ConnectionLost) as lost:
        read(arriving(password="open sesame"), said)

    assert lost.value.needs_owner is needs_owner
    assert "open sesame" not in str(lost.value)


def test_we_do_not_come_in_without_the_account_that_was_asked_for() -> None:
    arrival = arriving(account="house", account_password="x")
    read(arrival, ":s CAP * LS :multi-prefix")

    with pytest.raises(ConnectionLost, match="does not support accounts"):
        read(arrival, ":s 376 house :end")


def test_after_so_many_names_that_are_taken_we_give_up() -> None:
    arrival = arriving()
    tried = [read(arrival, ":s 433 * house :taken")[0] for _ in range(4)]

    assert tried == ["NICK house_", "NICK house__", "NICK house___", "NICK house____"]
    with pytest.raises(ConnectionLost, match="taken"):
        read(arrival, ":s 433 * house :taken")


def test_secrets_are_not_shown() -> None:
    shown = repr(arriving(password="open sesame", account="a", account_password="sésame"))

    assert "sesame" not in shown and "sésame" not in shown
