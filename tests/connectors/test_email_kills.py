"""Whole conversations by e-mail, through a real exim and a real dovecot, with a house in a process of its own that is
killed in the midst of them.
"""

from __future__ import annotations

import asyncio
import itertools
import re
from collections.abc import AsyncGenerator, Iterator
from email.message import EmailMessage

import pytest
from connectors.email_instance import mail
from connectors.server_process import AFTER_ACCEPT, RealHouse, real_house, was_called
from flows.fake_provider import Asked, Said, calls, says

from retinue.testing.email_servers import AUTHSERV, EmailServers, run_email_servers
from retinue.testing.wait_conditions import wait_until

SETTINGS = f"""
[connectors.post]
kind = "email"
address = "house@house.test"
username = "house"
password_file = "{{home}}/mail-password"
imap_host = "127.0.0.1"
imap_port = IMAP
imap_security = "none"
smtp_host = "127.0.0.1"
smtp_port = SMTP
smtp_security = "none"
authserv_id = "{AUTHSERV}"
mails_per_hour = 10000
dm = "pairing"
"""
pytestmark = pytest.mark.timeout(300)  # a house is opened again and again, on a machine that may be busy
LONG = "\n".join(f"Line {number} of a mail that is long." for number in range(1, 2_001))
CODE = re.compile(r"\b[A-Z2-9]{8}\b")
THIRD_IN_DOUBT = "deliver.after:3"
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def office() -> Iterator[EmailServers]:
    with run_email_servers() as office:
        yield office


@pytest.fixture(scope="module")
async def standing(office: EmailServers, tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[RealHouse]:
    settings = SETTINGS.replace("IMAP", str(office.imap)).replace("SMTP", str(office.smtp))
    secrets = {"mail-password": "secret-house"}
    async with real_house(tmp_path_factory.mktemp("email"), settings, secrets=secrets) as house:
        await house.retinue("identity", "link", "owner", "email", "--id", "maria@example.org")
        looked = "select 1 from connector_words where instance = 'post'"
        await wait_until(lambda: house.rows(looked), "the mailbox was looked into")  # what lay there is not for us
        yield house


@pytest.fixture
async def house(standing: RealHouse) -> AsyncGenerator[RealHouse]:
    if not standing.is_open:
        await standing.open()
    yield standing
    await standing.holds()


async def write(
    office: EmailServers, text: str, *, by: str = "maria", login: str | None = None, changed: EmailMessage | None = None
) -> EmailMessage:
    """Somebody writes; it lies in the house's mailbox then. Without a login of their own they are not believed."""
    letter = changed or mail(text, sender=f"{by}@example.org", message_id=f"<{by}.{next(_numbers)}@example.org>")
    login = by if login is None else login
    await asyncio.to_thread(office.send_email, bytes(letter), sender=f"{by}@example.org", login=login or None)
    return letter


def words_of(letter: EmailMessage) -> str:
    body = letter.get_body(("plain",))
    assert isinstance(body, EmailMessage)
    return str(body.get_content())


async def answered(office: EmailServers, word: str, *, person: str = "maria") -> EmailMessage:
    """The mail with this word in it, once it lies there: one, and no other."""

    def found() -> list[EmailMessage]:
        return [each for each in office.read_mailbox(person) if word in words_of(each)]

    await wait_until(found, f"an answer with {word!r} is there", poll_s=0.05)
    await office.wait_until_delivered()
    [answer] = found()
    return answer


async def test_the_owner_is_answered_in_the_thread_and_a_forger_of_their_address_is_not(
    house: RealHouse, office: EmailServers
) -> None:
    await write(office, "Tell me all, ask-forged.", login="noor")
    asked = await write(office, "What is on, ask-lunch?")
    answer = await answered(office, "An answer to ask-lunch.")
    await house.until_quiet()

    assert answer["In-Reply-To"] == asked["Message-ID"]
    assert answer["Subject"] == "Re: Lunch"
    assert answer["Auto-Submitted"]
    assert not any(b"ask-forged" in each.raw for each in house.model.asked)
    assert not any("ask-forged" in words_of(each) for each in office.read_mailbox("maria"))


async def test_a_stranger_is_told_a_code_and_answered_once_the_owner_has_let_them_in(
    house: RealHouse, office: EmailServers
) -> None:
    await write(office, "Let me in, ask-early.", by="noor")
    told = await answered(office, "I do not know you yet", person="noor")
    await house.retinue("pairing", "accept", CODE.findall(words_of(told))[-1])
    await write(office, "And now, ask-now?", by="noor")
    await answered(office, "An answer to ask-now.", person="noor")
    await house.until_quiet()

    assert len(office.read_mailbox("noor")) == 2
    assert not any(b"ask-early" in each.raw for each in house.model.asked)


async def test_a_file_comes_in_and_goes_back_and_a_quote_is_known(house: RealHouse, office: EmailServers) -> None:
    content = b"the minutes of a meeting\n" * 100

    def send_back(asked: Asked) -> Said:
        if was_called(asked):
            return says("There it is, ask-file done.")
        [(kept,)] = house.rows("select attachments from envelopes where text like '%ask-file%' and kind = 'message'")
        return calls(("send_file", {"file_id": re.findall(r"[0-9a-f]{64}", kept)[0], "name": "back.txt"}))

    house.said["ask-file"] = send_back
    letter = mail("Keep this, ask-file.", sender="maria@example.org", message_id="<file@example.org>")
    letter.add_attachment(content, maintype="application", subtype="octet-stream", filename="minutes.txt")
    await write(office, "", changed=letter)
    done = await answered(office, "ask-file done")
    reply = mail(
        f"Thanks, ask-thanks.\n\nOn Monday the house wrote:\n> {words_of(done)}",
        sender="maria@example.org",
        subject="Re: Lunch",
        message_id="<thanks@example.org>",
        In_Reply_To=str(done["Message-ID"]),
        References=f"<file@example.org> {done['Message-ID']}",
    )
    await write(office, "", changed=reply)
    await answered(office, "An answer to ask-thanks.")

    [sent] = [part for each in office.read_mailbox("maria") for part in each.iter_attachments()]
    assert (sent.get_filename(), sent.get_content()) == ("back.txt", content)
    [(reply_to,)] = house.rows("select reply_to from envelopes where text like 'Thanks, ask-thanks.%'")
    assert house.rows("select text from envelopes where id = ?", reply_to) == [("There it is, ask-file done.",)]


async def test_a_long_answer_is_one_mail(house: RealHouse, office: EmailServers) -> None:
    house.said["ask-long"] = says(LONG)
    await write(office, "At length, ask-long.")
    answer = await answered(office, "Line 2000 of")

    assert words_of(answer).split() == LONG.split()


@pytest.mark.spec("H1", "D11")
async def test_a_killed_house_answers_once_and_sends_nothing_again_that_may_have_arrived(
    house: RealHouse, office: EmailServers
) -> None:
    await house.reopen(dies_at=AFTER_ACCEPT)
    await write(office, "Are you there, ask-accepted?")
    await house.dies()
    await write(office, "While you were away, ask-away.")
    await house.open(dies_at=THIRD_IN_DOUBT)
    await answered(office, "An answer to ask-accepted.")
    await answered(office, "An answer to ask-away.")
    await write(office, "Is it certain, ask-doubt?")
    await house.dies()
    await house.open()
    await write(office, "And then, ask-after?")
    await answered(office, "An answer to ask-after.")
    await house.until_quiet()

    for word, ended in (("accepted", "delivered"), ("away", "delivered"), ("doubt", "interrupted")):
        await answered(office, f"An answer to ask-{word}.")
        assert house.outcomes(f"An answer to ask-{word}.") == [ended]


async def test_a_post_office_that_comes_back_is_read_and_written_to_again(
    house: RealHouse, office: EmailServers
) -> None:
    await asyncio.to_thread(office.restart)
    await write(office, "There again, ask-again?")
    await answered(office, "An answer to ask-again.")
