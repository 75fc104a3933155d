"""Test that agents write only where they are bound, and only to recipients that the access rules admit."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from connector_instance import ChatInstance, add_binding, inbound_message, link

from retinue.config.access import GroupSettings
from retinue.domain import address
from retinue.domain.access import DmPolicy, GroupPolicy
from retinue.domain.envelope import EnvelopeDraft, EnvelopeKind, Outcome
from retinue.domain.errors import NotAllowed
from retinue.domain.ids import EnvelopeId
from retinue.outbox.outbound_access import AccessCheckedPost, OutboundAccess
from retinue.testing.local_instance import LocalServer


@pytest.fixture
def chat(tmp_path: Path) -> ChatInstance:
    chat = ChatInstance.at(tmp_path)
    chat.default = None
    return chat


def make_outbound_access(chat: ChatInstance) -> OutboundAccess:
    return OutboundAccess(lambda _instance: chat.settings, lambda _instance: "quiet", lambda: chat.default)


async def get_refusal_reason(chat: ChatInstance, server: LocalServer, agent: str, channel: str) -> str:
    look = partial(
        make_outbound_access(chat).get_refusal,
        sender=address.agent_address(agent),
        recipient=address.parse_address(f"channel:quiet:{channel}"),
    )
    return await server.store.read(look)


def make_draft(server: LocalServer, channel: str, *, agent: str = "ada", **kw: object) -> EnvelopeDraft:
    id_ = EnvelopeId(server.instance.ids.new())
    return EnvelopeDraft(
        id=id_,
        sender=address.agent_address(agent),
        recipient=address.parse_address(f"channel:quiet:{channel}"),
        text="hello",
        source="run",
        idempotency_key=id_,
        **kw,  # type: ignore[arg-type]
    )


@pytest.mark.spec("H8")
async def test_outbound_access_refuses_an_agent_without_a_binding_for_the_connector(chat: ChatInstance) -> None:
    chat.set(dm_policy=DmPolicy.OPEN)
    async with chat.instance.run() as server:
        await add_binding(server, "bob")
        post = AccessCheckedPost(server.intake, server.store, make_outbound_access(chat))
        with pytest.raises(NotAllowed) as refused:
            await post.accept(make_draft(server, "7"))
        assert refused.value.code == "delivery.no_binding" and "no_binding" in refused.value.because
        assert await post.accept(make_draft(server, "7", agent="bob")) is not None
        await server.wait_until_idle()
        assert chat.quiet_connector.list_texts("7") == ["hello"]


@pytest.mark.spec("H8")
async def test_an_accepted_outbound_envelope_without_a_binding_becomes_dead_with_the_reason(chat: ChatInstance) -> None:
    chat.set(dm_policy=DmPolicy.OPEN)
    chat.instance.get_refusal = make_outbound_access(chat).get_envelope_refusal
    async with chat.instance.run() as server:
        receipt = await server.intake.accept(make_draft(server, "7"))
        settled = await server.wait_for_outcome(receipt.envelope)
        assert settled.outcome is Outcome.DEAD and settled.because.startswith("no_binding: ")
        assert chat.quiet_connector.parts == []


@pytest.mark.spec("H8")
async def test_outbound_access_allows_an_answer_to_the_channel_of_its_question_after_the_binding_was_removed(
    chat: ChatInstance,
) -> None:
    chat.set(dm_policy=DmPolicy.OPEN)
    chat.instance.get_refusal = make_outbound_access(chat).get_envelope_refusal
    async with chat.instance.run() as server:
        await add_binding(server, "ada")
        receipt = await server.connector_intake.accept("quiet", inbound_message("hi", by="7"))
        assert receipt is not None
        await server.execute_sql("DELETE FROM bindings")
        await server.wait_for_answer(receipt.envelope)
        await server.wait_until_idle()
        assert chat.quiet_connector.list_texts("dm-7") == ["ok"]
        later = await server.intake.accept(make_draft(server, "dm-7"))
        assert (await server.wait_for_outcome(later.envelope)).outcome is Outcome.DEAD


@pytest.mark.spec("D56.outbound")
async def test_outbound_access_refuses_an_agent_the_channels_that_access_rules_exclude(chat: ChatInstance) -> None:
    chat.set(dm_policy=DmPolicy.ALLOWLIST, allow_from=("7",), group_policy=GroupPolicy.ALLOWLIST)
    async with chat.instance.run() as server:
        await add_binding(server, "ada")
        assert await get_refusal_reason(chat, server, "ada", "7") == ""
        assert await get_refusal_reason(chat, server, "ada", "8") != ""
        assert await get_refusal_reason(chat, server, "ada", "-1") != ""
        await link(server, "maria", id_="8")
        assert await get_refusal_reason(chat, server, "ada", "8") == ""
        chat.set(groups={"-1": GroupSettings()})
        assert await get_refusal_reason(chat, server, "ada", "-1") == ""


@pytest.mark.spec("H8")
async def test_outbound_access_allows_an_agent_its_bound_channels_and_the_default_agent_unbound_channels(
    chat: ChatInstance,
) -> None:
    async with chat.instance.run() as server:
        await add_binding(server, "ada", peer="-5")
        assert await get_refusal_reason(chat, server, "ada", "-5") == ""
        assert "not bound" in await get_refusal_reason(chat, server, "ada", "-6")
        chat.default = "bob"
        chat.set(dm_policy=DmPolicy.OPEN)
        assert await get_refusal_reason(chat, server, "bob", "-6") == ""


async def test_notices_of_the_server_bypass_the_outbound_access_check(chat: ChatInstance) -> None:
    chat.instance.get_refusal = make_outbound_access(chat).get_envelope_refusal
    async with chat.instance.run() as server:
        notice = EnvelopeDraft(
            id=EnvelopeId(server.instance.ids.new()),
            sender=address.SERVER_ADDRESS,
            recipient=address.parse_address("channel:quiet:7"),
            text="I do not know you yet.",
            source="server",
            idempotency_key="k",
            kind=EnvelopeKind.NOTICE,
        )
        await server.intake.accept(notice)
        await server.wait_until_idle()
        assert chat.quiet_connector.list_texts("7") == ["I do not know you yet."]
