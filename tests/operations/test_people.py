"""Invitations, tokens and permission levels of people, and forgetting a person."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from operations.operations_instance import OperationsServer, agent, open_operations_server, person

from retinue.domain.agent import PermissionLevel
from retinue.domain.attachment import Attachment
from retinue.domain.errors import Conflict, Invalid, NotAllowed, NotFound
from retinue.domain.ids import SessionId
from retinue.domain.record import Note, Record, UserTurn, body_kind
from retinue.domain.session import Origin, OriginKind
from retinue.domain.times import to_ms
from retinue.domain.token import TokenKind, hash_token
from retinue.domain.tool import ToolResult
from retinue.operations.catalog import OPERATIONS
from retinue.operations.person.people import INVITATION_TTL_DAYS, accept_invitation
from retinue.policy.access import operation_permissions
from retinue.store.core import tables as t
from retinue.store.ledger import ledger
from retinue.store.people import principals, tokens
from retinue.store.sessions import records, sessions
from retinue.testing.local_instance import LocalInstance

OWNER, MARIA, GUS = person("owner"), person("maria"), person("gus")


@pytest.fixture
async def server(tmp_path: Path) -> AsyncGenerator[OperationsServer]:
    async with open_operations_server(LocalInstance(tmp_path)) as made:
        yield made


async def find_token_principal(server: OperationsServer, secret: str) -> Any:
    now_ms = to_ms(server.services.clock.now())
    return await server.server.store.read(
        lambda conn: principals.find_principal(conn, hash_token(secret), now_ms=now_ms)
    )


# Permission levels


@pytest.mark.spec("H57")
def test_permission_levels_are_ordered_and_an_operation_without_a_rule_needs_boss() -> None:
    levels = list(operation_permissions.LEVELS)
    for i, level in enumerate(levels):
        for j, needed in enumerate(levels):
            decided = operation_permissions.decide_operation("x.do", level, {"x.do": needed})
            assert decided.is_allowed is (i >= j)
            assert needed in decided.because and level in decided.because
    assert [operation_permissions.decide_operation("y.do", level, {}).is_allowed for level in levels] == [
        False,
        False,
        False,
        True,
    ]
    assert "y.do needs" in operation_permissions.decide_operation("y.do", PermissionLevel.STANDARD, {}).because


@pytest.mark.spec("H57")
async def test_the_permission_policy_overrides_the_levels_that_operations_declare(server: OperationsServer) -> None:
    from retinue.domain.structs import replace

    assert await server.ask(MARIA, "session.list")
    server.services = replace(
        server.services,
        permission_policy={**server.services.permission_policy, "session.list": PermissionLevel.PRIVILEGED},
    )
    with pytest.raises(NotAllowed) as refused:
        await server.ask(MARIA, "session.list")
    assert refused.value.code == "permission.denied"
    without = {name: level for name, level in server.services.permission_policy.items() if name != "server.status"}
    server.services = replace(server.services, permission_policy=without)
    with pytest.raises(NotAllowed, match=r"server\.status"):
        await server.ask(agent("ada", PermissionLevel.PRIVILEGED), "server.status")
    assert await server.ask(OWNER, "server.status")


async def test_the_permission_for_an_operation_is_checked_before_its_parameters_are_parsed(
    server: OperationsServer,
) -> None:
    for operation in OPERATIONS.values():
        if operation_permissions.is_at_least(GUS.level, operation.permission):
            continue
        with pytest.raises(NotAllowed):
            await server.ask(GUS, operation.name, nonsense=1)


# Invitations


async def test_an_invitation_creates_one_person_and_works_once(server: OperationsServer) -> None:
    invited = await server.ask(OWNER, "person.invite", name="Zoe")
    came = await accept_invitation(server.services, invited["invitation"])
    assert (came["name"], came["role"]) == ("Zoe", "member")
    principal, kind = await find_token_principal(server, came["token"])
    assert (str(principal.address), principal.level, kind) == (
        "person:Zoe",
        PermissionLevel.STANDARD,
        TokenKind.TOKEN,
    )
    with pytest.raises(NotAllowed) as again:
        await accept_invitation(server.services, invited["invitation"])
    assert again.value.code == "invitation.invalid"


async def test_the_invitation_of_a_person_is_not_a_token_and_expires(server: OperationsServer) -> None:
    invited = await server.ask(OWNER, "person.invite", name="Zoe", role="guest")
    assert await find_token_principal(server, invited["invitation"]) is None
    await server.server.instance.clock.advance(timedelta(days=INVITATION_TTL_DAYS, seconds=1))
    with pytest.raises(NotAllowed):
        await accept_invitation(server.services, invited["invitation"])


async def test_a_second_invitation_of_a_person_replaces_the_first(server: OperationsServer) -> None:
    first = await server.ask(OWNER, "person.invite", name="Zoe")
    second = await server.ask(OWNER, "person.invite", name="Zoe", role="guest")
    with pytest.raises(NotAllowed):
        await accept_invitation(server.services, first["invitation"])
    assert (await accept_invitation(server.services, second["invitation"]))["role"] == "guest"


@pytest.mark.parametrize("name", ["maria", "MARIA", "owner"])
async def test_inviting_a_person_with_a_taken_name_is_a_conflict(server: OperationsServer, name: str) -> None:
    with pytest.raises(Conflict) as taken:
        await server.ask(OWNER, "person.invite", name=name)
    assert taken.value.code == "person.name_taken"


@pytest.mark.parametrize(
    ("parameters", "code"),
    [
        ({"name": "a b"}, "name.invalid"),
        ({"name": ""}, "name.invalid"),
        ({"name": "x", "role": "owner"}, "person.second_owner"),
    ],
)
async def test_an_invitation_with_an_invalid_name_or_role_is_refused(
    server: OperationsServer, parameters: dict[str, str], code: str
) -> None:
    with pytest.raises(Invalid) as refused:
        await server.ask(OWNER, "person.invite", **parameters)
    assert refused.value.code == code


async def test_only_the_owner_can_invite_people(server: OperationsServer) -> None:
    for who in (MARIA, GUS, agent("ada", PermissionLevel.PRIVILEGED)):
        with pytest.raises(NotAllowed):
            await server.ask(who, "person.invite", name="Zoe")


async def test_a_guest_sees_only_themselves_in_the_list_of_people(server: OperationsServer) -> None:
    assert [p["name"] for p in (await server.ask(GUS, "person.list"))["people"]] == ["gus"]
    assert len((await server.ask(MARIA, "person.list"))["people"]) == 4


async def test_the_role_of_a_person_can_be_changed_but_not_from_or_to_owner(server: OperationsServer) -> None:
    token = await server.ask(MARIA, "token.create")
    await server.ask(OWNER, "person.role", name="maria", role="guest")
    principal, _ = await find_token_principal(server, token["token"])
    assert principal.level is PermissionLevel.RESTRICTED
    for name, role in (("owner", "member"), ("maria", "owner")):
        with pytest.raises(Invalid):
            await server.ask(OWNER, "person.role", name=name, role=role)


# Tokens


@pytest.mark.spec("H60")
async def test_a_persons_token_is_shown_once_and_stored_as_a_hash(server: OperationsServer) -> None:
    made = await server.ask(MARIA, "token.create", label="laptop")
    secret = made["token"]
    principal, _ = await find_token_principal(server, secret)
    assert str(principal.address) == "person:maria"
    listed = await server.ask(MARIA, "token.list")
    assert [token["label"] for token in listed["tokens"]] == ["laptop"]
    assert secret not in json.dumps(listed) and hash_token(secret) not in json.dumps(listed)
    for operation in OPERATIONS.values():
        if operation.name.startswith(("token.", "person.", "server.")) and not operation.has_effect:
            try:
                response = json.dumps(await server.ask(OWNER, operation.name))
            except Invalid:
                continue
            assert secret not in response
    rows = await server.server.execute_sql("SELECT * FROM tokens")
    assert secret not in str(rows)


async def test_a_revoked_token_is_no_longer_valid(server: OperationsServer) -> None:
    made = await server.ask(MARIA, "token.create")
    await server.ask(MARIA, "token.revoke", id=made["id"])
    assert await find_token_principal(server, made["token"]) is None
    with pytest.raises(NotFound):
        await server.ask(MARIA, "token.revoke", id=made["id"])


async def test_rotating_a_token_revokes_it_and_creates_a_new_one(server: OperationsServer) -> None:
    made = await server.ask(MARIA, "token.create", label="laptop")
    new = await server.ask(MARIA, "token.rotate", id=made["id"])
    assert await find_token_principal(server, made["token"]) is None
    assert await find_token_principal(server, new["token"]) is not None
    assert new["label"] == "laptop"


async def test_a_token_expires_after_its_given_days(server: OperationsServer) -> None:
    made = await server.ask(MARIA, "token.create", expires_in_days=1)
    assert await find_token_principal(server, made["token"]) is not None
    await server.server.instance.clock.advance(timedelta(days=1, seconds=1))
    assert await find_token_principal(server, made["token"]) is None
    for days in (0, -1, 10_000):
        with pytest.raises(Invalid):
            await server.ask(MARIA, "token.create", expires_in_days=days)


async def test_only_the_owner_can_manage_tokens_of_other_principals(server: OperationsServer) -> None:
    for_ada = await server.ask(OWNER, "token.create", principal="agent:ada")
    principal, _ = await find_token_principal(server, for_ada["token"])
    assert (str(principal.address), principal.level) == ("agent:ada", PermissionLevel.STANDARD)
    for who in (MARIA, GUS, agent("bo", PermissionLevel.BOSS)):
        for operation in ("token.create", "token.list"):
            with pytest.raises(NotFound):
                await server.ask(who, operation, principal="agent:ada")
        with pytest.raises(NotFound):
            await server.ask(who, "token.revoke", id=for_ada["id"], principal="agent:ada")
        with pytest.raises(NotFound):
            await server.ask(who, "token.revoke", id=for_ada["id"])


async def test_a_browser_sign_in_code_is_not_a_token_and_agents_cannot_get_one(server: OperationsServer) -> None:
    code = await server.ask(MARIA, "token.code")
    assert await find_token_principal(server, code["code"]) is None
    with pytest.raises(Invalid):
        await server.ask(agent("ada"), "token.code")


# Sending with a token


@pytest.mark.spec("H10")
async def test_a_person_cannot_set_the_sender_or_from_boss_of_an_envelope_that_they_send(
    server: OperationsServer,
) -> None:
    """A person is a principal and may send. Only the connector decides who is boss in a channel."""
    envelope, _ = await server.converse(OWNER, "good morning")
    kept = await server.server.get_envelope(envelope)
    assert str(kept.sender) == "person:owner"
    assert kept.context.from_boss is False
    with pytest.raises(Invalid):
        await server.ask(OWNER, "envelope.send", to="agent:ada", text="hi", from_boss=True)
    with pytest.raises(Invalid):
        await server.ask(MARIA, "envelope.send", to="agent:ada", text="hi", sender="person:owner")


# Forgetting a person


async def test_forgetting_a_person_removes_their_text_from_every_table_and_the_ledger_holds(
    server: OperationsServer,
) -> None:
    words = "my shoe size is forty-three"
    token = await server.ask(MARIA, "token.create")
    envelope, session = await server.converse(MARIA, words)
    await server.ask(person("noor"), "envelope.send", to="person:maria", text=words)
    _, noors = await server.converse(person("noor"), "mine stays")
    response = await server.ask(OWNER, "person.forget", name="maria", confirm="maria")
    assert response["sessions"] == 1 and response["envelopes"] >= 3 and response["records"] >= 3
    dump = await server.server.execute_sql("SELECT name FROM sqlite_master WHERE type = 'table'")
    for row in dump:
        rows = await server.server.execute_sql(f'SELECT * FROM "{row.name}"')
        assert words not in str(rows), row.name
    assert await find_token_principal(server, token["token"]) is None
    assert "mine stays" in json.dumps(await server.ask(person("noor"), "session.state", session=noors))
    with pytest.raises(NotFound):
        await server.ask(OWNER, "session.state", session=session)
    with pytest.raises(Conflict):
        await server.ask(OWNER, "person.invite", name="maria")
    now_ms = to_ms(server.services.clock.now())
    checked = await server.server.store.scan(lambda conn: ledger.check_ledger(conn, now_ms=now_ms))
    assert checked.is_ok, checked.lines()
    assert (await server.server.get_envelope(envelope)).text == "(forgotten)"


async def test_forgetting_a_person_deletes_their_schedules_and_not_those_of_others(server: OperationsServer) -> None:
    for who, text in ((MARIA, "water my orchids"), (person("noor"), "mine stays")):
        await server.ask(who, "schedule.add", to="agent:ada", text=text, every="1h", name=f"of-{who.address.name}")
    [row] = await server.server.execute_sql("SELECT id FROM schedules WHERE owner = 'person:maria'")
    session, turn = SessionId("5" * 32), UserTurn(text="water my orchids")

    def add_session_of_schedule(conn: sa.Connection) -> None:
        origin = Origin(OriginKind.SCHEDULE, f"schedule:{row.id}")
        sessions.add(conn, session, agent="ada", origin=origin, name="orchids", at_ms=1)
        records.add(conn, [Record(session=session, seq=1, kind=body_kind(turn), body=turn, at_ms=1)])

    await server.server.store.write(add_session_of_schedule, point="test")
    await server.ask(OWNER, "person.forget", name="maria", confirm="maria")
    # The row of a deleted schedule stays until its file is deleted too.
    left = await server.server.execute_sql("SELECT owner FROM schedules WHERE kind != 'deleted'")
    assert [row.owner for row in left] == ["person:noor"]
    waiting = await server.server.execute_sql("SELECT envelope FROM occurrences WHERE state = 'waiting'")
    texts = [(await server.server.get_envelope(row.envelope)).text for row in waiting]
    assert texts == ["mine stays"]
    for table in ("envelopes", "sessions", "records"):
        assert "orchids" not in str(await server.server.execute_sql(f"SELECT * FROM {table}")), table


async def test_forgetting_a_person_removes_commands_and_the_names_of_full_results_and_files_from_their_sessions(
    server: OperationsServer,
) -> None:
    _, session = await server.converse(MARIA, "hello")
    tail = (await server.server.execute_sql("SELECT max(seq) AS seq FROM records"))[0].seq
    photo = Attachment(hash="a" * 64, name="orchids.png", media_type="image/png", size_bytes=3)
    kept = [
        ToolResult(call="c", tool="exec", output="done", whole="b" * 64, attachments=(photo,)),
        Note(text="late", call="c", whole="c" * 64, attachments=(photo,)),
    ]
    added = [
        Record(session=SessionId(session), seq=tail + i, kind=body_kind(body), body=body, at_ms=1)
        for i, body in enumerate(kept, start=1)
    ]
    command = {"id": "d" * 32, "session": session, "run": "e" * 32, "agent": "ada", "command": "cat orchids.txt"}
    process = {
        "directory": "/w",
        "pid": 1,
        "process_identity": "x",
        "state": "ended",
        "because": "",
        "trust": "private",
    }

    def body(conn: sa.Connection) -> None:
        records.add(conn, added)
        conn.execute(t.processes.insert(), {**command, **process, "started_ms": 1, "ended_ms": 2})

    await server.server.store.write(body, point="test")
    await server.ask(OWNER, "person.forget", name="maria", confirm="maria")
    for table in ("records", "processes"):
        rows = str(await server.server.execute_sql(f"SELECT * FROM {table}"))
        assert not [each for each in ("orchids", photo.hash, "b" * 64, "c" * 64) if each in rows], table


async def test_forgetting_a_person_needs_confirmation_and_is_refused_for_the_owner(server: OperationsServer) -> None:
    for confirm in ("", "Maria", "noor"):
        with pytest.raises(Invalid) as asked:
            await server.ask(OWNER, "person.forget", name="maria", confirm=confirm)
        assert asked.value.code == "person.not_confirmed"
    with pytest.raises(Invalid) as spared:
        await server.ask(OWNER, "person.forget", name="owner", confirm="owner")
    assert spared.value.code == "person.is_owner"
    left = await server.server.store.read(lambda conn: tokens.list_of_principal(conn, "person:owner", now_ms=0))
    assert isinstance(left, list)
