"""Test outbound webhooks: signed requests to one URL, with a stable id and a definite result."""

from __future__ import annotations

import asyncio
import ssl
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from connectors.test_irc_tls import create_certificate
from connectors.webhook_instance import SECRET, WebhookReceiver, open_webhook_server, run_webhook_receiver, webhook

from retinue.connectors.base import DeliveryFailed, DeliveryPart, FailureKind, make_single_part
from retinue.connectors.webhook import webhook_request
from retinue.connectors.webhook.connector import WebhookConnector
from retinue.connectors.webhook.settings import SignatureScheme, WebhookSettings
from retinue.connectors.webhook.webhook_signature import verify_request
from retinue.domain import address
from retinue.domain.envelope import NO_CONTEXT, Envelope, EnvelopeKind, EnvelopeStatus
from retinue.domain.ids import EnvelopeId
from retinue.domain.trust import Trust
from retinue.testing.loop_time import skip_loop_time_on_increase
from retinue.testing.wait_conditions import wait_until

ACCEPTED_AT = datetime(2026, 3, 4, 5, 6, 7, tzinfo=UTC)


def envelope(text: str = "The build is mended.") -> Envelope:
    return Envelope(
        seq=1,
        id=EnvelopeId("a" * 32),
        sender=address.parse_address("agent:ada"),
        recipient=address.parse_address("channel:ci:builds/7"),
        session=None,
        kind=EnvelopeKind.ANSWER,
        text=text,
        attachments=(),
        context=NO_CONTEXT,
        reply_to=None,
        trust=Trust.AGENT,
        source="run",
        idempotency_key="1",
        silent=False,
        deliver_at=None,
        expires_at=None,
        due_at=ACCEPTED_AT,
        status=EnvelopeStatus.CLAIMED,
        attempts=1,
        accepted_at=ACCEPTED_AT,
        claimed_at=ACCEPTED_AT,
        settled_at=None,
        run=None,
        steered_into=None,
        retry_of=None,
    )


def make_connector_to(receiver: WebhookReceiver, **more: Any) -> WebhookConnector:
    return webhook(WebhookSettings(url=receiver.url, private_hosts=(receiver.host,), **more))


async def test_an_outbound_webhook_is_signed_and_keeps_its_webhook_id_when_sent_again() -> None:
    async with run_webhook_receiver() as receiver:
        connector = make_connector_to(receiver)
        delivery = await connector.deliver(make_single_part(envelope()))
        await connector.deliver(make_single_part(envelope()))
        assert delivery.receipt == "HTTP 200"
        assert connector.repeats_safely
        first, again = receiver.received_requests
        now_s = float(first.headers["webhook-timestamp"])
        assert verify_request(SignatureScheme.STANDARD, SECRET, first.headers, first.body, now_s=now_s) == "a" * 32
        assert first.headers["webhook-id"] == again.headers["webhook-id"]
        assert first.json == {
            "id": "a" * 32,
            "type": "message",
            "channel": "builds/7",
            "text": "The build is mended.",
            "sender": "agent:ada",
            "created_at": ACCEPTED_AT.isoformat(),
        }


async def test_each_part_of_a_long_message_has_its_own_webhook_id() -> None:
    async with run_webhook_receiver() as receiver:
        part = DeliveryPart(envelope=envelope(), text="second half", index=1, count=2)
        await make_connector_to(receiver).deliver(part)
        [received_request] = receiver.received_requests
        assert received_request.headers["webhook-id"] == f"{'a' * 32}/1"
        assert (received_request.json["part"], received_request.json["parts"], received_request.json["text"]) == (
            2,
            2,
            "second half",
        )


@pytest.mark.parametrize(
    ("status", "permanent", "kind"),
    [
        (500, False, FailureKind.SEND_FAILED),
        (503, False, FailureKind.SEND_FAILED),
        (408, False, FailureKind.SEND_FAILED),
        (429, False, FailureKind.THROTTLED),
        (400, True, FailureKind.SEND_FAILED),
        (401, True, FailureKind.INVALID_SENDER),
        (404, True, FailureKind.INVALID_ADDRESS),
        (410, True, FailureKind.INVALID_ADDRESS),
        (413, True, FailureKind.TOO_LARGE),
        (302, True, FailureKind.SEND_FAILED),
    ],
)
async def test_the_http_status_decides_whether_an_outbound_webhook_fails_permanently(
    status: int, permanent: bool, kind: FailureKind
) -> None:
    async with run_webhook_receiver() as receiver:
        receiver.statuses.append(status)
        receiver.headers["Location"] = receiver.url
        with pytest.raises(DeliveryFailed) as failed:
            await make_connector_to(receiver).deliver(make_single_part(envelope()))
        assert (failed.value.permanent, failed.value.kind) == (permanent, kind)
        assert f"HTTP {status}" in failed.value.sentence
        assert len(receiver.received_requests) == 1  # redirects are not followed


async def test_the_retry_after_header_of_a_webhook_receiver_sets_the_retry_delay() -> None:
    async with run_webhook_receiver() as receiver:
        receiver.statuses.append(429)
        receiver.headers["Retry-After"] = "17"
        with pytest.raises(DeliveryFailed) as failed:
            await make_connector_to(receiver).deliver(make_single_part(envelope()))
        assert failed.value.retry_after_s == 17


async def test_a_missing_http_response_leaves_the_result_of_an_outbound_webhook_unknown() -> None:
    async with run_webhook_receiver() as receiver:
        receiver.statuses.append(None)
        async with skip_loop_time_on_increase(60.0, count=lambda: len(receiver.received_requests)):
            with pytest.raises(ConnectionError):
                await make_connector_to(receiver, timeout_s=60.0).deliver(make_single_part(envelope()))


async def test_an_unreachable_webhook_receiver_is_a_temporary_failure() -> None:
    async with run_webhook_receiver() as receiver:
        connector = make_connector_to(receiver)
    with pytest.raises(DeliveryFailed) as failed:
        await connector.deliver(make_single_part(envelope()))
    assert not failed.value.permanent


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:1/", "http://localhost/", "http://[::1]/", "http://169.254.169.254/"]
)
async def test_a_webhook_to_a_private_address_is_refused_unless_listed_in_private_hosts(url: str) -> None:
    connector = webhook(WebhookSettings(url=url))
    with pytest.raises(DeliveryFailed) as failed:
        await connector.deliver(make_single_part(envelope()))
    assert (failed.value.permanent, failed.value.kind) == (True, FailureKind.INVALID_ADDRESS)
    assert not (await connector.check()).ok


async def test_a_webhook_to_a_hostname_that_resolves_to_loopback_is_refused() -> None:
    async def resolve_to_loopback(host: str, port: int) -> list[str]:
        return ["93.184.216.34", "127.0.0.1"]

    with pytest.raises(DeliveryFailed) as failed:
        await webhook_request.check_target("https://example.com/in", private_hosts=(), resolve=resolve_to_loopback)
    assert failed.value.permanent


async def test_a_webhook_to_the_cloud_metadata_address_is_refused_even_if_listed_in_private_hosts() -> None:
    with pytest.raises(DeliveryFailed):
        await webhook_request.check_target("http://169.254.169.254/", private_hosts=("169.254.169.254",))


@pytest.mark.parametrize("settings", [WebhookSettings(), WebhookSettings(url="https://example.com/in")])
async def test_a_webhook_without_a_url_or_secret_sends_nothing(settings: WebhookSettings) -> None:
    connector = webhook(settings, secret="" if settings.url else SECRET)
    with pytest.raises(DeliveryFailed) as failed:
        await connector.deliver(make_single_part(envelope()))
    assert failed.value.permanent


@pytest.mark.spec("C87")
async def test_an_answer_to_a_webhook_request_is_sent_again_with_the_same_id_after_a_503(
    tmp_path: Path,
) -> None:
    async with run_webhook_receiver() as receiver, open_webhook_server(tmp_path, make_connector_to(receiver)) as server:
        receiver.statuses.append(503)
        server.model.will_reply("The build is mended.")
        response = await server.send("ci/agent", {"message": "The build broke.", "sessionKey": "hook:builds"})
        assert response.status == 202
        await wait_until(lambda: len(receiver.received_requests) >= 2, "it is sent again")
        await server.rest()
        first, again = receiver.received_requests
        assert first.headers["webhook-id"] == again.headers["webhook-id"] == first.json["id"]
        assert (again.json["channel"], again.json["text"]) == ("builds", "The build is mended.")


async def test_no_webhook_is_sent_to_a_receiver_with_an_untrusted_certificate(tmp_path: Path) -> None:
    certificate = await create_certificate(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, certificate.with_suffix(".key"))
    received: list[bytes] = []

    async def read_connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received.append(await reader.read())
        writer.close()

    async with await asyncio.start_server(read_connection, "127.0.0.1", 0, ssl=context) as server:
        host = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        connector = webhook(WebhookSettings(url=f"https://{host}/in", private_hosts=(host,)))
        with pytest.raises(DeliveryFailed) as failed:
            await connector.deliver(make_single_part(envelope()))
    assert "certificate" in failed.value.sentence and not failed.value.permanent
    assert not any(received)
