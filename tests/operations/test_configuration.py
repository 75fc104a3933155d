"""Operations on settings, and applying the agents, people and bindings that the settings file declares."""

from __future__ import annotations

import json
import tomllib
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
from operations.operations_instance import OperationsServer, agent, open_operations_server, person

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
from retinue.testing.wait_conditions import wait_until

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
async def server(tmp_path: Path) -> AsyncGenerator[OperationsServer]:
    home = tmp_path / "home"
    home.mkdir()
    environment = {"RETINUE_HOME": str(home)}
    async with open_operations_server(LocalInstance(tmp_path)) as made:
        made.services = replace(made.services, config_holder=ConfigHolder(load_configuration(environment), environment))
        yield made


def write_settings(server: OperationsServer, text: str) -> Path:
    file = server.services.require_config_holder().current.file
    file.write_text(text)
    return file


async def stored_agents(server: OperationsServer) -> dict[str, object]:
    found = await server.server.store.scan(lambda conn: agents.list_all(conn))
    return {each.name: each for each in found}


@pytest.mark.spec("H66")
async def test_config_apply_previews_its_steps_in_a_dry_run_and_then_applies_them(server: OperationsServer) -> None:
    write_settings(server, DECLARED)
    before = await stored_agents(server)
    shown = await server.ask(OWNER, "config.apply", dry_run=True, overwrite=True)
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
    assert await stored_agents(server) == before

    done = await server.ask(OWNER, "config.apply", overwrite=True)
    assert [each["step"] for each in done["agents"]] == [each["step"] for each in shown["agents"]]
    assert set(done["tokens"]) == {"zoe"}
    now = await stored_agents(server)
    assert set(now) == {"ada", "bo", "zed"}
    assert (server.services.data_dir / "agents" / "zed").is_dir()
    again = await server.ask(OWNER, "config.apply")
    assert {each["step"] for each in again["agents"]} == {"keep", "undeclared"}
    assert again["tokens"] == {}
    envelope, _ = await server.converse(MARIA, "hello", to="agent:zed")
    assert await server.server.wait_for_answer(envelope) == "ok"


@pytest.mark.spec("H66")
async def test_config_apply_reports_drift_and_keeps_it_unless_the_file_is_taken(server: OperationsServer) -> None:
    write_settings(server, DECLARED)
    await server.ask(OWNER, "config.apply", overwrite=True)
    await server.ask(OWNER, "agent.set", name="zed", description="Sleeps in the hall")
    drifted = await server.ask(OWNER, "config.apply")
    zed = next(each for each in drifted["agents"] if each["name"] == "zed")
    assert (zed["step"], set(zed["changed"])) == ("drift", {"description"})
    assert "use `--overwrite` to overwrite" in zed["because"]
    assert getattr((await stored_agents(server))["zed"], "description") == "Sleeps in the hall"  # noqa: B009
    await server.ask(OWNER, "config.apply", overwrite=True)
    assert getattr((await stored_agents(server))["zed"], "description") == ""  # noqa: B009
    with pytest.raises(Invalid, match="invalid parameters"):
        await server.ask(OWNER, "config.apply", overwrite="store")


@pytest.mark.spec("H66")
async def test_an_invalid_settings_file_is_refused_by_config_apply_and_changes_nothing(
    server: OperationsServer,
) -> None:
    write_settings(server, DECLARED + "\n[agents.broken]\nshape = 'round'\n")
    before = await stored_agents(server)
    with pytest.raises(InvalidSettings, match=r"agents\.broken\.shape"):
        await server.ask(OWNER, "config.apply")
    assert await stored_agents(server) == before
    checked = await server.ask(OWNER, "config.check")
    assert not checked["ok"] and "agents.broken.shape" in checked["faults"][0]
    with pytest.raises(InvalidSettings):
        await server.ask(OWNER, "config.reload")


async def test_an_invalid_provenance_rule_is_found_by_config_check_and_refused_elsewhere(
    server: OperationsServer,
) -> None:
    right = '[[provenance.source]]\ntools = "calendar_*"\ntrust = "untrusted"\n'
    write_settings(server, right)
    await server.ask(OWNER, "config.reload")
    write_settings(
        server, f'{right}[[provenance.source]]\ntools = "mcp_time_*"\ntrust = "trusted"\n[[provenance.sauce]]\n'
    )
    checked = await server.ask(OWNER, "config.check")
    assert not checked["ok"] and len(checked["faults"]) == 2
    assert checked["faults"][0].startswith("provenance.source[1].trust is 'trusted'")
    assert checked["faults"][1].startswith("provenance.sauce is not a setting")
    patched = {"changes": {"server": {"drain_s": 3}}, "expected_hash": checked["hash"]}
    for operation, parameters in (("config.reload", {}), ("config.apply", {}), ("config.patch", patched)):
        with pytest.raises(InvalidSettings, match=r"provenance\.source\[1\]\.trust"):
            await server.ask(OWNER, operation, **parameters)
    shown = await server.ask(OWNER, "config.show")
    assert [rule["tools"] for rule in shown["settings"]["provenance"]["source"]] == ["calendar_*"], (
        "the old rules still apply"
    )


@pytest.mark.spec("H67")
async def test_config_export_holds_no_token_and_can_be_applied_again(server: OperationsServer) -> None:
    write_settings(server, DECLARED)
    done = await server.ask(OWNER, "config.apply", overwrite=True)
    token = await server.ask(OWNER, "token.create", principal="agent:ada")
    text = (await server.ask(OWNER, "config.export"))["text"]
    for secret in (token["token"], *done["tokens"].values()):
        assert secret not in text
    assert "token" not in text
    assert set(tomllib.loads(text)["agents"]) == {"ada", "bo", "zed"}
    write_settings(server, text)
    again = await server.ask(OWNER, "config.apply")
    assert {each["step"] for each in (*again["agents"], *again["people"])} == {"keep"}


async def test_config_show_hides_secrets_and_requires_permission(server: OperationsServer) -> None:
    shown = await server.ask(OWNER, "config.show")
    assert shown["settings"]["slots"] and shown["hash"]
    assert "postgres" not in json.dumps(shown)
    for who in (MARIA, agent("ada")):
        with pytest.raises(NotAllowed):
            await server.ask(who, "config.show")
    with pytest.raises(NotAllowed):
        await server.ask(agent("ada", PermissionLevel.PRIVILEGED), "config.apply")


@pytest.mark.spec("C3.hash")
async def test_config_patch_keeps_comments_requires_the_current_hash_and_takes_effect(server: OperationsServer) -> None:
    file = write_settings(server, "# mine\n[server]\ndrain_s = 5.0 # quick\n")
    await server.ask(OWNER, "config.reload")
    told: list[float] = []
    server.services.require_config_holder().on_change(lambda settings: told.append(settings.drain_s))
    shown = await server.ask(OWNER, "config.show")
    done = await server.ask(OWNER, "config.patch", changes={"server": {"drain_s": 7.0}}, expected_hash=shown["hash"])
    assert [change["path"] for change in done["changes"]] == ["server.drain_s"]
    assert told == [7.0]
    assert file.read_text() == "# mine\n[server]\ndrain_s = 7.0 # quick\n"
    with pytest.raises(Conflict):
        await server.ask(OWNER, "config.patch", changes={"server": {"drain_s": 9.0}}, expected_hash=shown["hash"])
    with pytest.raises(InvalidSettings):
        await server.ask(OWNER, "config.patch", changes={"server": {"drane_s": 9.0}}, expected_hash=done["hash"])
    assert "7.0" in file.read_text()


async def test_config_reload_reports_settings_that_wait_for_a_restart(server: OperationsServer) -> None:
    write_settings(server, '[server]\nzone = "Europe/Berlin"\ndrain_s = 3.0\n')
    done = await server.ask(OWNER, "config.reload")
    assert done["pending_restart"] == ["server.zone"]
    keeper = server.services.require_config_holder()
    assert str(keeper.current.settings.zone) == "UTC" and keeper.current.settings.drain_s == 3.0
    assert (await server.ask(OWNER, "config.show"))["pending_restart"] == ["server.zone"]


async def test_config_apply_cannot_make_a_person_of_the_settings_file_the_owner(server: OperationsServer) -> None:
    write_settings(server, '[people.maria]\nrole = "owner"\n')
    try:
        await server.ask(OWNER, "config.apply", overwrite=True)
    except InvalidSettings:
        pass
    found = await server.server.store.scan(lambda conn: people.find(conn, "maria"))
    assert found is not None and found.role == "member"


async def test_config_apply_reports_a_forgotten_person_and_still_applies_the_rest(server: OperationsServer) -> None:
    await server.ask(OWNER, "person.forget", name="maria", confirm="maria")
    write_settings(server, DECLARED)
    for overwrite in (False, True):
        done = await server.ask(OWNER, "config.apply", overwrite=overwrite)
        maria = next(each for each in done["people"] if each["name"] == "maria")
        assert maria["step"] == "drift" and "stays reserved" in maria["because"]
    assert "zoe" in {each["name"] for each in (await server.ask(OWNER, "person.list"))["people"]}
    with pytest.raises(NotFound):
        await server.ask(OWNER, "person.role", name="maria", role="guest")


@pytest.mark.spec("H91.runs", "H91.tokens", "H91.plain")
async def test_config_apply_with_reset_clears_runs_and_renews_agent_tokens(server: OperationsServer) -> None:
    write_settings(server, DECLARED)
    token = (await server.ask(OWNER, "token.create", principal="agent:ada"))["token"]
    members = (await server.ask(MARIA, "token.create"))["token"]
    await server.converse(MARIA, "hello")
    server.server.instance.model.rule = lambda prompt: text_reply("too late", after_s=3600)
    busy = await server.ask(MARIA, "envelope.send", to="agent:ada", text="long work")
    await wait_until(lambda: len(server.server.instance.model.prompts) == 2, "the model is asked")
    waits = await server.ask(MARIA, "envelope.send", to="agent:ada", text="waits")

    plain = await server.ask(OWNER, "config.apply", overwrite=True)
    assert plain["cleared_runs"] == 0 and set(plain["tokens"]) == {"zoe"}
    assert await token_is_valid(server, token)
    assert len(await server.server.execute_sql("SELECT id FROM runs")) == 2

    server.server.instance.model.rule = lambda prompt: text_reply("ok")
    done = await server.ask(OWNER, "config.apply", reset=True)
    assert done["cleared_runs"] == 2
    assert set(done["tokens"]) == {"agent:ada", "agent:bo", "agent:zed"}
    assert not await token_is_valid(server, token)
    assert await token_is_valid(server, members)  # people stay signed in
    for secret in done["tokens"].values():
        assert await token_is_valid(server, secret)
    assert (await server.server.wait_for_outcome(busy["envelope"])).outcome == "cancelled"
    assert await server.server.wait_for_answer(waits["envelope"]) == "ok"  # a waiting envelope is answered afterwards
    await server.server.wait_until_idle()
    now_ms = to_ms(server.services.clock.now())
    checked = await server.server.store.scan(lambda conn: ledger.check_ledger(conn, now_ms=now_ms))
    assert checked.is_ok, checked.lines()


@pytest.mark.spec("H91.one_transaction")
async def test_a_config_reset_that_fails_at_its_last_step_clears_nothing(server: OperationsServer) -> None:
    write_settings(server, '[bindings.kitchen]\nagent = "nobody"\nconnector = "telegram"\n')
    token = (await server.ask(OWNER, "token.create", principal="agent:ada"))["token"]
    await server.converse(MARIA, "hello")
    await server.ask(OWNER, "schedule.add", name="tea", to="agent:ada", text="Tea.", every="1d")
    with pytest.raises(NotFound):
        await server.ask(OWNER, "config.apply", reset=True)
    assert await token_is_valid(server, token)
    assert len(await server.server.execute_sql("SELECT id FROM runs")) == 1
    assert [each["name"] for each in (await server.ask(OWNER, "schedule.list"))["schedules"]] == ["tea"]


async def token_is_valid(server: OperationsServer, secret: str) -> bool:
    now_ms = to_ms(server.services.clock.now())
    found = await server.server.store.read(
        lambda conn: principals.find_principal(conn, hash_token(secret), now_ms=now_ms)
    )
    return found is not None


async def test_the_doctor_renames_old_settings_and_the_server_reads_the_new_file(server: OperationsServer) -> None:
    file = write_settings(server, "# mine\n[house]\ndrain_s = 3.0\n")
    with pytest.raises(InvalidSettings, match=r"`house\.drain_s` is now `server\.drain_s`"):
        await server.ask(OWNER, "config.reload")
    report = await server.ask(OWNER, "server.doctor", fix=True)
    assert file.read_text() == "# mine\n[server]\ndrain_s = 3.0\n"
    assert any("house.drain_s -> server.drain_s" in line for line in report["fixed"])
    shown = await server.ask(OWNER, "config.show")
    assert shown["settings"]["drain_s"] == 3.0
    await server.ask(OWNER, "config.patch", changes={"server": {"drain_s": 4.0}}, expected_hash=shown["hash"])
    assert file.read_text() == "# mine\n[server]\ndrain_s = 4.0\n"


@pytest.mark.parametrize(
    ("operation", "parameters", "because"),
    [
        ("agent.set", {"name": "ada", "colour": "teal"}, "`colour` is now `color`"),
        ("agent.set", {"name": "ada", "clear": ["delegation_circles"]}, "`delegation_circles` is now"),
        ("schedule.add", {"to": "agent:ada", "every": "1h", "place": "own"}, "`place` is now `session`"),
        ("config.patch", {"changes": {"house": {"zone": "UTC"}}}, "new name"),
    ],
)
async def test_an_operation_parameter_with_an_old_name_is_refused_and_its_new_name_is_given(
    server: OperationsServer, operation: str, parameters: dict[str, Any], because: str
) -> None:
    if operation == "config.patch":
        parameters = {**parameters, "expected_hash": (await server.ask(OWNER, "config.show"))["hash"]}
    with pytest.raises(Invalid) as refused:
        await server.ask(OWNER, operation, **parameters)
    assert because in refused.value.because
