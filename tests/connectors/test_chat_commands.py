"""Test commands in chats: they work for known people, and others get no reply."""

from __future__ import annotations

from pathlib import Path

import pytest
from connector_instance import ChatInstance, inbound_message, link, read_accepted_envelope

from retinue.domain.access import DmPolicy, GroupPolicy
from retinue.domain.envelope import Outcome
from retinue.domain.slash_command import SUMMARIES, CommandName
from retinue.testing.local_instance import LocalServer

OWNER, STRANGER = "9", "8"


@pytest.fixture
def chat(tmp_path: Path) -> ChatInstance:
    return ChatInstance.at(tmp_path, dm_policy=DmPolicy.OPEN, group_policy=GroupPolicy.OPEN)


async def send_command(
    server: LocalServer, chat: ChatInstance, text: str, *, by: str, id_: str, channel: str = ""
) -> str:
    """Return the reply to a command, or an empty text if there is none."""
    before = len(chat.quiet_connector.parts)
    receipt = await server.connector_intake.accept(
        "quiet", inbound_message(text, by=by, id_=id_, channel=channel, mentioned=bool(channel))
    )
    assert receipt is not None
    settled = await server.wait_for_outcome(receipt.envelope)
    await server.wait_until_idle()
    if settled.outcome is Outcome.REFUSED:
        assert settled.because.startswith("command-not-allowed: /"), "the refusal is recorded"
        assert len(chat.quiet_connector.parts) == before
        return ""
    assert settled.outcome is Outcome.ANSWERED
    return await server.wait_for_answer(receipt.envelope)


@pytest.mark.spec("H74", "C18")
@pytest.mark.parametrize("text", ["/new", "/status", "/abort"])
@pytest.mark.parametrize("channel", ["", "-1"])
async def test_new_status_and_abort_in_a_chat_are_answered_to_the_owner_and_not_to_strangers(
    chat: ChatInstance, text: str, channel: str
) -> None:
    async with chat.instance.run() as server:
        await link(server, "owner", id_=OWNER)
        asked = len(chat.instance.model.prompts)
        assert await send_command(server, chat, text, by=STRANGER, id_="1", channel=channel) == ""
        assert len(chat.instance.model.prompts) == asked, "no agent receives it"
        assert await send_command(server, chat, text, by=OWNER, id_="2", channel=channel) != ""


@pytest.mark.spec("D59", "C18")
async def test_an_unknown_chat_command_gets_a_suggestion_for_the_owner_and_no_reply_for_strangers(
    chat: ChatInstance,
) -> None:
    async with chat.instance.run() as server:
        await link(server, "owner", id_=OWNER)
        answer = await send_command(server, chat, "/statsu", by=OWNER, id_="1")
        assert answer.startswith("Unknown command /statsu. Did you mean /status?")
        assert chat.quiet_connector.list_texts(f"dm-{OWNER}") == [answer]
        assert await send_command(server, chat, "/statsu", by=STRANGER, id_="2") == ""
        assert chat.quiet_connector.list_texts(f"dm-{STRANGER}") == []
        assert chat.instance.model.prompts == [], "a mistyped command calls no model"


@pytest.mark.spec("C18")
async def test_every_chat_command_is_answered_to_the_owner_and_never_to_a_stranger(chat: ChatInstance) -> None:
    async with chat.instance.run() as server:
        await link(server, "owner", id_=OWNER)
        for number, name in enumerate(SUMMARIES):
            assert await send_command(server, chat, f"/{name}", by=STRANGER, id_=f"s{number}") == "", name
            if name is not CommandName.NEW:  # the agent answers a bare one with a greeting
                assert await send_command(server, chat, f"/{name}", by=OWNER, id_=f"o{number}"), name
        assert len(chat.quiet_connector.list_texts(f"dm-{STRANGER}")) == 0


async def test_a_redelivered_chat_command_is_performed_once(chat: ChatInstance) -> None:
    async with chat.instance.run() as server:
        await link(server, "owner", id_=OWNER)
        again = inbound_message("/reset keep this", by=OWNER)
        first = await read_accepted_envelope(server, await server.connector_intake.accept("quiet", again))
        second = await server.connector_intake.accept("quiet", again)
        await server.wait_until_idle()
        assert second is not None and (second.envelope, second.duplicate) == (first.id, True)
        assert len(chat.quiet_connector.list_texts(f"dm-{OWNER}")) == 1
