"""Who answers where."""

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
LADDER = {
    MatchedBy.PEER: BindingMatch(connector="telegram", peer="-100/7", peer_kind=PeerKind.GROUP),
    MatchedBy.PARENT: BindingMatch(connector="telegram", peer="-100", peer_kind=PeerKind.GROUP),
    MatchedBy.GUILD: BindingMatch(connector="telegram", guild="g1"),
    MatchedBy.TEAM: BindingMatch(connector="telegram", team="t1"),
    MatchedBy.ACCOUNT: BindingMatch(connector="telegram", account="family"),
    MatchedBy.CHANNEL: BindingMatch(connector="telegram"),
}


def bound(name: str, match: BindingMatch) -> Binding:
    return Binding(id=name, agent=name, match=match)


@pytest.mark.spec("C6")
def test_the_nearest_binding_answers_and_says_what_it_matched_by() -> None:
    levels = list(LADDER)
    for first in range(len(levels)):
        bindings = [bound(level.value, LADDER[level]) for level in levels[first:]]
        for order in (bindings, bindings[::-1]):
            found = resolve_binding(order, TOPIC, default="main")
            assert found is not None
            assert (found.matched_by, found.agents) == (levels[first], (levels[first].value,))


@pytest.mark.spec("C6")
def test_where_nothing_fits_the_default_answers_or_nobody() -> None:
    elsewhere = [bound("eve", BindingMatch(connector="irc"))]
    found = resolve_binding(elsewhere, TOPIC, default="main")
    assert found is not None and (found.agents, found.matched_by) == (("main",), MatchedBy.DEFAULT)
    assert resolve_binding(elsewhere, TOPIC, default=None) is None


@pytest.mark.spec("C7", "C123")
def test_a_binding_without_account_fits_every_account_and_one_with_it_only_that() -> None:
    everywhere, family = BindingMatch(connector="telegram"), BindingMatch(connector="telegram", account="family")
    work = replace(TOPIC, connector="work")
    assert match_binding(everywhere, TOPIC) is match_binding(everywhere, work) is MatchedBy.CHANNEL
    assert match_binding(family, TOPIC) is MatchedBy.ACCOUNT
    assert match_binding(family, work) is None
    assert match_binding(BindingMatch(connector="family"), TOPIC) is MatchedBy.ACCOUNT, (
        "an instance may be named as the connector"
    )


@pytest.mark.spec("C123")
def test_a_peer_of_another_kind_does_not_fit() -> None:
    for wanted, kind in itertools.product(PeerKind, PeerKind):
        place = replace(TOPIC, kind=kind, parent="")
        fits = match_binding(BindingMatch(connector="telegram", peer="-100/7", peer_kind=wanted), place)
        assert (fits is MatchedBy.PEER) is (wanted is kind)
        of_kind = match_binding(BindingMatch(connector="telegram", peer_kind=wanted), place)
        assert (of_kind is MatchedBy.CHANNEL) is (wanted is kind)


@pytest.mark.spec("C123")
def test_bindings_of_one_account_that_differ_in_peer_guild_or_team_name_different_agents() -> None:
    bindings = [
        bound("a", BindingMatch(connector="telegram", account="family", peer="1")),
        bound("b", BindingMatch(connector="telegram", account="family", guild="g1")),
        bound("c", BindingMatch(connector="telegram", account="family", team="t1")),
        bound("d", BindingMatch(connector="telegram", account="family")),
    ]
    nowhere = replace(TOPIC, peer="9", channel="9", parent="", guild="", team="")
    for change, agent in (({"peer": "1"}, "a"), ({"guild": "g1"}, "b"), ({"team": "t1"}, "c"), ({}, "d")):
        found = resolve_binding(bindings, replace(nowhere, **change), default=None)
        assert found is not None and found.agents == (agent,)


def test_a_binding_that_asks_for_more_wins_over_one_as_near() -> None:
    bindings = [
        bound("a", BindingMatch(connector="telegram", guild="g1")),
        bound("b", BindingMatch(connector="telegram", guild="g1")),
    ]
    narrower = replace(bindings[1], match=replace(bindings[1].match, team="t1"))
    found = resolve_binding([bindings[0], narrower], TOPIC, default=None)
    assert found is not None and found.agents == ("b",)


@pytest.mark.spec("C123")
def test_all_that_a_binding_names_has_to_fit() -> None:
    assert match_binding(BindingMatch(connector="telegram", peer="-100/7", guild="other"), TOPIC) is None
    assert match_binding(BindingMatch(connector="telegram", parent="-100", team="other"), TOPIC) is None


@pytest.mark.spec("C85")
def test_a_binding_may_have_several_agents_answer() -> None:
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
def test_an_agent_reaches_the_rooms_it_is_bound_to_and_no_others(match: BindingMatch, reached: bool) -> None:
    binding = bound("ada", match)
    asked = {"platform": "telegram", "connector": "family", "channel": "7"}
    assert allows_writing(binding, agent="Ada", **asked) is reached
    assert not allows_writing(binding, agent="bob", **asked)
