"""Lists conflicts in `scripts/renames`, and public classes that would share a name once they are applied."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def read_list(path: Path) -> Iterator[tuple[str, str]]:
    """Each dotted name of a list, with its new last part."""
    for line in path.read_text(encoding="utf-8").splitlines():
        if words := line.partition("#")[0].split():
            yield words[0], words[1]


def read_lists(folder: Path) -> Iterator[tuple[str, str]]:
    """The renames of all lists; notes and proposals for wire names are none."""
    for path in sorted(folder.glob("*.txt")):
        if not path.name.endswith((".wire.txt", ".notes.txt")):
            yield from read_list(path)


def main() -> None:
    renames: dict[str, str] = {}
    for old, new in read_lists(ROOT / "scripts" / "renames"):
        if renames.setdefault(old, new) != new:
            print(f"conflict: {old} is to become {renames[old]} and {new}")
    classes: defaultdict[str, list[str]] = defaultdict(list)
    for path in sorted((ROOT / "src" / "retinue").rglob("*.py")):
        module = path.relative_to(ROOT / "src").with_suffix("").as_posix().replace("/", ".").removesuffix(".__init__")
        for node in ast.parse(path.read_bytes()).body:
            if isinstance(node, ast.ClassDef):
                full = f"{module}.{node.name}"
                classes[renames.get(full, node.name)].append(full)
    for name, several in sorted(classes.items()):
        if len(several) > 1 and not name.startswith("_"):
            print(f"{name}: {', '.join(several)}")


if __name__ == "__main__":
    main()
