"""The interaction patterns and communication flows of the Assistant excerpt, against a real daemon.

Each test bears the name of its figure. The flow to a CLI agent belongs to the part that brings provider CLIs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from flows.figure_instance import Figures, asks, figure_house


@pytest.fixture(scope="module")
def figures(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Figures]:
    with figure_house(tmp_path_factory.mktemp("figures")) as opened:
        yield opened


async def test_pattern_1_direct_interaction(figures: Figures) -> None:
    """The person switches to an agent's most recent session, or a new one, and goes on there."""
    figures.plays(direct1=["Hello from general."], direct2=["Hello from the journal."], direct3=["Still the journal."])
    await figures.answer(await figures.say("direct1", conversation="direct"))
    switched = await figures.answer(await figures.say("/switch journal", conversation="direct"))
    assert switched["text"].startswith("You are now talking to journal")
    first = await figures.say("direct2", to="agent:journal", conversation="direct")
    assert (await figures.answer(first))["text"] == "Hello from the journal."
    second = await figures.say("direct3", to="agent:journal", conversation="direct")
    assert (await figures.answer(second))["text"] == "Still the journal."
    assert figures.session_of(first) == figures.session_of(second)


@pytest.mark.spec("A31", "A77.arguments")
async def test_pattern_2_delegation_ask_tell(figures: Figures) -> None:
    """The current agent asks another, who works with its own tools; the result comes back, the person stays."""
    figures.plays(
        ask2=[
            asks("agents_message", agentId="reading-list", content="add2 https://example.com/article"),
            "It is on the list.",
        ],
        add2=[asks("session_status"), "Added."],
    )
    asked = await figures.say("ask2: have the article added", conversation="delegation")
    assert (await figures.answer(asked))["text"] == "It is on the list."
    here = figures.session_of(asked)
    told = json.loads(figures.results(here)[0]["output"])
    assert (told["status"], told["response"], told["toolCallCount"]) == ("complete", "Added.", 1)
    [letter] = [each for each in figures.letters("add2 https") if each["kind"] == "delegation"]
    assert letter["session"] != here, "invisible: another session than the person's"
    assert any("add2 https" in turn for turn in figures.turns(letter["session"])), "logged in the target's history"
    assert figures.rows("SELECT 1 FROM runs WHERE session = ?", here)[1:] == [], (
        "single turn: one run asked and answered"
    )


@pytest.mark.spec("A81")
async def test_pattern_3_switch_with_context(figures: Figures) -> None:
    """To B with a first message, several turns there, and back to A with what was decided."""
    figures.plays(
        home3=["At home."],
        dinner3=["Soup or pie?"],
        pie3=["Then pie."],
        decided3=["Pie it is."],
    )
    first = await figures.say("home3", conversation="switch")
    await figures.answer(first)
    await figures.answer(await figures.say("/switch notes dinner3: what shall we cook?", conversation="switch"))
    opened = await figures.told("Soup or pie?")
    there = opened["sender"].removeprefix("agent:notes/")
    assert any("dinner3" in turn for turn in figures.turns(there)), "X is the first message there"
    await figures.answer(await figures.say("pie3, please", to=f"agent:notes/{there}"))
    await figures.answer(await figures.say("/switch back decided3: we have pie", to=f"agent:notes/{there}"))
    await figures.told("Pie it is.")
    assert any("decided3: we have pie" in turn for turn in figures.turns(figures.session_of(first)))


@pytest.mark.spec("A24")
async def test_flow_built_in_agent_to_built_in_agent(figures: Figures) -> None:
    figures.plays(
        built4=[asks("agents_message", agentId="notes", content="note4", mode="sync"), "Noted by notes."],
        note4=[{"thinking": "where to put it"} | asks("session_status"), "Written down."],
    )
    asked = await figures.say("built4", conversation="built-in")
    await figures.answer(asked)
    told = json.loads(figures.results(figures.session_of(asked))[0]["output"])
    assert told["status"] == "complete" and told["response"] == "Written down."
    assert [call["name"] for call in told["toolCalls"]] == ["session_status"]
    assert told["durationMs"] >= 0 and told["thinkingText"] == "where to put it"


@pytest.mark.spec("A26", "A78.notify_off")
async def test_flow_async_mode_fire_and_forget(figures: Figures) -> None:
    """The caller goes on at once; what comes of it is one more turn of the caller's, unless it wants none."""
    figures.plays(
        fire5=[asks("agents_message", agentId="notes", content="later5", mode="async"), "Sent off."],
        later5=["Done in peace."],
    )
    figures.plays(**{"Done in peace.": ["Notes is done."]})
    asked = await figures.say("fire5", conversation="async")
    assert (await figures.answer(asked))["text"] == "Sent off."
    told = json.loads(figures.results(figures.session_of(asked))[0]["output"])
    assert told["status"] == "started" and told["responseId"]
    await figures.told("Notes is done.")
    figures.plays(
        quiet5=[asks("agents_message", agentId="notes", content="alone5", mode="async", notify="off"), "Sent off too."],
        alone5=["Kept to myself."],
    )
    quiet = await figures.say("quiet5", conversation="async-quiet")
    await figures.answer(quiet)
    await figures.until("SELECT 1 FROM runs WHERE final_text = 'Kept to myself.'")
    assert len(figures.rows("SELECT 1 FROM runs WHERE session = ?", figures.session_of(quiet))) == 1
