"""Registers the servers, browser pages and seeds of a test, so that the report of a failure can describe them.

A helper that opens a server or a page registers it here as a subject. When the test fails,
`tests/failure_report.py` requests a description of each subject. If a subject closes because of the
failure, it is described before it closes, while it still shows what went wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field

from retinue.app.logs import TEXT_CHARS_MAX, redact

CLOSED_KEPT_MAX = 4
SEEDS_KEPT_MAX = 4  # the last one that was tried is the one that failed
LINES_MAX = 40
LINE_CHARS_MAX = 300
SERVER_LOG_TITLE, WHY_TITLE, PAGE_TITLE, ERROR_TITLE = "server log", "why", "page", "description"
"""The titles of the texts in a description."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureDescription:
    """The description of a subject of a failed test, such as a server or a browser page.

    It contains texts, each with a title, and a PNG screenshot if there is one.
    """

    texts: dict[str, str] = field(default_factory=dict[str, str])
    screenshot: bytes = b""


DescribeSubject = Callable[[BaseException | None], FailureDescription]
"""Describes one thing that a test has open. The argument is the error of the test, if there is one."""


@dataclass(slots=True, eq=False)
class FailureSubject:
    """One thing that a test has open, or had open, such as a server."""

    describe: DescribeSubject
    is_closed: bool = False
    _stored: FailureDescription | None = None

    def describe_now(self, error: BaseException | None = None) -> None:
        """Describe the subject now, because it may have changed or disappeared when the report is written."""
        self._stored = self._describe(error)

    def get_description(self, error: BaseException | None) -> FailureDescription:
        return self._stored or self._describe(error)

    def _describe(self, error: BaseException | None) -> FailureDescription:
        try:
            return self.describe(error)
        except Exception as trouble:  # noqa: BLE001 - the failure of the test is reported, whatever else fails
            summary = f"{type(trouble).__name__}: {trouble}"
            return FailureDescription(texts={ERROR_TITLE: f"This part could not be described: {summary[:500]}"})


_subjects: list[FailureSubject] = []
_seeds: list[str] = []


def register_subject(describe: DescribeSubject) -> FailureSubject:
    """Register a subject to be described if the current test fails. Call its `close` when it is closed."""
    subject = FailureSubject(describe)
    _subjects.append(subject)
    return subject


def close_subject(subject: FailureSubject) -> None:
    """Mark a subject as closed.

    If the test fails, it is still described, unless many other subjects were closed after it.
    """
    subject.is_closed = True
    closed = [each for each in _subjects if each.is_closed]
    for each in closed[:-CLOSED_KEPT_MAX]:
        _subjects.remove(each)


@contextmanager
def describe_on_failure(describe: DescribeSubject) -> Generator[FailureSubject]:
    """Register a subject while the block runs. If an exception ends the block, the subject is described at once."""
    subject = register_subject(describe)
    try:
        yield subject
    except GeneratorExit:
        raise
    except BaseException as error:
        subject.describe_now(error)
        raise
    finally:
        close_subject(subject)


def register_seed(seed: str) -> None:
    """Register a seed that decides what the current test does."""
    if seed not in _seeds:
        _seeds.append(seed)
        del _seeds[:-SEEDS_KEPT_MAX]


def list_subjects() -> list[FailureSubject]:
    """Return all registered subjects, oldest first."""
    return list(_subjects)


def list_seeds() -> list[str]:
    return list(_seeds)


def forget_test(*, keep: list[FailureSubject]) -> None:
    """Remove the seeds and subjects of a finished test.

    A subject that was open before the test, and still is, stays registered.
    """
    _subjects[:] = [each for each in _subjects if each in keep and not each.is_closed]
    _seeds.clear()


def last_lines(text: str, lines_max: int = LINES_MAX) -> str:
    """Return the last lines of the text. Secrets are redacted, and the length of each line is limited."""
    lines = text.splitlines()
    kept = redact("\n".join(lines[-lines_max:])[-TEXT_CHARS_MAX:]).splitlines()
    left_out = len(lines) - lines_max
    head = [f"({left_out} earlier lines left out)"] if left_out > 0 else []
    return "\n".join([*head, *map(clip_line, kept)])


def clip_line(line: str) -> str:
    return line if len(line) <= LINE_CHARS_MAX else f"{line[: LINE_CHARS_MAX - 1]}…"
