"""Settings: text and environment in, types or errors out. Only a thin layer reads files.

`retinue.config.file_writer` changes a file and keeps its comments. It is not imported here because
it needs tomlkit.
"""

from __future__ import annotations

from retinue.config.declarations import Staff, default_agent, normal_id
from retinue.config.errors import BadConfig, Fault
from retinue.config.loader import (
    Configuration,
    Examined,
    Reloaded,
    examine,
    from_environment,
    load,
    reload,
    text_hash,
)
from retinue.config.secret import Secret
from retinue.config.settings import Effect, Settings
from retinue.config.settings_diff import Change, diff

__all__ = [
    "BadConfig",
    "Change",
    "Configuration",
    "Effect",
    "Examined",
    "Fault",
    "Reloaded",
    "Secret",
    "Settings",
    "Staff",
    "default_agent",
    "diff",
    "examine",
    "from_environment",
    "load",
    "normal_id",
    "reload",
    "text_hash",
]
