"""A skill: a folder with a SKILL.md that says how something is done. Parsed here, and read by `skills_finding`."""

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
GATE_NAMES_MAX = 32  # in each list of what a skill requires
GATE_NAME_LENGTH_MAX = 128
DISPATCH_ARGUMENT = "command"

_NAME = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
_OTHER_HOUSES = ("retinue", "openclaw", "clawdbot", "crocbot")  # who keeps gates under `metadata`
_TOOL = re.compile(r"[A-Za-z_][A-Za-z0-9_:.-]{0,127}")
_SYSTEMS = {"macos": "darwin", "osx": "darwin", "windows": "win32"}


class Source(StrEnum):
    """Where a skill was found. Of two with one name, the one whose source stands first here is used."""

    WORKSPACE = "workspace"
    AGENT = "agent"  # in the agent's home
    HOUSE = "house"  # in RETINUE_HOME/skills
    PLUGIN = "plugin"
    EXTRA = "extra"  # in a folder that the settings name


PRECEDENCE = {source: rank for rank, source in enumerate(Source)}


class Gates(Struct, frozen=True, kw_only=True):
    """What must be so for a skill to be of use. `always`: whatever else is asked for, it is."""

    always: bool = False
    os: tuple[str, ...] = ()
    bins: tuple[str, ...] = ()
    any_bins: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    config: tuple[str, ...] = ()


NO_GATES = Gates()


class Surroundings(Struct, frozen=True, kw_only=True):
    """What gates are held against: facts that the caller brings."""

    os: str  # as `sys.platform` says it
    has_bin: Callable[[str], bool]
    has_env: Callable[[str], bool]
    has_config: Callable[[str], bool]


class Front(Struct, frozen=True, kw_only=True):
    """What a SKILL.md says of itself."""

    name: str
    description: str
    body: str
    gates: Gates = NO_GATES
    for_models: bool = True  # False: a person calls for it, and no model is told of it
    for_people: bool = True  # False: it is no command of its own
    tool: str = ""  # what a person writes behind its command goes straight to this tool, and no model is asked
    argument: str = DISPATCH_ARGUMENT  # as this argument of it
    bundle: str = ""  # the operations whose command line lies beside it


class Skill(Struct, frozen=True, kw_only=True):
    """One skill as it lies on disk now. `hash` is over every file in its folder.

    `content` is what a person is shown of it, where someone is to be.
    """

    front: Front
    source: Source
    owner: str  # whose place it lies in: an agent, a plug-in, a folder; empty in the house's own
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
        """What it is found good under: another's skill of the same name is another."""
        return "/".join(filter(None, (self.source.value, self.owner, self.name)))


def parse(text: str, *, folder: str) -> Front:
    """Read a SKILL.md that lies in a folder of this name."""
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
    """Why a skill is of no use here; empty where it is."""
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
    """What front matter requires, and what else it says for a house such as this one: hooks are gated alike."""
    own = _own(said)
    return _gates(own), own


def _own(said: Mapping[str, Any]) -> Mapping[str, Any]:
    """Gates stand at the top, or under `metadata` in the name of a house that knows them."""
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
        # A gate that we passed over would be a gate that stands open.
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
    """The tool that its command is handed to, where it is handed to one."""
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
