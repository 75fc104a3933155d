"""The doctor: each check judges facts only, all checks run even if one fails, and a broken server is reported."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from cli.server_process import ServerProcess
from operations.operations_instance import OperationsServer, open_operations_server, person

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
DATA_DIR = Path("/home/maria/.retinue")
STORE_FACTS = StoreFacts(
    dialect="sqlite",
    revision=SCHEMA.head,
    file=DATA_DIR / "retinue.db",
    wal_bytes=0,
    latest_ms=1_000_000,
    now_ms=1_000_000,
    agents=(),
    waiting=(),
    dead_letters=0,
)
DISK_FACTS = DiskFacts(
    data_dir=DATA_DIR,
    uid=1000,
    private_paths=(
        PrivatePath(path=DATA_DIR, mode=0o700, uid=1000),
        PrivatePath(path=DATA_DIR / "owner-token", mode=0o600, uid=1000),
    ),
    free_bytes=10**12,
    file_system="ext4",
    are_logs_writable=True,
    newest_backup_ms=0,
    has_database=True,
    now_ms=0,
    restore_in_progress="",
)
AGENT_FACTS = AgentFacts(
    agents=(Agent(name="ada", model="guide"),),
    directories=frozenset({"ada"}),
    model_errors={},
    runners=frozenset({"loop"}),
)
SETTINGS_FACTS = SettingsFacts(
    faults=(), settings=Settings(home=DATA_DIR, store=DATA_DIR / "retinue.db", zone=load_zone("UTC"))
)
DAY_MS = 86_400_000
Evaluate = Callable[[Any], Iterable[DoctorFinding]]

OK_CASES: tuple[tuple[Evaluate, Any], ...] = (
    (doctor_checks.check_schema, STORE_FACTS),
    (doctor_checks.check_clock, STORE_FACTS),
    (doctor_checks.check_wal_size, STORE_FACTS),
    (doctor_checks.check_waiting_envelopes, STORE_FACTS),
    (doctor_checks.check_dead_letters, STORE_FACTS),
    (doctor_checks.check_permissions, DISK_FACTS),
    (doctor_checks.check_disk_space, DISK_FACTS),
    (doctor_checks.check_network_disk, DISK_FACTS),
    (doctor_checks.check_log_directory, DISK_FACTS),
    (doctor_checks.check_backups, DISK_FACTS),
    (doctor_checks.check_agents_usable, AGENT_FACTS),
    (doctor_checks.check_agent_directories, AGENT_FACTS),
    (doctor_checks.check_retired_models, AGENT_FACTS),
    (doctor_checks.check_settings, SETTINGS_FACTS),
    (doctor_checks.check_exposure, SETTINGS_FACTS),
    (doctor_checks.check_versions, MachineFacts(python=(3, 11), sqlite=(3, 45, 0))),
    # A stopped server does not know its models, and reports nothing about them.
    (doctor_checks.check_agents_usable, replace(AGENT_FACTS, runners=None, agents=(Agent(name="ada", model="gone"),))),
    # In a private data directory, the files inside need not be private.
    (
        doctor_checks.check_permissions,
        replace(
            DISK_FACTS,
            private_paths=(*DISK_FACTS.private_paths, PrivatePath(path=DATA_DIR / "agents", mode=0o755, uid=1000)),
        ),
    ),
    (doctor_checks.check_backups, replace(DISK_FACTS, has_database=False, newest_backup_ms=None)),
)
FINDING_CASES: tuple[tuple[Evaluate, Any, DoctorHealth, str], ...] = (
    (doctor_checks.check_schema, replace(STORE_FACTS, revision="0001"), DoctorHealth.PROBLEM, "schema is 0001"),
    (doctor_checks.check_clock, replace(STORE_FACTS, latest_ms=10_000_000), DoctorHealth.PROBLEM, "9,000 s ahead"),
    (doctor_checks.check_wal_size, replace(STORE_FACTS, wal_bytes=10**10), DoctorHealth.WARNING, "write-ahead log"),
    (
        doctor_checks.check_waiting_envelopes,
        replace(STORE_FACTS, waiting=(("ada", 3, 0),)),
        DoctorHealth.PROBLEM,
        "no run is open for 3 waiting envelopes to ada",
    ),
    (doctor_checks.check_dead_letters, replace(STORE_FACTS, dead_letters=2), DoctorHealth.WARNING, "2 dead letters"),
    (doctor_checks.check_dead_letters, replace(STORE_FACTS, dead_letters=50), DoctorHealth.WARNING, "50 or more"),
    (
        doctor_checks.check_permissions,
        replace(DISK_FACTS, private_paths=(PrivatePath(path=DATA_DIR, mode=0o755, uid=1000),)),
        DoctorHealth.PROBLEM,
        "other users can access",
    ),
    (
        doctor_checks.check_permissions,
        replace(
            DISK_FACTS,
            private_paths=(
                DISK_FACTS.private_paths[0],
                PrivatePath(path=DATA_DIR / "owner-token", mode=0o644, uid=1000),
            ),
        ),
        DoctorHealth.PROBLEM,
        "owner-token",
    ),
    (
        doctor_checks.check_permissions,
        replace(
            DISK_FACTS,
            private_paths=(DISK_FACTS.private_paths[0], PrivatePath(path=Path("/run/x.sock"), mode=0o600, uid=7)),
        ),
        DoctorHealth.PROBLEM,
        "belongs to another user",
    ),
    (doctor_checks.check_disk_space, replace(DISK_FACTS, free_bytes=500 * 1024**2), DoctorHealth.WARNING, "500 MiB"),
    (doctor_checks.check_disk_space, replace(DISK_FACTS, free_bytes=1024), DoctorHealth.PROBLEM, "0 MiB"),
    (doctor_checks.check_network_disk, replace(DISK_FACTS, file_system="nfs4"), DoctorHealth.PROBLEM, "nfs4"),
    (doctor_checks.check_log_directory, replace(DISK_FACTS, are_logs_writable=False), DoctorHealth.WARNING, "logs"),
    (doctor_checks.check_backups, replace(DISK_FACTS, newest_backup_ms=None), DoctorHealth.WARNING, "no backup"),
    (doctor_checks.check_backups, replace(DISK_FACTS, now_ms=40 * DAY_MS), DoctorHealth.WARNING, "40 days"),
    (doctor_checks.check_backups, replace(DISK_FACTS, restore_in_progress="/x"), DoctorHealth.PROBLEM, "not finished"),
    (
        doctor_checks.check_agents_usable,
        replace(AGENT_FACTS, model_errors={"ada": "there is no such model"}),
        DoctorHealth.PROBLEM,
        "no such model",
    ),
    (
        doctor_checks.check_agents_usable,
        replace(AGENT_FACTS, agents=(Agent(name="ada", runner="codex"),)),
        DoctorHealth.PROBLEM,
        "'codex'",
    ),
    (
        doctor_checks.check_retired_models,
        replace(
            AGENT_FACTS, retired_models={"ada": "google/gemini-2.5-pro retired 2026-10-16, use google/gemini-3.8-flash"}
        ),
        DoctorHealth.WARNING,
        "use google/gemini-3.8-flash",
    ),
    (
        doctor_checks.check_agent_directories,
        replace(AGENT_FACTS, directories=frozenset({"ada", "bo"})),
        DoctorHealth.WARNING,
        "bo",
    ),
    (
        doctor_checks.check_exposure,
        replace(SETTINGS_FACTS, settings=replace(SETTINGS_FACTS.settings, listen=ListenSettings(host="0.0.0.0"))),
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


@pytest.mark.parametrize(("judge", "facts"), OK_CASES)
def test_a_doctor_check_reports_nothing_for_healthy_facts(judge: Evaluate, facts: Any) -> None:
    assert list(judge(facts)) == []


@pytest.mark.parametrize(("judge", "facts", "health", "words"), FINDING_CASES)
def test_a_doctor_check_reports_a_problem_with_reason_and_what_to_try(
    judge: Evaluate, facts: Any, health: DoctorHealth, words: str
) -> None:
    [found] = judge(facts)
    assert (found.health, words in f"{found.sentence}: {found.because}") == (health, True), found
    assert found.because
    assert found.try_this


def test_doctor_finds_the_file_system_of_a_path_by_its_longest_mount_point(tmp_path: Path) -> None:
    mounts = f"/dev/a / ext4 rw 0 0\nserver:/x {tmp_path} nfs4 rw 0 0\nproc /proc proc rw 0 0\nbroken\n"
    assert find_file_system(tmp_path / "home", mounts) == "nfs4"
    assert find_file_system(Path("/somewhere"), mounts) == "ext4"
    assert find_file_system(Path("/somewhere"), "") == ""


@pytest.fixture
def instance(tmp_path: Path) -> LocalInstance:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    return LocalInstance(home)


async def run_doctor(operations: OperationsServer, **asked: Any) -> dict[str, dict[str, Any]]:
    answer = await operations.ask(OWNER, "server.doctor", **asked)
    return {check["name"]: check for check in answer["checks"]}


async def test_doctor_reports_no_problems_for_a_healthy_instance(
    instance: LocalInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(instance.root)
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: usage._replace(free=10**12))  # on any machine
    async with open_operations_server(instance) as operations:
        await operations.converse(OWNER, "hello")
        await operations.ask(OWNER, "server.backup")
        answer = await operations.ask(OWNER, "server.doctor")
        assert answer["health"] == "ok", answer["lines"]
        assert answer["lines"][-1] == "no problems found"
        assert {check["name"] for check in answer["checks"]} == set(CHECKS)
        with pytest.raises(NotAllowed):
            await operations.ask(person("maria"), "server.doctor")


@pytest.mark.spec("D72")
async def test_doctor_reports_files_that_other_users_can_read(instance: LocalInstance) -> None:
    async with open_operations_server(instance) as operations:
        (instance.root / "owner-token").write_text("secret")
        (instance.root / "owner-token").chmod(0o644)
        found = await run_doctor(operations)
        assert found["permissions"]["health"] == "problem"
        assert "owner-token" in found["permissions"]["findings"][0]["sentence"]
        (instance.root / "owner-token").chmod(0o600)
        assert (await run_doctor(operations))["permissions"]["health"] == "ok"


async def test_doctor_reports_damaged_records_a_wrong_ledger_and_a_wrong_clock_in_separate_checks(
    instance: LocalInstance,
) -> None:
    async with open_operations_server(instance) as operations:
        envelope, session = await operations.converse(OWNER, "hello")
        await operations.server.wait_until_idle()
        await operations.server.execute_sql("UPDATE records SET body = 'x' WHERE session = :s AND seq = 2", s=session)
        await operations.server.execute_sql("DELETE FROM outcomes WHERE envelope = :id", id=envelope)
        await operations.server.execute_sql("UPDATE counters SET latest_ms = latest_ms + 86400000")
        found = await run_doctor(operations)
        assert {name for name, check in found.items() if check["health"] == "problem"} == {"records", "ledger", "clock"}
        quick = await run_doctor(operations, quick=True)
        assert {name for name, check in quick.items() if check["health"] == "skipped"} == {
            "records",
            "ledger",
            "integrity",
            "plugins",  # the test's server has no plugins
            "mcp",
        }


async def test_doctor_reports_waiting_envelopes_that_no_run_reads(instance: LocalInstance) -> None:
    async with open_operations_server(instance) as operations:
        sent = await operations.ask(OWNER, "envelope.send", to="agent:ada", text="hello")
        await operations.server.wait_for_outcome(sent["envelope"])
        await operations.server.wait_until_idle()
        operations.server.engine.abandon()  # so that no run takes it meanwhile
        await operations.server.execute_sql(
            "UPDATE envelopes SET status = 'pending', due_ms = 0, settled_ms = NULL WHERE id = :id", id=sent["envelope"]
        )
        found = await run_doctor(operations, quick=True)
        assert found["waiting_envelopes"]["findings"][0]["sentence"] == "no run is open for 1 waiting envelope to ada"


async def test_a_failing_doctor_check_is_a_finding_and_the_others_still_run(tmp_path: Path) -> None:
    async def raise_error(_context: DoctorContext) -> int:
        raise RuntimeError("I do not feel well")

    async def fine(_context: DoctorContext) -> int:
        return 7

    context = DoctorContext(data_dir=tmp_path, environment={}, now=FakeClock().now())
    made = await run_checks(
        context,
        [
            DoctorCheck(name="ill", ok_message="x", gather=raise_error, evaluate=lambda _facts: ()),
            DoctorCheck(name="worse", ok_message="x", gather=fine, evaluate=lambda facts: [facts / 0]),
            DoctorCheck(name="fine", ok_message="x", gather=fine, evaluate=lambda facts: ()),
        ],
    )
    assert [check.health for check in made] == [DoctorHealth.PROBLEM, DoctorHealth.PROBLEM, DoctorHealth.OK]
    assert made[0].findings[0].because == "RuntimeError: I do not feel well"


async def test_doctor_without_a_store_reports_the_reason_and_runs_the_other_checks(tmp_path: Path) -> None:
    trouble = StoreError("the database file is damaged", because="bytes", try_this="restore")
    context = DoctorContext(
        data_dir=tmp_path, environment={"RETINUE_HOME": str(tmp_path)}, now=FakeClock().now(), store_error=trouble
    )
    made = {check.name: check for check in await run_checks(context)}
    assert made["schema"].findings[0].because == "the database file is damaged: bytes"
    assert made["ledger"].is_skipped
    assert made["settings"].health is DoctorHealth.OK


async def test_a_registered_doctor_check_needs_a_unique_name_and_is_run(instance: LocalInstance) -> None:
    async def get_temperature(_context: DoctorContext) -> int:
        return 99

    check = DoctorCheck(
        name="kettle",
        ok_message="the kettle is off",
        gather=get_temperature,
        evaluate=lambda degrees: [
            build_problem(f"it has {degrees} degrees", because="it is on", try_this="turn it off")
        ],
    )
    register_check(check)
    try:
        with pytest.raises(ValueError, match="kettle"):
            register_check(check)
        async with open_operations_server(instance) as operations:
            assert (await run_doctor(operations, quick=True))["kettle"]["health"] == "problem"
    finally:
        del CHECKS["kettle"]


@pytest.mark.spec("C1")
def test_an_unknown_setting_stops_the_start_and_doctor_still_works(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path / "home")
    server.open()
    server.kill()
    (server.home / "retinue.toml").write_text("[server.listen]\nprot = 7\n")

    refused = server.retinue("run")
    assert refused.returncode != 0
    assert "server.listen.prot" in refused.stderr

    done = server.retinue("doctor")
    assert "server.listen.prot" in done.stdout
    assert "ok       ledger" in done.stdout
    assert server.retinue("ledger").returncode == 0


def test_doctor_works_with_a_damaged_store(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path / "home")
    server.open()
    server.kill()
    for name in ("retinue.db-wal", "retinue.db-shm"):
        (server.home / name).unlink(missing_ok=True)
    (server.home / "retinue.db").write_bytes(b"x" * 4096)
    done = server.retinue("doctor")
    assert "problem  schema" in done.stdout
    assert "damaged" in done.stdout
    assert "ok       machine" in done.stdout


def test_doctor_works_without_a_data_directory_and_creates_none(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path / "nothing")
    done = server.retinue("doctor")
    assert "ok       settings" in done.stdout
    assert not server.home.exists()


def print_findings(server: ServerProcess) -> str:
    """Return the output of the command, or nothing if the MCP server that failed was just being started again."""
    done = server.retinue("doctor", "--quick")
    return done.stdout if "the MCP server 'dead' is failed" in done.stdout else ""


def list_findings(server: ServerProcess) -> dict[str, dict[str, Any]]:
    """Return the answer of the operation, or nothing if the MCP server that failed was just being started again."""
    made = {check["name"]: check for check in server.call("server.doctor", quick=True)["checks"]}
    return made if made["mcp"]["health"] != "ok" else {}


def test_doctor_reports_unusable_skills_plugins_and_mcp_servers_with_what_to_try(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path / "home")
    for folder, text in (
        (server.home / "skills" / "odd", "no front matter\n"),
        (server.home / "agents" / "main" / "skills" / "unread", "---\nname: unread\ndescription: x\n---\nDo it.\n"),
    ):
        folder.mkdir(parents=True)
        (folder / "SKILL.md").write_text(text)
    server.home.chmod(0o700)
    settings = server.home / "retinue.toml"
    settings.write_text('[plugins.gone]\n[mcp.dead]\ncommand = ["/nowhere/at/all"]\n')
    server.open()
    try:
        wait_until_sync(lambda: server.call("mcp.list")["servers"][0]["state"] != "starting", "the server was tried")
        output = wait_until_sync(lambda: print_findings(server), "doctor reports the failed MCP server")
        assert "the skill 'odd' is not used" in output
        assert f"try: correct {server.home}/skills/odd, or delete it" in output
        assert "the skill 'unread' is not used" in output
        assert "try: retinue skill approve unread --agent main" in output
        assert "the plugin 'gone' is failed" in output
        assert "because: no plugin named 'gone' is installed" in output
        assert "the MCP server 'dead' is failed" in output
        made = wait_until_sync(lambda: list_findings(server), "doctor reports the failed MCP server")
        for name, health in (("skills", "warning"), ("plugins", "problem"), ("mcp", "problem")):
            assert made[name]["health"] == health and all(found["try"] for found in made[name]["findings"])
    finally:
        server.close()
    done = server.retinue("doctor", "--quick")
    assert "the skill 'odd' is not used" in done.stdout, "a stopped server is checked as far as possible"
    assert "skipped  plugins" in done.stdout and "skipped  mcp" in done.stdout


def test_doctor_reads_the_age_of_the_newest_backup_from_the_time_of_its_manifest(tmp_path: Path) -> None:
    newest = doctor_checks._newest_backup_ms  # pyright: ignore[reportPrivateUsage]
    assert newest(tmp_path) is None
    for name, at in (("a", 100), ("b", 50)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "manifest.json").write_text("{}")
        os.utime(tmp_path / name / "manifest.json", (at, at))
    assert newest(tmp_path) == 100_000
