"""Generates docs/reference/settings.md: `python -m retinue.config.settings_docs` in a checkout."""

from __future__ import annotations

import typing
from collections.abc import Iterable, Iterator
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from retinue.config.connectors import NAMES, group_of
from retinue.config.declarations import AGENT_RULES, RUNNERS
from retinue.config.secret import Secret
from retinue.config.settings import OWN_SECTIONS, Settings
from retinue.config.table_parser import is_required, rule_of
from retinue.config.toml_source import FILES_MAX, INCLUDE_DEPTH_MAX
from retinue.domain.agent import Agent

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "settings.md"

_HEAD = f"""<!-- Made from the code by `make generate`. -->

# Settings

Settings of the house are in `retinue.toml` in its home, and all of them have a default, so the file need not exist. How
to write one, with a sample, is in [Configure the server](../guides/configure.md).

A key that is not on this page, a value of another type or one out of its bounds is refused with its path, its file and
its line. A change takes effect:

| effect | when |
| --- | --- |
| `message` | with the next message |
| `hot` | at once, when the file is read again |
| `restart` | when the house is next opened; until then it is told of as waiting |
| `apply` | by `retinue apply`, for the store says who is on the staff, and the file only proposes |

## The environment

| variable | what it says |
| --- | --- |
| `RETINUE_HOME` | where the house lives; `~/.retinue` if it is not set |
| `RETINUE_CONFIG` | another settings file; it must exist then |
| `RETINUE_STORE` | as `house.store`, and wins over it |
| `RETINUE_ZONE` | as `house.zone`, and wins over it |
| `RETINUE_LISTEN` | `HOST:PORT` or `off`, and wins over `house.listen` |
| `ANTHROPIC_API_KEY`, `OPENAI_API_KEY`, `GOOGLE_API_KEY` … | a provider's key, found by its name |

## The file

| key | what it says |
| --- | --- |
| `config_version` | 2, which is also meant where it is missing; nothing else is read |
| `include` | more files, by name or pattern, up to {INCLUDE_DEPTH_MAX} deep and {FILES_MAX} in all |
| `[house]` | the settings below |
| `[providers.NAME]` | who sells models, or serves them: a key, an address, limits |
| `[models]` | which models the staff uses; `[models.entries."PROVIDER/MODEL"]` says more of one |
| `[context]` | how much of a conversation a model is given |
| `[budgets]` | what may be spent |
| `[connectors.NAME]` | a door to people: one account of ours at one place |
| `[agents.NAME]`, `[templates.NAME]` | the staff, and what several of them have in common |
| `[people.NAME]` | `role`: `owner`, `member` or `guest` |
| `[bindings.NAME]` | `agent`, `connector`; and `account`, `peer_kind`, `peer`, `parent`, `guild`, `team`, `also` |
| `[schedules.NAME]` | `agent`, `kind`, `text`, and `at`, `every_s` or `cron` as the kind wants it; `zone`, `enabled`, \
`place`, `deliver`, `missed`, `delete_after_run`, `model`, `title`, `description`, `gate` |

In any text, `${{NAME}}` is replaced by the environment variable, which must be set and not empty; `$${{` is a plain
`${{`. A key that ends in `token`, `password`, `secret`, `api_key` or the like takes no text, but
`{{ env = "NAME" }}` or `{{ file = "PATH" }}`; such a file must be readable by its owner alone.
"""

_AGENT_HEAD = f"""
## `[agents.NAME]` and `[templates.NAME]`

`model` may also be `{{ primary = "PROVIDER/MODEL", fallbacks = [] }}`; what is `default` there is the house's.

Beside the keys below, `extends` names one template or a list of them, `clear` lists keys that are not to be inherited,
and `external.secret`, what signs letters to an agent that runs elsewhere, is `{{ env }}` or `{{ file }}`. Runners are
{", ".join(f"`{name}`" for name in sorted(RUNNERS))}. All of it takes effect by `retinue apply`.
"""


def settings_page() -> str:
    """Return the page. It is deterministic."""
    lines = [_HEAD, *_section(Settings, "house", leave_out=OWN_SECTIONS)]
    hints = typing.get_type_hints(Settings)
    for name in OWN_SECTIONS:
        group, path = _group_of(hints[name], name)
        lines += ["", *_section(group, path)]
        lines += _kinds_of_connectors() if name == "connectors" else ()
    lines += [_AGENT_HEAD, "| key | type | default |", "| --- | --- | --- |", *_agent_keys()]
    return "\n".join(lines) + "\n"


def _kinds_of_connectors() -> Iterator[str]:
    """Yield the additional keys of each built-in platform."""
    for name in NAMES:
        group = group_of(name)
        yield f'\n### `kind = "{name}"`\n'
        yield f"{_first_line(group)}\n"
        yield _COLUMNS
        yield _RULE
        yield from _rows(group, "connectors.NAME", leave_out=())


def _section(cls: type[Any], path: str, *, leave_out: Iterable[str] = (), several: bool = False) -> Iterator[str]:
    """Yield a section's table, then its subsections. With `is_list`, it is a list of tables."""
    hints = typing.get_type_hints(cls)
    names = [each.name for each in fields(cls) if each.name not in leave_out]
    rows = list(_rows(cls, path, leave_out=leave_out))
    if path == "house":
        yield f"## `[{path}]`\n"
    elif rows:
        yield f"## `[[{path}]]`\n" if several else f"## `[{path}]`\n"
        yield f"{_first_line(cls)}\n"
    if rows:
        yield _COLUMNS
        yield _RULE
        yield from rows
    for each in fields(cls):
        flat = bool(each.metadata.get("flat"))
        group, inner = _group_of(hints[each.name], path if flat else f"{path}.{each.name}")
        if group is not None and each.name in names:
            yield ""
            several = typing.get_origin(hints[each.name]) is tuple
            yield from _within(group, inner) if flat else _section(group, inner, several=several)


def _within(cls: type[Any], path: str) -> Iterator[str]:
    """Yield the subsections of a flat group, whose own keys are listed with the group that contains it."""
    hints = typing.get_type_hints(cls)
    for each in fields(cls):
        group, inner = _group_of(hints[each.name], f"{path}.{each.name}")
        if group is not None:
            yield from _section(group, inner)


def _group_of(hint: Any, path: str) -> tuple[Any, str]:
    """Return the settings class at a path and the path of its keys; None for a single value."""
    if is_dataclass(hint) and not hasattr(hint, "SHORT"):
        return hint, path
    if typing.get_origin(hint) is tuple and is_dataclass(several := typing.get_args(hint)[0]):
        return several, path
    held = typing.get_args(hint)[-1] if isinstance(typing.get_origin(hint), type) and typing.get_args(hint) else None
    if is_dataclass(held):
        return held, f"{path}.{_NAMES.get(path, 'NAME')}"
    return None, path


_COLUMNS = "| setting | type | default | effect | what it says |"
_RULE = "| --- | --- | --- | --- | --- |"
_NAMES = {"models.entries": '"PROVIDER/MODEL"'}


def _rows(cls: type[Any], path: str, *, leave_out: Iterable[str]) -> Iterator[str]:
    hints = typing.get_type_hints(cls)
    for each in fields(cls):
        rule, hint = rule_of(each), hints[each.name]
        if each.metadata.get("flat"):
            yield from _rows(typing.cast("type[Any]", hint), path, leave_out=leave_out) if is_dataclass(hint) else ()
        elif rule.in_file and each.name not in leave_out and _group_of(hint, "")[0] is None:
            kind = _kind(hint, rule.least, rule.most)
            default = "required" if is_required(each) and cls is not Settings else _default(each)
            yield f"| `{path}.{each.name}` | {kind} | {default} | `{rule.effect}` | {rule.says} |"


def _agent_keys(cls: type[Any] = Agent, prefix: str = "") -> Iterator[str]:
    hints = typing.get_type_hints(cls)
    for each in fields(cls):
        if not prefix and each.name in ("name", "version"):
            continue
        name = f"{prefix}{each.name}"
        if is_dataclass(hints[each.name]):
            yield from _agent_keys(hints[each.name], f"{name}.")
        else:
            rule = AGENT_RULES.get(name, rule_of(each))
            yield f"| `{name}` | {_kind(hints[each.name], rule.least, rule.most)} | {_default(each)} |"


def _kind(hint: Any, least: float | None, most: float | None) -> str:
    bounds = f", from {least:g}" if least is not None else ""
    bounds += f" to {most:.12g}" if most is not None else ""
    names = [kind for kind in typing.get_args(hint) if kind is not type(None)] or [hint]
    kind = names[0]
    match typing.get_origin(hint), kind:
        case (origin, _) if origin is tuple:
            return f"list of {_plural(typing.get_args(hint)[0])}"
        case (origin, _) if origin is not None and origin not in (typing.Union, type(int | str)):
            return f"table of {_kind(typing.get_args(hint)[1], None, None)}"
        case _ if typing.get_origin(kind) is not None:
            return _kind(kind, None, None)
        case _ if hasattr(kind, "SHORT"):
            return f"text, or a table of {' and '.join(f'`{each.name}`' for each in fields(kind))}"
        case _ if kind is Secret:
            return "`{ env }` or `{ file }`"
        case _ if kind is Any:
            return "whatever JSON can say"
        case _ if kind is bool:
            return "true or false"
        case _ if kind is int:
            return f"whole number{bounds}"
        case _ if kind is float:
            return f"number{bounds}"
        case _ if isinstance(kind, type) and issubclass(kind, StrEnum):
            return " ".join(f"`{each}`" for each in kind)
        case _:
            return "text"


def _plural(hint: Any) -> str:
    return _kind(hint, None, None) if isinstance(hint, type) and issubclass(hint, StrEnum) else "texts"


def _default(each: Field[Any]) -> str:
    default = each.default if each.default_factory is MISSING else each.default_factory()
    match default:
        case True | False:
            return f"`{str(default).lower()}`"
        case None | "" | () | {}:
            return "not set"
        case tuple():
            return "`[" + ", ".join(f'"{item}"' for item in typing.cast("tuple[object, ...]", default)) + "]`"
        case float() if default.is_integer():
            return f"`{int(default)}`"
        case StrEnum():
            return f'`"{default}"`'
        case int() | float():
            return f"`{default}`"
        case str():
            return f'`"{default}"`'
        case _:
            return '`"UTC"`' if each.name == "zone" else "not set"


def _first_line(cls: type[Any]) -> str:
    return (cls.__doc__ or "").partition("\n")[0]


def main() -> None:
    PAGE.parent.mkdir(parents=True, exist_ok=True)
    PAGE.write_text(settings_page(), encoding="utf-8")


if __name__ == "__main__":
    main()
