"""Decides which agents answer in a channel: the most specific binding that matches the channel wins."""

from __future__ import annotations

from collections.abc import Iterable

from retinue.domain.binding import Binding, BindingMatch, BindingResult, ChannelFacts, MatchedBy, PeerKind

_SPECIFICITY = {level: rank for rank, level in enumerate(MatchedBy)}


def resolve_binding(bindings: Iterable[Binding], channel: ChannelFacts, *, default: str | None) -> BindingResult | None:
    """Return the agents that answer in a channel, and the binding that decides. None if no agent answers.

    The most specific binding wins. A binding can name, from most to least specific: the channel, its
    parent channel, its guild, its team, the account, or only the platform. Of two bindings that are
    equally specific, the one with more conditions wins. If no binding matches, the default agent
    answers.
    """
    fitting = [(level, binding) for binding in bindings if (level := match_binding(binding.match, channel)) is not None]
    if fitting:
        level, binding = min(fitting, key=lambda each: _sort_key(*each))
        return BindingResult(agents=binding.agents, matched_by=level, binding=binding)
    return BindingResult(agents=(default,), matched_by=MatchedBy.DEFAULT) if default is not None else None


def match_binding(match: BindingMatch, channel: ChannelFacts) -> MatchedBy | None:
    """Return the most specific condition by which a binding matches a channel; None if it does not match."""
    if not _is_same_account(match, channel):
        return None
    above = ((match.guild, channel.guild), (match.team, channel.team), (match.parent, channel.parent))
    if any(asked and asked != found for asked, found in above):
        return None
    if match.peer:
        return _match_peer(match, channel)
    if match.peer_kind is not None and match.peer_kind is not channel.kind:
        return None
    if match.parent:
        return MatchedBy.PARENT
    if match.guild:
        return MatchedBy.GUILD
    if match.team:
        return MatchedBy.TEAM
    return MatchedBy.ACCOUNT if _names_account(match, channel) else MatchedBy.CHANNEL


def _match_peer(match: BindingMatch, channel: ChannelFacts) -> MatchedBy | None:
    if match.peer in (channel.peer, channel.channel):
        return MatchedBy.PEER if match.peer_kind in (None, channel.kind) else None
    # A topic inherits the binding of its group, unless the topic has a binding.
    if match.peer == channel.parent and match.peer_kind is not PeerKind.DM:
        return MatchedBy.PARENT
    return None


def _is_same_account(match: BindingMatch, channel: ChannelFacts) -> bool:
    return match.connector in (channel.platform, channel.connector) and match.account in ("", channel.connector)


def _names_account(match: BindingMatch, channel: ChannelFacts) -> bool:
    return bool(match.account) or (match.connector == channel.connector and channel.connector != channel.platform)


def _sort_key(level: MatchedBy, binding: Binding) -> tuple[int, int, int, str]:
    match = binding.match
    asked = sum(map(bool, (match.peer_kind, match.peer, match.parent, match.guild, match.team)))
    return _SPECIFICITY[level], -asked, 0 if match.account else 1, binding.id


def allows_writing(binding: Binding, *, agent: str, platform: str, connector: str, channel: str) -> bool:
    """Whether this binding allows an agent to start a conversation in a channel, without a message to reply to.

    A binding for a guild, a team or a kind of channel does not name a single channel, so the agent may
    only reply in these channels.
    """
    match = binding.match
    place = ChannelFacts(platform=platform, connector=connector, kind=PeerKind.GROUP, peer=channel, channel=channel)
    if agent.casefold() not in (each.casefold() for each in binding.agents) or not _is_same_account(match, place):
        return False
    return match.is_account_wide or match.peer == channel or match.parent == channel
