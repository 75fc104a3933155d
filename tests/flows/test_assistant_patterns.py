"""The interaction patterns and communication flows of the Assistant excerpt, on a real server.

Each test covers one pattern or flow of the excerpt. The flow to a CLI agent is tested with the CLI runner.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from flows.figure_instance import FigureServer, start_figures, tool_call_line


@pytest.fixture(scope="module")
def figures(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FigureServer]:
    with start_figures(tmp_path_factory.mktemp("figures")) as opened:
        yield opened


async def test_in_the_direct_interaction_pattern_a_person_switches_agents_and_continues_there(
    figures: FigureServer,
) -> None:
    """The person switches to an agent's most recent session, or to a new one, and continues there."""
    figures.set_replies(
        direct1=["Hello from general."], direct2=["Hello from the journal."], direct3=["Still the journal."]
    )
    await figures.wait_for_answer(await figures.send_as_owner("direct1", conversation="direct"))
    switched = await figures.wait_for_answer(await figures.send_as_owner("/switch journal", conversation="direct"))
    assert switched["text"].startswith("You are now talking to journal")
    first = await figures.send_as_owner("direct2", to="agent:journal", conversation="direct")
    assert (await figures.wait_for_answer(first))["text"] == "Hello from the journal."
    second = await figures.send_as_owner("direct3", to="agent:journal", conversation="direct")
    assert (await figures.wait_for_answer(second))["text"] == "Still the journal."
    assert figures.session_of(first) == figures.session_of(second)


@pytest.mark.spec("A31", "A77.arguments")
async def test_in_the_delegation_pattern_an_agent_asks_another_while_the_person_stays(figures: FigureServer) -> None:
    """The current agent asks another, which uses its own tools. The result comes back; the person stays."""
    figures.set_replies(
        ask2=[
            tool_call_line("agents_message", agentId="reading-list", content="add2 https://example.com/article"),
            "It is on the list.",
        ],
        add2=[tool_call_line("session_status"), "Added."],
    )
    asked = await figures.send_as_owner("ask2: have the article added", conversation="delegation")
    assert (await figures.wait_for_answer(asked))["text"] == "It is on the list."
    here = figures.session_of(asked)
    result = json.loads(figures.results(here)[0]["output"])
    assert (result["status"], result["response"], result["toolCallCount"]) == ("complete", "Added.", 1)
    [delegation] = [each for each in figures.find_envelopes("add2 https") if each["kind"] == "delegation"]
    assert delegation["session"] != here, "not shown: not the session of the person"
    assert any("add2 https" in turn for turn in figures.user_turns(delegation["session"])), (
        "recorded in the history of the target"
    )
    assert figures.rows("SELECT 1 FROM runs WHERE session = ?", here)[1:] == [], (
        "a single turn: the same run asks and answers"
    )


@pytest.mark.spec("A81")
async def test_in_the_switch_pattern_a_first_message_goes_along_and_a_summary_comes_back(figures: FigureServer) -> None:
    """To B with a first message, several turns there, and back to A with what was decided."""
    figures.set_replies(
        home3=["At home."],
        dinner3=["Soup or pie?"],
        pie3=["Then pie."],
        decided3=["Pie it is."],
    )
    first = await figures.send_as_owner("home3", conversation="switch")
    await figures.wait_for_answer(first)
    await figures.wait_for_answer(
        await figures.send_as_owner("/switch notes dinner3: what shall we cook?", conversation="switch")
    )
    opened = await figures.told("Soup or pie?")
    there = opened["sender"].removeprefix("agent:notes/")
    assert any("dinner3" in turn for turn in figures.user_turns(there)), "the message is the first one there"
    await figures.wait_for_answer(await figures.send_as_owner("pie3, please", to=f"agent:notes/{there}"))
    await figures.wait_for_answer(
        await figures.send_as_owner("/switch back decided3: we have pie", to=f"agent:notes/{there}")
    )
    await figures.told("Pie it is.")
    assert any("decided3: we have pie" in turn for turn in figures.user_turns(figures.session_of(first)))


@pytest.mark.spec("A24")
async def test_in_the_pattern_of_two_built_in_agents_the_caller_gets_the_answer_calls_and_thinking(
    figures: FigureServer,
) -> None:
    figures.set_replies(
        built4=[tool_call_line("agents_message", agentId="notes", content="note4", mode="sync"), "Noted by notes."],
        note4=[{"thinking": "where to put it"} | tool_call_line("session_status"), "Written down."],
    )
    asked = await figures.send_as_owner("built4", conversation="built-in")
    await figures.wait_for_answer(asked)
    result = json.loads(figures.results(figures.session_of(asked))[0]["output"])
    assert result["status"] == "complete" and result["response"] == "Written down."
    assert [call["name"] for call in result["toolCalls"]] == ["session_status"]
    assert result["durationMs"] >= 0 and result["thinkingText"] == "where to put it"


@pytest.mark.spec("A26", "A78.notify_off")
async def test_in_the_async_pattern_the_caller_continues_and_the_result_starts_a_turn_unless_notify_is_off(
    figures: FigureServer,
) -> None:
    """The caller continues at once. The result starts one more turn of the caller, unless it asked for none."""
    figures.set_replies(
        fire5=[tool_call_line("agents_message", agentId="notes", content="later5", mode="async"), "Sent off."],
        later5=["Done in peace."],
    )
    figures.set_replies(**{"Done in peace.": ["Notes is done."]})
    asked = await figures.send_as_owner("fire5", conversation="async")
    assert (await figures.wait_for_answer(asked))["text"] == "Sent off."
    result = json.loads(figures.results(figures.session_of(asked))[0]["output"])
    assert result["status"] == "started" and result["responseId"]
    await figures.told("Notes is done.")
    figures.set_replies(
        quiet5=[
            tool_call_line("agents_message", agentId="notes", content="alone5", mode="async", notify="off"),
            "Sent off too.",
        ],
        alone5=["Kept to myself."],
    )
    quiet = await figures.send_as_owner("quiet5", conversation="async-quiet")
    await figures.wait_for_answer(quiet)
    await figures.wait_for_rows("SELECT 1 FROM runs WHERE final_text = 'Kept to myself.'")
    assert len(figures.rows("SELECT 1 FROM runs WHERE session = ?", figures.session_of(quiet))) == 1
