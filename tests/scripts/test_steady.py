"""Unsteady tests are found and named: small suites, run by the real pytest."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from retinue.testing.wait_conditions import wait_until_sync
from scripts import slow_disk, steady

ROOT = Path(__file__).parents[2]

# `run()` counts how often a test has run in all runs of the suite.
HELPER_SOURCE = """
import os, pathlib, pytest

def run(name):
    path = pathlib.Path(__file__).parent / f"runs-{name}"
    path.write_text("x" + (path.read_text() if path.exists() else ""))
    return len(path.read_text())
"""

PYPROJECT = f"""
[tool.pytest.ini_options]
addopts = ["-p", "xdist.plugin", "-p", "pytest_timeout"]
testpaths = ["tests"]
pythonpath = ["{ROOT / "tests"}"]
"""


@pytest.fixture
def suite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with a package and a suite, with our plugins and as few others as possible."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    (tmp_path / "pyproject.toml").write_text(PYPROJECT)
    (tmp_path / "tests" / "connectors").mkdir(parents=True)
    (tmp_path / "tests" / "conftest.py").write_text('pytest_plugins = ["retry_plugin", "steady_plugin"]\n')
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "product.py").write_text("ANSWER = 41\n")
    return tmp_path


def write_tests(suite: Path, source: str, at: str = "tests/test_fake.py") -> None:
    (suite / at).write_text(HELPER_SOURCE + source)


def test_each_unsteady_test_is_reported_with_the_command_that_repeats_it(
    suite: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_tests(
        suite,
        """
def test_steady(): pass
def test_flaky(): assert run("flaky") == 1, "not again"
def test_sometimes_skipped():
    if run("skipped") == 2: pytest.skip()
def test_kills_its_worker():
    if run("killed") == 1: os._exit(1)
@pytest.mark.timeout(3)
def test_hangs():
    import threading
    if run("hangs") == 2: threading.Event().wait()
""",
    )
    write_tests(
        suite, "def test_server(): assert run('server') != 1, 'hung up'\n", at="tests/connectors/test_irc_tls.py"
    )

    exit_code = steady.main(["--rounds", "2", "--only", "quiet", "--seed", "70"], suite)

    output = capsys.readouterr().out
    assert exit_code == 1
    repeat = "    repeat: make steady ARGS='--rounds 1 --only quiet --seed {} {}'\n  in the other parts: 1 passed\n"
    first, second = repeat.format(70, "tests/test_fake.py"), repeat.format(71, "tests/test_fake.py")
    server = repeat.format(70, "tests/connectors/test_irc_tls.py")
    assert (
        f"unsteady: tests/test_fake.py::test_flaky\n  round 2, quiet: failed: AssertionError: not again\n{second}"
        in output
    )
    assert f"::test_sometimes_skipped\n  round 2, quiet: skipped\n{second}" in output
    assert "::test_hangs\n  round 2, quiet: failed: Failed: Timeout (>3.0s)" in output
    assert "::test_kills_its_worker\n  round 1, quiet: failed: " in output and first in output
    assert f"::test_server\n  round 1, quiet: passed only when retried: AssertionError: hung up\n{server}" in output
    assert "::test_steady" not in output
    assert output.endswith("steady: 2 of 2 parts ran to completion, 5 unsteady tests\n")


def test_the_steady_script_runs_every_part_of_a_round_and_passes_for_a_steady_suite(
    suite: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_tests(suite, "def test_where(): print(f'preload={os.environ.get(\"LD_PRELOAD\")}')\n")

    assert steady.main(["--rounds", "1", "tests/test_fake.py"], suite) == 0

    output = capsys.readouterr().out
    assert output.endswith("steady: 3 of 3 parts ran to completion, 0 unsteady tests\n")
    assert [path.name for path in sorted(suite.rglob("build/steady/*/*.jsonl"))] == [
        "1-busy.jsonl",
        "1-quiet.jsonl",
        "1-slow-disk.jsonl",
    ]


def test_a_completed_part_of_a_steady_round_is_run_again_only_when_the_product_changed(suite: Path) -> None:
    write_tests(suite, "def test_counts(): assert run('counts')\n")
    runs = suite / "tests" / "runs-counts"
    [quiet] = [part for part in steady.PARTS if part.name == "quiet"]
    again = steady.Steady(root=suite, paths=(), rounds=1, parts=(quiet,), seed=1)
    [result] = again.run()
    assert result.is_whole and result.attempts == {"tests/test_fake.py::test_counts": [steady.Attempt("passed")]}

    again.run()
    assert runs.read_text() == "x"

    (suite / "src" / "product.py").write_text("ANSWER = 42\n")
    again.run()
    assert runs.read_text() == "xx"

    path = again.path_of(1, "quiet")
    path.write_text(path.read_text().rpartition('"exit_status"')[0])  # as if it was killed while writing its last line
    cut_short = steady.read_result(path)
    assert cut_short is not None and not cut_short.is_whole and cut_short.attempts
    again.run()
    assert runs.read_text() == "xxx"

    again.forget([1])
    again.run()
    assert runs.read_text() == "xxxx"


def test_an_interrupted_part_of_a_steady_round_does_not_count_as_completed(suite: Path) -> None:
    write_tests(suite, "def test_waits():\n    run('waits')\n    import threading\n    threading.Event().wait()\n")
    program = f"""
import signal, sys
sys.path.insert(0, {str(ROOT)!r})
from pathlib import Path
from scripts import steady
sys.exit(steady.main(["--rounds", "1", "--only", "quiet"], Path({str(suite)!r})))
"""
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    wait_until_sync((suite / "tests" / "runs-waits").exists, "the test runs")
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate()

    assert process.returncode == 1
    assert "INCOMPLETE" in output and output.endswith("steady: 0 of 1 parts ran to completion, 0 unsteady tests\n")


def test_a_failed_import_counts_as_an_unsteady_test(suite: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_tests(suite, "import no_such_module\n")

    assert steady.main(["--rounds", "1", "--only", "quiet"], suite) == 1
    assert "unsteady: tests/test_fake.py\n" in capsys.readouterr().out


def test_a_changed_test_helper_does_not_change_the_product_fingerprint_of_the_steady_script(suite: Path) -> None:
    before = steady.fingerprint(suite)
    (suite / "src" / "testing").mkdir()
    (suite / "src" / "testing" / "helper.py").write_text("")
    assert steady.fingerprint(suite) == before
    (suite / "src" / "more.py").write_text("")
    assert steady.fingerprint(suite) != before


def test_a_busy_process_of_the_steady_script_ends_when_its_parent_is_killed() -> None:
    program = f"""
import os, signal, sys
sys.path.insert(0, {str(ROOT)!r})
from scripts import steady
print(steady.busy_process().pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    killed = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, check=False)
    assert killed.returncode == -signal.SIGKILL

    wait_until_sync(lambda: not is_alive(int(killed.stdout)), "the busy process has ended")


def is_alive(pid: int) -> bool:
    state = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], stdout=subprocess.PIPE, text=True, check=False).stdout
    return bool(state.strip()) and not state.startswith("Z")


# --- test order ---


def collected_order(pytester: pytest.Pytester, seed: int, *arguments: str) -> list[str]:
    arguments = ("-p", "steady_plugin", "-p", "no:cacheprovider", "--collect-only", "-q", *arguments)
    outcome = pytester.runpytest_inprocess("--order-seed", str(seed), *arguments)
    return [line for line in outcome.outlines if "::" in line]


def test_the_test_order_of_a_steady_round_depends_only_on_the_seed_and_keeps_files_together(
    pytester: pytest.Pytester,
) -> None:
    source = "".join(f"def test_{number}(): pass\n" for number in range(10))
    pytester.makepyfile(**{f"test_{name}": source for name in "abcde"})

    first = collected_order(pytester, 1)
    files = [test.partition("::")[0] for test in first]

    assert len(first) == 50
    assert first == collected_order(pytester, 1)
    assert first != collected_order(pytester, 2)
    assert first != sorted(first)
    assert list(dict.fromkeys(files)) != sorted(set(files)), "the files are shuffled too"
    assert sum(one != next_ for one, next_ in pairwise(files)) == 4, "the tests of a file stay together"
    assert collected_order(pytester, 1, "test_c.py") == [test for test in first if test.startswith("test_c.py")]


# --- slow disk ---

COMMITS_PER_DATABASE = 4
COMMIT_SCRIPT = f"""
import sqlite3, sys, time
from retinue.testing.postgres import run_postgres_server

def timed(execute):
    begun = time.monotonic()
    for number in range({COMMITS_PER_DATABASE}):
        execute("INSERT INTO t VALUES (1)")
    print(time.monotonic() - begun)

sqlite = sqlite3.connect(sys.argv[1], isolation_level=None)
sqlite.execute("CREATE TABLE t (n int)")
timed(sqlite.execute)
with run_postgres_server() as server, server.connect() as postgres:
    postgres.execute("CREATE TABLE t (n int)")
    timed(postgres.execute)
"""


def test_a_slow_disk_delays_the_commits_of_sqlite_and_of_postgresql(tmp_path: Path) -> None:
    with slow_disk.slow_disk(100) as environment:
        command = [sys.executable, "-c", COMMIT_SCRIPT, str(tmp_path / "db")]
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)

    # A minimum: a busy machine can only make it longer.
    sqlite_s, postgres_s = map(float, done.stdout.split())
    assert sqlite_s >= COMMITS_PER_DATABASE * 0.1
    assert postgres_s >= COMMITS_PER_DATABASE * 0.1


def test_without_a_compiler_the_slow_disk_is_refused_with_an_install_command(
    suite: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(suite))

    assert steady.main(["--only", "slow-disk"], suite) == 1
    assert "try: sudo apt-get install -y gcc" in capsys.readouterr().err


def test_results_of_a_part_of_a_steady_round_are_stored_with_the_revision(suite: Path) -> None:
    git = ["git", "-c", "user.name=t", "-c", "user.email=t@example.org"]
    for command in (["init", "-q"], ["add", "src"], ["commit", "-q", "-m", "first"]):
        subprocess.run([*git, *command], cwd=suite, check=True, env={**os.environ, "GIT_CONFIG_GLOBAL": "/dev/null"})
    revision = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=suite, stdout=subprocess.PIPE, text=True, check=True
    ).stdout.strip()

    assert steady.revision_of(suite) == revision
    (suite / "src" / "product.py").write_text("ANSWER = 42\n")
    assert steady.revision_of(suite) == f"{revision}+"
    result = steady.PartResult(1, "quiet", 7, "p", revision)
    header = {name: getattr(result, name) for name in ("round", "part", "seed", "product", "revision")}
    (suite / "part.jsonl").write_text(json.dumps(header) + "\n")
    assert steady.read_result(suite / "part.jsonl") == result
