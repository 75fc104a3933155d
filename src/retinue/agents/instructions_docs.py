"""Generates docs/reference/instructions.md from the types in `instructions`.

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

from retinue.agents.instruction_sections import BUILT_IN_SECTIONS
from retinue.agents.instruction_templates import BUILT_IN_FILE as BUILT_IN_FILE
from retinue.agents.instruction_templates import BUILT_IN_TEXT, ENTRY_FILE
from retinue.agents.instructions import SECTION_MODES, Mode, PromptContext

DOC_FILE = Path(__file__).parents[3] / "docs" / "reference" / "instructions.md"

_HEAD = f"""<!-- Made from the code by `make generate`. -->

# Instructions

The variables that an instructions template can use, and the sections of the system prompt.
[Instructions](../guides/instructions.md) explains how to write one. A template starts in `{ENTRY_FILE}`. A name that is
not on this page is an error.

"""


def main() -> None:
    DOC_FILE.write_text(render_page())


def render_page() -> str:
    lines = [_HEAD + "## Variables", "", "| variable | type | meaning |", "| --- | --- | --- |"]
    lines += [f"| `{name}` | {kind} | {says} |" for name, kind, says in list_variables()]
    lines += ["| `sections` | texts by name | the text of each section below; empty if it does not apply |"]
    lines += ["", "## Sections", "", "In this order. A section without text is left out.", ""]
    lines += ["| section | " + " | ".join(Mode) + " | content |", "| --- |" + " --- |" * (len(Mode) + 1)]
    bodies = {each.name: each for each in BUILT_IN_SECTIONS}
    for name, modes in SECTION_MODES.items():
        marks = " | ".join("yes" if mode in modes else "" for mode in Mode)
        content = _SECTION_DESCRIPTIONS[name] if name in bodies else "reserved"
        lines.append(f"| `{name}` | {marks} | {content} |")
    lines += ["", f"## `{BUILT_IN_FILE}`", "", "Used if there is no template. A template can include it.", ""]
    return "\n".join([*lines, f"```jinja\n{BUILT_IN_TEXT}```", ""])


def list_variables() -> Iterator[tuple[str, str, str]]:
    """Yield every variable that a template can use, including nested variables."""
    yield from _list_fields(PromptContext, "")


def _list_fields(struct: type[Struct], prefix: str) -> Iterator[tuple[str, str, str]]:
    hints = typing.get_type_hints(struct, include_extras=True)
    for name in struct.__struct_fields__:
        plain, says = _unwrap_annotated(hints[name])
        inner, kind = _describe_type(plain)
        yield f"{prefix}{name}", kind, says
        if inner is not None:
            yield from _list_fields(inner, f"{prefix}{name}[]." if kind.startswith("list") else f"{prefix}{name}.")


def _unwrap_annotated(hint: Any) -> tuple[Any, str]:
    if typing.get_origin(hint) is typing.Annotated:
        plain, *more = typing.get_args(hint)
        return plain, next((each.description or "" for each in more if isinstance(each, Meta)), "")
    return hint, ""


def _describe_type(plain: Any) -> tuple[type[Struct] | None, str]:
    """Return the name of a type as the docs show it, and the struct that the type contains, if any."""
    arguments = typing.get_args(plain)
    if isinstance(plain, types.UnionType):
        inner, kind = _describe_type(next(each for each in arguments if each is not types.NoneType))
        return inner, f"{kind}, or none"
    if typing.get_origin(plain) is tuple:
        inner, kind = _describe_type(arguments[0])
        return inner, f"list of {kind}"
    if issubclass(plain, Struct):
        return plain, "object"
    if issubclass(plain, StrEnum):
        return None, "one of " + ", ".join(f"`{each}`" for each in plain)
    return None, {str: "text", bool: "yes or no", int: "number"}[plain]


_SECTION_DESCRIPTIONS = {
    "identity": "the instructions of its definition; else `You are NAME. DESCRIPTION`; else a default",
    "instance": "what the server is, how messages reach it, its permission level",
    "subagent": "for a subagent: its role and task, its rules, what to return, what not to do, its session",
    "tools": "each tool it can call, in one line",
    "call_style": "how to make calls",
    "commands": "the `retinue` command, if its commands can reach the server",
    "skills": "its skills, and where to read them",
    "memory_recall": "to search its memory first, if it has `memory_search`",
    "model_aliases": "aliases of models",
    "workspace": "its workspace and agent directory",
    "documentation": "where the documentation of the server is",
    "sandbox": "the sandbox of its commands",
    "user_identity": "who the owner is, and how to recognize their messages",
    "time": "the time zone; not the current time",
    "messaging": "when to use `message`, and when not",
    "message_context": "how to read the context line of the web app",
    "panels": "the open panels, by id",
    "agents": "which agents it can write to, how, and what to do with results",
    "plugins": "texts of plugins",
    "context": "text sent with the envelope, for this run",
    "reasoning_format": "to put thinking between tags, if it is shown and the model does not do so itself",
    "files": "files with fixed names of agent directory and workspace; in minimal mode only `AGENTS.md` and `TOOLS.md`",
    "context_files": "files that `context_files` of the agent names",
    "memory": "`internal_space/MEMORY.md` and the two newest daily files, and how to save something",
    "silent_replies": "how to send no answer",
    "heartbeats": "the purpose of a heartbeat conversation; empty in others",
    "runtime": "one line about where it runs, and one about whether its thinking is shown",
}

if __name__ == "__main__":
    main()
