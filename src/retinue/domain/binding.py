"""Bindings: which agent answers in which channel."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

BINDING_AGENTS_MAX = 16  # agents that may answer in one channel


class PeerKind(StrEnum):
    """The kind of a channel. A binding that names no kind matches every channel."""

    DM = "dm"
    GROUP = "group"
    CHANNEL = "channel"


class MatchedBy(StrEnum):
    """Which part of a binding matched the channel. The first of these decides which agent answers."""

    PEER = "peer"
    PARENT = "parent-peer"
    GUILD = "guild"
    TEAM = "team"
    ACCOUNT = "account"
    CHANNEL = "channel"
    DEFAULT = "default"


class BindingMatch(Struct, frozen=True, kw_only=True):
    """What a binding matches. An empty field matches anything: an empty `account` means every account of the connector.

    `connector` is a platform, such as `telegram`, or the name of one connector; `account` is the
    name of one connector.
    """

    connector: str
    account: str = ""
    peer_kind: PeerKind | None = None
    peer: str = ""
    parent: str = ""
    guild: str = ""
    team: str = ""

    @property
    def is_account_wide(self) -> bool:
        """Whether it matches everything of one account, or of all accounts."""
        return not (self.peer_kind or self.peer or self.parent or self.guild or self.team)


class Binding(Struct, frozen=True, kw_only=True):
    """`agent` answers in the matched channels. Each of `extra_agents` also answers in them, independently."""

    id: str
    agent: str
    match: BindingMatch
    extra_agents: tuple[str, ...] = ()
    created_by: str = ""

    @property
    def agents(self) -> tuple[str, ...]:
        return (self.agent, *self.extra_agents)


class ChannelFacts(Struct, frozen=True, kw_only=True):
    """Facts about the channel in which a message was sent. Bindings match against them."""

    platform: str
    connector: str
    kind: PeerKind
    peer: str  # the sender's id for a direct message; otherwise the channel
    channel: str = ""
    parent: str = ""
    guild: str = ""
    team: str = ""


class BindingResult(Struct, frozen=True, kw_only=True):
    """The agents that answer in a channel. `binding` is the binding that decided, or None if the
    default agent answers."""

    agents: tuple[str, ...]
    matched_by: MatchedBy
    binding: Binding | None = None
