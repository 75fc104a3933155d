"""The registry of platforms: the built-in platforms, and the platforms of plugins.

A built-in platform is imported on first use. For a well-known platform that is not supported, `find`
raises an error with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module

from retinue.config.connectors import BUILT_IN_PLATFORMS, PLATFORM_NAMES, UNSUPPORTED_PLATFORMS
from retinue.connectors.base import Platform
from retinue.connectors.errors import PlatformImportFailed, PlatformNotFound, PlatformNotSupported


def import_built_in(name: str) -> Platform:
    """Import and return one of the built-in platforms."""
    try:
        platform: object = getattr(import_module(BUILT_IN_PLATFORMS[name]), "PLATFORM", None)
    except ImportError as error:
        raise PlatformImportFailed(name, because=f"a module is missing: {error}") from error
    if not isinstance(platform, Platform):
        raise PlatformImportFailed(name, because="its module has no PLATFORM")
    return platform


class PlatformRegistry:
    """The platforms available now. The set changes as plugins are loaded and unloaded."""

    def __init__(self, plugin_platforms: Callable[[], Mapping[str, Platform]] = dict[str, Platform]) -> None:
        self._plugin_platforms = plugin_platforms

    @property
    def names(self) -> tuple[str, ...]:
        return (*PLATFORM_NAMES, *self._plugin_platforms())

    def find(self, name: str) -> Platform:
        if name in BUILT_IN_PLATFORMS:
            return import_built_in(name)
        if (platform := self._plugin_platforms().get(name)) is not None:
            return platform
        if (because := UNSUPPORTED_PLATFORMS.get(name)) is not None:
            raise PlatformNotSupported(name, because=because, supported=self.names)
        raise PlatformNotFound(name, supported=self.names)
