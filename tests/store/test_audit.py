"""The audit: lines commit with what they tell of, stand in one chain each, and no change to them goes unseen."""

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
from operations.operations_instance import DeskHouse, agent, desk_house, person
from stores import INLINE, POSTGRES, SQLITE, Place, place_of, settle_in

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

SESSION, OTHER = "5e" * 16, "0f" * 16
RUN = "ab" * 16
EXAMPLES = Path(__file__).parents[2] / "examples"
OPERATIONS = {operation.name: operation for operation in asked.OPERATIONS}


# --- what no change escapes ---


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
def written(draw: st.DrawFn) -> tuple[list[AuditLink], list[AuditAnchor]]:
    """A house's chain that knows of a session's, both with several lines, and the anchors of their ends."""
    begun = AuditEntry(kind=AuditKind.CHAIN_BEGUN, who="house", subject=SESSION)
    house = chain_of([begun, *draw(st.lists(entries, min_size=1, max_size=6))], SERVER_CHAIN)
    session = chain_of(draw(st.lists(entries, min_size=2, max_size=8)), SESSION)
    anchors = [AuditAnchor(2_000, each[-1].chain, each[-1].position, each[-1].hash) for each in (house, session)]
    return [*house, *session], anchors


@given(written())
def test_what_was_not_touched_holds(made: tuple[list[AuditLink], list[AuditAnchor]]) -> None:
    assert check_chains(*made) == []


@given(written(), st.data())
def test_any_line_that_was_dropped_is_missed(
    made: tuple[list[AuditLink], list[AuditAnchor]], data: st.DataObject
) -> None:
    links, anchors = made
    at = data.draw(st.integers(0, len(links) - 1))
    assert check_chains(links[:at] + links[at + 1 :], anchors)


@given(written(), st.data())
def test_any_two_lines_that_changed_places_are_seen(
    made: tuple[list[AuditLink], list[AuditAnchor]], data: st.DataObject
) -> None:
    """As a store would have it: each gets the other's place."""
    links, anchors = made
    one = data.draw(st.integers(0, len(links) - 1))
    two = data.draw(st.integers(0, len(links) - 1).filter(lambda n: n != one))
    if replace(links[one], chain="", position=0, hash="") == replace(links[two], chain="", position=0, hash=""):
        return  # of two lines that say the same in every word, nobody can say which is which
    moved = list(links)
    moved[one] = replace(links[two], chain=links[one].chain, position=links[one].position)
    moved[two] = replace(links[one], chain=links[two].chain, position=links[two].position)
    assert check_chains(moved, anchors)


@given(written(), st.data())
def test_any_word_that_was_changed_is_seen(
    made: tuple[list[AuditLink], list[AuditAnchor]], data: st.DataObject
) -> None:
    links, anchors = made
    at = data.draw(st.integers(0, len(links) - 1))
    name = data.draw(st.sampled_from([field.name for field in fields(AuditLink)]))
    old = getattr(links[at], name)
    new = old + 1 if isinstance(old, int) else data.draw(words.filter(lambda text: text != old))
    assert check_chains([*links[:at], replace(links[at], **{name: new}), *links[at + 1 :]], anchors)


@given(written(), st.data(), entries)
def test_a_chain_that_was_written_anew_from_somewhere_on_does_not_fit_its_anchor(
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
    assert check_chains([*rest, *forged]) == []  # in itself it holds: only the anchor tells
    assert check_chains([*rest, *forged], anchors)


@given(written())
def test_a_whole_chain_that_is_gone_is_missed_also_without_anchors(
    made: tuple[list[AuditLink], list[AuditAnchor]],
) -> None:
    flaws = check_chains([link for link in made[0] if link.chain != SESSION])
    assert [flaw.sentence for flaw in flaws] == ["the whole chain is missing"]
    assert check_chains([link for link in made[0] if link.chain == SESSION])  # nor does one stand alone


def test_a_hash_is_the_same_wherever_it_is_made() -> None:
    assert canonical_json({"b": 1, "a": ["ü", None]}) == '{"a":["\\u00fc",null],"b":1}'
    assert hash_content("Grüße \ud800") == hash_content("Grüße \ud800")
    assert hash_content({"a": 1, "b": 2}) == hash_content({"b": 2, "a": 1})
    assert hash_content(["a"]) != hash_content(["b"])


# --- in a store ---


@pytest.fixture(params=[SQLITE, INLINE, POSTGRES])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return place_of(request.param, request, tmp_path)


def allowed(tool: str = "read") -> AuditEntry:
    return call_allowed(tool, "0" * 32, agent="ada", run=RUN, because="nothing speaks against it")


def ended(output: str = "words") -> AuditEntry:
    return call_ended("read", output, agent="ada", run=RUN, verdict="done")


def begin(conn: sa.Connection) -> None:
    settle_in("ada")(conn)
    page = Transaction(conn, 1)
    for id_, key in ((SESSION, "person:owner"), (OTHER, "person:maria")):
        sessions.start(page, id_, agent="ada", origin=Origin(OriginKind.TERMINAL, key))  # type: ignore[arg-type]
    page.close()


def wrote(*entries: AuditEntry, chain: str = SESSION, now_ms: int = 1_000) -> Callable[[sa.Connection], None]:
    return partial(audit.append_in_transaction, entries=entries, now_ms=now_ms, chain=chain)


async def holds(store: Store, **kw: Any) -> list[str]:
    found = await store.scan(partial(audit.verify, **kw))
    return [flaw.sentence for flaw in found.flaws]


async def sql(store: Store, statement: str, **parameters: Any) -> int:
    return await store.write(lambda conn: conn.execute(sa.text(statement), parameters).rowcount, point="test")


async def test_lines_stand_in_the_order_they_were_written_and_hold(place: Place) -> None:
    async with place.open() as store:
        await store.write(wrote(allowed()), point="test")
        await store.write(wrote(ended(), allowed("exec")), point="test")
        await store.write(wrote(allowed(), chain=OTHER), point="test")
        found = await store.scan(lambda conn: list(audit.iterate_entries(conn)))
        assert [(link.chain, link.position, link.kind) for link in found if link.chain == SESSION] == [
            (SESSION, 1, "call-allowed"),
            (SESSION, 2, "call-ended"),
            (SESSION, 3, "call-allowed"),
        ]
        assert [link.subject for link in found if link.chain == SERVER_CHAIN] == [SESSION, OTHER]
        checked = await store.scan(audit.verify)
        assert checked.is_intact and (checked.lines, checked.chains) == (6, 3)


async def test_a_line_is_kept_with_its_commit_or_not_at_all(place: Place) -> None:
    async with place.open() as store:

        def fails(conn: sa.Connection) -> None:
            wrote(allowed())(conn)
            raise Invalid("no", because="a test says so")

        with pytest.raises(Invalid):
            await store.write(fails, point="test")
        assert await store.scan(lambda conn: list(audit.iterate_entries(conn))) == []
        await store.write(wrote(allowed()), point="test")
        assert await holds(store) == []


async def test_many_who_write_at_once_make_one_chain(place: Place) -> None:
    async with place.open() as store:
        await asyncio.gather(*(store.write(wrote(allowed(), ended()), point="test") for _ in range(25)))
        found = await store.scan(lambda conn: list(audit.iterate_entries(conn, SESSION)))
        assert [link.position for link in found] == list(range(1, 51))
        assert await holds(store) == []


async def test_words_that_no_store_can_keep_and_overlong_ones_still_make_a_chain(place: Place) -> None:
    async with place.open() as store:
        bad = "\0\ud800Grüße 世界 🌍"
        entry = AuditEntry(
            kind=AuditKind.CALL_REFUSED, who=bad, agent=bad, subject=bad * 90, because=bad * 900, verdict=bad
        )
        await store.write(wrote(entry, allowed()), point="test")
        [first, _] = await store.scan(lambda conn: list(audit.iterate_entries(conn, SESSION)))
        assert len(first.because) == BECAUSE_CHARS_MAX
        assert await holds(store) == []


TAMPERINGS = (
    (
        "UPDATE audit SET because = 'nobody asked' WHERE chain = :s AND position = 2",
        "it was changed after it was written",
    ),
    ("UPDATE audit SET verdict = 'deny' WHERE chain = :s AND position = 1", "it was changed after it was written"),
    ("UPDATE audit SET at_ms = at_ms + 1 WHERE chain = :s AND position = 2", "it was changed after it was written"),
    ("UPDATE audit SET content = 'x' WHERE chain = :s AND position = 4", "it was changed after it was written"),
    ("DELETE FROM audit WHERE chain = :s AND position = 2", "1 entries before it are missing"),
    ("DELETE FROM audit WHERE chain = :s AND position = 1", "1 entries before it are missing"),
    ("DELETE FROM audit WHERE chain = :s AND position = 4", "has an entry at this position, which is missing"),
    ("DELETE FROM audit WHERE chain = :s AND position >= 3", "has an entry at this position, which is missing"),
    ("DELETE FROM audit WHERE chain = :s", "the whole chain is missing"),
    ("UPDATE audit SET chain = :other WHERE chain = :s", "the whole chain is missing"),
    ("UPDATE audit SET position = position + 10 WHERE chain = :s AND position = 4", "entries before it are missing"),
    ("DELETE FROM audit WHERE chain = '' AND kind = 'chain-begun'", "entries before it are missing"),
    ("DELETE FROM audit_anchors WHERE chain = :s", "the anchors stored with it have changed"),
    ("UPDATE audit_anchors SET position = 2 WHERE chain = :s", "an anchor has a different entry at this position"),
    ("DELETE FROM audit_anchors", "the anchors stored with it have changed"),
    ("DELETE FROM audit WHERE kind = 'anchored'", "no entry records the anchors"),
)


@pytest.mark.parametrize(("statement", "sentence"), TAMPERINGS)
async def test_what_someone_changes_from_behind_is_found(tmp_path: Path, statement: str, sentence: str) -> None:
    place = Place(INLINE, str(tmp_path / "house.db"))
    async with place.open() as store:
        await store.write(wrote(allowed(), ended(), allowed(), ended()), point="test")
        await store.write(partial(audit.add_anchors, now_ms=2_000), point="test")
        assert await holds(store) == []
        named = {name: value for name, value in (("s", SESSION), ("other", OTHER)) if f":{name}" in statement}
        assert await sql(store, statement, **named) > 0
        assert any(sentence in found for found in await holds(store))


async def test_an_anchor_kept_elsewhere_finds_a_house_that_was_written_anew(place: Place) -> None:
    async with place.open() as store:
        await store.write(wrote(allowed(), ended()), point="test")
        kept = await store.write(partial(audit.add_anchors, now_ms=2_000), point="test")
        assert kept is not None
        assert await holds(store, outside=[kept]) == []
        for table in ("audit", "audit_anchors"):
            await sql(store, f"DELETE FROM {table}")
        await store.write(wrote(ended()), point="test")
        await store.write(partial(audit.add_anchors, now_ms=3_000), point="test")
        assert await holds(store) == []  # in itself it holds
        assert await holds(store, outside=[kept]) == ["an anchor has a different entry at this position"]
        await sql(store, "DELETE FROM audit")
        assert lines.CHAIN_TRUNCATED in await holds(store, outside=[kept])


async def test_anchors_are_taken_of_what_has_moved_and_only_of_that(place: Place) -> None:
    async with place.open() as store:
        anchor = lambda now_ms: store.write(partial(audit.add_anchors, now_ms=now_ms), point="test")  # noqa: E731
        assert await anchor(1) is None
        await store.write(wrote(allowed(), now_ms=10), point="test")
        await store.write(wrote(allowed(), chain=OTHER, now_ms=10), point="test")
        assert await anchor(20) is not None
        assert await anchor(30) is None
        await store.write(wrote(ended(), now_ms=30), point="test")
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
        assert await holds(store) == []


async def test_what_was_purged_leaves_its_chain_whole(place: Place) -> None:
    """A line holds the hash of a text: whoever has the text can still show that it was this one."""
    text = "a secret that maria told"
    async with place.open() as store:
        await store.write(begin, point="test")
        await store.write(wrote(ended(text)), point="test")
        [line] = await store.scan(lambda conn: list(audit.iterate_entries(conn, SESSION)))
        assert text not in canonical_json(hashed_fields(line))
        assert line.content == hash_content(text) != hash_content("another")


# --- asked for ---


@pytest.fixture
def household(tmp_path: Path) -> LocalInstance:
    return LocalInstance(tmp_path)


async def ask(house: DeskHouse, who: Any, name: str, /, **parameters: Any) -> Any:
    operation: Operation = OPERATIONS[name]
    policy = {**house.desk.permission_policy, name: operation.permission}
    desk = replace(house.desk, permission_policy=policy)
    return json.loads(await perform_operation(desk, who, operation, json.dumps(parameters).encode()))


def verifier() -> Any:
    spec = importlib.util.spec_from_file_location("verify_audit", EXAMPLES / "verify_audit.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


async def test_the_audit_is_listed_newest_first_in_pages_and_by_what_is_wanted(household: LocalInstance) -> None:
    async with desk_house(household) as house:
        await house.house.store.write(begin, point="test")
        for number in range(5):
            entries = (allowed(f"tool-{number}"), ended())
            await house.house.store.write(wrote(*entries, now_ms=1_000 + number), point="test")
        seen: list[str] = []
        cursor: str | None = ""
        while cursor is not None:
            page = await ask(house, person("owner"), "audit.list", limit=3, before=cursor)
            seen += [f"{row['session'][:4]}/{row['position']}" for row in page["audit"]]
            cursor = page["next"]
        assert len(seen) == len(set(seen)) == 11
        assert seen[0] == "5e5e/10"
        found = await ask(house, person("owner"), "audit.list", kind="call-allowed", session=SESSION, agent="ada")
        assert [row["subject"] for row in found["audit"]] == [f"tool-{n}" for n in (4, 3, 2, 1, 0)]
        assert (await ask(house, person("owner"), "audit.list", agent="bo"))["audit"] == []
        by_whom = {row["who"] for row in found["audit"]}
        assert len(by_whom) == 1
        same = await ask(house, person("owner"), "audit.list", kind="call-allowed", who=by_whom.pop())
        assert same["audit"] == found["audit"]
        assert (await ask(house, person("owner"), "audit.list", who="person:nobody"))["audit"] == []
        late = await ask(house, person("owner"), "audit.list", kind="call-allowed", since="1970-01-01T00:00:01.003Z")
        assert [row["subject"] for row in late["audit"]] == ["tool-4", "tool-3"]
        for wrong in ({"before": "x"}, {"before": "house-1"}, {"limit": 0}, {"since": "some day"}):
            with pytest.raises(Invalid):
                await ask(house, person("owner"), "audit.list", **wrong)


async def test_whoever_does_not_see_a_session_does_not_see_its_audit(household: LocalInstance) -> None:
    async with desk_house(household) as house:
        await house.house.store.write(begin, point="test")
        await house.house.store.write(wrote(allowed("hers"), chain=OTHER), point="test")
        await house.house.store.write(wrote(allowed("his")), point="test")
        subjects = lambda found: {row["subject"] for row in found["audit"]}  # noqa: E731
        assert {"hers", "his", SESSION} <= subjects(await ask(house, person("owner"), "audit.list"))
        assert subjects(await ask(house, person("maria"), "audit.list")) == {"hers"}
        assert subjects(await ask(house, agent("bo"), "audit.list")) == set()
        for name in ("audit.verify", "audit.export"):
            with pytest.raises(NotAllowed):
                await ask(house, person("maria"), name)


async def test_verifying_tells_what_is_wrong_and_where(household: LocalInstance) -> None:
    async with desk_house(household) as house:
        await house.house.store.write(begin, point="test")
        await house.house.store.write(wrote(allowed(), ended()), point="test")
        good = await ask(house, person("owner"), "audit.verify")
        assert good["holds"] and good["checked"] == 3
        await house.house.execute_sql("UPDATE audit SET because = 'x' WHERE position = 2")
        bad = await ask(house, person("owner"), "audit.verify", session=SESSION[:8])
        assert not bad["holds"]
        assert bad["flaws"][0] == {
            "session": SESSION,
            "position": 2,
            "sentence": "it was changed after it was written, or the entry before it was",
        }
        assert (await ask(house, person("owner"), "audit.verify", session="house"))["holds"]
        with pytest.raises(Invalid):
            await ask(house, person("owner"), "audit.verify", anchor=["house:1"])


async def test_an_export_is_checked_by_a_script_that_knows_nothing_of_the_house(
    household: LocalInstance, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = verifier()
    async with desk_house(household) as house:
        await house.house.store.write(begin, point="test")
        await house.house.store.write(wrote(allowed("Grüße"), ended(), allowed()), point="test")
        await house.house.store.write(wrote(ended(), chain=OTHER), point="test")
        made = await asked.anchor_audit(house.desk)
        assert made is not None
        whole = (await ask(house, person("owner"), "audit.export"))["lines"]
        for one in ("house", SESSION):
            assert (
                list(script.flaws_in((await ask(house, person("owner"), "audit.export", session=one))["lines"])) == []
            )
        parts: list[str] = []
        cursor: str | None = ""
        while cursor is not None:
            part = await ask(house, person("owner"), "audit.export", limit=2, after=cursor)
            parts += part["lines"]
            cursor = part["next"]
    assert sorted(line for line in parts if not line.startswith('{"cut"')) == sorted(whole)
    assert list(script.flaws_in(whole)) == list(script.flaws_in(parts)) == []
    file = tmp_path / "audit.jsonl"
    file.write_text("\n".join(whole))
    kept = f"house:{made.position}:{made.hash}"
    assert script.main(file, kept) == 0
    assert "it holds" in capsys.readouterr().out
    for number in range(1, len(whole)):
        assert list(script.flaws_in(whole[:number] + whole[number + 1 :], [("", made.position, made.hash)]))
    for number, line in enumerate(whole):
        if '"position"' in line and '"anchor"' not in line:
            changed = json.loads(line) | {"who": "nobody"}
            assert list(script.flaws_in([*whole[:number], json.dumps(changed), *whole[number + 1 :]]))
    file.write_text("\n".join(whole[:-5]))
    assert script.main(file, kept) == 1


async def test_an_anchor_is_taken_each_hour_and_the_log_has_it_too(household: LocalInstance, tmp_path: Path) -> None:
    from retinue.app.logs import set_up_logs

    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    try:
        set_up_logs(None, data_dir=tmp_path)
        async with desk_house(household) as house:
            await house.house.store.write(begin, point="test")
            task = asyncio.create_task(asked.anchor_hourly(house.desk))
            await asyncio.sleep(0)
            now_ms = int(household.clock.now().timestamp() * 1000)
            await house.house.store.write(wrote(allowed(), now_ms=now_ms), point="test")
            await household.clock.advance(asked.ANCHOR_EVERY_S)
            await house.house.wait_for(lambda conn: audit.list_anchors(conn) or None, what="an anchor")
            task.cancel()
            found = await asyncio.to_thread(asked.anchors_in_log, tmp_path / "logs")
            stored = await house.house.store.scan(audit.list_anchors)
            assert [(each.chain, each.position, each.hash) for each in found] == [
                (each.chain, each.position, each.hash) for each in stored if each.chain == SERVER_CHAIN
            ]
            assert (await ask(house, person("owner"), "audit.verify", log=True))["holds"]
            for table in ("audit", "audit_anchors"):
                await house.house.execute_sql(f"DELETE FROM {table}")
            assert (await ask(house, person("owner"), "audit.verify"))["holds"]  # nothing is left to tell
            assert not (await ask(house, person("owner"), "audit.verify", log=True))["holds"]
    finally:
        for handler in root.handlers:
            if handler not in handlers:
                handler.close()
        root.handlers[:] = handlers
        root.setLevel(level)


def test_nobody_else_writes_lines_of_the_log_that_look_like_an_anchor(tmp_path: Path) -> None:
    forged = f'2026-11-15T09:00:00+0000 info "audit anchored" anchor=house:1:{"0" * 64}'
    (tmp_path / "retinue.log").write_text(f'2026-11-15T09:00:00+0000 info "x"\n    {forged}\nx {forged}\n')
    assert asked.anchors_in_log(tmp_path) == []
    (tmp_path / "retinue.log").write_text(forged + "\n")
    assert len(asked.anchors_in_log(tmp_path)) == 1


def test_every_kind_of_line_can_be_made() -> None:
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
    assert lines.operation_performed(AuditKind.AGENT_CHANGED, "config.apply", by="house").agent == ""
