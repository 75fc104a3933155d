"""Generate the CLI's operation table and the reference pages for operations and errors from the code.

Run `python -m retinue.operations.generate_reference` in a checkout, or `make generate`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import cast

from msgspec import Struct

from retinue.operations.base import Operation
from retinue.operations.catalog import OPERATIONS
from retinue.operations.parameter_schema import Kind, Parameter, command, parameters

SOURCE = Path(__file__).parent.parent
REFERENCE = SOURCE.parent.parent / "docs" / "reference"
COMMANDS = SOURCE / "cli" / "operation_table.py"
COLUMNS = 120
BAR = "\\|"
MADE = "<!-- Made from the code by `make generate`. -->\n\n"


class Said(Struct, frozen=True):
    """Code and texts of an error at one call site. Parts filled in at run time are placeholders."""

    code: str
    sentence: str
    because: str
    try_this: str


def main() -> None:
    REFERENCE.mkdir(parents=True, exist_ok=True)
    (REFERENCE / "errors.md").write_text(errors_page(list(errors_in(SOURCE))))
    (REFERENCE / "operations.md").write_text(operations_page(OPERATIONS.values()))
    COMMANDS.write_text(commands_module(OPERATIONS.values()))


def errors_in(folder: Path) -> Iterator[Said]:
    """Yield every error in the source: calls with a code, classes with a code, and texts set by a class."""
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
    """Yield (class name, code) of each error class: from an attribute, or from its constructor's default."""
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
    """Return the text of a string expression, with each filled-in value shown as its name in capitals."""
    match node:
        case ast.Constant(value=str(words)):
            return words
        case ast.JoinedStr(values=values):
            return "".join(_text(value) for value in values)
        case ast.FormattedValue(value=value):
            return _name(value).strip("_").upper()
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _text(left) + _text(right)
        case ast.IfExp(body=body):
            return _text(body)
        case None:
            return ""
        case _:
            return _name(node).strip("_").upper()


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


# Operations


_OPERATIONS_HEAD = """\
# Operations

Each thing that can be asked of the house. All of them are declared once, and every door takes parameters, rights and
errors from there:

- **HTTP**: a `POST` to its route, its parameters as JSON, your token as `Authorization: Bearer`. Where an operation
  has an effect, the header `Idempotency-Key` keeps it from being done twice. Where it *claims its key*, this holds also
  if the server is killed meanwhile: see [idempotency keys](api.md#idempotency-keys).
- **Terminal**: `retinue NOUN VERB`, with what stands in capitals by its place and the rest as options. `--json`
  prints the answer as it came; `--key KEY` is the idempotency key. See [commands](cli.md).

*Needs* is the least level that may ask, unless `permission_policy` in the [settings](settings.md) says otherwise.
"""


def operations_page(operations: Iterable[Operation]) -> str:
    lines = [MADE + _OPERATIONS_HEAD]
    for operation in operations:
        lines += _operation(operation)
    return "\n".join(lines)


def _operation(operation: Operation) -> list[str]:
    effect = "has an effect" if operation.effect else "changes nothing"
    effect += " and claims its key" if operation.claims_key else ""
    found = parameters(operation)
    lines = [
        f"## `{operation.name}`\n",
        f"{operation.summary}\n",
        f"`POST {operation.route}` · `{usage(operation)}` · needs {operation.permission} · {effect}\n",
    ]
    if found:
        lines += ["| parameter | option | type | default | |", "|---|---|---|---|---|"]
        for each in found:
            row = (f"`{each.name}`", f"`{option_of(each)}`", _type(each), _default(each), each.help)
            lines.append(f"| {' | '.join(cell.replace('|', BAR) for cell in row)} |")
        lines.append("")
    return lines


def usage(operation: Operation) -> str:
    """Return the command to type: positional arguments, then required options."""
    noun, _, verb = operation.name.partition(".")
    words = ["retinue", noun, verb]
    for each in parameters(operation):
        if each.place:
            words.append(option_of(each) if each.required else f"[{option_of(each)}]")
        elif each.required:
            words.append(option_of(each))
    return " ".join(words)


def option_of(parameter: Parameter) -> str:
    """Return the parameter as it is typed: a positional argument in capitals, or an option with its value."""
    shown = parameter.option[2:].upper().replace("-", "_")
    if parameter.place:
        return shown
    if parameter.kind is Kind.FLAG:
        return f"--[no-]{parameter.option[2:]}"
    return f"{parameter.option} {VALUES.get(parameter.kind, shown)}"


VALUES = {Kind.NUMBER: "N", Kind.DECIMAL: "N", Kind.FILE: "FILE", Kind.JSON: "JSON", Kind.WORDS: "TEXT"}


def _type(parameter: Parameter) -> str:
    shown = ", ".join(f"`{choice}`" for choice in parameter.choices) or {
        Kind.WORDS: "text",
        Kind.FLAG: "yes or no",
    }.get(parameter.kind, str(parameter.kind))
    return shown + (", several" if parameter.repeated else "") + (", or null" if parameter.nullable else "")


def _default(parameter: Parameter) -> str:
    match parameter.default:
        case _ if parameter.required:
            return "required"
        case None | "":
            return ""
        case bool(yes):
            return "yes" if yes else "no"
        case value:
            return f"`{value}`"


_COMMANDS_HEAD = '''\
"""What the command line knows of each operation. Made from their declarations by `make generate`."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    # name, option, kind, marks (of: required repeated nullable place), default, choices, help
    Parameter = tuple[str, str, str, str, str | int | float | bool | None, tuple[str, ...], str]
    # noun, verb, summary, whether it has an effect, the level it needs, parameters
    Operation = tuple[str, str, str, bool, str, tuple[Parameter, ...]]

'''


def commands_module(operations: Iterable[Operation]) -> str:
    """Return the source of the CLI's table: plain tuples, which Python loads as one constant to start fast."""
    table = tuple(command(operation) for operation in operations)
    return f"{_COMMANDS_HEAD}OPERATIONS: tuple[Operation, ...] = {_literal(table, 0, 37)}\n"


def _literal(value: object, depth: int, used: int) -> str:
    """Return Python source for the value, formatted as the code formatter would."""
    if not isinstance(value, tuple):
        return _quoted(value) if isinstance(value, str) else repr(value)
    items = cast("tuple[object, ...]", value)
    flat = ", ".join(_literal(item, 0, -(10**6)) for item in items)
    flat = f"({flat},)" if len(items) == 1 else f"({flat})"
    if used + len(flat) + 1 <= COLUMNS:
        return flat
    indent = "    " * (depth + 1)
    lines = "".join(f"{indent}{_literal(item, depth + 1, len(indent))},\n" for item in items)
    return f"(\n{lines}{'    ' * depth})"


def _quoted(text: str) -> str:
    quote = "'" if '"' in text and "'" not in text else '"'
    escaped = text.replace("\\", "\\\\").replace("\n", "\\n").replace(quote, "\\" + quote)
    return f"{quote}{escaped}{quote}"


if __name__ == "__main__":
    main()
