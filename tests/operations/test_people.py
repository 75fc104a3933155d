"""Who may come in, with what, and what is left of them when they are forgotten."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from operations.operations_instance import DeskHouse, agent, desk_house, person

from retinue.domain.agent import PermissionLevel
from retinue.domain.errors import Conflict, Invalid, NotAllowed, NotFound
from retinue.domain.times import to_ms
from retinue.domain.token import TokenKind, hash_token
from retinue.operations.catalog import OPERATIONS
from retinue.operations.person.people import INVITATION_TTL_DAYS, accept_invitation
from retinue.policy.access import permissions
from retinue.store.ledger import ledger
from retinue.store.people import principals, tokens
from retinue.testing.local_instance import LocalInstance

OWNER, MARIA, GUS = person("owner"), person("maria"), person("gus")


@pytest.fixture
async def house(tmp_path: Path) -> AsyncGenerator[DeskHouse]:
    async with desk_house(LocalInstance(tmp_path)) as made:
        yield made


async def who_is(house: DeskHouse, secret: str) -> Any:
    now_ms = to_ms(house.desk.clock.now())
    return await house.house.store.read(lambda conn: principals.find_principal(conn, hash_token(secret), now_ms=now_ms))


# Rights


@pytest.mark.spec("H57")
def test_levels_are_ordered_and_an_operation_that_no_rule_names_needs_boss() -> None:
    levels = list(permissions.LEVELS)
    for i, level in enumerate(levels):
        for j, needed in enumerate(levels):
            decided = permissions.decide_operation("x.do", level, {"x.do": needed})
            assert decided.is_allowed is (i >= j)
            assert needed in decided.because and level in decided.because
    assert [permissions.decide_operation("y.do", level, {}).is_allowed for level in levels] == [
        False,
        False,
        False,
        True,
    ]
    assert "y.do needs" in permissions.decide_operation("y.do", PermissionLevel.STANDARD, {}).because


@pytest.mark.spec("H57")
async def test_the_houses_policy_rules_over_what_operations_declare(house: DeskHouse) -> None:
    from retinue.domain.structs import replace

    assert await house.ask(MARIA, "session.list")
    house.desk = replace(
        house.desk, permission_policy={**house.desk.permission_policy, "session.list": PermissionLevel.PRIVILEGED}
    )
    with pytest.raises(NotAllowed) as refused:
        await house.ask(MARIA, "session.list")
    assert refused.value.code == "permission.denied"
    without = {name: level for name, level in house.desk.permission_policy.items() if name != "house.status"}
    house.desk = replace(house.desk, permission_policy=without)
    with pytest.raises(NotAllowed, match=r"house\.status"):
        await house.ask(agent("ada", PermissionLevel.PRIVILEGED), "house.status")
    assert await house.ask(OWNER, "house.status")


async def test_rights_are_checked_before_anything_is_read(house: DeskHouse) -> None:
    for operation in OPERATIONS.values():
        if permissions.is_at_least(GUS.level, operation.permission):
            continue
        with pytest.raises(NotAllowed):
            await house.ask(GUS, operation.name, nonsense=1)


# Invitations


async def test_an_invitation_makes_one_person_once(house: DeskHouse) -> None:
    invited = await house.ask(OWNER, "person.invite", name="Zoe")
    came = await accept_invitation(house.desk, invited["invitation"])
    assert (came["name"], came["role"]) == ("Zoe", "member")
    principal, kind = await who_is(house, came["token"])
    assert (str(principal.address), principal.level, kind) == (
        "person:Zoe",
        PermissionLevel.STANDARD,
        TokenKind.TOKEN,
    )
    with pytest.raises(NotAllowed) as again:
        await accept_invitation(house.desk, invited["invitation"])
    assert again.value.code == "invitation.invalid"


async def test_an_invitation_signs_nobody_in_and_expires(house: DeskHouse) -> None:
    invited = await house.ask(OWNER, "person.invite", name="Zoe", role="guest")
    assert await who_is(house, invited["invitation"]) is None
    await house.house.instance.clock.advance(timedelta(days=INVITATION_TTL_DAYS, seconds=1))
    with pytest.raises(NotAllowed):
        await accept_invitation(house.desk, invited["invitation"])


async def test_a_second_invitation_takes_the_place_of_the_first(house: DeskHouse) -> None:
    first = await house.ask(OWNER, "person.invite", name="Zoe")
    second = await house.ask(OWNER, "person.invite", name="Zoe", role="guest")
    with pytest.raises(NotAllowed):
        await accept_invitation(house.desk, first["invitation"])
    assert (await accept_invitation(house.desk, second["invitation"]))["role"] == "guest"


@pytest.mark.parametrize("name", ["maria", "MARIA", "owner"])
async def test_a_name_that_is_taken_is_not_given_twice(house: DeskHouse, name: str) -> None:
    with pytest.raises(Conflict) as taken:
        await house.ask(OWNER, "person.invite", name=name)
    assert taken.value.code == "person.name_taken"


@pytest.mark.parametrize(
    ("parameters", "code"),
    [
        ({"name": "a b"}, "name.invalid"),
        ({"name": ""}, "name.invalid"),
        ({"name": "x", "role": "owner"}, "person.second_owner"),
    ],
)
async def test_what_cannot_be_invited_is_refused(house: DeskHouse, parameters: dict[str, str], code: str) -> None:
    with pytest.raises(Invalid) as refused:
        await house.ask(OWNER, "person.invite", **parameters)
    assert refused.value.code == code


async def test_only_the_owner_invites(house: DeskHouse) -> None:
    for who in (MARIA, GUS, agent("ada", PermissionLevel.PRIVILEGED)):
        with pytest.raises(NotAllowed):
            await house.ask(who, "person.invite", name="Zoe")


async def test_a_guest_sees_nobody_else(house: DeskHouse) -> None:
    assert [p["name"] for p in (await house.ask(GUS, "person.list"))["people"]] == ["gus"]
    assert len((await house.ask(MARIA, "person.list"))["people"]) == 4


async def test_a_role_can_be_changed_but_not_the_owners(house: DeskHouse) -> None:
    token = await house.ask(MARIA, "token.create")
    await house.ask(OWNER, "person.role", name="maria", role="guest")
    principal, _ = await who_is(house, token["token"])
    assert principal.level is PermissionLevel.RESTRICTED
    for name, role in (("owner", "member"), ("maria", "owner")):
        with pytest.raises(Invalid):
            await house.ask(OWNER, "person.role", name=name, role=role)


# Tokens


@pytest.mark.spec("H60")
async def test_a_token_is_shown_once_and_kept_as_a_hash(house: DeskHouse) -> None:
    made = await house.ask(MARIA, "token.create", label="laptop")
    secret = made["token"]
    principal, _ = await who_is(house, secret)
    assert str(principal.address) == "person:maria"
    listed = await house.ask(MARIA, "token.list")
    assert [token["label"] for token in listed["tokens"]] == ["laptop"]
    assert secret not in json.dumps(listed) and hash_token(secret) not in json.dumps(listed)
    for operation in OPERATIONS.values():
        if operation.name.startswith(("token.", "person.", "house.")) and not operation.has_effect:
            try:
                told = json.dumps(await house.ask(OWNER, operation.name))
            except Invalid:
                continue
            assert secret not in told
    rows = await house.house.execute_sql("SELECT * FROM tokens")
    assert secret not in str(rows)


async def test_a_revoked_token_is_worth_nothing(house: DeskHouse) -> None:
    made = await house.ask(MARIA, "token.create")
    await house.ask(MARIA, "token.revoke", id=made["id"])
    assert await who_is(house, made["token"]) is None
    with pytest.raises(NotFound):
        await house.ask(MARIA, "token.revoke", id=made["id"])


async def test_rotating_leaves_one_that_is_good(house: DeskHouse) -> None:
    made = await house.ask(MARIA, "token.create", label="laptop")
    new = await house.ask(MARIA, "token.rotate", id=made["id"])
    assert await who_is(house, made["token"]) is None
    assert await who_is(house, new["token"]) is not None
    assert new["label"] == "laptop"


async def test_a_token_expires_when_it_was_told_to(house: DeskHouse) -> None:
    made = await house.ask(MARIA, "token.create", expires_in_days=1)
    assert await who_is(house, made["token"]) is not None
    await house.house.instance.clock.advance(timedelta(days=1, seconds=1))
    assert await who_is(house, made["token"]) is None
    for days in (0, -1, 10_000):
        with pytest.raises(Invalid):
            await house.ask(MARIA, "token.create", expires_in_days=days)


async def test_others_tokens_are_the_owners_business_alone(house: DeskHouse) -> None:
    for_ada = await house.ask(OWNER, "token.create", principal="agent:ada")
    principal, _ = await who_is(house, for_ada["token"])
    assert (str(principal.address), principal.level) == ("agent:ada", PermissionLevel.STANDARD)
    for who in (MARIA, GUS, agent("bo", PermissionLevel.BOSS)):
        for operation in ("token.create", "token.list"):
            with pytest.raises(NotFound):
                await house.ask(who, operation, principal="agent:ada")
        with pytest.raises(NotFound):
            await house.ask(who, "token.revoke", id=for_ada["id"], principal="agent:ada")
        with pytest.raises(NotFound):
            await house.ask(who, "token.revoke", id=for_ada["id"])


async def test_a_browser_code_signs_nobody_in_by_itself(house: DeskHouse) -> None:
    code = await house.ask(MARIA, "token.code")
    assert await who_is(house, code["code"]) is None
    with pytest.raises(Invalid):
        await house.ask(agent("ada"), "token.code")


# Sending with a token


@pytest.mark.spec("H10")
async def test_a_person_with_a_token_may_send_and_gains_no_boss_mark_by_it(house: DeskHouse) -> None:
    """The house rule: a person is a principal and may send; who is boss in a channel, its connector alone can say."""
    envelope, _ = await house.converse(OWNER, "good morning")
    kept = await house.house.get_envelope(envelope)
    assert str(kept.sender) == "person:owner"
    assert kept.context.from_boss is False
    with pytest.raises(Invalid):
        await house.ask(OWNER, "envelope.send", to="agent:ada", text="hi", from_boss=True)
    with pytest.raises(Invalid):
        await house.ask(MARIA, "envelope.send", to="agent:ada", text="hi", sender="person:owner")


# Forgetting


async def test_who_is_forgotten_leaves_no_words_and_the_sums_hold(house: DeskHouse) -> None:
    words = "my shoe size is forty-three"
    token = await house.ask(MARIA, "token.create")
    envelope, session = await house.converse(MARIA, words)
    await house.ask(person("noor"), "envelope.send", to="person:maria", text=words)
    _, noors = await house.converse(person("noor"), "mine stays")
    told = await house.ask(OWNER, "person.forget", name="maria", confirm="maria")
    assert told["sessions"] == 1 and told["envelopes"] >= 3 and told["records"] >= 3
    dump = await house.house.execute_sql("SELECT name FROM sqlite_master WHERE type = 'table'")
    for row in dump:
        rows = await house.house.execute_sql(f'SELECT * FROM "{row.name}"')
        assert words not in str(rows), row.name
    assert await who_is(house, token["token"]) is None
    assert "mine stays" in json.dumps(await house.ask(person("noor"), "session.state", session=noors))
    with pytest.raises(NotFound):
        await house.ask(OWNER, "session.state", session=session)
    with pytest.raises(Conflict):
        await house.ask(OWNER, "person.invite", name="maria")
    now_ms = to_ms(house.desk.clock.now())
    checked = await house.house.store.scan(lambda conn: ledger.check_ledger(conn, now_ms=now_ms))
    assert checked.is_ok, checked.lines()
    assert (await house.house.get_envelope(envelope)).text == "(forgotten)"


async def test_forgetting_wants_to_be_sure_and_spares_the_owner(house: DeskHouse) -> None:
    for confirm in ("", "Maria", "noor"):
        with pytest.raises(Invalid) as asked:
            await house.ask(OWNER, "person.forget", name="maria", confirm=confirm)
        assert asked.value.code == "person.not_confirmed"
    with pytest.raises(Invalid) as spared:
        await house.ask(OWNER, "person.forget", name="owner", confirm="owner")
    assert spared.value.code == "person.is_owner"
    left = await house.house.store.read(lambda conn: tokens.list_of_principal(conn, "person:owner", now_ms=0))
    assert isinstance(left, list)


# Keys


@pytest.mark.spec("C91")
async def test_a_request_with_a_key_has_its_effect_once(house: DeskHouse) -> None:
    first = await house.ask(MARIA, "token.create", once="k1", label="a")
    again = await house.ask(MARIA, "token.create", once="k1", label="a")
    assert again == {key: value for key, value in first.items() if key != "token"} | {"shown-once": ["token"]}
    assert first["token"] not in str(await house.house.execute_sql("SELECT * FROM answers"))
    assert len((await house.ask(MARIA, "token.list"))["tokens"]) == 1
    with pytest.raises(Conflict) as reused:
        await house.ask(MARIA, "token.create", once="k1", label="b")
    assert reused.value.code == "key.reused"
    with pytest.raises(Conflict):
        await house.ask(MARIA, "token.code", once="k1")
    assert "token" in await house.ask(person("noor"), "token.create", once="k1", label="a")  # a key is one's own


@pytest.mark.spec("H60")
async def test_no_operation_keeps_a_secret_for_one_who_asks_again(house: DeskHouse) -> None:
    for name, parameters in (
        ("token.create", {}),
        ("token.code", {}),
        ("person.invite", {"name": "zoe"}),
        ("agent.register", {"name": "zed", "token": True}),
    ):
        await house.ask(OWNER, name, once=f"key of {name}", **parameters)
    rows = await house.house.execute_sql("SELECT body FROM answers")
    assert len(rows) == 4
    assert "secret-" not in str(rows)


@pytest.mark.spec("C91")
async def test_a_request_that_failed_may_be_asked_again_with_its_key(house: DeskHouse) -> None:
    with pytest.raises(NotFound):
        await house.ask(MARIA, "token.revoke", once="k", id="ffffffff")
    made = await house.ask(MARIA, "token.create")
    assert (await house.ask(MARIA, "token.revoke", once="k", id=made["id"]))["revoked"]
    for key in ("x" * 300, "a\0b"):
        with pytest.raises(Invalid):
            await house.ask(MARIA, "token.create", once=key)


@pytest.mark.spec("C91")
async def test_two_requests_with_one_key_at_the_same_moment_are_one(house: DeskHouse) -> None:
    import asyncio

    done = await asyncio.gather(
        *(house.ask(MARIA, "token.create", once="k", label="a") for _ in range(5)), return_exceptions=True
    )
    answers = [answer for answer in done if isinstance(answer, dict)]
    refused = [error for error in done if isinstance(error, Conflict)]
    assert len(answers) + len(refused) == 5
    assert len({answer["id"] for answer in answers}) == 1
    assert len([answer for answer in answers if "token" in answer]) == 1
    assert len((await house.ask(MARIA, "token.list"))["tokens"]) == 1


@pytest.mark.parametrize("number", [2**63, -(2**63) - 1, 2**64 - 1])
async def test_a_number_that_no_store_can_keep_is_refused_by_its_path(house: DeskHouse, number: int) -> None:
    with pytest.raises(Invalid, match=r"invalid parameters") as refused:
        await house.ask(OWNER, "agent.restore", name="ada", version=number)
    assert refused.value.code == "request.invalid" and "version" in refused.value.because
