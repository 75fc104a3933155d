"""Defines and parses a skill, which is a folder with a SKILL.md. `skill_discovery` reads the files."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any, cast

from msgspec import Struct

from retinue.agents.errors import SkillInvalid
from retinue.agents.skill_front_matter import split_front_matter
from retinue.domain.storable_text import is_storable

SKILL_FILE = "SKILL.md"
NAME_LENGTH_MAX = 64
DESCRIPTION_LENGTH_MAX = 1024
REQUIREMENT_NAMES_MAX = 32  # in each list of requirements
REQUIREMENT_NAME_LENGTH_MAX = 128
DEFAULT_COMMAND_ARGUMENT = "command"

_NAME = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
_METADATA_KEYS = ("retinue", "openclaw", "clawdbot", "crocbot")  # projects that put requirements under `metadata`
_TOOL_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_:.-]{0,127}")
_PLATFORM_ALIASES = {"macos": "darwin", "osx": "darwin", "windows": "win32"}


class SkillSource(StrEnum):
    """Where a skill was found. If two skills have the same name, the source that is listed first wins."""

    WORKSPACE = "workspace"
    AGENT = "agent"  # in the agent directory
    INSTANCE = "instance"  # in RETINUE_HOME/skills
    PLUGIN = "plugin"
    EXTRA = "extra"  # in a folder from the settings


SOURCE_PRECEDENCE = {source: rank for rank, source in enumerate(SkillSource)}


class HostRequirements(Struct, frozen=True, kw_only=True):
    """What a skill or hook requires of the machine. With `always`, nothing is checked."""

    always: bool = False
    os: tuple[str, ...] = ()
    bins: tuple[str, ...] = ()
    any_bins: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    config: tuple[str, ...] = ()


NO_REQUIREMENTS = HostRequirements()


class HostFacts(Struct, frozen=True, kw_only=True):
    """The facts that requirements are checked against: operating system, environment variables and settings."""

    os: str  # as in `sys.platform`
    has_bin: Callable[[str], bool]
    has_env: Callable[[str], bool]
    has_config: Callable[[str], bool]


class SkillFrontMatter(Struct, frozen=True, kw_only=True):
    """The parsed content of a SKILL.md."""

    name: str
    description: str
    body: str
    requirements: HostRequirements = NO_REQUIREMENTS
    is_for_models: bool = True  # False: only a person can call it, and it is not in the prompt
    is_for_people: bool = True  # False: it has no slash command
    command_tool: str = ""  # its command calls this tool directly, without a model
    command_argument: str = DEFAULT_COMMAND_ARGUMENT  # the tool's argument that gets the text after the command
    bundle: str = ""  # the noun of the operations that its command line calls


class Skill(Struct, frozen=True, kw_only=True):
    """One skill, with its files as they are on disk now. `hash` covers every file in its folder.

    `content` is the text that a person reviews. It is empty unless requested.
    """

    front_matter: SkillFrontMatter
    source: SkillSource
    owner: str  # an agent, a plugin or a folder; empty for the instance
    folder: Path
    hash: str
    content: str = ""

    @property
    def name(self) -> str:
        return self.front_matter.name

    @property
    def file(self) -> Path:
        return self.folder / SKILL_FILE

    @property
    def key(self) -> str:
        """The key under which the skill's approval is stored.

        It includes the agent, plugin or folder to which the skill belongs, so that equal names do not collide.
        """
        return "/".join(filter(None, (self.source.value, self.owner, self.name)))


def parse_skill(text: str, *, folder: str) -> SkillFrontMatter:
    """Parse a SKILL.md. Raises if the name in it is not the name of its folder."""
    said, body = split_front_matter(text)
    name = said.get("name")
    if not isinstance(name, str) or len(name) > NAME_LENGTH_MAX or not _NAME.fullmatch(name):
        raise SkillInvalid(
            f"`name` must have at most {NAME_LENGTH_MAX} lowercase letters and digits, with single hyphens between them"
        )
    if name != folder:
        raise SkillInvalid(f"`name` must be the name of its folder, and not '{name}'")
    description = said.get("description")
    if not isinstance(description, str) or not 0 < len(description.strip()) <= DESCRIPTION_LENGTH_MAX:
        raise SkillInvalid(f"`description` must have 1 to {DESCRIPTION_LENGTH_MAX} characters")
    if not is_storable(text):
        raise SkillInvalid("it is not valid text: it has a NUL byte or a lone surrogate")
    own = _merge_metadata(said)
    return SkillFrontMatter(
        name=name,
        description=" ".join(description.split()),
        body=body,
        requirements=_parse_requirements(own),
        is_for_models=not _parse_flag(said, "disable-model-invocation"),
        is_for_people=_parse_flag(said, "user-invocable", default=True),
        command_tool=_parse_command_tool(said),
        command_argument=_parse_word(said, "command-argument") or DEFAULT_COMMAND_ARGUMENT,
        bundle=_parse_bundle(own),
    )


def unmet_requirement(requirements: HostRequirements, host_facts: HostFacts) -> str:
    """Return the first requirement that this machine does not meet, or an empty string."""
    if requirements.always:
        return ""
    if requirements.os and host_facts.os not in requirements.os:
        return f"it is for {', '.join(requirements.os)}, and this machine has {host_facts.os}"
    if missing := [name for name in requirements.bins if not host_facts.has_bin(name)]:
        return f"the command {missing[0]} is not installed"
    if requirements.any_bins and not any(map(host_facts.has_bin, requirements.any_bins)):
        return f"none of the commands {', '.join(requirements.any_bins)} is installed"
    if missing := [name for name in requirements.env if not host_facts.has_env(name)]:
        return f"the environment variable {missing[0]} is not set for it"
    if missing := [path for path in requirements.config if not host_facts.has_config(path)]:
        return f"the setting {missing[0]} is not enabled"
    return ""


def read_requirements(front_matter: Mapping[str, Any]) -> tuple[HostRequirements, Mapping[str, Any]]:
    """Return the requirements in front matter, and the front matter with its `metadata` merged in.

    Used for hooks too.
    """
    own = _merge_metadata(front_matter)
    return _parse_requirements(own), own


def _merge_metadata(front_matter: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the front matter, merged with the keys of the first known project in `metadata`, such as `openclaw`."""
    metadata = front_matter.get("metadata")
    if isinstance(metadata, dict):
        for project in _METADATA_KEYS:
            theirs = cast("dict[str, Any]", metadata).get(project)
            if isinstance(theirs, dict):
                return {**front_matter, **cast("dict[str, Any]", theirs)}
    return front_matter


def _parse_requirements(front_matter: Mapping[str, Any]) -> HostRequirements:
    requires: object = front_matter.get("requires") or {}
    if not isinstance(requires, dict):
        raise SkillInvalid("`requires` must have the keys bins, anyBins, env and config only")
    needs = cast("dict[str, Any]", requires)
    if unknown := needs.keys() - {"bins", "anyBins", "env", "config"}:
        # Ignoring an unknown requirement would treat it as met.
        raise SkillInvalid(f"`requires.{min(unknown)}` is unknown: the keys are bins, anyBins, env and config")
    return HostRequirements(
        always=_parse_flag(front_matter, "always"),
        os=tuple(
            _PLATFORM_ALIASES.get(name.casefold(), name.casefold())
            for name in _parse_names(front_matter.get("os"), "os")
        ),
        bins=_parse_names(needs.get("bins"), "requires.bins"),
        any_bins=_parse_names(needs.get("anyBins"), "requires.anyBins"),
        env=_parse_names(needs.get("env"), "requires.env"),
        config=_parse_names(needs.get("config"), "requires.config"),
    )


def _parse_names(value: object, key: str) -> tuple[str, ...]:
    if value is None or value == "":
        return ()
    words = [value] if isinstance(value, str) else value
    if not isinstance(words, list):
        raise SkillInvalid(f"`{key}` must be a list of names")
    names = cast("Sequence[object]", words)
    if len(names) > REQUIREMENT_NAMES_MAX or not all(_is_requirement_name(name) for name in names):
        raise SkillInvalid(f"`{key}` must have at most {REQUIREMENT_NAMES_MAX} names, without spaces or slashes")
    return tuple(map(str, names))


def _is_requirement_name(name: object) -> bool:
    return (
        isinstance(name, str)
        and 0 < len(name) <= REQUIREMENT_NAME_LENGTH_MAX
        and name.isprintable()
        and not re.search(r"[\s/\\]", name)
    )


def _parse_command_tool(front_matter: Mapping[str, Any]) -> str:
    """Return the tool that the skill's slash command calls directly, or an empty string."""
    how, tool = _parse_word(front_matter, "command-dispatch"), _parse_word(front_matter, "command-tool")
    if how not in ("", "tool"):
        raise SkillInvalid("`command-dispatch` must be `tool`, or left out")
    if bool(how) != bool(tool):
        raise SkillInvalid("`command-dispatch: tool` and `command-tool: NAME` must be used together")
    if _parse_word(front_matter, "command-arg-mode") not in ("", "raw"):
        raise SkillInvalid("`command-arg-mode` must be `raw`: the text is passed unchanged")
    return tool


def _parse_word(front_matter: Mapping[str, Any], key: str) -> str:
    value = front_matter.get(key, "")
    if not isinstance(value, str) or (value and not _TOOL_NAME.fullmatch(value)):
        raise SkillInvalid(f"`{key}` must be one word")
    return value


def _parse_flag(front_matter: Mapping[str, Any], key: str, *, default: bool = False) -> bool:
    value = front_matter.get(key, default)
    if not isinstance(value, bool):
        raise SkillInvalid(f"`{key}` must be true or false")
    return value


def _parse_bundle(front_matter: Mapping[str, Any]) -> str:
    value = front_matter.get("bundle", "")
    if not isinstance(value, str) or (value and not _NAME.fullmatch(value)):
        raise SkillInvalid("`bundle` must be the name of a group of operations")
    return value
