"""HTTP, tools, command line and reference agree on the parameters, rights and validation of each operation."""

from __future__ import annotations

import json
import re
from functools import cache
from typing import Any

import msgspec
import pytest
from cli.server_process import ServerProcess
from hypothesis import given, settings
from hypothesis import strategies as st

from retinue.cli import client
from retinue.cli.aliases import split_command
from retinue.cli.errors import UsageError
from retinue.cli.operation_command import collect_parameters as typed
from retinue.cli.parser import build_operation_parser, find_operation, parse_arguments, to_dest
from retinue.domain.errors import Invalid
from retinue.operations import base, generate_reference
from retinue.operations.base import Operation
from retinue.operations.catalog import OPERATIONS
from retinue.operations.parameter_schema import OperationParameter, ParameterKind, describe_parameters
from retinue.testing.wait_conditions import WAIT_LIMIT_S
from retinue.tools.base import schema_of

PAGE = (generate_reference.REFERENCE / "operations.md").read_text()
SECTIONS = {
    section.partition("`")[0]: section
    for section in re.split(r"^## `", PAGE, flags=re.MULTILINE)
    if "`POST " in section
}
every_operation = pytest.mark.parametrize("name", OPERATIONS)


@pytest.fixture(scope="module")
def openapi_document(server: ServerProcess) -> dict[str, Any]:
    """The OpenAPI document of the server."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RETINUE_HOME", str(server.home))
        patch.delenv("RETINUE_TOKEN", raising=False)
        link, host = client._connect(WAIT_LIMIT_S)
        try:
            link.sendall(client._build_request("GET", "/api/openapi.json", host))
            status, headers, heard = client._read_head(link)
            assert status == 200
            return json.loads(client._read_body(link, headers, heard))
        finally:
            link.close()


def list_declared_parameters(operation: Operation) -> dict[str, bool]:
    """The JSON name of each declared parameter, and whether it is required."""
    return {field.encode_name: field.required for field in msgspec.structs.fields(operation.parameters)}


@every_operation
def test_the_http_schema_of_an_operation_matches_its_declaration(openapi_document: dict[str, Any], name: str) -> None:
    operation = OPERATIONS[name]
    path = openapi_document["paths"][operation.route]["post"]
    schema = path["requestBody"]["content"]["application/json"]["schema"]
    while "$ref" in schema:
        schema = openapi_document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]

    required = {key for key, needed in list_declared_parameters(operation).items() if needed}
    assert set(schema.get("properties", {})) == set(list_declared_parameters(operation))
    assert set(schema.get("required", [])) == required
    assert path["x-permission"] == operation.permission
    assert path["x-effect"] == operation.has_effect


@every_operation
def test_the_tool_schema_of_an_operation_matches_its_declaration(name: str) -> None:
    offered = schema_of(OPERATIONS[name].parameters)

    assert set(offered["properties"]) == set(list_declared_parameters(OPERATIONS[name]))
    assert set(offered["required"]) == {
        key for key, needed in list_declared_parameters(OPERATIONS[name]).items() if needed
    }


@every_operation
def test_the_command_line_options_of_an_operation_match_its_declaration_and_have_help(name: str) -> None:
    operation = OPERATIONS[name]
    table_name, summary, effect, permission, _ = find_operation(name)
    parser = build_operation_parser(find_operation(name))
    actions = {action.dest: action for action in reversed(parser._actions)}

    assert (table_name, summary, effect, permission) == (
        operation.name,
        operation.summary,
        operation.has_effect,
        operation.permission,
    )
    for key, needed in list_declared_parameters(operation).items():
        action = actions.pop(to_dest(key))
        assert action.help
        [parameter] = [each for each in describe_parameters(operation) if each.name == key]
        is_asked_for = action.required or parameter.kind is ParameterKind.BOOLEAN or parameter.nullable
        assert is_asked_for if needed else not action.required
    assert set(actions) <= {"help", "json", "key", "wait"}
    assert ("key" in actions) == (effect and "key" not in list_declared_parameters(operation))


@every_operation
def test_the_reference_of_an_operation_matches_its_declaration(name: str) -> None:
    operation = OPERATIONS[name]
    section = SECTIONS[name]
    rows = {line.split("`")[1]: line for line in section.splitlines() if line.startswith("| `")}

    assert f"`POST {operation.route}`" in section
    assert f"`retinue {' '.join(split_command(name))}" in section
    assert f" needs {operation.permission} " in section
    assert operation.summary in section
    assert list(rows) == list(list_declared_parameters(operation))
    for each in describe_parameters(operation):
        row = rows[each.name]
        assert each.help.replace("|", "\\|") in row
        assert f"`{each.option[2:].upper().replace('-', '_')}`" in row if each.positional else each.option[2:] in row
        assert ("| required |" in row) == each.required
        assert all(f"`{choice}`" in row for choice in each.choices)


def test_no_removed_operation_is_left_in_the_reference_or_the_command_table() -> None:
    assert set(SECTIONS) == set(OPERATIONS)
    assert {name for name, *_ in generate_table()} == set(OPERATIONS)


def generate_table() -> tuple[Any, ...]:
    from retinue.cli.operation_table import OPERATIONS as TABLE

    return TABLE


# --- same validation ---


texts = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), min_size=1, max_size=20).filter(
    lambda text: text not in ("-", "--")
)
jsons = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)


@cache
def value_strategy(kind: ParameterKind, choices: tuple[str, ...]) -> st.SearchStrategy[Any]:
    match kind:
        case ParameterKind.TEXT | ParameterKind.LONG_TEXT:
            return texts
        case ParameterKind.NUMBER:
            return st.integers(-(2**40), 2**40)
        case ParameterKind.DECIMAL:
            return st.floats(allow_nan=False, allow_infinity=False, width=32)
        case ParameterKind.BOOLEAN:
            return st.booleans()
        case ParameterKind.CHOICE:
            return st.sampled_from(choices)
        case ParameterKind.JSON | ParameterKind.FILE:
            return jsons


@st.composite
def request_strategy(draw: st.DrawFn, operation: Operation) -> dict[str, Any]:
    """JSON requests, of which some are valid and some are not."""
    body: dict[str, Any] = {}
    for each in describe_parameters(operation):
        if each.kind is ParameterKind.FILE or not (each.required or draw(st.booleans())):
            continue
        one = value_strategy(each.kind, each.choices)
        if each.nullable:
            one |= st.none()
        body[each.name] = draw(
            st.lists(one.filter(lambda v: v is not None), min_size=1, max_size=3) if each.repeated else one
        )
    return body


def build_command_words(operation: Operation, body: dict[str, Any]) -> list[str]:
    """The same request as words of a command."""
    words: list[str] = []
    places: list[str] = []
    for each in describe_parameters(operation):
        if each.name not in body:
            continue
        value = body[each.name]
        if each.positional:
            places.append(value)
        elif value is None and each.kind is not ParameterKind.JSON:
            words.append(f"--no-{each.option[2:]}")
        elif each.kind is ParameterKind.BOOLEAN:
            words.append(each.option if value else f"--no-{each.option[2:]}")
        else:
            words += [f"{each.option}={_typed(each, one)}" for one in (list(value or ()) if each.repeated else [value])]
    return [*split_command(operation.name), *words, *(["--", *places] if places else [])]


def _typed(parameter: OperationParameter, value: Any) -> str:
    return value if isinstance(value, str) and parameter.kind is not ParameterKind.JSON else json.dumps(value)


def validate_request(operation: Operation, body: dict[str, Any]) -> Any:
    """The parsed parameters of a request, or its error."""
    try:
        return base.parse_request(json.dumps(body).encode(), operation.parameters)
    except Invalid as error:
        return error.because


@pytest.mark.spec("A45")
@every_operation
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_the_command_line_and_http_agree_on_the_request_of_an_operation_and_its_validation(
    name: str, data: st.DataObject
) -> None:
    operation = OPERATIONS[name]
    body = data.draw(request_strategy(operation))

    options = parse_arguments(build_command_words(operation, body))

    assert options.operation == name
    assert json.loads(json.dumps(typed(options))) == json.loads(json.dumps(body))
    assert validate_request(operation, typed(options)) == validate_request(operation, body)


@pytest.mark.spec("A45")
@every_operation
def test_an_invalid_request_of_an_operation_is_refused_over_http_and_on_the_command_line(name: str) -> None:
    operation = OPERATIONS[name]
    needed: dict[str, Any] = {}
    for each in describe_parameters(operation):
        if each.required:
            needed[each.name] = {ParameterKind.NUMBER: 1, ParameterKind.BOOLEAN: True, ParameterKind.JSON: {}}.get(
                each.kind, "00000000"
            )
            if each.choices:
                needed[each.name] = each.choices[0]
    for each in describe_parameters(operation):
        if each.required and not each.nullable:
            short = {key: value for key, value in needed.items() if key != each.name}
            assert isinstance(validate_request(operation, short), str)
            with pytest.raises(UsageError):
                parse_arguments(build_command_words(operation, short))
        if each.kind in (ParameterKind.NUMBER, ParameterKind.DECIMAL, ParameterKind.CHOICE):
            wrong = {**needed, each.name: ["none of these"] if each.repeated else "none of these"}
            assert isinstance(validate_request(operation, wrong), str)
            with pytest.raises(UsageError):
                parse_arguments(build_command_words(operation, wrong))
    assert isinstance(validate_request(operation, {**needed, "no_such_parameter": 1}), str)
    with pytest.raises(UsageError):
        parse_arguments([*build_command_words(operation, needed)[:2], "--no-such-parameter=1"])
