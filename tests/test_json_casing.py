"""JSON keys, error codes, event kinds and metrics are in snake_case.

The exceptions are listed in `domain/json_casing_exceptions.py`.
"""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, NamedTuple, cast

import msgspec
import name_rules
import pytest

from retinue.api import openapi
from retinue.config import settings_docs
from retinue.domain.event import EventKind
from retinue.domain.json_casing_exceptions import FIXED_SURFACES, Casing, is_fixed
from retinue.operations.catalog import DEFAULT_PERMISSIONS, OPERATIONS

SNAKE = re.compile(r"_?[a-z][a-z0-9]*(_[a-z0-9]+)*")
DOTTED = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*(\.[a-z][a-z0-9]*(_[a-z0-9]+)*)+")
KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
ENVIRONMENT_VARIABLE = re.compile(r"[A-Z][A-Z0-9_]*")
CASINGS = {
    Casing.CAMEL: re.compile(r"[a-z]+([A-Z][a-z]*)+"),
    Casing.KEBAB: re.compile(r"[a-z]+(-[a-z]+)+"),
}

NOT_IMPORTED = ("__main__.py", "sandbox/sandbox_entrypoint.py", "store/migrations/")
"""Modules that run when they are imported. Their source is still checked."""

NO_JSON = {
    "agents/instruction_sections.py": "titles of lines in a prompt",
    "cli/aliases.py": "commands, which are in kebab-case",
    "config/models.py": "other names of providers",
    "connectors/telegram/telegram_html.py": "marks of Markdown",
    "domain/renamed_names.py": "names of earlier versions",
    "models/pydantic_ai_bridge.py": "names of exceptions",
    "policy/provenance/provenance.py": "formats of JSON Schema, as values",
    "store/runs/run_timeline.py": "stored values",
    "testing/": "tools for tests: fake platforms, and names of cases",
}
"""Files with mappings in their source that never become JSON."""

HEADERS = frozenset(
    {
        "accept",
        "accept-encoding",
        "accept-language",
        "anthropic-beta",
        "anthropic-version",
        "authorization",
        "content-type",
        "idempotency-key",
        "server",
        "user-agent",
        "x-api-key",
        "x-goog-api-key",
        "x-retinue-session",
        "x-subscription-token",
    }
)
"""HTTP headers, in lower case."""

KEYBOARD = frozenset(
    {"ArrowDown", "ArrowLeft", "ArrowRight", "ArrowUp", "PageDown", "PageUp"}
    | {"Alt", "Backspace", "Control", "Delete", "End", "Enter", "Escape", "Home", "Meta", "Shift", "Space", "Tab"}
)
"""Names of keys in the Chrome DevTools Protocol."""


class Key(NamedTuple):
    """A key that may become JSON, with the file below `src/retinue` that has it."""

    name: str
    file: str


@cache
def sources() -> Mapping[str, ast.Module]:
    return dict(name_rules.source_files())


def subclasses(cls: type[Any]) -> Iterator[type[Any]]:
    for each in cls.__subclasses__():
        yield each
        yield from subclasses(each)


def struct_keys() -> Iterator[Key]:
    """The encoded names of all fields of all structs, and the names of their tags."""
    for file in sources():
        if not file.endswith(NOT_IMPORTED[0]) and not file.startswith(NOT_IMPORTED[1:]):
            importlib.import_module("retinue." + file.removesuffix(".py").removesuffix("/__init__").replace("/", "."))
    for struct in set(subclasses(msgspec.Struct)):
        file = struct.__module__.removeprefix("retinue.").replace(".", "/") + ".py"
        if struct.__module__.startswith("retinue."):
            names = list(struct.__struct_encode_fields__)
            tag = struct.__struct_config__.tag_field
            yield from (Key(name, file) for name in (*names, *([tag] if tag else [])))


def literal_keys(files: Mapping[str, ast.Module]) -> Iterator[Key]:
    """The keys of mappings in the source: in `{"key": ...}`, `mapping["key"] = ...` and keywords of `emit`."""
    for file, tree in files.items():
        if any(file == each or (each.endswith("/") and file.startswith(each)) for each in NO_JSON):
            continue
        for node in ast.walk(tree):
            found: list[ast.expr | None] = []
            match node:
                case ast.Dict(keys=keys):
                    found = list(keys)
                case ast.Assign(targets=targets):
                    found = [target.slice for target in targets if isinstance(target, ast.Subscript)]
                case ast.Call(func=ast.Attribute(attr="emit"), keywords=keywords):
                    yield from (Key(each.arg, file) for each in keywords if each.arg is not None)
                case _:
                    continue
            names = (each.value for each in found if isinstance(each, ast.Constant) and isinstance(each.value, str))
            yield from (Key(name, file) for name in names if KEY.fullmatch(name))


def is_key_of_ours(key: Key) -> bool:
    """Whether the key is neither a header, an environment variable, a key of the keyboard nor a field to be renamed."""
    is_renamed_field = key.name == "from_"  # the key of `rename={"from_": "from"}`; `struct_keys` has the encoded name
    is_foreign = key.name.lower() in HEADERS or key.name in KEYBOARD or ENVIRONMENT_VARIABLE.fullmatch(key.name)
    return not (is_foreign or is_renamed_field)


def wrong_keys(keys: Iterator[Key]) -> list[str]:
    wrong = {each for each in keys if not SNAKE.fullmatch(each.name) and is_key_of_ours(each)}
    return sorted(f"{each.file}: {each.name}" for each in wrong if not is_fixed(each.name, each.file))


def schema_properties(schema: Any) -> Iterator[str]:
    """The names of all properties in a JSON schema, at any depth."""
    if isinstance(schema, list):
        for each in cast("list[Any]", schema):
            yield from schema_properties(each)
    elif isinstance(schema, dict):
        for name, value in cast("dict[str, Any]", schema).items():
            if name == "properties" and isinstance(value, dict):
                yield from cast("dict[str, Any]", value)
            yield from schema_properties(value)


def test_encoded_json_fields_of_structs_are_in_snake_case_or_fixed() -> None:
    keys = list(struct_keys())
    assert len(keys) > 5_000
    assert wrong_keys(iter(keys)) == []


def test_json_keys_of_mappings_in_the_source_are_in_snake_case_or_fixed() -> None:
    keys = list(literal_keys(sources()))
    assert len(keys) > 1_000
    assert wrong_keys(iter(keys)) == []


def test_properties_and_parameters_in_the_openapi_document_are_in_snake_case_or_fixed() -> None:
    document = openapi.build_openapi(OPERATIONS.values(), DEFAULT_PERMISSIONS, version="0")
    summary = next(each for each in FIXED_SURFACES if each.fixed_by == "A89")
    names = set(schema_properties(document))
    assert len(names) > 500
    assert sorted(each for each in names - summary.names if not SNAKE.fullmatch(each)) == []


def test_setting_names_are_in_snake_case_like_json_keys() -> None:
    parts = {
        part
        for path in re.findall(r"^\| `([^`]+)` \|", settings_docs.render_settings_page(), re.MULTILINE)
        for part in re.findall(r"[\w-]+", path)
        if not part.isupper()
    }
    assert len(parts) > 300
    assert sorted(each for each in parts if not SNAKE.fullmatch(each)) == []


def test_metric_names_and_labels_are_in_snake_case_like_json_keys() -> None:
    calls = (
        node
        for node in ast.walk(sources()["api/metrics.py"])
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id.startswith("_format_")
    )
    names: list[str] = []
    for call in calls:
        arguments = [each.value if isinstance(each, ast.Constant) else None for each in call.args]
        names += [str(arguments[0]), *([str(arguments[2])] if "labeled" in cast("ast.Name", call.func).id else [])]
    assert len(names) > 10
    assert [name for name in names if not SNAKE.fullmatch(name)] == []


def test_error_codes_and_event_kinds_are_dotted_names_in_snake_case() -> None:
    codes = {each.code for each in name_rules.error_classes(sources())}
    assert len(codes) > 500
    kinds = {str(kind) for kind in EventKind}
    assert sorted(name for name in codes | kinds if not DOTTED.fullmatch(name)) == []


@pytest.mark.parametrize("surface", FIXED_SURFACES, ids=lambda each: each.surface)
def test_a_fixed_json_spelling_has_its_declared_casing_and_is_used(surface: Any) -> None:
    assert [name for name in surface.names if not CASINGS[surface.casing].fullmatch(name)] == []
    encoded: dict[str, set[str]] = {}
    for key in struct_keys():
        encoded.setdefault(key.file, set()).add(key.name)
    unused_files: list[str] = []
    used: set[str] = set()
    for name in surface.files:
        files = [each for each in sources() if each == name or (name.endswith("/") and each.startswith(name))]
        known = set[str]().union(*(encoded.get(file, set()) for file in files))
        found = {each for each in surface.names if each in known or any(occurs(each, file) for file in files)}
        unused_files += [] if found else [name]
        used |= found
    assert (sorted(surface.names - used), unused_files) == ([], [])


def occurs(name: str, file: str) -> bool:
    """Whether the name is in a text of the source."""
    texts = (node.value for node in ast.walk(sources()[file]) if isinstance(node, ast.Constant))
    return any(isinstance(text, str) and re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", text) for text in texts)


def test_every_file_excepted_from_the_json_casing_check_is_used() -> None:
    files = sources()
    assert [each for each in NO_JSON if not any(file == each or file.startswith(each) for file in files)] == []
    keys = list(literal_keys(files))
    assert HEADERS - {each.name.lower() for each in keys} == set()
    assert KEYBOARD - {each.name for each in keys} == set()


def test_a_json_key_in_the_wrong_casing_is_detected() -> None:
    planted = {
        "api/a.py": ast.parse('answer = {"good_key": 1, "bad-key": {"worseKey": 2}}'),
        "tools/b.py": ast.parse('answer["agentId"] = 1\ntx.emit(KIND, goodKey=1)'),
        "outbox/external_agent_delivery.py": ast.parse('body = {"agentId": 1, "PATH": 2, "x-api-key": 3}'),
        "api/answer.py": ast.parse('answer = {"someWords": 1, "Content-Type": 2}'),
    }
    assert wrong_keys(literal_keys(planted)) == [
        "api/a.py: bad-key",
        "api/a.py: worseKey",
        "api/answer.py: someWords",
        "tools/b.py: agentId",
        "tools/b.py: goodKey",
    ]
