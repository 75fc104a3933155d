"""Test sending email to a real exim: which messages surely failed, which surely arrived, and which are in doubt."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from connectors.email_instance import TcpProxy, connector, make_delivery_part

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

MESSAGE_ID = make_message_id("a" * 32, EmailSender("retinue@retinue.test"))
FINAL_DOT = b"\r\n.\r\n"


@pytest.fixture(scope="module")
def shared_email_servers() -> Iterator[EmailServers]:
    with run_email_servers() as mail_servers:
        yield mail_servers


@pytest.fixture
def mail_servers(shared_email_servers: EmailServers) -> EmailServers:
    shared_email_servers.empty_mailboxes()
    return shared_email_servers


async def deliver_expecting_failure(mail_servers: EmailServers, channel: str) -> DeliveryFailed:
    with pytest.raises(DeliveryFailed) as failed:
        await connector(mail_servers).deliver(make_delivery_part(channel, "Hello"))
    return failed.value


async def test_sending_to_an_unknown_email_address_is_a_permanent_failure(mail_servers: EmailServers) -> None:
    failure = await deliver_expecting_failure(mail_servers, "unknown@example.org")

    assert (failure.kind, failure.permanent) == (FailureKind.INVALID_ADDRESS, True)
    assert "no such person" in failure.because


async def test_a_temporary_smtp_refusal_is_throttled_and_not_permanent(mail_servers: EmailServers) -> None:
    failure = await deliver_expecting_failure(mail_servers, "later@example.org")

    assert (failure.kind, failure.permanent) == (FailureKind.THROTTLED, False)


async def test_sending_to_an_invalid_email_address_is_a_permanent_failure(mail_servers: EmailServers) -> None:
    failure = await deliver_expecting_failure(mail_servers, "a@b.c> RCPT TO:<x@y.z")

    assert (failure.kind, failure.permanent) == (FailureKind.INVALID_ADDRESS, True)


async def test_an_email_above_the_smtp_size_limit_fails_before_it_is_sent(
    mail_servers: EmailServers, tmp_path: Path
) -> None:
    content = b"x" * 4_000_000
    (tmp_path / "large").write_bytes(content)
    large = Attachment(
        hash=hashlib.sha256(content).hexdigest(), name="large.bin", media_type="a/b", size_bytes=len(content)
    )
    made = connector(mail_servers, path_of=lambda _: tmp_path / "large")
    with pytest.raises(DeliveryFailed) as failed:
        await made.deliver(make_delivery_part(MARIA_ADDRESS, "Here", files=(large,)))

    assert (failed.value.kind, failed.value.permanent) == (FailureKind.TOO_LARGE, True)
    assert mail_servers.read_mailbox("maria") == []


async def test_sending_an_email_with_a_missing_attachment_file_is_a_permanent_failure(
    mail_servers: EmailServers,
) -> None:
    gone = Attachment(hash="0" * 64, name="gone.bin", media_type="a/b", size_bytes=3)
    with pytest.raises(DeliveryFailed) as failed:
        await connector(mail_servers).deliver(make_delivery_part(MARIA_ADDRESS, "Here", files=(gone,)))

    assert failed.value.permanent


async def test_an_unreachable_smtp_server_is_a_temporary_failure(mail_servers: EmailServers) -> None:
    async with TcpProxy.to(mail_servers.smtp) as proxy:
        port = proxy.port
    with pytest.raises(DeliveryFailed) as failed:
        await connector(mail_servers, smtp_port=port).deliver(make_delivery_part(MARIA_ADDRESS, "Hello"))

    assert not failed.value.permanent


@pytest.mark.parametrize("nth", range(1, 7))
async def test_an_smtp_connection_cut_before_the_final_dot_is_a_temporary_failure_and_sends_nothing(
    mail_servers: EmailServers, nth: int
) -> None:
    async with TcpProxy.to(mail_servers.smtp) as proxy:
        answers = 0

        def cut(piece: bytes) -> bytes | None:
            nonlocal answers
            answers += 1
            return None if answers == nth else piece  # the sixth reply asks for the message data

        proxy.to_client = cut
        with pytest.raises(DeliveryFailed) as failed:
            await connector(mail_servers, smtp_port=proxy.port).deliver(make_delivery_part(MARIA_ADDRESS, "Hello"))

    assert not failed.value.permanent
    assert mail_servers.read_mailbox("maria") == []
    await connector(mail_servers).deliver(make_delivery_part(MARIA_ADDRESS, "Hello"))
    await mail_servers.wait_for_email("maria", MESSAGE_ID)
    assert len(mail_servers.read_mailbox("maria")) == 1


async def test_a_lost_smtp_response_after_the_final_dot_makes_the_send_result_unknown(
    mail_servers: EmailServers,
) -> None:
    async with TcpProxy.to(mail_servers.smtp) as proxy:
        dotted = False

        def see(piece: bytes) -> bytes:
            nonlocal dotted
            dotted = dotted or piece.endswith(b".\r\n")
            return piece

        proxy.to_server = see
        proxy.to_client = lambda piece: None if dotted else piece
        with pytest.raises(SendResultUnknown):
            await connector(mail_servers, smtp_port=proxy.port).deliver(make_delivery_part(MARIA_ADDRESS, "Hello"))
        await mail_servers.wait_for_email("maria", MESSAGE_ID)


async def test_an_smtp_final_dot_that_never_arrived_makes_the_send_result_unknown(mail_servers: EmailServers) -> None:
    async with TcpProxy.to(mail_servers.smtp) as proxy:
        proxy.to_server = lambda piece: None if piece.endswith(b".\r\n") else piece
        with pytest.raises(SendResultUnknown):
            await connector(mail_servers, smtp_port=proxy.port).deliver(make_delivery_part(MARIA_ADDRESS, "Hello"))

    assert mail_servers.read_mailbox("maria") == []


async def test_an_smtp_refusal_after_the_final_dot_is_a_permanent_failure(mail_servers: EmailServers) -> None:
    async with TcpProxy.to(mail_servers.smtp) as proxy:
        proxy.to_client = lambda piece: piece.replace(b"250 OK id=", b"554 5.7.1 no id=")
        with pytest.raises(DeliveryFailed) as failed:
            await connector(mail_servers, smtp_port=proxy.port).deliver(make_delivery_part(MARIA_ADDRESS, "Hello"))

    assert failed.value.permanent


@pytest.mark.parametrize("nonsense", [b"hello\r\n", b"\xff\xfe\r\n", b"250-" + b"x" * 2_000_000, b"250-more\r\n" * 500])
async def test_nonsense_smtp_responses_are_a_delivery_failure(mail_servers: EmailServers, nonsense: bytes) -> None:
    async with TcpProxy.to(mail_servers.smtp) as proxy:
        proxy.to_client = lambda _: nonsense
        with pytest.raises(DeliveryFailed):
            await connector(mail_servers, smtp_port=proxy.port).deliver(make_delivery_part(MARIA_ADDRESS, "Hello"))


async def test_a_silent_smtp_server_times_out(mail_servers: EmailServers) -> None:
    async with TcpProxy.to(mail_servers.smtp) as proxy:
        proxy.freeze()
        async with skip_loop_time_on_increase(61, count=lambda: proxy.pieces):  # the server's greeting is not relayed
            with pytest.raises(DeliveryFailed, match="cannot reach"):
                await connector(mail_servers, smtp_port=proxy.port, answer_timeout_s=60).deliver(
                    make_delivery_part(MARIA_ADDRESS, "Hello")
                )


async def test_smtp_responses_injected_before_tls_fail_the_delivery(mail_servers: EmailServers) -> None:
    async with TcpProxy.to(mail_servers.smtp) as proxy:
        proxy.to_client = lambda piece: piece + b"250 injected\r\n" if b"TLS go ahead" in piece else piece
        made = connector(
            mail_servers, smtp_port=proxy.port, smtp_security=EmailSecurity.STARTTLS, ca_bundle=mail_servers.ca_bundle
        )
        with pytest.raises(DeliveryFailed) as failed:
            await made.deliver(make_delivery_part(MARIA_ADDRESS, "Hello"))

    assert "before TLS was started" in failed.value.because


async def test_smtp_credentials_are_not_sent_if_starttls_is_refused(mail_servers: EmailServers) -> None:
    async with TcpProxy.to(mail_servers.smtp) as proxy:
        sent = b""

        def see(piece: bytes) -> bytes:
            nonlocal sent
            sent += piece
            return piece

        proxy.to_server = see
        proxy.to_client = lambda piece: piece.replace(b"250-STARTTLS\r\n", b"")
        made = connector(
            mail_servers, smtp_port=proxy.port, smtp_security=EmailSecurity.STARTTLS, ca_bundle=mail_servers.ca_bundle
        )
        with pytest.raises(DeliveryFailed, match="refused STARTTLS"):
            await made.deliver(make_delivery_part(MARIA_ADDRESS, "Hello"))

    assert b"AUTH" not in sent


async def test_auth_login_is_used_if_the_smtp_server_has_no_auth_plain(mail_servers: EmailServers) -> None:
    async with TcpProxy.to(mail_servers.smtp) as proxy:
        proxy.to_client = lambda piece: piece.replace(b"AUTH PLAIN LOGIN", b"AUTH LOGIN")
        await connector(mail_servers, smtp_port=proxy.port).deliver(make_delivery_part(MARIA_ADDRESS, "Hello"))
    await mail_servers.wait_for_email("maria", MESSAGE_ID)


async def test_an_xoauth2_access_token_is_sent_to_the_smtp_server_in_the_documented_form() -> None:
    """No server here supports these tokens, so the sent bytes are compared with the documented form."""
    client_lines: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for answer in (b"220 x", b"250-x\r\n250 AUTH XOAUTH2", b"334 eyJzdGF0dXMiOiI0MDAifQ==", b"535 5.7.8 no"):
            writer.write(answer + b"\r\n")
            if not answer.startswith(b"535"):
                client_lines.append(await reader.readline())
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    place = lines.EmailServer(host="127.0.0.1", port=server.sockets[0].getsockname()[1], security=EmailSecurity.NONE)
    credentials = EmailCredentials(username="retinue@x.test", secret="token", login=EmailLogin.XOAUTH2)
    with pytest.raises(smtp.SmtpRefused, match=r"5\.7\.8"):
        await smtp.SmtpClient.open(place, credentials, client_name="x.test")
    server.close()

    assert client_lines[1:] == [b"AUTH XOAUTH2 dXNlcj1yZXRpbnVlQHgudGVzdAFhdXRoPUJlYXJlciB0b2tlbgEB\r\n", b"\r\n"]
    assert "token" not in repr(credentials)


def test_smtp_dot_stuffing_prevents_an_early_end_of_the_email() -> None:
    sent: list[bytes] = []

    class RecordingConnection(lines.EmailConnection):
        def __init__(self) -> None:
            self.replies = [b"250 ok", b"250 ok", b"354 go", b"250 taken"]

        async def send(self, data: bytes) -> None:
            sent.append(data)

        async def read_line(self, *, timeout_factor: float | None = 1.0) -> bytes:
            return self.replies.pop(0)

    hostile = b"Subject: x\r\n\r\n.\r\nMAIL FROM:<x@y>\n.\nRCPT\r.\r..end"
    assert (
        asyncio.run(smtp.SmtpClient(RecordingConnection()).send(hostile, sender="a@b.c", recipient="d@e.f")) == "taken"
    )

    assert sent[3] == b"Subject: x\r\n\r\n..\r\nMAIL FROM:<x@y>\r\n..\r\nRCPT\r\n..\r\n...end\r\n"
    assert sent[4] == b".\r\n"


async def test_an_smtp_address_with_a_line_break_cannot_inject_a_command() -> None:
    with pytest.raises(smtp.SmtpRefused, match="a line break"):
        await smtp.SmtpClient(lines.EmailConnection.__new__(lines.EmailConnection)).send(
            b"x", sender="a@b.c>\r\nRSET", recipient="d@e.f"
        )


async def test_an_unreachable_email_server_raises_connection_broke() -> None:
    with pytest.raises(EmailConnectionBroke, match="cannot reach"):
        await lines.EmailConnection.open(lines.EmailServer(host="127.0.0.1", port=1, security=EmailSecurity.NONE))
