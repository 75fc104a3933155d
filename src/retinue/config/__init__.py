"""Reads settings files and environment variables into typed settings. `settings_loader` reads the files.

`retinue.config.file_writer` changes a settings file and keeps its comments. The rest of the package does not import
that module, because it imports tomlkit, which most servers never need.
"""

from __future__ import annotations

from retinue.config.declarations import Declarations, choose_default_agent, normalize_id
from retinue.config.errors import InvalidSettings, SettingFault
from retinue.config.secret import SecretReference
from retinue.config.settings import SettingEffect, Settings
from retinue.config.settings_diff import SettingChange, diff_configurations
from retinue.config.settings_loader import (
    Configuration,
    ExaminedSettings,
    ReloadResult,
    examine_configuration,
    hash_settings_text,
    load_configuration,
    load_settings,
    reload_configuration,
)

__all__ = [
    "Configuration",
    "Declarations",
    "ExaminedSettings",
    "InvalidSettings",
    "ReloadResult",
    "SecretReference",
    "SettingChange",
    "SettingEffect",
    "SettingFault",
    "Settings",
    "choose_default_agent",
    "diff_configurations",
    "examine_configuration",
    "hash_settings_text",
    "load_configuration",
    "load_settings",
    "normalize_id",
    "reload_configuration",
]
