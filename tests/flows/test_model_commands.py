"""Commands about the model of a conversation, and the next request to the provider."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest
from contracts.engine_instance import assert_ledger_balances, query_rows
from flows.fake_provider import KEY, Provider, build_instance, parse_settings, provider, provider_section, says

from retinue.domain.credential import Credential
from retinue.domain.envelope import Outcome
from retinue.domain.model import EFFORTS
from retinue.domain.session import SessionOptions
from retinue.domain.structs import replace
from retinue.domain.trust import Trust
from retinue.store.agents import credentials
from retinue.testing.local_instance import LocalInstance, LocalServer, terminal_origin

SPARE_KEY = "sk-spare-0123456789abcdefghij"
ENVIRONMENT = {"MOCK_KEY": KEY, "SPARE_KEY": SPARE_KEY}
ENTRIES = """
[models]
allow = ["mock/*"]
default = { primary = "mock/m1" }
[models.entries."mock/m1"]
window_tokens = 40000
input_usd = 1
output_usd = 5
[models.entries."mock/large"]
alias = "big"
efforts = ["low", "high"]
[models.entries."mock/plain"]
efforts = []
"""
LONG_TEXT = "the cat is on the roof again\n" * 600  # about 4,300 tokens


@pytest.fixture
async def mock_provider() -> AsyncIterator[Provider]:
    async with provider() as server:
        server.always(says("Yes."))
        yield server


@pytest.fixture
def instance(tmp_path: Path, mock_provider: Provider) -> LocalInstance:
    return build_instance(tmp_path, provider_section("mock", mock_provider.url) + ENTRIES, environment=ENVIRONMENT)


async def send_and_wait_for_answer(server: LocalServer, text: str, *, sender: str = "person:maria") -> str:
    """Send a message in the terminal of maria and return the answer."""
    return await server.wait_for_answer(
        (await server.send(text, sender=sender, origin=terminal_origin("maria"))).envelope
    )


async def read_session_options(server: LocalServer) -> SessionOptions:
    ((session,),) = await query_rows(server, "SELECT id FROM sessions")
    return (await server.get_session(session)).options


# --- /model ---


@pytest.mark.spec("C31")
async def test_the_model_command_lists_numbered_models_and_marks_the_current_one(instance: LocalInstance) -> None:
    async with instance.run() as server:
        listed = (await send_and_wait_for_answer(server, "/model")).splitlines()
        assert listed[0] == "*  1. mock/m1: 40,000 tokens, $1 in, $5 out per million tokens"
        assert listed[1].startswith("   2. mock/large (big): ") and listed[2].startswith("   3. mock/plain: ")
        assert listed[-1] == "Choose one with /model NUMBER or /model NAME. /model default clears the choice."
        assert await send_and_wait_for_answer(server, "/model list") == "\n".join(listed)
        await send_and_wait_for_answer(server, "/model big")
        after = (await send_and_wait_for_answer(server, "/model")).splitlines()
        assert after[0].startswith("   1. ") and after[1].startswith("*  2. mock/large")


@pytest.mark.spec("C31")
@pytest.mark.parametrize("said", ["2", "big", "BIG", "mock/large"])
async def test_the_model_command_selects_by_number_alias_or_reference_and_survives_a_restart(
    instance: LocalInstance, mock_provider: Provider, said: str
) -> None:
    async with instance.run() as server:
        await send_and_wait_for_answer(server, "hello")
        answer = await send_and_wait_for_answer(server, f"/model {said}")
        assert answer == "From the next turn on, this conversation uses mock/large."
        await send_and_wait_for_answer(server, "and now?")
        assert "model: mock/large" in await send_and_wait_for_answer(server, "/status")
    async with instance.run() as server:
        await send_and_wait_for_answer(server, "still?")
        assert [asked.model for asked in mock_provider.asked] == ["m1", "large", "large"], (
            "no command was sent to a model"
        )
        assert (
            await send_and_wait_for_answer(server, "/model default") == "This conversation now uses the agent's model."
        )
        await send_and_wait_for_answer(server, "back?")
        assert mock_provider.asked[-1].model == "m1" and await read_session_options(server) == replace(
            await read_session_options(server), model=None
        )


@pytest.mark.spec("C31")
async def test_a_credential_pinned_by_a_model_command_is_used_and_its_value_is_never_shown(
    instance: LocalInstance, mock_provider: Provider
) -> None:
    spare = Credential(id="mock:spare", provider="mock", source="env:SPARE_KEY")
    async with instance.run() as server:
        await server.store.write(partial(credentials.add, credential=spare, at_ms=1), point="test")
        answer = await send_and_wait_for_answer(server, "/model big@spare")
        assert answer == "From the next turn on, this conversation uses mock/large, with the credential mock:spare."
        await send_and_wait_for_answer(server, "hello")
        status = await send_and_wait_for_answer(server, "/model status")
        assert "mock/large" in status.splitlines()[0] and "mock:spare" in status
    async with instance.run() as server:
        await send_and_wait_for_answer(server, "hello again")
        assert [(asked.model, asked.key) for asked in mock_provider.asked] == [
            ("large", SPARE_KEY),
            ("large", SPARE_KEY),
        ]
        await send_and_wait_for_answer(server, "/model default")
        await send_and_wait_for_answer(server, "and now?")
        assert (await read_session_options(server)).pinned is False
        said = [envelope.text for envelope in await server.list_envelopes_to("maria")]
        assert not any(KEY in text or SPARE_KEY in text for text in said)


@pytest.mark.spec("C31")
async def test_the_model_status_command_shows_the_next_model_and_its_credential(instance: LocalInstance) -> None:
    async with instance.run() as server:
        (line,) = (await send_and_wait_for_answer(server, "/model status")).splitlines()
        assert line.startswith("mock/m1") and "mock:settings" in line


@pytest.mark.spec("C31")
@pytest.mark.parametrize(
    ("said", "words"),
    [
        (
            "openai/gpt-5.2",
            ("Openai/gpt-5.2 is not allowed", "Because `models.allow` allows", "Try: choose one of mock/m1, big,"),
        ),
        ("17", ("No model number 17.", "Because the list has the numbers 1 to", "/model")),
        ("nobody/at-all", ("nobody", "Because", "Try: ")),
    ],
)
async def test_a_model_command_for_an_unavailable_model_gets_alternatives_and_changes_nothing(
    instance: LocalInstance, mock_provider: Provider, said: str, words: tuple[str, ...]
) -> None:
    async with instance.run() as server:
        await send_and_wait_for_answer(server, "/model big")
        answer = await send_and_wait_for_answer(server, f"/model {said}")
        assert all(each in answer for each in words), answer
        await send_and_wait_for_answer(server, "hello")
        assert mock_provider.asked[-1].model == "large" and (await read_session_options(server)).model == "mock/large"


async def test_a_model_selected_by_command_that_becomes_forbidden_is_no_longer_used(
    instance: LocalInstance, mock_provider: Provider
) -> None:
    async with instance.run() as server:
        await send_and_wait_for_answer(server, "/model big")
        await send_and_wait_for_answer(server, "hello")
        stricter = provider_section("mock", mock_provider.url) + ENTRIES.replace('"mock/*"', '"mock/plain"')
        instance.loop_parts.settings = parse_settings(instance.root, stricter, ENVIRONMENT)
        await send_and_wait_for_answer(server, "hello again")
        assert [asked.model for asked in mock_provider.asked] == ["large", "m1"]


async def test_each_session_keeps_the_model_of_its_own_model_command(
    instance: LocalInstance, mock_provider: Provider
) -> None:
    async with instance.run() as server:
        await send_and_wait_for_answer(server, "/model big")
        await server.wait_for_answer((await server.send("hello", sender="person:owner")).envelope)
        await send_and_wait_for_answer(server, "hello")
        assert [asked.model for asked in mock_provider.asked] == ["m1", "large"]


@pytest.mark.spec("C31")
@pytest.mark.parametrize("command", ["/new", "/reset", "/new hello", "/reset mind the cat"])
async def test_a_reset_keeps_the_model_and_the_effort_set_by_command(
    instance: LocalInstance, mock_provider: Provider, command: str
) -> None:
    async with instance.run() as server:
        await send_and_wait_for_answer(server, "/model big")
        await send_and_wait_for_answer(server, "/think high")
        await send_and_wait_for_answer(server, "hello")
        assert (await send_and_wait_for_answer(server, command)).startswith("The context was reset.")
        await server.wait_until_idle()
        await send_and_wait_for_answer(server, "and now?")
        last = mock_provider.asked[-1]
        assert (last.model, last.body["reasoning_effort"]) == ("large", "high")
        assert len(mock_provider.asked) == (3 if command == "/new hello" else 2)


# --- /think ---


@pytest.mark.spec("H80")
@pytest.mark.parametrize("level", EFFORTS)
async def test_each_effort_level_reaches_the_next_request_and_survives_a_restart(
    instance: LocalInstance, mock_provider: Provider, level: str
) -> None:
    async with instance.run() as server:
        assert (
            await send_and_wait_for_answer(server, f"/think {level.upper()}")
            == f"Effort: {level}, from the next turn on."
        )
    async with instance.run() as server:
        await send_and_wait_for_answer(server, "hello")
        assert mock_provider.asked[-1].body["reasoning_effort"] == level
        assert f"Effort: {level}." in await send_and_wait_for_answer(server, "/think")
        assert await send_and_wait_for_answer(server, "/think default") == "Effort: as set for the agent."
        await send_and_wait_for_answer(server, "hello again")
        assert "reasoning_effort" not in mock_provider.asked[-1].body


@pytest.mark.spec("C30")
async def test_effort_is_taken_from_message_then_session_then_agent_then_default_then_model(
    tmp_path: Path, mock_provider: Provider
) -> None:
    config = provider_section("mock", mock_provider.url) + ENTRIES + '\n[defaults]\neffort = "low"\n'
    instance = build_instance(tmp_path, config, environment=ENVIRONMENT)
    instance.agents = (*instance.agents, replace(instance.agents[0], name="bo", effort="medium"))

    async def effort(server: LocalServer, text: str, agent: str) -> str | None:
        receipt = await server.send(text, origin=terminal_origin("maria"), recipient=f"agent:{agent}")
        await server.wait_for_answer(receipt.envelope)
        return mock_provider.asked[-1].body.get("reasoning_effort")

    async with instance.run() as server:
        ada = instance.agents[0].name
        assert await effort(server, "hello", ada) == "low", "the default for all agents"
        assert await effort(server, "hello", "bo") == "medium", "the setting of the agent"
        await send_and_wait_for_answer(server, "/think high")
        assert await effort(server, "hello", ada) == "high", "the setting of the session"
        assert await effort(server, "hello /think: xhigh there", ada) == "xhigh", "the setting of the message"
        assert await effort(server, "hello /think off", ada) == "none", "`off` means none"
        assert await effort(server, "hello /think minimal", ada) == "low", "`minimal` means low"
        assert await effort(server, "hello", ada) == "high"
        await send_and_wait_for_answer(server, "/think default")
        assert await effort(server, "hello", ada) == "low"
        instance.loop_parts.settings = parse_settings(
            tmp_path, provider_section("mock", mock_provider.url) + ENTRIES, ENVIRONMENT
        )
        assert await effort(server, "hello", ada) is None, "the default of the model"


@pytest.mark.spec("C27")
async def test_an_inline_model_directive_applies_to_one_message(
    instance: LocalInstance, mock_provider: Provider
) -> None:
    async with instance.run() as server:
        await send_and_wait_for_answer(server, "draw it /model big please")
        await send_and_wait_for_answer(server, "and again")
        await send_and_wait_for_answer(server, "what does /model nobody/here mean?")
        assert [asked.model for asked in mock_provider.asked] == ["large", "m1", "m1"]
        texts = [str(asked.body["messages"][-1]["content"]) for asked in mock_provider.asked]
        # At the start of a message it is a command, and its error is returned before a run starts.
        assert (await send_and_wait_for_answer(server, "/model nobody/here what is it?")).startswith(
            "No model provider named 'nobody'."
        )
        assert len(mock_provider.asked) == 3
        assert "draw it please" in texts[0] and "what does /model nobody/here mean?" in texts[2]
        assert (await read_session_options(server)).model is None


@pytest.mark.spec("H80")
async def test_an_effort_command_that_is_invalid_or_unsupported_by_the_model_is_reported_and_not_dropped(
    instance: LocalInstance, mock_provider: Provider
) -> None:
    async with instance.run() as server:
        answer = await send_and_wait_for_answer(server, "/think harder")
        assert answer == (
            "Invalid effort 'harder'. It must be one of: off, minimal, none, low, medium, high, xhigh, or default."
        )
        await send_and_wait_for_answer(server, "/model big")
        answer = await send_and_wait_for_answer(server, "/think medium")
        assert answer.startswith(
            "Mock/large does not support the effort 'medium'.\nBecause it must be one of low, high.\nTry: "
        )
        assert (await read_session_options(server)).effort is None
        # The new model does not support the effort: the message fails with the reason, and the effort is not dropped.
        await send_and_wait_for_answer(server, "/think high")
        await send_and_wait_for_answer(server, "/model mock/plain")
        receipt = await server.send("hello", origin=terminal_origin("maria"))
        assert (await server.wait_for_outcome(receipt.envelope)).outcome is Outcome.DEAD
        (notice,) = [e.text for e in await server.list_envelopes_to("maria") if e.kind == "notice"]
        assert (
            "mock/plain does not support the effort 'high' [model.effort_invalid]" in notice
            and mock_provider.asked == []
        )


# --- /context ---


@pytest.mark.spec("D26")
async def test_the_context_command_reports_the_last_reply_or_none_yet(
    instance: LocalInstance, mock_provider: Provider
) -> None:
    async with instance.run() as server:
        empty = (await send_and_wait_for_answer(server, "/context")).splitlines()
        assert empty[0] == "last-reply: none yet" and "model: mock/m1" in empty
        mock_provider.add_replies(says("Yes.", input_tokens=10_000, output_tokens=120))
        await send_and_wait_for_answer(server, f"hello\n{LONG_TEXT}")
        lines = dict(line.split(": ", 1) for line in (await send_and_wait_for_answer(server, "/context")).splitlines())
        assert lines["last-reply"] == "10,120 of 40,000 tokens (25%) by mock/m1"
        assert lines["compactions"] == "0" and lines["records-in-context"] == "3"
        assert lines["tokens-by-part"].startswith("instructions 3, tools ")
        assert len(mock_provider.asked) == 1, "no model was called"
    async with instance.run() as server:
        assert (await send_and_wait_for_answer(server, "/context")).startswith(
            "last-reply: 10,120 of 40,000 tokens (25%) by mock/m1"
        )


# --- /compact ---


@pytest.mark.spec("C32")
async def test_the_compact_command_compacts_with_a_focus_and_reports_the_result(
    instance: LocalInstance, mock_provider: Provider
) -> None:
    async with instance.run() as server:
        for _ in range(2):
            mock_provider.add_replies(says("Noted.", input_tokens=9_000))
            await send_and_wait_for_answer(server, f"hello\n{LONG_TEXT}")
        mock_provider.add_replies(says("A cat was seen."))
        assert await send_and_wait_for_answer(server, "/compact the colour of the roof") == (
            "Compacting this conversation. You will get a message when it is done."
        )
        await server.wait_until_idle()
        done = (await server.list_envelopes_to("maria"))[-1].text
        assert done.startswith("Compacted: about ") and done.endswith(" (compactions so far: 1).")
        before, after = (int(part.split(" ")[0].replace(",", "")) for part in done.split("about ")[1].split("became "))
        assert before > 9_000 > after
        request = mock_provider.asked[-1].body["messages"][-1]["content"]
        assert "Pay special attention to this: the colour of the roof" in str(request)
        assert "compactions: 1" in (await send_and_wait_for_answer(server, "/status")).splitlines()
        context = dict(
            line.split(": ", 1) for line in (await send_and_wait_for_answer(server, "/context")).splitlines()
        )
        assert context["compactions"] == "1" and "summary 0" not in context["tokens-by-part"]

        await send_and_wait_for_answer(server, "and now?")
        sent = str(mock_provider.asked[-1].body["messages"])
        assert "A cat was seen." in sent and "on the roof again" not in sent
        await assert_ledger_balances(server)
    async with instance.run() as server:
        assert "compactions: 1" in (await send_and_wait_for_answer(server, "/status")).splitlines()
        await send_and_wait_for_answer(server, "/new")
        assert "compactions: 0" in (await send_and_wait_for_answer(server, "/status")).splitlines(), (
            "a new context was never compacted"
        )


@pytest.mark.spec("C32", "D24")
async def test_the_compact_command_reports_if_there_is_nothing_to_compact(
    instance: LocalInstance, mock_provider: Provider
) -> None:
    async with instance.run() as server:
        await send_and_wait_for_answer(server, "/compact")
        await server.wait_until_idle()
        assert (await server.list_envelopes_to("maria"))[-1].text.startswith("Not compacted: ")
        assert mock_provider.asked == []
        assert await send_and_wait_for_answer(server, "hello") == "Yes."
        assert "compactions: 0" in (await send_and_wait_for_answer(server, "/status")).splitlines()
        await assert_ledger_balances(server)


# --- who may use them, and help ---


@pytest.mark.parametrize("command", ["/compact", "/context", "/model big", "/think high"])
@pytest.mark.parametrize("trust", [Trust.AGENT, Trust.UNTRUSTED])
async def test_a_model_command_without_permission_is_refused_silently_and_changes_nothing(
    instance: LocalInstance, mock_provider: Provider, command: str, trust: Trust
) -> None:
    async with instance.run() as server:
        receipt = await server.send(command, sender="channel:chat:42", origin=terminal_origin("maria"), trust=trust)
        settled = await server.wait_for_outcome(receipt.envelope)
        assert (settled.outcome, settled.answer) == (Outcome.REFUSED, None)
        assert settled.because.startswith("command-not-allowed")
        await server.wait_until_idle()
        assert (
            await read_session_options(server) == SessionOptions()
            and mock_provider.asked == []
            and await server.list_envelopes_to("maria") == []
        )


@pytest.mark.spec("C28.help")
async def test_the_help_command_lists_the_commands_and_a_typo_gets_a_suggestion(instance: LocalInstance) -> None:
    async with instance.run() as server:
        answer = await send_and_wait_for_answer(server, "/help")
        for form in ("/context ", "/compact [WORDS]", "/model [NAME]", "/think [LEVEL]"):
            assert form in answer
        assert await send_and_wait_for_answer(server, "/modle") == (
            "Unknown command /modle. Did you mean /model? /help lists the commands; write //modle to send it as text."
        )
