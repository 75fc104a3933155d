"""Moves modules of retinue as `scripts/module_moves.txt` says, section by section, with a commit for each.

    python -m scripts.move_modules

Imports, references to imported modules, dotted names in strings, and paths in texts follow. Behavior does not change.
What a program cannot know (paths that are put together from parts, examples in tests) is left to a person and `make
check`. A section begins with `# ` and the subject of its commit; `+ FOLDER TEXT` is the docstring of a new package.
"""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "retinue"
MOVES = Path(__file__).with_name("module_moves.txt")
PYTHON = ("src", "tests", "benchmarks", "scripts", "injection", "examples")
TEXTS = ("*.md", "Makefile", "pyproject.toml", "Containerfile", "docs/**/*.md", "tests/**/*.toml", "web/src/**/*.ts")
MADE_UP = ("tests/scripts/test_affected.py", "tests/test_imports.py")  # sources of modules that do not exist
LINE_MAX = 118

DOTTED = re.compile(r"\bretinue(?:\.[A-Za-z_]\w*)+")
PATH = re.compile(r"(?<![\w/.-])(src/retinue/)?((?:[a-z_0-9]+/)*[a-z_0-9]+)(\.py)?(?![\w/-])")
UNIT_FILE = "retinue.service"  # of systemd, unless it follows `-m`

Function = ast.FunctionDef | ast.AsyncFunctionDef
Comprehension = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
Edit = tuple[int, int, bytes]


@dataclass(slots=True)
class Section:
    """What one commit moves: old to new paths below `src/retinue`, without `.py`."""

    subject: str
    paths: dict[str, str] = field(default_factory=dict[str, str])
    packages: dict[str, str] = field(default_factory=dict[str, str])


def read_sections(text: str) -> list[Section]:
    sections: list[Section] = []
    for line in text.splitlines():
        if line.startswith("# "):
            sections.append(Section(line[2:]))
        elif line.startswith("+ "):
            folder, _, docstring = line[2:].partition(" ")
            sections[-1].packages[folder] = docstring
        elif line:
            old, new = line.split()
            sections[-1].paths[old] = new
    return sections


def dotted(path: str) -> str:
    return f"retinue.{path.removesuffix('/__init__').replace('/', '.')}".removesuffix(".__init__")


class Moves:
    """One section, applied to texts."""

    def __init__(self, paths: Mapping[str, str], existing: set[str]) -> None:
        self.paths = paths
        self.known = {dotted(path) for path in existing}
        self.new_names = {dotted(old): dotted(new) for old, new in paths.items()}
        if unknown := paths.keys() - existing:
            raise SystemExit(f"no such modules: {sorted(unknown)}")

    def module(self, name: str) -> str:
        return self.new_names.get(name, name)

    def in_text(self, text: str) -> str:
        return PATH.sub(self._path, DOTTED.sub(self._dotted, text))

    def _dotted(self, found: re.Match[str]) -> str:
        words = found[0].split(".")
        if found[0] == UNIT_FILE and not found.string[: found.start()].endswith(("-m ", '"-m", "')):
            return found[0]
        for count in range(len(words), 1, -1):
            head = ".".join(words[:count])
            if head in self.new_names:
                return ".".join([self.new_names[head], *words[count:]])
            if head in self.known:
                break
        return found[0]

    def _path(self, found: re.Match[str]) -> str:
        prefix, path, ending = found[1] or "", found[2], found[3] or ""
        is_quoted = found.string[: found.start()].endswith("`")
        if path not in self.paths or not (prefix or (ending and "/" in path) or (is_quoted and "/" in path)):
            return found[0]
        return f"{prefix}{self.paths[path]}{ending}"


def bound_names(scope: ast.AST) -> set[str]:
    """The names that a scope binds itself, those of nested functions and classes aside."""
    found: set[str] = set()
    outer: set[str] = set()

    def visit(node: ast.AST) -> None:
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                found.add(name)
                return
            case ast.Lambda() | ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
                return
            case ast.Name(id=name, ctx=ast.Store() | ast.Del()):
                found.add(name)
            case ast.Import(names=names) | ast.ImportFrom(names=names):
                found.update((alias.asname or alias.name).partition(".")[0] for alias in names)
            case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                found.add(name)
            case ast.Global(names=names) | ast.Nonlocal(names=names):
                outer.update(names)
            case _:
                pass
        for child in ast.iter_child_nodes(node):
            visit(child)

    if isinstance(scope, Function | ast.Lambda):
        found.update(each.arg for each in arguments_of(scope))
    if isinstance(scope, Comprehension):
        for generator in scope.generators:
            visit(generator.target)
    elif isinstance(scope, ast.Lambda):
        visit(scope.body)
    elif isinstance(scope, Function | ast.ClassDef | ast.Module):
        for statement in scope.body:
            visit(statement)
    return found - outer


def arguments_of(function: Function | ast.Lambda) -> list[ast.arg]:
    given = function.args
    variable = [each for each in (given.vararg, given.kwarg) if each is not None]
    return [*given.posonlyargs, *given.args, *given.kwonlyargs, *variable]


def evaluated_outside(scope: ast.AST) -> Iterator[ast.AST]:
    """The parts of a scope that belong to the one around it."""
    if isinstance(scope, Comprehension):
        yield scope.generators[0].iter
    if isinstance(scope, Function | ast.Lambda):
        yield from scope.args.defaults
        yield from (each for each in scope.args.kw_defaults if each is not None)
    if isinstance(scope, Function):
        yield from scope.decorator_list
        yield from (each.annotation for each in arguments_of(scope) if each.annotation is not None)
        yield from [scope.returns] if scope.returns is not None else []
    if isinstance(scope, ast.ClassDef):
        yield from (*scope.decorator_list, *scope.bases, *scope.keywords)
        for statement in scope.body:  # a field of that name hides nothing from the functions of a class
            if isinstance(statement, ast.AnnAssign | ast.Assign):
                yield from [statement.annotation] if isinstance(statement, ast.AnnAssign) else []
                yield from [statement.value] if statement.value is not None else []
            else:
                yield statement


def references(scope: ast.AST, name: str) -> Iterator[ast.Name]:
    """Where a name means the one that `scope` binds."""
    for child in ast.iter_child_nodes(scope):
        if isinstance(child, ast.Name) and child.id == name:
            yield child
        if isinstance(child, (*SCOPES, ast.ClassDef)) and name in bound_names(child):
            for part in evaluated_outside(child):
                if isinstance(part, ast.Name) and part.id == name:
                    yield part
                yield from references(part, name)
        else:
            yield from references(child, name)


class PythonFile:
    """Rewrites one source file."""

    def __init__(self, text: str, where: str, moves: Moves) -> None:
        self._data, self._where, self._moves = text.encode(), where, moves
        self._tree = ast.parse(self._data)
        self._starts = [0, *accumulate(len(line) for line in self._data.splitlines(keepends=True))]
        self._used = {node.id for node in ast.walk(self._tree) if isinstance(node, ast.Name)}
        self._used |= {node.arg for node in ast.walk(self._tree) if isinstance(node, ast.arg)}
        self._renamed: dict[tuple[ast.AST, str], str] = {}
        self._edits: list[Edit] = []

    def rewritten(self) -> str:
        self._visit(self._tree, self._tree)
        out: list[bytes] = []
        position = 0
        for start, end, new in sorted(self._edits):
            out += [self._between(self._data[position:start]), new]
            position = end
        return b"".join([*out, self._between(self._data[position:])]).decode()

    def _between(self, data: bytes) -> bytes:
        return data if self._where in MADE_UP else self._moves.in_text(data.decode()).encode()

    def _span(self, node: ast.stmt | ast.expr) -> tuple[int, int]:
        start = self._starts[node.lineno - 1] + node.col_offset
        return start, self._starts[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0)

    def _visit(self, node: ast.AST, scope: ast.AST) -> None:
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "retinue" and not node.level:
            self._rewrite_import(node, scope)
            return
        inner = node if isinstance(node, (*SCOPES, ast.ClassDef)) else scope
        for child in ast.iter_child_nodes(node):
            self._visit(child, inner)

    def _rewrite_import(self, node: ast.ImportFrom, scope: ast.AST) -> None:
        groups: dict[str, list[str]] = defaultdict(list)
        for alias in node.names:
            full = f"{node.module}.{alias.name}"
            if full not in self._moves.known:
                # `X as X` is there for others to import.
                imported = f"{alias.name} as {alias.asname}" if alias.asname else alias.name
                groups[self._moves.module(node.module or "")].append(imported)
                continue
            package, _, base = self._moves.module(full).rpartition(".")
            local = alias.asname or self._local_name(scope, alias.name, base, package)
            groups[package].append(base if base == local else f"{base} as {local}")
        indent = " " * node.col_offset
        lines = [_statement(module, sorted(names), indent) for module, names in sorted(groups.items())]
        self._edits.append((*self._span(node), f"\n{indent}".join(lines).encode()))

    def _local_name(self, scope: ast.AST, old: str, new: str, package: str) -> str:
        """What a moved module is called in this file. A name that means something else here gets a prefix."""
        if old == new:
            return old
        if (scope, old) not in self._renamed:
            name = f"{package.split('.')[1]}_{new}" if new in self._used else new
            self._renamed[scope, old] = name
            self._edits += [(*self._span(each), name.encode()) for each in references(scope, old)]
        return self._renamed[scope, old]


def _statement(module: str, names: Sequence[str], indent: str) -> str:
    line = f"from {module} import {', '.join(names)}"
    if len(indent + line) <= LINE_MAX:
        return line
    return f"from {module} import (\n" + "".join(f"{indent}    {name},\n" for name in names) + f"{indent})"


def python_files() -> Iterator[Path]:
    for folder in PYTHON:
        yield from (path for path in sorted((ROOT / folder).rglob("*.py")) if "node_modules" not in path.parts)


def apply(section: Section) -> None:
    existing = {path.relative_to(SOURCE).with_suffix("").as_posix() for path in SOURCE.rglob("*.py")}
    moves = Moves(section.paths, existing)
    rewritten = {
        path: PythonFile(path.read_text(encoding="utf-8"), path.relative_to(ROOT).as_posix(), moves).rewritten()
        for path in python_files()
    }
    for pattern in TEXTS:
        for path in ROOT.glob(pattern):
            path.write_text(moves.in_text(path.read_text(encoding="utf-8")), encoding="utf-8")
    targets = {SOURCE / f"{old}.py": SOURCE / f"{new}.py" for old, new in section.paths.items()}
    for path in targets:
        path.unlink()
    for path, text in rewritten.items():
        target = targets.get(path, path)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
    for folder, docstring in section.packages.items():
        (SOURCE / folder / "__init__.py").write_text(f'"""{docstring}"""\n', encoding="utf-8")
    for folder in {path.parent for path in targets}:
        if not any(path != folder / "__init__.py" for path in folder.rglob("*.py")):
            shutil.rmtree(folder)


def main() -> int:
    ruff = str(Path(sys.executable).with_name("ruff"))
    for section in read_sections(MOVES.read_text(encoding="utf-8")):
        apply(section)
        for command in (
            [ruff, "check", "--quiet", "--select", "I,F401", "--fix"],
            [ruff, "format", "--quiet"],
            ["git", "add", "--all"],
            ["git", "commit", "--quiet", "--message", section.subject],
        ):
            subprocess.run(command, cwd=ROOT, check=True)
        print(f"{section.subject}: {len(section.paths)} modules")
    return 0


if __name__ == "__main__":
    sys.exit(main())
