"""Decides which agent answers in a channel: the most specific binding wins. Facts in, a result with its reason out."""

from __future__ import annotations

from collections.abc import Iterable

from retinue.domain.binding import Binding, Bound, Match, MatchedBy, PeerKind, Place

_ORDER = {level: rank for rank, level in enumerate(MatchedBy)}


def who_answers(bindings: Iterable[Binding], place: Place, *, default: str | None) -> Bound | None:
    """Return the agents that answer in a channel, and the binding that decides; None if no agent does.

    Specificity, in order: the channel itself, the channel it is a topic of, the guild or team above
    it, the account, every account of the connector, the default. Between equals, the binding with
    more conditions wins.
    """
    fitting = [(level, binding) for binding in bindings if (level := matched(binding.match, place)) is not None]
    if fitting:
        level, binding = min(fitting, key=lambda each: _nearness(*each))
        return Bound(agents=binding.agents, matched_by=level, binding=binding)
    return Bound(agents=(default,), matched_by=MatchedBy.DEFAULT) if default is not None else None


def matched(match: Match, place: Place) -> MatchedBy | None:
    """Return what of a binding matches a channel; None if it does not match."""
    if not _same_account(match, place):
        return None
    above = ((match.guild, place.guild), (match.team, place.team), (match.parent, place.parent))
    if any(asked and asked != found for asked, found in above):
        return None
    if match.peer:
        return _by_peer(match, place)
    if match.peer_kind is not None and match.peer_kind is not place.kind:
        return None
    if match.parent:
        return MatchedBy.PARENT
    if match.guild:
        return MatchedBy.GUILD
    if match.team:
        return MatchedBy.TEAM
    return MatchedBy.ACCOUNT if _names_account(match, place) else MatchedBy.CHANNEL


def _by_peer(match: Match, place: Place) -> MatchedBy | None:
    if match.peer in (place.peer, place.room):
        return MatchedBy.PEER if match.peer_kind in (None, place.kind) else None
    # A topic inherits the binding of its group, unless it has its own.
    if match.peer == place.parent and match.peer_kind is not PeerKind.DM:
        return MatchedBy.PARENT
    return None


def _same_account(match: Match, place: Place) -> bool:
    return match.connector in (place.service, place.instance) and match.account in ("", place.instance)


def _names_account(match: Match, place: Place) -> bool:
    return bool(match.account) or (match.connector == place.instance and place.instance != place.service)


def _nearness(level: MatchedBy, binding: Binding) -> tuple[int, int, int, str]:
    match = binding.match
    asked = sum(map(bool, (match.peer_kind, match.peer, match.parent, match.guild, match.team)))
    return _ORDER[level], -asked, 0 if match.account else 1, binding.id


def reaches(binding: Binding, *, agent: str, service: str, instance: str, room: str) -> bool:
    """Whether an agent may write into a channel because of this binding.

    A binding for a guild, a team or a kind of channel does not name its channels. The agent may
    only reply there.
    """
    match = binding.match
    place = Place(service=service, instance=instance, kind=PeerKind.GROUP, peer=room, room=room)
    if agent.casefold() not in (each.casefold() for each in binding.agents) or not _same_account(match, place):
        return False
    return match.whole_account or match.peer == room or match.parent == room
