"""Agent settings that are not supported yet. The error for such a setting says so, instead of "unknown key"."""

from __future__ import annotations

from collections.abc import Mapping

from retinue.config.errors import FaultCollector, KeyPath

NOT_YET_CODE = "config.not_supported"
SECTIONS = frozenset({"agents", "templates", "defaults"})

UNSUPPORTED_KEYS: Mapping[str, tuple[str, str]] = {
    "memory_search": ("memory search", "which needs an index that this version does not have"),
    "human_delay": ("pauses between messages", "which you can set in [replies] or for a connector"),
    "group_chat": ("behavior in groups", "which you can set for a connector"),
    "cli_backends": ("models that run as a local program", "for which there are no runners yet"),
}
"""For each unsupported key: what it would configure, and how to configure it instead, if that is possible."""


def report_unsupported_key(key: str, path: KeyPath, faults: FaultCollector) -> bool:
    """Report a key, in any spelling, that is known but not supported. Returns whether it was reported."""
    known = {_normalize_key(name): what for name, what in UNSUPPORTED_KEYS.items()}.get(_normalize_key(key))
    if known is None:
        return False
    what, part = known
    faults.add(
        (*path, key),
        "is not supported yet",
        because=f"it would configure {what}, {part}",
        try_this="remove it",
        code=NOT_YET_CODE,
    )
    return True


def _normalize_key(key: str) -> str:
    return key.casefold().replace("_", "").replace("-", "")
