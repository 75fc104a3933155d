"""The link check of the documentation."""

from __future__ import annotations

from pathlib import Path

from scripts.check_links import ROOT, anchors_of, broken_links, pages_of


def test_the_documentation_has_no_broken_links() -> None:
    assert [complaint for page in pages_of(ROOT) for complaint in broken_links(page, ROOT)] == []


def test_a_broken_link_in_the_documentation_is_reported(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "start.md").write_text(
        "# Start here\n[up](../README.md#the-server)\n[gone][g]\n\n[g]: gone.md\n"
    )
    (tmp_path / "README.md").write_text(
        "# The *server*\n[start](docs/start.md#start-here) [lost](docs/start.md#lost) [self](#the-server)\n"
        "[outside](https://example.org/x) `[code](nowhere.md)`\n```\n[code](nowhere.md)\n```\n"
    )

    assert [complaint for page in pages_of(tmp_path) for complaint in broken_links(page, tmp_path)] == [
        "README.md: no such heading: docs/start.md#lost",
        "docs/start.md: no such file: gone.md",
    ]


def test_the_link_check_gives_a_repeated_heading_two_anchors(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("## Tests, `slow` ones\n## Tests\n## Tests\n```\n# not a heading\n```\n")

    assert anchors_of(page) == {"tests-slow-ones", "tests", "tests-1"}
