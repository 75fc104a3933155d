"""Picks the tests to run for a change: those that can best show a defect in it, within a limit of seconds.

In a layered project nearly every test reaches nearly every module, so being reachable is not enough
to be picked. For each changed file, test files are ranked by four things: the distance in the
import graph, whether they mirror its module, whether they use its names, and whether they have
changed together with it before. Then each changed file in turn contributes its best remaining test,
until the seconds are used up. This module reads no files and starts no processes.
"""

from __future__ import annotations

import ast
import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import zip_longest
from pathlib import PurePosixPath

from scripts.source_graph import Route, Tree, defined_names, is_test, routes_to, words

WORKERS = 2
BUDGET_S = 60.0
# The time before the first test, during which two workers import the fixtures and the picked files.
START_S = 8.0
# If a test file takes longer than this, only its tests that use the changed names are picked.
LONG_S = 12.0
# The mean time of a test, for a file that was never measured.
UNMEASURED_TEST_S = 0.4

# One quick file for each part of the server, for a change that reaches all of them.
SMOKE = (
    "tests/flows/test_first.py",
    "tests/test_imports.py",
    "tests/test_spec.py",
    "tests/domain/test_cron.py",
    "tests/config/test_loader.py",
    "tests/store/test_sqlite.py",
    "tests/policy/test_tool_policy.py",
    "tests/models/test_offline_guide.py",
    "tests/sandbox/test_settings.py",
    "tests/tools/test_toolbox.py",
    "tests/agents/test_instruction_templates.py",
    "tests/intake/test_accept.py",
    "tests/schedules/test_schedule_files.py",
    "tests/engine/test_lanes.py",
    "tests/operations/test_tool_invoke_keys.py",
    "tests/api/test_sign_in.py",
    "tests/cli/test_usage_report.py",
    "tests/web/test_navigation.py",
)
EVERYTHING = (
    "Makefile",
    "pyproject.toml",
    "hatch_build.py",
    "requirements/",
    "tests/conftest.py",
    "tests/spec_plugin.py",
)
MADE_FROM_CODE = "Made from the code by `make generate`"
GENERATED = ("docs/reference/openapi.json",)
GENERATED_TESTS = ("tests/scripts/test_generate.py",)
DOCS_TESTS = ("tests/scripts/test_check_links.py", "tests/docs/")

# A name of several words means the same everywhere, while `read` or `Route` may mean anything.
TELLING = re.compile(r".+[_.-].+|[A-Z]\w*[a-z][A-Z]\w*")
# The minimum points for a test that does not import the module, such as one that talks to another process.
UNREACHED_POINTS_MIN = 2.0

TEST_FUNCTION = re.compile(r"^\s*(?:async )?def test", re.MULTILINE)
# Text that a person may read on a screen: in quotes, or between two tags.
LABELS = (
    re.compile(r"\"([^\"\n]{4,60})\""),
    re.compile(r"'([^'\n]{4,60})'"),
    re.compile(r">\s*([^<>{}\n]{4,60}?)\s*<"),
)


@dataclass(frozen=True, slots=True)
class Change:
    """One changed file. `text` is its current text, or None if it was deleted. Empty `lines` mean
    that all lines changed.
    """

    path: str
    text: str | None
    lines: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Pick:
    """One test file to run, with the reason and the expected time. If `tests` is not empty, only
    these of its tests run.
    """

    path: str
    reason: str
    seconds: float
    tests: tuple[str, ...] = ()
    test_count: int = 0

    @property
    def arguments(self) -> tuple[str, ...]:
        """The arguments for pytest."""
        return tuple(f"{self.path}::{test}" for test in self.tests) or (self.path,)


@dataclass(frozen=True, slots=True)
class Selection:
    """The picked tests, the reachable test files that were left out, and notes for the person."""

    picks: tuple[Pick, ...]
    left_out: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def seconds(self) -> float:
        """The expected time of the run, with all workers."""
        if not self.picks:
            return 0.0
        each = [pick.seconds for pick in self.picks]
        return START_S + max(sum(each) / WORKERS, max(each))


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known besides the change: the files, the seconds of tests, and which files changed together before."""

    tree: Tree
    durations: Mapping[str, float] = field(default_factory=dict[str, float])
    together: Mapping[str, Mapping[str, float]] = field(default_factory=dict[str, Mapping[str, float]])


@dataclass(frozen=True, slots=True)
class Candidate:
    """A test file that a change reaches, with its points and the reason for them."""

    path: str
    points: float
    reason: str


def select(changes: Sequence[Change], facts: Facts, budget_s: float = BUDGET_S) -> Selection:
    """Pick the tests for a change. Changed tests are always picked, and others until the seconds are used up."""
    picks = {pick.path: pick for change in changes if (pick := _changed_test(change, facts))}
    notes = [
        f"{change.path} can affect every test: one test file per part is picked"
        for change in changes
        if _is_all(change)
    ]
    rankings = [ranking for change in changes if (ranking := rank(change, facts))]
    names = {name for change in changes for name in _names(change)}
    left_s = max(0.0, budget_s - START_S) * WORKERS - sum(pick.seconds for pick in picks.values())
    left_out: dict[str, None] = {}
    for candidate in (each for turn in zip_longest(*rankings) for each in turn if each is not None):
        if candidate.path in picks:
            continue
        pick = _narrowed(candidate, names, facts)
        if pick.seconds <= left_s:
            picks[pick.path] = pick
            left_s -= pick.seconds
            left_out.pop(pick.path, None)
        else:
            left_out[pick.path] = None
    return Selection(tuple(picks.values()), tuple(left_out), tuple(notes))


def rank(change: Change, facts: Facts) -> list[Candidate]:
    """Return the test files that a changed file reaches, best first."""
    candidates = list(_candidates(change, facts))
    return sorted(candidates, key=lambda each: (-each.points, seconds_of(each.path, facts), each.path))


def seconds_of(path: str, facts: Facts) -> float:
    """Return the time of a test file: as last measured, or else estimated from the number of its tests."""
    if (measured := facts.durations.get(path)) is not None:
        return measured
    return UNMEASURED_TEST_S * max(1, len(TEST_FUNCTION.findall(facts.tree.files.get(path, ""))))


def _candidates(change: Change, facts: Facts) -> Iterator[Candidate]:
    tree = facts.tree
    if _is_all(change):
        yield from (Candidate(path, 10.0, "smoke test") for path in SMOKE if path in tree.files)
    if is_test(change.path):
        return
    if _is_generated(change):
        yield from _named_tests(GENERATED_TESTS, "generated file", tree)
        if change.path.endswith((".md", ".json")):
            yield from _named_tests(DOCS_TESTS, "page of the docs", tree)
    elif change.path.startswith("web/"):
        yield from _web_candidates(change, facts)
    elif change.path.endswith(".py"):
        yield from _python_candidates(change, facts)
    elif change.path.startswith("docs/") or ("/" not in change.path and change.path.endswith(".md")):
        yield from _named_tests(DOCS_TESTS, "page of the docs", tree)
        yield from _data_candidates(change, Facts(tree))  # changing together says nothing here
    elif not _is_all(change):
        yield from _data_candidates(change, facts)


def _named_tests(paths: Iterable[str], reason: str, tree: Tree) -> Iterator[Candidate]:
    for path in paths:
        yield from (Candidate(test, 10.0, reason) for test in tree.tests if test.startswith(path))


def _python_candidates(change: Change, facts: Facts) -> Iterator[Candidate]:
    names = _names(change)
    routes = routes_to(change.path, names, facts.tree)
    weights = _rarity({name for name in names if TELLING.fullmatch(name)}, facts.tree)
    for test in facts.tree.tests:
        by_path = [_mirror_evidence(change.path, test), _route_evidence(routes.get(test))]
        by_chance = [
            _names_evidence([name for name in weights if facts.tree.names(test, name)], weights),
            _together_evidence(change.path, test, facts),
        ]
        if any(points for points, _ in by_path) or sum(points for points, _ in by_chance) >= UNREACHED_POINTS_MIN:
            yield from _weighed(test, *by_path, *by_chance)


def _data_candidates(change: Change, facts: Facts) -> Iterator[Candidate]:
    """Return tests for a file that code loads by its path: those that contain the file's name, or
    that reach a module containing its name."""
    name = PurePosixPath(change.path).name
    namers = [path for path, text in facts.tree.files.items() if path.endswith(".py") and f"{name}" in text]
    routes: dict[str, Route] = {}
    for namer in namers:
        found = {namer: Route(0.0)} if is_test(namer) else routes_to(namer, (), facts.tree)
        for path, route in found.items():
            if path not in routes or route.cost + 1 < routes[path].cost:
                routes[path] = Route(route.cost + 1, (*route.through, change.path))
    for test in facts.tree.tests:
        yield from _weighed(test, _route_evidence(routes.get(test)), _together_evidence(change.path, test, facts))


def _web_candidates(change: Change, facts: Facts) -> Iterator[Candidate]:
    """Return tests for a file of the web app: the browser tests of the screens that import the
    file, or that look for its labels."""
    routes = {change.path: Route(0.0), **routes_to(change.path, (), facts.tree)}
    areas: dict[str, float] = {}
    for path, route in routes.items():
        for area in _areas(path):
            areas[area] = min(areas.get(area, math.inf), route.cost)
    tests = [test for test in facts.tree.tests if test.startswith("tests/web/")]
    labels = {test: _labels(facts.tree.files[test]) for test in tests}
    counts = Counter(label for each in labels.values() for label in each)
    for test in tests:
        stem = _stem_words(test)
        near = [(cost, area) for area, cost in areas.items() if area in stem]
        found = list(labels[test] & _labels(change.text or ""))
        yield from _weighed(
            test,
            (8.0 / (1 + min(near)[0]), f"shows {min(near)[1]}") if near else (0.5, "browser test"),
            _names_evidence(found, {label: 1 / counts[label] for label in found}),
            _together_evidence(change.path, test, facts),
        )


def _weighed(test: str, *evidence: tuple[float, str]) -> Iterator[Candidate]:
    told = sorted((each for each in evidence if each[0] > 0), reverse=True)
    if told:
        reason = "; ".join(reason for points, reason in told[:3] if points >= 0.5) or told[0][1]
        yield Candidate(test, sum(points for points, _ in told), reason)


def _mirror_evidence(path: str, test: str) -> tuple[float, str]:
    """Return points for a test file that is named after the module, or after the package of a
    module deep in the tree."""
    module = PurePosixPath(path.removeprefix("src/retinue/")).with_suffix("")
    if test == f"tests/{module.parent}/test_{module.name}.py".replace("/./", "/"):
        return 8.0, "mirrors it"
    stem = _stem_words(test)
    if set(module.name.split("_")) <= stem:
        near = test.startswith(f"tests/{module.parts[0]}/")
        return (4.0 if near else 2.0), f"named after {module.name}"
    if len(module.parts) > 2 and set(module.parent.name.split("_")) <= stem:
        return 1.5, f"named after {module.parent.name}"
    return 0.0, ""


def _route_evidence(route: Route | None) -> tuple[float, str]:
    if route is None:
        return 0.0, ""
    through = [PurePosixPath(path.removesuffix("/__init__.py")).stem for path in route.through[:-1]]
    return 6.0 / max(1.0, route.cost), "imports it" if not through else f"imports it through {' > '.join(through)}"


def _names_evidence(found: Sequence[str], weights: Mapping[str, float]) -> tuple[float, str]:
    rarest = sorted(found, key=lambda name: (-weights[name], name))
    return min(6.0, sum(weights[name] for name in rarest)), f"names {', '.join(rarest[:3])}"


def _together_evidence(path: str, test: str, facts: Facts) -> tuple[float, str]:
    return min(5.0, 4 * facts.together.get(path, {}).get(test, 0.0)), "changed together before"


def _rarity(names: Collection[str], tree: Tree) -> dict[str, float]:
    """Return the weight of each name: 1 if a single test file uses it, 0 if all of them do."""
    counts = {name: sum(tree.names(test, name) for test in tree.tests) for name in names}
    most = math.log(max(2, len(tree.tests)))
    return {name: 1 - math.log(count) / most for name, count in counts.items() if count}


def _changed_test(change: Change, facts: Facts) -> Pick | None:
    """Pick a changed test file. If the file is long and only some of its tests were changed, pick those tests."""
    if not is_test(change.path) or change.text is None:
        return None
    whole = Pick(change.path, "changed", seconds_of(change.path, facts))
    tests = tests_of(change.text)
    touched = [test for test in tests if test.lines & change.lines]
    if whole.seconds <= LONG_S or not change.lines or change.lines - _covered(touched, change.text):
        return whole
    names = {name for test in touched for name in words(test.text)}
    return _fill(Candidate(change.path, 0.0, "changed"), touched, tests, names, facts)


def _narrowed(candidate: Candidate, names: Collection[str], facts: Facts) -> Pick:
    seconds = seconds_of(candidate.path, facts)
    if seconds <= LONG_S:
        return Pick(candidate.path, candidate.reason, seconds)
    return _fill(candidate, [], tests_of(facts.tree.files[candidate.path]), names, facts)


def _fill(
    candidate: Candidate,
    always: Sequence[SingleTest],
    tests: Sequence[SingleTest],
    names: Collection[str],
    facts: Facts,
) -> Pick:
    """Pick tests of a long file: those in `always`, then those that use the most names, quickest
    first, up to LONG_S.
    """
    seconds = _seconds_of_tests(candidate.path, tests, facts)
    best = sorted(tests, key=lambda test: (-len(words(test.text) & set(names)), seconds[test.name]))
    taken = {test.name: seconds[test.name] for test in always}
    for test in best:
        if test.name not in taken and sum(taken.values()) + seconds[test.name] <= LONG_S:
            taken[test.name] = seconds[test.name]
    if not taken:
        taken = {best[0].name: seconds[best[0].name]} if best else {}
    in_order = tuple(test.name for test in tests if test.name in taken)
    return Pick(candidate.path, candidate.reason, sum(taken.values()), in_order, len(tests))


@dataclass(frozen=True, slots=True)
class SingleTest:
    """One test function: the name that pytest gives it within its file, its text and its lines."""

    name: str
    text: str
    lines: frozenset[int]


@cache
def tests_of(text: str) -> tuple[SingleTest, ...]:
    """Return the test functions of a test file, including those in classes."""
    tree = ast.parse(text)
    rows = text.splitlines()
    found: list[SingleTest] = []
    for node in tree.body:
        inner = node.body if isinstance(node, ast.ClassDef) and node.name.startswith("Test") else [node]
        prefix = f"{node.name}::" if isinstance(node, ast.ClassDef) else ""
        for each in inner:
            if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) and each.name.startswith("test"):
                first = each.decorator_list[0].lineno if each.decorator_list else each.lineno
                last = each.end_lineno or first
                lines = frozenset(range(first, last + 1))
                found.append(SingleTest(prefix + each.name, "\n".join(rows[first - 1 : last]), lines))
    return tuple(found)


def _covered(tests: Iterable[SingleTest], text: str) -> set[int]:
    """Return the lines of these tests, and all empty lines of the file."""
    empty = {number for number, row in enumerate(text.splitlines(), 1) if not row.strip()}
    return empty.union(*(test.lines for test in tests))


def _seconds_of_tests(path: str, tests: Sequence[SingleTest], facts: Facts) -> dict[str, float]:
    """Return the seconds of each test: as measured if the test is long, else an equal share of the
    file's remaining time."""
    known = {test.name: facts.durations.get(f"{path}::{test.name}") for test in tests}
    rest = seconds_of(path, facts) - sum(each for each in known.values() if each is not None)
    share = max(0.05, rest / max(1, sum(each is None for each in known.values())))
    return {name: share if each is None else each for name, each in known.items()}


def _names(change: Change) -> frozenset[str]:
    if change.text is None or not change.path.endswith(".py") or is_test(change.path):
        return frozenset()
    return defined_names(change.text, change.lines)


def _is_all(change: Change) -> bool:
    return change.path.startswith(EVERYTHING)


def _is_generated(change: Change) -> bool:
    return change.path in GENERATED or (not change.path.endswith(".py") and MADE_FROM_CODE in (change.text or "")[:200])


def _areas(path: str) -> Iterator[str]:
    """Return the words for a part of the web app in the names of browser tests: its folder and its file name."""
    parts = PurePosixPath(path).parts
    if "screens" in parts[:-1]:
        yield parts[parts.index("screens") + 1].lower()
    yield from (part for part in ("frame", "panels") if part in parts)
    yield PurePosixPath(path).name.partition(".")[0].lower()


@cache
def _labels(text: str) -> frozenset[str]:
    return frozenset(label for pattern in LABELS for label in pattern.findall(text))


def _stem_words(test: str) -> set[str]:
    return set(PurePosixPath(test).stem.removeprefix("test_").split("_"))
