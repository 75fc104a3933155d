"""One thing that can be asked of the house, declared once: every door takes parameters, rights and errors from it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any
from zoneinfo import ZoneInfo

import msgspec

from retinue.domain.address import Address
from retinue.domain.agent import PermissionLevel
from retinue.domain.envelope import Trust
from retinue.domain.ports import Clock, Ids, Post
from retinue.engine.engine import Engine
from retinue.engine.live import Live
from retinue.store.connection import Store
from retinue.store.files import Files


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who asks, as their token proved. Nobody can name another sender."""

    address: Address
    level: PermissionLevel
    trust: Trust


@dataclass(frozen=True, slots=True, kw_only=True)
class Desk:
    """What operations work with."""

    store: Store
    post: Post
    engine: Engine
    live: Live
    clock: Clock
    ids: Ids
    files: Files
    zone: ZoneInfo
    version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """`name` is `noun.verb`; the noun and verb make the route and the command."""

    name: str
    summary: str
    parameters: type[msgspec.Struct]
    handler: Callable[[Desk, Caller, Any], Awaitable[Any]]
    permission: PermissionLevel = PermissionLevel.RESTRICTED
    effect: bool = False

    @property
    def route(self) -> str:
        return "/api/" + self.name.replace(".", "/")


class Nothing(msgspec.Struct, forbid_unknown_fields=True):
    """No parameters."""
