"""Generates docs/reference/instructions.md from the types.

Run `python -m retinue.agents.instructions_docs` in a checkout.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Any

from msgspec import Meta, Struct

from retinue.agents.instruction_sections import BUILT_IN
from retinue.agents.instruction_templates import BUILT_IN as BUILT_IN_FILE
from retinue.agents.instruction_templates import BUILT_IN_TEXT, ENTRY
from retinue.agents.instructions import PLACES, Mode, Situation

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "instructions.md"

_HEAD = f"""<!-- Made from the code by `make generate`. -->

# Instructions

What templates for instructions may name, and the sections that they are made of. How to write one is in
[Instructions](../guides/instructions.md). A template begins in `{ENTRY}`; a name that is not on this page is refused.

"""


def main() -> None:
    PAGE.write_text(page())


def page() -> str:
    lines = [_HEAD + "## Variables", "", "| variable | type | what it says |", "| --- | --- | --- |"]
    lines += [f"| `{name}` | {kind} | {says} |" for name, kind, says in variables()]
    lines += ["| `sections` | texts by name | every section below as it would be told here; empty where it is not |"]
    lines += ["", "## Sections", "", "In this order, where each has something to say.", ""]
    lines += ["| section | " + " | ".join(Mode) + " | what it tells |", "| --- |" + " --- |" * (len(Mode) + 1)]
    bodies = {each.name: each for each in BUILT_IN}
    for name, modes in PLACES.items():
        marks = " | ".join("yes" if mode in modes else "" for mode in Mode)
        lines.append(f"| `{name}` | {marks} | {_SAYS[name] if name in bodies else 'kept for a part that is to come'} |")
    lines += ["", f"## `{BUILT_IN_FILE}`", "", "What is told without a template of one's own; one may include it.", ""]
    return "\n".join([*lines, f"```jinja\n{BUILT_IN_TEXT}```", ""])


def variables() -> Iterator[tuple[str, str, str]]:
    """Yield every variable, including the nested ones."""
    yield from _fields(Situation, "")


def _fields(struct: type[Struct], prefix: str) -> Iterator[tuple[str, str, str]]:
    hints = typing.get_type_hints(struct, include_extras=True)
    for name in struct.__struct_fields__:
        plain, says = _unwrapped(hints[name])
        inner, kind = _kind(plain)
        yield f"{prefix}{name}", kind, says
        if inner is not None:
            yield from _fields(inner, f"{prefix}{name}[]." if kind.startswith("list") else f"{prefix}{name}.")


def _unwrapped(hint: Any) -> tuple[Any, str]:
    if typing.get_origin(hint) is typing.Annotated:
        plain, *more = typing.get_args(hint)
        return plain, next((each.description or "" for each in more if isinstance(each, Meta)), "")
    return hint, ""


def _kind(plain: Any) -> tuple[type[Struct] | None, str]:
    """Return the struct inside a type, if there is one, and the name of the type in the docs."""
    arguments = typing.get_args(plain)
    if isinstance(plain, types.UnionType):
        inner, kind = _kind(next(each for each in arguments if each is not types.NoneType))
        return inner, f"{kind}, or none"
    if typing.get_origin(plain) is tuple:
        inner, kind = _kind(arguments[0])
        return inner, f"list of {kind}"
    if issubclass(plain, Struct):
        return plain, "object"
    if issubclass(plain, StrEnum):
        return None, "one of " + ", ".join(f"`{each}`" for each in plain)
    return None, {str: "text", bool: "yes or no", int: "number"}[plain]


_SAYS = {
    "identity": "what its definition tells it; else `You are NAME. DESCRIPTION`; else the house's own words",
    "house": "where it works, how mail reaches it, its permission level",
    "subagent": "of a subagent: its role and task, its rules, what to give back, what not to do, its session",
    "tools": "each tool it may call, in one line",
    "call-style": "how to go about calls",
    "commands": "the `retinue` command, where its commands can reach the house",
    "skills": "its skills, with where to read them",
    "memory-recall": "to look into memory first, where it has `memory_search`",
    "model-aliases": "other names of models",
    "workspace": "where it works",
    "documentation": "where the house's documentation lies",
    "sandbox": "what its commands run in",
    "user-identity": "who the owner is, and how their mail is known",
    "time": "the time zone; no clock",
    "messaging": "when to use `message`, and when not",
    "message-context": "how to read the context line of the page",
    "panels": "what is open before the person, by id",
    "agents": "whom it may write to, how, and what to do with results",
    "plugins": "what plug-ins want said",
    "context": "what was sent along for this run",
    "reasoning-format": "to put thoughts between tags, where they are asked for and the model does not by itself",
    "files": "files of home and workspace by their fixed names; `AGENTS.md` and `TOOLS.md` alone in minimal ones",
    "context-files": "files that `context_files` of the agent names",
    "memory": "`internal_space/MEMORY.md` and the two newest daily files, and how to keep something",
    "silent-replies": "how to say nothing",
    "heartbeats": "what a heartbeat's own conversation is for; elsewhere nothing",
    "runtime": "one line on where it runs, and one on who sees its thoughts",
}

if __name__ == "__main__":
    main()
