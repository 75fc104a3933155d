"""Bindings: which agent answers in which channel."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

BINDING_AGENTS_MAX = 16  # agents that may answer in one channel


class PeerKind(StrEnum):
    """The kind of a channel: a direct message, a group, or a channel of a guild or team."""

    DM = "dm"
    GROUP = "group"
    CHANNEL = "channel"


class MatchedBy(StrEnum):
    """Which part of a binding matched the channel.

    If several bindings match, the one whose matching part comes first in this list applies.
    """

    PEER = "peer"
    PARENT = "parent-peer"
    GUILD = "guild"
    TEAM = "team"
    ACCOUNT = "account"
    CHANNEL = "channel"
    DEFAULT = "default"


class BindingMatch(Struct, frozen=True, kw_only=True):
    """The conditions under which a binding applies to a channel.

    An empty field matches everything: without an `account`, every account of the platform matches.
    `connector` is a platform, such as `telegram`, or the name of one connector. `account` is the
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
        """Whether the binding matches every channel of one account, or of all accounts."""
        return not (self.peer_kind or self.peer or self.parent or self.guild or self.team)


class Binding(Struct, frozen=True, kw_only=True):
    """A rule that says which agents answer in the channels that match it.

    `agent` answers in these channels. Each of `extra_agents` answers there too, independently of
    the others.
    """

    id: str
    agent: str
    match: BindingMatch
    extra_agents: tuple[str, ...] = ()
    created_by: str = ""

    @property
    def agents(self) -> tuple[str, ...]:
        return (self.agent, *self.extra_agents)


class ChannelFacts(Struct, frozen=True, kw_only=True):
    """Facts about the channel and the sender of a message. Bindings are matched against these facts."""

    platform: str
    connector: str
    kind: PeerKind
    peer: str  # the sender's id for a direct message; otherwise the channel
    channel: str = ""
    parent: str = ""
    guild: str = ""
    team: str = ""


class BindingResult(Struct, frozen=True, kw_only=True):
    """The agents that answer in a channel, and the binding that names them.

    If no binding matches, the default agent answers and `binding` is None.
    """

    agents: tuple[str, ...]
    matched_by: MatchedBy
    binding: Binding | None = None
