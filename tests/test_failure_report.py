"""The report of a failed test: tests of each kind fail on purpose in a separate pytest with the real helpers."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from failure_report import file_stem

from retinue.testing.failure_context import LINES_MAX, FailureDescription, FailureSubject, last_lines
from retinue.testing.server_description import LOG_BYTES_MAX, read_log_end, run_within

ROOT = Path(__file__).parents[1]
SETTINGS = f"""[pytest]
pythonpath = {ROOT} {ROOT / "tests"}
addopts = -p no:cacheprovider --import-mode=importlib
anyio_mode = auto
log_level = INFO
markers = slow
"""
CONFTEST = """
import pytest

pytest_plugins = ["failure_report"]

@pytest.fixture
def anyio_backend():
    return "asyncio"
"""
API_KEY, PASSWORD = "sk-of-nobody-at-all", "open-sesame"
FLOWS = f"""
import asyncio
import logging

import pytest
from flows.tools_instance import open_scripted_server
from hypothesis import given, settings, strategies

from retinue.testing.failure_context import register_subject
from retinue.testing.local_instance import LocalInstance
from retinue.testing.scripted_model import ScriptedReply, text_reply

async def test_dead(tmp_path):
    async with open_scripted_server(tmp_path / "home") as server:
        url = "https://me:{PASSWORD}@example.org/"
        logging.getLogger("retinue.tests").warning("login refused", extra={{"api_key": "{API_KEY}", "url": url}})
        await server.turn("What is on today?", ScriptedReply(fails="the model is away"))
        assert not await server.mail("person:owner")

async def test_waits(tmp_path):
    instance = LocalInstance(tmp_path)
    async with instance.run() as server:
        instance.model.will_reply("done", text_reply("never", after_s=3600))
        first = await server.send("This one is answered.")
        await server.wait_for_outcome(first.envelope)
        del first
        receipt = await server.send("This one is in question.")
        await server.wait_for(lambda _: len(instance.model.prompts) == 2, what="the model to be asked")
        assert receipt.duplicate

async def test_closed(tmp_path):
    instance = LocalInstance(tmp_path)
    async with instance.run() as server:
        instance.model.will_reply("done")
        await server.wait_for_outcome((await server.send("hello")).envelope)
    assert not instance.model.prompts

@pytest.mark.slow
@pytest.mark.parametrize("seed", [4])
def test_seeded(seed):
    assert seed == 5

@settings(derandomize=False)
@given(strategies.integers())
def test_drawn(number):
    assert number < 100

def test_badly_described():
    register_subject(lambda _error: 1 / 0)
    assert not register_subject

def test_passes(tmp_path):
    assert tmp_path
"""
PROCESSES = """
from cli.server_process import ServerProcess

from retinue.testing.crash import open_trial
from retinue.testing.crash_client import SenderProfile
from retinue.testing.crash_script import ScriptAction
from retinue.testing.planted_bugs import Bug, planted_bug
from retinue.testing.simulation import run_seed

def test_hangs(tmp_path):
    server = ServerProcess(tmp_path / "home")
    server.open()
    try:
        sent = server.call("envelope.send", to="agent:guide", text="slow 40")["envelope"]
        server.wait_for_session()
        server.pause()
        assert not sent
    finally:
        server.kill()

async def test_crash(tmp_path):
    habit = SenderProfile(recipient="agent:ada", action_weights={ScriptAction.TOOL: 1}, pause_s=0.0)
    async with open_trial(tmp_path, seed=11, habits=[habit], envelopes_max=2, has_schedules=False) as (tried, _):
        life = await tried.start("step.before-commit:1")
        assert await life.wait_for_exit(within_s=60.0) == 0

def test_storm(monkeypatch):
    monkeypatch.setenv("RETINUE_TEST", "1")
    with planted_bug(Bug.ACKNOWLEDGE_BEFORE_COMMIT):
        run_seed(5, runs=60)
"""
BROWSER = """
import pytest
from web.conftest import app, browser, server

def test_page(app):
    page = app.open_window("/")
    with page.expect_console_message(lambda message: message.text == "it broke"):
        page.evaluate("fetch('/api/nothing', {method: 'POST'}).then(() => console.error('it broke'))")
    assert page.title() == "nothing"
"""


class FailedRun:
    """The output of a pytest in which some tests failed."""

    def __init__(self, folder: Path, source: str, *arguments: str) -> None:
        self.folder = folder
        for name, text in (("pytest.ini", SETTINGS), ("conftest.py", CONFTEST), ("test_it.py", source)):
            (folder / name).write_text(text)
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("RETINUE_", "PYTEST_"))}
        command = [sys.executable, "-m", "pytest", *arguments]
        environment = kept | {"PYTHONHASHSEED": "3"}
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == pytest.ExitCode.TESTS_FAILED, done.stdout + done.stderr
        self.output = done.stdout

    def sections(self, test: str) -> dict[str, str]:
        """The sections of the first report of a test, by title."""
        _, *parts = re.split(r"^_{3,} (.+?) _{3,}$", self.output, flags=re.MULTILINE)
        reports = dict(zip(parts[-2::-2], parts[::-2], strict=True))
        _, *found = re.split(r"^-{3,} (.+?) -{3,}$", reports[test].partition("\n====")[0], flags=re.MULTILINE)
        return {title: text.strip() for title, text in zip(found[::2], found[1::2], strict=True)}

    def copy(self, test: str) -> str:
        return (self.folder / "build" / "failures" / f"test_it.py-{test}.txt").read_text()


@pytest.fixture(scope="module")
def flows(tmp_path_factory: pytest.TempPathFactory) -> FailedRun:
    """In a worker, as `make test` runs them, so that the report is sent to the main process."""
    return FailedRun(tmp_path_factory.mktemp("flows"), FLOWS, "-n", "1")


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> FailedRun:
    return FailedRun(tmp_path_factory.mktemp("processes"), PROCESSES)


def test_the_failure_report_of_a_flow_test_shows_why_its_message_failed_and_the_server_log(flows: FailedRun) -> None:
    shown = flows.sections("test_dead")
    assert list(shown) == ["server log", "why", "seed", "repeat"]
    assert '"run failed"' in shown["server log"] and "agent=ada" in shown["server log"]
    assert "[failed] message" in shown["why"] and "Turn 1: scripted failed" in shown["why"]


def test_the_failure_report_redacts_a_secret_in_the_server_log(flows: FailedRun) -> None:
    assert '"login refused" api_key=*** url=https://me:***@example.org/' in flows.sections("test_dead")["server log"]
    for line in flows.sections("test_dead").values():
        assert API_KEY not in line and PASSWORD not in line


def test_the_failure_report_marks_the_envelope_named_in_the_variables_of_the_failed_test(flows: FailedRun) -> None:
    why = flows.sections("test_waits")["why"]
    assert why.count("[") == why.count("[named in the failure] message") == 1
    assert why.endswith("Turn 1: scripted was called and has not replied yet."), "as it was before the server closed"


def test_the_failure_report_describes_a_server_that_was_closed_before_the_failure(flows: FailedRun) -> None:
    assert "[last run] run" in flows.sections("test_closed")["why"]


def test_the_failure_report_has_a_command_that_repeats_the_test_with_its_seeds(flows: FailedRun) -> None:
    seeded, drawn = flows.sections("test_seeded[4]"), flows.sections("test_drawn")
    assert "seed = 4 (parameter)" in seeded["seed"]
    command = f"PYTHONHASHSEED=3 {sys.executable} -m pytest 'test_it.py::test_seeded[4]' -m slow\n"
    assert seeded["repeat"].startswith(command)
    (option,) = re.findall(r"--hypothesis-seed=\d+", drawn["repeat"])
    assert option in drawn["seed"]


def test_a_failure_report_shows_the_error_of_a_description_that_fails(flows: FailedRun) -> None:
    shown = flows.sections("test_badly_described")
    assert shown["description"] == "This part could not be described: ZeroDivisionError: division by zero"
    assert "repeat" in shown


def test_each_failure_report_of_a_test_is_also_written_to_a_file(flows: FailedRun) -> None:
    for title, text in flows.sections("test_dead").items():
        assert f"--- {title} ---\n{text}" in flows.copy("test_dead")
    assert "assert not await server.mail" in flows.copy("test_dead")
    assert not list((flows.folder / "build" / "failures").glob("*test_passes*"))


def test_failure_reports_leave_the_summary_of_pytest_on_the_last_line(flows: FailedRun) -> None:
    assert re.fullmatch(r"=+ 6 failed, 1 passed in .* =+", flows.output.splitlines()[-1])


def test_the_failure_report_describes_a_server_that_hangs_from_its_files(processes: FailedRun) -> None:
    shown = processes.sections("test_hangs")
    assert '"server started"' in shown["server log"]
    assert "[named in the failure] message" in shown["why"] and "being worked on" in shown["why"]


def test_the_failure_report_of_a_crash_test_shows_its_seed_and_the_log_of_the_killed_server(
    processes: FailedRun,
) -> None:
    shown = processes.sections("test_crash")
    assert shown["seed"].startswith("11 (crash trial)")
    assert shown["server log"].endswith("crash point step.before-commit reached")
    assert "[not settled] message" in shown["why"]


def test_the_failure_report_of_a_simulation_shows_its_seed_and_its_envelopes(processes: FailedRun) -> None:
    shown = processes.sections("test_storm")
    assert shown["seed"].startswith("5 (simulation: python -m retinue.testing.simulation 5 --runs 60 --trace)")
    assert "Accepted" in shown["why"]


def test_the_failure_report_of_a_browser_test_shows_the_page_and_has_a_screenshot(tmp_path: Path) -> None:
    browser = FailedRun(tmp_path, BROWSER)
    shown = browser.sections("test_page")
    assert list(shown) == ["server log", "why", "page", "screenshot", "seed", "repeat"]
    assert "error: it broke" in shown["page"] and "/api/nothing: 404" in shown["page"]
    assert (tmp_path / shown["screenshot"]).read_bytes().startswith(b"\x89PNG")
    teardown = browser.sections("ERROR at teardown of test_page")
    assert teardown["screenshot"] != shown["screenshot"], "one does not replace the other"
    assert "#code" not in browser.output


def test_the_failure_report_abandons_a_store_that_does_not_answer_within_a_time_limit() -> None:
    never = threading.Event()
    try:
        assert run_within(0.01, lambda: str(never.wait())) == "The store could not be read within 0.01 s."
    finally:
        never.set()


def test_a_failure_report_shows_only_the_end_of_a_long_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("".join(f"line {number} {'x' * 500}\n" for number in range(1000)))
    assert log.stat().st_size > LOG_BYTES_MAX
    first, left_out, *lines = read_log_end(log).splitlines()
    assert first == f"The end of {log}:" and "earlier lines left out" in left_out
    assert len(lines) == LINES_MAX and lines[-1].startswith("line 999 x") and lines[-1].endswith("…")
    assert last_lines("one\ntwo") == "one\ntwo"


def test_a_description_stored_for_the_failure_report_is_not_made_again() -> None:
    asked: list[BaseException | None] = []

    def describe(error: BaseException | None) -> FailureDescription:
        asked.append(error)
        return FailureDescription(texts={"why": f"described {len(asked)} times"})

    subject = FailureSubject(describe)
    subject.describe_now(ValueError())
    assert subject.get_description(None).texts == {"why": "described 1 times"}


def test_failed_tests_with_long_names_get_different_failure_report_files() -> None:
    long = "tests/test_it.py::test_" + "x" * 300
    assert file_stem(long + "1") != file_stem(long + "2")
    assert file_stem("tests/test_it.py::test_it[a/b c]") == "tests-test_it.py-test_it-a-b-c"
