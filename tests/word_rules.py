"""Words that texts and names of this project do not use, and where they are allowed."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

ROOT = Path(__file__).parent.parent

BANNED = (
    *("house", "houses", "household", "households", "premises", "mailroom", "doorway", "doorways", "doorkeeper"),
    *("door", "doors", "switchboard", "parcel", "parcels", "shelf", "shelves", "minds", "market", "desk", "desks"),
    *("understudy", "clockwork", "handing", "handed on", "hands on", "set aside", "begin afresh", "begins afresh"),
    *("how it fares", "how they fare", "what came of", "comes of it", "whoever", "whomever", "as it stands"),
)
"""Words and phrases of an earlier vocabulary. Each has a plain word in the glossary."""

PHRASES = ("nobody", "somebody", "is told", "are told")
"""Constructions that texts for people do not use. Tests may: a person in a test can be nobody."""

TEXT_SUFFIXES = frozenset(
    (".py", ".md", ".ts", ".svelte", ".css", ".html", ".toml", ".json", ".yaml", ".yml", ".sh", ".service", ".mako")
)
NOT_READ = (
    "tests/word_rules.py",  # this list, and its test
    "tests/test_words.py",
    "src/retinue/domain/renamed_names.py",  # the table of renamed names, and the page made from it
    "docs/reference/renamed.md",
    "web/package-lock.json",
)


@dataclass(frozen=True, slots=True)
class AllowedWords:
    """Words that files (globs) may use, with the reason."""

    files: tuple[str, ...]
    words: tuple[str, ...]
    reason: str


ALLOWED = (
    AllowedWords(
        ("src/retinue/store/migrations/versions/*.py", "tests/store/test_renamed_schema.py"),
        ("house", "set aside"),
        "earlier revisions of the schema have these tables",
    ),
    AllowedWords(
        (
            "src/retinue/store/core/database_rename.py",
            "tests/app/test_database_rename.py",
            "tests/maintenance/test_backup.py",
        ),
        ("house",),
        "the database of an earlier version is the file house.db",
    ),
    AllowedWords(
        ("src/retinue/store/core/file_inspection.py", "docs/internals/store.md"),
        ("house",),
        "a database of an earlier version is inspected before it is migrated",
    ),
    AllowedWords(
        (
            "src/retinue/config/renamed_settings.py",
            "src/retinue/operations/renamed_docs.py",
            "tests/config/test_renamed_settings.py",
            "tests/config/previous_settings.toml",
            "tests/operations/test_configuration.py",
        ),
        ("house",),
        "settings files of an earlier version are rewritten",
    ),
    AllowedWords(
        (
            "src/retinue/cli/renamed_commands.py",
            "tests/operations/test_renamed_operations.py",
            "tests/api/test_renamed_routes.py",
        ),
        ("house", "door", "set aside"),
        "old operations, commands and routes are answered with the new name",
    ),
    AllowedWords(
        (
            "src/retinue/agents/skill_loader.py",
            "tests/agents/test_instruction_templates.py",
            "tests/flows/test_instructions.py",
            "docs/guides/instructions.md",
        ),
        ("house",),
        "templates and skills of an earlier version still work",
    ),
    AllowedWords(
        (
            "src/retinue/domain/address.py",
            "src/retinue/operations/audit/audit.py",
            "tests/intake/test_accept.py",
            "tests/store/test_audit.py",
            "examples/verify_audit.py",
        ),
        ("house",),
        "addresses in stored JSON, and audit anchors that people keep, have the former name of the server",
    ),
    AllowedWords(
        ("src/retinue/intake/access_control.py",), ("door",), "keys of stored notices: a new key would send them again"
    ),
    AllowedWords(
        ("src/retinue/operations/config/gateway_tool.py",), ("house",), "settings deny this capability by its name"
    ),
    AllowedWords(
        ("web/src/lib/router.svelte.ts", "tests/web/test_navigation.py"),
        ("house", "doors"),
        "old addresses of screens lead to the new ones",
    ),
    AllowedWords(("CHANGELOG.md", "docs/guides/upgrade.md"), ("house", "set aside"), "they say what was renamed"),
    AllowedWords(
        ("src/retinue/sandbox/mounts.py", "src/retinue/testing/postgres.py"), ("nobody",), "the name of a Unix user"
    ),
)

_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_SEPARATORS = re.compile(r"[_\-/.]+")


_NOT_IN_WORDS = re.compile(r"[^a-z']+|(?<![a-z])'|'(?![a-z])")  # an apostrophe inside a word belongs to it


def find_words(line: str, words: Iterable[str]) -> list[str]:
    """Return the words that a line contains, also inside identifiers: `open_house`, `HouseKeeper`, `set-aside`."""
    lowered = _SEPARATORS.sub(" ", _CAMEL.sub(" ", line)).lower()
    plain = f" {_NOT_IN_WORDS.sub(' ', lowered)} "
    return [word for word in words if f" {word} " in plain]


def text_files() -> Iterator[str]:
    """Yield the path of each text file that the repository tracks."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for path in filter(None, listed.split("\0")):
        if path not in NOT_READ and (Path(path).suffix in TEXT_SUFFIXES or Path(path).name == "Makefile"):
            yield path


def banned_words(files: Iterable[str], *, root: Path = ROOT) -> list[str]:
    """Return a line for each banned word in a name or in a text, unless it is allowed there."""
    found: list[str] = []
    for file in files:
        allowed = {word for each in ALLOWED if _matches(file, each.files) for word in each.words}
        words = [word for word in (BANNED if file.startswith("tests/") else BANNED + PHRASES) if word not in allowed]
        found += [f"{file}: {word} (in the path)" for word in find_words(file, words)]
        text = (root / file).read_text(encoding="utf-8") if (root / file).is_file() else ""
        lowered = text.lower()
        present = [word for word in words if word.split()[0] in lowered]
        if present:
            for number, line in enumerate(text.splitlines(), 1):
                found += [f"{file}:{number}: {word}" for word in find_words(line, present)]
    return found


def unused_exceptions(files: Iterable[str], *, root: Path = ROOT) -> list[str]:
    """Return the exceptions that are no longer needed: a pattern that matches no file, a word that no file has."""
    every = list(files)
    unused: list[str] = []
    for each in ALLOWED:
        unused += [pattern for pattern in each.files if not any(fnmatch(file, pattern) for file in every)]
        texts = [(root / file).read_text(encoding="utf-8") for file in every if _matches(file, each.files)]
        unused += [
            f"{word} in {each.files[0]}"
            for word in each.words
            if not any(find_words(line, [word]) for text in texts for line in text.splitlines())
        ]
    return unused


def _matches(file: str, patterns: Iterable[str]) -> bool:
    return any(fnmatch(file, pattern) for pattern in patterns)
