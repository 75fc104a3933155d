"""Converts the JSON schema of an MCP tool to the form that every provider accepts, and checks
arguments.

References are inlined, keywords that no provider reads are dropped, and sizes are limited, because
a server can send anything. The server still validates each call itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, cast

from msgspec import Struct, field

DEPTH_MAX = 12
NODES_MAX = 1_000
TEXT_CHARS_MAX = 2_000
VALUES_MAX = 200

_PROPERTY = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_TYPES = frozenset({"string", "number", "integer", "boolean", "object", "array", "null"})
_NUMBERS = ("minimum", "maximum", "minLength", "maxLength", "minItems", "maxItems")
_TEXTS = ("description", "format")
_PYTHON_TYPES: Mapping[str, tuple[type, ...]] = {
    "string": (str,),
    "number": (int, float),
    "integer": (int,),
    "boolean": (bool,),
    "object": (dict,),
    "array": (list,),
    "null": (type(None),),
}

Json = dict[str, Any]


class UnsupportedSchema(Exception):
    """The JSON schema of an MCP tool cannot be used. The message is the reason."""


def flatten_schema(schema: object, *, sanitize: Callable[[str], str] = str) -> Json:
    """Return the schema of an object with all references inlined. `sanitize` is applied to all text
    that a model reads."""
    root = _require_object(schema)
    made = _SchemaFlattener(root, sanitize).schema(root, 0)
    made = {key: value for key, value in made.items() if key in ("properties", "required", "additionalProperties")}
    return {"type": "object", "properties": {}, "required": [], "additionalProperties": False, **made}


class _SchemaFlattener(Struct):
    root: Json
    sanitize: Callable[[str], str]
    node_count: int = 0
    reference_stack: list[str] = field(default_factory=list[str])

    def schema(self, value: object, depth: int) -> Json:
        self.node_count += 1
        if self.node_count > NODES_MAX:
            raise UnsupportedSchema(f"its schema has more than {NODES_MAX} parts")
        if not isinstance(value, dict) or depth > DEPTH_MAX:  # `true` and `{}` both accept anything
            return {}
        given = cast(Json, value)
        if isinstance(reference := given.get("$ref"), str):
            return self._follow_reference(reference, given, depth)
        made: Json = {}
        self._copy_texts(given, made)
        self._copy_values(given, made)
        self._copy_members(given, made, depth)
        return made

    def _follow_reference(self, reference: str, given: Json, depth: int) -> Json:
        """Return the schema that a reference points to. A circular reference gives a schema that accepts anything."""
        if reference in self.reference_stack:
            return {}
        self.reference_stack.append(reference)
        try:
            beside = {key: inner for key, inner in given.items() if key in ("description", "default")}
            return self.schema({**_require_object(self._resolve_reference(reference)), **beside}, depth + 1)
        finally:
            self.reference_stack.pop()

    def _resolve_reference(self, reference: str) -> object:
        """Resolve a reference inside the schema. Nothing is fetched."""
        found: Any = self.root
        if not reference.startswith("#"):
            raise UnsupportedSchema("its schema has an external reference")
        for part in reference.removeprefix("#").split("/")[1:]:
            name = part.replace("~1", "/").replace("~0", "~")
            if not isinstance(found, dict) or name not in found:
                raise UnsupportedSchema("its schema has a reference that does not resolve")
            found = cast("dict[str, Any]", found)[name]
        return found

    def _copy_texts(self, given: Json, made: Json) -> None:
        for key in _TEXTS:
            if isinstance(text := given.get(key), str):
                made[key] = self.sanitize(text)[:TEXT_CHARS_MAX]

    def _copy_values(self, given: Json, made: Json) -> None:
        kind = given.get("type")
        if isinstance(kind, str) and kind in _TYPES:
            made["type"] = kind
        elif isinstance(kind, list):
            several = cast("list[object]", kind)
            made["type"] = [each for each in several if isinstance(each, str) and each in _TYPES] or "string"
        if "const" in given:
            made["enum"] = [self._check_choice(given["const"])]
        elif isinstance(values := given.get("enum"), list):
            choices = cast("list[object]", values)
            if len(choices) > VALUES_MAX:
                raise UnsupportedSchema(f"its schema has an enum of more than {VALUES_MAX} values")
            made["enum"] = [self._check_choice(each) for each in choices]
        if (
            isinstance(default := given.get("default"), str | bool | int | float)
            and len(str(default)) <= TEXT_CHARS_MAX
        ):
            made["default"] = default
        for key in _NUMBERS:
            number = given.get(key)
            if isinstance(number, int | float) and not isinstance(number, bool):
                made[key] = number

    def _check_choice(self, value: object) -> Any:
        """Check an enum value. It is sent to the model unchanged, so the owner must be able to see
        all of it in the approval.
        """
        if value is None or isinstance(value, bool | int | float):
            return value
        if not isinstance(value, str) or len(value) > TEXT_CHARS_MAX:
            raise UnsupportedSchema("its schema has an enum value that is too long, a list or an object")
        if self.sanitize(value) != value:
            raise UnsupportedSchema("its schema has an enum value with invisible characters")
        return value

    def _copy_members(self, given: Json, made: Json, depth: int) -> None:
        if isinstance(properties := given.get("properties"), dict):
            members = cast(Json, properties)
            for name in members:
                if not _PROPERTY.fullmatch(name):
                    raise UnsupportedSchema(
                        f"it has a parameter {name[:64]!r}, which is not a valid name for providers"
                    )
            made["properties"] = {name: self.schema(inner, depth + 1) for name, inner in members.items()}
            wanted = given.get("required")
            names = cast("list[object]", wanted) if isinstance(wanted, list) else []
            made["required"] = [name for name in names if isinstance(name, str) and name in members]
        if (more := given.get("additionalProperties")) is not None:
            made["additionalProperties"] = more if isinstance(more, bool) else self.schema(more, depth + 1)
        if "items" in given:
            made["items"] = self.schema(given["items"], depth + 1)
        for key in ("anyOf", "oneOf", "allOf"):
            if isinstance(several := given.get(key), list):
                parts = cast("list[object]", several)
                made["anyOf" if key == "oneOf" else key] = [self.schema(each, depth + 1) for each in parts]


def _require_object(value: object) -> Json:
    if not isinstance(value, dict):
        raise UnsupportedSchema("its schema is not an object")
    return cast(Json, value)


def find_argument_error(schema: Json, arguments: Mapping[str, Any]) -> str:
    """Return the first obvious error in the arguments of a call, or an empty string."""
    properties = cast("dict[str, Json]", schema["properties"])
    for name in cast("list[str]", schema["required"]):
        if name not in arguments:
            return f"'{name}' is missing"
    for name, value in arguments.items():
        if name not in properties:
            if schema["additionalProperties"] is False:
                return f"it has no parameter '{name[:64]}'; its parameters are: {', '.join(properties) or 'none'}"
            continue
        kind = properties[name].get("type")
        if isinstance(kind, str) and not _has_type(value, kind):
            return f"'{name}' must be {_with_article(kind)}"
    return ""


def _has_type(value: object, kind: str) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"
    if kind == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, _PYTHON_TYPES[kind])


def _with_article(kind: str) -> str:
    return f"an {kind}" if kind[0] in "aeiou" else kind if kind == "null" else f"a {kind}"
