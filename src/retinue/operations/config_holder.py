"""Holds the current configuration, reloads it on request and notifies listeners of changes."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from retinue.config import Change, Configuration, Settings, reload


class Keeper:
    def __init__(self, current: Configuration, environment: Mapping[str, str]) -> None:
        self.current = current
        self.environment = environment
        self.waiting: tuple[Change, ...] = ()  # changes that take effect after a restart
        self._told: list[Callable[[Settings], None]] = []

    def on_change(self, call: Callable[[Settings], None]) -> None:
        self._told.append(call)

    def reload(self) -> tuple[Change, ...]:
        """Read the file again and notify listeners. Raises BadConfig, and changes nothing, if it is invalid."""
        found = reload(self.current, self.environment)
        self.current, self.waiting = found.configuration, found.waiting
        for call in self._told:
            call(found.settings)
        return found.changes
