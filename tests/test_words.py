"""Names and texts use the words of the glossary."""

from __future__ import annotations

from pathlib import Path

import pytest
import word_rules

EXCEPTIONS_MAX = 20


@pytest.fixture(scope="module")
def files() -> list[str]:
    return list(word_rules.text_files())


def test_no_file_uses_a_banned_word(files: list[str]) -> None:
    assert len(files) > 1000
    found = word_rules.banned_words(files)
    assert found == [], f"{len(found)} banned words; the glossary (docs/glossary.md) has the words to use"


def test_each_exception_has_a_reason_and_is_needed(files: list[str]) -> None:
    assert len(word_rules.ALLOWED) <= EXCEPTIONS_MAX
    assert all(each.reason for each in word_rules.ALLOWED)
    assert word_rules.unused_exceptions(files) == []


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("async with open_house(tmp) as it:", ["house"]),
        ("class HouseKeeper:", ["house"]),
        ("`set-aside.retry` and `[house.listen]`", ["house", "set aside"]),
        ("Whoever asks", ["whoever"]),
        ("a warehouse, a greenhouse, the desktop and a marketplace", []),
    ],
)
def test_a_banned_word_is_found_also_inside_of_a_name(line: str, words: list[str]) -> None:
    assert word_rules.find_words(line, word_rules.BANNED) == words


def test_a_banned_word_is_reported_with_its_file_and_line(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "the-house.md").write_text("# Start\n\nNobody is told.\n")
    assert word_rules.banned_words(["docs/the-house.md"], root=tmp_path) == [
        "docs/the-house.md: house (in the path)",
        "docs/the-house.md:3: nobody",
        "docs/the-house.md:3: is told",
    ]
