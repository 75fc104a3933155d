"""No operation shows a principal rows that it may not see."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from operations.operations_instance import OperationsServer, agent, open_operations_server, person

from retinue.domain.agent import PermissionLevel
from retinue.domain.errors import NotAllowed, NotFound, RetinueError
from retinue.domain.principal import Principal
from retinue.operations.base import perform_operation
from retinue.operations.catalog import OPERATIONS
from retinue.store.core import events
from retinue.store.runs import approvals, runs
from retinue.testing.local_instance import LocalInstance
from retinue.testing.scripted_model import ScriptedReply, text_reply, tool_call_reply

SECRET = "the key is under the third flowerpot"
STRANGERS = [person("noor"), person("gus"), agent("bo"), agent("bo", PermissionLevel.BOSS)]


@pytest.fixture
async def server(tmp_path: Path) -> AsyncGenerator[OperationsServer]:
    async with open_operations_server(LocalInstance(tmp_path)) as made:
        yield made


async def make_marias_rows(server: OperationsServer) -> dict[str, str]:
    """Make a session, a dead letter and an open approval of Maria. Returns their ids by kind."""
    maria = person("maria")
    instance = server.server.instance
    envelope, session = await server.converse(maria, SECRET)
    run = (await server.server.get_envelope(envelope)).run
    instance.model.rule = lambda prompt: ScriptedReply(fails="no more today")
    dead, _ = await server.converse(maria, SECRET, conversation="dead")
    return {"envelope": envelope, "session": session, "run": str(run), "dead": dead}


def parameters_with(parameters: type[msgspec.Struct], id_: str) -> dict[str, Any]:
    """Return parameters in which every field that can hold an id has this one."""
    made: dict[str, Any] = {}
    for field in msgspec.structs.fields(parameters):
        if field.encode_name in ("session", "id", "reply_to", "before", "envelope", "run", "approval"):
            made[field.encode_name] = id_
        elif field.required:
            made[field.encode_name] = sample_value(field, id_)
    return made


def sample_value(field: msgspec.structs.FieldInfo, id_: str) -> Any:
    name = field.encode_name
    if field.type is bool:
        return True
    if field.type is int:
        return 1
    if name in ("to", "from"):
        return "agent:ada"
    if name == "status":
        return "done"
    if name in ("role", "person", "name", "agent"):
        return {"role": "member", "person": "noor", "name": "ada", "agent": "ada"}[name]
    if field.type is str or field.type == (str | None):
        return "x"
    if "dict" in str(field.type):
        return {}
    return id_


@pytest.mark.parametrize("stranger", STRANGERS, ids=lambda p: f"{p.address}-{p.level}")
async def test_no_operation_returns_rows_of_another_person(server: OperationsServer, stranger: Principal) -> None:
    """Performs every operation with the full id and the short id of each of Maria's rows."""
    things = await make_marias_rows(server)
    leaks: list[str] = []
    # Operations without effects go first: a later read may return text that the stranger has written.
    for operation in sorted(OPERATIONS.values(), key=lambda each: each.has_effect):
        for id_ in {*things.values(), *(value[:8] for value in things.values())}:
            body = json.dumps(parameters_with(operation.parameters, id_)).encode()
            try:
                answer = (await perform_operation(server.services, stranger, operation, body)).decode()
            except NotAllowed:
                continue
            except RetinueError as error:
                answer = f"{error.sentence} {error.because} {error.try_this}"
                assert error.code not in ("id.ambiguous",), operation.name
            if SECRET in answer or any(thing in answer and thing != id_ for thing in things.values()):
                leaks.append(f"{operation.name}: {answer[:300]}")
    assert leaks == []


@pytest.mark.parametrize("stranger", STRANGERS, ids=lambda p: f"{p.address}-{p.level}")
@pytest.mark.parametrize(
    ("operation", "thing", "parameter"),
    [
        ("envelope.show", "envelope", "id"),
        ("envelope.thread", "envelope", "id"),
        ("server.why", "envelope", "id"),
        ("server.why", "run", "id"),
        ("server.why", "session", "id"),
        ("session.state", "session", "session"),
        ("session.stop", "session", "session"),
        ("session.reset", "session", "session"),
        ("session.set_queue", "session", "session"),
        ("session.policy", "session", "session"),
        ("session.reset_after_run", "session", "session"),
    ],
)
async def test_no_operation_reveals_whether_the_id_of_another_persons_row_exists(
    server: OperationsServer, stranger: Principal, operation: str, thing: str, parameter: str
) -> None:
    things = await make_marias_rows(server)
    for id_ in (things[thing], things[thing][:8]):
        try:
            await server.ask(stranger, operation, **{parameter: id_})
        except (NotFound, NotAllowed) as refused:
            nothing = "f" * len(id_)
            try:
                await server.ask(stranger, operation, **{parameter: nothing})
            except (NotFound, NotAllowed) as absent:
                assert (refused.code, refused.because) == (absent.code, absent.because)
                assert refused.sentence.replace(id_, nothing) == absent.sentence
        else:
            raise AssertionError(f"{operation} answered {stranger.address}")


async def test_the_rows_of_a_person_are_visible_to_that_person_and_to_the_owner(server: OperationsServer) -> None:
    things = await make_marias_rows(server)
    for who in (person("maria"), person("owner")):
        assert (await server.ask(who, "envelope.show", id=things["envelope"]))["text"] == SECRET
        assert (await server.ask(who, "session.state", session=things["session"][:8]))["session"] == things["session"]
        listed = await server.ask(who, "session.list")
        assert things["session"] in json.dumps(listed)
        assert (await server.ask(who, "server.why", id=things["run"]))["lines"]


async def test_an_agent_sees_only_its_own_sessions(server: OperationsServer) -> None:
    things = await make_marias_rows(server)
    assert (await server.ask(agent("ada"), "session.state", session=things["session"]))["agent"] == "ada"
    with pytest.raises(NotFound):
        await server.ask(agent("bo"), "session.state", session=things["session"])


async def test_an_open_approval_is_shown_to_its_person_and_not_to_strangers(server: OperationsServer) -> None:
    from retinue.domain.agent import ToolRules
    from retinue.domain.structs import replace
    from retinue.store.agents import agents

    def ask_first(conn: Any) -> None:
        found = agents.find(conn, "ada")
        assert found is not None
        agents.upsert(conn, replace(found, tools=ToolRules(ask=("read",))), source="test", at_ms=2)

    await server.server.store.write(ask_first, point="test")
    server.server.instance.model.rule = lambda prompt: tool_call_reply("read", path=SECRET)
    sent = await server.ask(person("maria"), "envelope.send", to="agent:ada", text="look")
    [approval] = await server.server.wait_for(
        lambda conn: approvals.list_open(conn, limit=5) or None, what="a question"
    )
    for stranger in STRANGERS:
        assert SECRET not in json.dumps(await server.ask(stranger, "server.status"))
        with pytest.raises((NotFound, NotAllowed)):
            await server.ask(stranger, "approval.answer", id=approval.id, allow=True)
    assert SECRET in json.dumps(await server.ask(person("maria"), "server.status"))
    server.server.instance.model.rule = lambda prompt: text_reply("done")
    await server.ask(person("maria"), "approval.answer", id=approval.id[:8], allow=False)
    await server.server.wait_for_outcome(sent["envelope"])


async def test_only_events_of_visible_rows_are_returned_to_a_reader(server: OperationsServer) -> None:
    await make_marias_rows(server)
    await server.converse(person("noor"), "hello from noor")

    def told(who: Principal) -> Any:
        return lambda conn: events.list_after(conn, 0, limit=1000, seen_by=who)

    everything = await server.server.store.read(told(person("owner")))
    hers = await server.server.store.read(told(person("maria")))
    noors = await server.server.store.read(told(person("noor")))
    assert len(hers) + len(noors) == len(everything)
    assert SECRET in str([piece.body for piece in hers]) and SECRET not in str([piece.body for piece in noors])
    assert await server.server.store.read(told(agent("bo"))) == []


async def test_a_reply_thread_omits_envelopes_the_reader_cannot_see(server: OperationsServer) -> None:
    """Noor gets a reply in a thread that began with Maria: she sees only her part of it."""
    maria, noor, owner = person("maria"), person("noor"), person("owner")
    first, _ = await server.converse(maria, SECRET)
    sent = await server.ask(owner, "envelope.send", to="person:noor", text="about this", reply_to=first)
    seen = await server.ask(noor, "envelope.thread", id=sent["envelope"])
    assert [envelope["text"] for envelope in seen["envelopes"]] == ["about this"]
    assert SECRET not in json.dumps(seen)
    whole = await server.ask(owner, "envelope.thread", id=sent["envelope"])
    assert len(whole["envelopes"]) == 2


async def test_replying_to_an_invisible_envelope_is_not_found(server: OperationsServer) -> None:
    things = await make_marias_rows(server)
    with pytest.raises(NotFound):
        await server.ask(person("noor"), "envelope.send", to="agent:ada", text="hm", reply_to=things["envelope"])


async def test_short_ids_are_resolved_among_visible_envelopes_only(server: OperationsServer) -> None:
    things = await make_marias_rows(server)
    mine, session = await server.converse(person("noor"), "mine")
    length = next(n for n in range(1, 32) if mine[:n] != things["envelope"][:n])
    assert (await server.ask(person("noor"), "envelope.show", id=mine[: max(8, length)]))["text"] == "mine"
    found = await server.server.store.read(lambda conn: runs.get_open(conn, session))
    assert found is None


async def test_a_refused_reset_by_another_person_does_not_change_the_session(server: OperationsServer) -> None:
    things = await make_marias_rows(server)
    before = await server.server.get_session(things["session"])
    for stranger in STRANGERS:
        with pytest.raises((NotFound, NotAllowed)):
            await server.ask(stranger, "session.reset", session=things["session"])
    await server.server.instance.clock.advance(timedelta(seconds=1))
    assert await server.server.get_session(things["session"]) == before


async def test_server_state_shows_only_visible_rows_and_a_cursor_for_later_events(server: OperationsServer) -> None:
    things = await make_marias_rows(server)
    begun = await server.ask(person("maria"), "server.initial_state")
    assert things["session"] in {session["sessionId"] for session in begun["sessions"]}
    assert begun["principal"] == "person:maria" and begun["unread"] >= 1
    assert {agent["name"] for agent in begun["agents"]} == {"ada", "bo"}
    for stranger in STRANGERS:
        others = await server.ask(stranger, "server.initial_state")
        assert others["sessions"] == [] and others["unread"] == 0
    server.server.instance.model.rule = lambda prompt: text_reply("ok")
    await server.converse(person("maria"), "more")
    newer = await server.server.store.read(lambda conn: events.list_after(conn, begun["cursor"], limit=100))
    assert newer and all(piece.seq > begun["cursor"] for piece in newer)
