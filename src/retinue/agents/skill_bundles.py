"""Exports operations as a skill for external agents: a SKILL.md and a working command line.

The caller passes the declarations of the operations. The command line is a copy of `skill_cli` that
contains these declarations. It is one file that needs only Python.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from retinue.agents.errors import ExportTargetExists, ExportTargetUnwritable
from retinue.agents.skill_discovery import cli_name
from retinue.agents.skills import DESCRIPTION_LENGTH_MAX, SKILL_FILE
from retinue.store.core.durable_files import fsync_path

BUNDLE_PREFIX = "retinue-"
EXTRA_FILE = "skill-extra.md"  # written by the owner; an export keeps it and appends it to SKILL.md
EXTRA_CHARS_MAX = 20_000
SOURCE_COLUMNS = 120

_CLI_TEMPLATE = Path(__file__).with_name("skill_cli.py")
_BUNDLE_LINE = (
    'BUNDLE: dict[str, Any] = {"name": "", "summary": "", "commands": []}  # replaced by the exported commands\n'
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleOption:
    """One parameter of an operation, as an option or argument of the command line."""

    name: str
    option: str
    kind: str
    help: str
    default: str | int | float | bool | None = None
    choices: tuple[str, ...] = ()
    required: bool = False
    repeated: bool = False
    nullable: bool = False
    positional: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleCommand:
    """One operation, as a command of the bundle's command line."""

    verb: str
    summary: str
    route: str
    effect: bool
    parameters: tuple[BundleOption, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SkillBundle:
    """A skill for all operations on one kind of object, such as schedules."""

    noun: str
    commands: tuple[BundleCommand, ...]

    @property
    def name(self) -> str:
        return BUNDLE_PREFIX + self.noun

    @property
    def description(self) -> str:
        does = " ".join(command.summary for command in self.commands)
        whole = f"Operations of the server on '{self.noun}', as a command line. {does}"
        return whole if len(whole) <= DESCRIPTION_LENGTH_MAX else f"{whole[: DESCRIPTION_LENGTH_MAX - 1]}…"


def render_skill_md(bundle: SkillBundle, *, extra: str = "") -> str:
    """Return the SKILL.md of a bundle."""
    cli = f"./{cli_name(bundle.name)}"
    parts = [
        "---",
        f"name: {bundle.name}",
        f"description: {_quote_yaml(bundle.description)}",
        f"bundle: {bundle.noun}",
        "---",
        f"# {bundle.name}",
        "",
        f"`{cli} COMMAND [OPTIONS]`, from this folder. Results are JSON on stdout, and errors are JSON on stderr.",
        "",
        "Set `RETINUE_URL` (it may include a path) or `RETINUE_SOCKET`, and `RETINUE_TOKEN`.",
        "`RETINUE_SESSION`, or `--session-id ID`, is the session that a request is for.",
        "",
        "Give a list as a JSON array, as comma-separated values, or by repeating the option.",
        "",
        "| exit code | meaning |",
        "| --- | --- |",
        "| 0 | success |",
        "| 1 | other error |",
        "| 2 | usage error |",
        "| 3 | configuration error: no server or no token |",
        "| 4 | the server refused, or is unreachable |",
    ]
    for command in bundle.commands:
        parts += ["", f"## {command.verb}", "", command.summary, "", f"    {_usage_line(cli, command)}", ""]
        parts += [_option_line(option) for option in command.parameters]
        if command.effect:
            parts.append("- `--once KEY`: idempotency key; a repeated request with the same key is performed once")
    if extra.strip():
        parts += ["", extra.strip()]
    return "\n".join(parts) + "\n"


def _quote_yaml(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _usage_line(cli: str, command: BundleCommand) -> str:
    words = [cli, command.verb]
    for option in command.parameters:
        typed = option.name.upper() if option.positional else f"{option.option} {option.name.upper()}"
        if option.positional or option.required:
            words.append(typed if option.required else f"[{typed}]")
    rest = any(not option.positional and not option.required for option in command.parameters)
    return " ".join([*words, *(["[OPTIONS]"] if rest else [])])


def _option_line(option: BundleOption) -> str:
    name = option.name.upper() if option.positional else option.option
    kind = "one of " + ", ".join(option.choices) if option.choices else option.kind
    marks = [kind, *(["repeatable"] if option.repeated else []), *(["or null"] if option.nullable else [])]
    default = f"; default: {option.default}" if option.default not in (None, "") else ""
    return f"- `{name}` ({', '.join(marks)}): {option.help}{default}"


def render_cli(bundle: SkillBundle) -> str:
    """Return the source code of a bundle's command line."""
    from pprint import pformat

    source = _CLI_TEMPLATE.read_text()
    if source.count(_BUNDLE_LINE) != 1:
        raise RuntimeError("skill_cli.py has no line to replace with a bundle")
    facts: Mapping[str, Any] = {
        "name": cli_name(bundle.name),
        "summary": f"Operations of the server on '{bundle.noun}'.",
        "commands": [asdict(command) for command in bundle.commands],
    }
    written = pformat(facts, width=SOURCE_COLUMNS, sort_dicts=False)
    return source.replace(_BUNDLE_LINE, f"BUNDLE: dict[str, Any] = {written}\n").replace(
        "  # pyright: ignore[reportUnknownArgumentType]", ""
    )


def write_bundle(bundle: SkillBundle, folder: Path) -> Sequence[Path]:
    """Write a bundle to `folder`/NAME. An earlier export is replaced. Any other file or folder is never overwritten."""
    target = folder / bundle.name
    if target.is_symlink() or (target.exists() and not _is_same_bundle(target, bundle)):
        raise ExportTargetExists(target)
    extra = _read_extra(target / EXTRA_FILE)
    try:
        target.mkdir(parents=True, exist_ok=True, mode=0o755)
        written = [target / cli_name(bundle.name), target / SKILL_FILE]
        _write_atomically(written[0], render_cli(bundle), 0o755)
        _write_atomically(written[1], render_skill_md(bundle, extra=extra), 0o644)
        fsync_path(target)
    except OSError as error:
        raise ExportTargetUnwritable(target, because=(error.strerror or str(error)).lower()) from error
    return written


def _is_same_bundle(target: Path, bundle: SkillBundle) -> bool:
    try:
        head = (target / SKILL_FILE).read_text()[:4096]
    except (OSError, UnicodeDecodeError):
        return target.is_dir() and not any(target.iterdir())
    return f"\nname: {bundle.name}\n" in head and f"\nbundle: {bundle.noun}\n" in head


def _read_extra(path: Path) -> str:
    try:
        return path.read_text()[:EXTRA_CHARS_MAX]
    except (OSError, UnicodeDecodeError):
        return ""


def _write_atomically(path: Path, text: str, mode: int) -> None:
    """Replace a file atomically, because an agent may be running the old version at that time."""
    beside = path.with_name(f".{path.name}.new")
    beside.unlink(missing_ok=True)
    with os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode), "w") as writing:
        writing.write(text)
        writing.flush()
        os.fchmod(writing.fileno(), stat.S_IMODE(mode))
        os.fsync(writing.fileno())
    os.replace(beside, path)
