"""Commands in a conversation: where they are recognized, from whom, and what happens to the rest of the message."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from contracts.engine_instance import assert_ledger_balances

from retinue.domain.agent import Agent
from retinue.domain.attachment import Attachment
from retinue.domain.envelope import EnvelopeKind, Outcome
from retinue.domain.errors import Conflict
from retinue.domain.ids import SessionId
from retinue.domain.record import RecordKind
from retinue.domain.run import RunStatus
from retinue.domain.session import Origin, OriginKind, QueueOverride, SessionOptions
from retinue.domain.slash_command import ABORT_WORDS
from retinue.domain.trust import Trust
from retinue.testing.local_instance import LocalInstance, LocalServer, terminal_origin
from retinue.testing.scripted_model import text_reply

STAFF = (
    Agent(name="ada", model="scripted", description="Keeps the books."),
    Agent(name="bo", model="scripted", description="Cooks."),
    Agent(name="cy", model="scripted", visible=False),
)


@pytest.fixture
def instance(tmp_path: Path) -> LocalInstance:
    return LocalInstance(tmp_path, agents=STAFF)


@pytest.fixture
async def server(instance: LocalInstance) -> AsyncIterator[LocalServer]:
    async with instance.run() as opened:
        yield opened
        await opened.wait_until_idle()
        await assert_ledger_balances(opened)


async def send_from_terminal(server: LocalServer, text: str, **kw: Any) -> str:
    kw.setdefault("origin", terminal_origin("maria"))
    return (await server.send(text, **kw)).envelope


async def send_and_wait_for_answer(server: LocalServer, text: str, **kw: Any) -> str:
    return await server.wait_for_answer(await send_from_terminal(server, text, **kw))


async def session_of(server: LocalServer, agent: str = "ada") -> SessionId:
    ((id_,),) = await server.execute_sql("SELECT id FROM sessions WHERE agent = :agent", agent=agent)
    return id_


async def start_long_run(server: LocalServer) -> str:
    """Start a run that does not end by itself."""
    server.instance.model.will_reply(text_reply("too late", after_s=3600))
    envelope = await send_from_terminal(server, "long work")
    await server.wait_for(lambda _: len(server.instance.model.prompts) or None, what="a run")
    return envelope


async def start_subagent(server: LocalServer, name: str) -> None:
    """Start a subagent of the conversation with a task."""
    below = Origin(OriginKind.SUBAGENT, name, parent=await session_of(server))
    await server.send("look it up", sender="server", recipient="agent:bo", origin=below, kind=EnvelopeKind.SYSTEM)


def last_prompt_text(server: LocalServer) -> str:
    """The text of the last record in the last prompt."""
    return str(server.instance.model.prompts[-1].records[-1].body)


# --- only in channels in which people write ---


@pytest.mark.spec("D80")
@pytest.mark.parametrize("text", ["/reset", "/stop", "stop", "hello /think high"])
@pytest.mark.parametrize(
    ("sender", "kind", "trust"),
    [
        ("agent:bo", EnvelopeKind.MESSAGE, Trust.AGENT),
        ("schedule:" + "0" * 32, EnvelopeKind.MESSAGE, Trust.OWNER),
        ("server", EnvelopeKind.SYSTEM, Trust.PRIVATE),
        ("person:owner", EnvelopeKind.SYSTEM, Trust.OWNER),
    ],
)
async def test_slash_commands_from_agents_schedules_and_the_server_are_plain_text_and_reset_nothing(
    server: LocalServer, text: str, sender: str, kind: EnvelopeKind, trust: Trust
) -> None:
    server.instance.model.rule = lambda _: text_reply("Yes.")
    await send_and_wait_for_answer(server, "hello")
    session = await session_of(server)
    receipt = await server.send(text, sender=sender, recipient=f"agent:ada/{session}", kind=kind, trust=trust)
    await server.wait_for_outcome(receipt.envelope)
    assert text in str(server.instance.model.prompts[1].records[-1].body)
    records = await server.list_records(session)
    assert not [record for record in records if record.kind is RecordKind.RESET]
    kept = await server.get_session(session)
    assert kept.options == SessionOptions() and kept.context_start_seq == 1
    # The same text from a person is performed.
    if text == "/reset":
        assert await send_and_wait_for_answer(server, text) == "The context was reset."


@pytest.mark.spec("C27")
@pytest.mark.parametrize("text", ["tell me /think high about it", "hey /status", "stop"])
async def test_an_inline_slash_command_from_a_stranger_stays_plain_text(server: LocalServer, text: str) -> None:
    server.instance.model.rule = lambda _: text_reply("Yes.")
    receipt = await server.send(text, sender="channel:quiet:lobby", trust=Trust.UNTRUSTED)
    await server.wait_for_outcome(receipt.envelope)
    assert text in last_prompt_text(server) and server.instance.model.prompts[-1].effort is None


@pytest.mark.parametrize("text", ["/stop", "/think high tell me", "/dance", "/skill weather", "/switch bo hello"])
async def test_a_strangers_slash_command_is_refused_recorded_and_not_answered(server: LocalServer, text: str) -> None:
    working = await start_long_run(server)
    receipt = await server.send(
        text, sender="channel:quiet:lobby", origin=terminal_origin("maria"), trust=Trust.UNTRUSTED
    )
    settled = await server.wait_for_outcome(receipt.envelope)
    assert (settled.outcome, settled.answer) == (Outcome.REFUSED, None)
    assert settled.because.startswith("command-not-allowed")
    assert (await server.get_envelope(working)).status == "claimed", "it did not stop the run"
    assert len(await server.execute_sql("SELECT id FROM sessions")) == 1, "it created no session"
    await send_and_wait_for_answer(server, "/stop")


# --- within a message ---


@pytest.mark.spec("C27")
async def test_an_inline_directive_applies_to_one_message_and_is_hidden_from_the_model(server: LocalServer) -> None:
    model = server.instance.model
    model.rule = lambda _: text_reply("Yes.")
    await send_and_wait_for_answer(server, "tell me /think high about it")
    assert model.prompts[-1].effort == "high" and "tell me about it" in last_prompt_text(server)
    assert "/think" not in last_prompt_text(server)
    await send_and_wait_for_answer(server, "and more")
    assert model.prompts[-1].effort is None
    await send_and_wait_for_answer(server, "/think low")
    await send_and_wait_for_answer(server, "and more")
    assert model.prompts[-1].effort == "low", "a command alone is kept in the session"
    await send_and_wait_for_answer(server, "/think off again?")
    assert model.prompts[-1].effort == "none" and "again?" in last_prompt_text(server), (
        "the message overrides the session"
    )
    await send_and_wait_for_answer(server, "what does /think mean, and /model nobody/here?")
    assert "what does /think mean, and /model nobody/here?" in last_prompt_text(server)


@pytest.mark.spec("C27", "C28.whoami")
async def test_inline_slash_commands_are_answered_and_the_remaining_text_goes_to_the_model(server: LocalServer) -> None:
    server.instance.model.rule = lambda _: text_reply("Yes.")
    assert await send_and_wait_for_answer(server, "hey /whoami /status what now?", key="k") == "Yes."
    assert "hey what now?" in last_prompt_text(server)
    mail = [each.text for each in await server.list_envelopes_to("maria")]
    assert mail[0].startswith("You are person:maria") and mail[1].startswith("now: ") and mail[2] == "Yes."
    # A connector that sends a message again gets the first result: no command is answered twice.
    again = await server.send("hey /whoami /status what now?", key="k", origin=terminal_origin("maria"))
    assert again.duplicate and len(await server.list_envelopes_to("maria")) == 3
    with pytest.raises(Conflict):
        await server.send("hey /whoami /status what else?", key="k", origin=terminal_origin("maria"))


async def test_a_directive_with_an_attachment_applies_to_that_message(server: LocalServer) -> None:
    server.instance.model.rule = lambda _: text_reply("Yes.")
    file = Attachment(name="list.txt", hash="0" * 64, media_type="text/plain", size_bytes=3)
    await send_and_wait_for_answer(server, "/think high", attachments=(file,))
    assert server.instance.model.prompts[-1].effort == "high" and "list.txt" in last_prompt_text(server)
    assert (await server.get_session(await session_of(server))).options == SessionOptions()


# --- stop ---


@pytest.mark.spec("C29")
@pytest.mark.parametrize("word", sorted(ABORT_WORDS))
async def test_an_abort_word_is_a_stop_command_during_a_run_and_plain_text_when_nothing_runs(
    server: LocalServer, word: str
) -> None:
    working = await start_long_run(server)
    waiting = await send_from_terminal(server, "and more")
    assert await send_and_wait_for_answer(server, f"{word.capitalize()}!") == "1 run stopped, 1 waiting cleared."
    for envelope in (working, waiting):
        assert (await server.wait_for_outcome(envelope)).outcome is Outcome.CANCELLED
    await server.wait_until_idle()
    server.instance.model.will_reply("Yes.")
    assert await send_and_wait_for_answer(server, word) == "Yes." and word in last_prompt_text(server)


@pytest.mark.spec("C29")
@pytest.mark.parametrize("command", ["/stop", "/abort", "stop"])
async def test_the_stop_command_stops_and_counts_subagents_and_the_next_turn_reads_of_it(
    server: LocalServer, command: str
) -> None:
    model = server.instance.model
    await start_long_run(server)
    for name in ("one", "two"):
        model.will_reply(text_reply("too late", after_s=3600))
        await start_subagent(server, name)
    await server.wait_for(lambda _: len(model.prompts) == 3 or None, what="three runs")
    await send_from_terminal(server, "and more")
    assert await send_and_wait_for_answer(server, command) == "1 run stopped, 1 waiting cleared, 2 subagents stopped."
    rows = await server.execute_sql("SELECT status FROM runs")
    assert [row.status for row in rows] == [RunStatus.CANCELLED] * 3
    await server.wait_until_idle()
    model.will_reply("Back.")
    await send_and_wait_for_answer(server, "go on")
    context = str([record.body for record in model.prompts[-1].records])
    assert f"This run was cancelled by person:maria: /{command.removeprefix('/')}." in context


@pytest.mark.spec("C29")
async def test_an_abort_word_is_a_stop_command_for_the_subagents_of_an_idle_session(server: LocalServer) -> None:
    model = server.instance.model
    model.will_reply("Yes.", text_reply("too late", after_s=3600))
    await send_and_wait_for_answer(server, "hello")
    await start_subagent(server, "one")
    await server.wait_for(lambda _: len(model.prompts) == 2 or None, what="a running subagent")
    assert await send_and_wait_for_answer(server, "stop") == "0 runs stopped, 0 waiting cleared, 1 subagent stopped."


# --- status ---


@pytest.mark.spec("C28.status")
async def test_the_status_command_reports_only_the_current_session(server: LocalServer) -> None:
    server.instance.model.rule = lambda _: text_reply("Yes.")
    await send_and_wait_for_answer(server, "hello")
    await send_and_wait_for_answer(server, "/think high /verbose on /queue steer cap:3")
    status = dict(line.split(": ", 1) for line in (await send_and_wait_for_answer(server, "/status")).splitlines())
    assert (status["agent"], status["run"], status["waiting-envelopes"]) == ("ada", "none", "0")
    assert (status["effort"], status["verbose"]) == ("high", "on")
    assert status["queue"] == "steer debounce:0s cap:3 drop:refuse"
    assert status["used"].startswith("10 tokens in, 5 out") and status["context"].startswith("about ")
    assert status["current-model"].startswith("scripted")
    other = dict(
        line.split(": ", 1)
        for line in (await send_and_wait_for_answer(server, "/status", recipient="agent:bo")).splitlines()
    )
    assert (other["agent"], other["effort"], other["verbose"]) == ("bo", "the default of the model", "off")
    assert other["used"].startswith("0 tokens in")


@pytest.mark.parametrize(("command", "words"), [("/commands", "/switch AGENT"), ("/id", "You are person:maria")])
async def test_aliases_of_slash_commands_do_the_same_as_the_commands(
    server: LocalServer, command: str, words: str
) -> None:
    assert words in await send_and_wait_for_answer(server, command)


async def test_the_agents_slash_command_lists_agents_without_hidden_ones(server: LocalServer) -> None:
    assert (await send_and_wait_for_answer(server, "/agents")).splitlines() == [
        "* ada: Keeps the books.",
        "  bo: Cooks.",
        "Switch to another one: /switch AGENT [TEXT].",
    ]


# --- queue ---


async def test_the_queue_slash_command_sets_and_resets_queue_rules(server: LocalServer) -> None:
    assert (
        await send_and_wait_for_answer(server, "/queue")
        == "Queue: collect debounce:0s cap:20 drop:refuse. /queue default clears these."
    )
    answer = await send_and_wait_for_answer(server, "/queue steer-backlog debounce:2s cap:25 drop:summarize")
    assert answer == "Queue: steer-backlog debounce:2s cap:25 drop:summarize."
    assert (
        await send_and_wait_for_answer(server, "/queue drop:old")
        == "Queue: steer-backlog debounce:2s cap:25 drop:oldest."
    )
    assert await send_and_wait_for_answer(server, "/queue reset") == "Queue: collect debounce:0s cap:20 drop:refuse."
    assert (await server.get_session(await session_of(server))).queue == QueueOverride()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("sideways", "Invalid queue mode 'sideways'."),
        ("steer cap:many", "Invalid cap 'many'. It must be a number from 0 to 1,000."),
        ("cap:-1", "Invalid cap '-1'. It must be a number"),
        ("drop:all", "Invalid drop 'all'. It must be one of: old, new, "),
        ("debounce:2h", "Invalid debounce '2h'. It must be a time such as 2s or 500ms, up to 60s."),
        ("debounce:61s", "Invalid debounce '61s'. It must be a time"),
    ],
)
async def test_an_invalid_rule_in_a_queue_command_is_explained_and_changes_nothing(
    server: LocalServer, words: str, said: str
) -> None:
    assert (await send_and_wait_for_answer(server, f"/queue {words}")).startswith(said)
    assert (await server.get_session(await session_of(server))).queue == QueueOverride()


async def test_messages_debounced_by_a_queue_command_wait_until_none_arrives_for_the_debounce_time(
    server: LocalServer,
) -> None:
    clock, model = server.instance.clock, server.instance.model
    await send_and_wait_for_answer(server, "/queue debounce:10s")
    model.will_reply(text_reply("First.", after_s=5))
    first = await send_from_terminal(server, "one")
    await server.wait_for(lambda _: len(model.prompts) == 1 or None, what="the first run")
    two = await send_from_terminal(server, "two")
    await clock.advance(timedelta(seconds=5))
    assert await server.wait_for_answer(first) == "First."
    await server.wait_until_idle()
    assert (await server.get_envelope(two)).status == "pending", "it waits, although no run is active"
    three = await send_from_terminal(server, "three")
    await server.wait_until_idle()
    await clock.advance(timedelta(seconds=9))
    await server.wait_until_idle()
    assert (await server.get_envelope(two)).status == "pending", "a newer message has arrived"
    model.will_reply("Both.")
    await clock.advance(timedelta(seconds=1))
    assert [await server.wait_for_answer(each) for each in (two, three)] == ["Both.", "Both."]
    assert "two" in last_prompt_text(server) and "three" in last_prompt_text(server)


async def test_messages_debounced_by_a_queue_command_are_answered_after_a_restart(instance: LocalInstance) -> None:
    async with instance.run() as server:
        await send_and_wait_for_answer(server, "/queue debounce:10s")
        instance.model.will_reply(text_reply("First.", after_s=5))
        first = await send_from_terminal(server, "one")
        await server.wait_for(lambda _: len(instance.model.prompts) == 1 or None, what="the first run")
        two = await send_from_terminal(server, "two")
        await instance.clock.advance(timedelta(seconds=5))
        await server.wait_for_answer(first)
        await server.wait_until_idle()
    await instance.clock.advance(timedelta(seconds=10))
    instance.model.will_reply("Second.")
    async with instance.run() as server:
        assert await server.wait_for_answer(two) == "Second."
        await assert_ledger_balances(server)


# --- PostgreSQL ---


async def test_slash_commands_do_the_same_on_postgresql(tmp_path: Path, postgres_url: str) -> None:
    instance = LocalInstance(tmp_path, agents=STAFF, url=postgres_url)
    instance.model.rule = lambda _: text_reply("Yes.")
    async with instance.run() as server:
        await send_and_wait_for_answer(server, "hello /think high")
        assert instance.model.prompts[-1].effort == "high"
        assert "calls: 1" in (await send_and_wait_for_answer(server, "/usage")).splitlines()
        assert "effort: low" in (await send_and_wait_for_answer(server, "/think low /status")).splitlines()
        assert (await send_and_wait_for_answer(server, "/queue cap:3 debounce:1s")).startswith(
            "Queue: collect debounce:1s cap:3"
        )
        assert (await send_and_wait_for_answer(server, "/switch bo hello")).startswith("You are now talking to bo")
        await server.wait_until_idle()
        assert (await send_and_wait_for_answer(server, "/switch back", recipient="agent:bo")).startswith(
            "You are now talking to ada"
        )
        assert await send_and_wait_for_answer(server, "/stop") == "Nothing was running or waiting here."
        await server.wait_until_idle()
        await assert_ledger_balances(server)
