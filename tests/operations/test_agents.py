from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from operations.operations_instance import DeskHouse, agent, desk_house, person

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
HOME_PARTS = ("SOUL.md", "internal_space/MEMORY.md", "internal_space/memories")


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[DeskHouse]:
    async with desk_house(LocalInstance(tmp_path)) as made:
        yield made


def home(house: DeskHouse, name: str) -> Path:
    return agent_directory_of(house.desk.data_dir, name)


async def count(house: DeskHouse, table: str) -> int:
    return (await house.house.execute_sql(f"SELECT count(*) FROM {table}"))[0][0]


# --- taking on ---


@pytest.mark.spec("H83")
async def test_registering_an_agent_makes_its_home(house: DeskHouse) -> None:
    made = await house.ask(OWNER, "agent.register", name="Clara", model="scripted", instructions="Be brief.")

    assert (made["name"], made["version"], made["instructions"]) == ("Clara", 1, "Be brief.")
    assert all((home(house, "Clara") / part).exists() for part in HOME_PARTS)
    assert (home(house, "Clara") / "SOUL.md").read_text() == ""


async def test_a_registered_agent_answers_at_once(house: DeskHouse) -> None:
    await house.ask(OWNER, "agent.register", name="clara", model="scripted")

    sent = await house.ask(MARIA, "envelope.send", to="agent:clara", text="hello")
    assert await house.house.wait_for_answer(sent["envelope"]) == "ok"


@pytest.mark.spec("H83")
async def test_a_missing_part_of_a_home_is_made_again_at_the_next_run(house: DeskHouse) -> None:
    await house.ask(OWNER, "agent.register", name="clara", model="scripted")
    soul, memory = home(house, "clara") / "SOUL.md", home(house, "clara") / "internal_space" / "MEMORY.md"
    soul.write_text("I am Clara.")
    memory.unlink()

    await house.converse(MARIA, "hello", to="agent:clara")

    assert (memory.read_text(), soul.read_text()) == ("", "I am Clara.")


@pytest.mark.spec("H61")
async def test_a_dry_run_checks_everything_and_stores_nothing(house: DeskHouse) -> None:
    before = [await count(house, table) for table in ("agents", "agent_versions", "tokens", "news")]

    made = await house.ask(OWNER, "agent.register", name="clara", model="scripted", token=True, dry_run=True)

    assert (made["name"], made["dry-run"], "token" in made) == ("clara", True, False)
    assert [await count(house, table) for table in ("agents", "agent_versions", "tokens", "news")] == before
    assert not home(house, "clara").exists()
    unfit: list[dict[str, Any]] = [
        {"name": "no good"},
        {"name": "ADA"},
        {"name": "x", "concurrency": 0},
        {"name": "x", "runner": "?"},
    ]
    for wrong in unfit:
        with pytest.raises(RetinueError):
            await house.ask(OWNER, "agent.register", dry_run=True, **wrong)


@pytest.mark.spec("C11", "C113.id")
async def test_a_name_in_other_capitals_is_the_same_agent_and_the_same_session(house: DeskHouse) -> None:
    with pytest.raises(Conflict) as taken:
        await house.ask(OWNER, "agent.register", name="ADA")
    assert taken.value.code == "agent.exists"

    _, first = await house.converse(MARIA, "one", to="agent:ada", conversation="Work")
    _, again = await house.converse(MARIA, "two", to="agent:ADA", conversation="wORK")
    _, latest = await house.converse(MARIA, "three", to="agent:Ada")
    assert first == again == latest
    assert (await house.ask(OWNER, "agent.show", name="aDa"))["name"] == "ada"


@pytest.mark.parametrize("name", ["background", "Background"])
async def test_a_name_of_the_houses_own_is_refused(house: DeskHouse, name: str) -> None:
    with pytest.raises(Invalid) as refused:
        await house.ask(OWNER, "agent.register", name=name)
    assert refused.value.code == "agent.name_reserved"


async def test_a_token_is_shown_once_and_kept_as_a_hash(house: DeskHouse) -> None:
    made = await house.ask(OWNER, "agent.register", name="clara", token=True, permission_level="privileged")

    secret = made["token"]
    now_ms = to_ms(house.desk.clock.now())
    found = await house.house.store.read(
        lambda conn: principals.find_principal(conn, hash_token(secret), now_ms=now_ms)
    )
    assert found is not None
    assert (str(found[0].address), found[0].level) == ("agent:clara", PermissionLevel.PRIVILEGED)
    assert "token" not in await house.ask(OWNER, "agent.show", name="clara")
    rows = await house.house.execute_sql("SELECT hash FROM tokens WHERE principal = 'agent:clara'")
    assert [row[0] for row in rows] == [hash_token(secret)]


# --- asking about ---


@pytest.mark.spec("H58")
@pytest.mark.parametrize("level", list(PermissionLevel))
async def test_an_agent_may_ask_only_about_itself(house: DeskHouse, level: PermissionLevel) -> None:
    ada = agent("ada", level)

    assert (await house.ask(ada, "agent.show", name="ada"))["name"] == "ada"
    with pytest.raises(NotFound) as other:
        await house.ask(ada, "agent.show", name="bo")
    with pytest.raises(NotFound) as nobody:
        await house.ask(ada, "agent.show", name="zz")
    assert (other.value.code, other.value.because) == (nobody.value.code, nobody.value.because)
    assert other.value.sentence.replace("bo", "zz") == nobody.value.sentence


async def test_a_guest_sees_who_is_here_and_not_what_they_are_told(house: DeskHouse) -> None:
    await house.ask(OWNER, "agent.set", name="ada", instructions="Never speak of the cellar.")

    assert {"ada", "bo"} <= {each["name"] for each in (await house.ask(GUS, "agent.list"))["agents"]}
    assert "cellar" not in json.dumps(await house.ask(GUS, "agent.show", name="ada"))
    assert "cellar" in json.dumps(await house.ask(MARIA, "agent.show", name="ada"))


# --- changing ---


@pytest.mark.spec("H62")
@pytest.mark.parametrize("switch", [{"provider": "acme"}, {"runner": "claude"}])
async def test_another_provider_clears_model_and_effort_unless_they_are_given(
    house: DeskHouse, switch: dict[str, str]
) -> None:
    await house.ask(OWNER, "agent.set", name="ada", provider="corp", model="big", effort="high")

    kept = await house.ask(OWNER, "agent.set", name="ada", provider="corp", description="the same provider")
    assert (kept["model"], kept["effort"]) == ("big", "high")
    given = await house.ask(OWNER, "agent.set", name="ada", model="small", **switch)
    assert (given["model"], given["effort"]) == ("small", None)
    back = await house.ask(OWNER, "agent.set", name="ada", provider="corp", runner="loop", effort="low")
    assert (back["model"], back["effort"]) == ("", "low")


@pytest.mark.spec("H63")
async def test_default_clears_model_or_effort(house: DeskHouse) -> None:
    await house.ask(OWNER, "agent.set", name="ada", model="big", effort="high")

    no_effort = await house.ask(OWNER, "agent.set", name="ada", effort="default")
    assert (no_effort["model"], no_effort["effort"]) == ("big", None)
    plain = await house.ask(OWNER, "agent.set", name="ada", model="default")
    assert plain["model"] == ""


@pytest.mark.spec("H59")
async def test_the_permission_level_is_changed_by_boss_level_alone(house: DeskHouse) -> None:
    for who in (agent("ada", PermissionLevel.PRIVILEGED), MARIA):
        with pytest.raises(NotAllowed):
            await house.ask(who, "agent.set", name="ada", permission_level="boss")
    assert (await house.ask(OWNER, "agent.show", name="ada"))["permission_level"] == "standard"

    await house.ask(OWNER, "agent.set", name="ada", permission_level="boss")
    boss = agent("ada", PermissionLevel.BOSS)
    assert (await house.ask(boss, "agent.set", name="bo", permission_level="restricted"))["permission_level"] == (
        "restricted"
    )
    # A boss among the agents is still an agent: its mail bears no boss's mark.
    sent = await house.ask(boss, "envelope.send", to="agent:bo", text="hello")
    envelope = await house.house.get_envelope(sent["envelope"])
    assert (envelope.context.from_boss, envelope.trust) == (False, "agent")


async def test_an_agent_changes_its_words_and_never_its_bounds(house: DeskHouse) -> None:
    ada = agent("ada", PermissionLevel.PRIVILEGED)

    assert (await house.ask(ada, "agent.set", name="ada", description="keeps the books"))["version"] == 2
    bounds: list[dict[str, Any]] = [
        {"tools_ask": []},
        {"cost_microusd_max": 10**9},
        {"clear": ["permission_level", "tools_ask"]},
    ]
    for bound in bounds:
        await house.ask(OWNER, "agent.set", name="ada", tools_ask=["read"], permission_level="privileged")
        with pytest.raises(NotAllowed) as refused:
            await house.ask(ada, "agent.set", name="ada", **bound)
        assert refused.value.code == "agent.fields_not_allowed"
    with pytest.raises(NotAllowed):
        await house.ask(ada, "agent.restore", name="ada", version=1)
    with pytest.raises(NotFound):
        await house.ask(ada, "agent.set", name="bo", description="mine now")


async def test_a_change_that_changes_nothing_makes_no_version(house: DeskHouse) -> None:
    before = await house.ask(OWNER, "agent.show", name="ada")

    same = await house.ask(OWNER, "agent.set", name="ada", description="", dry_run=False)
    assert (same["version"], same["changed"]) == (before["version"], [])
    dry = await house.ask(OWNER, "agent.set", name="ada", description="new", dry_run=True)
    assert dry["changed"] == ["description"]
    assert (await house.ask(OWNER, "agent.show", name="ada"))["description"] == ""


async def test_a_field_nobody_knows_is_refused(house: DeskHouse) -> None:
    unfit: list[dict[str, Any]] = [
        {"clear": ["shape"]},
        {"shape": "round"},
        {"turns_max": 0},
        {"model": ""},
        {"tools_ask": [""]},
    ]
    for wrong in unfit:
        with pytest.raises(Invalid):
            await house.ask(OWNER, "agent.set", name="ada", **wrong)


async def test_whom_an_agent_sees_and_sends_out_is_set_field_by_field(house: DeskHouse) -> None:
    plain = await house.ask(OWNER, "agent.show", name="ada")
    changes = {
        "delegation_allow": ["bo", "clerk-*"],
        "delegation_deny": ["clerk-two"],
        "delegation_depth_max": 3,
        "delegation_open_max": 2,
        "delegation_exchanges_max": 0,
        "delegation_histories": True,
        "delegation_circles": True,
        "subagents_allow": ["*"],
        "subagents_model": "scripted",
        "subagents_effort": "low",
        "subagents_run_seconds_max": 30.0,
        "subagents_archive_after_s": 0.0,
    }

    made = await house.ask(OWNER, "agent.set", name="ada", **changes)

    assert set(made["changed"]) == set(changes)
    groups = {group: made[group] for group in ("delegation", "subagents")}
    assert {f"{group}_{name}": value for group in groups for name, value in groups[group].items()} == changes
    cleared = await house.ask(OWNER, "agent.set", name="ada", clear=list(changes))
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
        await house.ask(OWNER, "agent.set", name="ada", **unfit)
    assert set(refused.value.fields) == set(unfit)
    with pytest.raises(NotAllowed):  # it would let itself write to whom it may not
        await house.ask(agent("ada", PermissionLevel.PRIVILEGED), "agent.set", name="ada", delegation_depth_max=2)


# --- versions ---


async def test_every_change_is_kept_with_who_made_it(house: DeskHouse) -> None:
    await house.ask(OWNER, "agent.set", name="ada", description="first", tools_ask=["read"])
    await house.ask(agent("ada", PermissionLevel.PRIVILEGED), "agent.set", name="ada", description="second")

    found = (await house.ask(OWNER, "agent.versions", name="ada"))["versions"]
    assert [(v["version"], v["by"], v["source"], v["changed"]) for v in found] == [
        (3, "agent:ada", "agent", ["description"]),
        (2, "person:owner", "api", ["description", "tools_ask"]),
        (1, "house", "test", []),
    ]
    page = await house.ask(OWNER, "agent.versions", name="ada", limit=2)
    rest = await house.ask(OWNER, "agent.versions", name="ada", limit=2, before=page["next"])
    assert [v["version"] for v in page["versions"] + rest["versions"]] == [3, 2, 1]
    assert rest["next"] is None


async def test_two_versions_are_compared_and_an_old_one_becomes_the_newest(house: DeskHouse) -> None:
    await house.ask(OWNER, "agent.set", name="ada", description="first", tools_ask=["read"])
    await house.ask(OWNER, "agent.set", name="ada", description="second", concurrency=1)

    changes = (await house.ask(OWNER, "agent.diff", name="ada", old=2))["changes"]
    assert changes == [
        {"field": "description", "old": "first", "new": "second"},
        {"field": "concurrency", "old": None, "new": 1},
    ]
    restored = await house.ask(OWNER, "agent.restore", name="ada", version=2)
    assert (restored["version"], restored["description"], restored["tools"]["ask"]) == (4, "first", ["read"])
    assert (await house.ask(OWNER, "agent.diff", name="ada", old=2, new=4))["changes"] == []
    with pytest.raises(NotFound) as missing:
        await house.ask(OWNER, "agent.restore", name="ada", version=9)
    assert missing.value.code == "agent.version_not_found"


# --- letting go ---


@pytest.mark.spec("H83")
async def test_letting_an_agent_go_removes_its_home_unless_it_is_to_be_kept(house: DeskHouse, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "letter").write_text("not ours")
    for name in ("clara", "dora"):
        await house.ask(OWNER, "agent.register", name=name)
        (home(house, name) / "link").symlink_to(outside)

    await house.ask(OWNER, "agent.delete", name="CLARA")
    await house.ask(OWNER, "agent.delete", name="dora", keep_home=True)

    assert not home(house, "clara").exists()
    assert (home(house, "dora") / "SOUL.md").exists()
    assert (outside / "letter").read_text() == "not ours"
    with pytest.raises(NotFound):
        await house.ask(OWNER, "agent.delete", name="clara")


async def test_letting_an_agent_go_stops_it_and_refuses_what_waits(house: DeskHouse) -> None:
    made = await house.ask(OWNER, "agent.register", name="clara", model="scripted", token=True)
    model = house.house.instance.model
    model.rule = lambda prompt: text_reply("never", after_s=3600)
    first = await house.ask(MARIA, "envelope.send", to="agent:clara", text="one")
    await wait_until(lambda: bool(model.prompts), "the model is asked")
    second = await house.ask(MARIA, "envelope.send", to="agent:clara", text="two")

    gone = await house.ask(OWNER, "agent.delete", name="clara")

    assert len(gone["cancelled-runs"]) == 1
    assert (await house.house.wait_for_outcome(first["envelope"])).outcome is Outcome.CANCELLED
    refused = await house.house.wait_for_outcome(second["envelope"])
    assert (refused.outcome, refused.because) == (Outcome.REFUSED, "agent-not-found")
    with pytest.raises(NotFound):
        await house.ask(MARIA, "envelope.send", to="agent:clara", text="three")
    now_ms = to_ms(house.desk.clock.now())
    assert (
        await house.house.store.read(
            lambda conn: principals.find_principal(conn, hash_token(made["token"]), now_ms=now_ms)
        )
        is None
    )


async def test_an_agent_taken_on_again_goes_on_from_its_versions(house: DeskHouse) -> None:
    await house.ask(OWNER, "agent.register", name="Clara", description="then")
    await house.ask(OWNER, "agent.delete", name="Clara")

    again = await house.ask(OWNER, "agent.register", name="clara", description="now")

    assert (again["name"], again["version"]) == ("Clara", 2)


async def test_who_may_not_ask_is_refused(house: DeskHouse) -> None:
    for operation in ("agent.register", "agent.set", "agent.delete"):
        for who in (MARIA, GUS, agent("ada")):
            with pytest.raises(NotAllowed):
                await house.ask(who, operation, name="ada")


async def test_all_that_is_wrong_is_told_at_once_each_at_its_field(house: DeskHouse) -> None:
    wrong: dict[str, Any] = {"turns_max": 0, "icon": "two words", "effort": "much", "fallbacks": ["/x"], "model": ""}
    with pytest.raises(InvalidFields) as refused:
        await house.ask(OWNER, "agent.set", name="ada", **wrong, dry_run=True)
    assert refused.value.fields.keys() == wrong.keys()
    assert refused.value.fields["turns_max"] == "0 is not between 1 and 100000"
    with pytest.raises(InvalidFields, match="invalid value for turns_max"):
        await house.ask(OWNER, "agent.register", name="clara", turns_max=0)
