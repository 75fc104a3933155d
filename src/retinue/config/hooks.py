"""Hooks: local programs of the owner that run after an event."""

from __future__ import annotations

from dataclasses import dataclass

from retinue.config.setting_metadata import SettingEffect, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class HookSettings:
    """Hooks: folders with a HOOK.md and a program that runs in the sandbox after an event."""

    enabled: bool = setting(False, "Whether hooks run. Each hook must also be enabled: `retinue hook enable`.")
    deny: tuple[str, ...] = setting((), "Hooks that never run, as globs.", effect=SettingEffect.MESSAGE)
    folders: tuple[str, ...] = setting(
        (),
        "Workspaces whose `hooks` folder is also searched, relative to the data directory.",
        effect=SettingEffect.MESSAGE,
    )
    timeout_s: float = setting(
        10.0, "Maximum duration of one hook, in seconds.", effect=SettingEffect.MESSAGE, least=0.1, most=300
    )
