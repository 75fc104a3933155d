"""Skill settings (where skills are found and which are used) and plugin settings."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, ClassVar, cast

from retinue.config.secret import SecretReference
from retinue.config.setting_metadata import SettingEffect, setting

ENV_NAME_LENGTH_MAX = 128
PLUGIN_NAME_LENGTH_MAX = 64

_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PLUGIN_NAME = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
# Variables that decide which program runs, or for whom, cannot be set for a skill.
_FORBIDDEN_VARIABLES = frozenset({"PATH", "HOME", "SHELL", "IFS", "ENV", "BASH_ENV", "PYTHONPATH", "PYTHONSTARTUP"})
_FORBIDDEN_VARIABLE_PREFIXES = ("LD_", "DYLD_", "RETINUE_")


def check_env_name(text: str) -> str | None:
    """Check the name of an environment variable for a skill's commands."""
    if len(text) > ENV_NAME_LENGTH_MAX or not _ENV_NAME.fullmatch(text):
        return "is not a valid environment variable name"
    if text in _FORBIDDEN_VARIABLES or text.startswith(_FORBIDDEN_VARIABLE_PREFIXES):
        return "cannot be set for a skill: it controls which programs run, or as which user"
    return None


def check_plugin_name(text: str) -> str | None:
    """Check the name of a plugin, which is also the name of its folder and of its CLI noun."""
    if len(text) <= PLUGIN_NAME_LENGTH_MAX and _PLUGIN_NAME.fullmatch(text):
        return None
    return f"must have at most {PLUGIN_NAME_LENGTH_MAX} lowercase letters and digits, with single hyphens between them"


class OperationExposure(StrEnum):
    """How an agent uses operations of the server: as tools, through commands that skills contain, or both."""

    TOOLS = "tools"
    SKILLS = "skills"
    MIXED = "mixed"


class TrustedSkillSource(StrEnum):
    """A source of skills. Skills from a source in `skills.trusted` may be used without approval."""

    WORKSPACE = "workspace"
    AGENT = "agent"
    INSTANCE = "instance"
    EXTRA = "extra"


@dataclass(frozen=True, slots=True, kw_only=True)
class SkillLists:
    """Which skills an agent may use, and how. Each list contains glob patterns for the names of skills.

    An empty list matches no skill.
    """

    allow: tuple[str, ...] = setting(
        ("*",),
        "Skills that may be used, as globs for their names. An empty list: none.",
        effect=SettingEffect.MESSAGE,
        example="weather",
    )
    deny: tuple[str, ...] = setting((), "Skills that are never used, as globs.", effect=SettingEffect.MESSAGE)
    available: tuple[str, ...] = setting(
        ("*",),
        "Skills that the system prompt lists, as globs. The agent reads such a skill when it needs it.",
        effect=SettingEffect.MESSAGE,
    )
    inline: tuple[str, ...] = setting(
        (), "Skills whose full text is in every system prompt, as globs.", effect=SettingEffect.MESSAGE
    )
    exposure: OperationExposure = setting(
        OperationExposure.TOOLS,
        "How agents use operations of the server: as tools (`tools`), through commands that skills contain (`skills`), "
        "or both (`mixed`).",
        effect=SettingEffect.MESSAGE,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class VariableValue:
    """The value of an environment variable: a string, or the location of a secret.

    If the name of the variable suggests a secret, only a location is allowed.
    """

    SHORT: ClassVar[str] = "value"

    value: str | None = setting(None, "Value of the variable.", effect=SettingEffect.MESSAGE)
    env: str | None = setting(
        None, "Environment variable of the server that contains the value.", effect=SettingEffect.MESSAGE
    )
    file: Path | None = setting(None, "File that contains the value.", effect=SettingEffect.MESSAGE)

    def read(self, environment: Mapping[str, str]) -> str:
        return self.value if self.value is not None else SecretReference(env=self.env, file=self.file).read(environment)


@dataclass(frozen=True, slots=True, kw_only=True)
class SkillEntry:
    """Settings of one skill."""

    enabled: bool = setting(True, "Whether the skill may be used.", effect=SettingEffect.MESSAGE)
    env: Mapping[str, VariableValue | SecretReference] = setting(
        cast("Mapping[str, VariableValue | SecretReference]", {}),
        "Environment variables for the commands of runs that use this skill, each with its value or the location of a "
        "secret.",
        effect=SettingEffect.MESSAGE,
        check=check_env_name,
        example="WEATHER_KEY",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SkillSettings(SkillLists):
    """Skills: folders with a file SKILL.md, which contains instructions for agents."""

    folders: tuple[str, ...] = setting(
        (),
        "Additional folders in which to search for skills, relative to the data directory.",
        effect=SettingEffect.MESSAGE,
    )
    trusted: tuple[TrustedSkillSource, ...] = setting(
        (),
        "Sources whose skills need no approval: the instance (`instance`), `folders` (`extra`), the agent directory "
        "(`agent`) and the workspace (`workspace`).",
        effect=SettingEffect.MESSAGE,
    )
    entries: Mapping[str, SkillEntry] = field(default_factory=dict[str, SkillEntry])
    agents: Mapping[str, SkillLists] = field(default_factory=dict[str, SkillLists])


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginSettings:
    """The settings of a plugin. One plugin may have several sections [plugins.NAME], with different names."""

    plugin: str | None = setting(
        None,
        "Name of the installed plugin to load. Default: the NAME in [plugins.NAME].",
        check=check_plugin_name,
        example="diary",
    )
    enabled: bool = setting(True, "Whether the plugin is loaded.")
    settings: Mapping[str, Any] = setting(
        cast("Mapping[str, Any]", {}), "Values for the settings that the plugin declares."
    )
