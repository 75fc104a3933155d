"""Which tests get a second attempt, and how those that needed it are reported."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from retry_plugin import BROWSER, REPORT, RETRIED

ROOT = Path(__file__).parent.parent
RunTests = Callable[..., pytest.RunResult]

# Fails on its first attempt only, however often its module is imported.
FLAKY = """
import pathlib, pytest

def attempt(name):
    path = pathlib.Path(f"attempts-{name}")
    path.write_text("x" + (path.read_text() if path.exists() else ""))
    return len(path.read_text())

@pytest.fixture(scope="module")
def server():
    yield attempt("server")
"""


@pytest.fixture
def run_tests(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> RunTests:
    """Run a file of tests under the plugin, as if it had this path in `tests/`."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makeini("[pytest]\nmarkers = spec")

    def run(source: str, *arguments: str, at: str = "tests/connectors/test_irc_tls.py") -> pytest.RunResult:
        path = pytester.path / at
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(FLAKY + source)
        named = ("xdist.plugin", "pytest_timeout", "spec_plugin", "retry_plugin", "no:cacheprovider")
        plugins = [word for name in named for word in ("-p", name)]
        return pytester.runpytest_inprocess(*plugins, "--retry-real", *arguments, no_reraise_ctrlc=True)

    return run


def list_retried_tests(folder: Path) -> list[str]:
    report = json.loads((folder / REPORT).read_text())
    assert report["count"] == len(report["tests"])
    return [each["test"].partition("::")[2] for each in report["tests"]]


@pytest.mark.parametrize("workers", ["0", "2"])
def test_a_test_that_passes_only_when_retried_is_listed_before_the_last_line(
    pytester: pytest.Pytester, run_tests: RunTests, workers: str
) -> None:
    outcome = run_tests(
        """
def test_flaky(): assert attempt("flaky") == 2, "the server hung up"
def test_steady(): pass
""",
        "--numprocesses",
        workers,
    )

    outcome.assert_outcomes(passed=2)
    assert outcome.ret == 0
    outcome.stdout.fnmatch_lines(
        [
            "*= unsteady: 1 test passed only when retried =*",
            "tests/connectors/test_irc_tls.py::test_flaky: AssertionError: the server hung up",
        ]
    )
    assert "2 passed, 1 retried in" in [line for line in outcome.outlines if line.strip()][-1]
    assert list_retried_tests(pytester.path) == ["test_flaky"]
    assert "the server hung up" in (pytester.path / REPORT).read_text()


def test_a_retried_test_that_fails_twice_fails(pytester: pytest.Pytester, run_tests: RunTests) -> None:
    outcome = run_tests("def test_broken(): assert attempt('broken') > 2")

    outcome.assert_outcomes(failed=1)
    assert "unsteady:" not in outcome.stdout.str()
    assert list_retried_tests(pytester.path) == []


def test_a_test_that_is_not_listed_is_not_retried(pytester: pytest.Pytester, run_tests: RunTests) -> None:
    outcome = run_tests("def test_flaky(): assert attempt('flaky') == 2", at="tests/engine/test_engine.py")

    outcome.assert_outcomes(failed=1)
    assert list_retried_tests(pytester.path) == []


def test_a_test_with_the_browser_fixture_is_retried(pytester: pytest.Pytester, run_tests: RunTests) -> None:
    source = f"""
@pytest.fixture
def {BROWSER}(): yield
def test_page({BROWSER}): assert attempt("page") == 2
def test_text(): assert attempt("text") == 2
"""
    outcome = run_tests(source, at="tests/web/test_page.py")

    outcome.assert_outcomes(passed=1, failed=1)
    assert list_retried_tests(pytester.path) == ["test_page"]


def test_nothing_is_retried_without_the_option(pytester: pytest.Pytester, run_tests: RunTests) -> None:
    run_tests("")
    (pytester.path / "tests/connectors/test_irc_tls.py").write_text(
        FLAKY + "def test_flaky(): assert attempt('flaky') == 2"
    )
    outcome = pytester.runpytest_inprocess("-p", "retry_plugin", "-p", "no:cacheprovider")

    outcome.assert_outcomes(failed=1)


def test_a_retried_test_gets_new_fixtures_even_if_the_first_attempt_could_not_start(
    pytester: pytest.Pytester, run_tests: RunTests
) -> None:
    outcome = run_tests(
        """
@pytest.fixture(scope="module")
def late():
    assert attempt("late") == 2, "it did not start"
    yield

def test_server(server): assert server == 2
def test_late(late): pass
def test_after(late): assert attempt("server") == 3
"""
    )

    outcome.assert_outcomes(passed=3)
    assert list_retried_tests(pytester.path) == ["test_server", "test_late"]


def test_the_second_attempt_of_a_retried_test_has_a_time_limit_too(
    pytester: pytest.Pytester, run_tests: RunTests
) -> None:
    outcome = run_tests(
        """
import threading
@pytest.mark.timeout(1)
def test_hangs(): threading.Event().wait()
"""
    )

    outcome.assert_outcomes(failed=1)
    outcome.stdout.fnmatch_lines(["*1 failed, 1 retried in*"])


def test_a_retried_test_reports_its_checklist_lines_and_findings_once(
    pytester: pytest.Pytester, run_tests: RunTests
) -> None:
    outcome = run_tests(
        """
from retinue.testing.fault_kit.matrix import CellResult, MatrixCell

@pytest.mark.spec("H1")
def test_flaky(fault_matrix):
    first = attempt("flaky") == 1
    result = CellResult.BROKEN if first else CellResult.HOLDS
    fault_matrix.append(MatrixCell("irc", "no-fault", result, "lost: an envelope" if first else ""))
    assert not first
""",
        *("-p", "retinue.testing.fault_kit.pytest_plugin"),
    )

    outcome.assert_outcomes(passed=1)
    results = json.loads((pytester.path / "build" / "test-results.json").read_text())
    [test] = results["tests"].values()
    assert (test["marks"], test["outcome"]) == (["H1"], "passed")
    outcome.stdout.fnmatch_lines(["no-fault*holds*"])
    assert "BROKEN" not in outcome.stdout.str()


def test_every_test_that_may_be_retried_exists() -> None:
    for test in RETRIED:
        file, _, name = test.partition("::")
        assert f"def {name.partition('[')[0]}" in (ROOT / file).read_text(), test
