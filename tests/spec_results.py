"""Which marked tests passed on which content: the file that a test run writes and `make spec` reads."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path

RESULTS = Path("build") / "test-results.json"
TESTED_PATHS = ("src", "tests", "web/src", "examples", "scripts", "pyproject.toml")
# These decide how results are counted and in which order tests run, not what a test does.
IGNORED_PATHS = frozenset({"tests/spec_lines.toml", "tests/durations.toml"})
IGNORED_FOLDERS = frozenset({"__pycache__", "node_modules", "_web"})


class Outcome(StrEnum):
    """The outcome of a test. A failed setup or teardown fails the test."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"
    NOT_RUN = "not run"


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkedTest:
    """A test that names checklist lines, and its outcome."""

    marks: tuple[str, ...]
    slow: bool = False
    outcome: Outcome = Outcome.NOT_RUN


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """The tested files with their hashes, and the revision they are based on (for readers)."""

    files: Mapping[str, str]
    revision: str = "unknown"

    def changed_since(self, other: Content) -> tuple[str, ...]:
        """The paths that were added, changed or deleted between two contents."""
        return tuple(sorted({path for path, _ in self.files.items() ^ other.files.items()}))


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """The outcomes of marked tests on one content. Several runs are merged."""

    content: Content
    tests: Mapping[str, MarkedTest] = field(default_factory=dict)
    all_collected: bool = False

    @property
    def are_partial(self) -> bool:
        """Whether a marked test that is not slow may be missing."""
        return not self.all_collected or any(
            test.outcome is Outcome.NOT_RUN and not test.slow for test in self.tests.values()
        )

    def add(self, newer: Results) -> Results:
        """These results merged with newer ones of the same content: a newer outcome replaces an older one."""
        ran = {name: test for name, test in newer.tests.items() if test.outcome is not Outcome.NOT_RUN}
        return Results(
            content=newer.content,
            tests={**newer.tests, **self.tests, **ran},
            all_collected=self.all_collected or newer.all_collected,
        )


def read_results(path: Path) -> Results | None:
    """Read the file. Returns None if it does not exist or has another format."""
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
        tests = {
            name: MarkedTest(marks=tuple(test["marks"]), slow=test["slow"], outcome=Outcome(test["outcome"]))
            for name, test in table["tests"].items()
        }
        return Results(content=Content(**table["content"]), tests=tests, all_collected=table["all_collected"])
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None


def keep_results(path: Path, newer: Results) -> None:
    """Merge newer results into the file, or replace the file if its results are for other content."""
    older = read_results(path)
    results = older.add(newer) if older and older.content.files == newer.content.files else newer
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(f".{os.getpid()}")
    unfinished.write_text(json.dumps(asdict(results)), encoding="utf-8")
    unfinished.replace(path)


def read_content(root: Path) -> Content:
    """The tested files as in the working tree, including uncommitted changes."""
    if _git(root, "rev-parse", "--show-toplevel").strip() != os.fspath(root.resolve()):
        return Content(files=_hash_files(root, _walk(root)))
    staged = (
        entry.split("\t", 1) for entry in _split_entries(_git(root, "ls-files", "--stage", "-z", "--", *TESTED_PATHS))
    )
    files = {path: facts.split()[1] for facts, path in staged}
    status = _git(root, "status", "--porcelain", "-z", "--no-renames", "--untracked-files=all", "--", *TESTED_PATHS)
    changed = [entry[3:] for entry in _split_entries(status)]
    files = {path: blob for path, blob in files.items() if path not in changed} | _hash_files(root, changed)
    files = {path: blob for path, blob in files.items() if path not in IGNORED_PATHS}
    revision = _git(root, "rev-parse", "--short", "HEAD").strip() or "no commit"
    return Content(files=files, revision=revision + (" with uncommitted changes" if changed else ""))


def _git(root: Path, *arguments: str) -> str:
    """The output of a git command; empty if git is missing or fails."""
    command = ["git", "--no-optional-locks", *arguments]
    try:
        return subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return ""


def _split_entries(listed: str) -> list[str]:
    return listed.split("\0")[:-1]


def _walk(root: Path) -> Iterator[str]:
    for top in TESTED_PATHS:
        if (root / top).is_file():
            yield top
        for folder, folders, names in os.walk(root / top):
            folders[:] = [name for name in folders if name not in IGNORED_FOLDERS]
            yield from ((Path(folder) / name).relative_to(root).as_posix() for name in names)


def _hash_files(root: Path, paths: Iterable[str]) -> dict[str, str]:
    """The git hash of each file that exists, so that a commit of the same content changes nothing."""
    found: dict[str, str] = {}
    for path in paths:
        if path not in IGNORED_PATHS and (root / path).is_file():
            content = (root / path).read_bytes()
            found[path] = hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()
    return found
