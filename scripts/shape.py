"""`make shape`: print how direct the code is, as a table of today's values beside their goals.

The first rows are measured while one message travels through the production server
(tests/flows/message_path.py). The others are counted in the source code.
"""

from __future__ import annotations

import ast
import asyncio
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import import_rules  # noqa: E402

COMPLEXITY_MAX = 15
CORE = ("engine", "intake", "outbox", "connectors/supervisor", "runners/loop.py")
GENERATED = frozenset({"operation_table.py"})
ONE_STEP = (ast.If, ast.IfExp, ast.For, ast.AsyncFor, ast.While, ast.ExceptHandler, ast.Assert, ast.comprehension)

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Signal:
    """One measured value. `goal` is a maximum."""

    name: str
    value: float
    goal: float
    unit: str = ""

    @property
    def is_met(self) -> bool:
        return self.value <= self.goal

    def __str__(self) -> str:
        mark = "ok" if self.is_met else "--"
        return f"{mark}  {self.name:<62} {self.value:>8,.0f}{self.unit}  goal {self.goal:,.0f}{self.unit}"


def main() -> int:
    """Print all signals. Returns 0 even if a goal is not met, because the goals lie ahead."""
    from flows.message_path import measure

    with tempfile.TemporaryDirectory() as folder:
        path = asyncio.run(measure(Path(folder)))
    print(*path.signals(), sep="\n")
    print(*count_signals(ROOT / "src" / import_rules.ROOT), sep="\n")
    return 0


def count_signals(source: Path) -> Iterator[Signal]:
    """Yield the signals that are counted in the source code."""
    trees = {
        path.relative_to(source).as_posix(): ast.parse(path.read_bytes())
        for path in sorted(source.rglob("*.py"))
        if path.name not in GENERATED
    }
    yield Signal("lines of the function that opens a server", function_lines(trees["app/server.py"], "open_server"), 60)
    engine = find_class(trees["engine/embedded_engine.py"], "EmbeddedEngine")
    yield Signal("parameters of the engine's constructor", len(constructor_parameters(engine)), 8)
    services = find_class(trees["operations/base.py"], "Services")
    yield Signal("optional services of operations", len(list(optional_fields(services))), 0)
    cycles = import_rules.import_cycles(import_rules.read_modules(source.parent))
    yield Signal("import cycles, lazy imports included", sum(map(len, cycles.values())), 0)
    yield Signal("private functions that are used once", 100 * share_used_once(trees), 45, " %")
    complex_ = [each for tree in trees.values() for each in functions(tree) if complexity(each) > COMPLEXITY_MAX]
    yield Signal(f"functions with a cyclomatic complexity above {COMPLEXITY_MAX}", len(complex_), 15)
    yield Signal(
        "lines of engine, intake, outbox, supervisor and loop", sum(count_lines(source / each) for each in CORE), 9_000
    )


def functions(tree: ast.AST) -> Iterator[Function]:
    return (node for node in ast.walk(tree) if isinstance(node, Function))


def find_class(tree: ast.AST, name: str) -> ast.ClassDef:
    return next(node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name == name)


def function_lines(tree: ast.AST, name: str) -> int:
    """Return the number of lines of a function, without its decorators."""
    found = next(each for each in functions(tree) if each.name == name)
    return (found.end_lineno or found.lineno) - found.lineno + 1


def constructor_parameters(node: ast.ClassDef) -> list[str]:
    """Return the parameters of a class's constructor without `self`."""
    constructor = next(each for each in node.body if isinstance(each, ast.FunctionDef) and each.name == "__init__")
    given = constructor.args
    return [each.arg for each in (*given.posonlyargs, *given.args, *given.kwonlyargs) if each.arg != "self"]


def optional_fields(node: ast.ClassDef) -> Iterator[str]:
    """Yield the fields of a class that may be None."""
    for each in node.body:
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
            annotation = ast.unparse(each.annotation)
            if annotation.endswith("| None") or annotation.startswith("None |"):
                yield each.target.id


def share_used_once(trees: Mapping[str, ast.AST]) -> float:
    """Return which share of the private functions and methods is named in exactly one other place of its module."""
    private, once = 0, 0
    for tree in trees.values():
        names = Counter(name for node in ast.walk(tree) if (name := _used_name(node)))
        for each in functions(tree):
            if each.name.startswith("_") and not each.name.startswith("__"):
                private += 1
                once += names[each.name] == 1
    return once / private if private else 0.0


def _used_name(node: ast.AST) -> str:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case _:
            return ""


def complexity(function: Function) -> int:
    """Return the cyclomatic complexity of a function. Functions inside it are counted on their own."""
    return 1 + sum(map(_branches, _own_nodes(function)))


def _own_nodes(function: Function) -> Iterator[ast.AST]:
    left: list[ast.AST] = list(ast.iter_child_nodes(function))
    while left:
        node = left.pop()
        if not isinstance(node, Function | ast.ClassDef):
            yield node
            left += ast.iter_child_nodes(node)


def _branches(node: ast.AST) -> int:
    match node:
        case ast.BoolOp(values=values):
            return len(values) - 1
        case ast.Match(cases=cases):
            return sum(not _is_wildcard(case) for case in cases)
        case ast.comprehension(ifs=conditions):
            return 1 + len(conditions)
        case _:
            return int(isinstance(node, ONE_STEP))


def _is_wildcard(case: ast.match_case) -> bool:
    return isinstance(case.pattern, ast.MatchAs) and case.pattern.pattern is None and case.guard is None


def count_lines(path: Path) -> int:
    """Return the number of lines of a file, or of all files of a package."""
    files = path.rglob("*.py") if path.is_dir() else [path]
    return sum(len(each.read_text(encoding="utf-8").splitlines()) for each in files)


if __name__ == "__main__":
    sys.exit(main())
