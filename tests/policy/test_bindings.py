"""Test which agent answers in a channel."""

from __future__ import annotations

import itertools

import pytest
from msgspec.structs import replace

from retinue.domain.binding import Binding, BindingMatch, ChannelFacts, MatchedBy, PeerKind
from retinue.policy.access.bindings import allows_writing, match_binding, resolve_binding

TOPIC = ChannelFacts(
    platform="telegram",
    connector="family",
    kind=PeerKind.GROUP,
    peer="-100/7",
    channel="-100/7",
    parent="-100",
    guild="g1",
    team="t1",
)
MATCH_BY_LEVEL = {
    MatchedBy.PEER: BindingMatch(connector="telegram", peer="-100/7", peer_kind=PeerKind.GROUP),
    MatchedBy.PARENT: BindingMatch(connector="telegram", peer="-100", peer_kind=PeerKind.GROUP),
    MatchedBy.GUILD: BindingMatch(connector="telegram", guild="g1"),
    MatchedBy.TEAM: BindingMatch(connector="telegram", team="t1"),
    MatchedBy.ACCOUNT: BindingMatch(connector="telegram", account="family"),
    MatchedBy.CHANNEL: BindingMatch(connector="telegram"),
}


def make_binding(name: str, match: BindingMatch) -> Binding:
    return Binding(id=name, agent=name, match=match)


@pytest.mark.spec("C6")
def test_the_most_specific_binding_wins_and_reports_its_match_level() -> None:
    levels = list(MATCH_BY_LEVEL)
    for first in range(len(levels)):
        bindings = [make_binding(level.value, MATCH_BY_LEVEL[level]) for level in levels[first:]]
        for order in (bindings, bindings[::-1]):
            found = resolve_binding(order, TOPIC, default="main")
            assert found is not None
            assert (found.matched_by, found.agents) == (levels[first], (levels[first].value,))


@pytest.mark.spec("C6")
def test_without_a_matching_binding_the_default_agent_answers_or_no_agent() -> None:
    elsewhere = [make_binding("eve", BindingMatch(connector="irc"))]
    found = resolve_binding(elsewhere, TOPIC, default="main")
    assert found is not None and (found.agents, found.matched_by) == (("main",), MatchedBy.DEFAULT)
    assert resolve_binding(elsewhere, TOPIC, default=None) is None


@pytest.mark.spec("C7", "C123")
def test_a_binding_with_an_account_matches_only_that_account_and_without_an_account_every_account() -> None:
    everywhere, family = BindingMatch(connector="telegram"), BindingMatch(connector="telegram", account="family")
    work = replace(TOPIC, connector="work")
    assert match_binding(everywhere, TOPIC) is match_binding(everywhere, work) is MatchedBy.CHANNEL
    assert match_binding(family, TOPIC) is MatchedBy.ACCOUNT
    assert match_binding(family, work) is None
    assert match_binding(BindingMatch(connector="family"), TOPIC) is MatchedBy.ACCOUNT, (
        "an instance may be named as the connector"
    )


@pytest.mark.spec("C123")
def test_a_binding_matches_only_its_peer_kind() -> None:
    for wanted, kind in itertools.product(PeerKind, PeerKind):
        channel_facts = replace(TOPIC, kind=kind, parent="")
        fits = match_binding(BindingMatch(connector="telegram", peer="-100/7", peer_kind=wanted), channel_facts)
        assert (fits is MatchedBy.PEER) is (wanted is kind)
        of_kind = match_binding(BindingMatch(connector="telegram", peer_kind=wanted), channel_facts)
        assert (of_kind is MatchedBy.CHANNEL) is (wanted is kind)


@pytest.mark.spec("C123")
def test_bindings_of_one_account_may_route_peer_guild_and_team_to_different_agents() -> None:
    bindings = [
        make_binding("a", BindingMatch(connector="telegram", account="family", peer="1")),
        make_binding("b", BindingMatch(connector="telegram", account="family", guild="g1")),
        make_binding("c", BindingMatch(connector="telegram", account="family", team="t1")),
        make_binding("d", BindingMatch(connector="telegram", account="family")),
    ]
    nowhere = replace(TOPIC, peer="9", channel="9", parent="", guild="", team="")
    for change, agent in (({"peer": "1"}, "a"), ({"guild": "g1"}, "b"), ({"team": "t1"}, "c"), ({}, "d")):
        found = resolve_binding(bindings, replace(nowhere, **change), default=None)
        assert found is not None and found.agents == (agent,)


def test_a_binding_with_more_conditions_wins_on_the_same_level() -> None:
    bindings = [
        make_binding("a", BindingMatch(connector="telegram", guild="g1")),
        make_binding("b", BindingMatch(connector="telegram", guild="g1")),
    ]
    narrower = replace(bindings[1], match=replace(bindings[1].match, team="t1"))
    found = resolve_binding([bindings[0], narrower], TOPIC, default=None)
    assert found is not None and found.agents == ("b",)


@pytest.mark.spec("C123")
def test_every_condition_of_a_binding_must_match() -> None:
    assert match_binding(BindingMatch(connector="telegram", peer="-100/7", guild="other"), TOPIC) is None
    assert match_binding(BindingMatch(connector="telegram", parent="-100", team="other"), TOPIC) is None


@pytest.mark.spec("C85")
def test_a_binding_may_name_several_agents() -> None:
    both = Binding(id="1", agent="ada", extra_agents=("bob",), match=BindingMatch(connector="telegram", peer="-100"))
    found = resolve_binding([both], TOPIC, default=None)
    assert found is not None and found.agents == ("ada", "bob")


@pytest.mark.spec("H8")
@pytest.mark.parametrize(
    ("match", "reached"),
    [
        (BindingMatch(connector="telegram"), True),
        (BindingMatch(connector="telegram", account="family"), True),
        (BindingMatch(connector="telegram", account="work"), False),
        (BindingMatch(connector="irc"), False),
        (BindingMatch(connector="telegram", peer="7"), True),
        (BindingMatch(connector="telegram", peer="8"), False),
        (BindingMatch(connector="telegram", guild="g1"), False),
    ],
)
def test_a_binding_lets_its_agent_write_only_to_the_channels_it_matches(match: BindingMatch, reached: bool) -> None:
    binding = make_binding("ada", match)
    asked = {"platform": "telegram", "connector": "family", "channel": "7"}
    assert allows_writing(binding, agent="Ada", **asked) is reached
    assert not allows_writing(binding, agent="bob", **asked)
