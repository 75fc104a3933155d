"""Messages that leave as signed requests: to one place, known by one id, and with a clear word on what came of it."""

from __future__ import annotations

import asyncio
import ssl
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from connectors.test_irc_tls import certified
from connectors.webhook_instance import SECRET, FarSide, far_side, hook_house, webhook

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

AT = datetime(2026, 3, 4, 5, 6, 7, tzinfo=UTC)


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
        due_at=AT,
        status=EnvelopeStatus.CLAIMED,
        attempts=1,
        accepted_at=AT,
        claimed_at=AT,
        settled_at=None,
        run=None,
        steered_into=None,
        retry_of=None,
    )


def to(far: FarSide, **more: Any) -> WebhookConnector:
    return webhook(WebhookSettings(url=far.url, private_hosts=(far.host,), **more))


async def test_a_message_leaves_signed_and_bears_the_same_id_whenever_it_is_sent_again() -> None:
    async with far_side() as far:
        connector = to(far)
        delivery = await connector.deliver(make_single_part(envelope()))
        await connector.deliver(make_single_part(envelope()))
        assert delivery.receipt == "HTTP 200"
        assert connector.repeats_safely
        first, again = far.letters
        now_s = float(first.headers["webhook-timestamp"])
        assert verify_request(SignatureScheme.STANDARD, SECRET, first.headers, first.body, now_s=now_s) == "a" * 32
        assert first.headers["webhook-id"] == again.headers["webhook-id"]
        assert first.json == {
            "id": "a" * 32,
            "type": "message",
            "room": "builds/7",
            "text": "The build is mended.",
            "sender": "agent:ada",
            "createdAt": AT.isoformat(),
        }


async def test_the_parts_of_a_long_message_have_ids_of_their_own() -> None:
    async with far_side() as far:
        parcel = DeliveryPart(envelope=envelope(), text="second half", index=1, count=2)
        await to(far).deliver(parcel)
        [letter] = far.letters
        assert letter.headers["webhook-id"] == f"{'a' * 32}/1"
        assert (letter.json["part"], letter.json["parts"], letter.json["text"]) == (2, 2, "second half")


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
async def test_what_the_other_side_answers_says_whether_it_is_tried_again(
    status: int, permanent: bool, kind: FailureKind
) -> None:
    async with far_side() as far:
        far.statuses.append(status)
        far.headers["Location"] = far.url
        with pytest.raises(DeliveryFailed) as failed:
            await to(far).deliver(make_single_part(envelope()))
        assert (failed.value.permanent, failed.value.kind) == (permanent, kind)
        assert f"HTTP {status}" in failed.value.sentence
        assert len(far.letters) == 1  # nobody is followed elsewhere


async def test_how_long_the_other_side_asks_us_to_wait_is_heard() -> None:
    async with far_side() as far:
        far.statuses.append(429)
        far.headers["Retry-After"] = "17"
        with pytest.raises(DeliveryFailed) as failed:
            await to(far).deliver(make_single_part(envelope()))
        assert failed.value.retry_after_s == 17


async def test_where_the_other_side_never_answers_nobody_knows_whether_it_arrived() -> None:
    async with far_side() as far:
        far.statuses.append(None)
        async with skip_loop_time_on_increase(60.0, count=lambda: len(far.letters)):
            with pytest.raises(ConnectionError):
                await to(far, timeout_s=60.0).deliver(make_single_part(envelope()))


async def test_where_nobody_is_there_it_surely_did_not_arrive_and_is_tried_again() -> None:
    async with far_side() as far:
        connector = to(far)
    with pytest.raises(DeliveryFailed) as failed:
        await connector.deliver(make_single_part(envelope()))
    assert not failed.value.permanent


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:1/", "http://localhost/", "http://[::1]/", "http://169.254.169.254/"]
)
async def test_nothing_goes_to_this_machine_or_its_network_unless_the_settings_name_it(url: str) -> None:
    connector = webhook(WebhookSettings(url=url))
    with pytest.raises(DeliveryFailed) as failed:
        await connector.deliver(make_single_part(envelope()))
    assert (failed.value.permanent, failed.value.kind) == (True, FailureKind.INVALID_ADDRESS)
    assert not (await connector.check()).ok


async def test_a_name_that_means_this_machine_is_refused_for_its_address() -> None:
    async def rebound(host: str, port: int) -> list[str]:
        return ["93.184.216.34", "127.0.0.1"]

    with pytest.raises(DeliveryFailed) as failed:
        await webhook_request.check_target("https://example.com/in", private_hosts=(), resolve=rebound)
    assert failed.value.permanent


async def test_a_clouds_own_keys_are_not_to_be_had_even_where_the_settings_name_them() -> None:
    with pytest.raises(DeliveryFailed):
        await webhook_request.check_target("http://169.254.169.254/", private_hosts=("169.254.169.254",))


@pytest.mark.parametrize("settings", [WebhookSettings(), WebhookSettings(url="https://example.com/in")])
async def test_without_an_address_or_a_secret_nothing_leaves(settings: WebhookSettings) -> None:
    connector = webhook(settings, secret="" if settings.url else SECRET)
    with pytest.raises(DeliveryFailed) as failed:
        await connector.deliver(make_single_part(envelope()))
    assert failed.value.permanent


@pytest.mark.spec("C87")
async def test_what_an_agent_says_to_a_request_goes_out_signed_and_once_more_where_it_was_not_taken(
    tmp_path: Path,
) -> None:
    async with far_side() as far, hook_house(tmp_path, to(far)) as house:
        far.statuses.append(503)
        house.model.will_reply("The build is mended.")
        said = await house.send("ci/agent", {"message": "The build broke.", "sessionKey": "hook:builds"})
        assert said.status == 202
        await wait_until(lambda: len(far.letters) >= 2, "it is sent again")
        await house.rest()
        first, again = far.letters
        assert first.headers["webhook-id"] == again.headers["webhook-id"] == first.json["id"]
        assert (again.json["room"], again.json["text"]) == ("builds", "The build is mended.")


async def test_a_place_whose_certificate_nobody_vouches_for_is_told_nothing(tmp_path: Path) -> None:
    certificate = await certified(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, certificate.with_suffix(".key"))
    heard: list[bytes] = []

    async def hear(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append(await reader.read())
        writer.close()

    async with await asyncio.start_server(hear, "127.0.0.1", 0, ssl=context) as server:
        host = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        connector = webhook(WebhookSettings(url=f"https://{host}/in", private_hosts=(host,)))
        with pytest.raises(DeliveryFailed) as failed:
            await connector.deliver(make_single_part(envelope()))
    assert "certificate" in failed.value.sentence and not failed.value.permanent
    assert not any(heard)
