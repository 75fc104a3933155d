from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from operations.operations_instance import DeskHouse, agent, desk_house, person
from stores import turn_the_clock_until_settled

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
SUMMARY = {"sessionId", "agentId", "name", "pinnedAt", "createdAt", "updatedAt", "lastSnippet", "attributes"}


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[DeskHouse]:
    async with desk_house(LocalInstance(tmp_path)) as made:
        yield made


async def create(house: DeskHouse, who: Principal = MARIA, **kw: Any) -> str:
    return (await house.ask(who, "session.create", **({"agent": "ada"} | kw)))["sessionId"]


async def listed(house: DeskHouse, who: Principal = MARIA, **kw: Any) -> list[dict[str, Any]]:
    return (await house.ask(who, "session.list", **kw))["sessions"]


async def ids(house: DeskHouse, who: Principal = MARIA, **kw: Any) -> list[str]:
    return [session["sessionId"] for session in await listed(house, who, **kw)]


async def told(house: DeskHouse, who: Principal, session: str) -> list[StoredEvent]:
    look = partial(events.list_next, session=session, cursor=0, limit=1_000, seen_by=who)
    return (await house.house.store.scan(look)).events


async def wait(house: DeskHouse) -> None:
    """A moment that the clock can tell from the one before."""
    await house.house.instance.clock.advance(1.0)


# --- names ---


@pytest.mark.spec("A6")
async def test_names_are_unique_without_regard_to_case_and_null_clears_one(house: DeskHouse) -> None:
    first, second = await create(house, name="Garden"), await create(house)

    for taken in ("garden", " GARDEN "):
        with pytest.raises(Conflict) as refused:
            await house.ask(MARIA, "session.rename", session=second, name=taken)
        assert refused.value.code == "session.name_taken"
    assert (await house.ask(MARIA, "session.rename", session=first, name="GARDEN"))["name"] == "GARDEN"
    assert (await house.ask(MARIA, "session.rename", session=first, name=None))["name"] is None
    assert (await house.ask(MARIA, "session.rename", session=second, name="garden"))["name"] == "garden"
    assert (await house.ask(MARIA, "session.create", agent="bo", name="Garden"))["name"] == "Garden"


@pytest.mark.parametrize("name", ["", "  ", "two\nlines", "x" * 101, "\x1b[2J"])
async def test_a_name_that_cannot_be_shown_is_refused(house: DeskHouse, name: str) -> None:
    session = await create(house)
    with pytest.raises(Invalid) as refused:
        await house.ask(MARIA, "session.rename", session=session, name=name)
    assert refused.value.code == "session.name_invalid"


# --- routing ---


@pytest.mark.spec("A7")
async def test_mail_without_a_session_goes_to_the_most_recently_updated_or_begins_one(house: DeskHouse) -> None:
    _, first = await house.converse(MARIA, "hello")
    await wait(house)
    _, work = await house.converse(MARIA, "hello", conversation="work")
    await wait(house)

    assert (await house.converse(MARIA, "again"))[1] == work
    await wait(house)
    await house.ask(MARIA, "session.rename", session=first, name="first")
    assert (await house.converse(MARIA, "again"))[1] == first
    await wait(house)
    made = await create(house)
    assert (await house.converse(MARIA, "again"))[1] == made
    assert (await house.converse(MARIA, "again", conversation="work"))[1] == work
    assert (await house.converse(MARIA, "another agent", to="agent:bo"))[1] not in (first, work, made)


@pytest.mark.spec("A7")
async def test_nobodys_mail_goes_to_what_is_anothers(house: DeskHouse) -> None:
    hers = await create(house)
    await house.ask(MARIA, "session.share", session=hers, person="noor")

    for other in (OWNER, NOOR, GUS):
        assert (await house.converse(other, "hello"))[1] != hers
    # By its id, whom it is shared with may write there.
    assert (await house.converse(NOOR, "hello", session=hers))[1] == hers


@pytest.mark.spec("A8")
async def test_latest_without_a_session_is_an_error_and_so_is_a_session_of_another_agent(house: DeskHouse) -> None:
    with pytest.raises(NotFound) as none:
        await house.ask(MARIA, "envelope.send", to="agent:ada", text="x", session="latest")
    assert none.value.code == "session.none"
    assert await ids(house) == []

    session = await create(house)
    assert (await house.converse(MARIA, "hello", session="latest"))[1] == session
    assert (await house.converse(MARIA, "hello", session=session[:8]))[1] == session
    with pytest.raises(Invalid) as wrong:
        await house.ask(MARIA, "envelope.send", to="agent:bo", text="x", session=session)
    assert wrong.value.code == "session.other_agent"
    with pytest.raises(Invalid) as twice:
        await house.ask(MARIA, "envelope.send", to="agent:ada", text="x", session=session, conversation="work")
    assert twice.value.code == "session.named_twice"


async def test_nobody_writes_into_a_session_they_do_not_see(house: DeskHouse) -> None:
    session = await create(house)
    for way in ({"to": f"agent:ada/{session}"}, {"to": "agent:ada", "session": session}):
        with pytest.raises(NotFound):
            await house.ask(NOOR, "envelope.send", text="let me in", **way)


async def test_an_agent_may_reply_to_a_session_that_wrote_to_it(house: DeskHouse) -> None:
    session = await create(house)
    first = await house.house.send("what do you think?", sender=f"agent:ada/{session}", recipient="agent:bo")
    bo = agent("bo")

    with pytest.raises(NotFound):
        await house.ask(bo, "envelope.send", to=f"agent:ada/{session}", text="let me in")
    sent = await house.ask(bo, "envelope.send", to=f"agent:ada/{session}", text="well", reply_to=first.envelope)
    assert sent["session"] == session


@pytest.mark.spec("D1")
async def test_the_same_room_comes_back_to_the_same_session_also_after_a_restart(tmp_path: Path) -> None:
    household = LocalInstance(tmp_path)
    household.model.rule = lambda prompt: text_reply("ok")
    quiet = FakeConnector(household.clock)
    household.connectors["quiet"] = quiet
    found: list[str | None] = []
    for _ in range(2):
        async with household.run() as house:
            for room in ("42", "43", "42"):
                receipt = await quiet.send_inbound("hello", channel=room)
                assert receipt is not None
                found.append(receipt.session)
            await house.wait_until_idle()
    assert found[0] == found[2] == found[3] == found[5]
    assert found[1] == found[4] != found[0]


# --- attributes ---


@pytest.mark.spec("A9")
async def test_a_patch_merges_deeply_and_null_deletes(house: DeskHouse) -> None:
    session = await create(house, attributes={"core": {"workingDir": "/srv/a", "note": 1}, "kept": [1, 2]})

    changed = await house.ask(
        MARIA,
        "session.attributes",
        session=session,
        patch={"core": {"note": None, "more": {"deep": True}}, "kept": [3]},
    )
    assert changed["attributes"] == {"core": {"workingDir": "/srv/a", "more": {"deep": True}}, "kept": [3]}
    gone = await house.ask(MARIA, "session.attributes", session=session, patch={"core": None, "never": None})
    assert gone["attributes"] == {"kept": [3]}
    assert (await listed(house))[0]["attributes"] == {"kept": [3]}


@pytest.mark.spec("A9")
@pytest.mark.parametrize("folder", ["here", "./here", "../up", "", 7, {"a": 1}])
async def test_a_working_folder_is_absolute(house: DeskHouse, folder: Any) -> None:
    session = await create(house)
    with pytest.raises(Invalid) as refused:
        await house.ask(MARIA, "session.attributes", session=session, patch={"core": {"workingDir": folder}})
    assert refused.value.code == "session.folder_not_absolute"
    with pytest.raises(Invalid):
        await create(house, attributes={"core": {"workingDir": folder}})
    assert (await listed(house))[0]["attributes"] == {}


async def test_attributes_have_a_bound(house: DeskHouse) -> None:
    session = await create(house)
    deep: dict[str, Any] = {}
    for _ in range(100):
        deep = {"d": deep}
    for patch in (deep, {"x": "y" * 70_000}):
        with pytest.raises(TooLarge):
            await house.ask(MARIA, "session.attributes", session=session, patch=patch)
    for wrong in ([1], "x", 1):
        with pytest.raises(Invalid):
            await house.ask(MARIA, "session.attributes", session=session, patch=wrong)


# --- lists ---


@pytest.mark.spec("A89")
async def test_a_summary_has_its_eight_fields_and_updated_at_advances(house: DeskHouse) -> None:
    session = await create(house, name="garden")
    [made] = await listed(house)
    assert set(made) >= SUMMARY
    assert (made["sessionId"], made["agentId"], made["name"], made["pinnedAt"]) == (session, "ada", "garden", None)

    seen = [made["updatedAt"]]
    changes: list[tuple[str, dict[str, Any]]] = [
        ("session.rename", {"name": "orchard"}),
        ("session.pin", {}),
        ("session.unpin", {}),
        ("session.attributes", {"patch": {"a": 1}}),
    ]
    for operation, parameters in changes:
        await house.house.instance.clock.advance(60.0)
        seen.append((await house.ask(MARIA, operation, session=session, **parameters))["updatedAt"])
    await house.house.instance.clock.advance(60.0)
    await house.converse(MARIA, "hello", session=session)
    [last] = await listed(house)
    seen.append(last["updatedAt"])
    assert seen == sorted(set(seen))
    assert last["lastSnippet"] == "ok"
    assert last["createdAt"] == made["createdAt"]


@pytest.mark.spec("A89")
async def test_pinned_sessions_come_first_by_their_newest_pin_then_the_most_recently_updated(house: DeskHouse) -> None:
    made: list[str] = []
    for _ in range(5):
        made.append(await create(house))
        await wait(house)
    for session in (made[3], made[1]):
        await house.ask(MARIA, "session.pin", session=session)
        await wait(house)
    await house.converse(MARIA, "hello", session=made[0])

    order = [made[1], made[3], made[0], made[4], made[2]]
    assert await ids(house) == order
    await wait(house)
    await house.ask(MARIA, "session.pin", session=made[3])  # once more: the newest pin now
    assert (await ids(house))[:2] == [made[3], made[1]]


async def test_a_list_is_read_page_by_page_and_by_agent(house: DeskHouse) -> None:
    made = {await create(house) for _ in range(5)}
    bos = await create(house, agent="bo")
    await house.ask(MARIA, "session.pin", session=next(iter(made)))

    found: list[str] = []
    cursor = ""
    for _ in range(9):
        page = await house.ask(MARIA, "session.list", limit=2, agent="ADA", cursor=cursor)
        found += [session["sessionId"] for session in page["sessions"]]
        cursor = page["next"] or ""
        if not cursor:
            break
    assert len(found) == 5 and set(found) == made
    assert await ids(house, agent="bo") == [bos]
    assert await ids(house, NOOR) == []
    for wrong in ("x", "1.2", "a.b.c"):
        with pytest.raises(Invalid):
            await house.ask(MARIA, "session.list", cursor=wrong)


# --- history, clear, delete ---


@pytest.mark.spec("D66")
async def test_history_gives_the_records_and_reset_begins_a_fresh_context(house: DeskHouse) -> None:
    household = house.house.instance
    household.model.rule = None
    household.model.will_reply(tool_call_reply("append_line", text="hello"), "done")
    _, session = await house.converse(MARIA, "do it")
    await house.ask(MARIA, "session.reset", session=session, message="afresh")

    found = await house.ask(MARIA, "session.history", session=session)
    kinds = [record["kind"] for record in found["records"]]
    assert kinds == ["start", "user", "assistant", "tool", "assistant", "reset"]
    assert found["records"][-1]["body"]["text"] == "afresh"
    assert found["next"] is None

    page = await house.ask(MARIA, "session.history", session=session, limit=4)
    rest = await house.ask(MARIA, "session.history", session=session, limit=4, before=page["next"])
    assert rest["records"] + page["records"] == found["records"]
    state = await house.ask(MARIA, "session.state", session=session)
    assert [record["kind"] for record in state["records"]] == ["reset"]


@pytest.mark.spec("A10")
async def test_clear_keeps_agent_name_and_attributes(house: DeskHouse) -> None:
    session = await create(house, name="garden", attributes={"a": 1})
    await house.converse(MARIA, "the secret is 7", session=session)

    cleared = await house.ask(MARIA, "session.clear", session=session)

    kept = {key: cleared[key] for key in ("sessionId", "agentId", "name", "attributes", "lastSnippet")}
    assert kept == {"sessionId": session, "agentId": "ada", "name": "garden", "attributes": {"a": 1}, "lastSnippet": ""}
    await house.converse(MARIA, "what is it?", session=session)
    prompt = house.house.instance.model.prompts[-1]
    assert "the secret is 7" not in str(prompt)


@pytest.mark.spec("A10")
@pytest.mark.spec("A89")
async def test_delete_stops_what_runs_tells_all_and_is_never_routed_to(house: DeskHouse) -> None:
    model = house.house.instance.model
    _, session = await house.converse(MARIA, "hello")
    await house.ask(MARIA, "session.rename", session=session, name="garden")
    await house.ask(MARIA, "session.share", session=session, person="noor")
    model.rule = lambda prompt: text_reply("never", after_s=3600)
    running = await house.ask(MARIA, "envelope.send", to="agent:ada", text="work")
    await wait_until(lambda: len(model.prompts) >= 2, "the model is asked")
    waiting = await house.ask(MARIA, "envelope.send", to="agent:ada", text="more")
    later = await house.ask(MARIA, "envelope.send", to="agent:ada", text="later", deliver_at="+1h")

    gone = await house.ask(MARIA, "session.delete", session=session)

    assert len(gone["cancelled-runs"]) == 1
    for sent in (running, waiting):
        assert (await house.house.wait_for_outcome(sent["envelope"])).outcome is Outcome.CANCELLED
    for who in (MARIA, NOOR, OWNER):
        assert "session.deleted" in [piece.kind for piece in await told(house, who, session)]
        assert session not in await ids(house, who)
    model.rule = lambda prompt: text_reply("ok")
    _, fresh = await house.converse(MARIA, "hello again")
    assert fresh != session
    assert (await house.ask(MARIA, "session.rename", session=fresh, name="Garden"))["name"] == "Garden"
    await house.house.instance.clock.advance(3700.0)
    refused = await house.house.wait_for_outcome(later["envelope"])
    assert (refused.outcome, refused.because) == (Outcome.REFUSED, "session-deleted")
    for operation in ("session.state", "session.pin", "session.delete", "session.history"):
        with pytest.raises(NotFound):
            await house.ask(MARIA, operation, session=session)
    with pytest.raises(RetinueError):
        await house.ask(MARIA, "envelope.send", to=f"agent:ada/{session}", text="x")


async def test_a_deleted_session_is_closed_by_a_house_that_stopped_in_between(tmp_path: Path) -> None:
    household = LocalInstance(tmp_path)
    async with desk_house(household) as house:
        household.model.rule = lambda prompt: text_reply("never", after_s=3600)
        sent = await house.ask(MARIA, "envelope.send", to="agent:ada", text="work")
        await house.house.wait_for(lambda conn: len(household.model.prompts) == 1, what="the model to be asked")
        await house.house.execute_sql("UPDATE sessions SET deleted_ms = 1")
        house.house.crash()
    async with desk_house(household) as house:
        ended = await house.house.wait_for_outcome(sent["envelope"])
        assert (ended.outcome, ended.because) == (Outcome.REFUSED, "session-deleted")


# --- sharing ---


async def test_a_shared_session_is_seen_and_written_to_and_still_not_theirs(house: DeskHouse) -> None:
    session = await create(house)
    with pytest.raises(NotFound):
        await house.ask(NOOR, "session.state", session=session)

    shared = await house.ask(MARIA, "session.share", session=session, person="NOOR")
    assert shared["shared-with"] == ["noor"]
    assert await house.ask(MARIA, "session.share", session=session, person="noor") == shared
    assert await ids(house, NOOR) == [session]
    for operation, more in (("session.delete", {}), ("session.share", {"person": "gus"})):
        with pytest.raises(NotAllowed) as refused:
            await house.ask(NOOR, operation, session=session, **more)
        assert refused.value.code == "session.not_owned"

    await house.ask(NOOR, "session.unshare", session=session, person="noor")
    assert await ids(house, NOOR) == []
    with pytest.raises(NotFound) as none:
        await house.ask(MARIA, "session.unshare", session=session, person="noor")
    assert none.value.code == "session.not_shared"


async def test_an_agent_shares_nothing_and_opens_no_session_of_another(house: DeskHouse) -> None:
    session = await create(house)
    with pytest.raises(NotAllowed):
        await house.ask(agent("ada"), "session.share", session=session, person="noor")
    with pytest.raises(NotAllowed):
        await create(house, agent("ada"), agent="bo")
    mine = await create(house, agent("ada"))
    assert mine in await ids(house, agent("ada"))


async def test_a_session_of_an_unknown_agent_is_not_created(house: DeskHouse) -> None:
    with pytest.raises(NotFound) as refused:
        await create(house, agent="zoe")
    assert refused.value.code == "agent.not_found"


# --- what waits ---


@pytest.mark.spec("A18")
async def test_mail_to_a_busy_session_waits_in_order_with_its_position_and_can_be_taken_back(house: DeskHouse) -> None:
    model = house.house.instance.model
    _, session = await house.converse(MARIA, "hello")
    await house.ask(OWNER, "agent.set", name="ada", queue_mode="followup")
    model.rule = lambda prompt: text_reply("ok", after_s=60)
    first = await house.ask(MARIA, "envelope.send", to="agent:ada", text="first")
    waiting = [
        (await house.ask(MARIA, "envelope.send", to="agent:ada", text=text))["envelope"]
        for text in ("second", "third", "fourth")
    ]

    async def positions() -> list[int | None]:
        return [(await house.ask(MARIA, "envelope.show", id=id_)).get("position") for id_ in waiting]

    assert "position" not in await house.ask(MARIA, "envelope.show", id=first["envelope"])
    assert await positions() == [1, 2, 3]
    assert (await house.ask(MARIA, "envelope.cancel", id=waiting[1][:8]))["envelope"] == waiting[1]
    assert await positions() == [1, None, 2]
    assert (await house.house.wait_for_outcome(waiting[1])).outcome is Outcome.CANCELLED
    for again, code in ((waiting[1], "envelope.not_waiting"), (first["envelope"], "envelope.not_waiting")):
        with pytest.raises(Conflict) as refused:
            await house.ask(MARIA, "envelope.cancel", id=again)
        assert refused.value.code == code

    for sent in (first["envelope"], waiting[0], waiting[2]):
        await turn_the_clock_until_settled(house.house, sent, step_s=61.0)
    found = await house.ask(MARIA, "session.history", session=session)
    read = [record["body"]["text"] for record in found["records"] if record["kind"] == "user"]
    assert [word for text in read for word in ("first", "second", "third", "fourth") if word in text] == [
        "first",
        "second",
        "fourth",
    ]


async def test_only_who_sent_it_or_whose_session_it_is_takes_an_envelope_back(house: DeskHouse) -> None:
    session = await create(house)
    await house.ask(MARIA, "session.share", session=session, person="noor")
    later = {"to": "agent:ada", "text": "later", "session": session, "deliver_at": "+1h"}
    hers = (await house.ask(MARIA, "envelope.send", **later))["envelope"]
    noors = (await house.ask(NOOR, "envelope.send", **later))["envelope"]

    with pytest.raises(NotAllowed):
        await house.ask(NOOR, "envelope.cancel", id=hers)
    with pytest.raises(NotFound):
        await house.ask(GUS, "envelope.cancel", id=hers)
    await house.ask(MARIA, "envelope.cancel", id=noors)
    assert "cancelled by person:maria" in (await house.house.list_envelopes_to("noor"))[-1].text
    await house.ask(MARIA, "envelope.cancel", id=hers)
    assert await house.house.list_envelopes_to("maria") == []


@dataclass
class StallingModel:
    """Says some words, and then nothing for an hour."""

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
async def test_a_stop_keeps_what_was_said(tmp_path: Path, way: str) -> None:
    words = "The garden lies behind the house, and in it"
    household = LocalInstance(tmp_path, agents=[Agent(name="ada", model="stalling")])
    household.models = [StallingModel(household.clock, words)]
    async with desk_house(household) as house:
        await _stop_in_the_middle(house, way, words)


async def _stop_in_the_middle(house: DeskHouse, way: str, words: str) -> None:
    sent = await house.ask(MARIA, "envelope.send", to="agent:ada", text="tell me")
    await house.house.wait_for(lambda conn: bool(house.house.events.partial_replies()), what="the model to begin")

    if way == "operation":
        await house.ask(MARIA, "session.stop", session=sent["session"])
    else:
        await house.ask(MARIA, "envelope.send", to="agent:ada", text="/stop")

    assert (await house.house.wait_for_outcome(sent["envelope"])).outcome is Outcome.CANCELLED
    found = await house.ask(MARIA, "session.history", session=sent["session"])
    said = next(record["body"] for record in found["records"] if record["kind"] == "assistant")
    assert (said["text"], said["stop"]) == (words, "cut-off")
    ended = [piece for piece in await told(house, MARIA, sent["session"]) if piece.kind == "run.ended"]
    assert [piece.body["status"] for piece in ended] == ["cancelled"]


@pytest.mark.spec("A20")
async def test_a_stop_closes_the_calls_that_were_open(tmp_path: Path) -> None:
    class Slow:
        spec = ToolSpec(name="slow", description="waits", parameters={"type": "object", "properties": {}})
        arguments = EmptyRequest
        begun = asyncio.Event()

        async def perform(self, arguments: Any, context: ToolContext) -> str:
            self.begun.set()
            await asyncio.Event().wait()
            return "never"

    tool = Slow()
    household = LocalInstance(tmp_path, tools=[tool])
    async with desk_house(household) as house:
        household.model.will_reply(ScriptedReply(text="Let me see.", calls=(("slow", {}),)))
        sent = await house.ask(MARIA, "envelope.send", to="agent:ada", text="look")
        await asyncio.wait_for(tool.begun.wait(), WAIT_LIMIT_S)
        await house.ask(MARIA, "session.stop", session=sent["session"])

        found = await house.ask(MARIA, "session.history", session=sent["session"])
        assert [record["kind"] for record in found["records"]] == ["start", "user", "assistant", "tool", "note"]
        result = found["records"][3]["body"]
        assert (result["failed"], result["output"].startswith("Interrupted:")) == (True, True)
