"""Small defects for the mutation check: finds the places in Python code where a defect can be planted, and plants it.

A defect is identified by its file, the function around it, the operator, the text of its line, and
its number among identical ones. It is therefore found again after lines have moved, and is reported
as missing if its place is gone.
"""

from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from random import Random

OPERATORS = ("negate", "boundary", "and_or", "drop_call", "drop_raise", "drop_assignment", "return_none", "off_by_one")
OPERATORS += ("other_member", "drop_where")

BOUNDARIES: Mapping[type[ast.cmpop], tuple[str, str]] = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
}
# Text for people, code for speed, and code that only a type checker reads: tests need not notice a defect there.
SKIPPED_FUNCTIONS = frozenset({"__init__", "__repr__", "__str__", "__hash__", "__aexit__", "__exit__", "__del__"})
SKIPPED_LINE = re.compile(
    r"\blog(?:ger|ging)?\.|_log\b|\bcache|_s\b|_ms\b|timeout|interval|batch|chunk|maxsize|sleep|backoff|patience|"
    r"TYPE_CHECKING|NotImplementedError|pragma|stacklevel|indent|\bcancel\(|\bclose\(|aclose\(|task_done|weak"
)
ENUM_BASES = frozenset({"Enum", "StrEnum", "IntEnum", "Flag"})


@dataclass(frozen=True, slots=True)
class Mutant:
    """One small defect: its place, and the operator that makes it."""

    file: str
    within: str
    operator: str
    line: str
    number: int = 1

    @property
    def name(self) -> str:
        """The short name of a defect, for people and for results."""
        return f"{self.file.removeprefix('src/retinue/')}:{self.within}:{self.operator}:{self.number}:{self.line}"


@dataclass(frozen=True, slots=True)
class Site:
    """A place in a source text where a defect can be planted: `instead` replaces the text from `start` to `end`."""

    mutant: Mutant
    start: int
    end: int
    instead: str

    def planted(self, text: str) -> str:
        """Return the text with the defect planted."""
        return text[: self.start] + self.instead + text[self.end :]


def sites(file: str, text: str, members: Mapping[str, Sequence[str]]) -> list[Site]:
    """Return every place in a Python source text where one of the operators applies, in order. `members`
    maps each enum to its members."""
    finder = _Finder(text, members)
    finder.visit(ast.parse(text))
    numbers: Counter[tuple[str, str, str]] = Counter()
    found: list[Site] = []
    for within, operator, start, end, instead in sorted(finder.found, key=lambda each: each[2:]):
        line = finder.line_of(start)
        if SKIPPED_LINE.search(line):
            continue
        numbers[within, operator, line] += 1
        mutant = Mutant(file, within, operator, line, numbers[within, operator, line])
        found.append(Site(mutant, start, end, instead))
    return found


def locate(mutant: Mutant, texts: Mapping[str, str], members: Mapping[str, Sequence[str]]) -> Site | None:
    """Find the place of a defect: in its file, or in the only other place with the same line in a
    function of that name.
    """
    if mutant.file in texts:
        for site in sites(mutant.file, texts[mutant.file], members):
            if site.mutant == mutant:
                return site
    moved = [
        site
        for file, text in texts.items()
        if file != mutant.file and mutant.line in text
        for site in sites(file, text, members)
        if _same_but_for_place(site.mutant, mutant)
    ]
    return moved[0] if len(moved) == 1 else None


def choose(
    packages: Mapping[str, Sequence[Site]], count: int, seed: int, is_valid: Callable[[Site], bool]
) -> list[Site]:
    """Choose `count` valid places in each package, by a fixed seed. The operators take turns, and
    no function is chosen twice.
    """
    chosen: list[Site] = []
    for package, found in packages.items():
        random = Random(f"{seed}:{package}")
        by_operator: dict[str, list[Site]] = defaultdict(list)
        for site in found:
            by_operator[site.mutant.operator].append(site)
        for each in by_operator.values():
            random.shuffle(each)
        chosen += _in_turn(by_operator, count, is_valid)
    return chosen


def _in_turn(by_operator: Mapping[str, list[Site]], count: int, is_valid: Callable[[Site], bool]) -> list[Site]:
    taken: list[Site] = []
    functions: set[tuple[str, str]] = set()
    files: Counter[str] = Counter()
    left = {operator: list(by_operator.get(operator, ())) for operator in OPERATORS}
    for operator in cycle(OPERATORS):
        if len(taken) == count or not any(left.values()):
            return taken
        while left[operator]:
            site = left[operator].pop()
            place = (site.mutant.file, site.mutant.within)
            if place not in functions and files[site.mutant.file] < 2 and is_valid(site):
                functions.add(place)
                files[site.mutant.file] += 1
                taken.append(site)
                break
    return taken


def enum_members(texts: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """Return the members of every enum in these files, by the name of its class."""
    found: dict[str, tuple[str, ...]] = {}
    for text in texts.values():
        if "Enum)" not in text and "Flag)" not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ClassDef) and any(ast.unparse(base) in ENUM_BASES for base in node.bases):
                found[node.name] = tuple(
                    target.id
                    for each in node.body
                    if isinstance(each, ast.Assign)
                    for target in each.targets
                    if isinstance(target, ast.Name)
                )
    return found


class _Finder(ast.NodeVisitor):
    """Collects (function, operator, start, end, instead) for every place in a text."""

    def __init__(self, text: str, members: Mapping[str, Sequence[str]]) -> None:
        self.found: list[tuple[str, str, int, int, str]] = []
        self._text = text
        self._members = members
        self._within: list[str] = []
        self._is_in_function = False
        rows = text.splitlines(keepends=True)
        self._rows = rows
        self._starts = [0]
        for row in rows:
            self._starts.append(self._starts[-1] + len(row))

    def line_of(self, offset: int) -> str:
        """Return the line around an offset, without the spaces at its ends."""
        number = next(i for i, start in enumerate(self._starts) if start > offset) - 1
        return self._rows[number].strip()

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        if any("Protocol" in ast.unparse(base) for base in node.bases):
            return
        self._enter(node, is_function=False)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._visit_function(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self._visit_function(node)

    def _visit_function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        if node.name in SKIPPED_FUNCTIONS or any("overload" in ast.unparse(each) for each in node.decorator_list):
            return
        self._enter(node, is_function=True)

    def _enter(self, node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef, *, is_function: bool) -> None:
        before = self._is_in_function
        self._within.append(node.name)
        self._is_in_function = is_function or before
        for each in node.body:
            self.visit(each)
        self._within.pop()
        self._is_in_function = before

    def visit_If(self, node: ast.If) -> None:
        if "TYPE_CHECKING" in ast.unparse(node.test):
            return
        self._negate(node.test)
        self.generic_visit(node)

    def visit_While(self, node: ast.While) -> None:
        if not isinstance(node.test, ast.Constant):
            self._negate(node.test)
        self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self._negate(node.test)
        self.generic_visit(node)

    def visit_comprehension(self, node: ast.comprehension) -> None:
        for test in node.ifs:
            self._negate(test)
        self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        if len(node.ops) == 1 and type(node.ops[0]) in BOUNDARIES:
            sign, instead = BOUNDARIES[type(node.ops[0])]
            start, end = self._span(node.left)[1], self._span(node.comparators[0])[0]
            at = self._text.find(sign, start, end)
            if at >= 0:
                self._add("boundary", at, at + len(sign), instead)
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        sign, instead = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        if len(node.values) == 2:
            start, end = self._span(node.values[0])[1], self._span(node.values[1])[0]
            found = re.search(rf"\b{sign}\b", self._text[start:end])
            if found:
                self._add("and_or", start + found.start(), start + found.end(), instead)
        self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> None:
        called = node.value.value if isinstance(node.value, ast.Await) else node.value
        if isinstance(called, ast.Call):
            self._add("drop_call", *self._span(node), "pass")
        self.generic_visit(node)

    def visit_Raise(self, node: ast.Raise) -> None:
        if node.exc is not None:
            self._add("drop_raise", *self._span(node), "pass")
        # The text of an error is for people.

    def visit_Assign(self, node: ast.Assign) -> None:
        if all(isinstance(target, ast.Attribute | ast.Subscript) for target in node.targets):
            self._add("drop_assignment", *self._span(node), "pass")
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self._add("drop_assignment", *self._span(node), "pass")
        self.generic_visit(node)

    def visit_Return(self, node: ast.Return) -> None:
        if node.value is not None and not (isinstance(node.value, ast.Constant) and not node.value.value):
            self._add("return_none", *self._span(node.value), "None")
        self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, int) and not isinstance(node.value, bool):
            self._add("off_by_one", *self._span(node), str(node.value + 1))
        if isinstance(node.value, str):
            self._drop_sql_condition(node)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Skip f-strings, because their parts have no exact position before Python 3.12."""

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if isinstance(node.value, ast.Name) and node.attr in (members := self._members.get(node.value.id, ())):
            other = members[(members.index(node.attr) + 1) % len(members)]
            end = self._span(node)[1]
            if other != node.attr:
                self._add("other_member", end - len(node.attr), end, other)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        if isinstance(node.func, ast.Attribute) and node.func.attr in ("where", "filter") and len(node.args) > 1:
            first, second = (self._span(each) for each in node.args[:2])
            if not isinstance(node.args[0], ast.Starred):
                self._add("drop_where", first[0], second[0], "")
        self.generic_visit(node)

    def visit_Match(self, node: ast.Match) -> None:
        """Visit the subject, the guards and the bodies. Patterns are not changed."""
        self.visit(node.subject)
        for case in node.cases:
            if case.guard is not None:
                self._negate(case.guard)
            for each in case.body:
                self.visit(each)

    def _drop_sql_condition(self, node: ast.Constant) -> None:
        start, end = self._span(node)
        text = self._text[start:end]
        found = re.search(r" AND [\w.]+ (?:=|<|>|<=|>=|IS NOT|IS) :?\w+", text)
        if found and re.search("SELECT|UPDATE|DELETE", text):
            self._add("drop_where", start + found.start(), start + found.end(), "")

    def _negate(self, test: ast.expr) -> None:
        start, end = self._span(test)
        self._add("negate", start, end, f"not ({self._text[start:end]})")

    def _add(self, operator: str, start: int, end: int, instead: str) -> None:
        if self._is_in_function:
            self.found.append((".".join(self._within), operator, start, end, instead))

    def _span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        end_line, end_column = node.end_lineno or node.lineno, node.end_col_offset or 0
        return self._offset(node.lineno, node.col_offset), self._offset(end_line, end_column)

    def _offset(self, line: int, column: int) -> int:
        """Return the offset in the text of a line and column. Columns of the syntax tree count bytes."""
        row = self._rows[line - 1]
        return self._starts[line - 1] + len(row.encode()[:column].decode())


def _same_but_for_place(one: Mutant, other: Mutant) -> bool:
    function = one.within.rpartition(".")[2] == other.within.rpartition(".")[2]
    return function and (one.operator, one.line, one.number) == (other.operator, other.line, other.number)
