"""Rules for names in `src/`: unique classes and modules, nouns for modules, one class for each error code."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).parent.parent / "src" / "retinue"
NOT_CHECKED = ("store/migrations/versions/",)  # file names of released migrations are fixed

REPEATED_BASES = frozenset({"__init__", "__main__", "base", "connector", "errors", "settings"})
"""Base names that may repeat in a package. Every other one may repeat once per top-level package: a noun per layer."""

NOUNS_IN_ING = frozenset(
    {
        "binding",  # domain: which agent answers in a channel
        "casemapping",  # IRC's own term
        "chunking",
        "irc_formatting",
        "long_polling",
        "message_coalescing",
        "pairing",
        "quote_stripping",
        "routing",
    }
)
"""Module names that end like a participle, but are nouns in this field."""

CODE = re.compile(r"[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)+")


@dataclass(frozen=True, slots=True)
class ErrorClass:
    """A class with its own error code. `has_next_step` is unknown (None) if it does not build its text itself."""

    name: str
    file: str
    code: str
    has_next_step: bool | None


def source_files() -> Iterator[tuple[str, ast.Module]]:
    """Yield the path below `src/retinue` and the syntax tree of each module."""
    for path in sorted(SOURCE.rglob("*.py")):
        name = path.relative_to(SOURCE).as_posix()
        if not name.startswith(NOT_CHECKED):
            yield name, ast.parse(path.read_text(encoding="utf-8"))


def repeated_classes(files: Mapping[str, ast.Module]) -> list[str]:
    """Return a line for each public class name that two modules define."""
    found: dict[str, list[str]] = defaultdict(list)
    for file, tree in files.items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(file)
    return [f"{name}: {', '.join(places)}" for name, places in sorted(found.items()) if len(places) > 1]


def repeated_bases(files: Mapping[str, ast.Module]) -> list[str]:
    """Return a line for each base name that repeats in one top-level package."""
    found: dict[tuple[str, str], list[str]] = defaultdict(list)
    for file in files:
        package, _, rest = file.partition("/")
        found[package if rest else "", Path(file).stem].append(file)
    return [
        ", ".join(places)
        for (_, stem), places in sorted(found.items())
        if len(places) > 1 and stem not in REPEATED_BASES
    ]


def participles(files: Mapping[str, ast.Module]) -> list[str]:
    """Return the modules that are named like a participle."""
    stems = ((file, Path(file).stem) for file in files)
    return [file for file, stem in stems if stem.endswith("ing") and stem not in NOUNS_IN_ING]


def error_classes(files: Mapping[str, ast.Module]) -> list[ErrorClass]:
    """Return all classes with an error code."""
    return [
        ErrorClass(node.name, file, code, _has_next_step(node, tree))
        for file, tree in files.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and (code := _code(node))
    ]


def codes_at_call_sites(files: Mapping[str, ast.Module]) -> list[str]:
    """Return each call that names an error code itself. The command line is left out: it imports no server code."""
    return [
        f"{file}:{node.lineno} {keyword.value.value}"
        for file, tree in files.items()
        if not file.startswith("cli/")
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        for keyword in node.keywords
        if keyword.arg == "code" and isinstance(keyword.value, ast.Constant) and isinstance(keyword.value.value, str)
    ]


def _code(node: ast.ClassDef) -> str | None:
    for statement in node.body:
        match statement:
            case ast.Assign(targets=[ast.Name(id="code")], value=ast.Constant(value=str(code))):
                return code
            case ast.AnnAssign(target=ast.Name(id="code"), value=ast.Constant(value=str(code))):
                return code
            case _:
                continue
    return None


def _has_next_step(node: ast.ClassDef, tree: ast.Module) -> bool | None:
    """Look for `try_this` in the class, then in its base classes of the same module."""
    own = [each for each in node.body if isinstance(each, ast.FunctionDef) and each.name == "__init__"]
    calls = [call for each in own for call in ast.walk(each) if isinstance(call, ast.Call)]
    if any(keyword.arg == "try_this" for call in calls for keyword in call.keywords):
        return True
    names = {base.id for base in node.bases if isinstance(base, ast.Name)}
    bases = [each for each in tree.body if isinstance(each, ast.ClassDef) and each.name in names]
    if any(_has_next_step(each, tree) for each in bases):
        return True
    return False if own else None
