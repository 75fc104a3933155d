from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from operations.operations_instance import OperationsServer, agent, open_operations_server, person

from retinue.agents.agent_directory import agent_directory_of
from retinue.domain.agent import PermissionLevel
from retinue.domain.envelope import Outcome
from retinue.domain.errors import Conflict, Invalid, InvalidFields, NotAllowed, NotFound, RetinueError
from retinue.domain.times import to_ms
from retinue.domain.token import hash_token
from retinue.store.people import principals
from retinue.testing.local_instance import LocalInstance
from retinue.testing.scripted_model import text_reply
from retinue.testing.wait_conditions import wait_until

OWNER, MARIA, GUS = person("owner"), person("maria"), person("gus")
AGENT_DIRECTORY_PARTS = ("SOUL.md", "internal_space/MEMORY.md", "internal_space/memories")


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[OperationsServer]:
    async with open_operations_server(LocalInstance(tmp_path)) as made:
        yield made


def directory_of(server: OperationsServer, name: str) -> Path:
    return agent_directory_of(server.services.data_dir, name)


async def count_rows(server: OperationsServer, table: str) -> int:
    return (await server.server.execute_sql(f"SELECT count(*) FROM {table}"))[0][0]


# --- register ---


@pytest.mark.spec("H83")
async def test_registering_an_agent_creates_its_directory(server: OperationsServer) -> None:
    made = await server.ask(OWNER, "agent.register", name="Clara", model="scripted", instructions="Be brief.")

    assert (made["name"], made["version"], made["instructions"]) == ("Clara", 1, "Be brief.")
    assert all((directory_of(server, "Clara") / part).exists() for part in AGENT_DIRECTORY_PARTS)
    assert (directory_of(server, "Clara") / "SOUL.md").read_text() == ""


async def test_a_registered_agent_answers_at_once(server: OperationsServer) -> None:
    await server.ask(OWNER, "agent.register", name="clara", model="scripted")

    sent = await server.ask(MARIA, "envelope.send", to="agent:clara", text="hello")
    assert await server.server.wait_for_answer(sent["envelope"]) == "ok"


@pytest.mark.spec("H83")
async def test_a_missing_file_of_an_agent_directory_is_recreated_at_the_next_run(server: OperationsServer) -> None:
    await server.ask(OWNER, "agent.register", name="clara", model="scripted")
    soul, memory = (
        directory_of(server, "clara") / "SOUL.md",
        directory_of(server, "clara") / "internal_space" / "MEMORY.md",
    )
    soul.write_text("I am Clara.")
    memory.unlink()

    await server.converse(MARIA, "hello", to="agent:clara")

    assert (memory.read_text(), soul.read_text()) == ("", "I am Clara.")


@pytest.mark.spec("H61")
async def test_a_dry_run_of_agent_register_validates_and_stores_nothing(server: OperationsServer) -> None:
    before = [await count_rows(server, table) for table in ("agents", "agent_versions", "tokens", "events")]

    made = await server.ask(OWNER, "agent.register", name="clara", model="scripted", token=True, dry_run=True)

    assert (made["name"], made["dry_run"], "token" in made) == ("clara", True, False)
    assert [await count_rows(server, table) for table in ("agents", "agent_versions", "tokens", "events")] == before
    assert not directory_of(server, "clara").exists()
    unfit: list[dict[str, Any]] = [
        {"name": "no good"},
        {"name": "ADA"},
        {"name": "x", "concurrency": 0},
        {"name": "x", "runner": "?"},
    ]
    for wrong in unfit:
        with pytest.raises(RetinueError):
            await server.ask(OWNER, "agent.register", dry_run=True, **wrong)


@pytest.mark.spec("C11", "C113.id")
async def test_agent_and_conversation_names_are_case_insensitive(server: OperationsServer) -> None:
    with pytest.raises(Conflict) as taken:
        await server.ask(OWNER, "agent.register", name="ADA")
    assert taken.value.code == "agent.exists"

    _, first = await server.converse(MARIA, "one", to="agent:ada", conversation="Work")
    _, again = await server.converse(MARIA, "two", to="agent:ADA", conversation="wORK")
    _, latest = await server.converse(MARIA, "three", to="agent:Ada")
    assert first == again == latest
    assert (await server.ask(OWNER, "agent.show", name="aDa"))["name"] == "ada"


@pytest.mark.parametrize("name", ["background", "Background"])
async def test_a_reserved_agent_name_is_refused(server: OperationsServer, name: str) -> None:
    with pytest.raises(Invalid) as refused:
        await server.ask(OWNER, "agent.register", name=name)
    assert refused.value.code == "agent.name_reserved"


async def test_an_agents_token_is_shown_once_and_stored_as_a_hash(server: OperationsServer) -> None:
    made = await server.ask(OWNER, "agent.register", name="clara", token=True, permission_level="privileged")

    secret = made["token"]
    now_ms = to_ms(server.services.clock.now())
    found = await server.server.store.read(
        lambda conn: principals.find_principal(conn, hash_token(secret), now_ms=now_ms)
    )
    assert found is not None
    assert (str(found[0].address), found[0].level) == ("agent:clara", PermissionLevel.PRIVILEGED)
    assert "token" not in await server.ask(OWNER, "agent.show", name="clara")
    rows = await server.server.execute_sql("SELECT hash FROM tokens WHERE principal = 'agent:clara'")
    assert [row[0] for row in rows] == [hash_token(secret)]


# --- list and show ---


@pytest.mark.spec("H58")
@pytest.mark.parametrize("level", list(PermissionLevel))
async def test_an_agent_can_only_show_itself_and_another_agent_looks_nonexistent(
    server: OperationsServer, level: PermissionLevel
) -> None:
    ada = agent("ada", level)

    assert (await server.ask(ada, "agent.show", name="ada"))["name"] == "ada"
    with pytest.raises(NotFound) as other:
        await server.ask(ada, "agent.show", name="bo")
    with pytest.raises(NotFound) as nobody:
        await server.ask(ada, "agent.show", name="zz")
    assert (other.value.code, other.value.because) == (nobody.value.code, nobody.value.because)
    assert other.value.sentence.replace("bo", "zz") == nobody.value.sentence


async def test_a_guest_sees_the_agents_but_not_their_instructions(server: OperationsServer) -> None:
    await server.ask(OWNER, "agent.set", name="ada", instructions="Never speak of the cellar.")

    assert {"ada", "bo"} <= {each["name"] for each in (await server.ask(GUS, "agent.list"))["agents"]}
    assert "cellar" not in json.dumps(await server.ask(GUS, "agent.show", name="ada"))
    assert "cellar" in json.dumps(await server.ask(MARIA, "agent.show", name="ada"))


# --- change ---


@pytest.mark.spec("H62")
@pytest.mark.parametrize("switch", [{"provider": "acme"}, {"runner": "claude"}])
async def test_changing_the_provider_or_runner_of_an_agent_clears_its_model_and_effort_unless_given(
    server: OperationsServer, switch: dict[str, str]
) -> None:
    await server.ask(OWNER, "agent.set", name="ada", provider="corp", model="big", effort="high")

    kept = await server.ask(OWNER, "agent.set", name="ada", provider="corp", description="the same provider")
    assert (kept["model"], kept["effort"]) == ("big", "high")
    given = await server.ask(OWNER, "agent.set", name="ada", model="small", **switch)
    assert (given["model"], given["effort"]) == ("small", None)
    back = await server.ask(OWNER, "agent.set", name="ada", provider="corp", runner="loop", effort="low")
    assert (back["model"], back["effort"]) == ("", "low")


@pytest.mark.spec("H63")
async def test_the_value_default_clears_the_model_or_effort_of_an_agent(server: OperationsServer) -> None:
    await server.ask(OWNER, "agent.set", name="ada", model="big", effort="high")

    no_effort = await server.ask(OWNER, "agent.set", name="ada", effort="default")
    assert (no_effort["model"], no_effort["effort"]) == ("big", None)
    plain = await server.ask(OWNER, "agent.set", name="ada", model="default")
    assert plain["model"] == ""


@pytest.mark.spec("H59")
async def test_only_boss_level_can_change_an_agents_permission_level(server: OperationsServer) -> None:
    for who in (agent("ada", PermissionLevel.PRIVILEGED), MARIA):
        with pytest.raises(NotAllowed):
            await server.ask(who, "agent.set", name="ada", permission_level="boss")
    assert (await server.ask(OWNER, "agent.show", name="ada"))["permission_level"] == "standard"

    await server.ask(OWNER, "agent.set", name="ada", permission_level="boss")
    boss = agent("ada", PermissionLevel.BOSS)
    assert (await server.ask(boss, "agent.set", name="bo", permission_level="restricted"))["permission_level"] == (
        "restricted"
    )
    # An agent with level boss is still an agent: its envelopes are not marked as sent by a boss.
    sent = await server.ask(boss, "envelope.send", to="agent:bo", text="hello")
    envelope = await server.server.get_envelope(sent["envelope"])
    assert (envelope.context.from_boss, envelope.trust) == (False, "agent")


async def test_an_agent_can_change_its_description_but_not_its_limits_or_permissions(server: OperationsServer) -> None:
    ada = agent("ada", PermissionLevel.PRIVILEGED)

    assert (await server.ask(ada, "agent.set", name="ada", description="keeps the books"))["version"] == 2
    bounds: list[dict[str, Any]] = [
        {"tools_ask": []},
        {"cost_microusd_max": 10**9},
        {"clear": ["permission_level", "tools_ask"]},
    ]
    for bound in bounds:
        await server.ask(OWNER, "agent.set", name="ada", tools_ask=["read"], permission_level="privileged")
        with pytest.raises(NotAllowed) as refused:
            await server.ask(ada, "agent.set", name="ada", **bound)
        assert refused.value.code == "agent.fields_not_allowed"
    with pytest.raises(NotAllowed):
        await server.ask(ada, "agent.restore", name="ada", version=1)
    with pytest.raises(NotFound):
        await server.ask(ada, "agent.set", name="bo", description="mine now")


async def test_an_agent_change_without_effect_or_as_a_dry_run_makes_no_version(server: OperationsServer) -> None:
    before = await server.ask(OWNER, "agent.show", name="ada")

    same = await server.ask(OWNER, "agent.set", name="ada", description="", dry_run=False)
    assert (same["version"], same["changed"]) == (before["version"], [])
    dry = await server.ask(OWNER, "agent.set", name="ada", description="new", dry_run=True)
    assert dry["changed"] == ["description"]
    assert (await server.ask(OWNER, "agent.show", name="ada"))["description"] == ""


async def test_an_unknown_or_invalid_agent_field_is_refused(server: OperationsServer) -> None:
    unfit: list[dict[str, Any]] = [
        {"clear": ["shape"]},
        {"shape": "round"},
        {"turns_max": 0},
        {"model": ""},
        {"tools_ask": [""]},
    ]
    for wrong in unfit:
        with pytest.raises(Invalid):
            await server.ask(OWNER, "agent.set", name="ada", **wrong)


async def test_delegation_and_subagent_fields_of_an_agent_are_set_and_cleared_one_by_one(
    server: OperationsServer,
) -> None:
    plain = await server.ask(OWNER, "agent.show", name="ada")
    changes = {
        "delegation_allow": ["bo", "clerk-*"],
        "delegation_deny": ["clerk-two"],
        "delegation_depth_max": 3,
        "delegation_open_max": 2,
        "delegation_exchanges_max": 0,
        "delegation_other_sessions": True,
        "delegation_allow_cycles": True,
        "subagents_allow": ["*"],
        "subagents_model": "scripted",
        "subagents_effort": "low",
        "subagents_run_seconds_max": 30.0,
        "subagents_archive_after_s": 0.0,
    }

    made = await server.ask(OWNER, "agent.set", name="ada", **changes)

    assert set(made["changed"]) == set(changes)
    groups = {group: made[group] for group in ("delegation", "subagents")}
    assert {f"{group}_{name}": value for group in groups for name, value in groups[group].items()} == changes
    cleared = await server.ask(OWNER, "agent.set", name="ada", clear=list(changes))
    assert [cleared[group] for group in groups] == [plain[group] for group in groups]
    unfit = {
        "delegation_depth_max": 11,
        "delegation_open_max": 0,
        "delegation_exchanges_max": 101,
        "subagents_run_seconds_max": 0,
        "subagents_archive_after_s": -1,
        "subagents_effort": "some",
        "subagents_model": "two words",
        "subagents_allow": [""],
    }
    with pytest.raises(InvalidFields) as refused:
        await server.ask(OWNER, "agent.set", name="ada", **unfit)
    assert set(refused.value.fields) == set(unfit)
    with pytest.raises(NotAllowed):  # it would give itself the right to delegate to others
        await server.ask(agent("ada", PermissionLevel.PRIVILEGED), "agent.set", name="ada", delegation_depth_max=2)


# --- versions ---


async def test_every_agent_version_records_the_principal_and_the_changed_fields(server: OperationsServer) -> None:
    await server.ask(OWNER, "agent.set", name="ada", description="first", tools_ask=["read"])
    await server.ask(agent("ada", PermissionLevel.PRIVILEGED), "agent.set", name="ada", description="second")

    found = (await server.ask(OWNER, "agent.versions", name="ada"))["versions"]
    assert [(v["version"], v["by"], v["source"], v["changed"]) for v in found] == [
        (3, "agent:ada", "agent", ["description"]),
        (2, "person:owner", "api", ["description", "tools_ask"]),
        (1, "server", "test", []),
    ]
    page = await server.ask(OWNER, "agent.versions", name="ada", limit=2)
    rest = await server.ask(OWNER, "agent.versions", name="ada", limit=2, before=page["next"])
    assert [v["version"] for v in page["versions"] + rest["versions"]] == [3, 2, 1]
    assert rest["next"] is None


async def test_agent_versions_can_be_compared_and_an_old_version_restored(server: OperationsServer) -> None:
    await server.ask(OWNER, "agent.set", name="ada", description="first", tools_ask=["read"])
    await server.ask(OWNER, "agent.set", name="ada", description="second", concurrency=1)

    changes = (await server.ask(OWNER, "agent.diff", name="ada", old=2))["changes"]
    assert changes == [
        {"field": "description", "old": "first", "new": "second"},
        {"field": "concurrency", "old": None, "new": 1},
    ]
    restored = await server.ask(OWNER, "agent.restore", name="ada", version=2)
    assert (restored["version"], restored["description"], restored["tools"]["ask"]) == (4, "first", ["read"])
    assert (await server.ask(OWNER, "agent.diff", name="ada", old=2, new=4))["changes"] == []
    with pytest.raises(NotFound) as missing:
        await server.ask(OWNER, "agent.restore", name="ada", version=9)
    assert missing.value.code == "agent.version_not_found"


# --- delete ---


@pytest.mark.spec("H83")
async def test_deleting_an_agent_removes_its_directory_unless_keep_directory_is_set(
    server: OperationsServer, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "letter").write_text("not ours")
    for name in ("clara", "dora"):
        await server.ask(OWNER, "agent.register", name=name)
        (directory_of(server, name) / "link").symlink_to(outside)

    await server.ask(OWNER, "agent.delete", name="CLARA")
    await server.ask(OWNER, "agent.delete", name="dora", keep_directory=True)

    assert not directory_of(server, "clara").exists()
    assert (directory_of(server, "dora") / "SOUL.md").exists()
    assert (outside / "letter").read_text() == "not ours"
    with pytest.raises(NotFound):
        await server.ask(OWNER, "agent.delete", name="clara")


async def test_deleting_an_agent_cancels_its_run_and_refuses_its_waiting_envelopes(server: OperationsServer) -> None:
    made = await server.ask(OWNER, "agent.register", name="clara", model="scripted", token=True)
    model = server.server.instance.model
    model.rule = lambda prompt: text_reply("never", after_s=3600)
    first = await server.ask(MARIA, "envelope.send", to="agent:clara", text="one")
    await wait_until(lambda: bool(model.prompts), "the model is asked")
    second = await server.ask(MARIA, "envelope.send", to="agent:clara", text="two")

    gone = await server.ask(OWNER, "agent.delete", name="clara")

    assert len(gone["cancelled_runs"]) == 1
    assert (await server.server.wait_for_outcome(first["envelope"])).outcome is Outcome.CANCELLED
    refused = await server.server.wait_for_outcome(second["envelope"])
    assert (refused.outcome, refused.because) == (Outcome.REFUSED, "agent-not-found")
    with pytest.raises(NotFound):
        await server.ask(MARIA, "envelope.send", to="agent:clara", text="three")
    now_ms = to_ms(server.services.clock.now())
    assert (
        await server.server.store.read(
            lambda conn: principals.find_principal(conn, hash_token(made["token"]), now_ms=now_ms)
        )
        is None
    )


async def test_an_agent_registered_again_continues_its_version_numbers(server: OperationsServer) -> None:
    await server.ask(OWNER, "agent.register", name="Clara", description="then")
    await server.ask(OWNER, "agent.delete", name="Clara")

    again = await server.ask(OWNER, "agent.register", name="clara", description="now")

    assert (again["name"], again["version"]) == ("Clara", 2)


async def test_only_permitted_principals_can_register_change_or_delete_an_agent(server: OperationsServer) -> None:
    for operation in ("agent.register", "agent.set", "agent.delete"):
        for who in (MARIA, GUS, agent("ada")):
            with pytest.raises(NotAllowed):
                await server.ask(who, operation, name="ada")


async def test_all_invalid_agent_fields_are_reported_together(server: OperationsServer) -> None:
    wrong: dict[str, Any] = {"turns_max": 0, "icon": "two words", "effort": "much", "fallbacks": ["/x"], "model": ""}
    with pytest.raises(InvalidFields) as refused:
        await server.ask(OWNER, "agent.set", name="ada", **wrong, dry_run=True)
    assert refused.value.fields.keys() == wrong.keys()
    assert refused.value.fields["turns_max"] == "0 is not between 1 and 100000"
    with pytest.raises(InvalidFields, match="invalid value for turns_max"):
        await server.ask(OWNER, "agent.register", name="clara", turns_max=0)
