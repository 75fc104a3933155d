"""Errors of the operations on plugins."""

from __future__ import annotations

from retinue.domain.errors import Conflict, Invalid, NotFound
from retinue.domain.shared_errors import shorten_name


class PluginsUnavailable(NotFound):
    """This server has no plugin support."""

    code = "plugin.none"

    def __init__(self) -> None:
        super().__init__(
            "this server has no plugins",
            because="it was started without plugin support",
            try_this="start it with: retinue run",
        )


class PluginInstanceNameInvalid(Invalid):
    """A plugin instance cannot have this name. `wrong` is the reason."""

    code = "plugin.name_invalid"

    def __init__(self, name: str, *, wrong: str) -> None:
        super().__init__(
            f"invalid name for a plugin instance: '{shorten_name(name)}'",
            because=f"it {wrong}",
            try_this="choose a name such as diary-work",
        )


class PluginInstanceNotFound(NotFound):
    """The settings have no plugin instance with this name."""

    code = "plugin.instance_not_found"

    def __init__(self, name: str) -> None:
        shown = shorten_name(name)
        super().__init__(
            f"no plugin instance named '{shown}'",
            because=f"the settings have no section [plugins.{shown}]",
            try_this=f"add it: retinue plugin enable {shown}",
        )


class PluginNotFound(NotFound):
    """No plugin with this name is installed or named in the settings."""

    code = "plugin.not_found"

    def __init__(self, name: str) -> None:
        super().__init__(
            f"no plugin named '{shorten_name(name)}'",
            because="none is installed under this name, and the settings do not name it",
            try_this="list the plugins: retinue plugin list",
        )


class PluginSettingsTooDeep(Invalid):
    """The settings of a plugin have too many nested tables."""

    code = "plugin.settings_too_deep"

    def __init__(self, *, depth_max: int) -> None:
        super().__init__(
            "the settings of the plugin are nested too deeply",
            because=f"the limit is {depth_max} levels",
            try_this="use fewer levels",
        )


class PluginSettingsUnwritable(Conflict):
    """The settings of a plugin cannot be written, because the settings file would then contain different ones."""

    code = "plugin.settings_unwritable"

    def __init__(self, instance: str, *, file: str) -> None:
        super().__init__(
            f"the settings of '{instance}' cannot be written to the settings file",
            because="in the settings file, a list of tables with an `id` or a `name` is merged, not replaced",
            try_this=f"edit [plugins.{instance}.settings] in {file}",
        )
