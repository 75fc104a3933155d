"""Test the email connector with a real dovecot and a real exim."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from connectors.email_instance import (
    FakeIntake,
    InMemoryConnectorState,
    TcpProxy,
    connector,
    listen_in_background,
    make_delivery_part,
    make_email,
)

from retinue.connectors.base import ConnectionLost, DeliveryFailed, FailureKind, get_capabilities
from retinue.connectors.email import PLATFORM
from retinue.connectors.email.settings import EmailSecurity
from retinue.domain.attachment import Attachment
from retinue.domain.errors import Invalid
from retinue.testing.email_servers import AUTHSERV, MARIA_ADDRESS, SERVER_ADDRESS, EmailServers, run_email_servers
from retinue.testing.loop_time import skip_loop_time
from retinue.testing.wait_conditions import WAIT_LIMIT_S, wait_until


@pytest.fixture(scope="module")
def shared_email_servers() -> Iterator[EmailServers]:
    with run_email_servers() as mail_servers:
        yield mail_servers


@pytest.fixture
def mail_servers(shared_email_servers: EmailServers) -> EmailServers:
    shared_email_servers.empty_mailboxes()
    return shared_email_servers


async def read_mailbox_once(mail_servers: EmailServers, connector_state: InMemoryConnectorState) -> None:
    """Listen until the connector has read its position in the mailbox: later emails are received."""
    intake = FakeIntake()
    async with listen_in_background(connector(mail_servers, connector_state=connector_state), intake.accept):
        await wait_until(lambda: "heard/INBOX" in connector_state.entries, "the connector has read the mailbox")


async def wait_until_uid_is_stored(connector_state: InMemoryConnectorState, uid: int) -> None:
    """Wait until the connector has stored this position. Emails are numbered from 1."""
    await wait_until(
        lambda: connector_state.entries["heard/INBOX"].endswith(f":{uid}"),
        "the position is stored",
        describe=lambda: connector_state.entries,
    )


async def send_emails(mail_servers: EmailServers, *mails: object, **how: object) -> None:
    for each in mails:
        await asyncio.to_thread(mail_servers.send_email, bytes(each), **how)  # type: ignore[arg-type]


async def test_an_email_question_is_received_and_answered_in_the_same_thread(mail_servers: EmailServers) -> None:
    connector_state, intake = InMemoryConnectorState(), FakeIntake()
    await read_mailbox_once(mail_servers, connector_state)
    made = connector(mail_servers, connector_state=connector_state)
    async with listen_in_background(made, intake.accept):
        await send_emails(mail_servers, make_email("When is lunch?", message_id="<q1@example.org>"))
        [question] = await intake.wait_for_messages(1)
        delivery = await made.deliver(
            make_delivery_part(question.channel, "At noon.\n.\nBring bread.", quote=question.message_id)
        )
        answer = await mail_servers.wait_for_email("maria", delivery.receipt)

    assert question.text == "Subject: Lunch\n\nWhen is lunch?"
    assert question.sender.id == question.peer == MARIA_ADDRESS
    assert question.sender.is_verified and not question.sender.is_program
    assert question.channel.startswith(f"{MARIA_ADDRESS}/")
    assert answer["Subject"] == "Re: Lunch"
    assert answer["In-Reply-To"] == answer["References"] == "<q1@example.org>"
    assert answer["Auto-Submitted"] == "auto-replied"
    assert answer["From"] == f'"The Team" <{SERVER_ADDRESS}>' or answer["From"] == f"The Team <{SERVER_ADDRESS}>"
    assert answer.get_content().splitlines() == ["At noon.", ".", "Bring bread."]


async def test_an_email_that_arrives_during_imap_idle_joins_the_channel_of_its_thread(
    mail_servers: EmailServers,
) -> None:
    connector_state, intake = InMemoryConnectorState(), FakeIntake()
    await read_mailbox_once(mail_servers, connector_state)
    made = connector(mail_servers, connector_state=connector_state)
    async with listen_in_background(made, intake.accept):
        await send_emails(mail_servers, make_email("One?", message_id="<one@example.org>"))
        [first] = await intake.wait_for_messages(1)
        ours = await made.deliver(make_delivery_part(first.channel, "One.", quote=first.message_id))
        # Some programs name only the email that they answer, and not the thread.
        again = make_email(
            "Two?\n\nOn Monday, The Team wrote:\n> One.\n", subject="Re: Lunch", message_id="<two@example.org>"
        )
        again["In-Reply-To"] = f"<{ours.receipt}>"
        await send_emails(mail_servers, again)
        _, second = await intake.wait_for_messages(2)

    assert second.channel == first.channel
    assert second.text == "Two?"
    assert second.quoted is not None and second.quoted.ours
    assert second.quoted.message_id == ours.receipt
    assert second.quoted.text == "On Monday, The Team wrote:\n> One."


async def test_an_email_attachment_is_received_and_sent_unchanged(mail_servers: EmailServers, tmp_path: Path) -> None:
    connector_state, intake = InMemoryConnectorState(), FakeIntake()
    await read_mailbox_once(mail_servers, connector_state)
    content = bytes(range(256)) * 2000
    attachment = Attachment(
        hash=hashlib.sha256(content).hexdigest(),
        name="Übersicht ü.bin",
        media_type="application/x-odd",
        size_bytes=len(content),
    )
    (tmp_path / attachment.hash).write_bytes(content)
    made = connector(mail_servers, connector_state=connector_state, path_of=lambda each: tmp_path / each.hash)
    async with listen_in_background(made, intake.accept):
        sent = make_email("Here it is.")
        sent.add_attachment(content, maintype="application", subtype="x-odd", filename="../../Größe.bin")
        await send_emails(mail_servers, sent)
        [received] = await intake.wait_for_messages(1)
        delivery = await made.deliver(make_delivery_part(received.channel, "And back.", files=(attachment,)))
        answer = await mail_servers.wait_for_email("maria", delivery.receipt)

    assert [(each.name, each.media_type) for each in received.files] == [("Größe.bin", "application/x-odd")]
    assert intake.files == {"Größe.bin": content}
    [back] = answer.iter_attachments()
    assert back.get_filename() == "Übersicht ü.bin"
    assert back.get_content() == content
    body = answer.get_body()
    assert body is not None and body.get_content() == "And back.\n"


async def test_email_that_arrived_while_the_server_was_down_is_received_once_in_order(
    mail_servers: EmailServers,
) -> None:
    connector_state = InMemoryConnectorState()
    await read_mailbox_once(mail_servers, connector_state)
    for number in range(3):
        await send_emails(mail_servers, make_email(f"Number {number}", message_id=f"<n{number}@example.org>"))

    intake = FakeIntake()
    async with listen_in_background(connector(mail_servers, connector_state=connector_state), intake.accept):
        await intake.wait_for_messages(3)
        await wait_until_uid_is_stored(connector_state, 3)
    again = FakeIntake()
    async with listen_in_background(connector(mail_servers, connector_state=connector_state), again.accept):
        await send_emails(mail_servers, make_email("The last", message_id="<last@example.org>"))
        await again.wait_for_messages(1)

    assert [each.message_id for each in intake.received] == ["n0@example.org", "n1@example.org", "n2@example.org"]
    assert [each.message_id for each in again.received] == ["last@example.org"]


async def test_email_that_was_in_the_mailbox_before_the_first_start_is_ignored(mail_servers: EmailServers) -> None:
    await send_emails(mail_servers, make_email("Old"))
    connector_state = InMemoryConnectorState()
    await read_mailbox_once(mail_servers, connector_state)
    intake = FakeIntake()
    async with listen_in_background(connector(mail_servers, connector_state=connector_state), intake.accept):
        await send_emails(mail_servers, make_email("New", message_id="<new@example.org>"))
        await intake.wait_for_messages(1)

    assert [each.message_id for each in intake.received] == ["new@example.org"]


async def test_an_email_is_marked_as_read_only_after_it_was_accepted(mail_servers: EmailServers) -> None:
    connector_state, intake = InMemoryConnectorState(), FakeIntake()
    await read_mailbox_once(mail_servers, connector_state)
    before = dict(connector_state.entries)
    await send_emails(mail_servers, make_email("Keep this"))
    intake.fail_times = 1
    with pytest.raises(RuntimeError):
        await connector(mail_servers, connector_state=connector_state).listen(intake.accept)

    assert mail_servers.count_read("retinue") == 0
    assert connector_state.entries == before

    async with listen_in_background(connector(mail_servers, connector_state=connector_state), intake.accept):
        await intake.wait_for_messages(1)
        await wait_until(lambda: mail_servers.count_read("retinue"), "the email is marked as read")


async def test_a_refused_email_stays_unread_and_is_not_offered_again(mail_servers: EmailServers) -> None:
    connector_state, intake = InMemoryConnectorState(), FakeIntake()
    await read_mailbox_once(mail_servers, connector_state)
    intake.refuse = True
    async with listen_in_background(connector(mail_servers, connector_state=connector_state), intake.accept):
        await send_emails(mail_servers, make_email("Let me in"))
        await wait_until_uid_is_stored(connector_state, 1)
    assert list(connector_state.entries) == ["heard/INBOX"]
    later = FakeIntake()
    later.refuse = True
    async with listen_in_background(connector(mail_servers, connector_state=connector_state), later.accept):
        await send_emails(mail_servers, make_email("And now?", message_id="<second@example.org>"))
        await later.wait_for_messages(1)

    assert [each.message_id for each in later.received] == ["second@example.org"]
    assert len(intake.received) == 1
    assert mail_servers.count_read("retinue") == 0


async def test_repeated_attempts_for_one_email_do_not_count_against_the_sender_rate(mail_servers: EmailServers) -> None:
    connector_state, intake = InMemoryConnectorState(), FakeIntake()
    await read_mailbox_once(mail_servers, connector_state)
    await send_emails(mail_servers, make_email("Patience"))
    made = connector(mail_servers, connector_state=connector_state, emails_per_hour=1)
    intake.fail_times = 3
    for _ in range(3):
        with pytest.raises(RuntimeError):
            await made.listen(intake.accept)
    async with listen_in_background(made, intake.accept):
        [received] = await intake.wait_for_messages(1)

    assert not received.sender.is_program


async def test_a_changed_imap_uidvalidity_loses_no_unread_email(mail_servers: EmailServers) -> None:
    connector_state, intake = InMemoryConnectorState(), FakeIntake()
    await read_mailbox_once(mail_servers, connector_state)
    async with listen_in_background(connector(mail_servers, connector_state=connector_state), intake.accept):
        await send_emails(mail_servers, make_email("Read", message_id="<read@example.org>"))
        await intake.wait_for_messages(1)
        await wait_until(lambda: mail_servers.count_read("retinue"), "the email is marked as read")
    await send_emails(mail_servers, make_email("Unread", message_id="<unread@example.org>"))
    mail_servers.reset_uid_validity("retinue")
    stored_position = connector_state.entries["heard/INBOX"]

    again = FakeIntake()
    async with listen_in_background(connector(mail_servers, connector_state=connector_state), again.accept):
        await again.wait_for_messages(1)
        await wait_until(lambda: connector_state.entries["heard/INBOX"] != stored_position, "the new UIDs are stored")
        await send_emails(mail_servers, make_email("Newer", message_id="<newer@example.org>"))
        await again.wait_for_messages(2)

    assert [each.message_id for each in again.received] == ["unread@example.org", "newer@example.org"]
    assert connector_state.entries["heard/INBOX"].partition(":")[0] != stored_position.partition(":")[0]


async def test_a_damaged_mailbox_position_is_repaired_by_searching_the_mailbox_again(
    mail_servers: EmailServers, caplog: pytest.LogCaptureFixture
) -> None:
    connector_state, intake = InMemoryConnectorState(), FakeIntake()
    await read_mailbox_once(mail_servers, connector_state)
    await send_emails(mail_servers, make_email("Still here", message_id="<still@example.org>"))
    connector_state.entries["heard/INBOX"] = "garbage"
    async with listen_in_background(connector(mail_servers, connector_state=connector_state), intake.accept):
        await intake.wait_for_messages(1)
        await wait_until(lambda: connector_state.entries["heard/INBOX"] != "garbage", "the damaged entry is replaced")

    assert "mailbox searched again" in caplog.text


async def test_an_unverified_email_sender_gets_a_channel_separate_from_the_real_address(
    mail_servers: EmailServers,
) -> None:
    connector_state, intake = InMemoryConnectorState(), FakeIntake()
    await read_mailbox_once(mail_servers, connector_state)
    async with listen_in_background(connector(mail_servers, connector_state=connector_state), intake.accept):
        await send_emails(mail_servers, make_email("It is I, Maria", message_id="<true@example.org>"))
        forged = make_email("It is I, Maria, too", message_id="<forged@example.org>")
        forged["References"] = "<true@example.org>"
        forged["Authentication-Results"] = f"{AUTHSERV}; dmarc=pass header.from=example.org"
        await send_emails(mail_servers, forged, login=None)
        true, false = await intake.wait_for_messages(2)

    assert (true.sender.id, true.sender.is_verified) == (MARIA_ADDRESS, True)
    assert (false.sender.id, false.sender.is_verified) == (f"unverified:{MARIA_ADDRESS}", False)
    assert false.channel != true.channel
    assert false.peer == f"unverified:{MARIA_ADDRESS}"


async def test_another_sender_who_references_an_email_thread_does_not_join_its_channel(
    mail_servers: EmailServers,
) -> None:
    connector_state, intake = InMemoryConnectorState(), FakeIntake()
    await read_mailbox_once(mail_servers, connector_state)
    async with listen_in_background(connector(mail_servers, connector_state=connector_state), intake.accept):
        await send_emails(mail_servers, make_email("Our secret", message_id="<ours@example.org>"))
        joined = make_email("Tell me too", sender="noor@example.org", message_id="<joined@example.org>")
        joined["References"] = "<ours@example.org>"
        await send_emails(mail_servers, joined, sender="noor@example.org", login="noor")
        first, second = await intake.wait_for_messages(2)

    assert second.sender.id == "noor@example.org"
    assert second.channel.startswith("noor@example.org/") and first.channel.startswith(f"{MARIA_ADDRESS}/")


async def test_own_email_that_returns_is_skipped_and_an_auto_reply_is_marked_as_automated(
    mail_servers: EmailServers,
) -> None:
    connector_state, intake = InMemoryConnectorState(), FakeIntake()
    await read_mailbox_once(mail_servers, connector_state)
    made = connector(mail_servers, connector_state=connector_state)
    async with listen_in_background(made, intake.accept):
        await made.deliver(make_delivery_part(SERVER_ADDRESS, "To myself"))
        away = make_email("I am away", message_id="<away@example.org>", Auto_Submitted="auto-replied")
        await send_emails(mail_servers, away)
        await intake.wait_for_messages(1)

    assert [(each.message_id, each.sender.is_program) for each in intake.received] == [("away@example.org", True)]


async def test_a_message_to_a_bare_email_address_starts_a_thread_and_its_reply_joins_the_thread(
    mail_servers: EmailServers,
) -> None:
    connector_state, intake = InMemoryConnectorState(), FakeIntake()
    await read_mailbox_once(mail_servers, connector_state)
    made = connector(mail_servers, connector_state=connector_state)
    async with listen_in_background(made, intake.accept):
        ours = await made.deliver(make_delivery_part(MARIA_ADDRESS, "The report is ready.\nIt is long."))
        sent = await mail_servers.wait_for_email("maria", ours.receipt)
        reply = make_email("Thanks", subject="Re: The report is ready.", message_id="<thanks@example.org>")
        reply["In-Reply-To"] = reply["References"] = f"<{ours.receipt}>"
        await send_emails(mail_servers, reply)
        [received] = await intake.wait_for_messages(1)
        back = await made.deliver(make_delivery_part(received.channel, "Gladly.", id="b" * 32))
        answer = await mail_servers.wait_for_email("maria", back.receipt)

    assert sent["Subject"] == "The report is ready."
    assert sent["Auto-Submitted"] == "auto-generated" and "In-Reply-To" not in sent
    assert received.quoted is not None and received.quoted.ours
    assert answer["References"].split() == [f"<{ours.receipt}>", "<thanks@example.org>"]
    assert answer["Subject"] == "Re: The report is ready."


async def test_an_email_thread_is_known_after_a_restart(mail_servers: EmailServers) -> None:
    connector_state, intake = InMemoryConnectorState(), FakeIntake()
    await read_mailbox_once(mail_servers, connector_state)
    async with listen_in_background(connector(mail_servers, connector_state=connector_state), intake.accept):
        await send_emails(mail_servers, make_email("Before", message_id="<before@example.org>"))
        [received] = await intake.wait_for_messages(1)
        await wait_until(lambda: f"threads/{MARIA_ADDRESS}" in connector_state.entries, "the thread is stored")

    delivery = await connector(mail_servers, connector_state=connector_state).deliver(
        make_delivery_part(received.channel, "After")
    )
    answer = await mail_servers.wait_for_email("maria", delivery.receipt)
    assert (answer["Subject"], answer["In-Reply-To"]) == ("Re: Lunch", "<before@example.org>")


@pytest.mark.parametrize("security", [EmailSecurity.TLS, EmailSecurity.STARTTLS])
async def test_email_is_received_and_sent_over_tls_and_starttls(
    mail_servers: EmailServers, security: EmailSecurity
) -> None:
    connector_state, intake = InMemoryConnectorState(), FakeIntake()
    await read_mailbox_once(mail_servers, connector_state)
    made = connector(
        mail_servers,
        connector_state=connector_state,
        ca_bundle=mail_servers.ca_bundle,
        imap_security=security,
        smtp_security=security,
        imap_port=mail_servers.imaps if security is EmailSecurity.TLS else mail_servers.imap,
        smtp_port=mail_servers.smtps if security is EmailSecurity.TLS else mail_servers.smtp,
    )
    assert (await made.check()).ok
    async with listen_in_background(made, intake.accept):
        await send_emails(mail_servers, make_email("Secretly"))
        [received] = await intake.wait_for_messages(1)
        delivery = await made.deliver(make_delivery_part(received.channel, "Quietly"))
        await mail_servers.wait_for_email("maria", delivery.receipt)


async def test_an_untrusted_imap_certificate_is_refused(mail_servers: EmailServers) -> None:
    made = connector(mail_servers, imap_security=EmailSecurity.TLS, imap_port=mail_servers.imaps)

    finding = await made.check()

    assert not finding.ok
    assert "certificate is not trusted" in finding.because


def test_email_settings_that_would_send_a_password_unencrypted_to_a_remote_host_are_invalid(
    mail_servers: EmailServers,
) -> None:
    with pytest.raises(Invalid, match="would not be encrypted"):
        connector(mail_servers, imap_host="mail.example.org")


async def test_a_wrong_email_password_needs_the_owner_and_appears_in_no_error_or_log(
    mail_servers: EmailServers, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    made = connector(mail_servers, password="the-wrong-one")
    with pytest.raises(ConnectionLost) as lost:
        await made.listen(FakeIntake().accept)
    with pytest.raises(DeliveryFailed) as failed:
        await made.deliver(make_delivery_part(MARIA_ADDRESS, "Hello"))
    finding = await made.check()

    assert lost.value.needs_owner
    assert (failed.value.kind, failed.value.permanent) == (FailureKind.INVALID_SENDER, False)
    assert not finding.ok and finding.account == SERVER_ADDRESS
    all_output = f"{lost.value} {failed.value} {finding} {caplog.text} {lost.value.__cause__} {failed.value.__cause__}"
    assert "the-wrong-one" not in all_output
    assert "dGhlLXdyb25nLW9uZQ" not in all_output


async def test_the_email_check_reports_the_account_and_a_missing_authserv_id_or_mailbox(
    mail_servers: EmailServers,
) -> None:
    good = await connector(mail_servers).check()
    unproved = await connector(mail_servers, authserv_id="").check()
    no_mailbox = await connector(mail_servers, mailbox="Nowhere").check()

    assert good.ok and good.account == SERVER_ADDRESS and not good.because
    assert unproved.ok and "authserv_id" in unproved.because
    assert not no_mailbox.ok and "Nowhere" in no_mailbox.because


async def test_a_stopped_imap_server_raises_connection_lost_and_its_email_is_received_after_restart(
    mail_servers: EmailServers,
) -> None:
    connector_state, intake = InMemoryConnectorState(), FakeIntake()
    await read_mailbox_once(mail_servers, connector_state)
    made = connector(mail_servers, connector_state=connector_state)
    async with listen_in_background(made, intake.accept) as task:
        await send_emails(mail_servers, make_email("Before", message_id="<before@example.org>"))
        await intake.wait_for_messages(1)
        mail_servers.stop("dovecot")
        with pytest.raises(ConnectionLost) as lost:
            async with asyncio.timeout(WAIT_LIMIT_S):
                await task
    assert not lost.value.needs_owner
    with pytest.raises(ConnectionLost):
        await made.listen(intake.accept)
    await send_emails(mail_servers, make_email("Meanwhile", message_id="<meanwhile@example.org>"))
    mail_servers.start("dovecot")
    async with listen_in_background(made, intake.accept):
        await intake.wait_for_messages(2)

    assert [each.message_id for each in intake.received] == ["before@example.org", "meanwhile@example.org"]


async def test_a_half_open_imap_connection_is_detected(mail_servers: EmailServers) -> None:
    connector_state = InMemoryConnectorState()
    await read_mailbox_once(mail_servers, connector_state)
    async with TcpProxy.to(mail_servers.imap) as proxy:
        intake = FakeIntake()
        async with listen_in_background(
            connector(
                mail_servers, connector_state=connector_state, imap_port=proxy.port, idle_s=60, answer_timeout_s=60
            ),
            intake.accept,
        ) as task:
            await send_emails(mail_servers, make_email("There?"))
            await intake.wait_for_messages(1)
            proxy.freeze()

            def later() -> bool:
                skip_loop_time(61)  # it checks whether the server is there, and then waits for the response
                return task.done()

            await wait_until(later, "the connection is given up", limit_s=24 * 3600)
            with pytest.raises(ConnectionLost, match="lost the connection"):
                await task


async def test_an_imap_server_without_idle_is_polled(mail_servers: EmailServers) -> None:
    connector_state, intake = InMemoryConnectorState(), FakeIntake()
    await read_mailbox_once(mail_servers, connector_state)
    async with TcpProxy.to(mail_servers.imap) as proxy:
        proxy.to_client = lambda piece: piece.replace(b" IDLE", b"")
        async with listen_in_background(
            connector(mail_servers, connector_state=connector_state, imap_port=proxy.port, poll_s=0.05), intake.accept
        ):
            await send_emails(mail_servers, make_email("First", message_id="<p1@example.org>"))
            await intake.wait_for_messages(1)
            await send_emails(mail_servers, make_email("Second", message_id="<p2@example.org>"))
            await intake.wait_for_messages(2)

    assert [each.message_id for each in intake.received] == ["p1@example.org", "p2@example.org"]


async def test_an_email_announced_in_the_response_to_store_is_received_at_once(mail_servers: EmailServers) -> None:
    """The server announces it only once, in that response. The connection then went idle for five minutes."""
    connector_state, intake = InMemoryConnectorState(), FakeIntake()
    await read_mailbox_once(mail_servers, connector_state)
    await send_emails(mail_servers, make_email("First", message_id="<first@example.org>"))
    async with TcpProxy.to(mail_servers.imap) as proxy:
        held = [make_email("Just now", message_id="<just@example.org>")]

        def hold(piece: bytes) -> bytes:
            if b" STORE " in piece and held:
                mail_servers.send_email(bytes(held.pop()))
            return piece

        proxy.to_server = hold
        async with listen_in_background(
            connector(mail_servers, connector_state=connector_state, imap_port=proxy.port), intake.accept
        ):
            await intake.wait_for_messages(2)

    assert [each.message_id for each in intake.received] == ["first@example.org", "just@example.org"]


@pytest.mark.parametrize("nth", range(1, 9))
async def test_an_imap_connection_cut_at_any_response_loses_and_duplicates_nothing(
    mail_servers: EmailServers, nth: int
) -> None:
    connector_state, intake = InMemoryConnectorState(), FakeIntake()
    await read_mailbox_once(mail_servers, connector_state)
    await send_emails(
        mail_servers, make_email("One", message_id="<c1@example.org>"), make_email("Two", message_id="<c2@example.org>")
    )
    async with TcpProxy.to(mail_servers.imap) as proxy:
        pieces = 0

        def cut(piece: bytes) -> bytes | None:
            nonlocal pieces
            pieces += 1
            return None if pieces == nth else piece

        proxy.to_client = cut
        made = connector(mail_servers, connector_state=connector_state, imap_port=proxy.port, idle_s=0.1)
        with pytest.raises(ConnectionLost):
            async with asyncio.timeout(WAIT_LIMIT_S):
                await made.listen(intake.accept)
    async with listen_in_background(
        made_again := connector(mail_servers, connector_state=connector_state), intake.accept
    ):
        await send_emails(mail_servers, make_email("Three", message_id="<c3@example.org>"))
        await wait_until(
            lambda: "c3@example.org" in [each.message_id for each in intake.received], "the third email is received"
        )

    assert made_again.name == "post"
    # The server recognizes a message by its id: a repeated one is a duplicate.
    assert list(dict.fromkeys(each.message_id for each in intake.received)) == [
        "c1@example.org",
        "c2@example.org",
        "c3@example.org",
    ]
    assert len(intake.received) <= 4


async def test_a_large_email_is_read_in_full_and_an_oversized_one_is_truncated(mail_servers: EmailServers) -> None:
    connector_state, intake = InMemoryConnectorState(), FakeIntake()
    await read_mailbox_once(mail_servers, connector_state)
    large = make_email("Large", message_id="<large@example.org>")
    large.add_attachment(b"x" * 700_000, maintype="application", subtype="x-odd", filename="large.bin")
    larger = make_email("Larger", message_id="<larger@example.org>")
    larger.add_attachment(b"y" * 1_400_000, maintype="application", subtype="x-odd", filename="larger.bin")
    async with listen_in_background(
        connector(mail_servers, connector_state=connector_state, email_bytes_max=1_500_000), intake.accept
    ):
        await send_emails(mail_servers, large, larger)
        first, second = await intake.wait_for_messages(2)

    assert intake.files["large.bin"] == b"x" * 700_000
    assert first.text == "Subject: Lunch\n\nLarge"
    assert second.text.startswith("Subject: Lunch\n\nLarger") and "larger than the limit" in second.text


async def test_malformed_email_does_not_block_the_mailbox(mail_servers: EmailServers) -> None:
    connector_state, intake = InMemoryConnectorState(), FakeIntake()
    await read_mailbox_once(mail_servers, connector_state)
    nested = b"".join(
        b"Content-Type: multipart/mixed; boundary=b%d\r\n\r\n--b%d\r\n" % (number, number) for number in range(2000)
    )
    head = f"From: {MARIA_ADDRESS}\r\nTo: {SERVER_ADDRESS}\r\nMessage-ID: <{{}}@example.org>\r\n".encode()
    async with listen_in_background(connector(mail_servers, connector_state=connector_state), intake.accept):
        await send_emails(mail_servers, head.replace(b"{}", b"deep") + nested)
        await send_emails(mail_servers, b"From: nobody at all\r\n\r\nwords")
        await send_emails(
            mail_servers, head.replace(b"{}", b"bad") + b"Content-Type: text/plain; charset=x\xff\r\n\r\n\x80\xff\0"
        )
        await send_emails(mail_servers, make_email("Good", message_id="<good@example.org>"))
        await wait_until(
            lambda: "good@example.org" in [each.message_id for each in intake.received], "the last email is received"
        )

    assert [each.message_id for each in intake.received] == ["deep@example.org", "bad@example.org", "good@example.org"]


def test_the_email_platform_declares_its_secret_and_its_capabilities(mail_servers: EmailServers) -> None:
    assert PLATFORM.name == "email" and {each.key for each in PLATFORM.questions if each.secret} == {"password"}
    abilities = get_capabilities(connector(mail_servers))
    assert abilities is not None
    assert abilities.can_send_files and abilities.can_quote and not abilities.can_edit and abilities.text_max >= 100_000
