"""Test conversations by webhook with a server process that is killed in between."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Any

import aiohttp
import pytest
from connectors.server_process import AFTER_ACCEPT, AFTER_PLATFORM_SEND, ServerWithProvider, open_server_with_provider
from connectors.webhook_instance import SECRET, WebhookReceiver, run_webhook_receiver, sign_headers
from flows.fake_provider import says

from retinue.connectors.webhook.settings import SignatureScheme
from retinue.connectors.webhook.webhook_signature import verify_request
from retinue.testing.wait_conditions import wait_until

SETTINGS = """
[connectors.ci]
platform = "webhook"
secret_file = "{home}/ci-secret"
url = "URL"
private_hosts = ["HOST"]
timeout_s = 60.0

[connectors.quiet]
platform = "webhook"
secret_file = "{home}/ci-secret"
"""
pytestmark = pytest.mark.timeout(300)  # a server starts many times, on a machine that may be busy
LONG = "A line that is not short.\n" * 2_000


@pytest.fixture(scope="module")
async def receiver() -> AsyncGenerator[WebhookReceiver]:
    async with run_webhook_receiver() as receiver:
        yield receiver


@pytest.fixture(scope="module")
async def shared_server(
    receiver: WebhookReceiver, tmp_path_factory: pytest.TempPathFactory
) -> AsyncGenerator[ServerWithProvider]:
    settings = SETTINGS.replace("URL", receiver.url).replace("HOST", receiver.host)
    async with open_server_with_provider(
        tmp_path_factory.mktemp("webhook"), settings, secrets={"ci-secret": SECRET}
    ) as server:
        yield server


@pytest.fixture
async def server(shared_server: ServerWithProvider) -> AsyncGenerator[ServerWithProvider]:
    if not shared_server.is_open:
        await shared_server.open()
    yield shared_server
    await shared_server.check_nothing_is_lost()


async def post(server: ServerWithProvider, text: str, *, to: str = "ci", id_: str, secret: str = SECRET) -> int:
    """Send a signed request to the server's current port. Return its status, or 0 if the connection was lost."""
    body = json.dumps({"message": text, "sessionKey": "hook:builds"}).encode()
    url = f"{(server.process.home / 'address').read_text().strip()}/hooks/{to}/agent"
    try:
        headers = sign_headers(body, id_=id_, secret=secret)
        async with aiohttp.ClientSession() as session, session.post(url, data=body, headers=headers) as response:
            return response.status
    except aiohttp.ClientError:
        return 0


def list_received(receiver: WebhookReceiver, word: str) -> list[dict[str, Any]]:
    """Return the received requests that contain a word, without repeats of the same webhook id."""
    received_requests = {
        each.headers["webhook-id"]: each.json for each in receiver.received_requests if word in each.json["text"]
    }
    return list(received_requests.values())


async def wait_for_received(receiver: WebhookReceiver, word: str) -> dict[str, Any]:
    await wait_until(lambda: list_received(receiver, word), f"an answer with {word!r} is there")
    return list_received(receiver, word)[0]


async def test_a_verified_webhook_request_is_answered_with_a_signed_request(
    server: ServerWithProvider, receiver: WebhookReceiver
) -> None:
    assert await post(server, "The build broke, ask-build.", id_="build", secret="a guess") == 401
    assert await post(server, "The build broke, ask-build.", id_="build") == 202
    answer = await wait_for_received(receiver, "An answer to ask-build.")
    assert await post(server, "The build broke, ask-build.", id_="build") == 202
    await server.wait_until_idle()

    assert answer["channel"] == "builds"
    [received_request] = [each for each in receiver.received_requests if "ask-build" in each.json["text"]]
    now_s = float(received_request.headers["webhook-timestamp"])
    assert (
        verify_request(SignatureScheme.STANDARD, SECRET, received_request.headers, received_request.body, now_s=now_s)
        == received_request.headers["webhook-id"]
    )


async def test_an_answer_to_a_webhook_without_a_url_goes_to_the_owner(
    server: ServerWithProvider, receiver: WebhookReceiver
) -> None:
    assert await post(server, "The bell rings, ask-bell.", to="quiet", id_="bell") == 202
    owner_envelope_query = "select text from envelopes where recipient = 'person:owner' and text like '%ask-bell%'"
    await wait_until(lambda: server.query_database(owner_envelope_query), "the owner is notified")

    assert list_received(receiver, "ask-bell") == []


async def test_a_long_answer_to_a_webhook_request_is_posted_in_one_request(
    server: ServerWithProvider, receiver: WebhookReceiver
) -> None:
    server.replies["ask-long"] = says(LONG)
    await post(server, "At length, ask-long.", id_="long")
    answer = await wait_for_received(receiver, "A line that is not short.")

    assert answer["text"].split() == LONG.split()


async def test_a_killed_server_answers_every_webhook_request_with_a_stable_webhook_id(
    server: ServerWithProvider, receiver: WebhookReceiver
) -> None:
    started = asyncio.Event()
    server.replies["ask-accepted"] = says("An answer to ask-accepted.", held=started)
    await server.reopen(crash_point=AFTER_ACCEPT)
    assert await post(server, "Are you there, ask-accepted?", id_="accepted") == 0  # it may be stored or not
    await server.wait_until_crashed()
    await server.open(crash_point=AFTER_PLATFORM_SEND)
    started.set()  # only now, because the server crashes as soon as it has sent the answer
    assert await post(server, "Are you there, ask-accepted?", id_="accepted") in (202, 0)  # so it is sent again
    await server.wait_until_crashed()
    await server.open()
    await post(server, "And then, ask-after?", id_="after")
    await wait_for_received(receiver, "An answer to ask-after.")
    await server.wait_until_idle()

    sent = [each for each in receiver.received_requests if "An answer to ask-accepted." in each.json["text"]]
    assert len(sent) == 2  # it is unknown whether the first arrived, and the receiver drops repeats by id
    assert len({each.headers["webhook-id"] for each in sent}) == 1
    assert server.list_delivery_outcomes("An answer to ask-accepted.") == ["delivered"]
    assert len(server.query_database("select 1 from envelopes where text like '%Are you there, ask-accepted?%'")) == 1


async def test_an_answer_is_retried_until_the_webhook_receiver_accepts_it(
    server: ServerWithProvider, receiver: WebhookReceiver
) -> None:
    receiver.statuses.extend([503, 503])
    await post(server, "Somebody there, ask-outage?", id_="outage")
    await wait_until(
        lambda: server.list_delivery_outcomes("An answer to ask-outage.") == ["delivered"], "it is delivered"
    )

    assert len([each for each in receiver.received_requests if "ask-outage" in each.json["text"]]) == 3
    assert len(list_received(receiver, "ask-outage")) == 1
