"""`make commits`: check that the subject of every new commit has the form `package: imperative`.

New commits are those after the commit that added this file.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
SUBJECT_CHARS_MAX = 72
SUBJECT = re.compile(r"[a-z][a-z0-9_.-]*(, [a-z][a-z0-9_.-]*)*: [a-z`'\"0-9.*\[-]\S* ?.*[^.]")
GENERATED = ("Merge ", "Revert ")  # written by git
EXAMPLE = "intake: wake an agent once for a redelivered message"


def main() -> int:
    """Print each commit with an invalid subject, and the counts. Returns 1 if a subject is invalid."""
    commits = list_new_commits(ROOT)
    faults = [f"{id_[:10]} {fault}: {subject}" for id_, subject in commits if (fault := find_fault(subject))]
    print(*faults, sep="\n", end="\n" if faults else "")
    if faults:
        print(f"try: git commit --amend, or git rebase -i; for example: {EXAMPLE}")
    print(f"commits: {len(commits)} checked, {len(faults)} with an invalid subject")
    return 1 if faults else 0


def find_fault(subject: str) -> str:
    """Return what is wrong with a subject, or an empty string if it is valid."""
    if subject.startswith(GENERATED):
        return ""
    if len(subject) > SUBJECT_CHARS_MAX:
        return f"longer than {SUBJECT_CHARS_MAX} characters"
    return "" if SUBJECT.fullmatch(subject) else "not of the form `package: imperative`"


def list_new_commits(root: Path) -> list[tuple[str, str]]:
    """Return the id and subject of each commit after the one that added this file; empty if git has no history."""
    path = Path(__file__).relative_to(ROOT).as_posix()
    added = _git(root, "log", "--diff-filter=A", "--format=%H", "--", path).split()
    if not added:
        return []
    lines = _git(root, "log", "--format=%H %s", f"{added[-1]}..HEAD").splitlines()
    return [(line.partition(" ")[0], line.partition(" ")[2]) for line in lines]


def _git(root: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=root, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False)
    return done.stdout.decode(errors="replace") if done.returncode == 0 else ""


if __name__ == "__main__":
    sys.exit(main())
