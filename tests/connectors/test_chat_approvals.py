"""Questions in chats: put where whoever may decide writes, answered there by a press, a number or a command, and closed
once they are."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from connector_instance import Street, link, said
from connector_instance import rows as count
from flows.approval_instance import asking_household, do, does, line, open_question, rows, state_of, witness

from retinue.connectors.base import ConnectorCapabilities, DeliveryPart, InboundKind, InboundMessage, QuotedMessage
from retinue.domain.access import DmPolicy, GroupPolicy
from retinue.domain.envelope import Outcome
from retinue.engine.button_presses import CONCURRENT_REPLIES_MAX, NOT_ALLOWED, UNKNOWN_BUTTON
from retinue.testing.fake_connector import FakeConnector
from retinue.testing.local_instance import LocalServer, boss_principal

BUTTONS = ConnectorCapabilities(can_show_buttons=True, can_edit=True, can_quote=True)
NUMBERS = ConnectorCapabilities(can_quote=True)
OWNER, MARIA, STRANGER = "9", "7", "8"  # as the place knows them


@pytest.fixture
def street(tmp_path: Path) -> Street:
    """Agents that ask, at a place with buttons; the owner and Maria are known there."""
    street = Street.at(tmp_path, dm=DmPolicy.OPEN, group_policy=GroupPolicy.OPEN)
    asking = asking_household(tmp_path)
    street.household.agents, street.household.create_tools = asking.agents, asking.create_tools
    street.household.model.rule = does
    street.household.handle_press = None
    street.place.capabilities = BUTTONS
    return street


async def known(house: LocalServer) -> None:
    await link(house, "owner", id_=OWNER)
    await link(house, "maria", id_=MARIA)


async def ask(
    house: LocalServer, street: Street, wish: str = line("one"), *, by: str = OWNER, id_: str = "1"
) -> tuple[str, DeliveryPart]:
    """Have an agent ask, and wait until the question stands in the room."""
    await house.connector_intake.accept("quiet", said(wish, by=by, id_=id_))
    approval = await open_question(house)

    def stands(_: object) -> DeliveryPart | None:
        there = (each for each in street.place.parts if each.channel == f"dm-{by}")
        return next((each for each in there if f"/allow {approval[:8]}" in each.text), None)

    return approval, await house.wait_for(stands, what="the question in the room")


def data_of(parcel: DeliveryPart, label: str) -> str:
    return next(button.data for row in parcel.buttons for button in row if button.label == label)


def press(data: str, *, by: str = OWNER, room: str = "", id_: str = "p1") -> InboundMessage:
    return said(
        data, by=by, room=room or f"dm-{by}", id_=id_, kind=InboundKind.PRESS, quoted=QuotedMessage(message_id="5")
    )


async def pressed(house: LocalServer, street: Street, incoming: InboundMessage) -> str:
    """Press, and read what whoever pressed is told."""
    before = len(street.place.press_answers)
    assert await house.connector_intake.accept("quiet", incoming) is None
    await house.wait_for(lambda _: len(street.place.press_answers) > before, what="an answer to the press")
    press_id, text = street.place.press_answers[-1]
    assert press_id == incoming.message_id
    return text


# --- buttons ---


async def test_a_press_of_the_owner_decides_and_the_question_is_closed_where_it_stands(street: Street) -> None:
    async with street.household.run() as house:
        await known(house)
        approval, question = await ask(house, street)
        assert [[button.label for button in row] for row in question.buttons] == [
            ["Allow", "Deny"],
            ["Allow: session", "Allow: always"],
        ]
        assert await pressed(house, street, press(data_of(question, "Allow"))) == f"{approval[:8]} is allowed."
        await house.wait_for(lambda _: witness(street.household) == ["one"], what="the call")
        shown = f"[{approval[:8]} is allowed by owner]"
        await house.wait_for(
            lambda _: any(shown in each for each in street.place.preview_texts), what="the closed question"
        )
        [(message, text)] = street.place.previews.items()
        assert message == f"quiet-{question.envelope.id[:8]}"
        assert text.startswith(question.text)


@pytest.mark.spec("C61.deny", "C61.always")
async def test_a_no_and_a_yes_for_good_are_pressed_as_well(street: Street) -> None:
    async with street.household.run() as house:
        await known(house)
        approval, question = await ask(house, street)
        await pressed(house, street, press(data_of(question, "Deny")))
        assert await state_of(house, approval) == "denied"
        await house.wait_until_idle()
        approval, question = await ask(house, street, line("two"), id_="2")
        await pressed(house, street, press(data_of(question, "Allow: always"), id_="p2"))
        await house.wait_for(lambda _: witness(street.household) == ["two"], what="the call")
        [(permission,)] = await rows(house, "SELECT permission FROM grants")
        assert permission == "tool:append_line"


async def test_who_may_not_decide_is_told_so_alone_and_it_is_written_down(
    street: Street, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="retinue.intake.access_control")
    async with street.household.run() as house:
        await known(house)
        approval, question = await ask(house, street)
        data, room = data_of(question, "Allow"), question.channel
        assert await pressed(house, street, press(data, by=STRANGER, room=room)) == NOT_ALLOWED
        told = await pressed(house, street, press(data, by=MARIA, room=room, id_="p2"))
        assert told == f"{NOT_ALLOWED} (person:maria was not asked)"
        await house.wait_until_idle()

        assert await state_of(house, approval) == "open"
        assert street.place.list_texts(room) == [question.text], "nobody else in the room hears of it"
        [recorded] = await rows(house, "SELECT who, subject FROM audit WHERE kind = 'approval-refused'")
        assert tuple(recorded) == ("person:maria", approval)
        assert [each.message for each in caplog.records].count("button press refused") == 1


async def test_what_a_button_bears_means_nothing_in_another_room_and_nothing_else_does(
    street: Street,
) -> None:
    async with street.household.run() as house:
        await known(house)
        approval, question = await ask(house, street)
        theirs, hers = data_of(question, "Allow"), f"dm-{MARIA}"
        forged = [
            theirs,  # read over somebody's shoulder
            f"allow:{approval}",  # the approval itself, and not its question
            f"/allow {approval[:8]}",
            "allow:" + "0" * 32,
            theirs.replace("allow", "everything"),
            "allow:" + "a" * 5_000,
            "",
        ]
        for number, data in enumerate(forged):
            assert await pressed(house, street, press(data, by=MARIA, id_=f"f{number}", room=hers)) == UNKNOWN_BUTTON
        assert await state_of(house, approval) == "open"
        assert await rows(house, "SELECT 1 FROM audit WHERE kind = 'approval-decided'") == []


async def test_a_press_that_comes_twice_or_too_late_says_what_became_of_the_question(street: Street) -> None:
    async with street.household.run() as house:
        await known(house)
        approval, question = await ask(house, street)
        yes, no = data_of(question, "Allow"), data_of(question, "Deny")
        await pressed(house, street, press(yes))
        gone = f"approval {approval[:8]} is no longer open (it is allowed by owner)"
        assert await pressed(house, street, press(yes)) == gone
        assert await pressed(house, street, press(no, id_="p2")) == gone
        await house.wait_until_idle()
        assert witness(street.household) == ["one"]

        approval, question = await ask(house, street, line("two"), id_="2")
        street.household.clock.jump(timedelta(days=2))
        assert "is no longer open (it has expired" in await pressed(
            house, street, press(data_of(question, "Allow"), id_="p3")
        )
        await house.wait_until_idle()
        assert witness(street.household) == ["one"]


async def test_a_press_taken_in_before_a_crash_is_carried_out_after_it(street: Street) -> None:
    async with street.household.run() as house:
        await known(house)
        _, question = await ask(house, street)
        await house.connector_intake.accept("quiet", press(data_of(question, "Allow")))
        house.crash()
    async with street.household.run() as house:
        await house.wait_for(lambda _: witness(street.household) == ["one"], what="the call")
        await house.connector_intake.accept("quiet", press(data_of(question, "Allow")))  # which the place offers again
        await house.wait_until_idle()
    assert witness(street.household) == ["one"]


async def test_a_question_answered_elsewhere_is_closed_in_its_room(street: Street) -> None:
    async with street.household.run() as house:
        await known(house)
        approval, _ = await ask(house, street)
        await house.engine.answer_approval(approval, allow=False, by=boss_principal("owner"))
        shown = f"[{approval[:8]} is denied by owner]"
        await house.wait_for(
            lambda _: any(shown in each for each in street.place.preview_texts), what="the closed question"
        )


class Clumsy(FakeConnector):
    async def answer_press(self, press_id: str, text: str) -> None:
        raise RuntimeError("the connector has a bug")

    async def preview(self, channel: str, text: str, *, preview_id: str = "", quoted_message_id: str = "") -> str:
        raise RuntimeError("and another one")


async def test_a_place_that_breaks_over_an_answer_takes_nothing_from_the_decision(street: Street) -> None:
    street.household.connectors["quiet"] = Clumsy(street.household.clock, capabilities=BUTTONS)
    async with street.household.run() as house:
        await known(house)
        for number in ("one", "two"):
            approval, question = await ask(house, street, line(number), id_=number)
            await house.connector_intake.accept("quiet", press(data_of(question, "Allow"), id_=f"press {number}"))
            await house.wait_for(lambda _: witness(street.household)[-1:] == [number], what="the call")  # noqa: B023
            assert await state_of(house, approval) == "allowed"
            await house.wait_until_idle()


async def test_a_flood_of_presses_of_strangers_leaves_nothing_behind(street: Street) -> None:
    async with street.household.run() as house:
        await known(house)
        _, question = await ask(house, street)
        data, before = data_of(question, "Allow"), await count(house)
        for number in range(10 * CONCURRENT_REPLIES_MAX):
            await house.connector_intake.accept(
                "quiet", press(data, by=STRANGER, room=question.channel, id_=f"s{number}")
            )
        await house.wait_until_idle()
        assert await count(house) == before, "nothing of it is kept"
        assert street.place.press_answers, "they are told, as far as there is time for it"


@pytest.mark.spec("D32.buttons", "D32.resumes")
async def test_a_request_for_permission_has_buttons_and_a_press_resumes_whoever_asked(street: Street) -> None:
    async with street.household.run() as house:
        await known(house)
        wish = do("request_permission", permission="web", reason="to look up the trains")
        approval, question = await ask(house, street, wish)
        assert question.text.startswith("ada asks: may I have web?")
        assert {"Allow", "Deny"} <= {button.label for row in question.buttons for button in row}
        await house.wait_until_idle()
        before = len(street.household.model.prompts)
        await pressed(house, street, press(data_of(question, "Allow")))
        assert await state_of(house, approval) == "allowed"
        await house.wait_until_idle()
        [decided] = street.household.model.prompts[before:]
        assert "owner allowed web" in str(decided.records[-1].body)


# --- who is asked in a chat ---


async def test_a_linked_person_is_asked_where_they_write_and_may_not_grant_for_good(street: Street) -> None:
    async with street.household.run() as house:
        await known(house)
        approval, question = await ask(house, street, by=MARIA)
        assert [button.label for row in question.buttons for button in row] == ["Allow", "Deny", "Allow: session"]
        forged = data_of(question, "Allow").replace("allow", "always")
        assert await pressed(house, street, press(forged, by=MARIA)) == UNKNOWN_BUTTON
        told = await pressed(house, street, press(data_of(question, "Allow"), by=MARIA, id_="p2"))
        assert told == f"{approval[:8]} is allowed."
        await house.wait_for(lambda _: witness(street.household) == ["one"], what="the call")


async def test_for_a_stranger_the_owner_is_asked_and_the_room_sees_nothing_of_it(street: Street) -> None:
    async with street.household.run() as house:
        await known(house)
        await house.connector_intake.accept("quiet", said(line("one"), by=STRANGER))
        await open_question(house)
        await house.wait_until_idle()
        assert street.place.list_texts(f"dm-{STRANGER}") == []
        assert [each.kind.value for each in await house.list_envelopes_to("owner")] == ["approval"]


# --- numbers, where there are no buttons ---


async def test_a_number_answers_where_there_are_no_buttons(street: Street) -> None:
    street.place.capabilities = NUMBERS
    async with street.household.run() as house:
        await known(house)
        approval, question = await ask(house, street)
        assert question.buttons == ()
        assert question.text.endswith("1: Allow, 2: Deny, 3: Allow: session, 4: Allow: always")
        told = await house.connector_intake.accept("quiet", said(" 2. ", by=OWNER, id_="2"))
        assert told is not None and told.outcome is Outcome.ANSWERED
        assert await house.wait_for_answer(told.envelope) == f"{approval[:8]} is denied."
        assert await state_of(house, approval) == "denied"


async def test_a_number_is_a_word_where_no_question_offers_it(street: Street) -> None:
    async with street.household.run() as house:
        await known(house)
        place = street.place
        plain = await house.connector_intake.accept("quiet", said("1", by=OWNER, id_="0"))
        approval, _ = await ask(house, street)
        with_buttons = await house.connector_intake.accept("quiet", said("1", by=OWNER, id_="2"))
        place.capabilities = NUMBERS
        too_high = await house.connector_intake.accept("quiet", said("9", by=OWNER, id_="3"))
        elsewhere = await house.connector_intake.accept("quiet", said("1", by=MARIA, id_="4"))
        stranger = await house.connector_intake.accept(
            "quiet", said("1", by=STRANGER, room="-1", id_="5", mentioned=True)
        )
        for receipt in (plain, with_buttons, too_high, elsewhere, stranger):
            assert receipt is not None and receipt.outcome is None
        assert await state_of(house, approval) == "open"


async def test_of_several_questions_a_number_picks_none_unless_it_answers_to_one(street: Street) -> None:
    street.place.capabilities = NUMBERS
    async with street.household.run() as house:
        await known(house)
        first, question = await ask(house, street)
        await house.connector_intake.accept(
            "quiet", said("never mind", by=OWNER, id_="2")
        )  # the run goes on without the answer
        await house.wait_until_idle()
        await house.connector_intake.accept("quiet", said(line("two"), by=OWNER, id_="3"))
        await house.wait_until_idle()
        [(second,)] = await rows(house, "SELECT id FROM approvals WHERE state = 'open' AND id <> :id", id=first)
        unclear = await house.connector_intake.accept("quiet", said("1", by=OWNER, id_="4"))
        assert unclear is not None
        text = await house.wait_for_answer(unclear.envelope)
        assert first[:8] in text and second[:8] in text
        assert (await state_of(house, first), await state_of(house, second)) == ("open", "open")
        quoted = QuotedMessage(message_id=f"quiet-{question.envelope.id[:8]}", ours=True)
        clear = await house.connector_intake.accept("quiet", said("2", by=OWNER, id_="5", quoted=quoted))
        assert clear is not None
        assert (await state_of(house, first), await state_of(house, second)) == ("denied", "open")


async def test_a_number_of_somebody_who_was_not_asked_decides_nothing(street: Street) -> None:
    street.place.capabilities = NUMBERS
    async with street.household.run() as house:
        await known(house)
        await house.connector_intake.accept("quiet", said(line("one"), by=OWNER, room="-1", mentioned=True))
        approval = await open_question(house)
        await house.wait_for(lambda _: bool(street.place.list_texts("-1")), what="the question in the room")
        hers = await house.connector_intake.accept("quiet", said("1", by=MARIA, room="-1", id_="2", mentioned=True))
        assert hers is not None
        assert "person:maria was not asked" in await house.wait_for_answer(hers.envelope)
        assert await state_of(house, approval) == "open"
        his = await house.connector_intake.accept("quiet", said("1", by=OWNER, room="-1", id_="3", mentioned=True))
        assert his is not None
        assert await house.wait_for_answer(his.envelope) == f"{approval[:8]} is allowed."
