"""The import graph of the repository, read from the text of its files without importing any of them."""

from __future__ import annotations

import ast
import heapq
import math
import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import PurePosixPath

# Where Python looks for modules (see pythonpath in pyproject.toml).
PYTHON_PATH = ("src/", "tests/", "")
WEB_ENDINGS = ("", ".ts", ".svelte", ".svelte.ts", "/index.ts")

FROM_IMPORT = re.compile(r"^[ \t]*from[ \t]+([.\w]+)[ \t]+import[ \t]+(\([^)]*\)|[^\n#;]+)", re.MULTILINE)
PLAIN_IMPORT = re.compile(r"^[ \t]*import[ \t]+([\w., \t]+)", re.MULTILINE)
QUOTED_MODULE = re.compile(r"[\"'](\w+(?:\.\w+)+)(?::\w+)?[\"']")
WEB_IMPORT = re.compile(r"(?:\bfrom|\bimport)\s*\(?\s*[\"'](\.[^\"']+)[\"']")
WORD = re.compile(r"\w+")
COMPOUND = re.compile(r"\w+(?:[.-]\w+)+")
FIXTURE = re.compile(r"^@pytest(?:_asyncio)?\.fixture(.*)\n(?:@.*\n)*(?:async )?def (\w+)", re.MULTILINE)
NAME_LIKE = re.compile(r"(?=.{6})[a-z][a-z0-9]*(?:[_.-][a-z0-9]+)+")

# The cost of an import that uses no changed name. It still runs the changed module, but seldom depends on the change.
OTHER_NAME_COST = 3.0


@dataclass(frozen=True)
class Tree:
    """The files of one state of the repository: the text of each, by its path."""

    files: Mapping[str, str]

    @cached_property
    def tests(self) -> tuple[str, ...]:
        """The test files, sorted."""
        return tuple(sorted(path for path in self.files if is_test(path)))

    @cached_property
    def importers(self) -> Mapping[str, frozenset[str]]:
        """For each file, the files that import it. Computed once."""
        found: dict[str, set[str]] = defaultdict(set)
        for path in self.files:
            for imported in self.imports(path):
                found[imported].add(path)
        for path in self.files:
            if path.endswith(".py") and path not in found and (package := self._package_of(path)):
                found[path].add(package)
        return {path: frozenset(each) for path, each in found.items()}

    @cached_property
    def import_counts(self) -> Mapping[str, int]:
        """How many files each file imports."""
        counts: dict[str, int] = defaultdict(int)
        for each in self.importers.values():
            for importer in each:
                counts[importer] += 1
        return counts

    def imports(self, path: str) -> set[str]:
        """Return the files of the repository that a file imports, names as a module, or takes fixtures from."""
        text = self.files[path]
        if path.endswith(".py"):
            found = {file for name in imported_names(text) for file in self._files_of(_absolute(name, path))}
            found |= self._fixture_files(path)
        else:
            found = {file for link in _web_links(text) if (file := self._web_file(path, link))}
        return found - {path}

    def names(self, path: str, name: str) -> bool:
        """Whether the text of a file contains a name. `session.list` may also occur as two words of a command."""
        text = self.files[path]
        if "." not in name:
            return name in words(text)
        parted = r"[\s\"',]+".join(re.escape(part) for part in name.split("."))
        return name in words(text) or bool(re.search(rf"\b{parted}\b", text))

    def _files_of(self, module: str) -> Iterator[str]:
        """Yield the file of a module, or of the module that contains this name, and of the packages around it."""
        parts = module.split(".")
        for length in range(len(parts), 0, -1):
            stem = "/".join(parts[:length])
            for start in PYTHON_PATH:
                for path in (f"{start}{stem}.py", f"{start}{stem}/__init__.py"):
                    if path in self.files:
                        yield path

    def _fixture_files(self, path: str) -> set[str]:
        """Return the conftest files around a test file from which it takes a fixture."""
        if not path.startswith("tests/"):
            return set()
        around = [f"{folder}/conftest.py" for folder in PurePosixPath(path).parents if str(folder) != "."]
        mine = words(self.files[path])
        return {each for each in around if each in self.files and _gives_fixture(self.files[each], mine)}

    def _package_of(self, path: str) -> str | None:
        """Return the package around a module that no file imports. Code in the package probably
        loads the module by its path."""
        if not path.startswith("src/") or path.endswith("__main__.py"):
            return None
        around = (f"{folder}/__init__.py" for folder in PurePosixPath(path).parents if len(folder.parts) > 2)
        return next((each for each in around if each in self.files and each != path), None)

    def _web_file(self, path: str, link: str) -> str | None:
        base = _normal(PurePosixPath(path).parent / link)
        candidates = [base + ending for ending in WEB_ENDINGS] + [base.removesuffix(".js") + ".ts"]
        return next((each for each in candidates if each in self.files), None)


@dataclass(frozen=True, slots=True)
class Route:
    """How a file reaches the changed file: the cost of the route, and the files on it, from the
    file's own import on.
    """

    cost: float
    through: tuple[str, ...] = ()


def routes_to(changed: str, names: Collection[str], tree: Tree) -> dict[str, Route]:
    """Return the cheapest route to the changed file from every file that reaches it.

    Each import costs 1. An importer that uses none of the changed names costs more. So does a
    module on the route that imports many others, because it says little about any one of them.
    """
    routes: dict[str, Route] = {}
    waiting: list[tuple[float, str, tuple[str, ...]]] = [(0.0, changed, ())]
    while waiting:
        cost, path, through = heapq.heappop(waiting)
        if path in routes:
            continue
        routes[path] = Route(cost, through)
        if is_test(path) and path != changed:
            continue
        passing = math.log2(1 + tree.import_counts.get(path, 0)) / 4 if path != changed else 0.0
        for importer in tree.importers.get(path, ()):
            if importer in routes:
                continue
            by_name = path != changed or not names or any(tree.names(importer, name) for name in names)
            step = 1.0 if by_name else OTHER_NAME_COST
            heapq.heappush(waiting, (cost + passing + step, importer, (path, *through)))
    del routes[changed]
    return routes


def is_test(path: str) -> bool:
    """Whether pytest collects a file."""
    name = path.rpartition("/")[2]
    return path.startswith("tests/") and name.startswith("test_") and name.endswith(".py")


@cache
def words(text: str) -> frozenset[str]:
    """Return the words of a text, including compounds that are joined by dots or hyphens."""
    return frozenset(WORD.findall(text)) | frozenset(COMPOUND.findall(text))


@cache
def imported_names(text: str) -> frozenset[str]:
    """Return the dotted names that a Python file imports or has as a string. Relative imports keep
    their leading dots."""
    found = set[str](QUOTED_MODULE.findall(text))
    for origin, names in FROM_IMPORT.findall(text):
        listed = (name.split()[0] for name in re.sub(r"#.*|[()]", "", names).split(",") if name.strip())
        found.update(f"{origin}{'' if origin.endswith('.') else '.'}{name}" for name in listed)
    for names in PLAIN_IMPORT.findall(text):
        found.update(name.split()[0] for name in names.split(",") if name.strip())
    return frozenset(found)


def defined_names(text: str, lines: Collection[int] = ()) -> frozenset[str]:
    """Return the names by which other files can refer to a Python file: its definitions, and its
    strings that look like names.

    With `lines`, only the definitions around these lines count. If there are none, all definitions
    count.
    """
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return frozenset()
    if lines and (found := frozenset(_names_of(tree, lines))):
        return found
    return frozenset(_names_of(tree, ()))


def _names_of(tree: ast.Module, lines: Collection[int]) -> Iterator[str]:
    for node in tree.body:
        if lines and not _touches(node, lines):
            continue
        yield from _targets(node)
        if isinstance(node, ast.ClassDef):
            yield from (name for each in node.body if not lines or _touches(each, lines) for name in _targets(each))
        if isinstance(node, ast.Import | ast.ImportFrom):
            continue
        for each in ast.walk(node):
            if isinstance(each, ast.Constant) and isinstance(each.value, str) and NAME_LIKE.fullmatch(each.value):
                if not lines or _touches(each, lines):
                    yield each.value


def _targets(node: ast.stmt) -> Iterator[str]:
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            if not name.startswith("_"):
                yield name
        case ast.AnnAssign(target=ast.Name(id=name)):
            yield name
        case ast.Assign(targets=targets):
            yield from (each.id for each in targets if isinstance(each, ast.Name))
        case _:
            pass


def _touches(node: ast.stmt | ast.expr, lines: Collection[int]) -> bool:
    decorators = getattr(node, "decorator_list", None)
    first = decorators[0].lineno if decorators else node.lineno
    return any(first <= line <= (node.end_lineno or node.lineno) for line in lines)


def _absolute(name: str, path: str) -> str:
    dots = len(name) - len(name.lstrip("."))
    if not dots:
        return name
    start = next(start for start in PYTHON_PATH if path.startswith(start))
    folders = path.removeprefix(start).split("/")[:-1]
    return ".".join([*folders[: len(folders) - dots + 1], name.lstrip(".")])


@cache
def _web_links(text: str) -> tuple[str, ...]:
    return tuple(WEB_IMPORT.findall(text))


@cache
def _fixtures(text: str) -> tuple[tuple[str, bool], ...]:
    return tuple((name, "autouse" in arguments) for arguments, name in FIXTURE.findall(text))


def _gives_fixture(conftest: str, mine: Collection[str]) -> bool:
    return any(is_automatic or name in mine for name, is_automatic in _fixtures(conftest))


def _normal(path: PurePosixPath) -> str:
    parts: list[str] = []
    for part in path.parts:
        if part == "..":
            parts = parts[:-1]
        elif part != ".":
            parts.append(part)
    return "/".join(parts)
