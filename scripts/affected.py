"""`make affected`: run the tests that can best show a defect in a change, in about a minute.

Without options, the change is the one in the working tree, or the last commit if the working tree is clean.
"""

from __future__ import annotations

import argparse
import re
import statistics
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from scripts import durations
from scripts.affected_tests import BUDGET_S, WORKERS, Change, Facts, Selection, select
from scripts.source_graph import Tree

ROOT = Path(__file__).resolve().parent.parent

READ = ("src/", "tests/", "scripts/", "benchmarks/", "injection/", "web/src/")
ENDINGS = (".py", ".ts", ".svelte")
HUNK = re.compile(r"^@@ -\S+ \+(\d+)(?:,(\d+))? @@", re.MULTILINE)
# The number of recent commits that are read to see which files change together. Older commits say little.
COMMITS_READ = 600
FILES_OF_A_COMMIT_MAX = 40
# If the picked tests take less than this, one process is faster than starting two workers.
ONE_PROCESS_S = 8.0


def main(arguments: list[str]) -> int:
    """Pick the tests of a change and run them. Returns the exit code of pytest, or 0 if there is nothing to run."""
    options = _options(arguments)
    if options.history:
        print_history(ROOT, options.history, options.budget)
        return 0
    changes = changes_of_files(ROOT, options.files) if options.files else changes_since(ROOT, options.since)
    facts = facts_of_working_tree(ROOT)
    selection = select(changes, facts, options.budget)
    print(*description(changes, selection, is_full=options.list), sep="\n", flush=True)
    if options.list or not selection.picks:
        return 0
    command = pytest_command(selection, facts.tree, options.pytest)
    return subprocess.run(command, cwd=ROOT, check=False).returncode


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make affected", description=__doc__)
    parser.add_argument("--since", metavar="REV", help="the changes since a commit, including the working tree")
    parser.add_argument("--files", nargs="+", metavar="FILE", help="treat these files as changed")
    parser.add_argument("--list", action="store_true", help="print the picked tests and the reasons, and run none")
    parser.add_argument(
        "--budget",
        type=float,
        default=BUDGET_S,
        metavar="S",
        help="limit on the expected time in seconds (default: %(default)s)",
    )
    parser.add_argument("--history", type=int, metavar="N", help="print the picked tests for the last N commits")
    parser.add_argument("pytest", nargs="*", help="arguments after --, passed on to pytest")
    return parser.parse_args(arguments)


def pytest_command(selection: Selection, tree: Tree, more: Sequence[str] = ()) -> list[str]:
    """Return the command that runs the picked tests, the likeliest to fail first."""
    command = [sys.executable, "-m", "pytest", "-q", *options_for([pick.path for pick in selection.picks], tree)]
    if sum(pick.seconds for pick in selection.picks) > ONE_PROCESS_S:
        command += ["--numprocesses", str(WORKERS), "--dist", "loadfile", "--no-loadscope-reorder"]
    return [*command, *more, *(argument for pick in selection.picks for argument in pick.arguments)]


def options_for(tests: Iterable[str], tree: Tree) -> list[str]:
    """Return the pytest options for these test files, in any order.

    The warning is ignored because a helper module may be imported before its asserts can be
    rewritten, which is not a failure. A plugin that none of the tests uses is disabled, because
    importing it takes a second in each process.
    """
    is_used = any("schemathesis" in tree.files.get(path, "") for path in tests)
    return ["-W", "ignore::pytest.PytestAssertRewriteWarning", *([] if is_used else ["-p", "no:schemathesis"])]


def description(changes: Sequence[Change], selection: Selection, *, is_full: bool) -> list[str]:
    """Describe for a person what will run and what is left out."""
    lines = list(selection.notes)
    if is_full:
        for pick in selection.picks:
            part = f" ({len(pick.tests)} of {pick.test_count} tests)" if pick.tests else ""
            lines.append(f"{pick.seconds:6.1f} s  {pick.path}{part}: {pick.reason}")
    lines.append(
        f"affected: {len(changes)} changed files, {len(selection.picks)} test files, about {selection.seconds:.0f} s"
    )
    narrowed = sum(bool(pick.tests) for pick in selection.picks)
    if narrowed:
        lines.append(f"{narrowed} of them are long, and only some of their tests are run")
    if selection.left_out:
        lines.append(
            f"{len(selection.left_out)} more test files can be reached and are left out: `make test` runs them"
        )
    return lines


def changes_since(root: Path, revision: str | None) -> list[Change]:
    """Return the files changed since a revision. Without a revision: those changed in the working tree, or
    in the last commit if the working tree is clean."""
    untracked = git(root, "ls-files", "--others", "--exclude-standard", "-z").split("\0")[:-1]
    if revision is None:
        is_clean = not untracked and not git(root, "status", "--porcelain", "-z")
        revision = "HEAD~1" if is_clean else "HEAD"
    changed = _changed_lines(git(root, "diff", "-U0", "--no-renames", "--no-ext-diff", revision))
    lines = {**changed, **{path: frozenset[int]() for path in untracked}}
    return [Change(path, _text(root / path), found) for path, found in lines.items()]


def changes_of_files(root: Path, paths: Iterable[str]) -> list[Change]:
    """Return these files as changes, as if every line in them had changed."""
    relative = [(root / path).resolve().relative_to(root.resolve()).as_posix() for path in paths]
    return [Change(path, _text(root / path)) for path in relative]


def facts_of_working_tree(root: Path, until: str = "HEAD") -> Facts:
    """Return the facts of the working tree: its tracked and new files, the seconds of tests, and
    which files changed together."""
    listed = git(root, "ls-files", "--cached", "--others", "--exclude-standard", "-z").split("\0")
    files = {path: text for path in listed if _is_read(path) and (text := _text(root / path)) is not None}
    return Facts(Tree(files), durations.read(root / "tests" / "durations.toml"), changed_together(root, until))


def facts_of_commit(root: Path, commit: str) -> Facts:
    """Return the facts of a commit: its files, the current seconds of tests, and which files had
    changed together before it."""
    listed = git(root, "ls-tree", "-r", "-z", "--format=%(objectname) %(path)", commit).split("\0")[:-1]
    wanted = [(blob, path) for blob, _, path in (line.partition(" ") for line in listed) if _is_read(path)]
    texts = _blobs(root, [blob for blob, _ in wanted])
    seconds = durations.read(root / "tests" / "durations.toml")
    return Facts(Tree({path: texts[blob] for blob, path in wanted}), seconds, changed_together(root, f"{commit}~1"))


def changed_together(root: Path, until: str) -> dict[str, dict[str, float]]:
    """Return, for each file, the test files that changed in the same commits, with a weight. A
    commit of many files counts less."""
    log = git(root, "log", f"-{COMMITS_READ}", "--no-merges", "--name-only", "--format=%x00", until)
    together: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for commit in log.split("\0"):
        paths = commit.split()
        tests = [path for path in paths if path.startswith("tests/")]
        others = [path for path in paths if not path.startswith("tests/")]
        if not tests or not others or len(paths) > FILES_OF_A_COMMIT_MAX:
            continue
        for path in others:
            for test in tests:
                together[path][test] += 1 / (len(others) * len(tests)) ** 0.5
    return together


def print_history(root: Path, count: int, budget_s: float) -> None:
    """Print what would be picked for each of the last commits, and the median time."""
    commits = git(root, "log", "--first-parent", f"-{count}", "--format=%h").split()
    seconds: list[float] = []
    print("commit    changed  picked  left out  seconds")
    for commit in commits:
        changes = changes_of_commit(root, commit)
        selection = select(changes, facts_of_commit(root, commit), budget_s)
        seconds.append(selection.seconds)
        print(
            f"{commit:<9} {len(changes):>7}  {len(selection.picks):>6}  {len(selection.left_out):>8}"
            f"  {selection.seconds:>7.0f}",
            flush=True,
        )
    print(f"median {statistics.median(seconds):.0f} s, longest {max(seconds):.0f} s")


def changes_of_commit(root: Path, commit: str) -> list[Change]:
    """Return the changes of a commit since its first parent."""
    changed = _changed_lines(git(root, "diff", "-U0", "--no-renames", "--no-ext-diff", f"{commit}~1", commit))
    listed = git(root, "ls-tree", "-r", "-z", "--format=%(path) %(objectname)", commit).split("\0")[:-1]
    blobs = dict(line.rsplit(" ", 1) for line in listed)
    texts = _blobs(root, [blobs[path] for path in changed if path in blobs])
    return [Change(path, texts.get(blobs.get(path, "")), lines) for path, lines in changed.items()]


def _changed_lines(diff: str) -> dict[str, frozenset[int]]:
    """Parse a diff without context. Returns the changed lines of each file; a removed line counts
    as the line before it.
    """
    changed: dict[str, frozenset[int]] = {}
    for part in re.split(r"^diff --git ", diff, flags=re.MULTILINE)[1:]:
        path = part.partition("\n")[0].rpartition(" b/")[2]
        lines: set[int] = set()
        for first, count in HUNK.findall(part):
            lines.update(range(int(first), int(first) + max(1, int(count or 1))))
        changed[path] = frozenset(lines)
    return changed


def _blobs(root: Path, ids: Sequence[str]) -> Mapping[str, str]:
    """Return the text of each git blob, by its id."""
    wanted = list(dict.fromkeys(ids))
    answer = subprocess.run(
        ["git", "cat-file", "--batch"], cwd=root, input="\n".join(wanted).encode(), stdout=subprocess.PIPE, check=True
    ).stdout
    texts: dict[str, str] = {}
    at = 0
    for blob in wanted:
        end_of_line = answer.index(b"\n", at)
        size = int(answer[at:end_of_line].split()[2])
        texts[blob] = answer[end_of_line + 1 : end_of_line + 1 + size].decode(errors="replace")
        at = end_of_line + 1 + size + 1
    return texts


def _is_read(path: str) -> bool:
    return path.startswith(READ) and path.endswith(ENDINGS)


def _text(path: Path) -> str | None:
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else None


def git(root: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=root, stdout=subprocess.PIPE, check=True)
    return done.stdout.decode(errors="replace")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
