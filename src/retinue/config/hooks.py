"""Hooks: local programs of the owner that run after an event."""

from __future__ import annotations

from dataclasses import dataclass

from retinue.config.setting_metadata import Effect, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class HookSettings:
    """Folders with a HOOK.md and a handler that runs in the sandbox after an event."""

    enabled: bool = setting(
        False, "Whether any hook is run. Each one must be found good beside: `retinue hook enable`."
    )
    deny: tuple[str, ...] = setting(
        (), "Hooks that are not run, as globs, whatever else says so.", effect=Effect.MESSAGE
    )
    folders: tuple[str, ...] = setting(
        (), "Workspaces whose `hooks` folder is looked through too; from the home if relative.", effect=Effect.MESSAGE
    )
    timeout_s: float = setting(10.0, "How long one hook may take.", effect=Effect.MESSAGE, least=0.1, most=300)
