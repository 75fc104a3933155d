"""Requests from programs elsewhere: who may send them, what they may ask for, and that each is one letter."""

from __future__ import annotations

import hashlib
import hmac
import json
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from connectors.webhook_instance import SECRET, HookHouse, hook_house, signed, webhook

from retinue.connectors.webhook.settings import SignatureScheme, WakeMode, WebhookKind, WebhookMapping, WebhookSettings
from retinue.domain.envelope import Envelope, EnvelopeKind
from retinue.domain.session import OriginKind, Session
from retinue.domain.trust import Trust
from retinue.store.envelopes import envelopes
from retinue.store.sessions import sessions
from retinue.text.untrusted_wrapper import is_wrapped, unwrap_untrusted

PLAIN = WebhookSettings()


async def kept(house: HookHouse, id_: str) -> Envelope:
    found = await house.house.store.read(partial(envelopes.get, id_=id_))
    assert found is not None
    return found


async def session_of(house: HookHouse, id_: str) -> Session:
    found = await house.house.store.read(partial(sessions.get, id_=id_))
    assert found is not None
    return found


@pytest.mark.spec("C87")
async def test_an_agent_is_written_to_in_a_session_of_the_requests_own_and_its_answer_goes_to_the_owner(
    tmp_path: Path,
) -> None:
    async with hook_house(tmp_path, webhook(PLAIN)) as house:
        house.model.will_reply("The build is mended.")
        said = await house.send("ci/agent", {"message": "The build broke.", "name": "builder"})
        assert said.status == 202
        await house.rest()
        envelope = await kept(house, said.body["envelope"])
        session = await session_of(house, said.body["session"])
        assert session.origin.kind is OriginKind.EXTERNAL
        assert session.origin.key == "hook:ci:msg_1"
        assert not session.origin.kind.is_foreground
        assert (envelope.kind, envelope.trust) == (EnvelopeKind.MESSAGE, Trust.UNTRUSTED)
        assert is_wrapped(envelope.text)
        assert unwrap_untrusted(envelope.text) == "The build broke."
        assert 'webhook: "ci"' in envelope.text
        assert 'from: "builder"' in envelope.text
        assert [mail.text for mail in await house.mail("person:owner")] == ["The build is mended."]


@pytest.mark.spec("C87")
async def test_a_request_brought_again_is_the_same_letter_also_after_a_restart(tmp_path: Path) -> None:
    at = int(time.time())
    async with hook_house(tmp_path, webhook(PLAIN)) as house:
        house.model.will_reply("Seen.")
        first = await house.send("ci/agent", {"message": "Once."}, at=at)
        await house.rest()
        again = await house.send("ci/agent", {"message": "Once."}, at=at)
        assert (first.body["duplicate"], again.body["duplicate"]) == (False, True)
    async with hook_house(tmp_path, webhook(PLAIN)) as house:
        again = await house.send("ci/agent", {"message": "Once."}, at=at)
        assert again.status == 202
        assert again.body["duplicate"]
        assert again.body["envelope"] == first.body["envelope"]
        other = await house.send("ci/agent", {"message": "Something else."}, at=at)
        assert (other.status, other.code) == (409, "key.reused")
        assert not house.model.prompts


@pytest.mark.spec("C87")
@pytest.mark.parametrize("change", ["body", "id", "time", "secret", "nothing", "old", "early", "no-secret"])
async def test_a_request_that_is_not_proved_is_refused_and_nothing_is_kept(tmp_path: Path, change: str) -> None:
    body = json.dumps({"message": "Let me in."}).encode()
    headers = signed(body)
    match change:
        case "body":
            body = body.replace(b"me", b"us")
        case "id":
            headers["webhook-id"] = "msg_2"
        case "time":
            headers["webhook-timestamp"] = str(int(time.time()) - 5)
        case "secret":
            headers = signed(body, secret="another")
        case "nothing":
            headers = {}
        case "old":
            headers = signed(body, at=int(time.time()) - 400)
        case "early":
            headers = signed(body, at=int(time.time()) + 400)
        case _:
            headers = signed(body, secret="")
    connector = webhook(PLAIN, secret="" if change == "no-secret" else SECRET)
    async with hook_house(tmp_path, connector) as house:
        said = await house.send("ci/agent", body, headers=headers)
        assert (said.status, said.code) == (401, "webhook.unverified")
        assert await house.mail("agent:ada") == []


@pytest.mark.spec("C87")
async def test_an_address_that_guesses_is_locked_out_and_a_token_that_was_good_there_goes_on(tmp_path: Path) -> None:
    token = webhook(WebhookSettings(proof=SignatureScheme.TOKEN))
    good = {"authorization": f"Bearer {SECRET}"}
    async with hook_house(tmp_path, token) as house:
        house.model.will_reply("One.", "Two.")
        assert (await house.send("ci/agent", {"message": "Hello."}, headers=good)).status == 202
        for number in range(5):
            wrong = {"authorization": f"Bearer guess-{number}"}
            assert (await house.send("ci/agent", {"message": "Hello."}, headers=wrong)).status == 401
        locked = await house.send("ci/agent", {"message": "Hello."}, headers={"authorization": "Bearer guess-6"})
        assert (locked.status, locked.code) == (429, "auth.locked_out")
        assert int(locked.headers["Retry-After"]) > 0
        assert (await house.send("ci/agent", {"message": "Hello."}, headers=good)).status == 202


@pytest.mark.spec("C87")
async def test_a_token_in_the_address_is_refused_and_one_with_a_key_is_taken_once(tmp_path: Path) -> None:
    async with hook_house(tmp_path, webhook(WebhookSettings(proof=SignatureScheme.TOKEN))) as house:
        house.model.will_reply("Here.", "Here.")
        said = await house.send("ci/agent", {"message": "Hi."}, headers={}, query=f"?token={SECRET}")
        assert (said.status, said.code) == (400, "webhook.secret_in_url")
        headers = {"authorization": f"Bearer {SECRET}", "idempotency-key": "one"}
        sent = [await house.send("ci/agent", {"message": "Hi."}, headers=headers) for _ in range(2)]
        assert [each.body["duplicate"] for each in sent] == [False, True]
        without = await house.send("ci/agent", {"message": "Hi."}, headers={"authorization": f"Bearer {SECRET}"})
        assert not without.body["duplicate"]


@pytest.mark.spec("C87")
async def test_a_body_beyond_its_bound_is_refused_and_so_are_too_many_requests(tmp_path: Path) -> None:
    settings = WebhookSettings(body_bytes_max=1_000, requests_per_minute=2)
    async with hook_house(tmp_path, webhook(settings)) as house:
        house.model.will_reply("One.", "Two.")
        large = await house.send("ci/agent", {"message": "x" * 1_000})
        assert large.status == 413
        said = [await house.send("ci/agent", {"message": "Hi."}, id_=f"msg_{number}") for number in range(3)]
        assert [each.status for each in said] == [202, 202, 429]
        assert int(said[2].headers["Retry-After"]) > 0


@pytest.mark.spec("C87")
async def test_a_wake_is_told_in_the_conversation_the_owner_last_had_and_answered_there(tmp_path: Path) -> None:
    async with hook_house(tmp_path, webhook(PLAIN)) as house:
        main = await house.turn("Good morning.", "Good morning.", origin="person:owner")
        house.model.will_reply("The door bell rang.")
        said = await house.send("ci/wake", {"text": "Somebody rang."})
        assert said.status == 200
        assert said.body["session"] == main
        await house.rest()
        envelope = await kept(house, said.body["envelope"])
        assert (envelope.kind, envelope.trust) == (EnvelopeKind.SYSTEM, Trust.UNTRUSTED)
        assert [mail.text for mail in await house.mail("person:owner")] == ["Good morning.", "The door bell rang."]


@pytest.mark.spec("C87")
async def test_a_wake_for_the_next_heartbeat_waits_to_be_read_with_what_comes_next(tmp_path: Path) -> None:
    async with hook_house(tmp_path, webhook(PLAIN)) as house:
        said = await house.send("ci/wake", {"text": "The post came.", "mode": "next-heartbeat"})
        await house.rest()
        assert said.status == 200
        assert not house.model.prompts
        house.model.will_reply("Something came.")
        await house.post("Anything new?")
        await house.rest()
        [request] = house.model.prompts
        assert "The post came." in str(request)


@pytest.mark.spec("C87")
async def test_only_agents_on_the_list_are_named_by_a_request(tmp_path: Path) -> None:
    settings = WebhookSettings(agents=("b*",))
    async with hook_house(tmp_path, webhook(settings)) as house:
        house.model.will_reply("I am bo.")
        refused = await house.send("ci/agent", {"message": "Hi.", "agentId": "ada"})
        assert (refused.status, refused.code) == (403, "webhook.agent_not_allowed")
        taken = await house.send("ci/agent", {"message": "Hi.", "agentId": "bo"})
        assert taken.status == 202
        await house.rest()
        assert (await session_of(house, taken.body["session"])).agent == "bo"


@pytest.mark.spec("C87")
async def test_a_request_has_only_sessions_of_its_own_connector(tmp_path: Path) -> None:
    async with hook_house(tmp_path, webhook(PLAIN)) as house:
        house.model.will_reply("One.", "Two.")
        foreign = await house.send("ci/agent", {"message": "Hi.", "sessionKey": "agent:ada:main"})
        assert (foreign.status, foreign.code) == (403, "webhook.session_not_allowed")
        said = [
            await house.send("ci/agent", {"message": "Hi.", "sessionKey": key}, id_=key)
            for key in ("hook:deploys", "Deploys")
        ]
        assert said[0].body["session"] == said[1].body["session"]
        assert (await session_of(house, said[0].body["session"])).origin.key == "hook:ci:deploys"


@pytest.mark.spec("C87")
async def test_an_answer_goes_only_where_the_owner_lets_requests_send_it(tmp_path: Path) -> None:
    settings = WebhookSettings(deliveries=("person:*",))
    async with hook_house(tmp_path, webhook(settings)) as house:
        house.model.will_reply("For you.", "For nobody.")
        elsewhere = await house.send("ci/agent", {"message": "Hi.", "channel": "telegram", "to": "42"})
        assert (elsewhere.status, elsewhere.code) == (403, "webhook.delivery_not_allowed")
        await house.send("ci/agent", {"message": "Hi.", "to": "person:owner"}, id_="2")
        await house.rest()
        await house.send("ci/agent", {"message": "Hi.", "deliver": False}, id_="3")
        await house.rest()
        assert [mail.text for mail in await house.mail("person:owner")] == ["For you."]


@pytest.mark.spec("C87")
async def test_model_effort_and_time_are_those_of_the_run(tmp_path: Path) -> None:
    async with hook_house(tmp_path, webhook(PLAIN)) as house:
        house.model.will_reply("Quickly.")
        asked = {"message": "Hi.", "model": "scripted", "thinking": "high", "timeoutSeconds": 30}
        said = await house.send("ci/agent", asked)
        await house.rest()
        request = (await kept(house, said.body["envelope"])).context.request
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
async def test_what_cannot_be_understood_is_refused_in_words(tmp_path: Path, asked: Any) -> None:
    async with hook_house(tmp_path, webhook(PLAIN)) as house:
        said = await house.send("ci/agent", asked)
        assert said.status == 400
        assert said.body["error"]["because"]


async def test_words_that_begin_with_a_slash_are_no_command(tmp_path: Path) -> None:
    for number, settings in enumerate((PLAIN, WebhookSettings(trusted=True))):
        async with hook_house(tmp_path / str(number), webhook(settings)) as house:
            house.model.will_reply("Words.")
            said = await house.send("ci/agent", {"message": "/reset"})
            await house.rest()
            assert said.status == 202
            assert len(house.model.prompts) == 1


# --- mappings ---

OPENED = WebhookMapping(
    path="github",
    match={"headers.x-github-event": "issues", "payload.action": "opened"},
    text="{{ payload.sender.login }} opened {{ payload.issue.title }}: "
    "{{ payload.issue.labels | map(attribute='name') | join(', ') }}",
    session="{{ payload.repository }}",
    agent="bo",
)
ISSUE = {
    "action": "opened",
    "repository": "Maria/House",
    "sender": {"login": "noor"},
    "issue": {"title": "{{ 7 * 7 }}", "labels": [{"name": "roof"}, {"name": "rain"}]},
}


def as_github(body: bytes, event: str = "issues") -> dict[str, str]:
    digest = hmac.new(SECRET.encode(), body, hashlib.sha256).hexdigest()
    return {"x-hub-signature-256": f"sha256={digest}", "x-github-event": event, "x-github-delivery": "one"}


@pytest.mark.spec("C87")
async def test_a_service_that_knows_nothing_of_the_house_is_mapped_by_templates(tmp_path: Path) -> None:
    settings = WebhookSettings(proof=SignatureScheme.GITHUB, mappings={"opened": OPENED})
    async with hook_house(tmp_path, webhook(settings)) as house:
        house.model.will_reply("I shall look.")
        body = json.dumps(ISSUE).encode()
        said = await house.send("ci/github", body, headers=as_github(body))
        await house.rest()
        assert said.status == 202
        envelope = await kept(house, said.body["envelope"])
        assert (
            unwrap_untrusted(envelope.text) == "noor opened {{ 7 * 7 }}: roof, rain"
        )  # what was sent is never a template
        session = await session_of(house, said.body["session"])
        assert (session.agent, session.origin.key) == ("bo", "hook:ci:maria/house")
        renamed = {**as_github(body), "x-github-delivery": "two"}
        again = await house.send("ci/github", body, headers=renamed)
        assert again.body["duplicate"]  # the name of a delivery is not signed, so a new one makes nothing new


@pytest.mark.spec("C87")
async def test_what_no_mapping_is_about_is_let_go_and_an_unknown_path_is_refused(tmp_path: Path) -> None:
    settings = WebhookSettings(proof=SignatureScheme.GITHUB, mappings={"opened": OPENED}, kinds=(WebhookKind.WAKE,))
    async with hook_house(tmp_path, webhook(settings)) as house:
        body = json.dumps({**ISSUE, "action": "closed"}).encode()
        let_go = await house.send("ci/github", body, headers=as_github(body))
        assert (let_go.status, let_go.body) == (200, {"status": "ignored"})
        for path in ("ci/agent", "ci/opened", "ci/nothing"):
            said = await house.send(path, body, headers=as_github(body))
            assert (said.status, said.code) == (404, "webhook.path_not_found")
        assert (await house.send("other/wake", body, headers=as_github(body))).code == "webhook.no_connector"


@pytest.mark.spec("C87")
async def test_a_mapping_may_wake(tmp_path: Path) -> None:
    mapping = WebhookMapping(kind=WebhookKind.WAKE, text="Rain: {{ payload.mm }} mm", mode=WakeMode.NEXT)
    async with hook_house(tmp_path, webhook(WebhookSettings(mappings={"rain": mapping}))) as house:
        said = await house.send("ci/rain", {"mm": 12})
        assert said.status == 200
        envelope = await kept(house, said.body["envelope"])
        assert (envelope.kind, envelope.silent, unwrap_untrusted(envelope.text)) == (
            EnvelopeKind.SYSTEM,
            True,
            "Rain: 12 mm",
        )
