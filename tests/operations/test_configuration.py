"""Settings over operations, and a staff that is made what the file declares."""

from __future__ import annotations

import json
import tomllib
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from operations.operations_instance import DeskHouse, agent, desk_house, person

from retinue.config import InvalidSettings, load_configuration
from retinue.domain.agent import PermissionLevel
from retinue.domain.errors import Conflict, Invalid, NotAllowed, NotFound
from retinue.domain.structs import replace
from retinue.domain.times import to_ms
from retinue.domain.token import hash_token
from retinue.operations.config_holder import ConfigHolder
from retinue.store.agents import agents
from retinue.store.ledger import ledger
from retinue.store.people import people, principals
from retinue.testing.local_instance import LocalInstance
from retinue.testing.scripted_model import text_reply

OWNER, MARIA = person("owner"), person("maria")
DECLARED = """
config_version = 2

# who answers the telephone
[agents.ada]
model = "scripted"
description = "Answers the telephone"

[agents.zed]
model = "scripted"
concurrency = 2
tools = { ask = ["read"] }

[people.maria]
role = "member"

[people.zoe]
role = "guest"
"""


@pytest.fixture
async def house(tmp_path: Path) -> AsyncGenerator[DeskHouse]:
    home = tmp_path / "home"
    home.mkdir()
    environment = {"RETINUE_HOME": str(home)}
    async with desk_house(LocalInstance(tmp_path)) as made:
        made.desk = replace(made.desk, config_holder=ConfigHolder(load_configuration(environment), environment))
        yield made


def write(house: DeskHouse, text: str) -> Path:
    file = house.desk.require_config_holder().current.file
    file.write_text(text)
    return file


async def staff(house: DeskHouse) -> dict[str, object]:
    found = await house.house.store.scan(lambda conn: agents.list_all(conn))
    return {each.name: each for each in found}


@pytest.mark.spec("H66")
async def test_apply_shows_what_it_would_do_and_does_it_in_one_commit(house: DeskHouse) -> None:
    write(house, DECLARED)
    before = await staff(house)
    shown = await house.ask(OWNER, "config.apply", dry_run=True, take="file")
    steps = {each["name"]: each["step"] for each in shown["agents"]}
    assert steps == {"ada": "change", "zed": "add", "bo": "undeclared"}
    assert shown["agents"][0]["changed"]["description"] == {"from": "", "to": "Answers the telephone"}
    assert {each["name"]: each["step"] for each in shown["people"]} == {
        "maria": "keep",
        "zoe": "add",
        "noor": "undeclared",
        "gus": "undeclared",
    }
    assert "tokens" not in shown
    assert await staff(house) == before

    done = await house.ask(OWNER, "config.apply", take="file")
    assert [each["step"] for each in done["agents"]] == [each["step"] for each in shown["agents"]]
    assert set(done["tokens"]) == {"zoe"}
    now = await staff(house)
    assert set(now) == {"ada", "bo", "zed"}
    assert (house.desk.data_dir / "agents" / "zed").is_dir()
    again = await house.ask(OWNER, "config.apply")
    assert {each["step"] for each in again["agents"]} == {"keep", "undeclared"}
    assert again["tokens"] == {}
    envelope, _ = await house.converse(MARIA, "hello", to="agent:zed")
    assert await house.house.wait_for_answer(envelope) == "ok"


@pytest.mark.spec("H66")
async def test_what_was_changed_elsewhere_since_is_told_and_kept(house: DeskHouse) -> None:
    write(house, DECLARED)
    await house.ask(OWNER, "config.apply", take="file")
    await house.ask(OWNER, "agent.set", name="zed", description="Sleeps in the hall")
    drifted = await house.ask(OWNER, "config.apply")
    zed = next(each for each in drifted["agents"] if each["name"] == "zed")
    assert (zed["step"], set(zed["changed"])) == ("drift", {"description"})
    assert "use `--take file` to overwrite" in zed["because"]
    assert getattr((await staff(house))["zed"], "description") == "Sleeps in the hall"  # noqa: B009
    await house.ask(OWNER, "config.apply", take="file")
    assert getattr((await staff(house))["zed"], "description") == ""  # noqa: B009
    with pytest.raises(Invalid):
        await house.ask(OWNER, "config.apply", take="store")


@pytest.mark.spec("H66")
async def test_a_file_with_a_fault_changes_nothing(house: DeskHouse) -> None:
    write(house, DECLARED + "\n[agents.broken]\nshape = 'round'\n")
    before = await staff(house)
    with pytest.raises(InvalidSettings, match=r"agents\.broken\.shape"):
        await house.ask(OWNER, "config.apply")
    assert await staff(house) == before
    checked = await house.ask(OWNER, "config.check")
    assert not checked["ok"] and "agents.broken.shape" in checked["faults"][0]
    with pytest.raises(InvalidSettings):
        await house.ask(OWNER, "config.reload")


async def test_a_wrong_rule_of_origin_is_found_by_check_and_refused_by_reload_patch_and_apply(house: DeskHouse) -> None:
    right = '[[origin.source]]\ntools = "calendar_*"\ntrust = "untrusted"\n'
    write(house, right)
    await house.ask(OWNER, "config.reload")
    write(house, f'{right}[[origin.source]]\ntools = "mcp_time_*"\ntrust = "trusted"\n[[origin.sauce]]\n')
    checked = await house.ask(OWNER, "config.check")
    assert not checked["ok"] and len(checked["faults"]) == 2
    assert checked["faults"][0].startswith("origin.source[1].trust is 'trusted'")
    assert checked["faults"][1].startswith("origin.sauce is not a setting")
    patched = {"changes": {"house": {"drain_s": 3}}, "expected_hash": checked["hash"]}
    for operation, parameters in (("config.reload", {}), ("config.apply", {}), ("config.patch", patched)):
        with pytest.raises(InvalidSettings, match=r"origin\.source\[1\]\.trust"):
            await house.ask(OWNER, operation, **parameters)
    shown = await house.ask(OWNER, "config.show")
    assert [rule["tools"] for rule in shown["settings"]["origin"]["source"]] == ["calendar_*"], "the old ones hold"


@pytest.mark.spec("H67")
async def test_an_export_holds_no_token_and_can_be_applied_again(house: DeskHouse) -> None:
    write(house, DECLARED)
    done = await house.ask(OWNER, "config.apply", take="file")
    token = await house.ask(OWNER, "token.create", principal="agent:ada")
    text = (await house.ask(OWNER, "config.export"))["text"]
    for secret in (token["token"], *done["tokens"].values()):
        assert secret not in text
    assert "token" not in text
    assert set(tomllib.loads(text)["agents"]) == {"ada", "bo", "zed"}
    write(house, text)
    again = await house.ask(OWNER, "config.apply")
    assert {each["step"] for each in (*again["agents"], *again["people"])} == {"keep"}


async def test_settings_are_shown_without_secrets_and_only_to_the_entitled(house: DeskHouse) -> None:
    shown = await house.ask(OWNER, "config.show")
    assert shown["settings"]["slots"] and shown["hash"]
    assert "postgres" not in json.dumps(shown)
    for who in (MARIA, agent("ada")):
        with pytest.raises(NotAllowed):
            await house.ask(who, "config.show")
    with pytest.raises(NotAllowed):
        await house.ask(agent("ada", PermissionLevel.PRIVILEGED), "config.apply")


@pytest.mark.spec("C3.hash")
async def test_a_change_keeps_comments_wants_the_right_hash_and_takes_effect(house: DeskHouse) -> None:
    file = write(house, "# mine\n[house]\ndrain_s = 5.0 # quick\n")
    await house.ask(OWNER, "config.reload")
    told: list[float] = []
    house.desk.require_config_holder().on_change(lambda settings: told.append(settings.drain_s))
    shown = await house.ask(OWNER, "config.show")
    done = await house.ask(OWNER, "config.patch", changes={"house": {"drain_s": 7.0}}, expected_hash=shown["hash"])
    assert [change["path"] for change in done["changes"]] == ["house.drain_s"]
    assert told == [7.0]
    assert file.read_text() == "# mine\n[house]\ndrain_s = 7.0 # quick\n"
    with pytest.raises(Conflict):
        await house.ask(OWNER, "config.patch", changes={"house": {"drain_s": 9.0}}, expected_hash=shown["hash"])
    with pytest.raises(InvalidSettings):
        await house.ask(OWNER, "config.patch", changes={"house": {"drane_s": 9.0}}, expected_hash=done["hash"])
    assert "7.0" in file.read_text()


async def test_what_needs_a_restart_waits_for_it_and_says_so(house: DeskHouse) -> None:
    write(house, '[house]\nzone = "Europe/Berlin"\ndrain_s = 3.0\n')
    done = await house.ask(OWNER, "config.reload")
    assert done["waiting-for-a-restart"] == ["house.zone"]
    keeper = house.desk.require_config_holder()
    assert str(keeper.current.settings.zone) == "UTC" and keeper.current.settings.drain_s == 3.0
    assert (await house.ask(OWNER, "config.show"))["waiting-for-a-restart"] == ["house.zone"]


async def test_people_of_the_file_never_become_owner(house: DeskHouse) -> None:
    write(house, '[people.maria]\nrole = "owner"\n')
    try:
        await house.ask(OWNER, "config.apply", take="file")
    except InvalidSettings:
        pass
    found = await house.house.store.scan(lambda conn: people.find(conn, "maria"))
    assert found is not None and found.role == "member"


@pytest.mark.spec("H91.runs", "H91.tokens", "H91.plain")
async def test_a_reset_clears_runs_and_renews_the_tokens_of_agents_and_plain_apply_does_not(house: DeskHouse) -> None:
    write(house, DECLARED)
    token = (await house.ask(OWNER, "token.create", principal="agent:ada"))["token"]
    members = (await house.ask(MARIA, "token.create"))["token"]
    await house.converse(MARIA, "hello")
    house.house.instance.model.rule = lambda prompt: text_reply("too late", after_s=3600)
    busy = await house.ask(MARIA, "envelope.send", to="agent:ada", text="long work")
    waits = await house.ask(MARIA, "envelope.send", to="agent:ada", text="waits")

    plain = await house.ask(OWNER, "config.apply", take="file")
    assert plain["cleared-runs"] == 0 and set(plain["tokens"]) == {"zoe"}
    assert await knows(house, token)
    assert len(await house.house.execute_sql("SELECT id FROM runs")) == 2

    house.house.instance.model.rule = lambda prompt: text_reply("ok")
    done = await house.ask(OWNER, "config.apply", reset=True)
    assert done["cleared-runs"] == 2
    assert set(done["tokens"]) == {"agent:ada", "agent:bo", "agent:zed"}
    assert not await knows(house, token)
    assert await knows(house, members)  # people stay signed in
    for secret in done["tokens"].values():
        assert await knows(house, secret)
    assert (await house.house.wait_for_outcome(busy["envelope"])).outcome == "cancelled"
    assert await house.house.wait_for_answer(waits["envelope"]) == "ok"  # what waited is worked afterwards
    await house.house.wait_until_idle()
    now_ms = to_ms(house.desk.clock.now())
    checked = await house.house.store.scan(lambda conn: ledger.check_ledger(conn, now_ms=now_ms))
    assert checked.is_ok, checked.lines()


@pytest.mark.spec("H91.one_transaction")
async def test_a_reset_that_fails_at_its_last_step_has_cleared_nothing(house: DeskHouse) -> None:
    write(house, '[bindings.kitchen]\nagent = "nobody"\nconnector = "telegram"\n')
    token = (await house.ask(OWNER, "token.create", principal="agent:ada"))["token"]
    await house.converse(MARIA, "hello")
    await house.ask(OWNER, "schedule.add", name="tea", to="agent:ada", text="Tea.", every="1d")
    with pytest.raises(NotFound):
        await house.ask(OWNER, "config.apply", reset=True)
    assert await knows(house, token)
    assert len(await house.house.execute_sql("SELECT id FROM runs")) == 1
    assert [each["name"] for each in (await house.ask(OWNER, "schedule.list"))["schedules"]] == ["tea"]


async def knows(house: DeskHouse, secret: str) -> bool:
    now_ms = to_ms(house.desk.clock.now())
    found = await house.house.store.read(
        lambda conn: principals.find_principal(conn, hash_token(secret), now_ms=now_ms)
    )
    return found is not None
