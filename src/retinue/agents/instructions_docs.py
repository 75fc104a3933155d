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
    lines += ["| `sections` | strings by name | the text of each section below; empty if it does not apply |"]
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
    """Return the struct that a type contains (None if it has none), and the name of the type for the docs."""
    arguments = typing.get_args(plain)
    if isinstance(plain, types.UnionType):
        inner, kind = _describe_type(next(each for each in arguments if each is not types.NoneType))
        return inner, f"{kind}, or none"
    if typing.get_origin(plain) is tuple:
        inner, kind = _describe_type(arguments[0])
        return inner, f"list of {kind}s"
    if issubclass(plain, Struct):
        return plain, "object"
    if issubclass(plain, StrEnum):
        return None, "one of " + ", ".join(f"`{each}`" for each in plain)
    return None, {str: "string", bool: "yes or no", int: "number"}[plain]


_SECTION_DESCRIPTIONS = {
    "identity": "the instructions in the agent's definition; else `You are NAME. DESCRIPTION`; else a default sentence",
    "instance": "what the server is, how messages reach the agent, and the agent's permission level",
    "subagent": "for a subagent: role, task, rules, what to return, what not to do, and the session",
    "tools": "one line for each tool that the agent can call",
    "call_style": "how to make tool calls",
    "commands": "the `retinue` command, if the agent's commands can reach the server",
    "skills": "the agent's skills, and where to read them",
    "memory_recall": "that the agent should search its memory before it answers; only with the tool `memory_search`",
    "model_aliases": "aliases of models",
    "workspace": "the workspace and the agent directory",
    "documentation": "where the documentation of the server is",
    "sandbox": "the sandbox in which the agent's commands run",
    "user_identity": "who the owner is, and how to recognize their messages",
    "time": "the time zone; not the current time",
    "messaging": "when to use `message`, and when not",
    "message_context": "how to read the context line of the web app",
    "panels": "the open panels, by id",
    "agents": "which other agents the agent can write to, how, and what to do with their results",
    "plugins": "texts that plugins add",
    "context": "extra text that was sent with the message, for this run only",
    "reasoning_format": "that thinking goes between tags; only if thinking is shown and the model has no thinking mode",
    "files": "the instruction files (`SOUL.md` and others); in minimal mode only `AGENTS.md` and `TOOLS.md`",
    "context_files": "the files named in the agent's field `context_files`",
    "memory": "`internal_space/MEMORY.md` and the two newest daily files, and how to save notes",
    "silent_replies": "what to reply if no answer should be sent",
    "heartbeats": "the purpose of a heartbeat; empty in all other conversations",
    "runtime": "one line about the machine, model and channel, and one about whether thinking is shown",
}

if __name__ == "__main__":
    main()
