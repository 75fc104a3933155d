"""Whoever asks, by whatever operation: what is not theirs to see is not there."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from operations.operations_instance import DeskHouse, agent, desk_house, person

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
async def house(tmp_path: Path) -> AsyncGenerator[DeskHouse]:
    async with desk_house(LocalInstance(tmp_path)) as made:
        yield made


async def marias_things(house: DeskHouse) -> dict[str, str]:
    """A conversation, a dead letter and an open question of Maria's, by kind."""
    maria = person("maria")
    household = house.house.instance
    envelope, session = await house.converse(maria, SECRET)
    run = (await house.house.get_envelope(envelope)).run
    household.model.rule = lambda prompt: ScriptedReply(fails="no more today")
    dead, _ = await house.converse(maria, SECRET, conversation="dead")
    return {"envelope": envelope, "session": session, "run": str(run), "dead": dead}


def parameters_with(parameters: type[msgspec.Struct], id_: str) -> dict[str, Any]:
    """Parameters in which everything that could name something names this."""
    made: dict[str, Any] = {}
    for field in msgspec.structs.fields(parameters):
        if field.encode_name in ("session", "id", "reply_to", "before", "envelope", "run", "approval"):
            made[field.encode_name] = id_
        elif field.required:
            made[field.encode_name] = _something(field, id_)
    return made


def _something(field: msgspec.structs.FieldInfo, id_: str) -> Any:
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
async def test_no_operation_tells_a_stranger_of_what_is_not_theirs(house: DeskHouse, stranger: Principal) -> None:
    """Every operation, asked about every one of Maria's things by full id and by short id."""
    things = await marias_things(house)
    told: list[str] = []
    # Those that only look go first: what a stranger has written somewhere themselves is no news to them.
    for operation in sorted(OPERATIONS.values(), key=lambda each: each.has_effect):
        for id_ in {*things.values(), *(value[:8] for value in things.values())}:
            body = json.dumps(parameters_with(operation.parameters, id_)).encode()
            try:
                answer = (await perform_operation(house.desk, stranger, operation, body)).decode()
            except NotAllowed:
                continue
            except RetinueError as error:
                answer = f"{error.sentence} {error.because} {error.try_this}"
                assert error.code not in ("id.ambiguous",), operation.name
            if SECRET in answer or any(thing in answer and thing != id_ for thing in things.values()):
                told.append(f"{operation.name}: {answer[:300]}")
    assert told == []


@pytest.mark.parametrize("stranger", STRANGERS, ids=lambda p: f"{p.address}-{p.level}")
@pytest.mark.parametrize(
    ("operation", "thing", "parameter"),
    [
        ("envelope.show", "envelope", "id"),
        ("envelope.thread", "envelope", "id"),
        ("house.why", "envelope", "id"),
        ("house.why", "run", "id"),
        ("house.why", "session", "id"),
        ("session.state", "session", "session"),
        ("session.stop", "session", "session"),
        ("session.reset", "session", "session"),
        ("session.queue", "session", "session"),
        ("session.policy", "session", "session"),
        ("session.refresh", "session", "session"),
    ],
)
async def test_a_strangers_look_up_answers_as_if_nothing_were_there(
    house: DeskHouse, stranger: Principal, operation: str, thing: str, parameter: str
) -> None:
    things = await marias_things(house)
    for id_ in (things[thing], things[thing][:8]):
        try:
            await house.ask(stranger, operation, **{parameter: id_})
        except (NotFound, NotAllowed) as refused:
            nothing = "f" * len(id_)
            try:
                await house.ask(stranger, operation, **{parameter: nothing})
            except (NotFound, NotAllowed) as absent:
                assert (refused.code, refused.because) == (absent.code, absent.because)
                assert refused.sentence.replace(id_, nothing) == absent.sentence
        else:
            raise AssertionError(f"{operation} answered {stranger.address}")


async def test_maria_and_the_owner_see_what_is_hers(house: DeskHouse) -> None:
    things = await marias_things(house)
    for who in (person("maria"), person("owner")):
        assert (await house.ask(who, "envelope.show", id=things["envelope"]))["text"] == SECRET
        assert (await house.ask(who, "session.state", session=things["session"][:8]))["session"] == things["session"]
        listed = await house.ask(who, "session.list")
        assert things["session"] in json.dumps(listed)
        assert (await house.ask(who, "house.why", id=things["run"]))["lines"]


async def test_an_agent_sees_its_own_sessions_and_no_others(house: DeskHouse) -> None:
    things = await marias_things(house)
    assert (await house.ask(agent("ada"), "session.state", session=things["session"]))["agent"] == "ada"
    with pytest.raises(NotFound):
        await house.ask(agent("bo"), "session.state", session=things["session"])


async def test_an_open_question_is_shown_to_whom_it_concerns_alone(house: DeskHouse) -> None:
    from retinue.domain.agent import ToolRules
    from retinue.domain.structs import replace
    from retinue.store.agents import agents

    def ask_first(conn: Any) -> None:
        found = agents.find(conn, "ada")
        assert found is not None
        agents.upsert(conn, replace(found, tools=ToolRules(ask=("read",))), source="test", at_ms=2)

    await house.house.store.write(ask_first, point="test")
    house.house.instance.model.rule = lambda prompt: tool_call_reply("read", path=SECRET)
    sent = await house.ask(person("maria"), "envelope.send", to="agent:ada", text="look")
    [approval] = await house.house.wait_for(lambda conn: approvals.list_open(conn, limit=5) or None, what="a question")
    for stranger in STRANGERS:
        assert SECRET not in json.dumps(await house.ask(stranger, "house.status"))
        with pytest.raises((NotFound, NotAllowed)):
            await house.ask(stranger, "approval.answer", id=approval.id, allow=True)
    assert SECRET in json.dumps(await house.ask(person("maria"), "house.status"))
    house.house.instance.model.rule = lambda prompt: text_reply("done")
    await house.ask(person("maria"), "approval.answer", id=approval.id[:8], allow=False)
    await house.house.wait_for_outcome(sent["envelope"])


async def test_news_tells_each_only_what_they_see(house: DeskHouse) -> None:
    await marias_things(house)
    await house.converse(person("noor"), "hello from noor")

    def told(who: Principal) -> Any:
        return lambda conn: events.list_after(conn, 0, limit=1000, seen_by=who)

    everything = await house.house.store.read(told(person("owner")))
    hers = await house.house.store.read(told(person("maria")))
    noors = await house.house.store.read(told(person("noor")))
    assert len(hers) + len(noors) == len(everything)
    assert SECRET in str([piece.body for piece in hers]) and SECRET not in str([piece.body for piece in noors])
    assert await house.house.store.read(told(agent("bo"))) == []


async def test_a_thread_ends_where_sight_does(house: DeskHouse) -> None:
    """Noor is answered in a chain that began with Maria: she sees her part of it."""
    maria, noor, owner = person("maria"), person("noor"), person("owner")
    first, _ = await house.converse(maria, SECRET)
    letter = await house.ask(owner, "envelope.send", to="person:noor", text="about this", reply_to=first)
    seen = await house.ask(noor, "envelope.thread", id=letter["envelope"])
    assert [envelope["text"] for envelope in seen["envelopes"]] == ["about this"]
    assert SECRET not in json.dumps(seen)
    whole = await house.ask(owner, "envelope.thread", id=letter["envelope"])
    assert len(whole["envelopes"]) == 2


async def test_nobody_replies_to_what_they_do_not_see(house: DeskHouse) -> None:
    things = await marias_things(house)
    with pytest.raises(NotFound):
        await house.ask(person("noor"), "envelope.send", to="agent:ada", text="hm", reply_to=things["envelope"])


async def test_short_ids_are_ambiguous_only_among_what_one_sees(house: DeskHouse) -> None:
    things = await marias_things(house)
    mine, session = await house.converse(person("noor"), "mine")
    length = next(n for n in range(1, 32) if mine[:n] != things["envelope"][:n])
    assert (await house.ask(person("noor"), "envelope.show", id=mine[: max(8, length)]))["text"] == "mine"
    found = await house.house.store.read(lambda conn: runs.get_open(conn, session))
    assert found is None


async def test_time_passes_for_nobody(house: DeskHouse) -> None:
    """A look leaves no trace: nothing a stranger asked has changed anything."""
    things = await marias_things(house)
    before = await house.house.get_session(things["session"])
    for stranger in STRANGERS:
        with pytest.raises((NotFound, NotAllowed)):
            await house.ask(stranger, "session.reset", session=things["session"])
    await house.house.instance.clock.advance(timedelta(seconds=1))
    assert await house.house.get_session(things["session"]) == before


async def test_a_client_begins_with_what_it_sees_and_goes_on_from_there(house: DeskHouse) -> None:
    things = await marias_things(house)
    begun = await house.ask(person("maria"), "house.state")
    assert things["session"] in {session["sessionId"] for session in begun["sessions"]}
    assert begun["you"] == "person:maria" and begun["unread"] >= 1
    assert {agent["name"] for agent in begun["agents"]} == {"ada", "bo"}
    for stranger in STRANGERS:
        others = await house.ask(stranger, "house.state")
        assert others["sessions"] == [] and others["unread"] == 0
    house.house.instance.model.rule = lambda prompt: text_reply("ok")
    await house.converse(person("maria"), "more")
    newer = await house.house.store.read(lambda conn: events.list_after(conn, begun["cursor"], limit=100))
    assert newer and all(piece.seq > begun["cursor"] for piece in newer)
