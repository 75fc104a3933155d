"""A pytest plugin: with `--retry-real`, a test that depends on a program written by others gets a second attempt.

Such a program has bugs that we cannot fix. `BROWSER` and `RETRIED` name the tests that may be retried; no other test
is retried. A test that passed only when retried is listed at the end of the run and in `build/unsteady.json`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal, cast

import pytest
from _pytest.runner import runtestprotocol

# Every test that uses this fixture, which starts Chromium.
BROWSER = "browser"
# The start of a test id, and the program that the test uses.
_FAULTS = "tests/connectors/test_fault_kit.py::test_a_connector_loses_and_duplicates_nothing_in_any_fault_case"
_CONNECTIONS = "tests/connectors/test_fault_kit.py::test_a_connector_in_the_fault_kit_reports_each_new_connection"
RETRIED = {
    "tests/tools/test_browser.py::": "Chromium",
    "tests/connectors/test_irc_server.py::": "ngIRCd",
    "tests/connectors/test_irc_tls.py::": "ngIRCd",
    "tests/connectors/test_irc_kills.py::": "ngIRCd",
    "tests/connectors/test_telegram_kills.py::": "telegram-test-api",
    "tests/connectors/test_email_kills.py::": "Exim and Dovecot",
    "tests/connectors/test_email_connector.py::": "Exim and Dovecot",
    "tests/connectors/test_email_sender_auth.py::": "Exim and Dovecot",
    "tests/connectors/test_email_parser.py::": "Exim and Dovecot",
    "tests/connectors/test_email_sending.py::": "Exim and Dovecot",
    "tests/connectors/test_telegram_peer.py::": "telegram-test-api",
    f"{_FAULTS}[irc-": "ngIRCd",
    f"{_FAULTS}[email-": "Exim and Dovecot",
    f"{_CONNECTIONS}[irc": "ngIRCd",
    f"{_CONNECTIONS}[email": "Exim and Dovecot",
}
OUTCOME = "retried"
REPORT = Path("build", "unsteady.json")

_is_second_attempt = pytest.StashKey[bool]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--retry-real",
        action="store_true",
        help="retry a failed test once if a browser or a server written by others takes part in it",
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--retry-real"):
        config.pluginmanager.register(RetryPlugin(), "retry-real")
        if not hasattr(config, "workerinput"):  # the process that sees the reports of all workers
            config.pluginmanager.register(RetryReport(config.rootpath / REPORT), "retry-report")


def may_be_retried(item: pytest.Item) -> bool:
    """Whether the test uses a browser, or `RETRIED` names it."""
    return BROWSER in getattr(item, "fixturenames", ()) or item.nodeid.startswith(tuple(RETRIED))


def close_everything(session: pytest.Session) -> None:
    """Tear down the fixtures of every scope: the browser or server that they keep may be the cause."""
    pytest.CallInfo.from_call(lambda: session._setupstate.teardown_exact(None), "teardown")  # it has failed already


class RetryPlugin:
    """Runs a test again, with all of its fixtures created again, if it failed and may be retried."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> Literal[True] | None:
        if not may_be_retried(item) or item.stash.get(_is_second_attempt, False):
            return None
        properties = list(item.user_properties)
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        reports = runtestprotocol(item, log=False, nextitem=nextitem)
        failure = next((report for report in reports if report.failed), None)
        if failure is not None:
            failure.outcome = cast("Literal['failed']", OUTCOME)
            reports = [failure]
        for report in reports:
            item.ihook.pytest_runtest_logreport(report=report)
        if failure is not None:
            close_everything(item.session)
            item.user_properties[:] = properties
            item.stash[_is_second_attempt] = True
            # Through the hook, so that other plugins treat it like any other test: the time limit starts again.
            return item.ihook.pytest_runtest_protocol(item=item, nextitem=nextitem)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True


class RetryReport:
    """Reports the tests that passed only when retried."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._failures: dict[str, pytest.TestReport] = {}
        self._failed_again: set[str] = set()

    def pytest_report_teststatus(
        self, report: pytest.TestReport
    ) -> tuple[str, str, tuple[str, dict[str, bool]]] | None:
        if report.outcome != OUTCOME:
            return None
        return OUTCOME, "R", ("RETRIED", {"yellow": True})

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.outcome == OUTCOME:
            self._failures[report.nodeid] = report
        elif report.failed:
            self._failed_again.add(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        retried = self._list_retried()
        tests = [{"test": test, "first_failure": report.longreprtext} for test, report in retried.items()]
        self._path.write_text(json.dumps({"count": len(tests), "tests": tests}, indent=2) + "\n", encoding="utf-8")

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        retried = self._list_retried()
        if not retried:
            return
        tests = "1 test" if len(retried) == 1 else f"{len(retried)} tests"
        terminalreporter.section(f"unsteady: {tests} passed only when retried", yellow=True)
        for test, report in retried.items():
            terminalreporter.write_line(f"{test}: {first_line(report)}")
        terminalreporter.write_line(f"tracebacks: {REPORT}")

    def _list_retried(self) -> dict[str, pytest.TestReport]:
        return {test: report for test, report in self._failures.items() if test not in self._failed_again}


def first_line(report: pytest.TestReport | pytest.CollectReport) -> str:
    """The first line of a failure's message."""
    crash = getattr(report.longrepr, "reprcrash", None)
    message: str = crash.message if crash is not None else report.longreprtext
    return next((line for line in message.splitlines() if line.strip()), "no message")
