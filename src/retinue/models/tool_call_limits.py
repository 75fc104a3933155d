"""Limits and normalizes the tool calls in a model's reply, including those with unreadable arguments."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, cast

from retinue.domain.storable_text import make_storable
from retinue.domain.tool import Call

CALLS_MAX = 256  # per reply
TOOL_NAME_CHARS_MAX = 200  # of a tool's name
ARGUMENTS_DEPTH_MAX = 64  # no tool needs deeper nesting, and not every decoder can read it again

UNPARSED = "_unparsed"  # stands for unreadable arguments; no tool has a parameter of this name


def normalize_call(call: Call, *, id_: str) -> Call:
    """Return a call as the store would return it, so that the stored call equals the call that was allowed."""
    try:
        arguments = {make_storable(str(key)): normalize_value(part) for key, part in call.arguments.items()}
    except _TooDeep:
        arguments = {UNPARSED: f"nested more than {ARGUMENTS_DEPTH_MAX} deep"}
    return Call(id=id_, tool=make_storable(call.tool[:TOOL_NAME_CHARS_MAX]), arguments=arguments)


def explain_unreadable(call: Call) -> str:
    """Explain to the model why the arguments of a call cannot be read. Empty if they can."""
    if UNPARSED not in call.arguments:
        return ""
    return (
        "Not done: the arguments of this call could not be read. They must be one complete JSON object, short enough "
        "for one reply."
    )


class _TooDeep(Exception):
    pass


def normalize_value(value: Any, depth_max: int = ARGUMENTS_DEPTH_MAX) -> Any:
    """Return a JSON value as the store would return it."""
    if depth_max < 0:
        raise _TooDeep
    match value:
        case str():
            return make_storable(value)
        case dict():
            parts = cast("Mapping[Any, Any]", value).items()
            return {make_storable(str(key)): normalize_value(part, depth_max - 1) for key, part in parts}
        case list() | tuple():
            return [normalize_value(part, depth_max - 1) for part in cast("Sequence[Any]", value)]
        case float() if not math.isfinite(value):
            return None  # JSON cannot represent it
        case _:
            return value
