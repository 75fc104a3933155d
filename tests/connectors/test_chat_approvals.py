"""Test approvals in chats: asked where a person who may decide writes, decided by a press, a number or a command, and
closed afterwards."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from connector_instance import ChatInstance, inbound_message, link
from connector_instance import rows as count
from flows.approval_instance import (
    append_line_instruction,
    asking_instance,
    follow_instruction,
    read_approval_state,
    read_witness_lines,
    rows,
    tool_instruction,
    wait_for_open_approval,
)

from retinue.connectors.base import ConnectorCapabilities, DeliveryPart, InboundKind, InboundMessage, QuotedMessage
from retinue.domain.access import DmPolicy, GroupPolicy
from retinue.domain.envelope import Outcome
from retinue.engine.button_presses import CONCURRENT_REPLIES_MAX, NOT_ALLOWED, UNKNOWN_BUTTON
from retinue.testing.fake_connector import FakeConnector
from retinue.testing.local_instance import LocalServer, boss_principal

WITH_BUTTONS = ConnectorCapabilities(can_show_buttons=True, can_edit=True, can_quote=True)
WITHOUT_BUTTONS = ConnectorCapabilities(can_quote=True)
OWNER, MARIA, STRANGER = "9", "7", "8"  # their ids on the platform


@pytest.fixture
def chat(tmp_path: Path) -> ChatInstance:
    """Agents that ask, on a platform with buttons. The owner and Maria have identities there."""
    chat = ChatInstance.at(tmp_path, dm_policy=DmPolicy.OPEN, group_policy=GroupPolicy.OPEN)
    asking = asking_instance(tmp_path)
    chat.instance.agents, chat.instance.create_tools = asking.agents, asking.create_tools
    chat.instance.model.rule = follow_instruction
    chat.instance.handle_press = None
    chat.quiet_connector.capabilities = WITH_BUTTONS
    return chat


async def link_owner_and_maria(server: LocalServer) -> None:
    await link(server, "owner", id_=OWNER)
    await link(server, "maria", id_=MARIA)


async def request_approval(
    server: LocalServer,
    chat: ChatInstance,
    wish: str = append_line_instruction("one"),
    *,
    by: str = OWNER,
    id_: str = "1",
) -> tuple[str, DeliveryPart]:
    """Have an agent request an approval, and wait until the question is in the channel."""
    await server.connector_intake.accept("quiet", inbound_message(wish, by=by, id_=id_))
    approval = await wait_for_open_approval(server)

    def find_question(_: object) -> DeliveryPart | None:
        there = (each for each in chat.quiet_connector.parts if each.channel == f"dm-{by}")
        return next((each for each in there if f"/allow {approval[:8]}" in each.text), None)

    return approval, await server.wait_for(find_question, what="the question in the channel")


def button_data(part: DeliveryPart, label: str) -> str:
    return next(button.data for row in part.buttons for button in row if button.label == label)


def make_press(data: str, *, by: str = OWNER, channel: str = "", id_: str = "p1") -> InboundMessage:
    return inbound_message(
        data,
        by=by,
        channel=channel or f"dm-{by}",
        id_=id_,
        kind=InboundKind.PRESS,
        quoted=QuotedMessage(message_id="5"),
    )


async def press_and_read_reply(server: LocalServer, chat: ChatInstance, incoming: InboundMessage) -> str:
    """Press a button and return the text shown to the person who pressed it."""
    before = len(chat.quiet_connector.press_answers)
    assert await server.connector_intake.accept("quiet", incoming) is None
    await server.wait_for(lambda _: len(chat.quiet_connector.press_answers) > before, what="an answer to the press")
    press_id, text = chat.quiet_connector.press_answers[-1]
    assert press_id == incoming.message_id
    return text


# --- buttons ---


async def test_an_owner_button_press_decides_the_approval_and_updates_the_question_message(chat: ChatInstance) -> None:
    async with chat.instance.run() as server:
        await link_owner_and_maria(server)
        approval, question = await request_approval(server, chat)
        assert [[button.label for button in row] for row in question.buttons] == [
            ["Allow", "Deny"],
            ["Allow: session", "Allow: always"],
        ]
        assert (
            await press_and_read_reply(server, chat, make_press(button_data(question, "Allow")))
            == f"{approval[:8]} is allowed."
        )
        await server.wait_for(lambda _: read_witness_lines(chat.instance) == ["one"], what="the call")
        shown = f"[{approval[:8]} is allowed by owner]"
        await server.wait_for(
            lambda _: any(shown in each for each in chat.quiet_connector.preview_texts), what="the closed question"
        )
        [(message, text)] = chat.quiet_connector.previews.items()
        assert message == f"quiet-{question.envelope.id[:8]}"
        assert text.startswith(question.text)


@pytest.mark.spec("C61.deny", "C61.always")
async def test_the_deny_and_allow_always_buttons_in_a_chat_deny_an_approval_and_create_a_grant(
    chat: ChatInstance,
) -> None:
    async with chat.instance.run() as server:
        await link_owner_and_maria(server)
        approval, question = await request_approval(server, chat)
        await press_and_read_reply(server, chat, make_press(button_data(question, "Deny")))
        assert await read_approval_state(server, approval) == "denied"
        await server.wait_until_idle()
        approval, question = await request_approval(server, chat, append_line_instruction("two"), id_="2")
        await press_and_read_reply(server, chat, make_press(button_data(question, "Allow: always"), id_="p2"))
        await server.wait_for(lambda _: read_witness_lines(chat.instance) == ["two"], what="the call")
        [(permission,)] = await rows(server, "SELECT permission FROM grants")
        assert permission == "tool:append_line"


async def test_an_unauthorized_button_press_is_refused_privately_and_recorded_in_the_audit_log(
    chat: ChatInstance, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="retinue.intake.access_control")
    async with chat.instance.run() as server:
        await link_owner_and_maria(server)
        approval, question = await request_approval(server, chat)
        data, room = button_data(question, "Allow"), question.channel
        assert await press_and_read_reply(server, chat, make_press(data, by=STRANGER, channel=room)) == NOT_ALLOWED
        reply = await press_and_read_reply(server, chat, make_press(data, by=MARIA, channel=room, id_="p2"))
        assert reply == f"{NOT_ALLOWED} (person:maria was not asked)"
        await server.wait_until_idle()

        assert await read_approval_state(server, approval) == "open"
        assert chat.quiet_connector.list_texts(room) == [question.text], "other people in the channel see no reply"
        [recorded] = await rows(server, "SELECT who, subject FROM audit WHERE kind = 'approval-refused'")
        assert tuple(recorded) == ("person:maria", approval)
        assert [each.message for each in caplog.records].count("button press refused") == 1


async def test_button_data_from_another_channel_or_forged_is_rejected_as_unknown(
    chat: ChatInstance,
) -> None:
    async with chat.instance.run() as server:
        await link_owner_and_maria(server)
        approval, question = await request_approval(server, chat)
        theirs, hers = button_data(question, "Allow"), f"dm-{MARIA}"
        forged = [
            theirs,  # the data of a question in another channel
            f"allow:{approval}",  # the approval's id instead of the question's
            f"/allow {approval[:8]}",
            "allow:" + "0" * 32,
            theirs.replace("allow", "everything"),
            "allow:" + "a" * 5_000,
            "",
        ]
        for number, data in enumerate(forged):
            assert (
                await press_and_read_reply(server, chat, make_press(data, by=MARIA, id_=f"f{number}", channel=hers))
                == UNKNOWN_BUTTON
            )
        assert await read_approval_state(server, approval) == "open"
        assert await rows(server, "SELECT 1 FROM audit WHERE kind = 'approval-decided'") == []


async def test_a_repeated_or_late_button_press_reports_the_approval_status(chat: ChatInstance) -> None:
    async with chat.instance.run() as server:
        await link_owner_and_maria(server)
        approval, question = await request_approval(server, chat)
        yes, no = button_data(question, "Allow"), button_data(question, "Deny")
        await press_and_read_reply(server, chat, make_press(yes))
        gone = f"approval {approval[:8]} is no longer open (it is allowed by owner)"
        assert await press_and_read_reply(server, chat, make_press(yes)) == gone
        assert await press_and_read_reply(server, chat, make_press(no, id_="p2")) == gone
        await server.wait_until_idle()
        assert read_witness_lines(chat.instance) == ["one"]

        approval, question = await request_approval(server, chat, append_line_instruction("two"), id_="2")
        chat.instance.clock.jump(timedelta(days=2))
        assert "is no longer open (it has expired" in await press_and_read_reply(
            server, chat, make_press(button_data(question, "Allow"), id_="p3")
        )
        await server.wait_until_idle()
        assert read_witness_lines(chat.instance) == ["one"]


async def test_an_approval_button_press_accepted_before_a_crash_is_performed_once_after_the_crash(
    chat: ChatInstance,
) -> None:
    async with chat.instance.run() as server:
        await link_owner_and_maria(server)
        _, question = await request_approval(server, chat)
        await server.connector_intake.accept("quiet", make_press(button_data(question, "Allow")))
        server.crash()
    async with chat.instance.run() as server:
        await server.wait_for(lambda _: read_witness_lines(chat.instance) == ["one"], what="the call")
        await server.connector_intake.accept(
            "quiet", make_press(button_data(question, "Allow"))
        )  # the platform delivers the press again
        await server.wait_until_idle()
    assert read_witness_lines(chat.instance) == ["one"]


async def test_an_approval_decided_elsewhere_updates_its_question_message_in_the_channel(chat: ChatInstance) -> None:
    async with chat.instance.run() as server:
        await link_owner_and_maria(server)
        approval, _ = await request_approval(server, chat)
        await server.engine.answer_approval(approval, allow=False, by=boss_principal("owner"))
        shown = f"[{approval[:8]} is denied by owner]"
        await server.wait_for(
            lambda _: any(shown in each for each in chat.quiet_connector.preview_texts), what="the closed question"
        )


class FailingConnector(FakeConnector):
    async def answer_press(self, press_id: str, text: str) -> None:
        raise RuntimeError("the connector has a bug")

    async def preview(self, channel: str, text: str, *, preview_id: str = "", quoted_message_id: str = "") -> str:
        raise RuntimeError("and another one")


async def test_a_connector_error_while_answering_an_approval_button_press_does_not_undo_the_decision(
    chat: ChatInstance,
) -> None:
    chat.instance.connectors["quiet"] = FailingConnector(chat.instance.clock, capabilities=WITH_BUTTONS)
    async with chat.instance.run() as server:
        await link_owner_and_maria(server)
        for number in ("one", "two"):
            approval, question = await request_approval(server, chat, append_line_instruction(number), id_=number)
            await server.connector_intake.accept(
                "quiet", make_press(button_data(question, "Allow"), id_=f"press {number}")
            )
            await server.wait_for(lambda _: read_witness_lines(chat.instance)[-1:] == [number], what="the call")  # noqa: B023
            assert await read_approval_state(server, approval) == "allowed"
            await server.wait_until_idle()


async def test_many_approval_button_presses_by_strangers_store_nothing(chat: ChatInstance) -> None:
    async with chat.instance.run() as server:
        await link_owner_and_maria(server)
        _, question = await request_approval(server, chat)
        data, before = button_data(question, "Allow"), await count(server)
        for number in range(10 * CONCURRENT_REPLIES_MAX):
            await server.connector_intake.accept(
                "quiet", make_press(data, by=STRANGER, channel=question.channel, id_=f"s{number}")
            )
        await server.wait_until_idle()
        assert await count(server) == before, "the press is not stored"
        assert chat.quiet_connector.press_answers, "strangers get a reply, up to the limit"


@pytest.mark.spec("D32.buttons", "D32.resumes")
async def test_a_permission_request_in_a_chat_has_buttons_and_a_press_resumes_the_agent(chat: ChatInstance) -> None:
    async with chat.instance.run() as server:
        await link_owner_and_maria(server)
        wish = tool_instruction("request_permission", permission="web", reason="to look up the trains")
        approval, question = await request_approval(server, chat, wish)
        assert question.text.startswith("ada asks: may I have web?")
        assert {"Allow", "Deny"} <= {button.label for row in question.buttons for button in row}
        await server.wait_until_idle()
        before = len(chat.instance.model.prompts)
        await press_and_read_reply(server, chat, make_press(button_data(question, "Allow")))
        assert await read_approval_state(server, approval) == "allowed"
        await server.wait_until_idle()
        [decided] = chat.instance.model.prompts[before:]
        assert "owner allowed web" in str(decided.records[-1].body)


# --- who is asked in a chat ---


async def test_a_linked_person_is_asked_for_an_approval_in_their_chat_and_cannot_allow_always(
    chat: ChatInstance,
) -> None:
    async with chat.instance.run() as server:
        await link_owner_and_maria(server)
        approval, question = await request_approval(server, chat, by=MARIA)
        assert [button.label for row in question.buttons for button in row] == ["Allow", "Deny", "Allow: session"]
        forged = button_data(question, "Allow").replace("allow", "always")
        assert await press_and_read_reply(server, chat, make_press(forged, by=MARIA)) == UNKNOWN_BUTTON
        reply = await press_and_read_reply(server, chat, make_press(button_data(question, "Allow"), by=MARIA, id_="p2"))
        assert reply == f"{approval[:8]} is allowed."
        await server.wait_for(lambda _: read_witness_lines(chat.instance) == ["one"], what="the call")


async def test_an_approval_for_a_stranger_in_a_chat_goes_to_the_owner_and_not_to_the_chat(chat: ChatInstance) -> None:
    async with chat.instance.run() as server:
        await link_owner_and_maria(server)
        await server.connector_intake.accept("quiet", inbound_message(append_line_instruction("one"), by=STRANGER))
        await wait_for_open_approval(server)
        await server.wait_until_idle()
        assert chat.quiet_connector.list_texts(f"dm-{STRANGER}") == []
        assert [each.kind.value for each in await server.list_envelopes_to("owner")] == ["approval"]


# --- numbers, without buttons ---


async def test_a_numbered_reply_in_a_chat_decides_an_approval_without_buttons(chat: ChatInstance) -> None:
    chat.quiet_connector.capabilities = WITHOUT_BUTTONS
    async with chat.instance.run() as server:
        await link_owner_and_maria(server)
        approval, question = await request_approval(server, chat)
        assert question.buttons == ()
        assert question.text.endswith("1: Allow, 2: Deny, 3: Allow: session, 4: Allow: always")
        settled = await server.connector_intake.accept("quiet", inbound_message(" 2. ", by=OWNER, id_="2"))
        assert settled is not None and settled.outcome is Outcome.ANSWERED
        assert await server.wait_for_answer(settled.envelope) == f"{approval[:8]} is denied."
        assert await read_approval_state(server, approval) == "denied"


async def test_a_number_in_a_chat_is_ordinary_text_unless_an_open_approval_offers_that_number(
    chat: ChatInstance,
) -> None:
    async with chat.instance.run() as server:
        await link_owner_and_maria(server)
        quiet_connector = chat.quiet_connector
        plain = await server.connector_intake.accept("quiet", inbound_message("1", by=OWNER, id_="0"))
        approval, _ = await request_approval(server, chat)
        with_buttons = await server.connector_intake.accept("quiet", inbound_message("1", by=OWNER, id_="2"))
        quiet_connector.capabilities = WITHOUT_BUTTONS
        too_high = await server.connector_intake.accept("quiet", inbound_message("9", by=OWNER, id_="3"))
        elsewhere = await server.connector_intake.accept("quiet", inbound_message("1", by=MARIA, id_="4"))
        stranger = await server.connector_intake.accept(
            "quiet", inbound_message("1", by=STRANGER, channel="-1", id_="5", mentioned=True)
        )
        for receipt in (plain, with_buttons, too_high, elsewhere, stranger):
            assert receipt is not None and receipt.outcome is None
        assert await read_approval_state(server, approval) == "open"


async def test_a_numbered_reply_is_ambiguous_with_two_open_approvals_unless_the_reply_quotes_an_approval(
    chat: ChatInstance,
) -> None:
    chat.quiet_connector.capabilities = WITHOUT_BUTTONS
    async with chat.instance.run() as server:
        await link_owner_and_maria(server)
        first, question = await request_approval(server, chat)
        await server.connector_intake.accept(
            "quiet", inbound_message("never mind", by=OWNER, id_="2")
        )  # the run resumes without the decision
        await server.wait_until_idle()
        await server.connector_intake.accept(
            "quiet", inbound_message(append_line_instruction("two"), by=OWNER, id_="3")
        )
        await server.wait_until_idle()
        [(second,)] = await rows(server, "SELECT id FROM approvals WHERE state = 'open' AND id <> :id", id=first)
        unclear = await server.connector_intake.accept("quiet", inbound_message("1", by=OWNER, id_="4"))
        assert unclear is not None
        text = await server.wait_for_answer(unclear.envelope)
        assert first[:8] in text and second[:8] in text
        assert (await read_approval_state(server, first), await read_approval_state(server, second)) == ("open", "open")
        quoted = QuotedMessage(message_id=f"quiet-{question.envelope.id[:8]}", ours=True)
        clear = await server.connector_intake.accept("quiet", inbound_message("2", by=OWNER, id_="5", quoted=quoted))
        assert clear is not None
        assert (await read_approval_state(server, first), await read_approval_state(server, second)) == (
            "denied",
            "open",
        )


async def test_a_numbered_reply_in_a_chat_from_a_person_who_was_not_asked_decides_no_approval(
    chat: ChatInstance,
) -> None:
    chat.quiet_connector.capabilities = WITHOUT_BUTTONS
    async with chat.instance.run() as server:
        await link_owner_and_maria(server)
        await server.connector_intake.accept(
            "quiet", inbound_message(append_line_instruction("one"), by=OWNER, channel="-1", mentioned=True)
        )
        approval = await wait_for_open_approval(server)
        await server.wait_for(lambda _: bool(chat.quiet_connector.list_texts("-1")), what="the question in the channel")
        hers = await server.connector_intake.accept(
            "quiet", inbound_message("1", by=MARIA, channel="-1", id_="2", mentioned=True)
        )
        assert hers is not None
        assert "person:maria was not asked" in await server.wait_for_answer(hers.envelope)
        assert await read_approval_state(server, approval) == "open"
        his = await server.connector_intake.accept(
            "quiet", inbound_message("1", by=OWNER, channel="-1", id_="3", mentioned=True)
        )
        assert his is not None
        assert await server.wait_for_answer(his.envelope) == f"{approval[:8]} is allowed."
