"""The context line on its way: the model reads it, the store keeps it as it came, and people see the words."""

from __future__ import annotations

from pathlib import Path

import pytest

from retinue.cli.chat_state import strip_context_line as shown_in_a_terminal
from retinue.domain.envelope import Outcome
from retinue.domain.record import UserTurn
from retinue.domain.ui_context import context_attributes, text_without_context
from retinue.testing.local_instance import LocalInstance, LocalServer
from retinue.testing.scripted_model import text_reply

LINE = (
    '<context panel-id="p2" panel-type="lists" panel-title="Shopping &amp; &quot;more&quot;" type="list" id="groceries"'
    ' name="Groceries" selection="milk,bread" mode="brief" />\n'
)


def read_by_the_model(household: LocalInstance) -> str:
    body = household.model.prompts[-1].records[-1].body
    assert isinstance(body, UserTurn)
    return body.text


async def snippet(house: LocalServer, session: str | None) -> str:
    return (await house.get_session(session)).snippet


@pytest.mark.spec("A61", "A60", "A88")
async def test_brief_mode_and_the_selection_reach_the_model_and_the_store_keeps_every_byte(tmp_path: Path) -> None:
    household = LocalInstance(tmp_path)
    async with household.run() as house:
        household.model.will_reply("Both.")
        sent = await house.send(LINE + "Which of these?")
        await house.wait_for_outcome(sent.envelope)
        prompt = read_by_the_model(household)
        assert LINE + "Which of these?" in prompt
        assert context_attributes(prompt[prompt.index("<context") :])["mode"] == "brief"
        assert context_attributes(prompt[prompt.index("<context") :])["selection"] == "milk,bread"
        assert (await house.get_envelope(sent.envelope)).text == LINE + "Which of these?"
        assert (
            shown_in_a_terminal(LINE + "Which of these?")
            == text_without_context(LINE + "Which of these?")
            == "Which of these?"
        )
        household.model.will_reply("Plainly said.")
        plain = await house.send("And without a page?")
        await house.wait_for_outcome(plain.envelope)
        assert "<context" not in read_by_the_model(household)  # the house makes none


@pytest.mark.spec("A60")
async def test_a_preview_shows_the_words_and_not_the_line(tmp_path: Path) -> None:
    household = LocalInstance(tmp_path)
    async with household.run() as house:
        household.model.will_reply(text_reply("First.", after_s=60), "Second.")
        first = await house.send(LINE + "Which of these?")
        assert await snippet(house, first.session) == "Which of these?"  # its run began in the accepting commit
        await house.wait_for(lambda _conn: bool(household.model.prompts), what="the model to be asked")
        second = await house.send(LINE + "Or this?")
        assert await snippet(house, first.session) == "Or this?"  # it waits
        await household.clock.advance(60.0)
        assert await house.wait_for_answer(first.envelope) == "First."
        await house.wait_for_outcome(second.envelope)


@pytest.mark.spec("A60")
async def test_a_command_after_the_line_is_a_command_and_an_escaped_one_keeps_its_line(tmp_path: Path) -> None:
    household = LocalInstance(tmp_path)
    async with household.run() as house:
        asked = await house.send(LINE + "/help")
        assert (await house.wait_for_outcome(asked.envelope)).outcome is Outcome.ANSWERED
        assert "/stop" in await house.wait_for_answer(asked.envelope)
        assert household.model.prompts == []  # no model was needed
        assert (await house.get_envelope(asked.envelope)).text == LINE + "/help"
        household.model.will_reply("As words.")
        words = await house.send(LINE + "//help")
        assert await house.wait_for_answer(words.envelope) == "As words."
        assert (await house.get_envelope(words.envelope)).text == LINE + "/help"


@pytest.mark.spec("A60")
async def test_only_what_is_exactly_a_context_line_is_left_out_of_a_preview(tmp_path: Path) -> None:
    household = LocalInstance(tmp_path)
    async with household.run() as house:
        household.model.rule = lambda prompt: text_reply("ok")
        for text in ("<context>hidden</context>\nwords", '<context a="1" onclick=x />\nwords', "<contexts />\nwords"):
            sent = await house.send(text)
            assert await snippet(house, sent.session) == text[:120]
            assert text_without_context(text) == shown_in_a_terminal(text) == text
            await house.wait_until_idle()
