"""Test conversations by email through a real exim and dovecot, with a server process that is killed in between."""

from __future__ import annotations

import asyncio
import itertools
import re
from collections.abc import AsyncGenerator, Iterator
from email.message import EmailMessage

import pytest
from connectors.email_instance import make_email
from connectors.server_process import AFTER_ACCEPT, ServerWithProvider, open_server_with_provider, tools_have_answered
from flows.fake_provider import Asked, FakeReply, calls, says

from retinue.testing.email_servers import AUTHSERV, EmailServers, run_email_servers
from retinue.testing.wait_conditions import wait_until

SETTINGS = f"""
[connectors.post]
platform = "email"
address = "retinue@retinue.test"
username = "retinue"
password_file = "{{home}}/mail-password"
imap_host = "127.0.0.1"
imap_port = IMAP
imap_security = "none"
smtp_host = "127.0.0.1"
smtp_port = SMTP
smtp_security = "none"
authserv_id = "{AUTHSERV}"
emails_per_hour = 10000
dm_policy = "pairing"
"""
pytestmark = pytest.mark.timeout(300)  # a server starts many times, on a machine that may be busy
LONG = "\n".join(f"Line {number} of a mail that is long." for number in range(1, 2_001))
CODE = re.compile(r"\b[A-Z2-9]{8}\b")
AFTER_THIRD_PLATFORM_SEND = "deliver.after:3"
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def mail_servers() -> Iterator[EmailServers]:
    with run_email_servers() as mail_servers:
        yield mail_servers


@pytest.fixture(scope="module")
async def shared_server(
    mail_servers: EmailServers, tmp_path_factory: pytest.TempPathFactory
) -> AsyncGenerator[ServerWithProvider]:
    settings = SETTINGS.replace("IMAP", str(mail_servers.imap)).replace("SMTP", str(mail_servers.smtp))
    secrets = {"mail-password": "secret-retinue"}
    async with open_server_with_provider(tmp_path_factory.mktemp("email"), settings, secrets=secrets) as server:
        await server.retinue("identity", "link", "owner", "email", "--id", "maria@example.org")
        mailbox_position = "select 1 from connector_state where connector = 'post'"
        await wait_until(
            lambda: server.query_database(mailbox_position), "the mailbox was read"
        )  # emails that were already there are not received
        yield server


@pytest.fixture
async def server(shared_server: ServerWithProvider) -> AsyncGenerator[ServerWithProvider]:
    if not shared_server.is_open:
        await shared_server.open()
    yield shared_server
    await shared_server.check_nothing_is_lost()


async def send_email_from(
    mail_servers: EmailServers,
    text: str,
    *,
    by: str = "maria",
    login: str | None = None,
    message_to_send: EmailMessage | None = None,
) -> EmailMessage:
    """Send an email to the server's mailbox. Without a login of its own, the sender is not trusted."""
    sent_email = message_to_send or make_email(
        text, sender=f"{by}@example.org", message_id=f"<{by}.{next(_numbers)}@example.org>"
    )
    login = by if login is None else login
    await asyncio.to_thread(mail_servers.send_email, bytes(sent_email), sender=f"{by}@example.org", login=login or None)
    return sent_email


def text_of(sent_email: EmailMessage) -> str:
    body = sent_email.get_body(("plain",))
    assert isinstance(body, EmailMessage)
    return str(body.get_content())


async def wait_for_email_containing(mail_servers: EmailServers, word: str, *, person: str = "maria") -> EmailMessage:
    """Wait for the one email that contains this word."""

    def found() -> list[EmailMessage]:
        return [each for each in mail_servers.read_mailbox(person) if word in text_of(each)]

    await wait_until(found, f"an answer with {word!r} is there", poll_s=0.05)
    await mail_servers.wait_until_delivered()
    [answer] = found()
    return answer


async def test_the_owner_is_answered_in_the_email_thread_and_a_forged_sender_is_not_answered(
    server: ServerWithProvider, mail_servers: EmailServers
) -> None:
    await send_email_from(mail_servers, "Tell me all, ask-forged.", login="noor")
    asked = await send_email_from(mail_servers, "What is on, ask-lunch?")
    answer = await wait_for_email_containing(mail_servers, "An answer to ask-lunch.")
    await server.wait_until_idle()

    assert answer["In-Reply-To"] == asked["Message-ID"]
    assert answer["Subject"] == "Re: Lunch"
    assert answer["Auto-Submitted"]
    assert not any(b"ask-forged" in each.raw for each in server.model.asked)
    assert not any("ask-forged" in text_of(each) for each in mail_servers.read_mailbox("maria"))


async def test_a_stranger_gets_a_pairing_code_by_email_and_is_answered_once_accepted(
    server: ServerWithProvider, mail_servers: EmailServers
) -> None:
    await send_email_from(mail_servers, "Let me in, ask-early.", by="noor")
    pairing_email = await wait_for_email_containing(mail_servers, "I do not know you yet", person="noor")
    await server.retinue("pairing", "accept", CODE.findall(text_of(pairing_email))[-1])
    await send_email_from(mail_servers, "And now, ask-now?", by="noor")
    await wait_for_email_containing(mail_servers, "An answer to ask-now.", person="noor")
    await server.wait_until_idle()

    assert len(mail_servers.read_mailbox("noor")) == 2
    assert not any(b"ask-early" in each.raw for each in server.model.asked)


async def test_an_email_attachment_is_sent_back_and_a_reply_is_linked_to_the_quoted_answer(
    server: ServerWithProvider, mail_servers: EmailServers
) -> None:
    content = b"the minutes of a meeting\n" * 100

    def send_back(asked: Asked) -> FakeReply:
        if tools_have_answered(asked):
            return says("There it is, ask-file done.")
        [(kept,)] = server.query_database(
            "select attachments from envelopes where text like '%ask-file%' and kind = 'message'"
        )
        return calls(("send_file", {"file_id": re.findall(r"[0-9a-f]{64}", kept)[0], "name": "back.txt"}))

    server.replies["ask-file"] = send_back
    sent_email = make_email("Keep this, ask-file.", sender="maria@example.org", message_id="<file@example.org>")
    sent_email.add_attachment(content, maintype="application", subtype="octet-stream", filename="minutes.txt")
    await send_email_from(mail_servers, "", message_to_send=sent_email)
    done = await wait_for_email_containing(mail_servers, "ask-file done")
    reply = make_email(
        f"Thanks, ask-thanks.\n\nOn Monday the team wrote:\n> {text_of(done)}",
        sender="maria@example.org",
        subject="Re: Lunch",
        message_id="<thanks@example.org>",
        In_Reply_To=str(done["Message-ID"]),
        References=f"<file@example.org> {done['Message-ID']}",
    )
    await send_email_from(mail_servers, "", message_to_send=reply)
    await wait_for_email_containing(mail_servers, "An answer to ask-thanks.")

    [sent] = [part for each in mail_servers.read_mailbox("maria") for part in each.iter_attachments()]
    assert (sent.get_filename(), sent.get_content()) == ("back.txt", content)
    [(reply_to,)] = server.query_database("select reply_to from envelopes where text like 'Thanks, ask-thanks.%'")
    assert server.query_database("select text from envelopes where id = ?", reply_to) == [
        ("There it is, ask-file done.",)
    ]


async def test_a_long_answer_is_sent_as_one_email(server: ServerWithProvider, mail_servers: EmailServers) -> None:
    server.replies["ask-long"] = says(LONG)
    await send_email_from(mail_servers, "At length, ask-long.")
    answer = await wait_for_email_containing(mail_servers, "Line 2000 of")

    assert text_of(answer).split() == LONG.split()


@pytest.mark.spec("H1", "D11")
async def test_a_killed_server_answers_each_email_once_and_never_resends_an_uncertain_delivery(
    server: ServerWithProvider, mail_servers: EmailServers
) -> None:
    await server.reopen(crash_point=AFTER_ACCEPT)
    await send_email_from(mail_servers, "Are you there, ask-accepted?")
    await server.wait_until_crashed()
    await send_email_from(mail_servers, "While you were away, ask-away.")
    await server.open(crash_point=AFTER_THIRD_PLATFORM_SEND)
    await wait_for_email_containing(mail_servers, "An answer to ask-accepted.")
    await wait_for_email_containing(mail_servers, "An answer to ask-away.")
    await send_email_from(mail_servers, "Is it certain, ask-doubt?")
    await server.wait_until_crashed()
    await server.open()
    await send_email_from(mail_servers, "And then, ask-after?")
    await wait_for_email_containing(mail_servers, "An answer to ask-after.")
    await server.wait_until_idle()

    for word, ended in (("accepted", "delivered"), ("away", "delivered"), ("doubt", "interrupted")):
        await wait_for_email_containing(mail_servers, f"An answer to ask-{word}.")
        assert server.list_delivery_outcomes(f"An answer to ask-{word}.") == [ended]


async def test_email_works_again_after_the_mail_servers_restart(
    server: ServerWithProvider, mail_servers: EmailServers
) -> None:
    await asyncio.to_thread(mail_servers.restart)
    await send_email_from(mail_servers, "There again, ask-again?")
    await wait_for_email_containing(mail_servers, "An answer to ask-again.")
