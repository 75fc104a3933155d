"""A mailbox heard and an address that answers, with a real dovecot and a real exim."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from connectors.email_instance import Ear, MemoryShelf, Wire, connector, listening, mail, parcel

from retinue.connectors.base import ConnectionLost, DeliveryFailed, FailureKind, get_capabilities
from retinue.connectors.email import PLATFORM
from retinue.connectors.email.settings import EmailSecurity
from retinue.domain.attachment import Attachment
from retinue.domain.errors import Invalid
from retinue.testing.email_servers import AUTHSERV, MARIA_ADDRESS, SERVER_ADDRESS, EmailServers, run_email_servers
from retinue.testing.loop_time import skip_loop_time
from retinue.testing.wait_conditions import WAIT_LIMIT_S, wait_until


@pytest.fixture(scope="module")
def _open_office() -> Iterator[EmailServers]:
    with run_email_servers() as office:
        yield office


@pytest.fixture
def office(_open_office: EmailServers) -> EmailServers:
    _open_office.empty_mailboxes()
    return _open_office


async def begun(office: EmailServers, shelf: MemoryShelf) -> None:
    """Have the connector begin: what comes from here on is heard."""
    ear = Ear()
    async with listening(connector(office, shelf=shelf), ear.accept):
        await wait_until(lambda: "heard/INBOX" in shelf.words, "the connector has looked into the mailbox")


async def noted(shelf: MemoryShelf, uid: int) -> None:
    """Once the connector has written down that it heard so far. Mails are numbered from 1."""
    await wait_until(
        lambda: shelf.words["heard/INBOX"].endswith(f":{uid}"), "it is written down", describe=lambda: shelf.words
    )


async def hand_in(office: EmailServers, *mails: object, **how: object) -> None:
    for each in mails:
        await asyncio.to_thread(office.send_email, bytes(each), **how)  # type: ignore[arg-type]


async def test_a_question_by_mail_is_heard_and_its_answer_stands_in_the_same_thread(office: EmailServers) -> None:
    shelf, ear = MemoryShelf(), Ear()
    await begun(office, shelf)
    made = connector(office, shelf=shelf)
    async with listening(made, ear.accept):
        await hand_in(office, mail("When is lunch?", message_id="<q1@example.org>"))
        [question] = await ear.hears(1)
        delivery = await made.deliver(parcel(question.room, "At noon.\n.\nBring bread.", quote=question.message_id))
        answer = await office.wait_for_email("maria", delivery.receipt)

    assert question.text == "Subject: Lunch\n\nWhen is lunch?"
    assert question.speaker.id == question.peer == MARIA_ADDRESS
    assert question.speaker.vouched and not question.speaker.is_program
    assert question.room.startswith(f"{MARIA_ADDRESS}/")
    assert answer["Subject"] == "Re: Lunch"
    assert answer["In-Reply-To"] == answer["References"] == "<q1@example.org>"
    assert answer["Auto-Submitted"] == "auto-replied"
    assert answer["From"] == f'"The House" <{SERVER_ADDRESS}>' or answer["From"] == f"The House <{SERVER_ADDRESS}>"
    assert answer.get_content().splitlines() == ["At noon.", ".", "Bring bread."]


async def test_a_second_mail_is_heard_while_the_line_is_idle_and_a_reply_comes_into_the_same_room(
    office: EmailServers,
) -> None:
    shelf, ear = MemoryShelf(), Ear()
    await begun(office, shelf)
    made = connector(office, shelf=shelf)
    async with listening(made, ear.accept):
        await hand_in(office, mail("One?", message_id="<one@example.org>"))
        [first] = await ear.hears(1)
        ours = await made.deliver(parcel(first.room, "One.", quote=first.message_id))
        # Some programs name only the mail they answer, and not the thread.
        again = mail(
            "Two?\n\nOn Monday, The House wrote:\n> One.\n", subject="Re: Lunch", message_id="<two@example.org>"
        )
        again["In-Reply-To"] = f"<{ours.receipt}>"
        await hand_in(office, again)
        _, second = await ear.hears(2)

    assert second.room == first.room
    assert second.text == "Two?"
    assert second.quoted is not None and second.quoted.ours
    assert second.quoted.message_id == ours.receipt
    assert second.quoted.text == "On Monday, The House wrote:\n> One."


async def test_a_file_comes_in_and_goes_out_unchanged(office: EmailServers, tmp_path: Path) -> None:
    shelf, ear = MemoryShelf(), Ear()
    await begun(office, shelf)
    content = bytes(range(256)) * 2000
    attachment = Attachment(
        hash=hashlib.sha256(content).hexdigest(),
        name="Übersicht ü.bin",
        media_type="application/x-odd",
        size_bytes=len(content),
    )
    (tmp_path / attachment.hash).write_bytes(content)
    made = connector(office, shelf=shelf, path_of=lambda each: tmp_path / each.hash)
    async with listening(made, ear.accept):
        sent = mail("Here it is.")
        sent.add_attachment(content, maintype="application", subtype="x-odd", filename="../../Größe.bin")
        await hand_in(office, sent)
        [heard] = await ear.hears(1)
        delivery = await made.deliver(parcel(heard.room, "And back.", files=(attachment,)))
        answer = await office.wait_for_email("maria", delivery.receipt)

    assert [(each.name, each.media_type) for each in heard.files] == [("Größe.bin", "application/x-odd")]
    assert ear.files == {"Größe.bin": content}
    [back] = answer.iter_attachments()
    assert back.get_filename() == "Übersicht ü.bin"
    assert back.get_content() == content
    body = answer.get_body()
    assert body is not None and body.get_content() == "And back.\n"


async def test_mail_that_came_while_the_house_was_closed_is_heard_in_order_and_once(office: EmailServers) -> None:
    shelf = MemoryShelf()
    await begun(office, shelf)
    for number in range(3):
        await hand_in(office, mail(f"Number {number}", message_id=f"<n{number}@example.org>"))

    ear = Ear()
    async with listening(connector(office, shelf=shelf), ear.accept):
        await ear.hears(3)
        await noted(shelf, 3)
    again = Ear()
    async with listening(connector(office, shelf=shelf), again.accept):
        await hand_in(office, mail("The last", message_id="<last@example.org>"))
        await again.hears(1)

    assert [each.message_id for each in ear.heard] == ["n0@example.org", "n1@example.org", "n2@example.org"]
    assert [each.message_id for each in again.heard] == ["last@example.org"]


async def test_mail_that_lay_there_before_the_house_came_is_nobodys_question(office: EmailServers) -> None:
    await hand_in(office, mail("Old"))
    shelf = MemoryShelf()
    await begun(office, shelf)
    ear = Ear()
    async with listening(connector(office, shelf=shelf), ear.accept):
        await hand_in(office, mail("New", message_id="<new@example.org>"))
        await ear.hears(1)

    assert [each.message_id for each in ear.heard] == ["new@example.org"]


async def test_mail_is_marked_as_read_only_when_the_house_has_it(office: EmailServers) -> None:
    shelf, ear = MemoryShelf(), Ear()
    await begun(office, shelf)
    before = dict(shelf.words)
    await hand_in(office, mail("Keep this"))
    ear.fail_times = 1
    with pytest.raises(RuntimeError):
        await connector(office, shelf=shelf).listen(ear.accept)

    assert office.count_read("house") == 0
    assert shelf.words == before

    async with listening(connector(office, shelf=shelf), ear.accept):
        await ear.hears(1)
        await wait_until(lambda: office.count_read("house"), "the mail is marked as read")


async def test_refused_mail_is_left_unread_and_is_not_offered_again(office: EmailServers) -> None:
    shelf, ear = MemoryShelf(), Ear()
    await begun(office, shelf)
    ear.refuse = True
    async with listening(connector(office, shelf=shelf), ear.accept):
        await hand_in(office, mail("Let me in"))
        await noted(shelf, 1)
    assert list(shelf.words) == ["heard/INBOX"]
    later = Ear()
    later.refuse = True
    async with listening(connector(office, shelf=shelf), later.accept):
        await hand_in(office, mail("And now?", message_id="<second@example.org>"))
        await later.hears(1)

    assert [each.message_id for each in later.heard] == ["second@example.org"]
    assert len(ear.heard) == 1
    assert office.count_read("house") == 0


async def test_a_mail_offered_again_and_again_does_not_make_its_writer_a_program(office: EmailServers) -> None:
    shelf, ear = MemoryShelf(), Ear()
    await begun(office, shelf)
    await hand_in(office, mail("Patience"))
    made = connector(office, shelf=shelf, mails_per_hour=1)
    ear.fail_times = 3
    for _ in range(3):
        with pytest.raises(RuntimeError):
            await made.listen(ear.accept)
    async with listening(made, ear.accept):
        [heard] = await ear.hears(1)

    assert not heard.speaker.is_program


async def test_a_mailbox_that_was_numbered_anew_loses_no_unread_mail(office: EmailServers) -> None:
    shelf, ear = MemoryShelf(), Ear()
    await begun(office, shelf)
    async with listening(connector(office, shelf=shelf), ear.accept):
        await hand_in(office, mail("Read", message_id="<read@example.org>"))
        await ear.hears(1)
        await wait_until(lambda: office.count_read("house"), "the mail is marked as read")
    await hand_in(office, mail("Unread", message_id="<unread@example.org>"))
    office.reset_uid_validity("house")
    shelf_before = shelf.words["heard/INBOX"]

    again = Ear()
    async with listening(connector(office, shelf=shelf), again.accept):
        await again.hears(1)
        await wait_until(lambda: shelf.words["heard/INBOX"] != shelf_before, "the new numbers are written down")
        await hand_in(office, mail("Newer", message_id="<newer@example.org>"))
        await again.hears(2)

    assert [each.message_id for each in again.heard] == ["unread@example.org", "newer@example.org"]
    assert shelf.words["heard/INBOX"].partition(":")[0] != shelf_before.partition(":")[0]


async def test_a_damaged_note_of_how_far_was_heard_is_made_good(
    office: EmailServers, caplog: pytest.LogCaptureFixture
) -> None:
    shelf, ear = MemoryShelf(), Ear()
    await begun(office, shelf)
    await hand_in(office, mail("Still here", message_id="<still@example.org>"))
    shelf.words["heard/INBOX"] = "garbage"
    async with listening(connector(office, shelf=shelf), ear.accept):
        await ear.hears(1)
        await wait_until(lambda: shelf.words["heard/INBOX"] != "garbage", "the note is made good")

    assert "mailbox searched again" in caplog.text


async def test_somebody_who_only_claims_an_address_is_in_a_room_of_their_own(office: EmailServers) -> None:
    shelf, ear = MemoryShelf(), Ear()
    await begun(office, shelf)
    async with listening(connector(office, shelf=shelf), ear.accept):
        await hand_in(office, mail("It is I, Maria", message_id="<true@example.org>"))
        forged = mail("It is I, Maria, too", message_id="<forged@example.org>")
        forged["References"] = "<true@example.org>"
        forged["Authentication-Results"] = f"{AUTHSERV}; dmarc=pass header.from=example.org"
        await hand_in(office, forged, login=None)
        true, false = await ear.hears(2)

    assert (true.speaker.id, true.speaker.vouched) == (MARIA_ADDRESS, True)
    assert (false.speaker.id, false.speaker.vouched) == (f"unverified:{MARIA_ADDRESS}", False)
    assert false.room != true.room
    assert false.peer == f"unverified:{MARIA_ADDRESS}"


async def test_another_who_knows_the_ids_of_a_thread_is_not_in_its_room(office: EmailServers) -> None:
    shelf, ear = MemoryShelf(), Ear()
    await begun(office, shelf)
    async with listening(connector(office, shelf=shelf), ear.accept):
        await hand_in(office, mail("Our secret", message_id="<ours@example.org>"))
        joined = mail("Tell me too", sender="noor@example.org", message_id="<joined@example.org>")
        joined["References"] = "<ours@example.org>"
        await hand_in(office, joined, sender="noor@example.org", login="noor")
        first, second = await ear.hears(2)

    assert second.speaker.id == "noor@example.org"
    assert second.room.startswith("noor@example.org/") and first.room.startswith(f"{MARIA_ADDRESS}/")


async def test_our_own_mail_that_comes_back_is_passed_over_and_an_answering_machine_is_known_as_one(
    office: EmailServers,
) -> None:
    shelf, ear = MemoryShelf(), Ear()
    await begun(office, shelf)
    made = connector(office, shelf=shelf)
    async with listening(made, ear.accept):
        await made.deliver(parcel(SERVER_ADDRESS, "To myself"))
        away = mail("I am away", message_id="<away@example.org>", Auto_Submitted="auto-replied")
        await hand_in(office, away)
        await ear.hears(1)

    assert [(each.message_id, each.speaker.is_program) for each in ear.heard] == [("away@example.org", True)]


async def test_a_new_thread_begins_with_an_address_alone_and_its_reply_is_known(office: EmailServers) -> None:
    shelf, ear = MemoryShelf(), Ear()
    await begun(office, shelf)
    made = connector(office, shelf=shelf)
    async with listening(made, ear.accept):
        ours = await made.deliver(parcel(MARIA_ADDRESS, "The report is ready.\nIt is long."))
        sent = await office.wait_for_email("maria", ours.receipt)
        reply = mail("Thanks", subject="Re: The report is ready.", message_id="<thanks@example.org>")
        reply["In-Reply-To"] = reply["References"] = f"<{ours.receipt}>"
        await hand_in(office, reply)
        [heard] = await ear.hears(1)
        back = await made.deliver(parcel(heard.room, "Gladly.", id="b" * 32))
        answer = await office.wait_for_email("maria", back.receipt)

    assert sent["Subject"] == "The report is ready."
    assert sent["Auto-Submitted"] == "auto-generated" and "In-Reply-To" not in sent
    assert heard.quoted is not None and heard.quoted.ours
    assert answer["References"].split() == [f"<{ours.receipt}>", "<thanks@example.org>"]
    assert answer["Subject"] == "Re: The report is ready."


async def test_the_thread_is_known_after_a_restart(office: EmailServers) -> None:
    shelf, ear = MemoryShelf(), Ear()
    await begun(office, shelf)
    async with listening(connector(office, shelf=shelf), ear.accept):
        await hand_in(office, mail("Before", message_id="<before@example.org>"))
        [heard] = await ear.hears(1)
        await wait_until(lambda: f"threads/{MARIA_ADDRESS}" in shelf.words, "the thread is written down")

    delivery = await connector(office, shelf=shelf).deliver(parcel(heard.room, "After"))
    answer = await office.wait_for_email("maria", delivery.receipt)
    assert (answer["Subject"], answer["In-Reply-To"]) == ("Re: Lunch", "<before@example.org>")


@pytest.mark.parametrize("security", [EmailSecurity.TLS, EmailSecurity.STARTTLS])
async def test_a_secured_line_reads_and_sends(office: EmailServers, security: EmailSecurity) -> None:
    shelf, ear = MemoryShelf(), Ear()
    await begun(office, shelf)
    made = connector(
        office,
        shelf=shelf,
        ca_bundle=office.ca_bundle,
        imap_security=security,
        smtp_security=security,
        imap_port=office.imaps if security is EmailSecurity.TLS else office.imap,
        smtp_port=office.smtps if security is EmailSecurity.TLS else office.smtp,
    )
    assert (await made.check()).ok
    async with listening(made, ear.accept):
        await hand_in(office, mail("Secretly"))
        [heard] = await ear.hears(1)
        delivery = await made.deliver(parcel(heard.room, "Quietly"))
        await office.wait_for_email("maria", delivery.receipt)


async def test_a_certificate_that_nobody_vouches_for_is_refused(office: EmailServers) -> None:
    made = connector(office, imap_security=EmailSecurity.TLS, imap_port=office.imaps)

    finding = await made.check()

    assert not finding.ok
    assert "certificate is not trusted" in finding.because


def test_a_password_never_leaves_this_machine_in_the_clear(office: EmailServers) -> None:
    with pytest.raises(Invalid, match="would not be encrypted"):
        connector(office, imap_host="mail.example.org")


async def test_a_wrong_password_is_the_owners_to_mend_and_is_told_nowhere(
    office: EmailServers, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    made = connector(office, password="the-wrong-one")
    with pytest.raises(ConnectionLost) as lost:
        await made.listen(Ear().accept)
    with pytest.raises(DeliveryFailed) as failed:
        await made.deliver(parcel(MARIA_ADDRESS, "Hello"))
    finding = await made.check()

    assert lost.value.needs_owner
    assert (failed.value.kind, failed.value.permanent) == (FailureKind.INVALID_SENDER, False)
    assert not finding.ok and finding.account == SERVER_ADDRESS
    told = f"{lost.value} {failed.value} {finding} {caplog.text} {lost.value.__cause__} {failed.value.__cause__}"
    assert "the-wrong-one" not in told
    assert "dGhlLXdyb25nLW9uZQ" not in told


async def test_who_is_there_is_told_and_what_is_missing_for_proof(office: EmailServers) -> None:
    good = await connector(office).check()
    unproved = await connector(office, authserv_id="").check()
    no_mailbox = await connector(office, mailbox="Nowhere").check()

    assert good.ok and good.account == SERVER_ADDRESS and not good.because
    assert unproved.ok and "authserv_id" in unproved.because
    assert not no_mailbox.ok and "Nowhere" in no_mailbox.because


async def test_a_server_that_goes_away_is_a_lost_line_and_one_that_comes_back_is_heard(office: EmailServers) -> None:
    shelf, ear = MemoryShelf(), Ear()
    await begun(office, shelf)
    made = connector(office, shelf=shelf)
    async with listening(made, ear.accept) as task:
        await hand_in(office, mail("Before", message_id="<before@example.org>"))
        await ear.hears(1)
        office.stop("dovecot")
        with pytest.raises(ConnectionLost) as lost:
            async with asyncio.timeout(WAIT_LIMIT_S):
                await task
    assert not lost.value.needs_owner
    with pytest.raises(ConnectionLost):
        await made.listen(ear.accept)
    await hand_in(office, mail("Meanwhile", message_id="<meanwhile@example.org>"))
    office.start("dovecot")
    async with listening(made, ear.accept):
        await ear.hears(2)

    assert [each.message_id for each in ear.heard] == ["before@example.org", "meanwhile@example.org"]


async def test_a_line_that_is_only_half_open_is_noticed(office: EmailServers) -> None:
    shelf = MemoryShelf()
    await begun(office, shelf)
    async with Wire.to(office.imap) as wire:
        ear = Ear()
        async with listening(
            connector(office, shelf=shelf, imap_port=wire.port, idle_s=60, answer_s=60), ear.accept
        ) as task:
            await hand_in(office, mail("There?"))
            await ear.hears(1)
            wire.freeze()

            def later() -> bool:
                skip_loop_time(61)  # it asks whether the server is there, and then waits for the answer
                return task.done()

            await wait_until(later, "the line is given up", limit_s=24 * 3600)
            with pytest.raises(ConnectionLost, match="lost the connection"):
                await task


async def test_a_server_that_does_not_tell_by_itself_is_asked(office: EmailServers) -> None:
    shelf, ear = MemoryShelf(), Ear()
    await begun(office, shelf)
    async with Wire.to(office.imap) as wire:
        wire.to_client = lambda piece: piece.replace(b" IDLE", b"")
        async with listening(connector(office, shelf=shelf, imap_port=wire.port, poll_s=0.05), ear.accept):
            await hand_in(office, mail("First", message_id="<p1@example.org>"))
            await ear.hears(1)
            await hand_in(office, mail("Second", message_id="<p2@example.org>"))
            await ear.hears(2)

    assert [each.message_id for each in ear.heard] == ["p1@example.org", "p2@example.org"]


async def test_mail_that_comes_while_another_is_marked_as_read_is_heard_at_once(office: EmailServers) -> None:
    """The server tells of it once, in its answer to that. The line went idle then, for five minutes."""
    shelf, ear = MemoryShelf(), Ear()
    await begun(office, shelf)
    await hand_in(office, mail("First", message_id="<first@example.org>"))
    async with Wire.to(office.imap) as wire:
        held = [mail("Just now", message_id="<just@example.org>")]

        def hold(piece: bytes) -> bytes:
            if b" STORE " in piece and held:
                office.send_email(bytes(held.pop()))
            return piece

        wire.to_server = hold
        async with listening(connector(office, shelf=shelf, imap_port=wire.port), ear.accept):
            await ear.hears(2)

    assert [each.message_id for each in ear.heard] == ["first@example.org", "just@example.org"]


@pytest.mark.parametrize("nth", range(1, 9))
async def test_a_line_cut_at_any_answer_of_the_server_loses_and_doubles_nothing(office: EmailServers, nth: int) -> None:
    shelf, ear = MemoryShelf(), Ear()
    await begun(office, shelf)
    await hand_in(office, mail("One", message_id="<c1@example.org>"), mail("Two", message_id="<c2@example.org>"))
    async with Wire.to(office.imap) as wire:
        pieces = 0

        def cut(piece: bytes) -> bytes | None:
            nonlocal pieces
            pieces += 1
            return None if pieces == nth else piece

        wire.to_client = cut
        made = connector(office, shelf=shelf, imap_port=wire.port, idle_s=0.1)
        with pytest.raises(ConnectionLost):
            async with asyncio.timeout(WAIT_LIMIT_S):
                await made.listen(ear.accept)
    async with listening(made_again := connector(office, shelf=shelf), ear.accept):
        await hand_in(office, mail("Three", message_id="<c3@example.org>"))
        await wait_until(lambda: "c3@example.org" in [each.message_id for each in ear.heard], "the third is heard")

    assert made_again.name == "post"
    # The house knows a message by its id: one that is offered again is the same one.
    assert list(dict.fromkeys(each.message_id for each in ear.heard)) == [
        "c1@example.org",
        "c2@example.org",
        "c3@example.org",
    ]
    assert len(ear.heard) <= 4


async def test_large_mail_is_read_whole_and_larger_mail_in_its_beginning(office: EmailServers) -> None:
    shelf, ear = MemoryShelf(), Ear()
    await begun(office, shelf)
    large = mail("Large", message_id="<large@example.org>")
    large.add_attachment(b"x" * 700_000, maintype="application", subtype="x-odd", filename="large.bin")
    larger = mail("Larger", message_id="<larger@example.org>")
    larger.add_attachment(b"y" * 1_400_000, maintype="application", subtype="x-odd", filename="larger.bin")
    async with listening(connector(office, shelf=shelf, mail_bytes_max=1_500_000), ear.accept):
        await hand_in(office, large, larger)
        first, second = await ear.hears(2)

    assert ear.files["large.bin"] == b"x" * 700_000
    assert first.text == "Subject: Lunch\n\nLarge"
    assert second.text.startswith("Subject: Lunch\n\nLarger") and "larger than the limit" in second.text


async def test_hostile_mail_does_not_stop_the_mailbox(office: EmailServers) -> None:
    shelf, ear = MemoryShelf(), Ear()
    await begun(office, shelf)
    nested = b"".join(
        b"Content-Type: multipart/mixed; boundary=b%d\r\n\r\n--b%d\r\n" % (number, number) for number in range(2000)
    )
    head = f"From: {MARIA_ADDRESS}\r\nTo: {SERVER_ADDRESS}\r\nMessage-ID: <{{}}@example.org>\r\n".encode()
    async with listening(connector(office, shelf=shelf), ear.accept):
        await hand_in(office, head.replace(b"{}", b"deep") + nested)
        await hand_in(office, b"From: nobody at all\r\n\r\nwords")
        await hand_in(
            office, head.replace(b"{}", b"bad") + b"Content-Type: text/plain; charset=x\xff\r\n\r\n\x80\xff\0"
        )
        await hand_in(office, mail("Good", message_id="<good@example.org>"))
        await wait_until(lambda: "good@example.org" in [each.message_id for each in ear.heard], "the last is heard")

    assert [each.message_id for each in ear.heard] == ["deep@example.org", "bad@example.org", "good@example.org"]


def test_the_kind_makes_a_connector_and_says_what_it_can(office: EmailServers) -> None:
    assert PLATFORM.name == "email" and {each.key for each in PLATFORM.questions if each.secret} == {"password"}
    abilities = get_capabilities(connector(office))
    assert abilities is not None
    assert abilities.can_send_files and abilities.can_quote and not abilities.can_edit and abilities.text_max >= 100_000
