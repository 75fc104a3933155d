"""Keys of an agent that are not supported yet: refused by name, not mistaken for a typo."""

from __future__ import annotations

from collections.abc import Mapping

from retinue.config.errors import Faults, KeyPath

NOT_YET = "config.not-yet"
SECTIONS = frozenset({"agents", "templates", "defaults"})

LATER: Mapping[str, tuple[str, str]] = {
    "memory_search": ("looking things up in memory", "an index of its memory"),
    "human_delay": ("pausing between messages", "doors to chat services"),
    "group_chat": ("manners in groups", "doors to chat services"),
    "cli_backends": ("thinking by a program on this machine", "runners for such programs"),
}
"""What each would set, and the part of the house that brings it."""


def refuse(key: str, path: KeyPath, faults: Faults) -> bool:
    """Report the key if it is such a key, in any spelling. Returns whether it was."""
    known = {_form(name): what for name, what in LATER.items()}.get(_form(key))
    if known is None:
        return False
    what, part = known
    faults.add(
        (*path, key),
        "cannot be set yet",
        because=f"it is about {what}, and comes with {part}, which this version of the house does not have",
        try_this="take it out until then",
        code=NOT_YET,
    )
    return True


def _form(key: str) -> str:
    return key.casefold().replace("_", "").replace("-", "")
