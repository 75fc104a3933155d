"""Where skills are found, and which are used."""

from __future__ import annotations

from dataclasses import dataclass

from retinue.config.rules import Effect, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class SkillSettings:
    """Folders with a SKILL.md that tell an agent how something is done."""

    folders: tuple[str, ...] = setting((), "Further folders in which skills lie.", effect=Effect.MESSAGE)


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginSettings:
    """One instance of a plug-in."""

    enabled: bool = setting(True, "Whether it is loaded.", effect=Effect.RESTART)
