"""Test inbound webhook requests: who may send them, what they may request, and that each becomes one envelope."""

from __future__ import annotations

import hashlib
import hmac
import json
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from connectors.webhook_instance import SECRET, WebhookServer, open_webhook_server, sign_headers, webhook

from retinue.connectors.webhook.settings import (
    SignatureScheme,
    WakeMode,
    WebhookKind,
    WebhookMapping,
    WebhookSettings,
)
from retinue.domain.envelope import Envelope, EnvelopeKind
from retinue.domain.session import OriginKind, Session
from retinue.domain.trust import Trust
from retinue.store.envelopes import envelopes
from retinue.store.sessions import sessions
from retinue.text.untrusted_wrapper import is_wrapped, unwrap_untrusted

DEFAULT_SETTINGS = WebhookSettings()


async def get_envelope(server: WebhookServer, id_: str) -> Envelope:
    found = await server.server.store.read(partial(envelopes.get, id_=id_))
    assert found is not None
    return found


async def get_session(server: WebhookServer, id_: str) -> Session:
    found = await server.server.store.read(partial(sessions.get, id_=id_))
    assert found is not None
    return found


@pytest.mark.spec("C87")
async def test_a_webhook_request_to_an_agent_gets_its_own_session_and_the_owner_gets_the_answer(
    tmp_path: Path,
) -> None:
    async with open_webhook_server(tmp_path, webhook(DEFAULT_SETTINGS)) as server:
        server.model.will_reply("The build is mended.")
        response = await server.send("ci/agent", {"message": "The build broke.", "name": "builder"})
        assert response.status == 202
        await server.rest()
        envelope = await get_envelope(server, response.body["envelope"])
        session = await get_session(server, response.body["session"])
        assert session.origin.kind is OriginKind.EXTERNAL
        assert session.origin.key == "hook:ci:msg_1"
        assert not session.origin.kind.is_foreground
        assert (envelope.kind, envelope.trust) == (EnvelopeKind.MESSAGE, Trust.UNTRUSTED)
        assert is_wrapped(envelope.text)
        assert unwrap_untrusted(envelope.text) == "The build broke."
        assert 'webhook: "ci"' in envelope.text
        assert 'from: "builder"' in envelope.text
        assert [mail.text for mail in await server.mail("person:owner")] == ["The build is mended."]


@pytest.mark.spec("C87")
async def test_a_repeated_webhook_request_is_a_duplicate_even_after_a_restart(tmp_path: Path) -> None:
    at = int(time.time())
    async with open_webhook_server(tmp_path, webhook(DEFAULT_SETTINGS)) as server:
        server.model.will_reply("Seen.")
        first = await server.send("ci/agent", {"message": "Once."}, at=at)
        await server.rest()
        again = await server.send("ci/agent", {"message": "Once."}, at=at)
        assert (first.body["duplicate"], again.body["duplicate"]) == (False, True)
    async with open_webhook_server(tmp_path, webhook(DEFAULT_SETTINGS)) as server:
        again = await server.send("ci/agent", {"message": "Once."}, at=at)
        assert again.status == 202
        assert again.body["duplicate"]
        assert again.body["envelope"] == first.body["envelope"]
        other = await server.send("ci/agent", {"message": "Something else."}, at=at)
        assert (other.status, other.code) == (409, "key.reused")
        assert not server.model.prompts


@pytest.mark.spec("C87")
@pytest.mark.parametrize("change", ["body", "id", "time", "secret", "nothing", "old", "early", "no-secret"])
async def test_an_unverified_webhook_request_is_refused_and_not_stored(tmp_path: Path, change: str) -> None:
    body = json.dumps({"message": "Let me in."}).encode()
    headers = sign_headers(body)
    match change:
        case "body":
            body = body.replace(b"me", b"us")
        case "id":
            headers["webhook-id"] = "msg_2"
        case "time":
            headers["webhook-timestamp"] = str(int(time.time()) - 5)
        case "secret":
            headers = sign_headers(body, secret="another")
        case "nothing":
            headers = {}
        case "old":
            headers = sign_headers(body, at=int(time.time()) - 400)
        case "early":
            headers = sign_headers(body, at=int(time.time()) + 400)
        case _:
            headers = sign_headers(body, secret="")
    connector = webhook(DEFAULT_SETTINGS, secret="" if change == "no-secret" else SECRET)
    async with open_webhook_server(tmp_path, connector) as server:
        response = await server.send("ci/agent", body, headers=headers)
        assert (response.status, response.code) == (401, "webhook.unverified")
        assert await server.mail("agent:ada") == []


@pytest.mark.spec("C87")
async def test_webhook_requests_are_locked_out_after_wrong_tokens_unless_their_token_worked_before(
    tmp_path: Path,
) -> None:
    token = webhook(WebhookSettings(signature_scheme=SignatureScheme.TOKEN))
    good = {"authorization": f"Bearer {SECRET}"}
    async with open_webhook_server(tmp_path, token) as server:
        server.model.will_reply("One.", "Two.")
        assert (await server.send("ci/agent", {"message": "Hello."}, headers=good)).status == 202
        for number in range(5):
            wrong = {"authorization": f"Bearer guess-{number}"}
            assert (await server.send("ci/agent", {"message": "Hello."}, headers=wrong)).status == 401
        locked = await server.send("ci/agent", {"message": "Hello."}, headers={"authorization": "Bearer guess-6"})
        assert (locked.status, locked.code) == (429, "auth.locked_out")
        assert int(locked.headers["Retry-After"]) > 0
        assert (await server.send("ci/agent", {"message": "Hello."}, headers=good)).status == 202


@pytest.mark.spec("C87")
async def test_a_webhook_token_in_the_url_is_refused_and_an_idempotency_key_prevents_duplicates(tmp_path: Path) -> None:
    async with open_webhook_server(
        tmp_path, webhook(WebhookSettings(signature_scheme=SignatureScheme.TOKEN))
    ) as server:
        server.model.will_reply("Here.", "Here.")
        response = await server.send("ci/agent", {"message": "Hi."}, headers={}, query=f"?token={SECRET}")
        assert (response.status, response.code) == (400, "webhook.secret_in_url")
        headers = {"authorization": f"Bearer {SECRET}", "idempotency-key": "one"}
        sent = [await server.send("ci/agent", {"message": "Hi."}, headers=headers) for _ in range(2)]
        assert [each.body["duplicate"] for each in sent] == [False, True]
        without = await server.send("ci/agent", {"message": "Hi."}, headers={"authorization": f"Bearer {SECRET}"})
        assert not without.body["duplicate"]


@pytest.mark.spec("C87")
async def test_an_oversized_webhook_body_and_too_many_webhook_requests_are_refused(tmp_path: Path) -> None:
    settings = WebhookSettings(body_bytes_max=1_000, requests_per_minute=2)
    async with open_webhook_server(tmp_path, webhook(settings)) as server:
        server.model.will_reply("One.", "Two.")
        large = await server.send("ci/agent", {"message": "x" * 1_000})
        assert large.status == 413
        response = [await server.send("ci/agent", {"message": "Hi."}, id_=f"msg_{number}") for number in range(3)]
        assert [each.status for each in response] == [202, 202, 429]
        assert int(response[2].headers["Retry-After"]) > 0


@pytest.mark.spec("C87")
async def test_a_wake_request_by_webhook_is_answered_in_the_last_conversation_of_the_owner(tmp_path: Path) -> None:
    async with open_webhook_server(tmp_path, webhook(DEFAULT_SETTINGS)) as server:
        main = await server.turn("Good morning.", "Good morning.", origin="person:owner")
        server.model.will_reply("The bell rang.")
        response = await server.send("ci/wake", {"text": "Somebody rang."})
        assert response.status == 200
        assert response.body["session"] == main
        await server.rest()
        envelope = await get_envelope(server, response.body["envelope"])
        assert (envelope.kind, envelope.trust) == (EnvelopeKind.SYSTEM, Trust.UNTRUSTED)
        assert [mail.text for mail in await server.mail("person:owner")] == ["Good morning.", "The bell rang."]


@pytest.mark.spec("C87")
async def test_a_wake_request_by_webhook_for_the_next_heartbeat_is_read_with_the_next_message(tmp_path: Path) -> None:
    async with open_webhook_server(tmp_path, webhook(DEFAULT_SETTINGS)) as server:
        response = await server.send("ci/wake", {"text": "The post came.", "mode": "next-heartbeat"})
        await server.rest()
        assert response.status == 200
        assert not server.model.prompts
        server.model.will_reply("Something came.")
        await server.post("Anything new?")
        await server.rest()
        [request] = server.model.prompts
        assert "The post came." in str(request)


@pytest.mark.spec("C87")
async def test_a_webhook_request_may_name_only_allowed_agents(tmp_path: Path) -> None:
    settings = WebhookSettings(agents=("b*",))
    async with open_webhook_server(tmp_path, webhook(settings)) as server:
        server.model.will_reply("I am bo.")
        refused = await server.send("ci/agent", {"message": "Hi.", "agentId": "ada"})
        assert (refused.status, refused.code) == (403, "webhook.agent_not_allowed")
        taken = await server.send("ci/agent", {"message": "Hi.", "agentId": "bo"})
        assert taken.status == 202
        await server.rest()
        assert (await get_session(server, taken.body["session"])).agent == "bo"


@pytest.mark.spec("C87")
async def test_a_webhook_request_may_use_only_sessions_of_its_connector(tmp_path: Path) -> None:
    async with open_webhook_server(tmp_path, webhook(DEFAULT_SETTINGS)) as server:
        server.model.will_reply("One.", "Two.")
        foreign = await server.send("ci/agent", {"message": "Hi.", "sessionKey": "agent:ada:main"})
        assert (foreign.status, foreign.code) == (403, "webhook.session_not_allowed")
        response = [
            await server.send("ci/agent", {"message": "Hi.", "sessionKey": key}, id_=key)
            for key in ("hook:deploys", "Deploys")
        ]
        assert response[0].body["session"] == response[1].body["session"]
        assert (await get_session(server, response[0].body["session"])).origin.key == "hook:ci:deploys"


@pytest.mark.spec("C87")
async def test_a_webhook_answer_is_delivered_only_to_allowed_addresses(tmp_path: Path) -> None:
    settings = WebhookSettings(deliver_to_allow=("person:*",))
    async with open_webhook_server(tmp_path, webhook(settings)) as server:
        server.model.will_reply("For you.", "For nobody.")
        elsewhere = await server.send("ci/agent", {"message": "Hi.", "channel": "telegram", "to": "42"})
        assert (elsewhere.status, elsewhere.code) == (403, "webhook.delivery_not_allowed")
        await server.send("ci/agent", {"message": "Hi.", "to": "person:owner"}, id_="2")
        await server.rest()
        await server.send("ci/agent", {"message": "Hi.", "deliver": False}, id_="3")
        await server.rest()
        assert [mail.text for mail in await server.mail("person:owner")] == ["For you."]


@pytest.mark.spec("C87")
async def test_model_effort_and_timeout_of_a_webhook_request_are_stored_with_its_envelope(tmp_path: Path) -> None:
    async with open_webhook_server(tmp_path, webhook(DEFAULT_SETTINGS)) as server:
        server.model.will_reply("Quickly.")
        asked = {"message": "Hi.", "model": "scripted", "thinking": "high", "timeoutSeconds": 30}
        response = await server.send("ci/agent", asked)
        await server.rest()
        request = (await get_envelope(server, response.body["envelope"])).context.request
        assert request is not None
        assert (request.model, request.effort, request.seconds_max) == ("scripted", "high", 30)


@pytest.mark.spec("C87")
@pytest.mark.parametrize(
    "asked",
    [
        {"message": ""},
        {"message": "Hi.", "thinking": "a lot"},
        {"message": "Hi.", "timeoutSeconds": 0},
        {"message": "Hi.", "unheard": "of"},
        {"message": 7},
        {"message": "a\0b"},
        [],
    ],
)
async def test_an_invalid_webhook_body_is_refused_with_a_reason(tmp_path: Path, asked: Any) -> None:
    async with open_webhook_server(tmp_path, webhook(DEFAULT_SETTINGS)) as server:
        response = await server.send("ci/agent", asked)
        assert response.status == 400
        assert response.body["error"]["because"]


async def test_webhook_text_that_begins_with_a_slash_is_not_a_command(tmp_path: Path) -> None:
    for number, settings in enumerate((DEFAULT_SETTINGS, WebhookSettings(trusted=True))):
        async with open_webhook_server(tmp_path / str(number), webhook(settings)) as server:
            server.model.will_reply("Words.")
            response = await server.send("ci/agent", {"message": "/reset"})
            await server.rest()
            assert response.status == 202
            assert len(server.model.prompts) == 1


# --- mappings ---

ISSUE_OPENED_MAPPING = WebhookMapping(
    path="github",
    match={"headers.x-github-event": "issues", "payload.action": "opened"},
    text="{{ payload.sender.login }} opened {{ payload.issue.title }}: "
    "{{ payload.issue.labels | map(attribute='name') | join(', ') }}",
    session="{{ payload.repository }}",
    agent="bo",
)
ISSUE_PAYLOAD = {
    "action": "opened",
    "repository": "Maria/Garden",
    "sender": {"login": "noor"},
    "issue": {"title": "{{ 7 * 7 }}", "labels": [{"name": "roof"}, {"name": "rain"}]},
}


def sign_as_github(body: bytes, event: str = "issues") -> dict[str, str]:
    digest = hmac.new(SECRET.encode(), body, hashlib.sha256).hexdigest()
    return {"x-hub-signature-256": f"sha256={digest}", "x-github-event": event, "x-github-delivery": "one"}


@pytest.mark.spec("C87")
async def test_a_webhook_mapping_turns_a_payload_in_another_format_into_a_message(tmp_path: Path) -> None:
    settings = WebhookSettings(signature_scheme=SignatureScheme.GITHUB, mappings={"opened": ISSUE_OPENED_MAPPING})
    async with open_webhook_server(tmp_path, webhook(settings)) as server:
        server.model.will_reply("I shall look.")
        body = json.dumps(ISSUE_PAYLOAD).encode()
        response = await server.send("ci/github", body, headers=sign_as_github(body))
        await server.rest()
        assert response.status == 202
        envelope = await get_envelope(server, response.body["envelope"])
        assert unwrap_untrusted(envelope.text) == "noor opened {{ 7 * 7 }}: roof, rain"  # sent text is never a template
        session = await get_session(server, response.body["session"])
        assert (session.agent, session.origin.key) == ("bo", "hook:ci:maria/garden")
        renamed = {**sign_as_github(body), "x-github-delivery": "two"}
        again = await server.send("ci/github", body, headers=renamed)
        assert again.body["duplicate"]  # the delivery id is not signed, so a new id does not make a new message


@pytest.mark.spec("C87")
async def test_a_webhook_payload_without_a_mapping_is_ignored_and_an_unknown_webhook_path_is_refused(
    tmp_path: Path,
) -> None:
    settings = WebhookSettings(
        signature_scheme=SignatureScheme.GITHUB, mappings={"opened": ISSUE_OPENED_MAPPING}, kinds=(WebhookKind.WAKE,)
    )
    async with open_webhook_server(tmp_path, webhook(settings)) as server:
        body = json.dumps({**ISSUE_PAYLOAD, "action": "closed"}).encode()
        let_go = await server.send("ci/github", body, headers=sign_as_github(body))
        assert (let_go.status, let_go.body) == (200, {"status": "ignored"})
        for path in ("ci/agent", "ci/opened", "ci/nothing"):
            response = await server.send(path, body, headers=sign_as_github(body))
            assert (response.status, response.code) == (404, "webhook.path_not_found")
        assert (await server.send("other/wake", body, headers=sign_as_github(body))).code == "webhook.no_connector"


@pytest.mark.spec("C87")
async def test_a_webhook_mapping_can_create_a_wake_message(tmp_path: Path) -> None:
    mapping = WebhookMapping(kind=WebhookKind.WAKE, text="Rain: {{ payload.mm }} mm", mode=WakeMode.NEXT)
    async with open_webhook_server(tmp_path, webhook(WebhookSettings(mappings={"rain": mapping}))) as server:
        response = await server.send("ci/rain", {"mm": 12})
        assert response.status == 200
        envelope = await get_envelope(server, response.body["envelope"])
        assert (envelope.kind, envelope.silent, unwrap_untrusted(envelope.text)) == (
            EnvelopeKind.SYSTEM,
            True,
            "Rain: 12 mm",
        )
