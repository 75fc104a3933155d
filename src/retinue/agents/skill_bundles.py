"""Exports operations as a skill for external agents: a SKILL.md and a working command line.

The content comes from the declarations of the operations, which the caller passes. The command line
is a copy of `skill_cli` with these facts in it: one file that needs only Python.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from retinue.agents.skill_discovery import cli_name
from retinue.agents.skills import DESCRIPTION_LENGTH_MAX, FILE
from retinue.domain.errors import Conflict, Invalid
from retinue.store.core.durable_files import sync

PREFIX = "retinue-"
EXTRA_FILE = "skill-extra.md"  # text of the owner; kept, and appended to SKILL.md
EXTRA_CHARS_MAX = 20_000
WIDTH = 120

_TEMPLATE = Path(__file__).with_name("skill_cli.py")
_PLACE = 'BUNDLE: dict[str, Any] = {"name": "", "summary": "", "commands": []}  # what is exported stands here\n'


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One parameter of an operation, as a command-line option or argument."""

    name: str
    option: str
    kind: str
    help: str
    default: str | int | float | bool | None = None
    choices: tuple[str, ...] = ()
    required: bool = False
    repeated: bool = False
    nullable: bool = False
    place: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One operation."""

    verb: str
    summary: str
    route: str
    effect: bool
    parameters: tuple[Option, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """All operations of one noun."""

    noun: str
    commands: tuple[Command, ...]

    @property
    def name(self) -> str:
        return PREFIX + self.noun

    @property
    def description(self) -> str:
        does = " ".join(command.summary for command in self.commands)
        whole = f"What can be asked of the house about '{self.noun}', by a command line. {does}"
        return whole if len(whole) <= DESCRIPTION_LENGTH_MAX else f"{whole[: DESCRIPTION_LENGTH_MAX - 1]}…"


def skill_md(bundle: Bundle, *, extra: str = "") -> str:
    """Return the SKILL.md of a bundle."""
    cli = f"./{cli_name(bundle.name)}"
    parts = [
        "---",
        f"name: {bundle.name}",
        f"description: {_quoted(bundle.description)}",
        f"bundle: {bundle.noun}",
        "---",
        f"# {bundle.name}",
        "",
        f"`{cli} COMMAND [OPTIONS]`, from this folder. The answer is JSON on stdout, an error JSON on stderr.",
        "",
        "Set up by `RETINUE_URL` (a path in it is kept) or `RETINUE_SOCKET`, and `RETINUE_TOKEN`.",
        "`RETINUE_SESSION`, or `--session-id ID`, says for which session it is done.",
        "",
        "A list is given as a JSON array, as words with commas between them, or by giving the option several times.",
        "",
        "| exit code | means |",
        "| --- | --- |",
        "| 0 | done |",
        "| 1 | something else went wrong |",
        "| 2 | it was typed wrongly |",
        "| 3 | it is not set up: no house, no token |",
        "| 4 | the house refused, or could not be reached |",
    ]
    for command in bundle.commands:
        parts += ["", f"## {command.verb}", "", command.summary, "", f"    {_usage(cli, command)}", ""]
        parts += [_line(option) for option in command.parameters]
        if command.effect:
            parts.append("- `--once KEY`: asked again with the same key, it is done once")
    if extra.strip():
        parts += ["", extra.strip()]
    return "\n".join(parts) + "\n"


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _usage(cli: str, command: Command) -> str:
    words = [cli, command.verb]
    for option in command.parameters:
        typed = option.name.upper() if option.place else f"{option.option} {option.name.upper()}"
        if option.place or option.required:
            words.append(typed if option.required else f"[{typed}]")
    rest = any(not option.place and not option.required for option in command.parameters)
    return " ".join([*words, *(["[OPTIONS]"] if rest else [])])


def _line(option: Option) -> str:
    name = option.name.upper() if option.place else option.option
    kind = "one of " + ", ".join(option.choices) if option.choices else option.kind
    marks = [kind, *(["several"] if option.repeated else []), *(["or null"] if option.nullable else [])]
    default = f"; left out: {option.default}" if option.default not in (None, "") else ""
    return f"- `{name}` ({', '.join(marks)}): {option.help}{default}"


def cli_source(bundle: Bundle) -> str:
    """Return the source of the command line."""
    from pprint import pformat

    source = _TEMPLATE.read_text()
    if source.count(_PLACE) != 1:
        raise RuntimeError("skill_cli.py has no place for a bundle")
    facts: Mapping[str, Any] = {
        "name": cli_name(bundle.name),
        "summary": f"What can be asked of the house about '{bundle.noun}'.",
        "commands": [asdict(command) for command in bundle.commands],
    }
    written = pformat(facts, width=WIDTH, sort_dicts=False)
    return source.replace(_PLACE, f"BUNDLE: dict[str, Any] = {written}\n").replace(
        "  # pyright: ignore[reportUnknownArgumentType]", ""
    )


def write(bundle: Bundle, folder: Path) -> Sequence[Path]:
    """Write a bundle to `folder`/NAME and replace an earlier export. Nothing else is overwritten."""
    target = folder / bundle.name
    if target.is_symlink() or (target.exists() and not _is_ours(target, bundle)):
        raise Conflict(
            f"{target} is there already",
            because="it is not an exported bundle of these operations, and would be lost",
            try_this="choose another folder, or move it away",
            code="skill.target-taken",
        )
    extra = _extra(target / EXTRA_FILE)
    try:
        target.mkdir(parents=True, exist_ok=True, mode=0o755)
        written = [target / cli_name(bundle.name), target / FILE]
        _put(written[0], cli_source(bundle), 0o755)
        _put(written[1], skill_md(bundle, extra=extra), 0o644)
        sync(target)
    except OSError as error:
        raise Invalid(
            f"nothing can be written to {target}",
            because=(error.strerror or str(error)).lower(),
            try_this="name a folder that the house may write to",
            code="skill.target-unwritable",
        ) from error
    return written


def _is_ours(target: Path, bundle: Bundle) -> bool:
    try:
        head = (target / FILE).read_text()[:4096]
    except (OSError, UnicodeDecodeError):
        return target.is_dir() and not any(target.iterdir())
    return f"\nname: {bundle.name}\n" in head and f"\nbundle: {bundle.noun}\n" in head


def _extra(path: Path) -> str:
    try:
        return path.read_text()[:EXTRA_CHARS_MAX]
    except (OSError, UnicodeDecodeError):
        return ""


def _put(path: Path, text: str, mode: int) -> None:
    """Write a file atomically: an agent may be running the old one."""
    beside = path.with_name(f".{path.name}.new")
    beside.unlink(missing_ok=True)
    with os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode), "w") as writing:
        writing.write(text)
        writing.flush()
        os.fchmod(writing.fileno(), stat.S_IMODE(mode))
        os.fsync(writing.fileno())
    os.replace(beside, path)
