"""Generates the CLI's operation table and the reference pages for operations and errors from the code.

Run `python -m retinue.operations.generate_reference` in a checkout, or `make generate`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import cast

from retinue.domain import renamed_names
from retinue.operations.base import Operation
from retinue.operations.catalog import OPERATIONS
from retinue.operations.error_reference import find_errors, render_errors_page
from retinue.operations.parameter_schema import OperationParameter, ParameterKind, command_row, describe_parameters

SOURCE = Path(__file__).parent.parent
REFERENCE = SOURCE.parent.parent / "docs" / "reference"
OPERATION_TABLE = SOURCE / "cli" / "operation_table.py"
RENAMED_COMMANDS = SOURCE / "cli" / "renamed_commands.py"
COLUMNS_MAX = 120
ESCAPED_BAR = "\\|"
GENERATED_NOTICE = "<!-- Made from the code by `make generate`. -->\n\n"


def main() -> None:
    REFERENCE.mkdir(parents=True, exist_ok=True)
    (REFERENCE / "errors.md").write_text(GENERATED_NOTICE + render_errors_page(find_errors(SOURCE)))
    (REFERENCE / "operations.md").write_text(render_operations_page(OPERATIONS.values()))
    OPERATION_TABLE.write_text(render_operation_table(OPERATIONS.values()))
    RENAMED_COMMANDS.write_text(render_renamed_commands(find_renamed_commands()))


# Operations


_OPERATIONS_HEADER = """\
# Operations

An operation is one API call. It has the same parameters, permission level and errors in HTTP, in the CLI and as a tool
of an agent:

- **HTTP**: `POST` to its route, with the parameters as JSON and your token as `Authorization: Bearer`. If an operation
  has an effect, the header `Idempotency-Key` prevents a second effect. If the operation *claims its key*, the header
  works even if the server is killed during the request: see [idempotency keys](api.md#idempotency-keys).
- **CLI**: `retinue NOUN VERB`. Words in capitals are positional arguments, and the other parameters are options.
  `--json` prints the response as JSON. `--key KEY` is the idempotency key. See [commands](cli.md).

*Needs* is the minimum permission level, unless `permission_policy` in the [settings](settings.md) overrides it.
"""


def render_operations_page(operations: Iterable[Operation]) -> str:
    lines = [GENERATED_NOTICE + _OPERATIONS_HEADER]
    for operation in operations:
        lines += _render_operation(operation)
    return "\n".join(lines)


def _render_operation(operation: Operation) -> list[str]:
    effect = "has an effect" if operation.has_effect else "changes nothing"
    effect += " and claims its key" if operation.claims_key else ""
    found = describe_parameters(operation)
    lines = [
        f"## `{operation.name}`\n",
        f"{operation.summary}\n",
        f"`POST {operation.route}` · `{render_usage(operation)}` · needs {operation.permission} · {effect}\n",
    ]
    if found:
        lines += ["| parameter | option | type | default | |", "|---|---|---|---|---|"]
        for each in found:
            row = (f"`{each.name}`", f"`{render_option(each)}`", _render_type(each), _render_default(each), each.help)
            lines.append(f"| {' | '.join(cell.replace('|', ESCAPED_BAR) for cell in row)} |")
        lines.append("")
    return lines


def render_usage(operation: Operation) -> str:
    """Return the command line of an operation: its positional arguments, then its required options."""
    words = ["retinue", *operation.command]
    for each in describe_parameters(operation):
        if each.positional:
            words.append(render_option(each) if each.required else f"[{render_option(each)}]")
        elif each.required:
            words.append(render_option(each))
    return " ".join(words)


def render_option(parameter: OperationParameter) -> str:
    """Return the parameter as the usage line shows it: a positional argument in capitals, or an option and a value."""
    shown = parameter.option[2:].upper().replace("-", "_")
    if parameter.positional:
        return shown
    if parameter.kind is ParameterKind.BOOLEAN:
        return f"--[no-]{parameter.option[2:]}"
    return f"{parameter.option} {VALUE_NAMES.get(parameter.kind, shown)}"


VALUE_NAMES = {
    ParameterKind.NUMBER: "N",
    ParameterKind.DECIMAL: "N",
    ParameterKind.FILE: "FILE",
    ParameterKind.JSON: "JSON",
    ParameterKind.LONG_TEXT: "TEXT",
}


def _render_type(parameter: OperationParameter) -> str:
    shown = ", ".join(f"`{choice}`" for choice in parameter.choices) or {
        ParameterKind.LONG_TEXT: "text",
        ParameterKind.BOOLEAN: "true or false",
    }.get(parameter.kind, str(parameter.kind))
    return shown + (", several" if parameter.repeated else "") + (", or null" if parameter.nullable else "")


def _render_default(parameter: OperationParameter) -> str:
    match parameter.default:
        case _ if parameter.required:
            return "required"
        case None | "":
            return ""
        case bool(yes):
            return "`true`" if yes else "`false`"
        case value:
            return f"`{value}`"


_OPERATION_TABLE_HEADER = '''\
"""The table of operations for the CLI. Generated from their declarations by `make generate`."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    # name, option, kind, flags (of: required repeated nullable positional), default, choices, help
    Parameter = tuple[str, str, str, str, str | int | float | bool | None, tuple[str, ...], str]
    # name, summary, whether it has an effect, minimum permission level, parameters
    Operation = tuple[str, str, bool, str, tuple[Parameter, ...]]

'''


def render_operation_table(operations: Iterable[Operation]) -> str:
    """Return the Python source of the CLI's operation table. It consists of plain tuples, which load fast."""
    table = tuple(command_row(operation) for operation in operations)
    return f"{_OPERATION_TABLE_HEADER}OPERATIONS: tuple[Operation, ...] = {_render_literal(table, 0, 37)}\n"


_RENAMED_COMMANDS_HEADER = '''\
"""Renamed commands and options, from old to new. Generated from `domain/renamed_names` by `make generate`."""

from __future__ import annotations

'''


def find_renamed_commands() -> Mapping[str, str]:
    """Return the renamed commands and options, from old to new, without the word `retinue`."""
    operations = {_render_command(old): _render_command(new) for old, new in renamed_names.OPERATIONS.items()}
    options = {
        _render_command_option(operation, old): _render_command_option(operation, new)
        for key, new in renamed_names.PARAMETERS.items()
        for operation, _, old in [key.rpartition(".")]
        if not _is_positional(OPERATIONS[operation], new)
    }
    every = {**operations, **options, **renamed_names.COMMANDS}
    return {old: new for old, new in sorted(every.items()) if old != new}


def _render_command(operation: str) -> str:
    return operation.replace("_", "-").replace(".", " ", 1)


def _render_command_option(operation: str, parameter: str) -> str:
    return f"{_render_command(operation)} --{parameter.replace('_', '-')}"


def _is_positional(operation: Operation, parameter: str) -> bool:
    return any(each.name == parameter and each.positional for each in describe_parameters(operation))


def render_renamed_commands(renamed: Mapping[str, str]) -> str:
    rows = "".join(f"    {_render_string(old)}: {_render_string(new)},\n" for old, new in renamed.items())
    return f"{_RENAMED_COMMANDS_HEADER}RENAMED_COMMANDS: dict[str, str] = {{\n{rows}}}\n"


def _render_literal(value: object, depth: int, used: int) -> str:
    """Return Python source for the value, in the style of the code formatter."""
    if not isinstance(value, tuple):
        return _render_string(value) if isinstance(value, str) else repr(value)
    items = cast("tuple[object, ...]", value)
    flat = ", ".join(_render_literal(item, 0, -(10**6)) for item in items)
    flat = f"({flat},)" if len(items) == 1 else f"({flat})"
    if used + len(flat) + 1 <= COLUMNS_MAX:
        return flat
    indent = "    " * (depth + 1)
    lines = "".join(f"{indent}{_render_literal(item, depth + 1, len(indent))},\n" for item in items)
    return f"(\n{lines}{'    ' * depth})"


def _render_string(text: str) -> str:
    quote = "'" if '"' in text and "'" not in text else '"'
    escaped = text.replace("\\", "\\\\").replace("\n", "\\n").replace(quote, "\\" + quote)
    return f"{quote}{escaped}{quote}"


if __name__ == "__main__":
    main()
