"""Who else is here: packages that bring tools, operations, connectors, models, runners, prompt sections and policies.

What someone who writes one needs is here; `registry`, `loading` and `guests` are the house's side of it.
"""

from __future__ import annotations

from retinue.plugins.base import GROUP, Host, Manifest, NoSettings, Plugin, PluginFailed, Scene, Section

__all__ = ["GROUP", "Host", "Manifest", "NoSettings", "Plugin", "PluginFailed", "Scene", "Section"]
