"""Finds the error classes in the source code, and renders the reference page with their codes and texts."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice, product
from pathlib import Path

from msgspec import Struct

ROOT_ERROR = "retinue.domain.errors.RetinueError"
VARIANTS_MAX = 4  # alternatives shown for one text
LINE_BREAK = "  \n  "  # in a list item of Markdown
VARIANT_SEPARATOR = "\n"  # on the page, each alternative is on a separate line
LOOKUPS_MAX = 8  # steps to resolve a name that is imported from module to module, or assigned again and again
GIVEN_BY_CALLER = "(depends on the case)"

_HEADER = """\
# Errors

Every error has a stable code and a sentence, and usually a reason and a next step. A word in capitals such as NAME
stands for a value.
"""


class ErrorText(Struct, frozen=True):
    """Code and texts of an error. In the texts, a word in capitals such as NAME stands for a value.

    `source` is the qualified name of the error's class. `description` is empty if the class has no fixed
    texts, because the code that raises the error passes them.
    """

    code: str
    source: str
    description: str = ""
    sentence: str = ""
    because: str = ""
    try_this: str = ""


class _Module(Struct, frozen=True):
    name: str
    tree: ast.Module
    imports: Mapping[str, str]  # local name -> qualified name
    texts: Mapping[str, ast.expr]  # constants of the module that are strings


class _ErrorClass(Struct, frozen=True):
    name: str  # qualified
    node: ast.ClassDef
    bases: Sequence[str]  # qualified, as far as they are known
    code: str  # empty: the code of the base class
    texts: Mapping[str, ast.expr]  # constants of its module that are strings

    def constructor(self) -> ast.FunctionDef | None:
        found = (each for each in self.node.body if isinstance(each, ast.FunctionDef) and each.name == "__init__")
        return next(found, None)


def find_errors(folder: Path) -> Iterator[ErrorText]:
    """Yield every error in the source code: first error classes with fixed texts, then calls that pass the text."""
    modules = [_read_module(path, folder) for path in sorted(folder.rglob("*.py")) if "testing" not in path.parts]
    by_name = {module.name: module for module in modules}
    classes = _find_error_classes(by_name)
    for each in classes.values():
        if each.code:
            yield from _class_texts(each)
    for module in modules:
        for call in (node for node in ast.walk(module.tree) if isinstance(node, ast.Call) and node.args):
            yield from _call_texts(call, _resolve(call.func, module, by_name), classes, module.texts)


# --- classes ---


def _read_module(path: Path, folder: Path) -> _Module:
    parts = path.relative_to(folder.parent).with_suffix("").parts
    name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
    tree = ast.parse(path.read_text())
    imports: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            imports |= {each.asname or each.name: f"{node.module}.{each.name}" for each in node.names}
        elif isinstance(node, ast.Import):
            imports |= {each.asname: each.name for each in node.names if each.asname}
        elif isinstance(node, ast.ClassDef):
            imports[node.name] = f"{name}.{node.name}"
    texts = {
        target.id: node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and _is_text(node.value)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    return _Module(name, tree, imports, texts)


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def _find_error_classes(modules: Mapping[str, _Module]) -> dict[str, _ErrorClass]:
    """Return the subclasses of the root error class, and exception classes with a code, by qualified name."""
    every: dict[str, _ErrorClass] = {}
    for module in modules.values():
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ClassDef):
                name = f"{module.name}.{node.name}"
                bases = [_resolve(base, module, modules) for base in node.bases]
                every[name] = _ErrorClass(name, node, bases, _own_code(node), module.texts)
    return {name: each for name, each in every.items() if _is_error(each, every)}


def _is_error(candidate: _ErrorClass, classes: Mapping[str, _ErrorClass]) -> bool:
    if candidate.name == ROOT_ERROR or ROOT_ERROR in candidate.bases:
        return True
    if candidate.code and _is_exception(candidate, classes):
        return True
    return any(base in classes and _is_error(classes[base], classes) for base in candidate.bases)


def _is_exception(candidate: _ErrorClass, classes: Mapping[str, _ErrorClass]) -> bool:
    return any(
        base == "Exception" or (base in classes and _is_exception(classes[base], classes)) for base in candidate.bases
    )


def _resolve(node: ast.expr, module: _Module, modules: Mapping[str, _Module]) -> str:
    """Return the qualified name of a class, following imports from module to module."""
    match node:
        case ast.Name(id=name):
            found = module.imports.get(name, name)
        case ast.Attribute(value=ast.Name(id=owner), attr=name):
            found = f"{module.imports.get(owner, owner)}.{name}"
        case _:
            return ""
    for _ in range(LOOKUPS_MAX):
        owner, _, name = found.rpartition(".")
        further = modules[owner].imports.get(name, found) if owner in modules else found
        if further == found:
            break
        found = further
    return found


def _own_code(node: ast.ClassDef) -> str:
    """Return the code that a class sets: as an attribute, or as the default of a constructor argument."""
    for each in node.body:
        match each:
            case ast.Assign(targets=[ast.Name(id="code")], value=ast.Constant(value=str(code))):
                return code
            case ast.FunctionDef(name="__init__", args=arguments):
                for name, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
                    if name.arg == "code" and isinstance(default, ast.Constant) and isinstance(default.value, str):
                        return default.value
            case _:
                pass
    return ""


def _class_texts(error: _ErrorClass) -> Iterator[ErrorText]:
    described = ErrorText(error.code, error.name, _first_paragraph(error.node))
    constructor = error.constructor()
    calls = [] if constructor is None else _super_calls(constructor)
    if constructor is None or not calls or _passes_sentence(constructor):
        yield described
        return
    local = dict(error.texts) | {
        target.id: node.value
        for node in ast.walk(constructor)
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for call in calls:
        sentence, because, try_this = _texts_of_call(call, local)
        yield ErrorText(error.code, error.name, described.description, sentence, because, try_this)


def _super_calls(constructor: ast.FunctionDef) -> list[ast.Call]:
    calls = (node for node in ast.walk(constructor) if isinstance(node, ast.Call) and node.args)
    return [call for call in calls if ast.unparse(call.func) == "super().__init__"]


def _passes_sentence(constructor: ast.FunctionDef) -> bool:
    """Return whether the constructor takes the error's sentence as an argument."""
    parameters = constructor.args.args[1:2]
    return bool(parameters) and parameters[0].arg == "sentence"


def _first_paragraph(node: ast.ClassDef) -> str:
    """Return the first paragraph of the docstring, without sentences about parameters such as "`agent` is …"."""
    text = " ".join((ast.get_docstring(node) or "").partition("\n\n")[0].split())
    described, parameters, _ = text.partition(". `")
    return f"{described}." if parameters else text


# --- calls that pass a sentence ---


def _call_texts(
    call: ast.Call, source: str, classes: Mapping[str, _ErrorClass], texts: Mapping[str, ast.expr]
) -> Iterator[ErrorText]:
    """Yield the texts of an error that is raised with its own sentence instead of the fixed texts of its class."""
    given = {keyword.arg: keyword.value for keyword in call.keywords}
    known = classes.get(source)
    code = next(iter(_variants(given.get("code"), {})), "") or (_inherited_code(known, classes) if known else "")
    takes_sentence = "code" in given or (known is not None and _takes_sentence(known, classes))
    if "." not in code or not takes_sentence or not ("because" in given or "code" in given):
        return
    sentence, because, try_this = _texts_of_call(call, texts)
    yield ErrorText(code, source or ast.unparse(call.func), "", sentence, because, try_this)


def _inherited_code(error: _ErrorClass, classes: Mapping[str, _ErrorClass]) -> str:
    return error.code or next((_inherited_code(classes[base], classes) for base in error.bases if base in classes), "")


def _takes_sentence(error: _ErrorClass, classes: Mapping[str, _ErrorClass]) -> bool:
    constructor = error.constructor()
    if constructor is not None:
        return _passes_sentence(constructor)
    return any(_takes_sentence(classes[base], classes) for base in error.bases if base in classes)


# --- texts ---


def _texts_of_call(call: ast.Call, local: Mapping[str, ast.expr]) -> tuple[str, str, str]:
    given = {keyword.arg: keyword.value for keyword in call.keywords}
    return (
        _join_variants(call.args[0], local),
        _join_variants(given.get("because"), local),
        _join_variants(given.get("try_this"), local),
    )


def _join_variants(node: ast.expr | None, local: Mapping[str, ast.expr]) -> str:
    unknown = ("BECAUSE", "TRY_THIS", "…")
    shown = [GIVEN_BY_CALLER if text in unknown else text for text in _variants(node, local)]
    return VARIANT_SEPARATOR.join(dict.fromkeys(text for text in shown if text))


def _variants(node: ast.expr | None, local: Mapping[str, ast.expr], depth: int = LOOKUPS_MAX) -> list[str]:
    """Return the texts that a string expression can produce, with each value replaced by its name in capitals."""
    match node:
        case None:
            return [""]
        case ast.Constant(value=str(text)):
            return [text]
        case ast.Name(id=name) if name in local and depth:
            return _variants(local[name], local, depth - 1)
        case ast.JoinedStr(values=parts):
            texts = product(*(_variants(part, local, depth) for part in parts))
            return ["".join(text) for text in islice(texts, VARIANTS_MAX)]
        case ast.FormattedValue(value=value):
            return _variants(value, local, depth)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            texts = product(_variants(left, local, depth), _variants(right, local, depth))
            return ["".join(text) for text in islice(texts, VARIANTS_MAX)]
        case ast.IfExp(body=first, orelse=second):
            return [*_variants(first, local, depth), *_variants(second, local, depth)][:VARIANTS_MAX]
        case ast.BoolOp(op=ast.Or(), values=values):
            return [text for value in values for text in _variants(value, local, depth)][:VARIANTS_MAX]
        case ast.Call(func=ast.Name(id="format_quantity"), args=[count, ast.Constant(value=str(noun))], keywords=given):
            plural = next((each.value.value for each in given if isinstance(each.value, ast.Constant)), f"{noun}s")
            return [f"{_fact_name(count, local).strip('_').upper() or '…'} {plural}"]
        case _:
            return [_fact_name(node, local).strip("_").upper() or "…"]


def _fact_name(node: ast.expr, local: Mapping[str, ast.expr]) -> str:
    """Return the name of the value that an expression shows: `name` for `shorten_name(name)` or `name[:80]`."""
    match node:
        case ast.Name(id=name) if name in local:
            others = {each: value for each, value in local.items() if each != name}
            return _fact_name(local[name], others) or name
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case ast.Subscript(value=value) | ast.BinOp(left=value):
            return _fact_name(value, local)
        case ast.Call(func=ast.Attribute(attr="join", value=ast.Attribute()), args=[*_, ast.Constant(value=str(last))]):
            return last  # os.path.join(folder, "file")
        case ast.Call(func=ast.Attribute(value=ast.Constant()), args=[first, *_]):  # ", ".join(names)
            return _fact_name(first, local)
        case ast.Call(func=ast.Attribute(value=ast.Name() | ast.Call() as owner), args=[ast.Constant(), *_] | []):
            return _fact_name(owner, local)  # id.replace(":", " "), name.strip()
        case ast.Call(func=ast.Name(), args=[first, *_]):  # shorten_name(name)
            return _fact_name(first, local)
        case ast.Call(func=value):
            return _fact_name(value, local)
        case ast.GeneratorExp(generators=[first, *_]) | ast.ListComp(generators=[first, *_]):
            return _fact_name(first.iter, local)
        case _:
            return ""


# --- page ---


def render_errors_page(errors: Iterable[ErrorText]) -> str:
    by_code: dict[str, list[ErrorText]] = {}
    for each in errors:
        by_code.setdefault(each.code, []).append(each)
    lines = [_HEADER]
    for code in sorted(by_code):
        lines.append(f"## `{code}`\n")
        found = by_code[code]
        lines += [f"{text}\n" for text in dict.fromkeys(each.description for each in found if each.description)]
        shown = [_render_texts(each) for each in found if each.sentence]
        lines += [*dict.fromkeys(shown), *([""] if shown else [])]
    return "\n".join(lines)


def _render_texts(error: ErrorText) -> str:
    clauses = (("because", error.because), ("try", error.try_this))
    lines = [_join_alternatives(error.sentence)]
    lines += [f"{name}: {_join_alternatives(text)}" for name, text in clauses if text]
    return "- " + LINE_BREAK.join(lines)


def _join_alternatives(text: str) -> str:
    return text.replace(VARIANT_SEPARATOR, f"{LINE_BREAK}or: ")
