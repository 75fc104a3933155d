"""What a person can say in a conversation about the mind behind it, and what the next request looks like for it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest
from contracts.engine_instance import books_hold, rows
from flows.fake_provider import KEY, Provider, household_of, provider, says, section, settings_of

from retinue.domain.credential import Credential
from retinue.domain.envelope import Outcome
from retinue.domain.model import EFFORTS
from retinue.domain.session import SessionOptions
from retinue.domain.structs import replace
from retinue.domain.trust import Trust
from retinue.store.agents import credentials
from retinue.testing.local_instance import LocalInstance, LocalServer, terminal_origin

SPARE = "sk-spare-0123456789abcdefghij"
ENVIRONMENT = {"MOCK_KEY": KEY, "SPARE_KEY": SPARE}
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
LONG = "the cat is on the roof again\n" * 600  # about 4,300 tokens


@pytest.fixture
async def mock() -> AsyncIterator[Provider]:
    async with provider() as playing:
        playing.always(says("Yes."))
        yield playing


@pytest.fixture
def household(tmp_path: Path, mock: Provider) -> LocalInstance:
    return household_of(tmp_path, section("mock", mock.url) + ENTRIES, environment=ENVIRONMENT)


async def say(house: LocalServer, text: str, *, sender: str = "person:maria") -> str:
    """Say something in Maria's terminal, and read the answer."""
    return await house.wait_for_answer(
        (await house.send(text, sender=sender, origin=terminal_origin("maria"))).envelope
    )


async def mind(house: LocalServer) -> SessionOptions:
    ((session,),) = await rows(house, "SELECT id FROM sessions")
    return (await house.get_session(session)).options


# Which model


@pytest.mark.spec("C31")
async def test_models_are_listed_with_their_numbers_and_the_one_in_use_is_marked(household: LocalInstance) -> None:
    async with household.run() as house:
        listed = (await say(house, "/model")).splitlines()
        assert listed[0] == "*  1. mock/m1: 40,000 tokens, $1 in, $5 out per million tokens"
        assert listed[1].startswith("   2. mock/large (big): ") and listed[2].startswith("   3. mock/plain: ")
        assert listed[-1] == "Choose one with /model NUMBER or /model NAME. /model default clears the choice."
        assert await say(house, "/model list") == "\n".join(listed)
        await say(house, "/model big")
        after = (await say(house, "/model")).splitlines()
        assert after[0].startswith("   1. ") and after[1].startswith("*  2. mock/large")


@pytest.mark.spec("C31")
@pytest.mark.parametrize("said", ["2", "big", "BIG", "mock/large"])
async def test_a_model_is_chosen_by_number_alias_or_reference_from_the_next_request_on_and_after_a_restart(
    household: LocalInstance, mock: Provider, said: str
) -> None:
    async with household.run() as house:
        await say(house, "hello")
        told = await say(house, f"/model {said}")
        assert told == "From the next turn on, this conversation uses mock/large."
        await say(house, "and now?")
        assert "model: mock/large" in await say(house, "/status")
    async with household.run() as house:
        await say(house, "still?")
        assert [asked.model for asked in mock.asked] == ["m1", "large", "large"], "and no command was asked of a model"
        assert await say(house, "/model default") == "This conversation now uses the agent's model."
        await say(house, "back?")
        assert mock.asked[-1].model == "m1" and await mind(house) == replace(await mind(house), model=None)


@pytest.mark.spec("C31")
async def test_a_credential_is_pinned_with_a_model_and_shown(household: LocalInstance, mock: Provider) -> None:
    spare = Credential(id="mock:spare", provider="mock", source="env:SPARE_KEY")
    async with household.run() as house:
        await house.store.write(partial(credentials.add, credential=spare, at_ms=1), point="test")
        told = await say(house, "/model big@spare")
        assert told == "From the next turn on, this conversation uses mock/large, with the credential mock:spare."
        await say(house, "hello")
        status = await say(house, "/model status")
        assert "mock/large" in status.splitlines()[0] and "mock:spare" in status
    async with household.run() as house:
        await say(house, "hello again")
        assert [(asked.model, asked.key) for asked in mock.asked] == [("large", SPARE), ("large", SPARE)]
        await say(house, "/model default")
        await say(house, "and now?")
        assert (await mind(house)).pinned is False
        said = [envelope.text for envelope in await house.list_envelopes_to("maria")]
        assert not any(KEY in text or SPARE in text for text in said)


@pytest.mark.spec("C31")
async def test_who_would_be_asked_now_is_told_with_the_reason(household: LocalInstance) -> None:
    async with household.run() as house:
        (line,) = (await say(house, "/model status")).splitlines()
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
async def test_a_model_that_cannot_be_had_is_explained_with_what_can_and_nothing_changes(
    household: LocalInstance, mock: Provider, said: str, words: tuple[str, ...]
) -> None:
    async with household.run() as house:
        await say(house, "/model big")
        told = await say(house, f"/model {said}")
        assert all(each in told for each in words), told
        await say(house, "hello")
        assert mock.asked[-1].model == "large" and (await mind(house)).model == "mock/large"


async def test_a_model_that_has_come_to_be_forbidden_is_not_asked_any_more(
    household: LocalInstance, mock: Provider
) -> None:
    async with household.run() as house:
        await say(house, "/model big")
        await say(house, "hello")
        stricter = section("mock", mock.url) + ENTRIES.replace('"mock/*"', '"mock/plain"')
        household.loop_parts.settings = settings_of(household.root, stricter, ENVIRONMENT)
        await say(house, "hello again")
        assert [asked.model for asked in mock.asked] == ["large", "m1"]


async def test_other_conversations_keep_their_own_mind(household: LocalInstance, mock: Provider) -> None:
    async with household.run() as house:
        await say(house, "/model big")
        await house.wait_for_answer((await house.send("hello", sender="person:owner")).envelope)
        await say(house, "hello")
        assert [asked.model for asked in mock.asked] == ["m1", "large"]


@pytest.mark.spec("C31")
@pytest.mark.parametrize("command", ["/new", "/reset", "/new hello", "/reset mind the cat"])
async def test_a_fresh_context_keeps_the_model_and_the_effort(
    household: LocalInstance, mock: Provider, command: str
) -> None:
    async with household.run() as house:
        await say(house, "/model big")
        await say(house, "/think high")
        await say(house, "hello")
        assert (await say(house, command)).startswith("The context was reset.")
        await house.wait_until_idle()
        await say(house, "and now?")
        last = mock.asked[-1]
        assert (last.model, last.body["reasoning_effort"]) == ("large", "high")
        assert len(mock.asked) == (3 if command == "/new hello" else 2)


# How much effort


@pytest.mark.spec("H80")
@pytest.mark.parametrize("level", EFFORTS)
async def test_every_level_of_effort_reaches_the_next_request_and_outlives_a_restart(
    household: LocalInstance, mock: Provider, level: str
) -> None:
    async with household.run() as house:
        assert await say(house, f"/think {level.upper()}") == f"Effort: {level}, from the next turn on."
    async with household.run() as house:
        await say(house, "hello")
        assert mock.asked[-1].body["reasoning_effort"] == level
        assert f"Effort: {level}." in await say(house, "/think")
        assert await say(house, "/think default") == "Effort: as set for the agent."
        await say(house, "hello again")
        assert "reasoning_effort" not in mock.asked[-1].body


@pytest.mark.spec("C30")
async def test_a_message_has_the_first_word_on_effort_then_session_agent_house_and_model(
    tmp_path: Path, mock: Provider
) -> None:
    config = section("mock", mock.url) + ENTRIES + '\n[defaults]\neffort = "low"\n'
    household = household_of(tmp_path, config, environment=ENVIRONMENT)
    household.agents = (*household.agents, replace(household.agents[0], name="bo", effort="medium"))

    async def effort(house: LocalServer, text: str, agent: str) -> str | None:
        receipt = await house.send(text, origin=terminal_origin("maria"), recipient=f"agent:{agent}")
        await house.wait_for_answer(receipt.envelope)
        return mock.asked[-1].body.get("reasoning_effort")

    async with household.run() as house:
        ada = household.agents[0].name
        assert await effort(house, "hello", ada) == "low", "the house's"
        assert await effort(house, "hello", "bo") == "medium", "the agent's"
        await say(house, "/think high")
        assert await effort(house, "hello", ada) == "high", "the session's"
        assert await effort(house, "hello /think: xhigh there", ada) == "xhigh", "the message's"
        assert await effort(house, "hello /think off", ada) == "none", "off is none"
        assert await effort(house, "hello /think minimal", ada) == "low", "minimal is low"
        assert await effort(house, "hello", ada) == "high"
        await say(house, "/think default")
        assert await effort(house, "hello", ada) == "low"
        household.loop_parts.settings = settings_of(tmp_path, section("mock", mock.url) + ENTRIES, ENVIRONMENT)
        assert await effort(house, "hello", ada) is None, "the default of the model"


@pytest.mark.spec("C27")
async def test_a_model_named_among_words_is_asked_for_that_message_alone(
    household: LocalInstance, mock: Provider
) -> None:
    async with household.run() as house:
        await say(house, "draw it /model big please")
        await say(house, "and again")
        await say(house, "what does /model nobody/here mean?")
        assert [asked.model for asked in mock.asked] == ["large", "m1", "m1"]
        texts = [str(asked.body["messages"][-1]["content"]) for asked in mock.asked]
        # At the beginning of a message it is a command, whose fault is said before anything runs.
        assert (await say(house, "/model nobody/here what is it?")).startswith("No model provider named 'nobody'.")
        assert len(mock.asked) == 3
        assert "draw it please" in texts[0] and "what does /model nobody/here mean?" in texts[2]
        assert (await mind(house)).model is None


@pytest.mark.spec("H80")
async def test_an_effort_that_is_none_or_that_the_model_cannot_take_is_said_and_not_dropped(
    household: LocalInstance, mock: Provider
) -> None:
    async with household.run() as house:
        told = await say(house, "/think harder")
        assert told == (
            "Invalid effort 'harder'. It must be one of: off, minimal, none, low, medium, high, xhigh, or default."
        )
        await say(house, "/model big")
        told = await say(house, "/think medium")
        assert told.startswith(
            "Mock/large does not support the effort 'medium'.\nBecause it must be one of low, high.\nTry: "
        )
        assert (await mind(house)).effort is None
        # Chosen for one model, and then another is: it is said where it would have been dropped.
        await say(house, "/think high")
        await say(house, "/model mock/plain")
        receipt = await house.send("hello", origin=terminal_origin("maria"))
        assert (await house.wait_for_outcome(receipt.envelope)).outcome is Outcome.DEAD
        (notice,) = [e.text for e in await house.list_envelopes_to("maria") if e.kind == "notice"]
        assert "mock/plain does not support the effort 'high' [model.effort_invalid]" in notice and mock.asked == []


# How much it has in mind


@pytest.mark.spec("D26")
async def test_a_context_is_reported_as_it_last_was_or_that_there_is_none_yet(
    household: LocalInstance, mock: Provider
) -> None:
    async with household.run() as house:
        empty = (await say(house, "/context")).splitlines()
        assert empty[0] == "last-reply: none yet" and "model: mock/m1" in empty
        mock.will(says("Yes.", input_tokens=10_000, output_tokens=120))
        await say(house, f"hello\n{LONG}")
        lines = dict(line.split(": ", 1) for line in (await say(house, "/context")).splitlines())
        assert lines["last-reply"] == "10,120 of 40,000 tokens (25%) by mock/m1"
        assert lines["compactions"] == "0" and lines["records-in-context"] == "3"
        assert lines["about-tokens-by-part"].startswith("instructions 3, tools ")
        assert len(mock.asked) == 1, "nobody's model was asked"
    async with household.run() as house:
        assert (await say(house, "/context")).startswith("last-reply: 10,120 of 40,000 tokens (25%) by mock/m1")


# Told in short, because somebody asked


@pytest.mark.spec("C32")
async def test_a_person_can_have_a_conversation_told_in_short_and_say_what_matters(
    household: LocalInstance, mock: Provider
) -> None:
    async with household.run() as house:
        for _ in range(2):
            mock.will(says("Noted.", input_tokens=9_000))
            await say(house, f"hello\n{LONG}")
        mock.will(says("A cat was seen."))
        assert await say(house, "/compact the colour of the roof") == (
            "Compacting this conversation. You get a message when it is done."
        )
        await house.wait_until_idle()
        done = (await house.list_envelopes_to("maria"))[-1].text
        assert done.startswith("Compacted: about ") and done.endswith(" (compactions so far: 1).")
        before, after = (int(part.split(" ")[0].replace(",", "")) for part in done.split("about ")[1].split("became "))
        assert before > 9_000 > after
        request = mock.asked[-1].body["messages"][-1]["content"]
        assert "Pay special attention to this: the colour of the roof" in str(request)
        assert "compactions: 1" in (await say(house, "/status")).splitlines()
        context = dict(line.split(": ", 1) for line in (await say(house, "/context")).splitlines())
        assert context["compactions"] == "1" and "summary 0" not in context["about-tokens-by-part"]

        await say(house, "and now?")
        sent = str(mock.asked[-1].body["messages"])
        assert "A cat was seen." in sent and "on the roof again" not in sent
        await books_hold(house)
    async with household.run() as house:
        assert "compactions: 1" in (await say(house, "/status")).splitlines()
        await say(house, "/new")
        assert "compactions: 0" in (await say(house, "/status")).splitlines(), "a fresh context was never compacted"


@pytest.mark.spec("C32", "D24")
async def test_where_there_is_nothing_to_tell_in_short_it_says_so_and_the_conversation_goes_on(
    household: LocalInstance, mock: Provider
) -> None:
    async with household.run() as house:
        await say(house, "/compact")
        await house.wait_until_idle()
        assert (await house.list_envelopes_to("maria"))[-1].text.startswith("Not compacted: ")
        assert mock.asked == []
        assert await say(house, "hello") == "Yes."
        assert "compactions: 0" in (await say(house, "/status")).splitlines()
        await books_hold(house)


# Who may, and how one learns of it


@pytest.mark.parametrize("command", ["/compact", "/context", "/model big", "/think high"])
@pytest.mark.parametrize("trust", [Trust.AGENT, Trust.UNTRUSTED])
async def test_whoever_may_not_command_is_refused_without_a_word_and_changes_nothing(
    household: LocalInstance, mock: Provider, command: str, trust: Trust
) -> None:
    async with household.run() as house:
        receipt = await house.send(command, sender="channel:chat:42", origin=terminal_origin("maria"), trust=trust)
        settled = await house.wait_for_outcome(receipt.envelope)
        assert (settled.outcome, settled.answer) == (Outcome.REFUSED, None)
        assert settled.because.startswith("command-not-allowed")
        await house.wait_until_idle()
        assert (
            await mind(house) == SessionOptions() and mock.asked == [] and await house.list_envelopes_to("maria") == []
        )


@pytest.mark.spec("C28.help")
async def test_help_lists_them_all(household: LocalInstance) -> None:
    async with household.run() as house:
        told = await say(house, "/help")
        for form in ("/context ", "/compact [WORDS]", "/model [NAME]", "/think [LEVEL]"):
            assert form in told
        assert await say(house, "/modle") == (
            "Unknown command /modle. Did you mean /model? /help lists the commands; write //modle to send it as text."
        )
