"""Generates docs/reference/settings.md. Run `python -m retinue.config.settings_docs` in a checkout."""

from __future__ import annotations

import typing
from collections.abc import Iterable, Iterator
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from retinue.config.connectors import PLATFORM_NAMES, load_platform_settings
from retinue.config.declarations import AGENT_SETTING_RULES, RUNNERS
from retinue.config.secret import SecretReference
from retinue.config.settings import TOP_LEVEL_SECTIONS, Settings
from retinue.config.table_parser import is_required, setting_rule
from retinue.config.toml_source import FILES_MAX, INCLUDE_DEPTH_MAX
from retinue.domain.agent import Agent

PAGE_PATH = Path(__file__).parents[3] / "docs" / "reference" / "settings.md"

_PAGE_HEADER = f"""<!-- Made from the code by `make generate`. -->

# Settings

The settings are in `retinue.toml` in the data directory. Every setting has a default, so the file is optional.
[Configure the server](../guides/configure.md) explains how to write it, with an example.

The server refuses unknown keys, values of the wrong type and values out of range. The error gives the path of the
setting, the file and the line. The column *effect* says when a changed setting takes effect:

| effect | when |
| --- | --- |
| `message` | for the next message, after the server has read the file again |
| `hot` | as soon as the server has read the file again |
| `restart` | when the server is restarted; until then, the change is reported as pending |
| `apply` | when you run `retinue apply`, because the server reads agents from the database, not from the file |

## Environment variables

| variable | meaning |
| --- | --- |
| `RETINUE_HOME` | data directory. Default: `~/.retinue` |
| `RETINUE_CONFIG` | path of the settings file, which must exist. Default: `retinue.toml` in the data directory |
| `RETINUE_STORE` | overrides `server.store` |
| `RETINUE_ZONE` | overrides `server.zone` |
| `RETINUE_LISTEN` | `HOST:PORT` or `off`; overrides `server.listen` |
| `ANTHROPIC_API_KEY`, `OPENAI_API_KEY`, `GOOGLE_API_KEY` … | API key of the provider with that name |

## File

| key | meaning |
| --- | --- |
| `config_version` | version of the file format: 2, which is also the default |
| `include` | list of other settings files to read, as names or patterns; at most {INCLUDE_DEPTH_MAX} levels and \
{FILES_MAX} files |
| `[server]` | settings of the server |
| `[providers.NAME]` | a model provider: key, URL, limits |
| `[models]` | which models agents use; `[models.entries."PROVIDER/MODEL"]` describes one |
| `[context]` | how much of a session is sent to a model |
| `[budgets]` | maximum costs |
| `[connectors.NAME]` | a connector: one account on one platform |
| `[agents.NAME]`, `[templates.NAME]` | agents, and settings that several of them share |
| `[people.NAME]` | `role`: `owner`, `member` or `guest` |
| `[bindings.NAME]` | `agent` and `connector`; optional: `account`, `peer_kind`, `peer`, `parent`, `guild`, `team`, \
`extra_agents` |
| `[schedules.NAME]` | `agent`, `kind`, `text`, and, depending on `kind`, `at`, `every_s` or `cron`; `zone`, \
`enabled`, `session`, `deliver_to`, `missed`, `delete_after_run`, `model`, `title`, `description`, `gate` |

In any string value, `${{NAME}}` is replaced by the value of the environment variable NAME, which must be set and not
empty. `$${{` stands for a literal `${{`. A key that ends in `token`, `password`, `secret`, `api_key` or similar does
not accept the secret itself. Write where the secret is: `{{ env = "NAME" }}` or `{{ file = "PATH" }}`. The file must
not be accessible to other users.
"""

_AGENT_HEADER = f"""
## `[agents.NAME]` and `[templates.NAME]`

`model` may also be `{{ primary = "PROVIDER/MODEL", fallbacks = [] }}`. The value `"default"` stands for the server's
default model.

Besides the keys below, two more are allowed. `extends` names a template or a list of templates whose keys are
inherited. `clear` lists keys that are not inherited. `external.secret` is written as `{{ env = "NAME" }}` or
`{{ file = "PATH" }}`.
The runners are {", ".join(f"`{name}`" for name in sorted(RUNNERS))}. Changes take effect with `retinue apply`.
The operation [`agent.set`](operations.md#agentset) has a parameter for each key, with `_` instead of a dot.
"""


def render_settings_page() -> str:
    """Return the reference page of all settings. The result depends only on the declarations in the code."""
    lines = [_PAGE_HEADER, *_render_section(Settings, "server", leave_out=TOP_LEVEL_SECTIONS)]
    hints = typing.get_type_hints(Settings)
    for name in TOP_LEVEL_SECTIONS:
        group, path = _settings_class_at(hints[name], name)
        lines += ["", *_render_section(group, path)]
        lines += _render_platforms() if name == "connectors" else ()
    lines += [_AGENT_HEADER, _AGENT_TABLE_HEADER, _AGENT_TABLE_RULE, *_render_agent_rows()]
    return "\n".join(lines) + "\n"


def _render_platforms() -> Iterator[str]:
    """Yield a section for each built-in platform, with the settings that only connectors of that platform have."""
    for name in PLATFORM_NAMES:
        group = load_platform_settings(name)
        yield f'\n### `platform = "{name}"`\n'
        yield f"{_doc_summary(group)}\n"
        yield _TABLE_HEADER
        yield _TABLE_RULE
        yield from _render_rows(group, "connectors.NAME", leave_out=())


def _render_section(
    cls: type[Any], path: str, *, about: str = "", leave_out: Iterable[str] = (), is_list: bool = False
) -> Iterator[str]:
    """Yield the table of a settings section, then its subsections. With `is_list`, the section is an array of tables.

    `about` is the description of the section. Without it, the first line of the class's docstring is used.
    """
    hints = typing.get_type_hints(cls)
    names = [each.name for each in fields(cls) if each.name not in leave_out]
    rows = list(_render_rows(cls, path, leave_out=leave_out))
    if path == "server":
        yield f"## `[{path}]`\n"
    elif rows:
        yield f"## `[[{path}]]`\n" if is_list else f"## `[{path}]`\n"
        yield f"{about or _doc_summary(cls)}\n"
    if rows:
        yield _TABLE_HEADER
        yield _TABLE_RULE
        yield from rows
    for each in fields(cls):
        flat = bool(each.metadata.get("flat"))
        group, inner = _settings_class_at(hints[each.name], path if flat else f"{path}.{each.name}")
        if group is not None and each.name in names:
            yield ""
            is_list, description = typing.get_origin(hints[each.name]) is tuple, setting_rule(each).description
            yield from (
                _render_subsections(group, inner)
                if flat
                else _render_section(group, inner, about="" if is_list else description, is_list=is_list)
            )


def _render_subsections(cls: type[Any], path: str) -> Iterator[str]:
    """Yield the subsections of a group. The group's own keys are listed in the section that contains the group."""
    hints = typing.get_type_hints(cls)
    for each in fields(cls):
        group, inner = _settings_class_at(hints[each.name], f"{path}.{each.name}")
        if group is not None:
            yield from _render_section(group, inner, about=setting_rule(each).description)


def _settings_class_at(hint: Any, path: str) -> tuple[Any, str]:
    """Return the settings class of a field and the path of its keys. The class is None if the field is one value."""
    if is_dataclass(hint) and not hasattr(hint, "SHORT"):
        return hint, path
    if typing.get_origin(hint) is tuple and is_dataclass(several := typing.get_args(hint)[0]):
        return several, path
    held = typing.get_args(hint)[-1] if isinstance(typing.get_origin(hint), type) and typing.get_args(hint) else None
    if is_dataclass(held):
        return held, f"{path}.{_NAME_PLACEHOLDERS.get(path, 'NAME')}"
    return None, path


_TABLE_HEADER = "| setting | type | default | effect | description |"
_TABLE_RULE = "| --- | --- | --- | --- | --- |"
_AGENT_TABLE_HEADER = "| key | type | default | description |"
_AGENT_TABLE_RULE = "| --- | --- | --- | --- |"
_NAME_PLACEHOLDERS = {"models.entries": '"PROVIDER/MODEL"'}


def _render_rows(cls: type[Any], path: str, *, leave_out: Iterable[str]) -> Iterator[str]:
    hints = typing.get_type_hints(cls)
    for each in fields(cls):
        rule, hint = setting_rule(each), hints[each.name]
        if each.metadata.get("flat"):
            yield from (
                _render_rows(typing.cast("type[Any]", hint), path, leave_out=leave_out) if is_dataclass(hint) else ()
            )
        elif rule.in_file and each.name not in leave_out and _settings_class_at(hint, "")[0] is None:
            kind = _render_type(hint, rule.least, rule.most)
            default = "required" if is_required(each) and cls is not Settings else _render_default(each)
            yield f"| `{path}.{each.name}` | {kind} | {default} | `{rule.effect}` | {rule.description} |"


def _render_agent_rows(cls: type[Any] = Agent, prefix: str = "") -> Iterator[str]:
    hints = typing.get_type_hints(cls)
    for each in fields(cls):
        if not prefix and each.name in ("name", "version"):
            continue
        name = f"{prefix}{each.name}"
        if is_dataclass(hints[each.name]):
            yield from _render_agent_rows(hints[each.name], f"{name}.")
        else:
            rule = AGENT_SETTING_RULES.get(name, setting_rule(each))
            kind = _render_type(hints[each.name], rule.least, rule.most)
            yield f"| `{name}` | {kind} | {_render_default(each)} | {rule.description} |"


def _render_type(hint: Any, least: float | None, most: float | None) -> str:
    bounds = f", from {least:.15g}" if least is not None else ""
    bounds += f" to {most:.15g}" if most is not None else ""
    names = [kind for kind in typing.get_args(hint) if kind is not type(None)] or [hint]
    kind = names[0]
    match typing.get_origin(hint), kind:
        case (origin, _) if origin is tuple:
            return f"list of {_render_item_type(typing.get_args(hint)[0])}"
        case (origin, _) if origin is not None and origin not in (typing.Union, type(int | str)):
            inner = _render_type(typing.get_args(hint)[1], None, None)
            return f"table of {'strings' if inner == 'string' else inner}"
        case _ if typing.get_origin(kind) is not None:
            return _render_type(kind, None, None)
        case _ if hasattr(kind, "SHORT"):
            return f"string, or a table of {' and '.join(f'`{each.name}`' for each in fields(kind))}"
        case _ if kind is SecretReference:
            return "`{ env }` or `{ file }`"
        case _ if kind is Any:
            return "any JSON value"
        case _ if kind is bool:
            return "true or false"
        case _ if kind is int:
            return f"whole number{bounds}"
        case _ if kind is float:
            return f"number{bounds}"
        case _ if isinstance(kind, type) and issubclass(kind, StrEnum):
            return " ".join(f"`{each}`" for each in kind)
        case _ if is_dataclass(kind):
            return "tables"
        case _:
            return "string"


def _render_item_type(hint: Any) -> str:
    if hint is int:
        return "whole numbers"
    return _render_type(hint, None, None) if isinstance(hint, type) and issubclass(hint, StrEnum) else "strings"


def _render_default(each: Field[Any]) -> str:
    default = each.default if each.default_factory is MISSING else each.default_factory()
    match default:
        case True | False:
            return f"`{str(default).lower()}`"
        case None | "" | () | {}:
            return "not set"
        case tuple():
            items = typing.cast("tuple[object, ...]", default)
            return "`[" + ", ".join(f'"{item}"' if isinstance(item, str) else f"{item}" for item in items) + "]`"
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


def _doc_summary(cls: type[Any]) -> str:
    return (cls.__doc__ or "").partition("\n")[0]


def write_settings_page() -> None:
    PAGE_PATH.parent.mkdir(parents=True, exist_ok=True)
    PAGE_PATH.write_text(render_settings_page(), encoding="utf-8")


if __name__ == "__main__":
    write_settings_page()
