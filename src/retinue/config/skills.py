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
        return "is not a valid name of an environment variable"
    if text in _FORBIDDEN_VARIABLES or text.startswith(_FORBIDDEN_VARIABLE_PREFIXES):
        return "cannot be set for a skill: it controls which programs run, or as which user"
    return None


def check_plugin_name(text: str) -> str | None:
    """Check the name of a plugin or of a plugin instance. A folder and a CLI noun have this name."""
    if len(text) <= PLUGIN_NAME_LENGTH_MAX and _PLUGIN_NAME.fullmatch(text):
        return None
    return f"must have at most {PLUGIN_NAME_LENGTH_MAX} lowercase letters and digits, with single hyphens between them"


class OperationExposure(StrEnum):
    """How an agent uses operations: as tools, through the command lines of skills, or both."""

    TOOLS = "tools"
    SKILLS = "skills"
    MIXED = "mixed"


class TrustedSkillSource(StrEnum):
    """A source of skills that can be trusted. Skills of a trusted source may be used without an approval."""

    WORKSPACE = "workspace"
    AGENT = "agent"
    INSTANCE = "instance"
    EXTRA = "extra"


@dataclass(frozen=True, slots=True, kw_only=True)
class SkillLists:
    """Which skills are used, as glob patterns for their names.

    An empty list matches nothing, as in every setting.
    """

    allow: tuple[str, ...] = setting(
        ("*",),
        "Skills that may be used, as globs. An empty list: none.",
        effect=SettingEffect.MESSAGE,
        example="weather",
    )
    deny: tuple[str, ...] = setting((), "Skills that are never used, as globs.", effect=SettingEffect.MESSAGE)
    available: tuple[str, ...] = setting(
        ("*",),
        "Skills that are listed in the system prompt. The agent reads them when it needs them.",
        effect=SettingEffect.MESSAGE,
    )
    inline: tuple[str, ...] = setting(
        (), "Skills that are included in full in every system prompt.", effect=SettingEffect.MESSAGE
    )
    exposure: OperationExposure = setting(
        OperationExposure.TOOLS,
        "How agents use operations of the server: as `tools`, through commands in `skills`, or both (`mixed`).",
        effect=SettingEffect.MESSAGE,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class VariableValue:
    """The value of an environment variable: a text, or the location of a secret.

    If the name of the variable looks secret, only a location is allowed.
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

    enabled: bool = setting(True, "Whether the skill is enabled.", effect=SettingEffect.MESSAGE)
    env: Mapping[str, VariableValue | SecretReference] = setting(
        cast("Mapping[str, VariableValue | SecretReference]", {}),
        "Environment variables for the commands of runs that use this skill.",
        effect=SettingEffect.MESSAGE,
        check=check_env_name,
        example="WEATHER_KEY",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SkillSettings(SkillLists):
    """Skills: folders with a SKILL.md that explains to an agent how to do something."""

    folders: tuple[str, ...] = setting(
        (), "Additional folders with skills, relative to the data directory.", effect=SettingEffect.MESSAGE
    )
    trusted: tuple[TrustedSkillSource, ...] = setting(
        (),
        "Sources whose skills need no approval: `instance`, `extra` (the skills in `folders`), `agent`, `workspace`.",
        effect=SettingEffect.MESSAGE,
    )
    entries: Mapping[str, SkillEntry] = field(default_factory=dict[str, SkillEntry])
    agents: Mapping[str, SkillLists] = field(default_factory=dict[str, SkillLists])


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginSettings:
    """One instance of a plugin."""

    plugin: str | None = setting(
        None,
        "Name of the installed plugin. Default: the NAME in [plugins.NAME].",
        check=check_plugin_name,
        example="diary",
    )
    enabled: bool = setting(True, "Whether the plugin is loaded.")
    settings: Mapping[str, Any] = setting(cast("Mapping[str, Any]", {}), "Settings that the plugin declares.")
