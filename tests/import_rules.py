"""Reads modules without importing them, and says where they break the house plan.

Two rules. Imports go down: a package imports from the rows below its own, and neighbours do not know each other. And
nothing is taken from the air: times, ids and chance come from what a part was handed, never from the system.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = "retinue"

# From the top of the house to its foundation.
ROWS: tuple[frozenset[str], ...] = tuple(
    frozenset(row.split())
    for row in (
        "daemon hands instructing plugins programs testing real premises logs offline rehearsal restore service",
        "api",
        "operations",
        "engine",
        "mailroom runners schedules",
        "tools agents",
        "connectors models sandbox memory artifacts",
        "store policy",
        "domain config",
    )
)
ROW_OF = {package: number for number, row in enumerate(ROWS) for package in row}

# Neighbours who do know each other. The daemon builds the house, and testing builds one around a daemon.
ACQUAINTED = frozenset(
    {
        ("config", "domain"),
        ("daemon", "hands"),
        ("daemon", "instructing"),
        ("daemon", "programs"),
        ("daemon", "plugins"),
        ("hands", "plugins"),
        ("daemon", "real"),
        ("daemon", "premises"),
        ("daemon", "logs"),
        ("offline", "premises"),
        ("offline", "real"),
        ("rehearsal", "offline"),
        ("rehearsal", "real"),
        ("rehearsal", "testing"),  # for its loop, in which time passes when everyone waits
        ("restore", "premises"),
        ("restore", "real"),
        ("testing", "daemon"),
        ("testing", "plugins"),
        ("testing", "real"),
        ("testing", "premises"),
        ("testing", "logs"),
    }
)

# The command line speaks to the api alone, so that it starts fast; `python -m retinue` is another way to say it.
APART = {"cli": frozenset[str](), "__main__": frozenset({"cli"})}

STANDARD_LIBRARY_ONLY = frozenset({"domain", "policy", "cli", "__main__"})
# For what its nouns are made of (docs/decisions/0011-what-travels-is-a-struct.md), and for the calendar that a cron
# expression means (docs/decisions/0015-a-schedule-goes-on-where-its-mail-ends.md). Nothing else.
_NOUNS = frozenset({"msgspec.Struct", "msgspec.field"})
BESIDE_IT = {
    "domain": _NOUNS | {"msgspec.structs", "cronsim.CronSim", "cronsim.CronSimError"},
    "policy": _NOUNS,
}

# Only these may ask the system what time it is, or for a random number.
MAY_ASK_THE_SYSTEM = frozenset({"real", "testing", "cli"})
FROM_THE_AIR = frozenset(
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
FROM_THE_AIR_WHOLE = frozenset({"random", "secrets"})
# A seeded source of chance may be passed around; making one without a seed is taking it from the air.
SEEDED = "random.Random"


@dataclass(frozen=True, slots=True)
class Module:
    """One source file: its dotted name and what is in it."""

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
    """The imports of a module, at its top or inside its functions, that the house plan does not allow."""
    complaints: list[str] = []
    if module.part and module.part not in ROW_OF and module.part not in APART:
        complaints.append(f"{module.name}: `{module.part}` has no row; give it one in tests/import_rules.py")
    for line, imported in _imports(module):
        if because := _refusal(module.part, imported):
            complaints.append(f"{module.name}:{line} imports {imported}: {because}")
    return complaints


def taken_from_the_air(module: Module) -> list[str]:
    """Where a module asks the system for the time or for chance, although it is not one of those that may."""
    if module.part in MAY_ASK_THE_SYSTEM:
        return []
    meaning = _names(module)
    complaints: list[str] = []
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Call) and not node.args and _dotted(node.func, meaning) == SEEDED:
            complaints.append(f"{module.name}:{node.lineno} makes {SEEDED} without a seed")
        if isinstance(node, ast.Name | ast.Attribute) and _is_from_the_air(name := _dotted(node, meaning)):
            complaints.append(f"{module.name}:{node.lineno} uses {name}: take what you were handed")
    return complaints


def _refusal(part: str, imported: str) -> str | None:
    top = imported.partition(".")[0]
    if top != ROOT:
        if part in STANDARD_LIBRARY_ONLY and top not in sys.stdlib_module_names:
            return f"{part} has only the standard library"
        return None
    other = _part(imported)
    if other in ("", part):  # the root holds only the version
        return None
    if not part:
        return "the root imports nothing"
    if part in APART or other in APART:
        return None if other in APART.get(part, ()) else "the command line stands apart"
    if other not in ROW_OF or part not in ROW_OF:
        return "no row for it"
    if ROW_OF[part] < ROW_OF[other] or (part, other) in ACQUAINTED:
        return None
    return "neighbours do not know each other" if ROW_OF[part] == ROW_OF[other] else "imports go down"


def _part(name: str) -> str:
    words = name.split(".")
    return words[1] if len(words) > 1 else ""


def _imports(module: Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(module.tree):
        match node:
            case ast.Import():
                yield from ((node.lineno, alias.name) for alias in node.names)
            case ast.ImportFrom():
                origin = _origin(module, node)
                if module.part in BESIDE_IT:
                    names = {f"{origin}.{n.name}" for n in node.names} - BESIDE_IT[module.part]
                    if not names:
                        continue
                if origin == ROOT:  # `from retinue import store` names a package; `__version__` is the root's own
                    yield from ((node.lineno, f"{ROOT}.{n.name}") for n in node.names if n.name != "__version__")
                else:
                    yield node.lineno, origin
            case ast.Call(
                func=ast.Name("import_module" | "__import__") | ast.Attribute(attr="import_module"),
                args=[ast.Constant(str(name)), *_],
            ):
                yield node.lineno, name
            case _:
                pass


def _origin(module: Module, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    words = module.name.split(".")
    base = words[: len(words) - node.level + module.is_package]
    return ".".join([*base, *filter(None, [node.module])])


def _names(module: Module) -> dict[str, str]:
    """What each imported name of a module means: `dt` is `datetime` after `import datetime as dt`."""
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
    """The full name an expression stands for, or nothing where it does not stand for an imported one."""
    match node:
        case ast.Name(id=name):
            return meaning.get(name, "")
        case ast.Attribute(value=value, attr=attribute):
            owner = _dotted(value, meaning)
            return f"{owner}.{attribute}" if owner else ""
        case _:
            return ""


def _is_from_the_air(name: str) -> bool:
    top, dot, _ = name.partition(".")
    return name in FROM_THE_AIR or (top in FROM_THE_AIR_WHOLE and bool(dot) and name != SEEDED)
