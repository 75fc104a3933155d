"""`make spec`: report which checklist lines the tests show, from the results of the last run."""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from spec_lines import SpecLines, System, collapse_ranges, read_spec_lines
from spec_results import RESULTS, Content, Outcome, Results, read_content, read_results

ROOT = Path(__file__).parent.parent
RUN = ("-m", "pytest", "-q", "-m", "spec and not slow", "--numprocesses", "2", "--dist", "loadfile")
REFRESH = "run: make test, or make spec ARGS=--run for the marked tests alone"
NAMES_MAX = 5


class LineStatus(StrEnum):
    """The status of a line in the results."""

    SHOWN = "shown"
    PARTLY = "partly"
    FAILED = "failed"
    NOT_RUN = "not run"
    MISSING = "missing"


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """The status of every line, and the marks that keep a line from being shown."""

    standing: dict[str, LineStatus]
    open_marks: dict[str, list[str]]
    partial: bool

    def lines_with(self, *statuses: LineStatus) -> set[str]:
        """The lines with this status."""
        return {line for line, standing in self.standing.items() if standing in statuses}


def main(arguments: list[str], root: Path = ROOT) -> int:
    """Print the report and return 0; return 1 if results are missing or stale, or if a marked test failed."""
    parser = argparse.ArgumentParser(prog="make spec", description=__doc__, epilog="What follows --run goes to pytest.")
    parser.add_argument("--run", action="store_true", help="run the marked tests first")
    parser.add_argument("--if-fresh", action="store_true", help="print the sums only, and never fail")
    options, rest = parser.parse_known_args(arguments)
    if rest and not options.run:
        parser.error(f"unknown arguments: {' '.join(rest)}")
    ended = subprocess.run([sys.executable, *RUN, *rest], cwd=root, check=False).returncode if options.run else 0
    results = read_results(root / RESULTS)
    stale = why_stale(results, read_content(root))
    if results is None or stale:
        lines = [f"checklist: {stale}", REFRESH]
        print("; ".join(lines) if options.if_fresh else "\n".join(lines))
        return 0 if options.if_fresh else 1
    spec = read_spec_lines()
    score = score_lines(spec, results)
    print(*(format_totals(spec, score) if options.if_fresh else format_report(spec, results, score)), sep="\n")
    return 0 if options.if_fresh else ended or int(bool(_failed_tests(results)))


def why_stale(results: Results | None, content: Content) -> str | None:
    """The reason why the results do not apply to this content, or None if they do."""
    if results is None:
        return "there are no test results"
    if changed := content.changed_since(results.content):
        more = f" and {len(changed) - NAMES_MAX} more" if len(changed) > NAMES_MAX else ""
        files = "file has" if len(changed) == 1 else "files have"
        names = ", ".join(changed[:NAMES_MAX])
        return f"{len(changed)} {files} changed since the tests ran at {results.content.revision}: {names}{more}"
    return None


def score_lines(spec: SpecLines, results: Results) -> Score:
    """Count a line as shown if each of its marks has a passing test and no failing one, and it is not partly."""
    by_mark: dict[str, set[Outcome]] = {}
    for test in results.tests.values():
        for mark in test.marks:
            by_mark.setdefault(mark, set()).add(test.outcome)
    shown = {
        mark for mark, outcomes in by_mark.items() if Outcome.PASSED in outcomes and Outcome.FAILED not in outcomes
    }
    shown -= set(spec.partly)
    standing: dict[str, LineStatus] = {}
    open_marks: dict[str, list[str]] = {}
    for line in spec.owner_of:
        marks = spec.marks_of(line)
        outcomes = [by_mark.get(mark, set[Outcome]()) for mark in marks]
        open_marks[line] = [mark for mark in marks if mark not in shown]
        if any(Outcome.FAILED in each for each in outcomes):
            standing[line] = LineStatus.FAILED
        elif not open_marks[line] and line not in spec.partly:
            standing[line] = LineStatus.SHOWN
        elif any(Outcome.PASSED in each for each in outcomes):
            standing[line] = LineStatus.PARTLY
        elif any(outcomes) or not results.all_collected:
            standing[line] = LineStatus.NOT_RUN
        else:
            standing[line] = LineStatus.MISSING
    return Score(standing=standing, open_marks=open_marks, partial=results.are_partial)


def format_report(spec: SpecLines, results: Results, score: Score) -> Iterator[str]:
    """The content of the results, the status of the lines of each system and owner, and the totals."""
    yield from describe(results)
    yield ""
    for system in spec.systems:
        yield system.name
        yield from _by_owner(spec, system, score)
        yield ""
    yield from format_totals(spec, score)


def describe(results: Results) -> Iterator[str]:
    """Which content the results are for, whether they are complete, and which tests failed."""
    ran = [test for test in results.tests.values() if test.outcome is not Outcome.NOT_RUN]
    known = f" of {len(results.tests)}" if results.all_collected else ""
    kind = "results of a partial run" if results.are_partial else "results"
    yield f"{kind} at {results.content.revision}: {len(ran)}{known} marked tests ran"
    if results.are_partial:
        yield REFRESH
    if slow := sum(test.slow and test.outcome is Outcome.NOT_RUN for test in results.tests.values()):
        yield f"{slow} slow marked tests did not run: make test-slow"
    yield from (f"failed: {name}" for name in _failed_tests(results))


def format_totals(spec: SpecLines, score: Score) -> Iterator[str]:
    """How many lines are shown, per system and in total."""
    shown = score.lines_with(LineStatus.SHOWN) - set(spec.ruled_out)
    for system in spec.systems:
        yield f"{system.letter} {len(shown.intersection(system.lines))}/{len(system.lines)}"
    partly = len(score.lines_with(LineStatus.PARTLY) - set(spec.ruled_out))
    yield f"total {len(shown)}/{len(spec.owner_of)}, {partly} partly" + (" (partial run)" if score.partial else "")


def _by_owner(spec: SpecLines, system: System, score: Score) -> Iterator[str]:
    countable = {line for line in system.lines if line not in spec.ruled_out}
    for owner in spec.owners:
        owned = {line for line in countable if spec.owner_of[line] == owner}
        for standing in LineStatus:
            lines = owned & score.lines_with(standing)
            if standing is LineStatus.PARTLY:
                for line in sorted(lines, key=system.lines.index):
                    yield f"  {owner:<11} {standing:<8} {line}{_describe_open_marks(spec, score, line)}"
            elif lines:
                yield f"  {owner:<11} {standing:<8} {collapse_ranges(lines)}"
    for line in system.lines:
        if reason := spec.ruled_out.get(line):
            yield f"  ruled out {line}: {reason}"


def _describe_open_marks(spec: SpecLines, score: Score, line: str) -> str:
    """The marks of a line that are not shown, each with its reason if one is given."""
    marks = [mark for mark in score.open_marks[line] if mark != line]
    clauses = [mark.partition(".")[2] + _reason(spec, mark) for mark in marks]
    return (f" without {'; '.join(clauses)}" if clauses else "") + _reason(spec, line)


def _reason(spec: SpecLines, key: str) -> str:
    return f": {spec.partly[key]}" if key in spec.partly else ""


def _failed_tests(results: Results) -> list[str]:
    return sorted(name for name, test in results.tests.items() if test.outcome is Outcome.FAILED)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
