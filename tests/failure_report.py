"""A pytest plugin that adds to a failed test: its seed, the server log, `why`, the browser page, and how to repeat it.

Everything is also written to `build/failures`. A passing test costs only the registration of what it opens.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import shlex
import sys
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import pytest

from retinue.app.logs import LogFormatter
from retinue.testing import failure_context
from retinue.testing.failure_context import (
    ERROR_TITLE,
    PAGE_TITLE,
    SERVER_LOG_TITLE,
    WHY_TITLE,
    FailureDescription,
    FailureSubject,
    last_lines,
)

FOLDER = Path("build", "failures")
NAME_CHARS_MAX = 120
SUBJECTS_MAX = 8
TEXTS_MAX = 2  # for one title
SEED, SCREENSHOT, REPEAT = "seed", "screenshot", "repeat"
ORDER = (ERROR_TITLE, SERVER_LOG_TITLE, WHY_TITLE, PAGE_TITLE, SCREENSHOT, SEED, REPEAT)

_SEED_VARIABLE = re.compile(r"RETINUE_\w*SEEDS?|PYTHONHASHSEED")

Section = tuple[str, str]


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(FailureReport(config.rootpath), "failure-report")


class FailureReport:
    def __init__(self, root: Path) -> None:
        self._root = root
        self._open_before: list[FailureSubject] = []

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        """Write and redact captured log records in the same way as the server."""
        if plugin := session.config.pluginmanager.get_plugin("logging-plugin"):
            plugin.report_handler.setFormatter(LogFormatter())
        logging.getLogger("aiohttp.access").setLevel(logging.WARNING)  # fake servers of other systems: not our log

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if report.failed:
            try:
                self._explain(item, call.excinfo.value if call.excinfo else None, report)
            except (Exception, pytest.fail.Exception) as trouble:  # noqa: BLE001 - the test's own failure is reported
                report.sections.append((ERROR_TITLE, f"This failure could not be explained: {trouble!r}"))
        if report.when == "setup":
            self._open_before = failure_context.list_subjects()
        if report.when == "teardown":
            failure_context.forget_test(keep=self._open_before)
        return report

    def _explain(self, item: pytest.Item, error: BaseException | None, report: pytest.TestReport) -> None:
        subjects = failure_context.list_subjects()[-SUBJECTS_MAX:]
        descriptions = [subject.get_description(error) for subject in reversed(subjects)]
        stem = file_stem(item.nodeid if report.when == "call" else f"{item.nodeid}-{report.when}")
        path = self._root / FOLDER / f"{stem}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        ours = [
            *_texts(descriptions),
            *_log_of_this_process([text for title, text in report.sections if _is_log(title)], descriptions),
            *_seeds(item, wanted=bool(subjects)),
            *((SCREENSHOT, str(each)) for each in self._screenshots(stem, descriptions)),
            (REPEAT, f"{repeat_command(item, self._root)}\nThis report is also in {FOLDER / path.name}"),
        ]
        theirs = [section for section in report.sections if not _is_log(section[0])]
        report.sections[:] = theirs + sorted(ours, key=lambda section: ORDER.index(section[0]))
        path.write_text(_format_report(item, report))

    def _screenshots(self, stem: str, descriptions: Sequence[FailureDescription]) -> Iterator[Path]:
        pictures = [each.screenshot for each in descriptions if each.screenshot]
        for number, picture in enumerate(pictures, 1):
            path = FOLDER / f"{stem}{'' if number == 1 else f'-{number}'}.png"
            (self._root / path).write_bytes(picture)
            yield path


def _texts(descriptions: Sequence[FailureDescription]) -> Iterator[Section]:
    """A few texts for each title, of the parts that were opened last."""
    told: Counter[str] = Counter()
    for title, text in (pair for each in descriptions for pair in each.texts.items()):
        told[title] += 1
        if told[title] <= TEXTS_MAX:
            yield title, text


def _is_log(title: str) -> bool:
    return title.startswith("Captured log")


def _log_of_this_process(captured: Sequence[str], descriptions: Sequence[FailureDescription]) -> Iterator[Section]:
    """The log of this process, where a server may run: captured by pytest."""
    if captured:
        yield SERVER_LOG_TITLE, f"Logged in this process:\n{last_lines(chr(10).join(captured))}"
    elif any(WHY_TITLE in each.texts and SERVER_LOG_TITLE not in each.texts for each in descriptions):
        yield SERVER_LOG_TITLE, "Logged in this process: nothing."


def _seeds(item: pytest.Item, *, wanted: bool) -> Iterator[Section]:
    """All seeds of the random values in a test."""
    parameters: dict[str, object] = getattr(getattr(item, "callspec", None), "params", {})
    found = [
        *failure_context.list_seeds(),
        *(f"{name} = {value} (parameter)" for name, value in parameters.items() if "seed" in name),
        *(f"{name}={value} (environment)" for name, value in _environment().items()),
        *(f"{option} (option)" for option in _options(item)),
    ]
    if found or wanted:
        yield SEED, "\n".join(found) or "This test registered no seed."


def repeat_command(item: pytest.Item, root: Path) -> str:
    """The command that runs this test alone, with the same seeds, in the root of the repository."""
    program = Path(sys.executable)
    python = program.relative_to(root) if program.is_relative_to(root) else program
    environment = [f"{name}={shlex.quote(value)}" for name, value in _environment().items()]
    slow = ["-m", "slow"] if item.get_closest_marker("slow") else []
    return " ".join([*environment, str(python), "-m", "pytest", shlex.quote(item.nodeid), *slow, *_options(item)])


def _environment() -> dict[str, str]:
    return {name: value for name, value in sorted(os.environ.items()) if _SEED_VARIABLE.fullmatch(name)}


def _options(item: pytest.Item) -> list[str]:
    """The options of this run that hold a seed, and the seed that hypothesis used."""
    arguments = [str(each) for each in item.config.invocation_params.args]
    given = [f"{name}={value}" for name, value in pairwise([*arguments, ""]) if _is_seed(name) and "=" not in name]
    given += [each for each in arguments if _is_seed(each) and "=" in each]
    drawn = getattr(getattr(item, "obj", None), "_hypothesis_internal_use_generated_seed", None)
    return [*given, *([f"--hypothesis-seed={drawn}"] if drawn is not None else [])]


def _is_seed(argument: str) -> bool:
    return argument.startswith("--") and "seed" in argument.partition("=")[0]


def file_stem(nodeid: str) -> str:
    """A file name for the report of a test, different for each test."""
    stem = re.sub(r"[^\w.-]+", "-", nodeid).strip("-")
    if len(stem) <= NAME_CHARS_MAX:
        return stem
    return f"{stem[:NAME_CHARS_MAX]}-{hashlib.sha256(nodeid.encode()).hexdigest()[:8]}"


def _format_report(item: pytest.Item, report: pytest.TestReport) -> str:
    parts = [f"{item.nodeid}, failed in {report.when}", report.longreprtext]
    return "\n\n".join([*parts, *(f"--- {title} ---\n{text}" for title, text in report.sections), ""])
