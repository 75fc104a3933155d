"""The doctor: each check judges facts alone, all are made whatever becomes of one, and a broken house is seen."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from cli.server_process import HouseProcess
from operations.operations_instance import DeskHouse, desk_house, person

from retinue.config import Settings
from retinue.config.settings import ListenSettings
from retinue.domain.agent import Agent
from retinue.domain.errors import NotAllowed, StoreError
from retinue.domain.structs import replace
from retinue.domain.times import load_zone
from retinue.operations.doctor_registry import (
    CHECKS,
    DoctorCheck,
    DoctorContext,
    DoctorFinding,
    DoctorHealth,
    build_problem,
    register_check,
    run_checks,
)
from retinue.operations.server import doctor_checks
from retinue.operations.server.doctor_checks import (
    AgentFacts,
    DiskFacts,
    MachineFacts,
    PrivatePath,
    SettingsFacts,
    StoreFacts,
    find_file_system,
)
from retinue.store.open_store import SCHEMA
from retinue.testing.fake_clock import FakeClock
from retinue.testing.local_instance import LocalInstance
from retinue.testing.wait_conditions import wait_until_sync

OWNER = person("owner")
HOME = Path("/home/maria/.retinue")
STORE = StoreFacts(
    dialect="sqlite",
    revision=SCHEMA.head,
    file=HOME / "house.db",
    wal_bytes=0,
    latest_ms=1_000_000,
    now_ms=1_000_000,
    agents=(),
    waiting=(),
    dead_letters=0,
)
DISK = DiskFacts(
    data_dir=HOME,
    uid=1000,
    private_paths=(
        PrivatePath(path=HOME, mode=0o700, uid=1000),
        PrivatePath(path=HOME / "owner-token", mode=0o600, uid=1000),
    ),
    free_bytes=10**12,
    file_system="ext4",
    are_logs_writable=True,
    newest_backup_ms=0,
    has_database=True,
    now_ms=0,
    restore_in_progress="",
)
STAFF = AgentFacts(
    agents=(Agent(name="ada", model="guide"),),
    directories=frozenset({"ada"}),
    model_errors={},
    runners=frozenset({"loop"}),
)
SETTINGS = SettingsFacts(faults=(), settings=Settings(home=HOME, store=HOME / "house.db", zone=load_zone("UTC")))
DAY_MS = 86_400_000
Judge = Callable[[Any], Iterable[DoctorFinding]]

WELL: tuple[tuple[Judge, Any], ...] = (
    (doctor_checks.check_schema, STORE),
    (doctor_checks.check_clock, STORE),
    (doctor_checks.check_wal_size, STORE),
    (doctor_checks.check_waiting_envelopes, STORE),
    (doctor_checks.check_dead_letters, STORE),
    (doctor_checks.check_permissions, DISK),
    (doctor_checks.check_disk_space, DISK),
    (doctor_checks.check_network_disk, DISK),
    (doctor_checks.check_log_directory, DISK),
    (doctor_checks.check_backups, DISK),
    (doctor_checks.check_agents_usable, STAFF),
    (doctor_checks.check_agent_directories, STAFF),
    (doctor_checks.check_retired_models, STAFF),
    (doctor_checks.check_settings, SETTINGS),
    (doctor_checks.check_exposure, SETTINGS),
    (doctor_checks.check_versions, MachineFacts(python=(3, 11), sqlite=(3, 45, 0))),
    # A closed house does not know its models, and says nothing about them.
    (doctor_checks.check_agents_usable, replace(STAFF, runners=None, agents=(Agent(name="ada", model="gone"),))),
    # In a home that is closed, what lies inside need not be closed too.
    (
        doctor_checks.check_permissions,
        replace(DISK, private_paths=(*DISK.private_paths, PrivatePath(path=HOME / "agents", mode=0o755, uid=1000))),
    ),
    (doctor_checks.check_backups, replace(DISK, has_database=False, newest_backup_ms=None)),
)
AILING: tuple[tuple[Judge, Any, DoctorHealth, str], ...] = (
    (doctor_checks.check_schema, replace(STORE, revision="0001"), DoctorHealth.PROBLEM, "schema is 0001"),
    (doctor_checks.check_clock, replace(STORE, latest_ms=10_000_000), DoctorHealth.PROBLEM, "9,000 s ahead"),
    (doctor_checks.check_wal_size, replace(STORE, wal_bytes=10**10), DoctorHealth.WARNING, "write-ahead log"),
    (
        doctor_checks.check_waiting_envelopes,
        replace(STORE, waiting=(("ada", 3, 0),)),
        DoctorHealth.PROBLEM,
        "3 envelopes for ada",
    ),
    (doctor_checks.check_dead_letters, replace(STORE, dead_letters=2), DoctorHealth.WARNING, "2 dead letters"),
    (doctor_checks.check_dead_letters, replace(STORE, dead_letters=50), DoctorHealth.WARNING, "50 or more"),
    (
        doctor_checks.check_permissions,
        replace(DISK, private_paths=(PrivatePath(path=HOME, mode=0o755, uid=1000),)),
        DoctorHealth.PROBLEM,
        "other users can access",
    ),
    (
        doctor_checks.check_permissions,
        replace(
            DISK, private_paths=(DISK.private_paths[0], PrivatePath(path=HOME / "owner-token", mode=0o644, uid=1000))
        ),
        DoctorHealth.PROBLEM,
        "owner-token",
    ),
    (
        doctor_checks.check_permissions,
        replace(DISK, private_paths=(DISK.private_paths[0], PrivatePath(path=Path("/run/x.sock"), mode=0o600, uid=7))),
        DoctorHealth.PROBLEM,
        "belongs to another user",
    ),
    (doctor_checks.check_disk_space, replace(DISK, free_bytes=500 * 1024**2), DoctorHealth.WARNING, "500 MiB"),
    (doctor_checks.check_disk_space, replace(DISK, free_bytes=1024), DoctorHealth.PROBLEM, "0 MiB"),
    (doctor_checks.check_network_disk, replace(DISK, file_system="nfs4"), DoctorHealth.PROBLEM, "nfs4"),
    (doctor_checks.check_log_directory, replace(DISK, are_logs_writable=False), DoctorHealth.WARNING, "logs"),
    (doctor_checks.check_backups, replace(DISK, newest_backup_ms=None), DoctorHealth.WARNING, "no backup"),
    (doctor_checks.check_backups, replace(DISK, now_ms=40 * DAY_MS), DoctorHealth.WARNING, "40 days"),
    (doctor_checks.check_backups, replace(DISK, restore_in_progress="/x"), DoctorHealth.PROBLEM, "not finished"),
    (
        doctor_checks.check_agents_usable,
        replace(STAFF, model_errors={"ada": "there is no such model"}),
        DoctorHealth.PROBLEM,
        "no such model",
    ),
    (
        doctor_checks.check_agents_usable,
        replace(STAFF, agents=(Agent(name="ada", runner="codex"),)),
        DoctorHealth.PROBLEM,
        "'codex'",
    ),
    (
        doctor_checks.check_retired_models,
        replace(STAFF, retired_models={"ada": "google/gemini-2.5-pro retired 2026-10-16, use google/gemini-3.8-flash"}),
        DoctorHealth.WARNING,
        "use google/gemini-3.8-flash",
    ),
    (
        doctor_checks.check_agent_directories,
        replace(STAFF, directories=frozenset({"ada", "bo"})),
        DoctorHealth.WARNING,
        "bo",
    ),
    (
        doctor_checks.check_exposure,
        replace(SETTINGS, settings=replace(SETTINGS.settings, listen=ListenSettings(host="0.0.0.0"))),
        DoctorHealth.WARNING,
        "0.0.0.0",
    ),
    (
        doctor_checks.check_versions,
        MachineFacts(python=(3, 10), sqlite=(3, 45, 0)),
        DoctorHealth.PROBLEM,
        "Python 3.10",
    ),
    (
        doctor_checks.check_versions,
        MachineFacts(python=(3, 11), sqlite=(3, 8, 0)),
        DoctorHealth.PROBLEM,
        "SQLite 3.8.0",
    ),
)


@pytest.mark.parametrize(("judge", "facts"), WELL)
def test_what_is_well_is_not_complained_about(judge: Judge, facts: Any) -> None:
    assert list(judge(facts)) == []


@pytest.mark.parametrize(("judge", "facts", "health", "words"), AILING)
def test_what_ails_is_found_with_a_reason_and_a_next_move(
    judge: Judge, facts: Any, health: DoctorHealth, words: str
) -> None:
    [found] = judge(facts)
    assert (found.health, words in f"{found.sentence}: {found.because}") == (health, True), found
    assert found.because
    assert found.try_this


def test_a_disk_is_known_by_the_longest_mount_that_holds_the_path(tmp_path: Path) -> None:
    mounts = f"/dev/a / ext4 rw 0 0\nserver:/x {tmp_path} nfs4 rw 0 0\nproc /proc proc rw 0 0\nbroken\n"
    assert find_file_system(tmp_path / "home", mounts) == "nfs4"
    assert find_file_system(Path("/somewhere"), mounts) == "ext4"
    assert find_file_system(Path("/somewhere"), "") == ""


@pytest.fixture
def household(tmp_path: Path) -> LocalInstance:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    return LocalInstance(home)


async def examined(desk: DeskHouse, **asked: Any) -> dict[str, dict[str, Any]]:
    answer = await desk.ask(OWNER, "house.doctor", **asked)
    return {check["name"]: check for check in answer["checks"]}


async def test_a_house_that_is_well_is_said_to_be(household: LocalInstance) -> None:
    async with desk_house(household) as desk:
        await desk.converse(OWNER, "hello")
        await desk.ask(OWNER, "house.backup")
        answer = await desk.ask(OWNER, "house.doctor")
        assert answer["health"] == "ok", answer["lines"]
        assert answer["lines"][-1] == "no problems found"
        assert {check["name"] for check in answer["checks"]} == set(CHECKS)
        with pytest.raises(NotAllowed):
            await desk.ask(person("maria"), "house.doctor")


@pytest.mark.spec("D72")
async def test_files_that_others_can_read_are_found(household: LocalInstance) -> None:
    async with desk_house(household) as desk:
        (household.root / "owner-token").write_text("secret")
        (household.root / "owner-token").chmod(0o644)
        found = await examined(desk)
        assert found["permissions"]["health"] == "problem"
        assert "owner-token" in found["permissions"]["found"][0]["sentence"]
        (household.root / "owner-token").chmod(0o600)
        assert (await examined(desk))["permissions"]["health"] == "ok"


async def test_damage_is_found_by_the_check_that_is_for_it(household: LocalInstance) -> None:
    async with desk_house(household) as desk:
        envelope, session = await desk.converse(OWNER, "hello")
        await desk.house.wait_until_idle()
        await desk.house.execute_sql("UPDATE records SET body = 'x' WHERE session = :s AND seq = 2", s=session)
        await desk.house.execute_sql("DELETE FROM outcomes WHERE envelope = :id", id=envelope)
        await desk.house.execute_sql("UPDATE house SET latest_ms = latest_ms + 86400000")
        found = await examined(desk)
        assert {name for name, check in found.items() if check["health"] == "problem"} == {"records", "ledger", "clock"}
        quick = await examined(desk, quick=True)
        assert {name for name, check in quick.items() if check["health"] == "skipped"} == {
            "records",
            "ledger",
            "integrity",
            "plugins",  # a house that was furnished by hand has none
            "mcp",
        }


async def test_mail_that_nobody_reads_is_found(household: LocalInstance) -> None:
    async with desk_house(household) as desk:
        sent = await desk.ask(OWNER, "envelope.send", to="agent:ada", text="hello")
        await desk.house.wait_for_outcome(sent["envelope"])
        await desk.house.wait_until_idle()
        desk.house.engine.abandon()  # so that nobody reads it meanwhile
        await desk.house.execute_sql(
            "UPDATE envelopes SET status = 'pending', due_ms = 0, settled_ms = NULL WHERE id = :id", id=sent["envelope"]
        )
        found = await examined(desk, quick=True)
        assert found["waiting"]["found"][0]["sentence"] == "1 envelopes for ada wait, and no run reads them"


async def test_a_check_that_fails_is_a_finding_and_keeps_no_other_from_being_made(tmp_path: Path) -> None:
    async def ill(_scene: DoctorContext) -> int:
        raise RuntimeError("I do not feel well")

    async def fine(_scene: DoctorContext) -> int:
        return 7

    scene = DoctorContext(data_dir=tmp_path, environment={}, now=FakeClock().now())
    made = await run_checks(
        scene,
        [
            DoctorCheck(name="ill", ok_message="x", gather=ill, evaluate=lambda _facts: ()),
            DoctorCheck(name="worse", ok_message="x", gather=fine, evaluate=lambda facts: [facts / 0]),
            DoctorCheck(name="fine", ok_message="x", gather=fine, evaluate=lambda facts: ()),
        ],
    )
    assert [check.health for check in made] == [DoctorHealth.PROBLEM, DoctorHealth.PROBLEM, DoctorHealth.OK]
    assert made[0].findings[0].because == "RuntimeError: I do not feel well"


async def test_without_a_store_the_reason_is_told_and_the_rest_is_looked_at(tmp_path: Path) -> None:
    trouble = StoreError("the database file is damaged", because="bytes", try_this="restore")
    scene = DoctorContext(
        data_dir=tmp_path, environment={"RETINUE_HOME": str(tmp_path)}, now=FakeClock().now(), store_error=trouble
    )
    made = {check.name: check for check in await run_checks(scene)}
    assert made["schema"].findings[0].because == "the database file is damaged: bytes"
    assert made["ledger"].is_skipped
    assert made["settings"].health is DoctorHealth.OK


async def test_a_part_brings_its_own_check_under_a_name_of_its_own(household: LocalInstance) -> None:
    async def kettle(_scene: DoctorContext) -> int:
        return 99

    check = DoctorCheck(
        name="kettle",
        ok_message="the kettle is off",
        gather=kettle,
        evaluate=lambda degrees: [
            build_problem(f"it has {degrees} degrees", because="it is on", try_this="turn it off")
        ],
    )
    register_check(check)
    try:
        with pytest.raises(ValueError, match="kettle"):
            register_check(check)
        async with desk_house(household) as desk:
            assert (await examined(desk, quick=True))["kettle"]["health"] == "problem"
    finally:
        del CHECKS["kettle"]


@pytest.mark.spec("C1")
def test_an_unknown_setting_refuses_the_start_by_its_full_path_and_the_doctor_still_comes(tmp_path: Path) -> None:
    house = HouseProcess(tmp_path / "home")
    house.open()
    house.kill()
    (house.home / "retinue.toml").write_text("[house.listen]\nprot = 7\n")

    refused = house.retinue("run")
    assert refused.returncode != 0
    assert "house.listen.prot" in refused.stderr

    told = house.retinue("doctor")
    assert "house.listen.prot" in told.stdout
    assert "ok       ledger" in told.stdout
    assert house.retinue("ledger").returncode == 0


def test_the_doctor_comes_to_a_house_whose_store_is_damaged(tmp_path: Path) -> None:
    house = HouseProcess(tmp_path / "home")
    house.open()
    house.kill()
    for name in ("house.db-wal", "house.db-shm"):
        (house.home / name).unlink(missing_ok=True)
    (house.home / "house.db").write_bytes(b"x" * 4096)
    told = house.retinue("doctor")
    assert "problem  schema" in told.stdout
    assert "damaged" in told.stdout
    assert "ok       machine" in told.stdout


def test_the_doctor_comes_where_there_was_never_a_house(tmp_path: Path) -> None:
    house = HouseProcess(tmp_path / "nothing")
    told = house.retinue("doctor")
    assert "ok       settings" in told.stdout
    assert not house.home.exists()


def test_a_real_house_says_which_skill_plugin_and_server_it_does_without_and_what_to_do(tmp_path: Path) -> None:
    house = HouseProcess(tmp_path / "home")
    for folder, text in (
        (house.home / "skills" / "odd", "no front matter\n"),
        (house.home / "agents" / "main" / "skills" / "unread", "---\nname: unread\ndescription: x\n---\nDo it.\n"),
    ):
        folder.mkdir(parents=True)
        (folder / "SKILL.md").write_text(text)
    house.home.chmod(0o700)
    settings = house.home / "retinue.toml"
    settings.write_text('[plugins.gone]\n[mcp.dead]\ncommand = ["/nowhere/at/all"]\n')
    house.open()
    try:
        wait_until_sync(lambda: house.call("mcp.list")["servers"][0]["state"] != "starting", "the server was tried")
        told = house.retinue("doctor", "--quick")
        assert "the skill 'odd' is not used" in told.stdout
        assert f"try: correct {house.home}/skills/odd, or delete it" in told.stdout
        assert "the skill 'unread' is not used" in told.stdout
        assert "try: retinue skill approve unread --agent main" in told.stdout
        assert "the plugin 'gone' is failed" in told.stdout
        assert "because: no plugin named 'gone' is installed" in told.stdout
        assert "the MCP server 'dead' is failed" in told.stdout
        made = {check["name"]: check for check in house.call("house.doctor", quick=True)["checks"]}
        for name, health in (("skills", "warning"), ("plugins", "problem"), ("mcp", "problem")):
            assert made[name]["health"] == health and all(found["try"] for found in made[name]["found"])
    finally:
        house.close()
    told = house.retinue("doctor", "--quick")
    assert "the skill 'odd' is not used" in told.stdout, "a closed house is looked at as far as it can be"
    assert "skipped  plugins" in told.stdout and "skipped  mcp" in told.stdout


def test_the_time_of_a_backup_is_that_of_its_manifest(tmp_path: Path) -> None:
    newest = doctor_checks._newest_backup_ms  # pyright: ignore[reportPrivateUsage]
    assert newest(tmp_path) is None
    for name, at in (("a", 100), ("b", 50)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "manifest.json").write_text("{}")
        os.utime(tmp_path / name / "manifest.json", (at, at))
    assert newest(tmp_path) == 100_000
