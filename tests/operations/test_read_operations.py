"""What a page looks at: runs, one run act by act, questions, lanes, the log, and the marks in a list of sessions."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from operations.operations_instance import DeskHouse, agent, desk_house, person

from retinue.domain.agent import Agent, PermissionLevel, ToolRules
from retinue.domain.errors import Invalid, NotAllowed, NotFound
from retinue.engine.lanes import SlotLimits
from retinue.operations.server import log_reader
from retinue.store.core.keyset_pagination import KeysetPosition
from retinue.store.runs import approval_list, run_list
from retinue.testing.local_instance import LocalInstance
from retinue.testing.scripted_model import text_reply, tool_call_reply

OWNER, MARIA, NOOR, GUS = person("owner"), person("maria"), person("noor"), person("gus")
STAFF = (Agent(name="ada", model="scripted", concurrency=4),)
ASKS = ToolRules(ask=("append_line",))
ANY, START = run_list.RunQuery(), KeysetPosition()


@pytest.fixture(params=["sqlite", "postgres"])
async def house(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[DeskHouse]:
    url = request.getfixturevalue("postgres_url") if request.param == "postgres" else None
    async with desk_house(LocalInstance(tmp_path, url=url, agents=STAFF)) as made:
        yield made


@pytest.fixture
async def one(tmp_path: Path) -> AsyncIterator[DeskHouse]:
    async with desk_house(LocalInstance(tmp_path, agents=STAFF)) as made:
        yield made


async def a_morning(house: DeskHouse) -> dict[str, str]:
    """Five runs, a minute apart: of two people with two agents, one of them in vain. The sessions by who has them."""
    sessions: dict[str, str] = {}
    model = house.house.instance.model
    for who, to in ((MARIA, "ada"), (NOOR, "ada"), (MARIA, "bo"), (NOOR, "bo"), (MARIA, "ada")):
        if (who, to) == (NOOR, "bo"):
            model.will_reply(text_reply("", fails="no answer"))
        _, sessions[f"{who.address.name}/{to}"] = await house.converse(who, f"hello {to}", to=f"agent:{to}")
        house.house.instance.clock.jump(timedelta(minutes=1))
    return sessions


async def listed(house: DeskHouse, who: Any = OWNER, **asked: Any) -> list[str]:
    """Who was heard by whom, newest first, over as many pages as there are."""
    found: list[str] = []
    cursor = ""
    for _ in range(20):
        page = await house.ask(who, "run.list", cursor=cursor, **asked)
        found += [f"{run['person']}/{run['agent']}" for run in page["runs"]]
        cursor = page["next"]
        if cursor is None:
            return found
    raise AssertionError("it never ends")


ALL = ["maria/ada", "noor/bo", "maria/bo", "noor/ada", "maria/ada"]


# --- runs ---


async def test_runs_are_listed_newest_first_and_page_by_page_none_is_lost_or_doubled(house: DeskHouse) -> None:
    await a_morning(house)
    for limit in (1, 2, 5, 100):
        assert await listed(house, limit=limit) == ALL


async def test_runs_that_began_in_the_same_moment_are_told_apart(house: DeskHouse) -> None:
    for _ in range(4):
        await house.converse(MARIA, "at once")
    first = (await house.ask(OWNER, "run.list"))["runs"]
    ids = [run["id"] for run in first]
    paged: list[str] = []
    cursor = ""
    while cursor is not None:
        page = await house.ask(OWNER, "run.list", limit=1, cursor=cursor)
        paged += [run["id"] for run in page["runs"]]
        cursor = page["next"]
    assert paged == ids and len(set(ids)) == 4


async def test_runs_are_found_by_agent_session_person_sender_status_model_and_time(house: DeskHouse) -> None:
    sessions = await a_morning(house)
    assert await listed(house, agent="BO") == ["noor/bo", "maria/bo"]
    assert await listed(house, session=sessions["maria/ada"]) == ["maria/ada", "maria/ada"]
    assert await listed(house, person="noor") == ["noor/bo", "noor/ada"]
    assert await listed(house, sender="person:maria") == ["maria/ada", "maria/bo", "maria/ada"]
    assert await listed(house, status="failed") == ["noor/bo"]
    assert await listed(house, model="scripted") == ALL
    assert await listed(house, model="another") == []
    assert await listed(house, since="-3m") == ALL[:3]
    assert await listed(house, until="-3m") == ALL[2:]  # both ends belong to it


async def test_a_filter_that_fits_little_looks_at_a_bounded_number_and_goes_on(
    house: DeskHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    await a_morning(house)
    monkeypatch.setattr(run_list, "RUNS_SCANNED_MAX", 1)
    page = await house.ask(OWNER, "run.list", person="noor", limit=1, agent="ada")
    assert (len(page["runs"]), page["next"] is not None) == (1, True)
    assert await listed(house, status="failed", limit=1) == ["noor/bo"]
    assert await listed(house, person="noor", limit=1) == ["noor/bo", "noor/ada"]


async def test_nobody_sees_runs_of_sessions_they_do_not_see(house: DeskHouse) -> None:
    sessions = await a_morning(house)
    assert await listed(house, NOOR) == ["noor/bo", "noor/ada"]
    assert await listed(house, NOOR, person="maria") == []
    assert await listed(house, agent("bo")) == ["noor/bo", "maria/bo"]
    assert await listed(house, GUS) == []
    with pytest.raises(NotFound):
        await house.ask(NOOR, "run.list", session=sessions["maria/ada"])
    hers = (await house.ask(OWNER, "run.list", person="maria"))["runs"][0]["id"]
    with pytest.raises(NotFound):
        await house.ask(NOOR, "run.trace", id=hers)


async def test_a_run_says_what_it_took(house: DeskHouse) -> None:
    await a_morning(house)
    failed = (await house.ask(OWNER, "run.list", status="failed"))["runs"][0]
    assert (failed["status"], failed["run-status"], failed["turns"]) == ("error", "failed", 1)
    assert failed["error"]
    done = (await house.ask(OWNER, "run.list"))["runs"][0]
    assert (done["status"], done["turns"], done["tool-calls"], done["models"]) == ("ok", 1, 0, ["scripted"])
    assert (done["usage"]["input_tokens"], done["usage"]["output_tokens"]) == (10, 5)
    assert done["duration-ms"] == 0  # by the clock that we turn


@pytest.mark.parametrize(
    "asked",
    [
        {"limit": 0},
        {"limit": 101},
        {"cursor": "x"},
        {"cursor": "1.zz"},
        {"since": "+1h", "until": "-1h"},
        {"agent": "/"},
    ],
)
async def test_what_is_no_list_of_runs_is_refused(one: DeskHouse, asked: dict[str, Any]) -> None:
    with pytest.raises(Invalid):
        await one.ask(OWNER, "run.list", **asked)


# --- one run ---


def acts(trace: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    return [act for act in trace["acts"] if act["act"] == kind]


async def traced(house: DeskHouse, envelope: str) -> dict[str, Any]:
    for run in (await house.ask(OWNER, "run.list"))["runs"]:
        if envelope in run["envelopes"]:
            return await house.ask(OWNER, "run.trace", id=run["id"])
    raise AssertionError("no run has read it")


async def test_a_run_is_told_act_by_act(house: DeskHouse) -> None:
    long = "x" * 5_000
    house.house.instance.model.will_reply(
        tool_call_reply("append_line", text=long), tool_call_reply("no_such_tool", a=1), text_reply("done " * 1_000)
    )
    envelope, _ = await house.converse(OWNER, "write it down")
    trace = await traced(house, envelope)
    assert [act["act"] for act in trace["acts"]] == [
        *("envelope-read", "model", "tool", "model", "tool", "model", "envelope-sent")
    ]
    first, second, third = acts(trace, "model")
    assert [act["turn"] for act in (first, second, third)] == [0, 1, 2]
    assert all(act["came"] == "done" and act["usage"]["input_tokens"] == 10 for act in (first, second, third))
    assert third["text-chars"] == 5_000 and len(third["text"]) < 2_100
    written, unknown = acts(trace, "tool")
    assert (written["tool"], written["came"], written["verdict"]) == ("append_line", "done", "allow")
    assert written["because"]
    assert written["arguments"]["text"].startswith("xxx") and "[cut: 3,000 more" in written["arguments"]["text"]
    assert first["calls"] == [written["call"]]
    assert (unknown["came"], unknown["verdict"], unknown["arguments"]) == ("refused", "deny", {"a": 1})
    assert "no_such_tool" in unknown["output"]
    assert (trace["run"]["turns"], trace["run"]["tool-calls"], trace["left-out"]) == (3, 1, 0)


async def test_a_model_that_failed_is_an_act_of_its_own(house: DeskHouse) -> None:
    house.house.instance.model.will_reply(text_reply("", fails="no answer"))
    envelope, _ = await house.converse(OWNER, "hello")
    trace = await traced(house, envelope)
    failed = [act for act in acts(trace, "model") if act["came"] == "failed"]
    assert failed and failed[0]["failure"] and failed[0]["error"]
    assert trace["run"]["error"]


# --- questions ---


@pytest.fixture(params=["sqlite", "postgres"])
async def asking(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[DeskHouse]:
    url = request.getfixturevalue("postgres_url") if request.param == "postgres" else None
    staff = (Agent(name="ada", model="scripted", concurrency=4, approval_wait_s=1e6, tools=ASKS),)
    async with desk_house(LocalInstance(tmp_path, url=url, agents=staff)) as made:
        yield made


async def asked(house: DeskHouse, who: Any = MARIA, text: str = "a line") -> dict[str, Any]:
    """A run that rests over a question; the question as its asker sees it."""
    house.house.instance.model.will_reply(tool_call_reply("append_line", text=text))
    known = {each["id"] for each in (await house.ask(OWNER, "approval.list"))["approvals"]}
    await house.ask(who, "envelope.send", to="agent:ada", text="write it", conversation=text)
    await house.house.wait_for(lambda conn: bool(_open(conn) - known), what="a question")
    await house.house.wait_until_idle()
    return next(each for each in (await house.ask(OWNER, "approval.list"))["approvals"] if each["id"] not in known)


def _open(conn: Any) -> set[str]:
    return {each.id for each in approval_list.list_page(conn, past=False, after=START, limit=50)[0]}


async def test_a_question_says_all_that_a_card_shows(asking: DeskHouse) -> None:
    shown = await asked(asking)
    [waiting] = (await asking.ask(MARIA, "house.state"))["approvals"]
    [own] = (await asking.ask(MARIA, "approval.list"))["approvals"]
    assert own == waiting
    assert shown["calls"][0]["tool"] == "append_line" and shown["calls"][0]["arguments"] == {"text": "a line"}
    assert (shown["agent"], shown["state"], shown["asked-of"]) == ("ada", "open", ["person:maria"])
    run = (await asking.ask(OWNER, "run.list"))["runs"][0]
    assert (shown["run"], shown["session"]) == (run["id"], run["session"])
    assert (run["run-status"], run["waits-until"] is not None) == ("parked", True)
    assert shown["because"]
    assert shown["scopes"] == ["once", "session", "always"]
    assert own["scopes"] == ["once", "session"]  # only the owner grants for good
    assert (await asking.ask(NOOR, "approval.list"))["approvals"] == []


async def test_what_became_of_questions_is_listed_newest_first(asking: DeskHouse) -> None:
    first = await asked(asking, text="one")
    asking.house.instance.clock.jump(timedelta(minutes=1))
    second = await asked(asking, text="two")
    asking.house.instance.model.will_reply("thanks", "very well")
    await asking.ask(MARIA, "approval.answer", id=first["id"], allow=True, scope="session")
    await asking.ask(OWNER, "approval.answer", id=second["id"], allow=False, because="not today")
    await asking.house.wait_until_idle()
    assert (await asking.ask(OWNER, "approval.list"))["approvals"] == []
    past = await asking.ask(OWNER, "approval.list", past=True)
    assert [each["id"] for each in past["approvals"]] == [second["id"], first["id"]]
    denied, allowed = past["approvals"]
    assert (denied["state"], denied["decided-by"], denied["words"]) == ("denied", "owner", "not today")
    assert (allowed["state"], allowed["scope"], allowed["decided-by"]) == ("allowed", "session", "maria")
    assert denied["decided-at"] and denied["scopes"] == []
    page = await asking.ask(OWNER, "approval.list", past=True, limit=1)
    rest = await asking.ask(OWNER, "approval.list", past=True, limit=1, cursor=page["next"])
    assert [page["approvals"][0]["id"], rest["approvals"][0]["id"]] == [second["id"], first["id"]]
    assert len((await asking.ask(MARIA, "approval.list", past=True))["approvals"]) == 2
    assert (await asking.ask(NOOR, "approval.list", past=True))["approvals"] == []


async def test_the_trace_of_a_run_that_rested_tells_of_the_question(asking: DeskHouse) -> None:
    question = await asked(asking)
    trace = await asking.ask(OWNER, "run.trace", id=question["run"])
    [put] = acts(trace, "approval")
    [rested] = acts(trace, "parked")
    assert (put["approval"], put["state"], put["asked-of"]) == (question["id"], "open", ["person:maria"])
    assert rested["approval"] == question["id"] and rested["because"] == question["because"]
    asking.house.instance.model.will_reply("done")
    await asking.ask(MARIA, "approval.answer", id=question["id"], allow=True)
    await asking.house.wait_until_idle()
    trace = await asking.ask(OWNER, "run.trace", id=question["run"])
    [resumed] = acts(trace, "resumed")
    [written] = acts(trace, "tool")
    assert resumed["because"] == "a decision"
    assert (written["approval"], written["came"]) == (question["id"], "done")
    assert acts(trace, "approval")[0]["decided-by"] == "maria"


# --- lanes ---


async def test_what_waits_says_why(asking: DeskHouse) -> None:
    question = await asked(asking)
    await asking.ask(MARIA, "envelope.send", to="agent:ada", text="Later, please.", deliver_at="+2h", conversation="x")
    shown = await asking.ask(OWNER, "house.lanes")
    rests, later = shown["lanes"]
    assert (rests["run"]["status"], rests["run"]["approval"]) == ("parked", question["id"])
    assert rests["run"]["because"] == question["because"] and rests["run"]["until"]
    [letter] = later["waiting"]
    assert (letter["waits"], letter["position"], letter["words"]) == ("not-due", None, "Later, please")
    assert [lane["agent"] for lane in (await asking.ask(MARIA, "house.lanes"))["lanes"]] == ["ada", "ada"]
    assert (await asking.ask(NOOR, "house.lanes"))["lanes"] == []
    few = await asking.ask(OWNER, "house.lanes", limit=1)
    assert (len(few["lanes"]), few["left-out"]) == (1, 1)


async def test_mail_behind_a_run_at_work_is_busy_and_other_lanes_wait_for_a_slot(tmp_path: Path) -> None:
    household = LocalInstance(tmp_path, agents=STAFF, slots=SlotLimits(main=1))
    async with desk_house(household) as house:
        household.model.will_reply(text_reply("at last", after_s=3600))
        await house.ask(MARIA, "envelope.send", to="agent:ada", text="one", conversation="a")
        await house.house.wait_for(
            lambda conn: bool(run_list.list_page(conn, ANY, after=START, limit=1)[0]), what="a run"
        )
        await house.ask(MARIA, "envelope.send", to="agent:ada", text="two", conversation="a")
        await house.ask(NOOR, "envelope.send", to="agent:ada", text="three", conversation="b")
        shown = await house.ask(OWNER, "house.lanes")
        works, waits = shown["lanes"]
        assert (works["run"]["status"], works["run"]["doing"], works["run"]["turn"]) == ("running", "model", 0)
        assert [(each["waits"], each["position"]) for each in works["waiting"]] == [("busy", 1)]
        assert [(each["waits"], each["position"]) for each in waits["waiting"]] == [("slots", 1)]
        assert shown["slots"][0] == {"lane": "main", "used": 1, "total": 1, "in-line": 1}
        assert shown["rooms"] == [] and shown["dead-count"] == 0
        [own] = (await house.ask(MARIA, "session.list"))["sessions"]
        assert own["runStatus"] == "running" and own["run"] == works["run"]["id"]


async def test_mail_for_a_room_waits_in_the_open_for_the_owner_alone(house: DeskHouse) -> None:
    await house.house.send(
        "hello room", sender="person:owner", recipient="channel:nowhere:42", deliver_at=_in_an_hour(house)
    )
    [room] = (await house.ask(OWNER, "house.lanes"))["rooms"]
    assert (room["channel"], room["waiting-count"], room["attempts"]) == ("channel:nowhere:42", 1, 0)
    assert (await house.ask(MARIA, "house.lanes"))["rooms"] == []


def _in_an_hour(house: DeskHouse) -> Any:
    return house.desk.clock.now() + timedelta(hours=1)


# --- the marks of a list ---


async def test_mail_from_a_session_is_unread_until_its_reader_says_so(house: DeskHouse) -> None:
    _, session = await house.converse(MARIA, "hello")
    await house.converse(MARIA, "and again")
    await house.converse(MARIA, "another", conversation="other")

    async def unread(who: Any = MARIA) -> dict[str, int]:
        return {each["sessionId"]: each["unread"] for each in (await house.ask(who, "house.state"))["sessions"]}

    assert (await unread())[session] == 2 and sum((await unread()).values()) == 3
    assert sum((await unread(OWNER)).values()) == 0  # they see the sessions, and nothing in them is their mail
    with pytest.raises(NotFound):
        await house.ask(NOOR, "session.read", session=session)
    done = await house.ask(MARIA, "session.read", session=session)
    assert done == {"session": session, "read": 2, "unread": 1}
    assert (await unread())[session] == 0 and sum((await unread()).values()) == 1
    assert (await house.ask(MARIA, "session.read", session=session))["read"] == 0
    assert (await house.ask(OWNER, "session.read", session=session))["read"] == 0
    with pytest.raises(Invalid):
        await house.ask(agent("ada"), "session.read", session=session)


# --- the log ---


def log(house: DeskHouse, name: str, *lines: str) -> None:
    folder = house.desk.data_dir / "logs"
    folder.mkdir(exist_ok=True)
    (folder / name).write_text("".join(f"{line}\n" for line in lines))


OLD = ('2026-11-14T09:00:00+0000 info "house opened"', '2026-11-14T09:00:01+0000 warning "turned away" code=x')
NEW = (
    *('2026-11-15T09:00:00+0000 debug "looked"', '2026-11-15T09:00:01+0000 error "run broke" run=ab12'),
    *("    Traceback", "    KeyError: Maria", '2026-11-15T09:00:02+0000 info "run finished" run=cd34'),
)


async def told(house: DeskHouse, **asked: Any) -> list[str]:
    found: list[str] = []
    cursor = ""
    while cursor is not None:
        page = await house.ask(OWNER, "house.logs", cursor=cursor, **asked)
        found += [line["text"] for line in page["entries"]]
        cursor = page["next"]
    return found


async def test_the_log_is_read_backwards_through_files_that_were_put_away(one: DeskHouse) -> None:
    log(one, "retinue.log.1", *OLD)
    log(one, "retinue.log", *NEW)
    whole = [
        *('"run finished" run=cd34', '"run broke" run=ab12\n    Traceback\n    KeyError: Maria', '"looked"'),
        *('"turned away" code=x', '"house opened"'),
    ]
    for limit in (1, 2, 3, 100):
        assert await told(one, limit=limit) == whole
    assert await told(one, level="warning") == [whole[1], whole[3]]
    assert await told(one, text="MARIA") == [whole[1]]
    assert await told(one, text="nowhere") == []


async def test_a_log_that_was_put_away_in_between_is_read_on_where_one_was(one: DeskHouse) -> None:
    log(one, "retinue.log", *NEW)
    page = await one.ask(OWNER, "house.logs", limit=1)
    (one.desk.data_dir / "logs" / "retinue.log").rename(one.desk.data_dir / "logs" / "retinue.log.1")
    log(one, "retinue.log", '2026-11-16T09:00:00+0000 info "new"')
    rest = await one.ask(OWNER, "house.logs", limit=1, cursor=page["next"])
    assert rest["entries"][0]["text"].startswith('"run broke"')
    (one.desk.data_dir / "logs" / "retinue.log.1").unlink()
    assert await one.ask(OWNER, "house.logs", cursor=rest["next"]) == {"entries": [], "next": None}


async def test_lines_longer_than_what_is_read_at_once_are_whole(
    one: DeskHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    log(one, "retinue.log", *OLD, *NEW)
    expected = await told(one)
    for size in (1, 7, 64):
        monkeypatch.setattr(log_reader, "CHUNK_BYTES", size)
        assert await told(one) == expected


async def test_the_log_is_for_the_privileged_and_no_link_leads_out_of_it(one: DeskHouse) -> None:
    secret = one.desk.data_dir / "secret"
    secret.write_text("a secret\n")
    (one.desk.data_dir / "logs").mkdir()
    (one.desk.data_dir / "logs" / "retinue.log").symlink_to(secret)
    assert await told(one) == []
    with pytest.raises(NotAllowed):
        await one.ask(MARIA, "house.logs")
    with pytest.raises(NotAllowed):
        await one.ask(agent("ada", PermissionLevel.STANDARD), "house.logs")
    for limit in (0, 501):
        with pytest.raises(Invalid):
            await one.ask(OWNER, "house.logs", limit=limit)
    for cursor in ("1", "-1.2", "9" * 30 + ".1"):
        with pytest.raises(Invalid):
            await one.ask(OWNER, "house.logs", cursor=cursor)
    assert (await one.ask(OWNER, "house.logs", cursor="1." + "9" * 20))["entries"] == []
