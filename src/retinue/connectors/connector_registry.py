"""The registry of platforms: the built-in ones, imported by name on first use, and those of
plugins.

A well-known platform that is not supported is refused by name, with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module

from retinue.config.connectors import ABSENT, BUILT_IN, NAMES
from retinue.connectors.base import ConnectorKind
from retinue.domain.errors import NotFound, RetinueError


class KindBroken(RetinueError):
    """A platform cannot be imported. The server continues without it."""

    code = "connector.kind-broken"


def built_in(name: str) -> ConnectorKind:
    """Import and return one of the built-in platforms."""
    try:
        kind: object = getattr(import_module(BUILT_IN[name]), "KIND", None)
    except ImportError as error:
        raise KindBroken(
            f"the connector '{name}' cannot be brought in",
            because=f"a part of it is missing: {error}",
            try_this="install the house again, whole",
        ) from error
    if not isinstance(kind, ConnectorKind):
        raise KindBroken(f"the connector '{name}' has no KIND", because="its module is not whole")
    return kind


class Kinds:
    """The platforms available now. The set changes as plugins are loaded and unloaded."""

    def __init__(self, brought: Callable[[], Mapping[str, ConnectorKind]] = dict[str, ConnectorKind]) -> None:
        self._brought = brought

    @property
    def names(self) -> tuple[str, ...]:
        return (*NAMES, *self._brought())

    def find(self, name: str) -> ConnectorKind:
        if name in BUILT_IN:
            return built_in(name)
        if (kind := self._brought().get(name)) is not None:
            return kind
        if (why := ABSENT.get(name)) is not None:
            raise NotFound(
                f"there is no connector to {name} here",
                because=why,
                try_this=f"one of: {', '.join(self.names)}",
                code="connector.kind-absent",
            )
        raise NotFound(
            f"there is no kind of connector '{name[:64]}'",
            because=f"there are {', '.join(self.names)}",
            try_this="choose one of those, or load the plug-in that brings it",
            code="connector.kind-unknown",
        )
