"""Bindings: which agent answers where."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

BROADCAST_MAX = 16  # agents that may answer in one room


class PeerKind(StrEnum):
    """What kind of room a peer is; a binding that names none fits every kind."""

    DM = "dm"
    GROUP = "group"
    CHANNEL = "channel"


class MatchedBy(StrEnum):
    """Why it is this agent that answers: the first of these that fits, in this order."""

    PEER = "peer"
    PARENT = "parent-peer"
    GUILD = "guild"
    TEAM = "team"
    ACCOUNT = "account"
    CHANNEL = "channel"
    DEFAULT = "default"


class Match(Struct, frozen=True, kw_only=True):
    """What a binding is for. What is empty is not asked for: no account means every account of the connector.

    `connector` is a kind, such as `telegram`, or the name of one instance of it; `account` is an instance.
    """

    connector: str
    account: str = ""
    peer_kind: PeerKind | None = None
    peer: str = ""
    parent: str = ""
    guild: str = ""
    team: str = ""

    @property
    def whole_account(self) -> bool:
        """Whether it is for everything said at an account, or at all of them."""
        return not (self.peer_kind or self.peer or self.parent or self.guild or self.team)


class Binding(Struct, frozen=True, kw_only=True):
    """`agent` answers there; so does each of `also`, for itself."""

    id: str
    agent: str
    match: Match
    also: tuple[str, ...] = ()
    made_by: str = ""

    @property
    def agents(self) -> tuple[str, ...]:
        return (self.agent, *self.also)


class Place(Struct, frozen=True, kw_only=True):
    """Where something was said, as bindings look at it."""

    service: str
    instance: str
    kind: PeerKind
    peer: str  # of a person who writes in person, their id; else the room
    room: str = ""
    parent: str = ""
    guild: str = ""
    team: str = ""


class Bound(Struct, frozen=True, kw_only=True):
    """Who answers there, and by which binding; None where it is the default."""

    agents: tuple[str, ...]
    matched_by: MatchedBy
    binding: Binding | None = None
