"""The context line of the web app: the model reads it, the database stores it, and people see the text without it."""

from __future__ import annotations

from pathlib import Path

import pytest

from retinue.cli.chat_state import strip_context_line as shown_in_a_terminal
from retinue.domain.envelope import Outcome
from retinue.domain.record import UserTurn
from retinue.domain.ui_context import context_attributes, text_without_context
from retinue.testing.local_instance import LocalInstance, LocalServer
from retinue.testing.scripted_model import text_reply

CONTEXT_LINE = (
    '<context panel-id="p2" panel-type="lists" panel-title="Shopping &amp; &quot;more&quot;" type="list" id="groceries"'
    ' name="Groceries" selection="milk,bread" mode="brief" />\n'
)


def last_prompt_text(instance: LocalInstance) -> str:
    body = instance.model.prompts[-1].records[-1].body
    assert isinstance(body, UserTurn)
    return body.text


async def snippet(server: LocalServer, session: str | None) -> str:
    return (await server.get_session(session)).snippet


@pytest.mark.spec("A61", "A60", "A88")
async def test_a_ui_context_line_reaches_the_model_and_is_stored_unchanged(tmp_path: Path) -> None:
    instance = LocalInstance(tmp_path)
    async with instance.run() as server:
        instance.model.will_reply("Both.")
        sent = await server.send(CONTEXT_LINE + "Which of these?")
        await server.wait_for_outcome(sent.envelope)
        prompt = last_prompt_text(instance)
        assert CONTEXT_LINE + "Which of these?" in prompt
        assert context_attributes(prompt[prompt.index("<context") :])["mode"] == "brief"
        assert context_attributes(prompt[prompt.index("<context") :])["selection"] == "milk,bread"
        assert (await server.get_envelope(sent.envelope)).text == CONTEXT_LINE + "Which of these?"
        assert (
            shown_in_a_terminal(CONTEXT_LINE + "Which of these?")
            == text_without_context(CONTEXT_LINE + "Which of these?")
            == "Which of these?"
        )
        instance.model.will_reply("Plainly said.")
        plain = await server.send("And without a page?")
        await server.wait_for_outcome(plain.envelope)
        assert "<context" not in last_prompt_text(instance)  # the server adds none


@pytest.mark.spec("A60")
async def test_a_session_snippet_shows_the_text_without_the_ui_context_line(tmp_path: Path) -> None:
    instance = LocalInstance(tmp_path)
    async with instance.run() as server:
        instance.model.will_reply(text_reply("First.", after_s=60), "Second.")
        first = await server.send(CONTEXT_LINE + "Which of these?")
        assert await snippet(server, first.session) == "Which of these?"  # its run began in the accepting commit
        await server.wait_for(lambda _conn: bool(instance.model.prompts), what="the model to be called")
        second = await server.send(CONTEXT_LINE + "Or this?")
        assert await snippet(server, first.session) == "Or this?"  # it is queued
        await instance.clock.advance(60.0)
        assert await server.wait_for_answer(first.envelope) == "First."
        await server.wait_for_outcome(second.envelope)


@pytest.mark.spec("A60")
async def test_a_command_after_a_ui_context_line_is_carried_out_and_an_escaped_one_is_text(tmp_path: Path) -> None:
    instance = LocalInstance(tmp_path)
    async with instance.run() as server:
        asked = await server.send(CONTEXT_LINE + "/help")
        assert (await server.wait_for_outcome(asked.envelope)).outcome is Outcome.ANSWERED
        assert "/stop" in await server.wait_for_answer(asked.envelope)
        assert instance.model.prompts == []  # no model was called
        assert (await server.get_envelope(asked.envelope)).text == CONTEXT_LINE + "/help"
        instance.model.will_reply("As words.")
        words = await server.send(CONTEXT_LINE + "//help")
        assert await server.wait_for_answer(words.envelope) == "As words."
        assert (await server.get_envelope(words.envelope)).text == CONTEXT_LINE + "/help"


@pytest.mark.spec("A60")
async def test_only_an_exact_ui_context_line_is_removed_from_a_snippet(tmp_path: Path) -> None:
    instance = LocalInstance(tmp_path)
    async with instance.run() as server:
        instance.model.rule = lambda prompt: text_reply("ok")
        for text in ("<context>hidden</context>\nwords", '<context a="1" onclick=x />\nwords', "<contexts />\nwords"):
            sent = await server.send(text)
            assert await snippet(server, sent.session) == text[:120]
            assert text_without_context(text) == shown_in_a_terminal(text) == text
            await server.wait_until_idle()
