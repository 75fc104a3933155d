"""Errors of plugins that cannot be loaded, that register an invalid part, or that fail later."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from retinue.domain.errors import Conflict, Invalid, NotFound, RetinueError
from retinue.tools.base import ToolFailed

_TELL_AUTHOR = "report it to the author of the plugin"


class PluginFailed(RetinueError):
    """A plugin could not be loaded. The server continues without it."""

    code = "plugin.failed"


# --- loading ---


class PluginCallFailed(PluginFailed):
    """Code of a plugin raised an error. If that error has a code, this error has the same code."""

    def __init__(self, action: str, *, because: str, try_this: str = "", code: str = PluginFailed.code) -> None:
        super().__init__(
            f"{action} failed",
            because=because,
            try_this=try_this or f"read the log: retinue logs; or {_TELL_AUTHOR}",
            code=code,
        )


class PluginTimeout(PluginFailed):
    """Code of a plugin did not return in time."""

    code = "plugin.timeout"

    def __init__(self, action: str, *, timeout_s: float) -> None:
        super().__init__(
            f"{action} timed out",
            because=f"the plugin did not return within {timeout_s:g} s",
            try_this="find out what the plugin is waiting for, then: retinue plugin reload NAME",
        )


class PluginAmbiguous(PluginFailed):
    """Several installed packages have a plugin of the same name."""

    code = "plugin.ambiguous"

    def __init__(self, plugin: str, *, entry_points: Sequence[str]) -> None:
        super().__init__(
            f"{len(entry_points)} installed packages have a plugin named '{plugin}'",
            because=f"they are {', '.join(entry_points)}",
            try_this="uninstall all but one of these packages",
        )


class PluginEntryPointInvalid(PluginFailed):
    """The entry point of a plugin does not refer to a `Plugin` object."""

    code = "plugin.entry_point_invalid"

    def __init__(self, plugin: str) -> None:
        super().__init__(
            f"'{plugin}' is not a plugin",
            because="its entry point does not refer to a Plugin object",
            try_this=_TELL_AUTHOR,
        )


class PluginManifestInvalid(PluginFailed):
    """The manifest of a plugin is invalid."""

    code = "plugin.manifest_invalid"

    def __init__(self, plugin: str, *, because: str) -> None:
        super().__init__(f"invalid manifest of plugin '{plugin}'", because=because, try_this=_TELL_AUTHOR)


class PluginFolderUnsafe(PluginFailed):
    """The path for the data folder of a plugin is not a folder, or belongs to another user."""

    code = "plugin.folder_unsafe"

    def __init__(self, folder: Path) -> None:
        super().__init__(
            f"{folder} cannot be the data folder of a plugin",
            because="it is not a folder, or belongs to another user",
            try_this="move it to another place",
        )


class TooManyBackgroundTasks(PluginFailed):
    """An instance of a plugin has more background tasks than the limit."""

    code = "plugin.too_many_tasks"

    def __init__(self, *, tasks_max: int) -> None:
        super().__init__(
            "too many background tasks",
            because=f"the limit is {tasks_max} for each plugin instance",
            try_this="combine several tasks into one",
        )


class PluginNotInstalled(NotFound):
    """No installed package contains this plugin."""

    code = "plugin.not_installed"

    def __init__(self, plugin: str, *, installed: Iterable[str]) -> None:
        super().__init__(
            f"no plugin named '{plugin[:64]}' is installed",
            because=f"installed plugins: {', '.join(installed) or 'none'}",
            try_this="install its package in the environment of the server, then restart the server",
        )


class PluginSettingsRejected(Invalid):
    """The settings of a plugin do not match the settings that the plugin declares."""

    code = "plugin.settings_invalid"

    def __init__(self, plugin: str, *, because: str) -> None:
        super().__init__(
            f"invalid settings of plugin '{plugin}'",
            because=because,
            try_this=f"show them: retinue plugin settings {plugin}; "
            f"or correct [plugins.{plugin}.settings] in the settings file",
        )


# --- registering ---


class PluginEntryInvalid(Invalid):
    """A part that a plugin registers, such as a tool, is invalid."""

    code = "plugin.entry_invalid"

    def __init__(self, entry: str, *, because: str) -> None:
        super().__init__(f"cannot register this {entry}", because=because, try_this=_TELL_AUTHOR)


class PluginNameTaken(Conflict):
    """A part that a plugin registers has the name of an existing part. `owner` is empty if that part is built in."""

    code = "plugin.name_taken"

    def __init__(self, kind: str, name: str, *, owner: str) -> None:
        super().__init__(
            f"a {kind} named '{name}' already exists",
            because=f"it belongs to plugin '{owner}'" if owner else "it is built in",
            try_this="disable one of them, or rename the plugin instance",
        )


class PluginUnloaded(ToolFailed):
    """A tool was called after its plugin was unloaded."""

    code = "plugin.unloaded"

    def __init__(self, tool: str, *, source: str) -> None:
        super().__init__(
            f"the tool '{tool}' is no longer available",
            because=f"{source} was unloaded",
            try_this="continue without it",
        )
