"""The plugin API: packages that add tools, operations, connectors, models, runners, prompt sections
and policies.

Everything that a plugin author needs is exported here. Only the server uses `registry`, `discovery`
and `lifecycle`.
"""

from __future__ import annotations

from retinue.plugins.base import (
    ENTRY_POINT_GROUP,
    NoPluginSettings,
    Plugin,
    PluginHost,
    PluginManifest,
    PluginSection,
    SectionContext,
)
from retinue.plugins.errors import PluginFailed

__all__ = [
    "ENTRY_POINT_GROUP",
    "NoPluginSettings",
    "Plugin",
    "PluginFailed",
    "PluginHost",
    "PluginManifest",
    "PluginSection",
    "SectionContext",
]
