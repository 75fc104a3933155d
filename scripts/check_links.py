"""`make docs`: check that relative links in docs/ and top-level Markdown files lead to existing files and headings."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

ROOT = Path(__file__).parent.parent

FENCE = re.compile(r"^ {0,3}(```|~~~).*?^ {0,3}\1", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`[^`\n]*`")
INLINE_LINK = re.compile(r"\[[^\]]*\]\(\s*<?([^)\s>]+)")
REFERENCE_LINK = re.compile(r"^ {0,3}\[[^\]]+\]:\s*<?([^\s>]+)", re.MULTILINE)
HEADING = re.compile(r"^ {0,3}#{1,6}\s+(.+?)\s*#*\s*$", re.MULTILINE)
OUTSIDE = re.compile(r"[a-z][a-z0-9+.-]*:", re.IGNORECASE)


def main() -> int:
    """Print each broken link, and how many there are. Returns 1 if a link is broken."""
    pages = pages_of(ROOT)
    broken = [complaint for page in pages for complaint in broken_links(page, ROOT)]
    print(*broken, sep="\n", end="\n" if broken else "")
    print(f"links: {len(pages)} pages, {len(broken)} broken")
    return 1 if broken else 0


def pages_of(root: Path) -> list[Path]:
    """Return the Markdown files that people read: those in the root folder, and all in docs/."""
    return [*sorted(root.glob("*.md")), *sorted((root / "docs").rglob("*.md"))]


def broken_links(page: Path, root: Path) -> Iterator[str]:
    """Yield one line for each broken link of the page."""
    text = _without_code(page.read_text(encoding="utf-8"))
    for link in [*INLINE_LINK.findall(text), *REFERENCE_LINK.findall(text)]:
        if OUTSIDE.match(link) or link.startswith("//"):
            continue
        path, _, anchor = unquote(link).partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists():
            yield f"{page.relative_to(root)}: no such file: {link}"
        elif anchor and target.suffix == ".md" and anchor not in anchors_of(target):
            yield f"{page.relative_to(root)}: no such heading: {link}"


def anchors_of(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as code hosts generate them. The second heading
    `Tests` has the anchor `tests-1`."""
    anchors: set[str] = set()
    for heading in HEADING.findall(FENCE.sub("", page.read_text(encoding="utf-8"))):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        anchor = base = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
        again = 0
        while anchor in anchors:
            again += 1
            anchor = f"{base}-{again}"
        anchors.add(anchor)
    return anchors


def _without_code(text: str) -> str:
    return CODE.sub("", FENCE.sub("", text))


if __name__ == "__main__":
    sys.exit(main())
