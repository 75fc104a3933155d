"""Skill settings (where skills are found and which are used) and plugin settings."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, ClassVar, cast

from retinue.config.secret import Secret
from retinue.config.setting_metadata import Effect, setting

ENV_NAME_LENGTH_MAX = 128
PLUGIN_NAME_LENGTH_MAX = 64

_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PLUGIN_NAME = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
# Variables that decide which program runs, or for whom, cannot be set for a skill.
_NOT_FOR_SKILLS = frozenset({"PATH", "HOME", "SHELL", "IFS", "ENV", "BASH_ENV", "PYTHONPATH", "PYTHONSTARTUP"})
_NOT_FOR_SKILLS_BEGIN = ("LD_", "DYLD_", "RETINUE_")


def env_name(text: str) -> str | None:
    """Check the name of an environment variable for a skill's commands."""
    if len(text) > ENV_NAME_LENGTH_MAX or not _ENV_NAME.fullmatch(text):
        return "is not the name of an environment variable"
    if text in _NOT_FOR_SKILLS or text.startswith(_NOT_FOR_SKILLS_BEGIN):
        return "cannot be set for a skill: it says which programs run, or for whom"
    return None


def plugin_name(text: str) -> str | None:
    """Check the name of a plugin or plugin instance. It names a folder and a CLI noun."""
    if len(text) <= PLUGIN_NAME_LENGTH_MAX and _PLUGIN_NAME.fullmatch(text):
        return None
    return f"must have at most {PLUGIN_NAME_LENGTH_MAX} small letters and digits, with single hyphens between them"


class Exposure(StrEnum):
    """How an agent uses operations: as tools, through the command lines of skills, or either."""

    TOOLS = "tools"
    SKILLS = "skills"
    MIXED = "mixed"


class Trusted(StrEnum):
    """Sources whose skills may be used without an approval."""

    WORKSPACE = "workspace"
    AGENT = "agent"
    HOUSE = "house"
    EXTRA = "extra"


@dataclass(frozen=True, slots=True, kw_only=True)
class SkillLists:
    """Which skills are used, by globs over their names.

    An empty list matches nothing, as in every setting.
    """

    allow: tuple[str, ...] = setting(
        ("*",), "Skills that may be used; an empty list is none.", effect=Effect.MESSAGE, example="weather"
    )
    deny: tuple[str, ...] = setting((), "Skills that may not be used, whatever else says so.", effect=Effect.MESSAGE)
    available: tuple[str, ...] = setting(
        ("*",), "Skills an agent is told of, to be read when they are needed.", effect=Effect.MESSAGE
    )
    inline: tuple[str, ...] = setting((), "Skills an agent is told in full, in every run.", effect=Effect.MESSAGE)
    exposure: Exposure = setting(
        Exposure.TOOLS,
        "How operations are reached: `tools`, `skills` (their command lines), or `mixed`.",
        effect=Effect.MESSAGE,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Variable:
    """The value of a variable: a text, or where a secret is.

    A name that looks secret allows only the latter.
    """

    SHORT: ClassVar[str] = "value"

    value: str | None = setting(None, "The words themselves.", effect=Effect.MESSAGE)
    env: str | None = setting(None, "The variable of the house that holds it.", effect=Effect.MESSAGE)
    file: Path | None = setting(None, "The file that holds it.", effect=Effect.MESSAGE)

    def read(self, environment: Mapping[str, str]) -> str:
        return self.value if self.value is not None else Secret(env=self.env, file=self.file).read(environment)


@dataclass(frozen=True, slots=True, kw_only=True)
class SkillEntry:
    """Settings of one skill."""

    enabled: bool = setting(True, "Whether it is used at all.", effect=Effect.MESSAGE)
    env: Mapping[str, Variable | Secret] = setting(
        cast("Mapping[str, Variable | Secret]", {}),
        "Variables for the commands of a run that has this skill, and for nothing else.",
        effect=Effect.MESSAGE,
        check=env_name,
        example="WEATHER_KEY",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SkillSettings(SkillLists):
    """Folders with a SKILL.md that explain to an agent how to do something."""

    folders: tuple[str, ...] = setting(
        (), "Further folders in which skills lie; from the home if relative.", effect=Effect.MESSAGE
    )
    trusted: tuple[Trusted, ...] = setting(
        (),
        "Places whose skills are used without being looked at: `house`, `extra`, `agent`, `workspace`.",
        effect=Effect.MESSAGE,
    )
    entries: Mapping[str, SkillEntry] = field(default_factory=dict[str, SkillEntry])
    agents: Mapping[str, SkillLists] = field(default_factory=dict[str, SkillLists])


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginSettings:
    """One instance of a plugin."""

    plugin: str | None = setting(
        None, "Which plug-in it is. Not set: the one of this name.", check=plugin_name, example="diary"
    )
    enabled: bool = setting(True, "Whether it is loaded.")
    settings: Mapping[str, Any] = setting(
        cast("Mapping[str, Any]", {}), "What the plug-in itself can be told; it says what that is."
    )
