"""Defines a skill, a folder with a SKILL.md, and parses it. `skill_discovery` reads the files."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any, cast

from msgspec import Struct

from retinue.agents.skill_front_matter import split
from retinue.domain.errors import Invalid
from retinue.domain.storable_text import is_storable

FILE = "SKILL.md"
NAME_LENGTH_MAX = 64
DESCRIPTION_LENGTH_MAX = 1024
GATE_NAMES_MAX = 32  # in each list of requirements
GATE_NAME_LENGTH_MAX = 128
DISPATCH_ARGUMENT = "command"

_NAME = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
_OTHER_HOUSES = ("retinue", "openclaw", "clawdbot", "crocbot")  # projects that put requirements under `metadata`
_TOOL = re.compile(r"[A-Za-z_][A-Za-z0-9_:.-]{0,127}")
_SYSTEMS = {"macos": "darwin", "osx": "darwin", "windows": "win32"}


class Source(StrEnum):
    """Where a skill was found, in order of precedence: of two with the same name, the first is used."""

    WORKSPACE = "workspace"
    AGENT = "agent"  # in the agent directory
    HOUSE = "house"  # in RETINUE_HOME/skills
    PLUGIN = "plugin"
    EXTRA = "extra"  # in a folder from the settings


PRECEDENCE = {source: rank for rank, source in enumerate(Source)}


class Gates(Struct, frozen=True, kw_only=True):
    """The requirements of a skill or hook. `always` overrides all others."""

    always: bool = False
    os: tuple[str, ...] = ()
    bins: tuple[str, ...] = ()
    any_bins: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    config: tuple[str, ...] = ()


NO_GATES = Gates()


class Surroundings(Struct, frozen=True, kw_only=True):
    """The facts that requirements are checked against, passed by the caller."""

    os: str  # as in `sys.platform`
    has_bin: Callable[[str], bool]
    has_env: Callable[[str], bool]
    has_config: Callable[[str], bool]


class Front(Struct, frozen=True, kw_only=True):
    """The parsed content of a SKILL.md."""

    name: str
    description: str
    body: str
    gates: Gates = NO_GATES
    for_models: bool = True  # False: only a person can call it, and it is not in the prompt
    for_people: bool = True  # False: it has no slash command
    tool: str = ""  # its command calls this tool directly, without a model
    argument: str = DISPATCH_ARGUMENT  # the tool's argument that gets the text after the command
    bundle: str = ""  # the noun of the operations that its command line calls


class Skill(Struct, frozen=True, kw_only=True):
    """One skill, as it is on disk now. `hash` covers every file in its folder.

    `content` is the text that a person reviews, if it was requested.
    """

    front: Front
    source: Source
    owner: str  # an agent, a plugin or a folder; empty for the instance
    folder: Path
    hash: str
    content: str = ""

    @property
    def name(self) -> str:
        return self.front.name

    @property
    def file(self) -> Path:
        return self.folder / FILE

    @property
    def key(self) -> str:
        """The key of its approval: a skill of the same name from another owner has another key."""
        return "/".join(filter(None, (self.source.value, self.owner, self.name)))


def parse(text: str, *, folder: str) -> Front:
    """Parse a SKILL.md from a folder of this name."""
    said, body = split(text)
    name = said.get("name")
    if not isinstance(name, str) or len(name) > NAME_LENGTH_MAX or not _NAME.fullmatch(name):
        raise _invalid(
            "its name does not fit",
            f"a name has at most {NAME_LENGTH_MAX} small letters and digits, with single hyphens between them",
        )
    if name != folder:
        raise _invalid(f"its name is '{name}'", "a skill has the name of its folder")
    description = said.get("description")
    if not isinstance(description, str) or not 0 < len(description.strip()) <= DESCRIPTION_LENGTH_MAX:
        raise _invalid("its description does not fit", f"a description has 1 to {DESCRIPTION_LENGTH_MAX} characters")
    if not is_storable(text):
        raise _invalid("it is no plain text", "it holds a NUL or half a character")
    own = _own(said)
    return Front(
        name=name,
        description=" ".join(description.split()),
        body=body,
        gates=_gates(own),
        for_models=not _flag(said, "disable-model-invocation"),
        for_people=_flag(said, "user-invocable", default=True),
        tool=_dispatched(said),
        argument=_word(said, "command-argument") or DISPATCH_ARGUMENT,
        bundle=_bundle(own),
    )


def gated(gates: Gates, here: Surroundings) -> str:
    """Return the first requirement that is not met; an empty string if all are."""
    if gates.always:
        return ""
    if gates.os and here.os not in gates.os:
        return f"it is for {', '.join(gates.os)}, and this is {here.os}"
    if missing := [name for name in gates.bins if not here.has_bin(name)]:
        return f"the command {missing[0]} is not installed"
    if gates.any_bins and not any(map(here.has_bin, gates.any_bins)):
        return f"none of the commands {', '.join(gates.any_bins)} is installed"
    if missing := [name for name in gates.env if not here.has_env(name)]:
        return f"{missing[0]} is not set for it"
    if missing := [path for path in gates.config if not here.has_config(path)]:
        return f"the setting {missing[0]} is not on"
    return ""


def gates_of(said: Mapping[str, Any]) -> tuple[Gates, Mapping[str, Any]]:
    """Return the requirements in front matter, and the merged front matter. Used by hooks too."""
    own = _own(said)
    return _gates(own), own


def _own(said: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the front matter merged with the `metadata` entry of a known project, if there is one."""
    metadata = said.get("metadata")
    if isinstance(metadata, dict):
        for house in _OTHER_HOUSES:
            theirs = cast("dict[str, Any]", metadata).get(house)
            if isinstance(theirs, dict):
                return {**said, **cast("dict[str, Any]", theirs)}
    return said


def _gates(said: Mapping[str, Any]) -> Gates:
    requires: object = said.get("requires") or {}
    if not isinstance(requires, dict):
        raise _invalid("`requires` does not fit", "it has the keys bins, anyBins, env and config")
    needs = cast("dict[str, Any]", requires)
    if unknown := needs.keys() - {"bins", "anyBins", "env", "config"}:
        # Ignoring an unknown requirement would treat it as met.
        raise _invalid(f"`requires.{min(unknown)}` is not known", "it has the keys bins, anyBins, env and config")
    return Gates(
        always=_flag(said, "always"),
        os=tuple(_SYSTEMS.get(name.casefold(), name.casefold()) for name in _names(said.get("os"), "os")),
        bins=_names(needs.get("bins"), "requires.bins"),
        any_bins=_names(needs.get("anyBins"), "requires.anyBins"),
        env=_names(needs.get("env"), "requires.env"),
        config=_names(needs.get("config"), "requires.config"),
    )


def _names(value: object, key: str) -> tuple[str, ...]:
    if value is None or value == "":
        return ()
    words = [value] if isinstance(value, str) else value
    if not isinstance(words, list):
        raise _invalid(f"`{key}` does not fit", "it is a list of names")
    names = cast("Sequence[object]", words)
    if len(names) > GATE_NAMES_MAX or not all(_is_gate_name(name) for name in names):
        raise _invalid(f"`{key}` does not fit", f"it has at most {GATE_NAMES_MAX} names, without blanks or slashes")
    return tuple(map(str, names))


def _is_gate_name(name: object) -> bool:
    return (
        isinstance(name, str)
        and 0 < len(name) <= GATE_NAME_LENGTH_MAX
        and name.isprintable()
        and not re.search(r"[\s/\\]", name)
    )


def _dispatched(said: Mapping[str, Any]) -> str:
    """Return the tool that the skill's command calls directly; an empty string if there is none."""
    how, tool = _word(said, "command-dispatch"), _word(said, "command-tool")
    if how not in ("", "tool"):
        raise _invalid("`command-dispatch` does not fit", "it is `tool`, or left out")
    if bool(how) != bool(tool):
        raise _invalid("its command goes nowhere", "`command-dispatch: tool` and `command-tool: NAME` stand together")
    if _word(said, "command-arg-mode") not in ("", "raw"):
        raise _invalid("`command-arg-mode` does not fit", "words are handed on as they are: it is `raw`")
    return tool


def _word(said: Mapping[str, Any], key: str) -> str:
    value = said.get(key, "")
    if not isinstance(value, str) or (value and not _TOOL.fullmatch(value)):
        raise _invalid(f"`{key}` does not fit", "it is one word")
    return value


def _flag(said: Mapping[str, Any], key: str, *, default: bool = False) -> bool:
    value = said.get(key, default)
    if not isinstance(value, bool):
        raise _invalid(f"`{key}` does not fit", "it is true or false")
    return value


def _bundle(said: Mapping[str, Any]) -> str:
    value = said.get("bundle", "")
    if not isinstance(value, str) or (value and not _NAME.fullmatch(value)):
        raise _invalid("`bundle` does not fit", "it is the name of a group of operations")
    return value


def _invalid(sentence: str, because: str) -> Invalid:
    return Invalid(
        f"this skill cannot be used: {sentence}",
        because=because,
        try_this="correct its SKILL.md",
        code="skill.invalid",
    )
