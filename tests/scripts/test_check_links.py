"""The links in what people read."""

from __future__ import annotations

from pathlib import Path

from scripts.check_links import ROOT, anchors_of, broken_links, pages_of


def test_every_link_in_the_docs_leads_somewhere() -> None:
    assert [complaint for page in pages_of(ROOT) for complaint in broken_links(page, ROOT)] == []


def test_a_link_that_leads_nowhere_is_named(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "start.md").write_text(
        "# Start here\n[up](../README.md#the-house)\n[gone][g]\n\n[g]: gone.md\n"
    )
    (tmp_path / "README.md").write_text(
        "# The *house*\n[start](docs/start.md#start-here) [lost](docs/start.md#lost) [self](#the-house)\n"
        "[outside](https://example.org/x) `[code](nowhere.md)`\n```\n[code](nowhere.md)\n```\n"
    )

    assert [complaint for page in pages_of(tmp_path) for complaint in broken_links(page, tmp_path)] == [
        "README.md: no such heading: docs/start.md#lost",
        "docs/start.md: no such file: gone.md",
    ]


def test_a_heading_said_twice_has_two_anchors(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("## Tests, `slow` ones\n## Tests\n## Tests\n```\n# not a heading\n```\n")

    assert anchors_of(page) == {"tests-slow-ones", "tests", "tests-1"}
