"""Completion webhooks: the outcome of an envelope is sent to a URL, signed, once, with a limited number of retries."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from flows.external_agent import FakeExternalAgent, ReceivedEnvelope, run_external_agent
from flows.tools_instance import ScriptedServer, open_scripted_server
from operations.operations_instance import person

from retinue.domain.envelope import Outcome
from retinue.domain.errors import Invalid, NotAllowed
from retinue.net.signatures import SignaturePurpose, sign_message
from retinue.store.channels import deliveries
from retinue.store.envelopes import envelopes
from retinue.testing.scripted_model import ScriptedReply, tool_call_reply
from retinue.testing.wait_conditions import wait_until

KEY = "what signs completions"
SECRET = "Bearer not-for-any-log"


@asynccontextmanager
async def open_server_reporting_to(
    root: Path, fake_agent: FakeExternalAgent, *, key: bool = True
) -> AsyncGenerator[ScriptedServer]:
    os.environ["RETINUE_TEST_HOOK_KEY"] = KEY
    host = fake_agent.url.removeprefix("http://").partition("/")[0]
    config = f'[external]\nprivate_hosts = ["{host}"]\n'
    if key:
        config += 'webhook_secret = { env = "RETINUE_TEST_HOOK_KEY" }\n'
    try:
        async with open_scripted_server(root, config=config) as server:
            await server.ask("grant.add", agent="ada", permission="web", because="a test")
            yield server
    finally:
        del os.environ["RETINUE_TEST_HOOK_KEY"]


def is_signed(received_envelope: ReceivedEnvelope) -> bool:
    body = received_envelope.json
    expected = sign_message(
        KEY,
        SignaturePurpose.COMPLETION,
        timestamp=received_envelope.headers["X-Retinue-Timestamp"],
        session=body["sessionId"],
        message_id=body["id"],
        body=received_envelope.body,
    )
    return (
        received_envelope.headers["X-Retinue-Signature"] == expected
        and received_envelope.headers["X-Retinue-Id"] == body["id"]
    )


def ask(fake_agent: FakeExternalAgent, **more: Any) -> ScriptedReply:
    hook = {"url": fake_agent.url, "headers": {"Authorization": SECRET}}
    return tool_call_reply("agents_message", agentId="bo", content="Count.", mode="async", webhook=hook, **more)


async def response_id(server: ScriptedServer, session: str) -> str:
    return json.loads((await server.results(session))[-1].output)["responseId"]


@pytest.mark.spec("A73")
async def test_a_completion_webhook_is_sent_for_an_async_answer(tmp_path: Path) -> None:
    async with run_external_agent() as fake_agent, open_server_reporting_to(tmp_path, fake_agent) as server:
        session = await server.turn("Ask bo.", ask(fake_agent), "I asked bo.", "Three chairs.", "Bo says three.")
        received_envelope = await fake_agent.received_envelope()
        assert is_signed(received_envelope)
        assert received_envelope.headers["Authorization"] == SECRET
        assert received_envelope.headers["Content-Type"] == "application/json"
        body = received_envelope.json
        assert body["id"] == await response_id(server, session)
        assert (body["status"], body["agentId"], body["response"]) == ("complete", "bo", "Three chairs.")
        await server.rest()
        assert len(fake_agent.received_envelopes) == 1


@pytest.mark.spec("A73")
async def test_a_completion_webhook_is_sent_even_if_the_asking_agent_is_not_notified(tmp_path: Path) -> None:
    async with run_external_agent() as fake_agent, open_server_reporting_to(tmp_path, fake_agent) as server:
        await server.turn("Ask bo.", ask(fake_agent, notify="off"), "I asked bo.", "Three chairs.")
        assert (await fake_agent.received_envelope()).json["response"] == "Three chairs."


@pytest.mark.spec("A73")
async def test_a_completion_webhook_reports_a_failure(tmp_path: Path) -> None:
    async with run_external_agent() as fake_agent, open_server_reporting_to(tmp_path, fake_agent) as server:
        await server.turn("Ask bo.", ask(fake_agent), "Asked.", ScriptedReply(fails="no such model"), "It failed.")
        body = (await fake_agent.received_envelope()).json
        assert body["status"] == "failed"
        assert "no such model" in body["error"]
        assert "response" not in body


@pytest.mark.spec("A73")
async def test_a_completion_webhook_is_retried_after_a_503_but_not_after_a_410(tmp_path: Path) -> None:
    async with run_external_agent() as fake_agent, open_server_reporting_to(tmp_path, fake_agent) as server:
        fake_agent.statuses.extend([503])
        await server.turn("Ask bo.", ask(fake_agent), "Asked.", "Three.", "Bo says three.")
        again = await fake_agent.received_envelope(2)
        assert fake_agent.received_envelopes[0].id == again.id
        await server.rest()
        fake_agent.statuses.append(410)
        session = await server.turn("Ask bo.", ask(fake_agent), "Asked.", "Four.", "Bo says four.")
        await fake_agent.received_envelope(3)
        await server.rest()
        assert len(fake_agent.received_envelopes) == 3
        about = await response_id(server, session)
        told = [mail for mail in await server.mail() if mail.reply_to == about and mail.recipient.name == "completion"]
        assert len(told) == 1
        settled = await server.server.store.read(partial(envelopes.get_outcome, id_=told[0].id))
        assert settled is not None
        assert settled.outcome is Outcome.DEAD
        assert "HTTP 410" in settled.because
        tried = await server.server.store.read(partial(deliveries.list_attempts, envelope=told[0].id))
        assert len(tried) == 1


@pytest.mark.spec("A73")
async def test_a_message_from_a_person_can_have_a_completion_webhook(tmp_path: Path) -> None:
    async with run_external_agent() as fake_agent, open_server_reporting_to(tmp_path, fake_agent) as server:
        hook = {"url": fake_agent.url, "headers": {"Authorization": SECRET}}
        server.model.will_reply("Hello.")
        sent = await server.ask("envelope.send", to="agent:ada", text="Hello?", webhook=hook)
        body = (await fake_agent.received_envelope()).json
        assert (body["id"], body["status"], body["response"]) == (sent["envelope"], "complete", "Hello.")
        server.model.will_reply(ScriptedReply(fails="no such model"))
        sent = await server.ask("envelope.send", to="agent:ada", text="And now?", webhook=hook)
        body = (await fake_agent.received_envelope(2)).json
        assert (body["id"], body["status"]) == (sent["envelope"], "failed")
        await server.rest()
        assert len(fake_agent.received_envelopes) == 2


@pytest.mark.spec("A73")
async def test_the_headers_of_a_completion_webhook_appear_in_no_log_response_or_envelope(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with run_external_agent() as fake_agent, open_server_reporting_to(tmp_path, fake_agent) as server:
        hook = {"url": fake_agent.url, "headers": {"Authorization": SECRET}}
        server.model.will_reply("Hello.")
        fake_agent.statuses.append(500)
        sent = await server.ask("envelope.send", to="agent:ada", text="Hello?", webhook=hook)
        await fake_agent.received_envelope(2)
        await server.rest()
        assert SECRET not in caplog.text
        shown = [
            await server.ask("envelope.show", id=sent["envelope"]),
            await server.ask("server.why", id=sent["envelope"]),
            await server.ask("session.history", session=sent["session"]),
        ]
        assert SECRET not in json.dumps(shown)
        assert SECRET not in repr(await server.mail())

        async def is_gone() -> bool:
            return SECRET not in await _read_webhook_rows(server)

        await wait_until(is_gone, "the secrets are deleted after the notification")


async def _read_webhook_rows(server: ScriptedServer) -> str:
    import sqlalchemy as sa

    rows = await server.server.store.scan(lambda conn: list(conn.execute(sa.text("SELECT * FROM webhooks"))))
    return repr(rows)


async def test_a_completion_webhook_without_the_web_permission_needs_approval(tmp_path: Path) -> None:
    async with run_external_agent() as fake_agent, open_server_reporting_to(tmp_path, fake_agent) as server:
        server.model.will_reply(ask(fake_agent), "Not now.")
        [grant] = (await server.ask("grant.list"))["grants"]
        await server.ask("grant.revoke", id=grant["id"])
        await server.post("Ask bo.")
        await server.rest()
        assert [tool for tool, _ in await server.asked_for()] == ["agents_message"]
        [approval] = await server.asked()
        await server.answer(approval, allow=False)
        assert fake_agent.received_envelopes == []


@pytest.mark.parametrize(
    ("hook", "code"),
    [
        ({"url": "ftp://example.com/"}, "webhook.invalid"),
        ({"url": "https://example.com/" + "x" * 2000}, "webhook.invalid"),
        ({"url": "https://example.com/", "headers": {"X-Retinue-Signature": "mine"}}, "webhook.invalid"),
        ({"url": "https://example.com/", "headers": {"Host": "other"}}, "webhook.invalid"),
        ({"url": "https://example.com/", "headers": {"A": "b\r\nC: d"}}, "webhook.invalid"),
        ({"url": "https://example.com/", "headers": {f"A{n}": "b" for n in range(21)}}, "webhook.invalid"),
    ],
)
async def test_an_invalid_completion_webhook_is_refused_before_anything_is_sent(
    tmp_path: Path, hook: dict[str, Any], code: str
) -> None:
    async with run_external_agent() as fake_agent, open_server_reporting_to(tmp_path, fake_agent) as server:
        with pytest.raises(Invalid) as refused:
            await server.ask("envelope.send", to="agent:ada", text="Hello?", webhook=hook)
        assert refused.value.code == code
        assert await server.mail() == []


async def test_completion_webhooks_are_refused_without_a_signing_key_and_for_guests(tmp_path: Path) -> None:
    async with run_external_agent() as fake_agent:
        async with open_server_reporting_to(tmp_path / "one", fake_agent, key=False) as server:
            with pytest.raises(Invalid) as refused:
                await server.ask("envelope.send", to="agent:ada", text="Hello?", webhook={"url": fake_agent.url})
            assert refused.value.code == "webhook.no_key"
        async with open_server_reporting_to(tmp_path / "two", fake_agent) as server:
            with pytest.raises(NotAllowed):
                await server.ask(
                    "envelope.send", who=person("gus"), to="agent:ada", text="Hello?", webhook={"url": fake_agent.url}
                )
            assert await server.mail() == []


async def test_a_completion_webhook_to_a_private_host_the_owner_did_not_allow_is_not_sent(tmp_path: Path) -> None:
    async with (
        run_external_agent() as fake_agent,
        run_external_agent() as other,
        open_server_reporting_to(tmp_path, other) as server,
    ):
        server.model.will_reply("Hello.")
        sent = await server.ask("envelope.send", to="agent:ada", text="Hello?", webhook={"url": fake_agent.url})
        await server.rest()
        [told] = [mail for mail in await server.mail() if mail.recipient.name == "completion"]
        settled = await server.server.store.read(partial(envelopes.get_outcome, id_=told.id))
        assert told.reply_to == sent["envelope"]
        assert settled is not None
        assert settled.outcome is Outcome.DEAD
        assert fake_agent.received_envelopes == []
