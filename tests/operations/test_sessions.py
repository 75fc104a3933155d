from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from operations.operations_instance import OperationsServer, agent, open_operations_server, person
from stores import advance_until_settled

from retinue.domain.agent import Agent
from retinue.domain.envelope import Outcome
from retinue.domain.errors import Conflict, Invalid, NotAllowed, NotFound, RetinueError, TooLarge
from retinue.domain.event import StoredEvent
from retinue.domain.model import FREE_PRICE, ModelFacts, ModelRef
from retinue.domain.ports import Clock
from retinue.domain.principal import Principal
from retinue.domain.tool import ToolSpec
from retinue.models.base import ModelPrompt, ReplyChunk, TextChunk
from retinue.operations.base import EmptyRequest
from retinue.store.core import events
from retinue.testing.fake_connector import FakeConnector
from retinue.testing.local_instance import LocalInstance
from retinue.testing.scripted_model import ScriptedReply, text_reply, tool_call_reply
from retinue.testing.wait_conditions import WAIT_LIMIT_S, wait_until
from retinue.tools.base import ToolContext

OWNER, MARIA, NOOR, GUS = (person(name) for name in ("owner", "maria", "noor", "gus"))
SUMMARY_FIELDS = {"sessionId", "agentId", "name", "pinnedAt", "createdAt", "updatedAt", "lastSnippet", "attributes"}


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[OperationsServer]:
    async with open_operations_server(LocalInstance(tmp_path)) as made:
        yield made


async def create_session(server: OperationsServer, who: Principal = MARIA, **kw: Any) -> str:
    return (await server.ask(who, "session.create", **({"agent": "ada"} | kw)))["sessionId"]


async def list_sessions(server: OperationsServer, who: Principal = MARIA, **kw: Any) -> list[dict[str, Any]]:
    return (await server.ask(who, "session.list", **kw))["sessions"]


async def list_session_ids(server: OperationsServer, who: Principal = MARIA, **kw: Any) -> list[str]:
    return [session["sessionId"] for session in await list_sessions(server, who, **kw)]


async def list_events(server: OperationsServer, who: Principal, session: str) -> list[StoredEvent]:
    look = partial(events.list_next, session=session, cursor=0, limit=1_000, seen_by=who)
    return (await server.server.store.scan(look)).events


async def wait(server: OperationsServer) -> None:
    """Advance the clock, so that the next step has another time."""
    await server.server.instance.clock.advance(1.0)


# --- names ---


@pytest.mark.spec("A6")
async def test_session_names_are_unique_case_insensitively_and_null_clears_a_name(server: OperationsServer) -> None:
    first, second = await create_session(server, name="Garden"), await create_session(server)

    for taken in ("garden", " GARDEN "):
        with pytest.raises(Conflict) as refused:
            await server.ask(MARIA, "session.rename", session=second, name=taken)
        assert refused.value.code == "session.name_taken"
    assert (await server.ask(MARIA, "session.rename", session=first, name="GARDEN"))["name"] == "GARDEN"
    assert (await server.ask(MARIA, "session.rename", session=first, name=None))["name"] is None
    assert (await server.ask(MARIA, "session.rename", session=second, name="garden"))["name"] == "garden"
    assert (await server.ask(MARIA, "session.create", agent="bo", name="Garden"))["name"] == "Garden"


@pytest.mark.parametrize("name", ["", "  ", "two\nlines", "x" * 101, "\x1b[2J"])
async def test_an_invalid_session_name_is_refused(server: OperationsServer, name: str) -> None:
    session = await create_session(server)
    with pytest.raises(Invalid) as refused:
        await server.ask(MARIA, "session.rename", session=session, name=name)
    assert refused.value.code == "session.name_invalid"


# --- routing ---


@pytest.mark.spec("A7")
async def test_an_envelope_without_a_session_goes_to_the_most_recently_updated_or_a_new_one(
    server: OperationsServer,
) -> None:
    _, first = await server.converse(MARIA, "hello")
    await wait(server)
    _, work = await server.converse(MARIA, "hello", conversation="work")
    await wait(server)

    assert (await server.converse(MARIA, "again"))[1] == work
    await wait(server)
    await server.ask(MARIA, "session.rename", session=first, name="first")
    assert (await server.converse(MARIA, "again"))[1] == first
    await wait(server)
    made = await create_session(server)
    assert (await server.converse(MARIA, "again"))[1] == made
    assert (await server.converse(MARIA, "again", conversation="work"))[1] == work
    assert (await server.converse(MARIA, "another agent", to="agent:bo"))[1] not in (first, work, made)


@pytest.mark.spec("A7")
async def test_an_envelope_without_a_session_never_goes_to_another_persons_session(server: OperationsServer) -> None:
    hers = await create_session(server)
    await server.ask(MARIA, "session.share", session=hers, person="noor")

    for other in (OWNER, NOOR, GUS):
        assert (await server.converse(other, "hello"))[1] != hers
    # People with whom it is shared can write to it by its id.
    assert (await server.converse(NOOR, "hello", session=hers))[1] == hers


@pytest.mark.spec("A8")
async def test_sending_to_the_latest_session_without_one_or_to_a_session_of_another_agent_is_an_error(
    server: OperationsServer,
) -> None:
    with pytest.raises(NotFound) as none:
        await server.ask(MARIA, "envelope.send", to="agent:ada", text="x", session="latest")
    assert none.value.code == "session.none"
    assert await list_session_ids(server) == []

    session = await create_session(server)
    assert (await server.converse(MARIA, "hello", session="latest"))[1] == session
    assert (await server.converse(MARIA, "hello", session=session[:8]))[1] == session
    with pytest.raises(Invalid) as wrong:
        await server.ask(MARIA, "envelope.send", to="agent:bo", text="x", session=session)
    assert wrong.value.code == "session.other_agent"
    with pytest.raises(Invalid) as twice:
        await server.ask(MARIA, "envelope.send", to="agent:ada", text="x", session=session, conversation="work")
    assert twice.value.code == "session.named_twice"


async def test_sending_to_an_invisible_session_is_not_found(server: OperationsServer) -> None:
    session = await create_session(server)
    for way in ({"to": f"agent:ada/{session}"}, {"to": "agent:ada", "session": session}):
        with pytest.raises(NotFound):
            await server.ask(NOOR, "envelope.send", text="let me in", **way)


async def test_an_agent_can_reply_to_a_session_that_wrote_to_that_agent(server: OperationsServer) -> None:
    session = await create_session(server)
    first = await server.server.send("what do you think?", sender=f"agent:ada/{session}", recipient="agent:bo")
    bo = agent("bo")

    with pytest.raises(NotFound):
        await server.ask(bo, "envelope.send", to=f"agent:ada/{session}", text="let me in")
    sent = await server.ask(bo, "envelope.send", to=f"agent:ada/{session}", text="well", reply_to=first.envelope)
    assert sent["session"] == session


@pytest.mark.spec("D1")
async def test_messages_of_a_channel_go_to_the_same_session_also_after_a_restart(tmp_path: Path) -> None:
    instance = LocalInstance(tmp_path)
    instance.model.rule = lambda prompt: text_reply("ok")
    quiet = FakeConnector(instance.clock)
    instance.connectors["quiet"] = quiet
    found: list[str | None] = []
    for _ in range(2):
        async with instance.run() as server:
            for room in ("42", "43", "42"):
                receipt = await quiet.send_inbound("hello", channel=room)
                assert receipt is not None
                found.append(receipt.session)
            await server.wait_until_idle()
    assert found[0] == found[2] == found[3] == found[5]
    assert found[1] == found[4] != found[0]


# --- attributes ---


@pytest.mark.spec("A9")
async def test_a_patch_of_session_attributes_merges_deeply_and_null_deletes(server: OperationsServer) -> None:
    session = await create_session(server, attributes={"core": {"workingDir": "/srv/a", "note": 1}, "kept": [1, 2]})

    changed = await server.ask(
        MARIA,
        "session.attributes",
        session=session,
        patch={"core": {"note": None, "more": {"deep": True}}, "kept": [3]},
    )
    assert changed["attributes"] == {"core": {"workingDir": "/srv/a", "more": {"deep": True}}, "kept": [3]}
    gone = await server.ask(MARIA, "session.attributes", session=session, patch={"core": None, "never": None})
    assert gone["attributes"] == {"kept": [3]}
    assert (await list_sessions(server))[0]["attributes"] == {"kept": [3]}


@pytest.mark.spec("A9")
@pytest.mark.parametrize("folder", ["here", "./here", "../up", "", 7, {"a": 1}])
async def test_the_working_directory_of_a_session_must_be_absolute(server: OperationsServer, folder: Any) -> None:
    session = await create_session(server)
    with pytest.raises(Invalid) as refused:
        await server.ask(MARIA, "session.attributes", session=session, patch={"core": {"workingDir": folder}})
    assert refused.value.code == "session.folder_not_absolute"
    with pytest.raises(Invalid):
        await create_session(server, attributes={"core": {"workingDir": folder}})
    assert (await list_sessions(server))[0]["attributes"] == {}


async def test_session_attributes_have_limits(server: OperationsServer) -> None:
    session = await create_session(server)
    deep: dict[str, Any] = {}
    for _ in range(100):
        deep = {"d": deep}
    for patch in (deep, {"x": "y" * 70_000}):
        with pytest.raises(TooLarge):
            await server.ask(MARIA, "session.attributes", session=session, patch=patch)
    for wrong in ([1], "x", 1):
        with pytest.raises(Invalid):
            await server.ask(MARIA, "session.attributes", session=session, patch=wrong)


# --- lists ---


@pytest.mark.spec("A89")
async def test_a_session_summary_has_its_eight_fields_and_updated_at_advances(server: OperationsServer) -> None:
    session = await create_session(server, name="garden")
    [made] = await list_sessions(server)
    assert set(made) >= SUMMARY_FIELDS
    assert (made["sessionId"], made["agentId"], made["name"], made["pinnedAt"]) == (session, "ada", "garden", None)

    seen = [made["updatedAt"]]
    changes: list[tuple[str, dict[str, Any]]] = [
        ("session.rename", {"name": "orchard"}),
        ("session.pin", {}),
        ("session.unpin", {}),
        ("session.attributes", {"patch": {"a": 1}}),
    ]
    for operation, parameters in changes:
        await server.server.instance.clock.advance(60.0)
        seen.append((await server.ask(MARIA, operation, session=session, **parameters))["updatedAt"])
    await server.server.instance.clock.advance(60.0)
    await server.converse(MARIA, "hello", session=session)
    [last] = await list_sessions(server)
    seen.append(last["updatedAt"])
    assert seen == sorted(set(seen))
    assert last["lastSnippet"] == "ok"
    assert last["createdAt"] == made["createdAt"]


@pytest.mark.spec("A89")
async def test_pinned_sessions_come_first_by_their_newest_pin_then_the_most_recently_updated(
    server: OperationsServer,
) -> None:
    made: list[str] = []
    for _ in range(5):
        made.append(await create_session(server))
        await wait(server)
    for session in (made[3], made[1]):
        await server.ask(MARIA, "session.pin", session=session)
        await wait(server)
    await server.converse(MARIA, "hello", session=made[0])

    order = [made[1], made[3], made[0], made[4], made[2]]
    assert await list_session_ids(server) == order
    await wait(server)
    await server.ask(MARIA, "session.pin", session=made[3])  # once more: the newest pin now
    assert (await list_session_ids(server))[:2] == [made[3], made[1]]


async def test_session_list_returns_pages_and_filters_by_agent(server: OperationsServer) -> None:
    made = {await create_session(server) for _ in range(5)}
    bos = await create_session(server, agent="bo")
    await server.ask(MARIA, "session.pin", session=next(iter(made)))

    found: list[str] = []
    cursor = ""
    for _ in range(9):
        page = await server.ask(MARIA, "session.list", limit=2, agent="ADA", cursor=cursor)
        found += [session["sessionId"] for session in page["sessions"]]
        cursor = page["next"] or ""
        if not cursor:
            break
    assert len(found) == 5 and set(found) == made
    assert await list_session_ids(server, agent="bo") == [bos]
    assert await list_session_ids(server, NOOR) == []
    for wrong in ("x", "1.2", "a.b.c"):
        with pytest.raises(Invalid):
            await server.ask(MARIA, "session.list", cursor=wrong)


# --- history, reset, delete ---


@pytest.mark.spec("D66")
async def test_session_history_returns_all_records_including_a_reset(server: OperationsServer) -> None:
    instance = server.server.instance
    instance.model.rule = None
    instance.model.will_reply(tool_call_reply("append_line", text="hello"), "done")
    _, session = await server.converse(MARIA, "do it")
    await server.ask(MARIA, "session.reset", session=session, message="afresh")

    found = await server.ask(MARIA, "session.history", session=session)
    kinds = [record["kind"] for record in found["records"]]
    assert kinds == ["start", "user", "assistant", "tool", "assistant", "reset"]
    assert found["records"][-1]["body"]["text"] == "afresh"
    assert found["next"] is None

    page = await server.ask(MARIA, "session.history", session=session, limit=4)
    rest = await server.ask(MARIA, "session.history", session=session, limit=4, before=page["next"])
    assert rest["records"] + page["records"] == found["records"]
    state = await server.ask(MARIA, "session.state", session=session)
    assert [record["kind"] for record in state["records"]] == ["reset"]


@pytest.mark.spec("A10")
async def test_session_clear_keeps_agent_name_and_attributes(server: OperationsServer) -> None:
    session = await create_session(server, name="garden", attributes={"a": 1})
    await server.converse(MARIA, "the secret is 7", session=session)

    cleared = await server.ask(MARIA, "session.clear", session=session)

    kept = {key: cleared[key] for key in ("sessionId", "agentId", "name", "attributes", "lastSnippet")}
    assert kept == {"sessionId": session, "agentId": "ada", "name": "garden", "attributes": {"a": 1}, "lastSnippet": ""}
    await server.converse(MARIA, "what is it?", session=session)
    prompt = server.server.instance.model.prompts[-1]
    assert "the secret is 7" not in str(prompt)


@pytest.mark.spec("A10")
@pytest.mark.spec("A89")
async def test_session_delete_cancels_its_run_refuses_envelopes_and_ends_routing_to_it(
    server: OperationsServer,
) -> None:
    model = server.server.instance.model
    _, session = await server.converse(MARIA, "hello")
    await server.ask(MARIA, "session.rename", session=session, name="garden")
    await server.ask(MARIA, "session.share", session=session, person="noor")
    model.rule = lambda prompt: text_reply("never", after_s=3600)
    running = await server.ask(MARIA, "envelope.send", to="agent:ada", text="work")
    await wait_until(lambda: len(model.prompts) >= 2, "the model is asked")
    waiting = await server.ask(MARIA, "envelope.send", to="agent:ada", text="more")
    later = await server.ask(MARIA, "envelope.send", to="agent:ada", text="later", deliver_at="+1h")

    gone = await server.ask(MARIA, "session.delete", session=session)

    assert len(gone["cancelled_runs"]) == 1
    for sent in (running, waiting):
        assert (await server.server.wait_for_outcome(sent["envelope"])).outcome is Outcome.CANCELLED
    for who in (MARIA, NOOR, OWNER):
        assert "session.deleted" in [piece.kind for piece in await list_events(server, who, session)]
        assert session not in await list_session_ids(server, who)
    model.rule = lambda prompt: text_reply("ok")
    _, fresh = await server.converse(MARIA, "hello again")
    assert fresh != session
    assert (await server.ask(MARIA, "session.rename", session=fresh, name="Garden"))["name"] == "Garden"
    await server.server.instance.clock.advance(3700.0)
    refused = await server.server.wait_for_outcome(later["envelope"])
    assert (refused.outcome, refused.because) == (Outcome.REFUSED, "session-deleted")
    for operation in ("session.state", "session.pin", "session.delete", "session.history"):
        with pytest.raises(NotFound):
            await server.ask(MARIA, operation, session=session)
    with pytest.raises(RetinueError):
        await server.ask(MARIA, "envelope.send", to=f"agent:ada/{session}", text="x")


async def test_a_session_deletion_interrupted_by_a_crash_is_finished_at_the_next_start(tmp_path: Path) -> None:
    instance = LocalInstance(tmp_path)
    async with open_operations_server(instance) as server:
        instance.model.rule = lambda prompt: text_reply("never", after_s=3600)
        sent = await server.ask(MARIA, "envelope.send", to="agent:ada", text="work")
        await server.server.wait_for(lambda conn: len(instance.model.prompts) == 1, what="the model to be asked")
        await server.server.execute_sql("UPDATE sessions SET deleted_ms = 1")
        server.server.crash()
    async with open_operations_server(instance) as server:
        ended = await server.server.wait_for_outcome(sent["envelope"])
        assert (ended.outcome, ended.because) == (Outcome.REFUSED, "session-deleted")


# --- sharing ---


async def test_a_shared_session_can_be_seen_and_written_to_but_not_deleted_or_shared(server: OperationsServer) -> None:
    session = await create_session(server)
    with pytest.raises(NotFound):
        await server.ask(NOOR, "session.state", session=session)

    shared = await server.ask(MARIA, "session.share", session=session, person="NOOR")
    assert shared["shared_with"] == ["noor"]
    assert await server.ask(MARIA, "session.share", session=session, person="noor") == shared
    assert await list_session_ids(server, NOOR) == [session]
    for operation, more in (("session.delete", {}), ("session.share", {"person": "gus"})):
        with pytest.raises(NotAllowed) as refused:
            await server.ask(NOOR, operation, session=session, **more)
        assert refused.value.code == "session.not_owned"

    await server.ask(NOOR, "session.unshare", session=session, person="noor")
    assert await list_session_ids(server, NOOR) == []
    with pytest.raises(NotFound) as none:
        await server.ask(MARIA, "session.unshare", session=session, person="noor")
    assert none.value.code == "session.not_shared"


async def test_an_agent_cannot_share_a_session_or_create_one_of_another_agent(server: OperationsServer) -> None:
    session = await create_session(server)
    with pytest.raises(NotAllowed):
        await server.ask(agent("ada"), "session.share", session=session, person="noor")
    with pytest.raises(NotAllowed):
        await create_session(server, agent("ada"), agent="bo")
    mine = await create_session(server, agent("ada"))
    assert mine in await list_session_ids(server, agent("ada"))


async def test_a_session_of_an_unknown_agent_is_not_created(server: OperationsServer) -> None:
    with pytest.raises(NotFound) as refused:
        await create_session(server, agent="zoe")
    assert refused.value.code == "agent.not_found"


# --- waiting envelopes ---


@pytest.mark.spec("A18")
async def test_envelopes_to_a_busy_session_wait_in_order_and_can_be_cancelled(server: OperationsServer) -> None:
    model = server.server.instance.model
    _, session = await server.converse(MARIA, "hello")
    await server.ask(OWNER, "agent.set", name="ada", queue_mode="followup")
    model.rule = lambda prompt: text_reply("ok", after_s=60)
    first = await server.ask(MARIA, "envelope.send", to="agent:ada", text="first")
    waiting = [
        (await server.ask(MARIA, "envelope.send", to="agent:ada", text=text))["envelope"]
        for text in ("second", "third", "fourth")
    ]

    async def positions() -> list[int | None]:
        return [(await server.ask(MARIA, "envelope.show", id=id_)).get("position") for id_ in waiting]

    assert "position" not in await server.ask(MARIA, "envelope.show", id=first["envelope"])
    assert await positions() == [1, 2, 3]
    assert (await server.ask(MARIA, "envelope.cancel", id=waiting[1][:8]))["envelope"] == waiting[1]
    assert await positions() == [1, None, 2]
    assert (await server.server.wait_for_outcome(waiting[1])).outcome is Outcome.CANCELLED
    for again, code in ((waiting[1], "envelope.not_waiting"), (first["envelope"], "envelope.not_waiting")):
        with pytest.raises(Conflict) as refused:
            await server.ask(MARIA, "envelope.cancel", id=again)
        assert refused.value.code == code

    for sent in (first["envelope"], waiting[0], waiting[2]):
        await advance_until_settled(server.server, sent, step_s=61.0)
    found = await server.ask(MARIA, "session.history", session=session)
    read = [record["body"]["text"] for record in found["records"] if record["kind"] == "user"]
    assert [word for text in read for word in ("first", "second", "third", "fourth") if word in text] == [
        "first",
        "second",
        "fourth",
    ]


async def test_only_the_sender_or_the_sessions_person_can_cancel_an_envelope(server: OperationsServer) -> None:
    session = await create_session(server)
    await server.ask(MARIA, "session.share", session=session, person="noor")
    later = {"to": "agent:ada", "text": "later", "session": session, "deliver_at": "+1h"}
    hers = (await server.ask(MARIA, "envelope.send", **later))["envelope"]
    noors = (await server.ask(NOOR, "envelope.send", **later))["envelope"]

    with pytest.raises(NotAllowed):
        await server.ask(NOOR, "envelope.cancel", id=hers)
    with pytest.raises(NotFound):
        await server.ask(GUS, "envelope.cancel", id=hers)
    await server.ask(MARIA, "envelope.cancel", id=noors)
    assert "cancelled by person:maria" in (await server.server.list_envelopes_to("noor"))[-1].text
    await server.ask(MARIA, "envelope.cancel", id=hers)
    assert await server.server.list_envelopes_to("maria") == []


@dataclass
class StallingModel:
    """Streams some text, and then nothing for an hour."""

    clock: Clock
    words: str
    name: str = "stalling"

    @property
    def facts(self) -> ModelFacts:
        return ModelFacts(ref=ModelRef("", self.name), price=FREE_PRICE)

    async def reply(self, prompt: ModelPrompt, *, key: str = "") -> AsyncIterator[ReplyChunk]:
        yield TextChunk(self.words)
        await self.clock.sleep(3600)


@pytest.mark.spec("A20")
@pytest.mark.parametrize("way", ["operation", "command"])
async def test_stopping_the_run_of_a_session_keeps_the_partial_reply(tmp_path: Path, way: str) -> None:
    words = "The garden lies behind the wall, and in it"
    instance = LocalInstance(tmp_path, agents=[Agent(name="ada", model="stalling")])
    instance.models = [StallingModel(instance.clock, words)]
    async with open_operations_server(instance) as server:
        await stop_during_reply(server, way, words)


async def stop_during_reply(server: OperationsServer, way: str, words: str) -> None:
    sent = await server.ask(MARIA, "envelope.send", to="agent:ada", text="tell me")
    await server.server.wait_for(lambda conn: bool(server.server.events.partial_replies()), what="the model to begin")

    if way == "operation":
        await server.ask(MARIA, "session.stop", session=sent["session"])
    else:
        await server.ask(MARIA, "envelope.send", to="agent:ada", text="/stop")

    assert (await server.server.wait_for_outcome(sent["envelope"])).outcome is Outcome.CANCELLED
    found = await server.ask(MARIA, "session.history", session=sent["session"])
    reply = next(record["body"] for record in found["records"] if record["kind"] == "assistant")
    assert (reply["text"], reply["stop"]) == (words, "cut-off")
    ended = [piece for piece in await list_events(server, MARIA, sent["session"]) if piece.kind == "run.ended"]
    assert [piece.body["status"] for piece in ended] == ["cancelled"]


@pytest.mark.spec("A20")
async def test_stopping_the_run_of_a_session_closes_its_open_tool_calls(tmp_path: Path) -> None:
    class Slow:
        spec = ToolSpec(name="slow", description="waits", parameters={"type": "object", "properties": {}})
        arguments = EmptyRequest
        begun = asyncio.Event()

        async def perform(self, arguments: Any, context: ToolContext) -> str:
            self.begun.set()
            await asyncio.Event().wait()
            return "never"

    tool = Slow()
    instance = LocalInstance(tmp_path, tools=[tool])
    async with open_operations_server(instance) as server:
        instance.model.will_reply(ScriptedReply(text="Let me see.", calls=(("slow", {}),)))
        sent = await server.ask(MARIA, "envelope.send", to="agent:ada", text="look")
        await asyncio.wait_for(tool.begun.wait(), WAIT_LIMIT_S)
        await server.ask(MARIA, "session.stop", session=sent["session"])

        found = await server.ask(MARIA, "session.history", session=sent["session"])
        assert [record["kind"] for record in found["records"]] == ["start", "user", "assistant", "tool", "note"]
        result = found["records"][3]["body"]
        assert (result["failed"], result["output"].startswith("Interrupted:")) == (True, True)
