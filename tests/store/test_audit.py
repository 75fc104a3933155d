"""The audit: entries commit with the change they record, form one chain each, and every change to them is detected."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import fields
from operations.operations_instance import OperationsServer, agent, open_operations_server, person
from stores import INLINE, POSTGRES, SQLITE, StoreLocation, add_agents_and_people, create_store_location

from retinue.domain import audit as lines
from retinue.domain.audit import (
    BECAUSE_CHARS_MAX,
    SERVER_CHAIN,
    AuditAnchor,
    AuditEntry,
    AuditKind,
    AuditLink,
    call_allowed,
    call_ended,
    canonical_json,
    check_chains,
    hash_content,
    hash_link,
    hashed_fields,
)
from retinue.domain.errors import Invalid, NotAllowed
from retinue.domain.principal import SERVER_PRINCIPAL
from retinue.domain.session import Origin, OriginKind
from retinue.domain.structs import replace
from retinue.operations.audit import audit as asked
from retinue.operations.base import Operation, perform_operation
from retinue.store.agents import audit
from retinue.store.core.connection import Store
from retinue.store.core.transaction import Transaction
from retinue.store.sessions import sessions
from retinue.testing.local_instance import LocalInstance
from retinue.testing.wait_conditions import wait_until

SESSION, OTHER = "5e" * 16, "0f" * 16
RUN = "ab" * 16
EXAMPLES = Path(__file__).parents[2] / "examples"
OPERATIONS = {operation.name: operation for operation in asked.OPERATIONS}


# --- tampering ---


def chain_of(entries: list[AuditEntry], chain: str) -> list[AuditLink]:
    made: list[AuditLink] = []
    for entry in entries:
        before = made[-1].hash if made else ""
        link = AuditLink(
            chain,
            len(made) + 1,
            1_000 + len(made) // 2,
            entry.kind.value,
            entry.who,
            entry.agent,
            entry.run,
            entry.subject,
            entry.verdict,
            entry.because,
            entry.content,
            "",
        )
        made.append(replace(link, hash=hash_link(before, hashed_fields(link))))
    return made


words = st.text(max_size=12)
entries = st.builds(
    AuditEntry,
    kind=st.sampled_from([AuditKind.CALL_ALLOWED, AuditKind.CALL_ENDED, AuditKind.CALL_REFUSED]),
    who=words,
    agent=words,
    run=st.none() | words,
    subject=words,
    verdict=words,
    because=words,
    content=words,
)


@st.composite
def audit_chains(draw: st.DrawFn) -> tuple[list[AuditLink], list[AuditAnchor]]:
    """Chains of the server and of a session, both with several entries, and the anchors of their ends."""
    begun = AuditEntry(kind=AuditKind.CHAIN_BEGUN, who="server", subject=SESSION)
    server = chain_of([begun, *draw(st.lists(entries, min_size=1, max_size=6))], SERVER_CHAIN)
    session = chain_of(draw(st.lists(entries, min_size=2, max_size=8)), SESSION)
    anchors = [AuditAnchor(2_000, each[-1].chain, each[-1].position, each[-1].hash) for each in (server, session)]
    return [*server, *session], anchors


@given(audit_chains())
def test_unchanged_audit_chains_are_intact(made: tuple[list[AuditLink], list[AuditAnchor]]) -> None:
    assert check_chains(*made) == []


@given(audit_chains(), st.data())
def test_a_removed_audit_entry_is_detected(
    made: tuple[list[AuditLink], list[AuditAnchor]], data: st.DataObject
) -> None:
    links, anchors = made
    at = data.draw(st.integers(0, len(links) - 1))
    assert check_chains(links[:at] + links[at + 1 :], anchors)


@given(audit_chains(), st.data())
def test_two_swapped_audit_entries_are_detected(
    made: tuple[list[AuditLink], list[AuditAnchor]], data: st.DataObject
) -> None:
    """Each gets the position of the other, as a store would have it."""
    links, anchors = made
    one = data.draw(st.integers(0, len(links) - 1))
    two = data.draw(st.integers(0, len(links) - 1).filter(lambda n: n != one))
    if replace(links[one], chain="", position=0, hash="") == replace(links[two], chain="", position=0, hash=""):
        return  # equal entries cannot be told apart
    moved = list(links)
    moved[one] = replace(links[two], chain=links[one].chain, position=links[one].position)
    moved[two] = replace(links[one], chain=links[two].chain, position=links[two].position)
    assert check_chains(moved, anchors)


@given(audit_chains(), st.data())
def test_a_change_of_any_field_of_an_audit_entry_is_detected(
    made: tuple[list[AuditLink], list[AuditAnchor]], data: st.DataObject
) -> None:
    links, anchors = made
    at = data.draw(st.integers(0, len(links) - 1))
    name = data.draw(st.sampled_from([field.name for field in fields(AuditLink)]))
    old = getattr(links[at], name)
    new = old + 1 if isinstance(old, int) else data.draw(words.filter(lambda text: text != old))
    assert check_chains([*links[:at], replace(links[at], **{name: new}), *links[at + 1 :]], anchors)


@given(audit_chains(), st.data(), entries)
def test_a_rewritten_audit_chain_is_detected_by_its_anchor(
    made: tuple[list[AuditLink], list[AuditAnchor]], data: st.DataObject, other: AuditEntry
) -> None:
    links, anchors = made
    session = [link for link in links if link.chain == SESSION]
    at = data.draw(st.integers(0, len(session) - 1))
    told = [
        AuditEntry(
            kind=AuditKind(link.kind),
            who=link.who,
            agent=link.agent,
            run=link.run,
            subject=link.subject,
            verdict=link.verdict,
            because=link.because,
            content=link.content,
        )
        for link in session
    ]
    if told[at] == other:
        return
    forged = chain_of([*told[:at], other, *told[at + 1 :]], SESSION)
    rest = [link for link in links if link.chain != SESSION]
    assert check_chains([*rest, *forged]) == []  # consistent in itself: only the anchor shows the change
    assert check_chains([*rest, *forged], anchors)


@given(audit_chains())
def test_a_missing_audit_chain_is_detected_without_anchors(
    made: tuple[list[AuditLink], list[AuditAnchor]],
) -> None:
    flaws = check_chains([link for link in made[0] if link.chain != SESSION])
    assert [flaw.sentence for flaw in flaws] == ["the whole chain is missing"]
    assert check_chains([link for link in made[0] if link.chain == SESSION])  # nor is a session chain valid alone


def test_canonical_json_and_content_hashes_of_audit_entries_are_stable() -> None:
    assert canonical_json({"b": 1, "a": ["ü", None]}) == '{"a":["\\u00fc",null],"b":1}'
    assert hash_content("Grüße \ud800") == hash_content("Grüße \ud800")
    assert hash_content({"a": 1, "b": 2}) == hash_content({"b": 2, "a": 1})
    assert hash_content(["a"]) != hash_content(["b"])


# --- in a store ---


@pytest.fixture(params=[SQLITE, INLINE, POSTGRES])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> StoreLocation:
    return create_store_location(request.param, request, tmp_path)


def allowed_entry(tool: str = "read") -> AuditEntry:
    return call_allowed(tool, "0" * 32, agent="ada", run=RUN, because="nothing speaks against it")


def ended_entry(output: str = "words") -> AuditEntry:
    return call_ended("read", output, agent="ada", run=RUN, verdict="done")


def make_sessions(conn: sa.Connection) -> None:
    add_agents_and_people("ada")(conn)
    tx = Transaction(conn, 1)
    for id_, key in ((SESSION, "person:owner"), (OTHER, "person:maria")):
        sessions.start(tx, id_, agent="ada", origin=Origin(OriginKind.TERMINAL, key))  # type: ignore[arg-type]
    tx.close()


def append_entries(*entries: AuditEntry, chain: str = SESSION, now_ms: int = 1_000) -> Callable[[sa.Connection], None]:
    return partial(audit.append_in_transaction, entries=entries, now_ms=now_ms, chain=chain)


async def find_flaws(store: Store, **kw: Any) -> list[str]:
    found = await store.scan(partial(audit.verify, **kw))
    return [flaw.sentence for flaw in found.flaws]


async def execute_sql_statement(store: Store, statement: str, **parameters: Any) -> int:
    return await store.write(lambda conn: conn.execute(sa.text(statement), parameters).rowcount, point="test")


async def test_audit_entries_are_in_the_order_of_their_commits_and_intact(place: StoreLocation) -> None:
    async with place.open() as store:
        await store.write(append_entries(allowed_entry()), point="test")
        await store.write(append_entries(ended_entry(), allowed_entry("exec")), point="test")
        await store.write(append_entries(allowed_entry(), chain=OTHER), point="test")
        found = await store.scan(lambda conn: list(audit.iterate_entries(conn)))
        assert [(link.chain, link.position, link.kind) for link in found if link.chain == SESSION] == [
            (SESSION, 1, "call-allowed"),
            (SESSION, 2, "call-ended"),
            (SESSION, 3, "call-allowed"),
        ]
        assert [link.subject for link in found if link.chain == SERVER_CHAIN] == [SESSION, OTHER]
        checked = await store.scan(audit.verify)
        assert checked.is_intact and (checked.lines, checked.chains) == (6, 3)


async def test_an_audit_entry_is_rolled_back_with_its_transaction(place: StoreLocation) -> None:
    async with place.open() as store:

        def fails(conn: sa.Connection) -> None:
            append_entries(allowed_entry())(conn)
            raise Invalid("no", because="a test says so")

        with pytest.raises(Invalid):
            await store.write(fails, point="test")
        assert await store.scan(lambda conn: list(audit.iterate_entries(conn))) == []
        await store.write(append_entries(allowed_entry()), point="test")
        assert await find_flaws(store) == []


async def test_concurrent_writers_make_one_audit_chain(place: StoreLocation) -> None:
    async with place.open() as store:
        await asyncio.gather(
            *(store.write(append_entries(allowed_entry(), ended_entry()), point="test") for _ in range(25))
        )
        found = await store.scan(lambda conn: list(audit.iterate_entries(conn, SESSION)))
        assert [link.position for link in found] == list(range(1, 51))
        assert await find_flaws(store) == []


async def test_unstorable_and_overlong_texts_still_make_an_intact_audit_chain(place: StoreLocation) -> None:
    async with place.open() as store:
        bad = "\0\ud800Grüße 世界 🌍"
        entry = AuditEntry(
            kind=AuditKind.CALL_REFUSED, who=bad, agent=bad, subject=bad * 90, because=bad * 900, verdict=bad
        )
        await store.write(append_entries(entry, allowed_entry()), point="test")
        [first, _] = await store.scan(lambda conn: list(audit.iterate_entries(conn, SESSION)))
        assert len(first.because) == BECAUSE_CHARS_MAX
        assert await find_flaws(store) == []


TAMPERINGS = (
    (
        "UPDATE audit SET because = 'nobody asked' WHERE chain = :s AND position = 2",
        "it was changed after it was written",
    ),
    ("UPDATE audit SET verdict = 'deny' WHERE chain = :s AND position = 1", "it was changed after it was written"),
    ("UPDATE audit SET at_ms = at_ms + 1 WHERE chain = :s AND position = 2", "it was changed after it was written"),
    ("UPDATE audit SET content = 'x' WHERE chain = :s AND position = 4", "it was changed after it was written"),
    ("DELETE FROM audit WHERE chain = :s AND position = 2", "entries before it are missing: 1"),
    ("DELETE FROM audit WHERE chain = :s AND position = 1", "entries before it are missing: 1"),
    ("DELETE FROM audit WHERE chain = :s AND position = 4", "has a hash for this position, but the entry is missing"),
    ("DELETE FROM audit WHERE chain = :s AND position >= 3", "has a hash for this position, but the entry is missing"),
    ("DELETE FROM audit WHERE chain = :s", "the whole chain is missing"),
    ("UPDATE audit SET chain = :other WHERE chain = :s", "the whole chain is missing"),
    ("UPDATE audit SET position = position + 10 WHERE chain = :s AND position = 4", "entries before it are missing"),
    ("DELETE FROM audit WHERE chain = '' AND kind = 'chain-begun'", "entries before it are missing"),
    ("DELETE FROM audit_anchors WHERE chain = :s", "the anchors stored with it have changed"),
    ("UPDATE audit_anchors SET position = 2 WHERE chain = :s", "an anchor has a different hash for this position"),
    ("DELETE FROM audit_anchors", "the anchors stored with it have changed"),
    ("DELETE FROM audit WHERE kind = 'anchored'", "no entry records the anchors"),
)


@pytest.mark.parametrize(("statement", "sentence"), TAMPERINGS)
async def test_audit_rows_changed_by_sql_are_detected(tmp_path: Path, statement: str, sentence: str) -> None:
    place = StoreLocation(INLINE, str(tmp_path / "retinue.db"))
    async with place.open() as store:
        await store.write(append_entries(allowed_entry(), ended_entry(), allowed_entry(), ended_entry()), point="test")
        await store.write(partial(audit.add_anchors, now_ms=2_000), point="test")
        assert await find_flaws(store) == []
        named = {name: value for name, value in (("s", SESSION), ("other", OTHER)) if f":{name}" in statement}
        assert await execute_sql_statement(store, statement, **named) > 0
        assert any(sentence in found for found in await find_flaws(store))


async def test_an_external_anchor_detects_a_completely_rewritten_audit(place: StoreLocation) -> None:
    async with place.open() as store:
        await store.write(append_entries(allowed_entry(), ended_entry()), point="test")
        kept = await store.write(partial(audit.add_anchors, now_ms=2_000), point="test")
        assert kept is not None
        assert await find_flaws(store, outside=[kept]) == []
        for table in ("audit", "audit_anchors"):
            await execute_sql_statement(store, f"DELETE FROM {table}")
        await store.write(append_entries(ended_entry()), point="test")
        await store.write(partial(audit.add_anchors, now_ms=3_000), point="test")
        assert await find_flaws(store) == []  # consistent in itself
        assert await find_flaws(store, outside=[kept]) == ["an anchor has a different hash for this position"]
        await execute_sql_statement(store, "DELETE FROM audit")
        assert lines.CHAIN_TRUNCATED in await find_flaws(store, outside=[kept])


async def test_anchors_are_added_only_for_audit_chains_with_new_entries(place: StoreLocation) -> None:
    async with place.open() as store:
        anchor = lambda now_ms: store.write(partial(audit.add_anchors, now_ms=now_ms), point="test")  # noqa: E731
        assert await anchor(1) is None
        await store.write(append_entries(allowed_entry(), now_ms=10), point="test")
        await store.write(append_entries(allowed_entry(), chain=OTHER, now_ms=10), point="test")
        assert await anchor(20) is not None
        assert await anchor(30) is None
        await store.write(append_entries(ended_entry(), now_ms=30), point="test")
        assert await anchor(30) is not None
        assert await anchor(30) is None
        found = await store.scan(audit.list_anchors)
        assert [(each.at_ms, each.chain, each.position) for each in found] == [
            (20, "", 3),
            (20, OTHER, 1),
            (20, SESSION, 1),
            (30, "", 4),
            (30, SESSION, 2),
        ]
        assert await find_flaws(store) == []


async def test_an_audit_entry_keeps_the_hash_of_a_text_and_not_the_text(place: StoreLocation) -> None:
    """An entry holds the hash of a text: a person who has the text can prove that it is the one."""
    text = "a secret of maria"
    async with place.open() as store:
        await store.write(make_sessions, point="test")
        await store.write(append_entries(ended_entry(text)), point="test")
        [line] = await store.scan(lambda conn: list(audit.iterate_entries(conn, SESSION)))
        assert text not in canonical_json(hashed_fields(line))
        assert line.content == hash_content(text) != hash_content("another")


# --- operations ---


@pytest.fixture
def instance(tmp_path: Path) -> LocalInstance:
    return LocalInstance(tmp_path)


async def perform(server: OperationsServer, who: Any, name: str, /, **parameters: Any) -> Any:
    operation: Operation = OPERATIONS[name]
    policy = {**server.services.permission_policy, name: operation.permission}
    services = replace(server.services, permission_policy=policy)
    return json.loads(await perform_operation(services, who, operation, json.dumps(parameters).encode()))


def load_verify_script() -> Any:
    spec = importlib.util.spec_from_file_location("verify_audit", EXAMPLES / "verify_audit.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


async def test_audit_list_returns_filtered_pages_newest_first(instance: LocalInstance) -> None:
    async with open_operations_server(instance) as server:
        await server.server.store.write(make_sessions, point="test")
        for number in range(5):
            entries = (allowed_entry(f"tool-{number}"), ended_entry())
            await server.server.store.write(append_entries(*entries, now_ms=1_000 + number), point="test")
        seen: list[str] = []
        cursor: str | None = ""
        while cursor is not None:
            page = await perform(server, person("owner"), "audit.list", limit=3, before=cursor)
            seen += [f"{row['session'][:4]}/{row['position']}" for row in page["entries"]]
            cursor = page["next"]
        assert len(seen) == len(set(seen)) == 11
        assert seen[0] == "5e5e/10"
        found = await perform(server, person("owner"), "audit.list", kind="call-allowed", session=SESSION, agent="ada")
        assert [row["subject"] for row in found["entries"]] == [f"tool-{n}" for n in (4, 3, 2, 1, 0)]
        assert (await perform(server, person("owner"), "audit.list", agent="bo"))["entries"] == []
        by_whom = {row["principal"] for row in found["entries"]}
        assert len(by_whom) == 1
        same = await perform(server, person("owner"), "audit.list", kind="call-allowed", principal=by_whom.pop())
        assert same["entries"] == found["entries"]
        assert (await perform(server, person("owner"), "audit.list", principal="person:nobody"))["entries"] == []
        late = await perform(
            server, person("owner"), "audit.list", kind="call-allowed", since="1970-01-01T00:00:01.003Z"
        )
        assert [row["subject"] for row in late["entries"]] == ["tool-4", "tool-3"]
        for wrong in ({"before": "x"}, {"before": "server-1"}, {"limit": 0}, {"since": "some day"}):
            with pytest.raises(Invalid):
                await perform(server, person("owner"), "audit.list", **wrong)


async def test_audit_entries_of_invisible_sessions_are_not_listed(instance: LocalInstance) -> None:
    async with open_operations_server(instance) as server:
        await server.server.store.write(make_sessions, point="test")
        await server.server.store.write(append_entries(allowed_entry("hers"), chain=OTHER), point="test")
        await server.server.store.write(append_entries(allowed_entry("his")), point="test")
        subjects = lambda found: {row["subject"] for row in found["entries"]}  # noqa: E731
        assert {"hers", "his", SESSION} <= subjects(await perform(server, person("owner"), "audit.list"))
        assert subjects(await perform(server, person("maria"), "audit.list")) == {"hers"}
        assert subjects(await perform(server, agent("bo"), "audit.list")) == set()
        for name in ("audit.verify", "audit.export"):
            with pytest.raises(NotAllowed):
                await perform(server, person("maria"), name)


async def test_audit_verify_reports_flaws_with_session_and_position(instance: LocalInstance) -> None:
    async with open_operations_server(instance) as server:
        await server.server.store.write(make_sessions, point="test")
        await server.server.store.write(append_entries(allowed_entry(), ended_entry()), point="test")
        good = await perform(server, person("owner"), "audit.verify")
        assert good["ok"] and good["checked"] == 3
        await server.server.execute_sql("UPDATE audit SET because = 'x' WHERE position = 2")
        bad = await perform(server, person("owner"), "audit.verify", session=SESSION[:8])
        assert not bad["ok"]
        assert bad["flaws"][0] == {
            "session": SESSION,
            "position": 2,
            "sentence": "it was changed after it was written, or the entry before it was",
        }
        for chain in ("server", "house"):  # the second is the name that earlier versions printed
            assert (await perform(server, person("owner"), "audit.verify", session=chain))["ok"]
        with pytest.raises(Invalid):
            await perform(server, person("owner"), "audit.verify", anchor=["server:1"])


async def test_an_audit_export_can_be_verified_by_the_standalone_example_script(
    instance: LocalInstance, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = load_verify_script()
    async with open_operations_server(instance) as server:
        await server.server.store.write(make_sessions, point="test")
        await server.server.store.write(
            append_entries(allowed_entry("Grüße"), ended_entry(), allowed_entry()), point="test"
        )
        await server.server.store.write(append_entries(ended_entry(), chain=OTHER), point="test")
        made = await asked.anchor_audit(server.services)
        assert made is not None
        whole = (await perform(server, person("owner"), "audit.export"))["lines"]
        for one in ("server", SESSION):
            assert (
                list(script.flaws_in((await perform(server, person("owner"), "audit.export", session=one))["lines"]))
                == []
            )
        parts: list[str] = []
        cursor: str | None = ""
        while cursor is not None:
            part = await perform(server, person("owner"), "audit.export", limit=2, after=cursor)
            parts += part["lines"]
            cursor = part["next"]
    assert sorted(line for line in parts if not line.startswith('{"cut"')) == sorted(whole)
    assert list(script.flaws_in(whole)) == list(script.flaws_in(parts)) == []
    file = tmp_path / "audit.jsonl"
    file.write_text("\n".join(whole))
    kept = f"server:{made.position}:{made.hash}"
    assert script.main(file, kept) == 0
    assert "the audit log is intact" in capsys.readouterr().out
    for number in range(1, len(whole)):
        assert list(script.flaws_in(whole[:number] + whole[number + 1 :], [("", made.position, made.hash)]))
    for number, line in enumerate(whole):
        if '"position"' in line and '"anchor"' not in line:
            changed = json.loads(line) | {"who": "nobody"}
            assert list(script.flaws_in([*whole[:number], json.dumps(changed), *whole[number + 1 :]]))
    file.write_text("\n".join(whole[:-5]))
    assert script.main(file, kept) == 1


async def test_an_audit_anchor_is_stored_and_logged_every_hour(instance: LocalInstance, tmp_path: Path) -> None:
    from retinue.app.logs import set_up_logs

    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    try:
        set_up_logs(None, data_dir=tmp_path)
        async with open_operations_server(instance) as server:
            await server.server.store.write(make_sessions, point="test")
            task = asyncio.create_task(asked.anchor_hourly(server.services))
            await asyncio.sleep(0)
            now_ms = int(instance.clock.now().timestamp() * 1000)
            await server.server.store.write(append_entries(allowed_entry(), now_ms=now_ms), point="test")
            await instance.clock.advance(asked.ANCHOR_EVERY_S)
            await server.server.wait_for(lambda conn: audit.list_anchors(conn) or None, what="an anchor")
            await wait_until(lambda: asked.anchors_in_log(tmp_path / "logs"), "the anchor is logged after its commit")
            task.cancel()
            found = await asyncio.to_thread(asked.anchors_in_log, tmp_path / "logs")
            stored = await server.server.store.scan(audit.list_anchors)
            assert [(each.chain, each.position, each.hash) for each in found] == [
                (each.chain, each.position, each.hash) for each in stored if each.chain == SERVER_CHAIN
            ]
            assert (await perform(server, person("owner"), "audit.verify", log=True))["ok"]
            for table in ("audit", "audit_anchors"):
                await server.server.execute_sql(f"DELETE FROM {table}")
            assert (await perform(server, person("owner"), "audit.verify"))["ok"]  # nothing is left that shows it
            assert not (await perform(server, person("owner"), "audit.verify", log=True))["ok"]
    finally:
        for handler in root.handlers:
            if handler not in handlers:
                handler.close()
        root.handlers[:] = handlers
        root.setLevel(level)


def test_only_complete_log_lines_are_read_as_audit_anchors(tmp_path: Path) -> None:
    forged = f'2026-11-15T09:00:00+0000 info "audit anchored" anchor=server:1:{"0" * 64}'
    (tmp_path / "retinue.log").write_text(f'2026-11-15T09:00:00+0000 info "x"\n    {forged}\nx {forged}\n')
    assert asked.anchors_in_log(tmp_path) == []
    (tmp_path / "retinue.log").write_text(forged + "\n")
    assert len(asked.anchors_in_log(tmp_path)) == 1


def test_every_audit_kind_has_an_entry_constructor() -> None:
    assert SERVER_PRINCIPAL.sees_everything
    made = [
        call_allowed("read", "0" * 32, agent="ada", run=RUN),
        call_ended("read", "words", agent="ada", run=RUN, verdict="done"),
        lines.call_refused("exec", "Not allowed.", agent="ada", run=RUN, because="the agent's own rules"),
        lines.approval_asked("a" * 32, [{"tool": "exec"}], agent="ada", run=RUN),
        lines.approval_decided("a" * 32, by="person:owner", agent="ada", run=RUN, state="allowed", scope="once"),
        lines.approval_expired("a" * 32, agent="ada", run=RUN),
        lines.approval_refused("a" * 32, by="person:bo", agent="ada", run=RUN, because="they may not decide"),
        lines.grant_given("web", by="person:owner", agent="ada", grant="b" * 32),
        lines.grant_revoked("web", by="person:owner", agent="ada", grant="b" * 32),
        *(
            lines.operation_performed(kind, "agent.set", by="person:owner", agent="ada")
            for kind in (
                AuditKind.SETTINGS_CHANGED,
                AuditKind.AGENT_CHANGED,
                AuditKind.PERSON_CHANGED,
                AuditKind.TOKEN_MADE,
                AuditKind.TOKEN_REVOKED,
                AuditKind.CREDENTIAL_CHANGED,
                AuditKind.PURGED,
                AuditKind.FORGOTTEN,
                AuditKind.SKILL_APPROVED,
                AuditKind.MCP_APPROVED,
                AuditKind.SANDBOX_OFF,
            )
        ),
    ]
    assert {entry.kind for entry in made} == set(AuditKind) - {AuditKind.CHAIN_BEGUN, AuditKind.ANCHORED}
    assert all(entry.who and entry.subject and entry.verdict for entry in made)
    assert lines.operation_performed(AuditKind.AGENT_CHANGED, "config.apply", by="server").agent == ""
