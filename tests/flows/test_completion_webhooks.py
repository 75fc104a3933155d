"""Somebody elsewhere is told what came of a letter: signed, once, tried again within bounds."""

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
from flows.external_agent import FarSide, Letter, far_side
from flows.tools_instance import HandsHouse, hands_house
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
async def house_telling(root: Path, far: FarSide, *, key: bool = True) -> AsyncGenerator[HandsHouse]:
    os.environ["RETINUE_TEST_HOOK_KEY"] = KEY
    host = far.url.removeprefix("http://").partition("/")[0]
    config = f'[external]\nprivate_hosts = ["{host}"]\n'
    if key:
        config += 'webhook_secret = { env = "RETINUE_TEST_HOOK_KEY" }\n'
    try:
        async with hands_house(root, config=config) as house:
            await house.ask("grant.add", agent="ada", permission="web", because="a test")
            yield house
    finally:
        del os.environ["RETINUE_TEST_HOOK_KEY"]


def is_signed(letter: Letter) -> bool:
    body = letter.json
    expected = sign_message(
        KEY,
        SignaturePurpose.COMPLETION,
        timestamp=letter.headers["X-Retinue-Timestamp"],
        session=body["sessionId"],
        message_id=body["id"],
        body=letter.body,
    )
    return letter.headers["X-Retinue-Signature"] == expected and letter.headers["X-Retinue-Id"] == body["id"]


def ask(far: FarSide, **more: Any) -> ScriptedReply:
    hook = {"url": far.url, "headers": {"Authorization": SECRET}}
    return tool_call_reply("agents_message", agentId="bo", content="Count.", mode="async", webhook=hook, **more)


async def response_id(house: HandsHouse, session: str) -> str:
    return json.loads((await house.results(session))[-1].output)["responseId"]


@pytest.mark.spec("A73")
async def test_a_webhook_is_told_of_an_answer_that_nobody_waited_for(tmp_path: Path) -> None:
    async with far_side() as far, house_telling(tmp_path, far) as house:
        session = await house.turn("Ask bo.", ask(far), "I asked bo.", "Three chairs.", "Bo says three.")
        letter = await far.letter()
        assert is_signed(letter)
        assert letter.headers["Authorization"] == SECRET
        assert letter.headers["Content-Type"] == "application/json"
        body = letter.json
        assert body["id"] == await response_id(house, session)
        assert (body["status"], body["agentId"], body["response"]) == ("complete", "bo", "Three chairs.")
        await house.rest()
        assert len(far.letters) == 1


@pytest.mark.spec("A73")
async def test_a_webhook_is_told_also_where_the_asker_is_not(tmp_path: Path) -> None:
    async with far_side() as far, house_telling(tmp_path, far) as house:
        await house.turn("Ask bo.", ask(far, notify="off"), "I asked bo.", "Three chairs.")
        assert (await far.letter()).json["response"] == "Three chairs."


@pytest.mark.spec("A73")
async def test_a_webhook_is_told_of_a_failure(tmp_path: Path) -> None:
    async with far_side() as far, house_telling(tmp_path, far) as house:
        await house.turn("Ask bo.", ask(far), "Asked.", ScriptedReply(fails="no such model"), "It failed.")
        body = (await far.letter()).json
        assert body["status"] == "failed"
        assert "no such model" in body["error"]
        assert "response" not in body


@pytest.mark.spec("A73")
async def test_a_webhook_that_fails_for_now_is_told_again_and_one_that_refuses_is_not(tmp_path: Path) -> None:
    async with far_side() as far, house_telling(tmp_path, far) as house:
        far.statuses.extend([503])
        await house.turn("Ask bo.", ask(far), "Asked.", "Three.", "Bo says three.")
        again = await far.letter(2)
        assert far.letters[0].id == again.id
        await house.rest()
        far.statuses.append(410)
        session = await house.turn("Ask bo.", ask(far), "Asked.", "Four.", "Bo says four.")
        await far.letter(3)
        await house.rest()
        assert len(far.letters) == 3
        about = await response_id(house, session)
        told = [mail for mail in await house.mail() if mail.reply_to == about and mail.recipient.name == "completion"]
        assert len(told) == 1
        settled = await house.house.store.read(partial(envelopes.get_outcome, id_=told[0].id))
        assert settled is not None
        assert settled.outcome is Outcome.DEAD
        assert "HTTP 410" in settled.because
        tried = await house.house.store.read(partial(deliveries.list_attempts, envelope=told[0].id))
        assert len(tried) == 1


@pytest.mark.spec("A73")
async def test_what_a_person_sends_has_its_webhook_too(tmp_path: Path) -> None:
    async with far_side() as far, house_telling(tmp_path, far) as house:
        hook = {"url": far.url, "headers": {"Authorization": SECRET}}
        house.model.will_reply("Hello.")
        sent = await house.ask("envelope.send", to="agent:ada", text="Hello?", webhook=hook)
        body = (await far.letter()).json
        assert (body["id"], body["status"], body["response"]) == (sent["envelope"], "complete", "Hello.")
        house.model.will_reply(ScriptedReply(fails="no such model"))
        sent = await house.ask("envelope.send", to="agent:ada", text="And now?", webhook=hook)
        body = (await far.letter(2)).json
        assert (body["id"], body["status"]) == (sent["envelope"], "failed")
        await house.rest()
        assert len(far.letters) == 2


@pytest.mark.spec("A73")
async def test_the_headers_of_a_webhook_are_shown_nowhere(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with far_side() as far, house_telling(tmp_path, far) as house:
        hook = {"url": far.url, "headers": {"Authorization": SECRET}}
        house.model.will_reply("Hello.")
        far.statuses.append(500)
        sent = await house.ask("envelope.send", to="agent:ada", text="Hello?", webhook=hook)
        await far.letter(2)
        await house.rest()
        assert SECRET not in caplog.text
        shown = [
            await house.ask("envelope.show", id=sent["envelope"]),
            await house.ask("house.why", id=sent["envelope"]),
            await house.ask("session.history", session=sent["session"]),
        ]
        assert SECRET not in json.dumps(shown)
        assert SECRET not in repr(await house.mail())

        async def is_gone() -> bool:
            return SECRET not in await _everything(house)

        await wait_until(is_gone, "the secrets are gone, which nobody needs once it was told")


async def _everything(house: HandsHouse) -> str:
    import sqlalchemy as sa

    rows = await house.house.store.scan(lambda conn: list(conn.execute(sa.text("SELECT * FROM webhooks"))))
    return repr(rows)


async def test_a_webhook_needs_the_web_and_a_person_is_asked_for_it(tmp_path: Path) -> None:
    async with far_side() as far, house_telling(tmp_path, far) as house:
        house.model.will_reply(ask(far), "Not now.")
        [grant] = (await house.ask("grant.list"))["grants"]
        await house.ask("grant.revoke", id=grant["id"])
        await house.post("Ask bo.")
        await house.rest()
        assert [tool for tool, _ in await house.asked_for()] == ["agents_message"]
        [approval] = await house.asked()
        await house.answer(approval, allow=False)
        assert far.letters == []


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
async def test_a_webhook_that_cannot_be_used_is_refused_before_anything_is_sent(
    tmp_path: Path, hook: dict[str, Any], code: str
) -> None:
    async with far_side() as far, house_telling(tmp_path, far) as house:
        with pytest.raises(Invalid) as refused:
            await house.ask("envelope.send", to="agent:ada", text="Hello?", webhook=hook)
        assert refused.value.code == code
        assert await house.mail() == []


async def test_without_a_key_there_are_no_webhooks_and_guests_have_none(tmp_path: Path) -> None:
    async with far_side() as far:
        async with house_telling(tmp_path / "one", far, key=False) as house:
            with pytest.raises(Invalid) as refused:
                await house.ask("envelope.send", to="agent:ada", text="Hello?", webhook={"url": far.url})
            assert refused.value.code == "webhook.no_key"
        async with house_telling(tmp_path / "two", far) as house:
            with pytest.raises(NotAllowed):
                await house.ask(
                    "envelope.send", who=person("gus"), to="agent:ada", text="Hello?", webhook={"url": far.url}
                )
            assert await house.mail() == []


async def test_a_host_that_the_owner_did_not_name_is_not_told(tmp_path: Path) -> None:
    async with far_side() as far, far_side() as other, house_telling(tmp_path, other) as house:
        house.model.will_reply("Hello.")
        sent = await house.ask("envelope.send", to="agent:ada", text="Hello?", webhook={"url": far.url})
        await house.rest()
        [told] = [mail for mail in await house.mail() if mail.recipient.name == "completion"]
        settled = await house.house.store.read(partial(envelopes.get_outcome, id_=told.id))
        assert told.reply_to == sent["envelope"]
        assert settled is not None
        assert settled.outcome is Outcome.DEAD
        assert far.letters == []
