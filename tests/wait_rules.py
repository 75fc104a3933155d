"""Read test code without importing it, and report every wait that depends on time passing.

There are two rules. A test waits for an event, a row, a log line or a process state, never for a while: the helpers are
in `retinue.testing.wait_conditions`. A time limit in a test only ends a hang, so it is a minute or more. A line that
needs an exception says why, in a comment: `# sleep: REASON` or `# time limit: REASON`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

LIMIT_MIN_S = 60.0
SLEEPERS = frozenset({"time.sleep", "asyncio.sleep", "anyio.sleep", "trio.sleep"})
# The position of the argument that is the limit.
LIMITS_BY_NAME = {
    "asyncio.timeout": 0,
    "asyncio.wait_for": 1,
    "anyio.fail_after": 0,
    "anyio.move_on_after": 0,
    "pytest.mark.timeout": 0,
}
LIMITS_BY_METHOD = {"wait": 0, "join": 0, "result": 0, "settimeout": 0, "set_default_timeout": 0, "wait_for": 1}
LIMIT_KEYWORDS = frozenset({"timeout", "limit_s"})
CLOCKS = frozenset({"time.monotonic", "time.time", "time.perf_counter"})
# In a file of browser tests, `timeout=` is in milliseconds, except in calls of these.
IN_SECONDS = frozenset(
    {"run", "wait", "communicate", "recv", "join", "result", "get", "HTTPConnection", "create_connection", "urlopen"}
)
CHECKED_NODES = (ast.Call, ast.BinOp, ast.Import, ast.ImportFrom)


@dataclass(frozen=True)
class TestFile:
    """A file with its source and the numeric constants that it imports."""

    path: str
    source: str
    tree: ast.Module
    imported: Mapping[str, float]

    __test__ = False


def parse_test_file(path: str, source: str) -> TestFile:
    return TestFile(path, source, ast.parse(source), {})


def wrong_waits(file: TestFile) -> list[str]:
    """One line for each wait that breaks the rules, in the order of the file."""
    return [complaint for _, complaint in sorted(_Reader(file).complaints())]


def read_test_files(*folders: Path) -> list[TestFile]:
    """Every Python file below the folders. Constants that are imported from other files are resolved."""
    paths = [path for folder in folders for path in sorted(folder.rglob("*.py"))]
    files = [parse_test_file(str(path), path.read_text()) for path in paths]
    constants = {_module_key(".".join(Path(file.path).with_suffix("").parts)): _constants(file) for file in files}
    return [TestFile(file.path, file.source, file.tree, dict(_imported(file.tree, constants))) for file in files]


def _module_key(name: str) -> str:
    """The last two parts of a module name, which identify it well enough."""
    return ".".join(name.split(".")[-2:])


def _imported(tree: ast.Module, constants: Mapping[str, Mapping[str, float]]) -> Iterator[tuple[str, float]]:
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module:
            module = node.module if "." in node.module else f"tests.{node.module}"
            known = constants.get(_module_key(module), {})
            yield from ((each.asname or each.name, known[each.name]) for each in node.names if each.name in known)


def _constants(file: TestFile) -> dict[str, float]:
    """The values of the file's numeric constants, including imported ones."""
    known = dict(file.imported)
    for node in file.tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name, value = node.targets[0].id, _number(node.value, known)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
            name, value = node.target.id, _number(node.value, known)
        else:
            continue
        if value is not None:
            known[name] = value
    return known


def _number(node: ast.expr, known: Mapping[str, float]) -> float | None:
    """The value of an expression of literals and constants; None for any other expression."""
    match node:
        case ast.Constant(value=bool()):
            return None
        case ast.Constant(value=int() | float() as value):
            return float(value)
        case ast.Name(id=name):
            return known.get(name)
        case ast.BinOp(left=left, op=op, right=right):
            a, b = _number(left, known), _number(right, known)
            if a is None or b is None:
                return None
            match op:
                case ast.Add():
                    return a + b
                case ast.Sub():
                    return a - b
                case ast.Mult():
                    return a * b
                case ast.Div() if b:
                    return a / b
                case _:
                    return None
        case _:
            return None


def _dotted(node: ast.expr) -> str:
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=value, attr=attr):
            return f"{_dotted(value)}.{attr}"
        case _:
            return "?"


class _Reader:
    def __init__(self, file: TestFile) -> None:
        self._file = file
        self._lines = file.source.splitlines()
        self._known = _constants(file)
        self._nodes = [node for node in ast.walk(file.tree) if isinstance(node, CHECKED_NODES)]
        self._full_names = dict(self._names())
        self._in_browser = "playwright" in file.source

    def complaints(self) -> Iterator[tuple[int, str]]:
        """Each wait with its line."""
        for node in self._nodes:
            match node:
                case ast.Call():
                    yield from self._call(node)
                case ast.BinOp(left=ast.Call() as clock, op=ast.Add()) if self._is_clock(clock):
                    if not self._has_exception_comment(node, "time limit"):
                        yield self._locate_complaint(node, "a deadline made by hand; use wait_until or wait_until_sync")
                case _:
                    continue

    def _names(self) -> Iterator[tuple[str, str]]:
        """The full names of functions that were imported by name."""
        for node in self._nodes:
            if isinstance(node, ast.ImportFrom) and node.module in ("time", "asyncio", "anyio"):
                yield from ((each.asname or each.name, f"{node.module}.{each.name}") for each in node.names)
            elif isinstance(node, ast.Import):
                yield from ((each.asname, each.name) for each in node.names if each.asname)

    def _name(self, node: ast.expr) -> str:
        dotted = _dotted(node)
        first, dot, rest = dotted.partition(".")
        return self._full_names.get(first, first) + dot + rest

    def _is_clock(self, call: ast.Call) -> bool:
        name = self._name(call.func)
        return name in CLOCKS or name.endswith(("loop.time", "get_running_loop.time", "?.time"))

    def _call(self, call: ast.Call) -> Iterator[tuple[int, str]]:
        name = self._name(call.func)
        method = name.rpartition(".")[2]
        if name in SLEEPERS and (not call.args or _number(call.args[0], {}) != 0):
            if not self._has_exception_comment(call, "sleep"):
                yield self._locate_complaint(
                    call, f"{name} waits for time to pass; wait for what it waits for (wait_until)"
                )
        elif method == "wait_for_timeout":
            if not self._has_exception_comment(call, "sleep"):
                yield self._locate_complaint(call, "wait_for_timeout waits for time to pass; use expect(...)")
        for limit, in_ms in self._limits(call, name, method):
            least = LIMIT_MIN_S * (1000 if in_ms else 1)
            if limit < least and not self._has_exception_comment(call, "time limit"):
                unit = "ms" if in_ms else "s"
                yield self._locate_complaint(
                    call, f"{method} is limited to {limit:g} {unit}; a limit ends a hang: {least:g} or more"
                )

    def _limits(self, call: ast.Call, name: str, method: str) -> Iterator[tuple[float, bool]]:
        """Each limit of a call that can be read here, and whether it is in milliseconds."""
        in_ms = self._in_browser and method not in IN_SECONDS and name not in LIMITS_BY_NAME
        place = LIMITS_BY_NAME.get(name, LIMITS_BY_METHOD.get(method) if "." in name else None)
        given = [call.args[place]] if place is not None and len(call.args) > place else []
        given += [each.value for each in call.keywords if each.arg in LIMIT_KEYWORDS]
        for each in given:
            value = _number(each, self._known)
            if value is not None and value > 0:
                yield value, in_ms

    def _has_exception_comment(self, node: ast.expr, what: str) -> bool:
        """Whether a comment on the lines of the expression gives a reason."""
        spoken = self._lines[node.lineno - 1 : node.end_lineno]
        return any(line.partition(f"# {what}: ")[2].strip() for line in spoken)

    def _locate_complaint(self, node: ast.expr, complaint: str) -> tuple[int, str]:
        return node.lineno, f"{self._file.path}:{node.lineno}: {complaint}"
