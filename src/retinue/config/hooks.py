"""Hooks: local programs of the owner that run after an event."""

from __future__ import annotations

from dataclasses import dataclass

from retinue.config.setting_metadata import SettingEffect, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class HookSettings:
    """Hooks: your own programs, which run in the sandbox after an event. Each has a folder with a file HOOK.md."""

    enabled: bool = setting(False, "Whether hooks run. Each hook must also be enabled, with `retinue hook enable`.")
    deny: tuple[str, ...] = setting((), "Hooks that never run, as globs for their names.", effect=SettingEffect.MESSAGE)
    folders: tuple[str, ...] = setting(
        (),
        "Workspaces whose `hooks` folder contains hooks. Paths are relative to the data directory.",
        effect=SettingEffect.MESSAGE,
    )
    timeout_s: float = setting(
        10.0,
        "Maximum duration of one run of a hook, in seconds. After that, the hook is killed.",
        effect=SettingEffect.MESSAGE,
        least=0.1,
        most=300,
    )
