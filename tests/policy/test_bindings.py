"""Who answers where."""

from __future__ import annotations

import itertools

import pytest
from msgspec.structs import replace

from retinue.domain.binding import Binding, Match, MatchedBy, PeerKind, Place
from retinue.policy.access.bindings import matched, reaches, who_answers

TOPIC = Place(
    service="telegram",
    instance="family",
    kind=PeerKind.GROUP,
    peer="-100/7",
    room="-100/7",
    parent="-100",
    guild="g1",
    team="t1",
)
LADDER = {
    MatchedBy.PEER: Match(connector="telegram", peer="-100/7", peer_kind=PeerKind.GROUP),
    MatchedBy.PARENT: Match(connector="telegram", peer="-100", peer_kind=PeerKind.GROUP),
    MatchedBy.GUILD: Match(connector="telegram", guild="g1"),
    MatchedBy.TEAM: Match(connector="telegram", team="t1"),
    MatchedBy.ACCOUNT: Match(connector="telegram", account="family"),
    MatchedBy.CHANNEL: Match(connector="telegram"),
}


def bound(name: str, match: Match) -> Binding:
    return Binding(id=name, agent=name, match=match)


@pytest.mark.spec("C6")
def test_the_nearest_binding_answers_and_says_what_it_matched_by() -> None:
    levels = list(LADDER)
    for first in range(len(levels)):
        bindings = [bound(level.value, LADDER[level]) for level in levels[first:]]
        for order in (bindings, bindings[::-1]):
            found = who_answers(order, TOPIC, default="main")
            assert found is not None
            assert (found.matched_by, found.agents) == (levels[first], (levels[first].value,))


@pytest.mark.spec("C6")
def test_where_nothing_fits_the_default_answers_or_nobody() -> None:
    elsewhere = [bound("eve", Match(connector="irc"))]
    found = who_answers(elsewhere, TOPIC, default="main")
    assert found is not None and (found.agents, found.matched_by) == (("main",), MatchedBy.DEFAULT)
    assert who_answers(elsewhere, TOPIC, default=None) is None


@pytest.mark.spec("C7", "C123")
def test_a_binding_without_account_fits_every_account_and_one_with_it_only_that() -> None:
    everywhere, family = Match(connector="telegram"), Match(connector="telegram", account="family")
    work = replace(TOPIC, instance="work")
    assert matched(everywhere, TOPIC) is matched(everywhere, work) is MatchedBy.CHANNEL
    assert matched(family, TOPIC) is MatchedBy.ACCOUNT
    assert matched(family, work) is None
    assert matched(Match(connector="family"), TOPIC) is MatchedBy.ACCOUNT, "an instance may be named as the connector"


@pytest.mark.spec("C123")
def test_a_peer_of_another_kind_does_not_fit() -> None:
    for wanted, kind in itertools.product(PeerKind, PeerKind):
        place = replace(TOPIC, kind=kind, parent="")
        fits = matched(Match(connector="telegram", peer="-100/7", peer_kind=wanted), place)
        assert (fits is MatchedBy.PEER) is (wanted is kind)
        of_kind = matched(Match(connector="telegram", peer_kind=wanted), place)
        assert (of_kind is MatchedBy.CHANNEL) is (wanted is kind)


@pytest.mark.spec("C123")
def test_bindings_of_one_account_that_differ_in_peer_guild_or_team_name_different_agents() -> None:
    bindings = [
        bound("a", Match(connector="telegram", account="family", peer="1")),
        bound("b", Match(connector="telegram", account="family", guild="g1")),
        bound("c", Match(connector="telegram", account="family", team="t1")),
        bound("d", Match(connector="telegram", account="family")),
    ]
    nowhere = replace(TOPIC, peer="9", room="9", parent="", guild="", team="")
    for change, agent in (({"peer": "1"}, "a"), ({"guild": "g1"}, "b"), ({"team": "t1"}, "c"), ({}, "d")):
        found = who_answers(bindings, replace(nowhere, **change), default=None)
        assert found is not None and found.agents == (agent,)


def test_a_binding_that_asks_for_more_wins_over_one_as_near() -> None:
    bindings = [
        bound("a", Match(connector="telegram", guild="g1")),
        bound("b", Match(connector="telegram", guild="g1")),
    ]
    narrower = replace(bindings[1], match=replace(bindings[1].match, team="t1"))
    found = who_answers([bindings[0], narrower], TOPIC, default=None)
    assert found is not None and found.agents == ("b",)


@pytest.mark.spec("C123")
def test_all_that_a_binding_names_has_to_fit() -> None:
    assert matched(Match(connector="telegram", peer="-100/7", guild="other"), TOPIC) is None
    assert matched(Match(connector="telegram", parent="-100", team="other"), TOPIC) is None


@pytest.mark.spec("C85")
def test_a_binding_may_have_several_agents_answer() -> None:
    both = Binding(id="1", agent="ada", also=("bob",), match=Match(connector="telegram", peer="-100"))
    found = who_answers([both], TOPIC, default=None)
    assert found is not None and found.agents == ("ada", "bob")


@pytest.mark.spec("H8")
@pytest.mark.parametrize(
    ("match", "reached"),
    [
        (Match(connector="telegram"), True),
        (Match(connector="telegram", account="family"), True),
        (Match(connector="telegram", account="work"), False),
        (Match(connector="irc"), False),
        (Match(connector="telegram", peer="7"), True),
        (Match(connector="telegram", peer="8"), False),
        (Match(connector="telegram", guild="g1"), False),
    ],
)
def test_an_agent_reaches_the_rooms_it_is_bound_to_and_no_others(match: Match, reached: bool) -> None:
    binding = bound("ada", match)
    asked = {"service": "telegram", "instance": "family", "room": "7"}
    assert reaches(binding, agent="Ada", **asked) is reached
    assert not reaches(binding, agent="bob", **asked)
