"""Checks the imports of `src/retinue` and its use of the system's clock and randomness, without importing it.

There are three rules. A package imports only packages of the rows below its own. Modules and subpackages of one package
do not form import cycles. Times, ids and random numbers are passed in: only a few modules ask the system.
"""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = "retinue"

# A row may import every row after it.
ROWS: tuple[frozenset[str], ...] = tuple(
    frozenset(row.split())
    for row in (
        "testing dry_run",
        "app",
        "plugins api",
        "operations",
        "engine",
        "outbox runners schedules",
        "intake",
        "tools agents memory artifacts",
        "connectors models sandbox",
        "net",
        "store policy",
        "config text",
        "domain",
    )
)
ROW_OF = {package: number for number, row in enumerate(ROWS) for package in row}

# Allowed imports within a row.
EXCEPTIONS = frozenset({("dry_run", "testing")})  # for its event loop with virtual time

# The command line speaks to the API alone, so that it starts fast; `python -m retinue` is another way to call it.
ISOLATED_PACKAGES = {"cli": frozenset[str](), "__main__": frozenset({"cli"})}

STANDARD_LIBRARY_ONLY = frozenset({"domain", "policy", "text", "cli", "__main__"})
# Only what the types are made of (docs/decisions/0011-domain-types-are-structs.md), and the library that computes cron
# times (docs/decisions/0015-next-schedule-occurrence.md).
_STRUCT = frozenset({"msgspec.Struct", "msgspec.field"})
ALLOWED_THIRD_PARTY = {
    "domain": _STRUCT | {"msgspec.structs", "cronsim.CronSim", "cronsim.CronSimError"},
    "policy": _STRUCT,
    "text": _STRUCT,
}

# Known import cycles that are still to be broken, including lazy imports.
KNOWN_IMPORT_CYCLES = {
    "api": {frozenset({"connection_limits", "websocket_limits"})},
    "cli": {frozenset({"client", "process_control", "tcp_connection"})},
    # Handlers read the catalog that contains them.
    "operations": {
        frozenset(
            (
                *(
                    "agent",
                    "approval",
                    "audit",
                    "base",
                    "catalog",
                    "config",
                    "connector",
                    "delegation",
                    "doctor_registry",
                ),
                *(
                    "envelope",
                    "known_secrets",
                    "mcp",
                    "model",
                    "operation_tools",
                    "parameter_schema",
                    "person",
                    "plugin",
                ),
                *("policy", "run", "schedule", "server", "session", "skill", "tool", "tool_context"),
            )
        )
    },
    # The commit that ends an envelope also ends its occurrence, and a schedule makes envelopes.
    "store": {frozenset({"channels", "envelopes", "ledger", "maintenance", "runs", "schedules"})},
    "testing": {frozenset({"simulated_external_agent", "simulated_server"})},
}

# Only these may ask the system for the time or for a random number.
MODULES_WITH_SYSTEM_ACCESS = ("retinue.app.clock_and_ids", "retinue.testing", "retinue.cli")
SYSTEM_CALLS = frozenset(
    {
        "datetime.date.today",
        "datetime.datetime.now",
        "datetime.datetime.today",
        "datetime.datetime.utcnow",
        "os.urandom",
        "time.time",
        "time.time_ns",
        "uuid.uuid1",
        "uuid.uuid4",
    }
)
SYSTEM_MODULES = frozenset({"random", "secrets"})
# A seeded generator may be passed around; a generator without a seed asks the system for one.
SEEDED_GENERATOR = "random.Random"


@dataclass(frozen=True, slots=True)
class Module:
    """One source file: its dotted name and its syntax tree."""

    name: str
    tree: ast.Module
    is_package: bool = False

    @property
    def part(self) -> str:
        """The package or top module it belongs to: `store` for `retinue.store.core.sqlite`, empty for the root."""
        return _part(self.name)


def read_modules(source: Path) -> Iterator[Module]:
    """Every module of the package below `source`."""
    for path in sorted((source / ROOT).rglob("*.py")):
        names = path.relative_to(source).with_suffix("").parts
        is_package = names[-1] == "__init__"
        name = ".".join(names[:-1] if is_package else names)
        yield Module(name, ast.parse(path.read_bytes(), filename=str(path)), is_package)


def wrong_imports(module: Module) -> list[str]:
    """The imports of a module, at its top or inside its functions, that the rows do not allow."""
    complaints: list[str] = []
    if module.part and module.part not in ROW_OF and module.part not in ISOLATED_PACKAGES:
        complaints.append(f"{module.name}: `{module.part}` has no row; give it one in tests/import_rules.py")
    for line, imported in _imports(module):
        if because := _explain_violation(module.part, imported):
            complaints.append(f"{module.name}:{line} imports {imported}: {because}")
    return complaints


def import_cycles(modules: Iterable[Module]) -> dict[str, set[frozenset[str]]]:
    """The parts of each package that form an import cycle: `{"store": {frozenset({"core", "runs"})}}`."""
    graphs: defaultdict[str, defaultdict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for module in modules:
        words = module.name.split(".")
        if len(words) < 3:
            continue
        for imported in imported_names(module):
            other = imported.split(".")
            if other[:2] == words[:2] and len(other) > 2 and other[2] != words[2]:
                graphs[module.part][words[2]].add(other[2])
    found = {package: set(_strongly_connected_parts(graph)) for package, graph in graphs.items()}
    return {package: several for package, several in found.items() if several}


def _strongly_connected_parts(graph: Mapping[str, set[str]]) -> Iterator[frozenset[str]]:
    """The strongly connected components of a graph with more than one member."""
    reached = {start: _reachable(graph, start) for start in graph}
    seen: set[str] = set()
    for start in graph:
        circle = frozenset(each for each in reached[start] if start in reached.get(each, ()))
        if len(circle) > 1 and start not in seen:
            seen |= circle
            yield circle


def _reachable(graph: Mapping[str, set[str]], start: str) -> set[str]:
    found: set[str] = set()
    left = [start]
    while left:
        new = graph.get(left.pop(), set()) - found
        found |= new
        left += new
    return found


def imported_names(module: Module) -> Iterator[str]:
    """The full names that a module imports, `retinue.store.core.tables` for `from retinue.store.core import tables`."""
    for _, origin, names in _import_statements(module):
        yield from (f"{origin}.{name}" for name in names) if names else [origin]


def system_calls(module: Module) -> list[str]:
    """The places where a module asks the system for the time or randomness without being allowed to."""
    if any(module.name == name or module.name.startswith(f"{name}.") for name in MODULES_WITH_SYSTEM_ACCESS):
        return []
    meaning = _resolve_imported_names(module)
    complaints: list[str] = []
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Call) and not node.args and _dotted(node.func, meaning) == SEEDED_GENERATOR:
            complaints.append(f"{module.name}:{node.lineno} makes {SEEDED_GENERATOR} without a seed")
        if isinstance(node, ast.Name | ast.Attribute) and _uses_the_system(name := _dotted(node, meaning)):
            complaints.append(f"{module.name}:{node.lineno} uses {name}: use what was passed in")
    return complaints


def _explain_violation(part: str, imported: str) -> str | None:
    top = imported.partition(".")[0]
    if top != ROOT:
        if part in STANDARD_LIBRARY_ONLY and top not in sys.stdlib_module_names:
            return f"{part} has only the standard library"
        return None
    other = _part(imported)
    if other in ("", part):  # the root has only the version
        return None
    if not part:
        return "the root imports nothing"
    if part in ISOLATED_PACKAGES or other in ISOLATED_PACKAGES:
        return None if other in ISOLATED_PACKAGES.get(part, ()) else "the command line imports only itself"
    if other not in ROW_OF or part not in ROW_OF:
        return "no row for it"
    if ROW_OF[part] < ROW_OF[other] or (part, other) in EXCEPTIONS:
        return None
    return "packages of one row do not import each other" if ROW_OF[part] == ROW_OF[other] else "imports go down"


def _part(name: str) -> str:
    words = name.split(".")
    return words[1] if len(words) > 1 else ""


def _imports(module: Module) -> Iterator[tuple[int, str]]:
    for line, origin, names in _import_statements(module):
        allowed = ALLOWED_THIRD_PARTY.get(module.part, frozenset[str]())
        if names and {f"{origin}.{name}" for name in names} <= allowed:
            continue
        if names and origin == ROOT:  # `from retinue import store` names a package; `__version__` is the root's own
            yield from ((line, f"{ROOT}.{name}") for name in names if name != "__version__")
        else:
            yield line, origin


def _import_statements(module: Module) -> Iterator[tuple[int, str, list[str]]]:
    """The line of each import, at the top or inside a function, what it imports from, and the names, if it has any."""
    for node in ast.walk(module.tree):
        match node:
            case ast.Import():
                yield from ((node.lineno, alias.name, []) for alias in node.names)
            case ast.ImportFrom():
                yield node.lineno, _origin(module, node), [alias.name for alias in node.names]
            case ast.Call(
                func=ast.Name("import_module" | "__import__") | ast.Attribute(attr="import_module"),
                args=[ast.Constant(str(name)), *_],
            ):
                yield node.lineno, name, []
            case _:
                pass


def _origin(module: Module, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    words = module.name.split(".")
    base = words[: len(words) - node.level + module.is_package]
    return ".".join([*base, *filter(None, [node.module])])


def _resolve_imported_names(module: Module) -> dict[str, str]:
    """The full name of each imported name in a module: `dt` is `datetime` after `import datetime as dt`."""
    meaning: dict[str, str] = {}
    for node in ast.walk(module.tree):
        match node:
            case ast.Import():
                for alias in node.names:
                    name = alias.name if alias.asname else alias.name.partition(".")[0]
                    meaning[alias.asname or name] = name
            case ast.ImportFrom(level=0, module=str(origin)):
                meaning.update({alias.asname or alias.name: f"{origin}.{alias.name}" for alias in node.names})
            case _:
                pass
    return meaning


def _dotted(node: ast.expr, meaning: dict[str, str]) -> str:
    """The full name of an expression, or an empty string if it is not an imported name."""
    match node:
        case ast.Name(id=name):
            return meaning.get(name, "")
        case ast.Attribute(value=value, attr=attribute):
            owner = _dotted(value, meaning)
            return f"{owner}.{attribute}" if owner else ""
        case _:
            return ""


def _uses_the_system(name: str) -> bool:
    top, dot, _ = name.partition(".")
    return name in SYSTEM_CALLS or (top in SYSTEM_MODULES and bool(dot) and name != SEEDED_GENERATOR)
