"""The plugin API: packages that add tools, operations, connectors, models, runners, prompt sections
and policies.

Everything that a plugin author needs is exported here. `registry`, `discovery` and `lifecycle` are
the server's side.
"""

from __future__ import annotations

from retinue.plugins.base import GROUP, Host, Manifest, NoSettings, Plugin, PluginFailed, Scene, Section

__all__ = ["GROUP", "Host", "Manifest", "NoSettings", "Plugin", "PluginFailed", "Scene", "Section"]
