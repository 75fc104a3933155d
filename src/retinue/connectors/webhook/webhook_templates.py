"""Renders the owner's templates with untrusted request data. The data is never used as a template.

The owner writes the template, but the sender of a request controls the size of the output. Therefore
the only filters and methods available are those whose output is not much larger than their input.
Lists are truncated, and rendering stops at the maximum size of an envelope's text.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, cast

from retinue.connectors.webhook.errors import WebhookTemplateFailed
from retinue.domain.envelope import ENVELOPE_TEXT_BYTES_MAX

if TYPE_CHECKING:
    from jinja2 import Template
    from jinja2.sandbox import ImmutableSandboxedEnvironment

ITEMS_MAX = 1_000  # items of one list or dict that a template can read
DEPTH_MAX = 32
TEMPLATES_MAX = 256  # cached

FILTERS = frozenset(
    {
        *("abs", "capitalize", "count", "d", "default", "dictsort", "e", "escape", "first", "float", "int", "items"),
        *("join", "last", "length", "list", "lower", "map", "max", "min", "reject", "rejectattr", "reverse", "round"),
        *("select", "selectattr", "sort", "string", "sum", "title", "tojson", "trim", "truncate", "unique", "upper"),
    }
)
METHODS = frozenset(
    {"get", "items", "keys", "values", "lower", "upper", "title", "strip", "lstrip", "rstrip", "split"}
    | {"startswith", "endswith"}
)


def check_template(text: str) -> str:
    """Return why a template is invalid, or an empty string if it is valid."""
    from jinja2.exceptions import TemplateError

    try:
        _compile_template(text)
    except (TemplateError, RecursionError, ValueError, OverflowError) as error:
        return _describe_error(error)
    return ""


def render(text: str, values: Mapping[str, Any]) -> str:
    """Render a template. Raises `WebhookTemplateFailed` if it fails with this data."""
    kept: list[str] = []
    size = 0
    try:
        for piece in _compile_template(text).generate(**values):
            kept.append(piece)
            size += len(piece)
            if size > ENVELOPE_TEXT_BYTES_MAX:
                break
    except Exception as error:
        raise WebhookTemplateFailed(because=_describe_error(error)) from error
    return "".join(kept).strip()


def limit_payload(value: Any, depth: int = DEPTH_MAX) -> Any:
    """Limit the data that a template gets: the length of each list or dict, and the depth."""
    match value:
        case dict():
            table = cast("dict[str, Any]", value)
            if depth == 0:
                return {}
            return {key: limit_payload(part, depth - 1) for key, part in list(table.items())[:ITEMS_MAX]}
        case list():
            parts = cast("list[Any]", value)
            return [limit_payload(part, depth - 1) for part in parts[:ITEMS_MAX]] if depth else []
        case _:
            return value


def get_text_at(values: Mapping[str, Any], path: str) -> str:
    """Return the value at a path such as `payload.issue.labels.0.name` as text, or an empty string if there is none."""
    found: Any = values
    for word in path.split("."):
        if isinstance(found, Mapping):
            found = cast("Mapping[str, Any]", found).get(word)
        elif isinstance(found, list) and word.isascii() and word.isdigit() and len(word) <= 4:
            parts = cast("list[Any]", found)
            found = parts[int(word)] if int(word) < len(parts) else None
        else:
            return ""
    match found:
        case bool():
            return "true" if found else "false"
        case str() | int() | float():
            return str(found)
        case _:
            return ""


@lru_cache(maxsize=TEMPLATES_MAX)
def _compile_template(text: str) -> Template:
    return _build_environment().from_string(text)


@lru_cache(maxsize=1)
def _build_environment() -> ImmutableSandboxedEnvironment:
    from jinja2 import ChainableUndefined
    from jinja2.exceptions import SecurityError
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class BoundedEnvironment(ImmutableSandboxedEnvironment):
        intercepted_binops = frozenset({"*", "**", "%"})

        def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
            numbers = isinstance(left, int | float) and isinstance(right, int | float)
            if not numbers or operator == "**" or max(abs(left), abs(right)) > 2**63:
                raise SecurityError(f"`{operator}` is allowed only for small numbers")
            return super().call_binop(context, operator, left, right)

        def wrap_str_format(self, value: Any) -> None:
            """Disable `str.format`: Jinja's version limits what it accesses, but not the length of its result."""
            return None

        def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
            """Allow only attributes of strings, lists and dicts that cannot produce output larger than their input."""
            if isinstance(obj, str | bytes | list | dict | int | float):
                return attr in METHODS
            return super().is_safe_attribute(obj, attr, value)

    made = BoundedEnvironment(undefined=ChainableUndefined, autoescape=False, trim_blocks=True, lstrip_blocks=True)
    loose: Any = made
    loose.filters = {name: loose.filters[name] for name in FILTERS}
    loose.globals.clear()
    return made


def _describe_error(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:300]
