"""Holds the current configuration, reloads it on request and notifies listeners of changes."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from retinue.config import Configuration, SettingChange, Settings, reload_configuration


class ConfigHolder:
    def __init__(self, current: Configuration, environment: Mapping[str, str]) -> None:
        self.current = current
        self.environment = environment
        self.pending_changes: tuple[SettingChange, ...] = ()  # changes that take effect after a restart
        self._listeners: list[Callable[[Settings], None]] = []

    def on_change(self, listener: Callable[[Settings], None]) -> None:
        self._listeners.append(listener)

    def reload(self) -> tuple[SettingChange, ...]:
        """Read the settings file again and notify listeners. If the file is invalid, raise and change nothing."""
        found = reload_configuration(self.current, self.environment)
        self.current, self.pending_changes = found.configuration, found.pending_restart
        for call in self._listeners:
            call(found.settings)
        return found.changes
