"""Writes the reference pages that are made from the code: `python -m retinue.operations.generate` in a checkout."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from retinue.operations.base import Operation
from retinue.operations.catalog import OPERATIONS

SOURCE = Path(__file__).parent.parent
REFERENCE = SOURCE.parent.parent / "docs" / "reference"
MADE = "<!-- Made from the code by `make generate`. -->\n\n"


@dataclass(frozen=True, slots=True)
class Said:
    """One place where an error with a code is raised, as far as its words are fixed."""

    code: str
    sentence: str
    because: str
    try_this: str


def main() -> None:
    REFERENCE.mkdir(parents=True, exist_ok=True)
    (REFERENCE / "errors.md").write_text(errors_page(list(errors_in(SOURCE))))
    (REFERENCE / "operations.md").write_text(operations_page(OPERATIONS.values()))


def errors_in(folder: Path) -> Iterator[Said]:
    """Every error of ours: raised with a code, or of a class that has one, or worded by its class once and for all."""
    trees = [ast.parse(path.read_text()) for path in sorted(folder.rglob("*.py")) if "testing" not in path.parts]
    codes = {name: code for tree in trees for name, code in _class_codes(tree)}
    for tree in trees:
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                yield from _said_by_class(node, codes.get(node.name, ""))
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                yield from _said(node, codes.get(node.func.id, ""))


def _said_by_class(node: ast.ClassDef, code: str) -> Iterator[Said]:
    if code:
        yield Said(code, (ast.get_docstring(node) or "").partition("\n")[0], "", "")
    for inner in ast.walk(node):
        if isinstance(inner, ast.Call) and ast.unparse(inner.func) == "super().__init__":
            yield from _said(inner, code)


def _said(call: ast.Call, code: str) -> Iterator[Said]:
    words = {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg}
    if "code" in words:
        code = _text(words["code"])
    if code and "." in code and call.args and ("because" in words or "code" in words):
        yield Said(code, _text(call.args[0]), _text(words.get("because")), _text(words.get("try_this")))


def _class_codes(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """The code of each class of errors: an attribute, or what its constructor takes where none is given."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            for line in node.body:
                match line:
                    case ast.Assign(targets=[ast.Name(id="code")], value=ast.Constant(value=str(code))):
                        yield node.name, code
                    case ast.FunctionDef(name="__init__", args=arguments):
                        for name, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
                            if name.arg == "code" and isinstance(default, ast.Constant) and default.value:
                                yield node.name, str(default.value)
                    case _:
                        pass


def _text(node: ast.expr | None) -> str:
    """The words of a string, with what is filled in shown as its name in capitals."""
    match node:
        case ast.Constant(value=str(words)):
            return words
        case ast.JoinedStr(values=values):
            return "".join(_text(value) for value in values)
        case ast.FormattedValue(value=value):
            return _name(value).upper()
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _text(left) + _text(right)
        case ast.IfExp(body=body):
            return _text(body)
        case None:
            return ""
        case _:
            return _name(node).upper()


def _name(node: ast.expr) -> str:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case ast.Subscript(value=value) | ast.Call(func=value):
            return _name(value)
        case _:
            return "…"


def errors_page(found: list[Said]) -> str:
    lines = [
        MADE
        + "# Errors\n\nEvery error has a stable code, a sentence, a because and, where there is one, a next move.\n"
    ]
    for code in sorted({said.code for said in found}):
        lines.append(f"## `{code}`\n")
        seen: set[tuple[str, str, str]] = set()
        for said in found:
            words = (said.sentence, said.because, said.try_this)
            if said.code == code and words not in seen:
                seen.add(words)
                lines.append(
                    f"- {said.sentence}" + "".join(_clause(k, v) for k, v in zip(_CLAUSES, words[1:], strict=True))
                )
        lines.append("")
    return "\n".join(lines)


_CLAUSES = ("because", "try")


def _clause(name: str, words: str) -> str:
    return f"  \n  {name}: {words}" if words else ""


def operations_page(operations: Any) -> str:
    lines = [
        MADE + "# Operations\n\nEach is a `POST` to its route on the house's socket, its parameters as JSON, your token"
        " as `Authorization: Bearer`.\n"
    ]
    for operation in operations:
        lines += _operation(operation)
    return "\n".join(lines)


def _operation(operation: Operation) -> list[str]:
    lines = [f"## `{operation.name}`\n", f"{operation.summary} `{operation.route}`\n"]
    fields = msgspec.structs.fields(operation.parameters)
    if fields:
        lines += ["| parameter | type | default |", "|---|---|---|"]
        for field in fields:
            default = "required" if field.required else f"`{_default(field)!r}`"
            lines.append(f"| `{field.name}` | {_type(field.type)} | {default} |")
        lines.append("")
    return lines


def _default(field: msgspec.structs.FieldInfo) -> Any:
    if field.default_factory is not msgspec.NODEFAULT:
        return field.default_factory()  # type: ignore[operator]
    return str(field.default) if isinstance(field.default, str) else field.default


def _type(type_: Any) -> str:
    return str(getattr(type_, "__name__", type_)).replace("retinue.", "").split(".")[-1].replace("|", "or")


if __name__ == "__main__":
    main()
