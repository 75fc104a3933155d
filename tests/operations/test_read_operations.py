"""Operations that the web app reads: runs, run traces, approvals, lanes, logs and unread counts."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from operations.operations_instance import OperationsServer, agent, open_operations_server, person

from retinue.domain.agent import Agent, PermissionLevel, ToolRules
from retinue.domain.errors import Invalid, NotAllowed, NotFound
from retinue.engine.lanes import SlotLimits
from retinue.operations.server import log_reader
from retinue.store.core.keyset_pagination import KeysetPosition
from retinue.store.runs import approvals, runs
from retinue.testing.local_instance import LocalInstance
from retinue.testing.scripted_model import text_reply, tool_call_reply

OWNER, MARIA, NOOR, GUS = person("owner"), person("maria"), person("noor"), person("gus")
STAFF = (Agent(name="ada", model="scripted", concurrency=4),)
ASK_RULES = ToolRules(ask=("append_line",))
ANY, START = runs.RunQuery(), KeysetPosition()


@pytest.fixture(params=["sqlite", "postgres"])
async def server(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[OperationsServer]:
    url = request.getfixturevalue("postgres_url") if request.param == "postgres" else None
    async with open_operations_server(LocalInstance(tmp_path, url=url, agents=STAFF)) as made:
        yield made


@pytest.fixture
async def sqlite_instance(tmp_path: Path) -> AsyncIterator[OperationsServer]:
    async with open_operations_server(LocalInstance(tmp_path, agents=STAFF)) as made:
        yield made


async def make_five_runs(server: OperationsServer) -> dict[str, str]:
    """Make five runs, a minute apart, of two people with two agents. One fails. Returns the sessions by owner."""
    sessions: dict[str, str] = {}
    model = server.server.instance.model
    for who, to in ((MARIA, "ada"), (NOOR, "ada"), (MARIA, "bo"), (NOOR, "bo"), (MARIA, "ada")):
        if (who, to) == (NOOR, "bo"):
            model.will_reply(text_reply("", fails="no answer"))
        _, sessions[f"{who.address.name}/{to}"] = await server.converse(who, f"hello {to}", to=f"agent:{to}")
        server.server.instance.clock.jump(timedelta(minutes=1))
    return sessions


async def list_runs(server: OperationsServer, who: Any = OWNER, **asked: Any) -> list[str]:
    """Return person and agent of each run, newest first, from all pages."""
    found: list[str] = []
    cursor = ""
    for _ in range(20):
        page = await server.ask(who, "run.list", cursor=cursor, **asked)
        found += [f"{run['person']}/{run['agent']}" for run in page["runs"]]
        cursor = page["next"]
        if cursor is None:
            return found
    raise AssertionError("it never ends")


ALL = ["maria/ada", "noor/bo", "maria/bo", "noor/ada", "maria/ada"]


# --- runs ---


async def test_run_list_pages_are_newest_first_without_gaps_or_duplicates(server: OperationsServer) -> None:
    await make_five_runs(server)
    for limit in (1, 2, 5, 100):
        assert await list_runs(server, limit=limit) == ALL


async def test_run_list_pages_separate_runs_that_started_at_the_same_time(server: OperationsServer) -> None:
    for _ in range(4):
        await server.converse(MARIA, "at once")
    first = (await server.ask(OWNER, "run.list"))["runs"]
    ids = [run["id"] for run in first]
    paged: list[str] = []
    cursor = ""
    while cursor is not None:
        page = await server.ask(OWNER, "run.list", limit=1, cursor=cursor)
        paged += [run["id"] for run in page["runs"]]
        cursor = page["next"]
    assert paged == ids and len(set(ids)) == 4


async def test_run_list_filters_by_agent_session_person_sender_status_model_and_time(server: OperationsServer) -> None:
    sessions = await make_five_runs(server)
    assert await list_runs(server, agent="BO") == ["noor/bo", "maria/bo"]
    assert await list_runs(server, session=sessions["maria/ada"]) == ["maria/ada", "maria/ada"]
    assert await list_runs(server, person="noor") == ["noor/bo", "noor/ada"]
    assert await list_runs(server, sender="person:maria") == ["maria/ada", "maria/bo", "maria/ada"]
    assert await list_runs(server, status="failed") == ["noor/bo"]
    assert await list_runs(server, model="scripted") == ALL
    assert await list_runs(server, model="another") == []
    assert await list_runs(server, since="-3m") == ALL[:3]
    assert await list_runs(server, until="-3m") == ALL[2:]  # the range includes both ends


async def test_run_list_with_a_rare_filter_scans_a_limited_number_of_runs_per_page(
    server: OperationsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    await make_five_runs(server)
    monkeypatch.setattr(runs, "RUNS_SCANNED_MAX", 1)
    page = await server.ask(OWNER, "run.list", person="noor", limit=1, agent="ada")
    assert (len(page["runs"]), page["next"] is not None) == (1, True)
    assert await list_runs(server, status="failed", limit=1) == ["noor/bo"]
    assert await list_runs(server, person="noor", limit=1) == ["noor/bo", "noor/ada"]


async def test_runs_of_sessions_the_caller_cannot_see_are_not_listed_or_found(server: OperationsServer) -> None:
    sessions = await make_five_runs(server)
    assert await list_runs(server, NOOR) == ["noor/bo", "noor/ada"]
    assert await list_runs(server, NOOR, person="maria") == []
    assert await list_runs(server, agent("bo")) == ["noor/bo", "maria/bo"]
    assert await list_runs(server, GUS) == []
    with pytest.raises(NotFound):
        await server.ask(NOOR, "run.list", session=sessions["maria/ada"])
    hers = (await server.ask(OWNER, "run.list", person="maria"))["runs"][0]["id"]
    with pytest.raises(NotFound):
        await server.ask(NOOR, "run.trace", id=hers)


async def test_run_list_shows_status_turns_tool_calls_models_usage_and_duration(server: OperationsServer) -> None:
    await make_five_runs(server)
    failed = (await server.ask(OWNER, "run.list", status="failed"))["runs"][0]
    assert (failed["status"], failed["run_status"], failed["turns"]) == ("error", "failed", 1)
    assert failed["error"]
    done = (await server.ask(OWNER, "run.list"))["runs"][0]
    assert (done["status"], done["turns"], done["tool_calls"], done["models"]) == ("ok", 1, 0, ["scripted"])
    assert (done["usage"]["input_tokens"], done["usage"]["output_tokens"]) == (10, 5)
    assert done["duration_ms"] == 0  # the test's clock does not move during a run


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
async def test_invalid_run_list_parameters_are_refused(
    sqlite_instance: OperationsServer, asked: dict[str, Any]
) -> None:
    with pytest.raises(Invalid):
        await sqlite_instance.ask(OWNER, "run.list", **asked)


# --- one run ---


def acts_of_kind(trace: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    return [act for act in trace["entries"] if act["type"] == kind]


async def trace_of_envelope(server: OperationsServer, envelope: str) -> dict[str, Any]:
    for run in (await server.ask(OWNER, "run.list"))["runs"]:
        if envelope in run["envelopes"]:
            return await server.ask(OWNER, "run.trace", id=run["id"])
    raise AssertionError("no run has read it")


async def test_run_trace_lists_envelopes_model_calls_and_tool_calls_in_order(server: OperationsServer) -> None:
    long = "x" * 5_000
    server.server.instance.model.will_reply(
        tool_call_reply("append_line", text=long), tool_call_reply("no_such_tool", a=1), text_reply("done " * 1_000)
    )
    envelope, _ = await server.converse(OWNER, "write it down")
    trace = await trace_of_envelope(server, envelope)
    assert [act["type"] for act in trace["entries"]] == [
        *("envelope_read", "model", "tool", "model", "tool", "model", "envelope_sent")
    ]
    first, second, third = acts_of_kind(trace, "model")
    assert [act["turn"] for act in (first, second, third)] == [0, 1, 2]
    assert all(act["status"] == "done" and act["usage"]["input_tokens"] == 10 for act in (first, second, third))
    assert third["text_chars"] == 5_000 and len(third["text"]) < 2_100
    written, unknown = acts_of_kind(trace, "tool")
    assert (written["tool"], written["status"], written["decision"]) == ("append_line", "done", "allow")
    assert written["because"]
    assert written["arguments"]["text"].startswith("xxx") and "[cut: 3,000 more" in written["arguments"]["text"]
    assert first["calls"] == [written["call"]]
    assert (unknown["status"], unknown["decision"], unknown["arguments"]) == ("refused", "deny", {"a": 1})
    assert "no_such_tool" in unknown["output"]
    assert (trace["run"]["turns"], trace["run"]["tool_calls"], trace["omitted_count"]) == (3, 1, 0)


async def test_run_trace_shows_a_failed_model_call_with_its_error(server: OperationsServer) -> None:
    server.server.instance.model.will_reply(text_reply("", fails="no answer"))
    envelope, _ = await server.converse(OWNER, "hello")
    trace = await trace_of_envelope(server, envelope)
    failed = [act for act in acts_of_kind(trace, "model") if act["status"] == "failed"]
    assert failed and failed[0]["failure"] and failed[0]["error"]
    assert trace["run"]["error"]


# --- approvals ---


@pytest.fixture(params=["sqlite", "postgres"])
async def instance_with_approvals(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[OperationsServer]:
    url = request.getfixturevalue("postgres_url") if request.param == "postgres" else None
    staff = (Agent(name="ada", model="scripted", concurrency=4, approval_wait_s=1e6, tools=ASK_RULES),)
    async with open_operations_server(LocalInstance(tmp_path, url=url, agents=staff)) as made:
        yield made


async def asked(server: OperationsServer, who: Any = MARIA, text: str = "a line") -> dict[str, Any]:
    """Start a run that waits for an approval. Returns the approval as its asker sees it."""
    server.server.instance.model.will_reply(tool_call_reply("append_line", text=text))
    known = {each["id"] for each in (await server.ask(OWNER, "approval.list"))["approvals"]}
    await server.ask(who, "envelope.send", to="agent:ada", text="write it", conversation=text)
    await server.server.wait_for(lambda conn: bool(_open_approval_ids(conn) - known), what="a question")
    await server.server.wait_until_idle()
    return next(each for each in (await server.ask(OWNER, "approval.list"))["approvals"] if each["id"] not in known)


def _open_approval_ids(conn: Any) -> set[str]:
    return {each.id for each in approvals.list_page(conn, past=False, after=START, limit=50)[0]}


async def test_an_open_approval_shows_its_calls_run_session_reason_and_scopes(
    instance_with_approvals: OperationsServer,
) -> None:
    shown = await asked(instance_with_approvals)
    [waiting] = (await instance_with_approvals.ask(MARIA, "server.initial_state"))["approvals"]
    [own] = (await instance_with_approvals.ask(MARIA, "approval.list"))["approvals"]
    assert own == waiting
    assert shown["calls"][0]["tool"] == "append_line" and shown["calls"][0]["arguments"] == {"text": "a line"}
    assert (shown["agent"], shown["state"], shown["recipients"]) == ("ada", "open", ["person:maria"])
    run = (await instance_with_approvals.ask(OWNER, "run.list"))["runs"][0]
    assert (shown["run"], shown["session"]) == (run["id"], run["session"])
    assert (run["run_status"], run["resumes_at"] is not None) == ("suspended", True)
    assert shown["because"]
    assert shown["scopes"] == ["once", "session", "always"]
    assert own["scopes"] == ["once", "session"]  # only the owner can grant for good
    assert (await instance_with_approvals.ask(NOOR, "approval.list"))["approvals"] == []


async def test_decided_approvals_are_listed_newest_first_with_their_decisions(
    instance_with_approvals: OperationsServer,
) -> None:
    first = await asked(instance_with_approvals, text="one")
    instance_with_approvals.server.instance.clock.jump(timedelta(minutes=1))
    second = await asked(instance_with_approvals, text="two")
    instance_with_approvals.server.instance.model.will_reply("thanks", "very well")
    await instance_with_approvals.ask(MARIA, "approval.answer", id=first["id"], allow=True, scope="session")
    await instance_with_approvals.ask(OWNER, "approval.answer", id=second["id"], allow=False, because="not today")
    await instance_with_approvals.server.wait_until_idle()
    assert (await instance_with_approvals.ask(OWNER, "approval.list"))["approvals"] == []
    past = await instance_with_approvals.ask(OWNER, "approval.list", decided=True)
    assert [each["id"] for each in past["approvals"]] == [second["id"], first["id"]]
    denied, allowed = past["approvals"]
    assert (denied["state"], denied["decided_by"], denied["comment"]) == ("denied", "owner", "not today")
    assert (allowed["state"], allowed["scope"], allowed["decided_by"]) == ("allowed", "session", "maria")
    assert denied["decided_at"] and denied["scopes"] == []
    page = await instance_with_approvals.ask(OWNER, "approval.list", decided=True, limit=1)
    rest = await instance_with_approvals.ask(OWNER, "approval.list", decided=True, limit=1, cursor=page["next"])
    assert [page["approvals"][0]["id"], rest["approvals"][0]["id"]] == [second["id"], first["id"]]
    assert len((await instance_with_approvals.ask(MARIA, "approval.list", decided=True))["approvals"]) == 2
    assert (await instance_with_approvals.ask(NOOR, "approval.list", decided=True))["approvals"] == []


async def test_run_trace_shows_the_approval_and_the_suspension_of_a_run(
    instance_with_approvals: OperationsServer,
) -> None:
    question = await asked(instance_with_approvals)
    trace = await instance_with_approvals.ask(OWNER, "run.trace", id=question["run"])
    [put] = acts_of_kind(trace, "approval")
    [rested] = acts_of_kind(trace, "suspended")
    assert (put["approval"], put["state"], put["recipients"]) == (question["id"], "open", ["person:maria"])
    assert rested["approval"] == question["id"] and rested["because"] == question["because"]
    instance_with_approvals.server.instance.model.will_reply("done")
    await instance_with_approvals.ask(MARIA, "approval.answer", id=question["id"], allow=True)
    await instance_with_approvals.server.wait_until_idle()
    trace = await instance_with_approvals.ask(OWNER, "run.trace", id=question["run"])
    [resumed] = acts_of_kind(trace, "resumed")
    [written] = acts_of_kind(trace, "tool")
    assert resumed["because"] == "a decision"
    assert (written["approval"], written["status"]) == (question["id"], "done")
    assert acts_of_kind(trace, "approval")[0]["decided_by"] == "maria"


# --- lanes ---


async def test_server_lanes_shows_why_each_run_and_envelope_waits(instance_with_approvals: OperationsServer) -> None:
    question = await asked(instance_with_approvals)
    await instance_with_approvals.ask(
        MARIA, "envelope.send", to="agent:ada", text="Later, please.", deliver_at="+2h", conversation="x"
    )
    shown = await instance_with_approvals.ask(OWNER, "server.lanes")
    rests, later = shown["lanes"]
    assert (rests["run"]["status"], rests["run"]["approval"]) == ("suspended", question["id"])
    assert rests["run"]["because"] == question["because"] and rests["run"]["resumes_at"]
    [envelope] = later["waiting"]
    assert (envelope["wait_reason"], envelope["position"], envelope["excerpt"]) == ("not_due", None, "Later, please")
    assert [lane["agent"] for lane in (await instance_with_approvals.ask(MARIA, "server.lanes"))["lanes"]] == [
        "ada",
        "ada",
    ]
    assert (await instance_with_approvals.ask(NOOR, "server.lanes"))["lanes"] == []
    few = await instance_with_approvals.ask(OWNER, "server.lanes", limit=1)
    assert (len(few["lanes"]), few["omitted_count"]) == (1, 1)


async def test_server_lanes_distinguishes_waiting_for_a_busy_session_from_waiting_for_a_slot(tmp_path: Path) -> None:
    instance = LocalInstance(tmp_path, agents=STAFF, slots=SlotLimits(main=1))
    async with open_operations_server(instance) as server:
        instance.model.will_reply(text_reply("at last", after_s=3600))
        await server.ask(MARIA, "envelope.send", to="agent:ada", text="one", conversation="a")
        await server.server.wait_for(
            lambda conn: bool(runs.list_page(conn, ANY, after=START, limit=1)[0]), what="a run"
        )
        await server.ask(MARIA, "envelope.send", to="agent:ada", text="two", conversation="a")
        await server.ask(NOOR, "envelope.send", to="agent:ada", text="three", conversation="b")
        shown = await server.ask(OWNER, "server.lanes")
        works, waits = shown["lanes"]
        assert (works["run"]["status"], works["run"]["step"], works["run"]["turn"]) == ("running", "model", 0)
        assert [(each["wait_reason"], each["position"]) for each in works["waiting"]] == [("busy", 1)]
        assert [(each["wait_reason"], each["position"]) for each in waits["waiting"]] == [("slots", 1)]
        assert shown["slots"][0] == {"lane": "main", "used": 1, "total": 1, "waiting_count": 1}
        assert shown["channels"] == [] and shown["dead_count"] == 0
        [own] = (await server.ask(MARIA, "session.list"))["sessions"]
        assert own["runStatus"] == "running" and own["run"] == works["run"]["id"]


async def test_server_lanes_shows_envelopes_waiting_for_a_channel_to_the_owner_only(server: OperationsServer) -> None:
    await server.server.send(
        "hello room", sender="person:owner", recipient="channel:nowhere:42", deliver_at=_in_an_hour(server)
    )
    [room] = (await server.ask(OWNER, "server.lanes"))["channels"]
    assert (room["channel"], room["waiting_count"], room["attempts"]) == ("channel:nowhere:42", 1, 0)
    assert (await server.ask(MARIA, "server.lanes"))["channels"] == []


def _in_an_hour(server: OperationsServer) -> Any:
    return server.services.clock.now() + timedelta(hours=1)


# --- unread counts ---


async def test_envelopes_from_a_session_are_unread_until_its_person_marks_them_read(server: OperationsServer) -> None:
    _, session = await server.converse(MARIA, "hello")
    await server.converse(MARIA, "and again")
    await server.converse(MARIA, "another", conversation="other")

    async def unread(who: Any = MARIA) -> dict[str, int]:
        return {
            each["sessionId"]: each["unread"] for each in (await server.ask(who, "server.initial_state"))["sessions"]
        }

    assert (await unread())[session] == 2 and sum((await unread()).values()) == 3
    assert sum((await unread(OWNER)).values()) == 0  # they see the sessions, but no message in them is for them
    with pytest.raises(NotFound):
        await server.ask(NOOR, "session.mark_read", session=session)
    done = await server.ask(MARIA, "session.mark_read", session=session)
    assert done == {"session": session, "read": 2, "unread": 1}
    assert (await unread())[session] == 0 and sum((await unread()).values()) == 1
    assert (await server.ask(MARIA, "session.mark_read", session=session))["read"] == 0
    assert (await server.ask(OWNER, "session.mark_read", session=session))["read"] == 0
    with pytest.raises(Invalid):
        await server.ask(agent("ada"), "session.mark_read", session=session)


# --- logs ---


def write_log(server: OperationsServer, name: str, *lines: str) -> None:
    folder = server.services.data_dir / "logs"
    folder.mkdir(exist_ok=True)
    (folder / name).write_text("".join(f"{line}\n" for line in lines))


OLD_LOG_LINES = (
    '2026-11-14T09:00:00+0000 info "server started"',
    '2026-11-14T09:00:01+0000 warning "request refused" code=x',
)
NEW_LOG_LINES = (
    *('2026-11-15T09:00:00+0000 debug "looked"', '2026-11-15T09:00:01+0000 error "run broke" run=ab12'),
    *("    Traceback", "    KeyError: Maria", '2026-11-15T09:00:02+0000 info "run finished" run=cd34'),
)


async def read_log(server: OperationsServer, **asked: Any) -> list[str]:
    found: list[str] = []
    cursor = ""
    while cursor is not None:
        page = await server.ask(OWNER, "server.logs", cursor=cursor, **asked)
        found += [line["text"] for line in page["entries"]]
        cursor = page["next"]
    return found


async def test_server_logs_reads_backwards_through_rotated_files(sqlite_instance: OperationsServer) -> None:
    write_log(sqlite_instance, "retinue.log.1", *OLD_LOG_LINES)
    write_log(sqlite_instance, "retinue.log", *NEW_LOG_LINES)
    whole = [
        *('"run finished" run=cd34', '"run broke" run=ab12\n    Traceback\n    KeyError: Maria', '"looked"'),
        *('"request refused" code=x', '"server started"'),
    ]
    for limit in (1, 2, 3, 100):
        assert await read_log(sqlite_instance, limit=limit) == whole
    assert await read_log(sqlite_instance, level="warning") == [whole[1], whole[3]]
    assert await read_log(sqlite_instance, text="MARIA") == [whole[1]]
    assert await read_log(sqlite_instance, text="nowhere") == []


async def test_server_logs_continues_at_its_cursor_after_a_log_rotation(sqlite_instance: OperationsServer) -> None:
    write_log(sqlite_instance, "retinue.log", *NEW_LOG_LINES)
    page = await sqlite_instance.ask(OWNER, "server.logs", limit=1)
    (sqlite_instance.services.data_dir / "logs" / "retinue.log").rename(
        sqlite_instance.services.data_dir / "logs" / "retinue.log.1"
    )
    write_log(sqlite_instance, "retinue.log", '2026-11-16T09:00:00+0000 info "new"')
    rest = await sqlite_instance.ask(OWNER, "server.logs", limit=1, cursor=page["next"])
    assert rest["entries"][0]["text"].startswith('"run broke"')
    (sqlite_instance.services.data_dir / "logs" / "retinue.log.1").unlink()
    assert await sqlite_instance.ask(OWNER, "server.logs", cursor=rest["next"]) == {"entries": [], "next": None}


async def test_server_logs_returns_entries_longer_than_a_read_chunk_complete(
    sqlite_instance: OperationsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_log(sqlite_instance, "retinue.log", *OLD_LOG_LINES, *NEW_LOG_LINES)
    expected = await read_log(sqlite_instance)
    for size in (1, 7, 64):
        monkeypatch.setattr(log_reader, "CHUNK_BYTES", size)
        assert await read_log(sqlite_instance) == expected


async def test_server_logs_needs_privileged_level_and_does_not_follow_links(sqlite_instance: OperationsServer) -> None:
    secret = sqlite_instance.services.data_dir / "secret"
    secret.write_text("a secret\n")
    (sqlite_instance.services.data_dir / "logs").mkdir()
    (sqlite_instance.services.data_dir / "logs" / "retinue.log").symlink_to(secret)
    assert await read_log(sqlite_instance) == []
    with pytest.raises(NotAllowed):
        await sqlite_instance.ask(MARIA, "server.logs")
    with pytest.raises(NotAllowed):
        await sqlite_instance.ask(agent("ada", PermissionLevel.STANDARD), "server.logs")
    for limit in (0, 501):
        with pytest.raises(Invalid):
            await sqlite_instance.ask(OWNER, "server.logs", limit=limit)
    for cursor in ("1", "-1.2", "9" * 30 + ".1"):
        with pytest.raises(Invalid):
            await sqlite_instance.ask(OWNER, "server.logs", cursor=cursor)
    assert (await sqlite_instance.ask(OWNER, "server.logs", cursor="1." + "9" * 20))["entries"] == []
