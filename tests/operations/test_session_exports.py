from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from operations.operations_instance import OperationsServer, agent, open_operations_server, person

from retinue.agents import daycare_format
from retinue.domain.errors import Invalid, NotAllowed, NotFound
from retinue.domain.ids import SessionId
from retinue.domain.session import Origin, OriginKind, QueueOverride, Session, SessionActivity
from retinue.domain.times import from_ms
from retinue.testing.local_instance import LocalInstance
from retinue.testing.scripted_model import tool_call_reply

OWNER, MARIA, NOOR = (person(name) for name in ("owner", "maria", "noor"))
AT_MS = 1_700_000_000_000
DESCRIPTORS: list[dict[str, Any]] = [
    {"type": "user", "connector": "telegram", "userId": "7", "channelId": "42"},
    {"type": "cron", "id": "tz4a98xxat96iws9zmbrgj3a"},
    {"type": "heartbeat"},
    {"type": "subagent", "id": "a", "parentAgentId": "b", "name": "digger"},
]
TOKENS = {
    "provider": "anthropic",
    "model": "big",
    "size": {"input": 5, "output": 7, "cacheRead": 1, "cacheWrite": 2, "total": 15},
}
TOOL_MESSAGE = {
    "role": "toolResult",
    "toolCallId": "c1",
    "toolName": "read",
    "content": [{"type": "text", "text": "mud"}],
    "isError": False,
    "timestamp": AT_MS,
}
HISTORY_LINES: list[dict[str, Any]] = [
    {"type": "start", "at": AT_MS},
    {"type": "user_message", "at": AT_MS + 1, "text": "Where is it?", "files": []},
    {
        "type": "assistant_message",
        "at": AT_MS + 2,
        "text": "Let me look.",
        "files": [],
        "toolCalls": [{"type": "toolCall", "id": "c1", "name": "read", "arguments": {"path": "SOUL.md", "line": 3}}],
        "tokens": TOKENS,
    },
    {"type": "tool_result", "at": AT_MS + 3, "toolCallId": "c1", "output": {"toolMessage": TOOL_MESSAGE, "files": []}},
    {"type": "assistant_message", "at": AT_MS + 4, "text": "In the möd.", "files": [], "toolCalls": [], "tokens": None},
    {"type": "note", "at": AT_MS + 5, "text": "it rained"},
    {"type": "reset", "at": AT_MS + 6, "message": "afresh"},
    {"type": "user_message", "at": AT_MS + 7, "text": "And now?", "files": [{"name": "a.png"}]},
]


def state(**kw: Any) -> str:
    made = {"permissions": {"workingDir": "/w", "writeDirs": [], "readDirs": [], "web": True}, "tokens": None}
    return json.dumps(made | {"stats": {"x": 1}, "createdAt": AT_MS, "updatedAt": AT_MS + 7, "state": "sleeping"} | kw)


def files(*, descriptor: str = '{"type":"heartbeat"}', history: str | None = None, **kw: Any) -> dict[str, str]:
    if history is None:
        history = "".join(json.dumps(line, ensure_ascii=False, separators=(",", ":")) + "\n" for line in HISTORY_LINES)
    return {"descriptor.json": descriptor, "state.json": state(**kw), "history.jsonl": history}


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[OperationsServer]:
    async with open_operations_server(LocalInstance(tmp_path)) as made:
        yield made


async def import_session(server: OperationsServer, given_files: dict[str, str]) -> str:
    return (await server.ask(MARIA, "session.import", agent="ada", files=given_files))["sessionId"]


async def export_session(server: OperationsServer, session: str) -> dict[str, str]:
    return (await server.ask(MARIA, "session.export", session=session))["files"]


@pytest.mark.spec("D74")
@pytest.mark.parametrize("descriptor", DESCRIPTORS, ids=lambda d: d["type"])
async def test_an_imported_session_is_exported_byte_for_byte(
    server: OperationsServer, descriptor: dict[str, Any]
) -> None:
    for indent in (None, 2):
        given_files = files(descriptor=json.dumps(descriptor, indent=indent))
        session = await import_session(server, given_files)

        assert await export_session(server, session) == given_files


@pytest.mark.spec("D74")
async def test_an_exported_session_can_be_imported_and_exported_unchanged(server: OperationsServer) -> None:
    instance = server.server.instance
    instance.model.rule = None
    instance.model.will_reply(tool_call_reply("append_line", text="hello"), "done")
    _, session = await server.converse(MARIA, "do it", conversation="work")
    await server.ask(MARIA, "session.reset", session=session, message="afresh")
    await server.ask(MARIA, "session.attributes", session=session, patch={"core": {"workingDir": "/srv"}})

    first = await export_session(server, session)
    again = await export_session(server, await import_session(server, first))

    assert again == first
    assert json.loads(first["descriptor.json"]) == {
        "type": "user",
        "connector": "terminal",
        "userId": "maria",
        "channelId": "work",
    }
    exported_state = json.loads(first["state.json"])
    assert exported_state["permissions"]["workingDir"] == "/srv"
    assert {"provider", "model", "createdAt", "updatedAt"} <= set(exported_state)
    kinds = [json.loads(line)["type"] for line in first["history.jsonl"].splitlines()]
    assert kinds == ["start", "user_message", "assistant_message", "tool_result", "assistant_message", "reset"]


@pytest.mark.spec("D74")
@pytest.mark.parametrize(
    ("origin", "form"),
    [
        (Origin(OriginKind.CHAT, "channel:quiet:a:b/c"), ("user", "quiet", "a:b/c", "a:b/c")),
        (Origin(OriginKind.TERMINAL, "person:maria"), ("user", "terminal", "maria", "maria")),
        (Origin(OriginKind.WEB, "person:maria/x"), ("user", "web", "maria", "x")),
        (Origin(OriginKind.AGENT, "agent:bo/1"), ("user", "agent", "bo", "1")),
        (Origin(OriginKind.EXTERNAL, "laptop"), ("user", "external", "laptop", "laptop")),
        (Origin(OriginKind.SCHEDULE, "schedule:12"), ("cron", "12")),
        (Origin(OriginKind.HEARTBEAT, "x"), ("heartbeat",)),
        (Origin(OriginKind.SUBAGENT, "dig", SessionId("p")), ("subagent", "s", "p", "dig")),
    ],
)
def test_every_session_origin_is_exported_as_one_of_four_descriptor_types(
    origin: Origin, form: tuple[str, ...]
) -> None:
    session = Session(
        id=SessionId("s"),
        agent="ada",
        origin=origin,
        name="",
        activity=SessionActivity.SLEEPING,
        queue=QueueOverride(),
        epoch=0,
        record_seq=1,
        context_start_seq=1,
        revision=0,
        created_at=from_ms(AT_MS),
        updated_at=from_ms(AT_MS),
        snippet="",
    )
    made = json.loads(daycare_format._encode_pretty(daycare_format.build_descriptor(session)))  # pyright: ignore[reportPrivateUsage]
    assert tuple(made.values()) == form


async def test_an_imported_session_belongs_to_the_caller_and_can_be_continued(server: OperationsServer) -> None:
    given_files = files()
    session = await import_session(server, given_files)
    [listed] = (await server.ask(MARIA, "session.list"))["sessions"]
    assert (listed["sessionId"], listed["lastSnippet"]) == (session, "And now?")
    with pytest.raises(NotFound):
        await server.ask(NOOR, "session.export", session=session)

    await server.converse(MARIA, "go on", session=session)

    prompt = str(server.server.instance.model.prompts[-1])
    assert "And now?" in prompt and "Where is it?" not in prompt  # the context begins at the last marker
    after = await export_session(server, session)
    assert after["descriptor.json"] == given_files["descriptor.json"]
    assert after["history.jsonl"].startswith(given_files["history.jsonl"])
    assert len(after["history.jsonl"].splitlines()) == len(HISTORY_LINES) + 2
    assert json.loads(after["state.json"])["updatedAt"] > AT_MS + 7
    assert json.loads(after["state.json"])["stats"] == {"x": 1}


async def test_an_imported_session_without_a_start_line_is_exported_without_a_start_line(
    server: OperationsServer,
) -> None:
    for history in ("", json.dumps(HISTORY_LINES[1]) + "\n", json.dumps(HISTORY_LINES[0])):
        given_files = files(history=history)
        assert await export_session(server, await import_session(server, given_files)) == given_files


@pytest.mark.parametrize(
    ("wrong", "where"),
    [
        ({"descriptor": '{"type":"permanent","id":"x"}'}, "descriptor.json"),
        ({"descriptor": '{"type":"heartbeat","extra":1}'}, "descriptor.json"),
        ({"descriptor": '{"type":"user","connector":"x","userId":"y"}'}, "descriptor.json"),
        ({"descriptor": "nonsense"}, "descriptor.json"),
        ({"createdAt": "yesterday"}, "state.json"),
        ({"updatedAt": -1}, "state.json"),
        ({"history": '{"type":"start","at":1}\n{"type":"start"'}, "line 2 of history.jsonl"),
        ({"history": '{"type":"sing","at":1}\n'}, "line 1 of history.jsonl"),
        ({"history": '{"type":"start","at":1}\n\n'}, "line 2 of history.jsonl"),
        ({"history": '{"type":"start","at":99999999999999999}\n'}, "line 1 of history.jsonl"),
    ],
)
async def test_an_invalid_session_import_is_refused_with_file_and_line(
    server: OperationsServer, wrong: dict[str, Any], where: str
) -> None:
    with pytest.raises(Invalid) as refused:
        await import_session(server, files(**wrong))
    assert (refused.value.code, where in refused.value.sentence) == ("import.unreadable", True)
    assert (await server.ask(MARIA, "session.list"))["sessions"] == []


async def test_a_session_import_needs_exactly_three_files_and_permission(server: OperationsServer) -> None:
    given_files = files()
    del given_files["state.json"]
    for wrong in (given_files, files() | {"../../etc/passwd": "x"}, {}):
        with pytest.raises(Invalid):
            await import_session(server, wrong)
    with pytest.raises(NotAllowed):
        await server.ask(agent("bo"), "session.import", agent="ada", files=files())


TEXTS = st.text(st.characters(exclude_categories=("Cs",)), max_size=20)
TIMES = st.integers(0, daycare_format.TIME_MS_MAX)
JSON_VALUES = st.recursive(st.none() | st.booleans() | st.integers(-9, 9) | TEXTS, lambda v: st.dictionaries(TEXTS, v))
HISTORY_LINE_LISTS = st.lists(
    st.one_of(
        st.fixed_dictionaries({"type": st.just("start"), "at": TIMES}),
        st.fixed_dictionaries({"type": st.just("reset"), "at": TIMES}, optional={"message": TEXTS}),
        st.fixed_dictionaries(
            {"type": st.just("user_message"), "at": TIMES, "text": TEXTS}, optional={"more": JSON_VALUES}
        ),
        st.fixed_dictionaries({"type": st.just("note"), "text": TEXTS, "at": TIMES}),
    ),
    max_size=6,
)


@pytest.mark.spec("D74")
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(lines=HISTORY_LINE_LISTS, ascii_only=st.booleans(), spaced=st.booleans(), ended=st.booleans())
async def test_any_json_formatting_of_the_lines_of_an_imported_session_is_exported_unchanged(
    server: OperationsServer, lines: list[dict[str, Any]], ascii_only: bool, spaced: bool, ended: bool
) -> None:
    separators = (", ", ": ") if spaced else (",", ":")
    history = "\n".join(json.dumps(line, ensure_ascii=ascii_only, separators=separators) for line in lines)
    given_files = files(history=history + ("\n" if ended and history else ""))

    assert await export_session(server, await import_session(server, given_files)) == given_files
