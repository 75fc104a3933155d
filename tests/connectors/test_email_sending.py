"""A mail handed to a real exim: what surely was not taken, what surely was, and what nobody knows."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from connectors.email_instance import Wire, connector, parcel

from retinue.connectors.base import DeliveryFailed, FailureKind
from retinue.connectors.email import email_transport as lines
from retinue.connectors.email import smtp
from retinue.connectors.email.email_transport import EmailConnectionBroke, EmailCredentials
from retinue.connectors.email.message_builder import EmailSender, make_message_id
from retinue.connectors.email.settings import EmailLogin, EmailSecurity
from retinue.connectors.email.smtp import SendResultUnknown
from retinue.domain.attachment import Attachment
from retinue.testing.email_servers import MARIA_ADDRESS, EmailServers, run_email_servers
from retinue.testing.loop_time import skip_loop_time_on_increase

ID = make_message_id("a" * 32, EmailSender("house@house.test"))
DOT = b"\r\n.\r\n"


@pytest.fixture(scope="module")
def _open_office() -> Iterator[EmailServers]:
    with run_email_servers() as office:
        yield office


@pytest.fixture
def office(_open_office: EmailServers) -> EmailServers:
    _open_office.empty_mailboxes()
    return _open_office


async def refused(office: EmailServers, room: str) -> DeliveryFailed:
    with pytest.raises(DeliveryFailed) as failed:
        await connector(office).deliver(parcel(room, "Hello"))
    return failed.value


async def test_an_address_that_does_not_exist_is_refused_for_good(office: EmailServers) -> None:
    failure = await refused(office, "nobody@example.org")

    assert (failure.kind, failure.permanent) == (FailureKind.INVALID_ADDRESS, True)
    assert "no such person" in failure.because


async def test_a_server_that_asks_to_come_back_later_is_asked_again(office: EmailServers) -> None:
    failure = await refused(office, "later@example.org")

    assert (failure.kind, failure.permanent) == (FailureKind.THROTTLED, False)


async def test_what_is_no_address_is_never_brought_to_a_server(office: EmailServers) -> None:
    failure = await refused(office, "a@b.c> RCPT TO:<x@y.z")

    assert (failure.kind, failure.permanent) == (FailureKind.INVALID_ADDRESS, True)


async def test_a_mail_that_the_server_is_too_small_for_is_known_beforehand(
    office: EmailServers, tmp_path: Path
) -> None:
    content = b"x" * 4_000_000
    (tmp_path / "large").write_bytes(content)
    large = Attachment(
        hash=hashlib.sha256(content).hexdigest(), name="large.bin", media_type="a/b", size_bytes=len(content)
    )
    made = connector(office, path_of=lambda _: tmp_path / "large")
    with pytest.raises(DeliveryFailed) as failed:
        await made.deliver(parcel(MARIA_ADDRESS, "Here", files=(large,)))

    assert (failed.value.kind, failed.value.permanent) == (FailureKind.TOO_LARGE, True)
    assert office.read_mailbox("maria") == []


async def test_a_file_that_is_gone_is_not_sent_without(office: EmailServers) -> None:
    gone = Attachment(hash="0" * 64, name="gone.bin", media_type="a/b", size_bytes=3)
    with pytest.raises(DeliveryFailed) as failed:
        await connector(office).deliver(parcel(MARIA_ADDRESS, "Here", files=(gone,)))

    assert failed.value.permanent


async def test_a_server_that_is_not_there_has_taken_nothing(office: EmailServers) -> None:
    async with Wire.to(office.smtp) as wire:
        port = wire.port
    with pytest.raises(DeliveryFailed) as failed:
        await connector(office, smtp_port=port).deliver(parcel(MARIA_ADDRESS, "Hello"))

    assert not failed.value.permanent


@pytest.mark.parametrize("nth", range(1, 7))
async def test_a_line_that_breaks_before_the_final_dot_has_surely_taken_nothing(office: EmailServers, nth: int) -> None:
    async with Wire.to(office.smtp) as wire:
        answers = 0

        def cut(piece: bytes) -> bytes | None:
            nonlocal answers
            answers += 1
            return None if answers == nth else piece  # the sixth says that the mail may come

        wire.to_client = cut
        with pytest.raises(DeliveryFailed) as failed:
            await connector(office, smtp_port=wire.port).deliver(parcel(MARIA_ADDRESS, "Hello"))

    assert not failed.value.permanent
    assert office.read_mailbox("maria") == []
    await connector(office).deliver(parcel(MARIA_ADDRESS, "Hello"))
    await office.wait_for_email("maria", ID)
    assert len(office.read_mailbox("maria")) == 1


async def test_a_mail_that_was_taken_and_whose_answer_was_lost_is_in_doubt(office: EmailServers) -> None:
    async with Wire.to(office.smtp) as wire:
        dotted = False

        def see(piece: bytes) -> bytes:
            nonlocal dotted
            dotted = dotted or piece.endswith(b".\r\n")
            return piece

        wire.to_server = see
        wire.to_client = lambda piece: None if dotted else piece
        with pytest.raises(SendResultUnknown):
            await connector(office, smtp_port=wire.port).deliver(parcel(MARIA_ADDRESS, "Hello"))
        await office.wait_for_email("maria", ID)


async def test_a_final_dot_that_never_arrived_is_in_doubt_too(office: EmailServers) -> None:
    async with Wire.to(office.smtp) as wire:
        wire.to_server = lambda piece: None if piece.endswith(b".\r\n") else piece
        with pytest.raises(SendResultUnknown):
            await connector(office, smtp_port=wire.port).deliver(parcel(MARIA_ADDRESS, "Hello"))

    assert office.read_mailbox("maria") == []


async def test_a_server_that_says_no_after_the_final_dot_has_taken_nothing(office: EmailServers) -> None:
    async with Wire.to(office.smtp) as wire:
        wire.to_client = lambda piece: piece.replace(b"250 OK id=", b"554 5.7.1 no id=")
        with pytest.raises(DeliveryFailed) as failed:
            await connector(office, smtp_port=wire.port).deliver(parcel(MARIA_ADDRESS, "Hello"))

    assert failed.value.permanent


@pytest.mark.parametrize("nonsense", [b"hello\r\n", b"\xff\xfe\r\n", b"250-" + b"x" * 2_000_000, b"250-more\r\n" * 500])
async def test_a_server_that_speaks_something_else_is_no_mail_server(office: EmailServers, nonsense: bytes) -> None:
    async with Wire.to(office.smtp) as wire:
        wire.to_client = lambda _: nonsense
        with pytest.raises(DeliveryFailed):
            await connector(office, smtp_port=wire.port).deliver(parcel(MARIA_ADDRESS, "Hello"))


async def test_a_silent_server_is_given_up(office: EmailServers) -> None:
    async with Wire.to(office.smtp) as wire:
        wire.freeze()
        async with skip_loop_time_on_increase(
            61, count=lambda: wire.pieces
        ):  # the server's greeting does not come through
            with pytest.raises(DeliveryFailed, match="cannot reach"):
                await connector(office, smtp_port=wire.port, answer_s=60).deliver(parcel(MARIA_ADDRESS, "Hello"))


async def test_words_said_before_the_line_is_secured_break_it(office: EmailServers) -> None:
    async with Wire.to(office.smtp) as wire:
        wire.to_client = lambda piece: piece + b"250 injected\r\n" if b"TLS go ahead" in piece else piece
        made = connector(office, smtp_port=wire.port, smtp_security=EmailSecurity.STARTTLS, ca_bundle=office.ca_bundle)
        with pytest.raises(DeliveryFailed) as failed:
            await made.deliver(parcel(MARIA_ADDRESS, "Hello"))

    assert "before TLS was started" in failed.value.because


async def test_a_line_is_never_used_in_the_clear_where_it_was_to_be_secured(office: EmailServers) -> None:
    async with Wire.to(office.smtp) as wire:
        sent = b""

        def see(piece: bytes) -> bytes:
            nonlocal sent
            sent += piece
            return piece

        wire.to_server = see
        wire.to_client = lambda piece: piece.replace(b"250-STARTTLS\r\n", b"")
        made = connector(office, smtp_port=wire.port, smtp_security=EmailSecurity.STARTTLS, ca_bundle=office.ca_bundle)
        with pytest.raises(DeliveryFailed, match="refused STARTTLS"):
            await made.deliver(parcel(MARIA_ADDRESS, "Hello"))

    assert b"AUTH" not in sent


async def test_a_server_that_knows_only_the_older_way_to_log_in_is_spoken_to_in_it(office: EmailServers) -> None:
    async with Wire.to(office.smtp) as wire:
        wire.to_client = lambda piece: piece.replace(b"AUTH PLAIN LOGIN", b"AUTH LOGIN")
        await connector(office, smtp_port=wire.port).deliver(parcel(MARIA_ADDRESS, "Hello"))
    await office.wait_for_email("maria", ID)


async def test_an_access_token_is_handed_over_as_its_makers_want_it() -> None:
    """No server here takes these: what is written is held against the form that is documented for them."""
    said: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for answer in (b"220 x", b"250-x\r\n250 AUTH XOAUTH2", b"334 eyJzdGF0dXMiOiI0MDAifQ==", b"535 5.7.8 no"):
            writer.write(answer + b"\r\n")
            if not answer.startswith(b"535"):
                said.append(await reader.readline())
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    place = lines.EmailServer(host="127.0.0.1", port=server.sockets[0].getsockname()[1], security=EmailSecurity.NONE)
    credentials = EmailCredentials(username="house@x.test", secret="token", login=EmailLogin.XOAUTH2)
    with pytest.raises(smtp.SmtpRefused, match=r"5\.7\.8"):
        await smtp.SmtpClient.open(place, credentials, client_name="x.test")
    server.close()

    assert said[1:] == [b"AUTH XOAUTH2 dXNlcj1ob3VzZUB4LnRlc3QBYXV0aD1CZWFyZXIgdG9rZW4BAQ==\r\n", b"\r\n"]
    assert "token" not in repr(credentials)


def test_dots_and_bare_line_ends_cannot_end_a_mail_early() -> None:
    sent: list[bytes] = []

    class Paper(lines.EmailConnection):
        def __init__(self) -> None:
            self.replies = [b"250 ok", b"250 ok", b"354 go", b"250 taken"]

        async def send(self, data: bytes) -> None:
            sent.append(data)

        async def read_line(self, *, timeout_factor: float | None = 1.0) -> bytes:
            return self.replies.pop(0)

    hostile = b"Subject: x\r\n\r\n.\r\nMAIL FROM:<x@y>\n.\nRCPT\r.\r..end"
    assert asyncio.run(smtp.SmtpClient(Paper()).send(hostile, sender="a@b.c", recipient="d@e.f")) == "taken"

    assert sent[3] == b"Subject: x\r\n\r\n..\r\nMAIL FROM:<x@y>\r\n..\r\nRCPT\r\n..\r\n...end\r\n"
    assert sent[4] == b".\r\n"


async def test_a_second_command_cannot_be_slipped_in() -> None:
    with pytest.raises(smtp.SmtpRefused, match="more than one command"):
        await smtp.SmtpClient(lines.EmailConnection.__new__(lines.EmailConnection)).send(
            b"x", sender="a@b.c>\r\nRSET", recipient="d@e.f"
        )


async def test_a_line_that_breaks_is_told_from_a_refusal() -> None:
    with pytest.raises(EmailConnectionBroke, match="cannot reach"):
        await lines.EmailConnection.open(lines.EmailServer(host="127.0.0.1", port=1, security=EmailSecurity.NONE))
