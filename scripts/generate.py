"""`make generate`: write the files that are made from the code. With --check, report the files that were not current.

A generator is a module that is run with `python -m` and writes files. A second run changes nothing.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

GENERATORS = (
    "retinue.operations.generate_reference",
    "retinue.operations.renamed_docs",
    "retinue.api.generate_openapi",
    "retinue.config.settings_docs",
    "retinue.agents.instructions_docs",
    "scripts.life_of_a_message",
)


def main(arguments: list[str]) -> int:
    """Run every generator; with --check, return 1 if that changed any file."""
    before = fingerprints(ROOT)
    for generator in GENERATORS:
        if find_spec(generator):
            subprocess.run([sys.executable, "-m", generator], cwd=ROOT, check=True)
    if "--check" not in arguments:
        return 0
    stale = changes(before, fingerprints(ROOT))
    for path in stale:
        print(f"error: {path} was not current; it is now")
    if stale:
        print("try: look at `git diff`, and commit it with the change it belongs to")
    return 1 if stale else 0


def fingerprints(root: Path) -> dict[str, str]:
    """Return each file that git tracks or would add, with the hash of its bytes."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=root, stdout=subprocess.PIPE, text=True, check=True).stdout
    paths = (path for path in listed.split("\0") if path and (root / path).is_file())
    return {path: hashlib.sha256((root / path).read_bytes()).hexdigest() for path in paths}


def changes(before: dict[str, str], after: dict[str, str]) -> list[str]:
    """Return the files that were added, removed or changed."""
    return sorted(path for path in before.keys() | after.keys() if before.get(path) != after.get(path))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
