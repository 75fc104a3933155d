"""Who may talk at a door."""

from __future__ import annotations

import itertools

import pytest
from msgspec.structs import replace as changed

from retinue.config.access import (
    DEFAULT_ACCESS,
    AccessSettings,
    GroupSettings,
    check_mention_pattern,
    check_named_sender_id,
    check_sender_id,
)
from retinue.domain.access import AccessAction, Activation, DmPolicy, GroupPolicy
from retinue.domain.trust import Trust
from retinue.policy.access.access import AccessFacts, decide_access

STRANGER = AccessFacts(connector="tg", is_direct=True, channel="7", sender_id="7", text="hello")
IN_GROUP = AccessFacts(
    connector="tg", is_direct=False, channel="-1", sender_id="7", text="hello ada", is_mentioned=True
)


def entry(facts: AccessFacts, settings: AccessSettings) -> AccessAction:
    return decide_access(facts, settings).action


@pytest.mark.spec("C16")
def test_a_door_about_which_nothing_was_said_is_closed_to_strangers_everywhere() -> None:
    assert entry(STRANGER, DEFAULT_ACCESS) is AccessAction.REFUSE
    assert entry(IN_GROUP, DEFAULT_ACCESS) is AccessAction.REFUSE
    assert decide_access(STRANGER, DEFAULT_ACCESS).setting_key == "connectors.tg.dm"


@pytest.mark.spec("C16")
@pytest.mark.parametrize(
    ("policy", "stranger", "listed", "paired"),
    [
        (DmPolicy.CLOSED, AccessAction.REFUSE, AccessAction.REFUSE, AccessAction.REFUSE),
        (DmPolicy.ALLOWLIST, AccessAction.REFUSE, AccessAction.ADMIT, AccessAction.REFUSE),
        (DmPolicy.PAIRING, AccessAction.PAIR, AccessAction.ADMIT, AccessAction.ADMIT),
        (DmPolicy.OPEN, AccessAction.ADMIT, AccessAction.ADMIT, AccessAction.ADMIT),
    ],
)
def test_in_person_each_policy_lets_in_whom_it_says(
    policy: DmPolicy, stranger: AccessAction, listed: AccessAction, paired: AccessAction
) -> None:
    settings = AccessSettings(dm=policy, allow_from=("8",))
    assert entry(STRANGER, settings) is stranger
    assert entry(changed(STRANGER, sender_id="8"), settings) is listed
    assert entry(changed(STRANGER, is_paired=True), settings) is paired
    assert entry(changed(STRANGER, person="maria"), settings) is AccessAction.ADMIT, (
        "people of the house are always heard"
    )


@pytest.mark.spec("C17")
def test_in_a_group_the_policy_the_group_the_sender_and_the_mention_are_asked_in_this_order() -> None:
    """Each step is mended in turn, and the next one is what then decides."""
    facts = changed(IN_GROUP, is_mentioned=False)
    asked: list[str] = []
    steps = (
        AccessSettings(),
        AccessSettings(group_policy=GroupPolicy.ALLOWLIST),
        AccessSettings(group_policy=GroupPolicy.ALLOWLIST, groups={"-1": GroupSettings()}),
        AccessSettings(group_policy=GroupPolicy.ALLOWLIST, groups={"-1": GroupSettings()}, group_allow_from=("7",)),
    )
    for settings in steps:
        verdict = decide_access(facts, settings)
        assert verdict.action is not AccessAction.ADMIT
        asked.append(verdict.setting_key.removeprefix("connectors.tg."))
    assert asked == ["group_policy", "groups", "group_allow_from", "activation"]
    assert entry(facts, steps[-1]) is AccessAction.AMBIENT
    assert entry(changed(facts, is_mentioned=True), steps[-1]) is AccessAction.ADMIT


@pytest.mark.spec("C17")
def test_an_open_group_policy_still_keeps_to_the_groups_that_are_named() -> None:
    open_ = AccessSettings(group_policy=GroupPolicy.OPEN)
    named = AccessSettings(group_policy=GroupPolicy.OPEN, groups={"-2": GroupSettings()})
    assert entry(IN_GROUP, open_) is AccessAction.ADMIT
    assert entry(IN_GROUP, named) is AccessAction.REFUSE
    assert entry(changed(IN_GROUP, channel="-2/5", parent_channel="-2"), named) is AccessAction.ADMIT, (
        "a topic is of its group"
    )


@pytest.mark.spec("C17")
def test_a_group_may_have_senders_of_its_own() -> None:
    settings = AccessSettings(
        group_policy=GroupPolicy.OPEN, groups={"-1": GroupSettings(allow_from=("8",)), "*": GroupSettings()}
    )
    assert entry(IN_GROUP, settings) is AccessAction.REFUSE
    assert entry(changed(IN_GROUP, sender_id="8"), settings) is AccessAction.ADMIT
    assert entry(changed(IN_GROUP, channel="-9"), settings) is AccessAction.ADMIT


@pytest.mark.spec("C85")
def test_what_is_said_to_us_follows_the_activation_of_the_room() -> None:
    quiet = changed(IN_GROUP, is_mentioned=False)
    by_mention = AccessSettings(group_policy=GroupPolicy.OPEN)
    always = AccessSettings(group_policy=GroupPolicy.OPEN, activation=Activation.ALWAYS)
    but_here = AccessSettings(
        group_policy=GroupPolicy.OPEN,
        activation=Activation.ALWAYS,
        groups={"-1": GroupSettings(activation=Activation.MENTION)},
    )
    assert entry(quiet, by_mention) is AccessAction.AMBIENT
    assert entry(quiet, always) is AccessAction.ADMIT
    assert entry(quiet, but_here) is AccessAction.AMBIENT
    assert entry(changed(quiet, activation=Activation.ALWAYS), but_here) is AccessAction.ADMIT, (
        "as was said in the room"
    )


def test_a_pattern_of_the_owners_counts_as_a_mention() -> None:
    settings = AccessSettings(group_policy=GroupPolicy.OPEN, mention_patterns=(r"\bada\b",))
    quiet = changed(IN_GROUP, is_mentioned=False)
    assert entry(quiet, settings) is AccessAction.ADMIT
    assert entry(changed(quiet, text="Canada"), settings) is AccessAction.AMBIENT


@pytest.mark.parametrize("person", ["", "owner"])
def test_another_program_and_somebody_without_an_id_are_never_let_in(person: str) -> None:
    wide_open = AccessSettings(dm=DmPolicy.OPEN, group_policy=GroupPolicy.OPEN, activation=Activation.ALWAYS)
    for facts, broken in itertools.product((STRANGER, IN_GROUP), ({"is_program": True}, {"sender_id": ""})):
        assert entry(changed(facts, person=person, is_owner=bool(person), **broken), wide_open) is AccessAction.REFUSE


@pytest.mark.spec("C18")
def test_commands_are_carried_out_for_those_who_are_named_and_for_nobody_because_a_door_is_open() -> None:
    wide_open = AccessSettings(dm=DmPolicy.OPEN, group_policy=GroupPolicy.OPEN, allow_from=("8",))
    for facts in (STRANGER, IN_GROUP):
        assert not decide_access(facts, wide_open).may_command
        assert decide_access(facts, wide_open).trust is Trust.UNTRUSTED
        assert decide_access(changed(facts, sender_id="8"), wide_open).may_command
        assert decide_access(changed(facts, person="maria"), wide_open).may_command
    everyone_listed = AccessSettings(dm=DmPolicy.ALLOWLIST, allow_from=("*",))
    assert entry(STRANGER, everyone_listed) is AccessAction.ADMIT
    assert not decide_access(STRANGER, everyone_listed).may_command


@pytest.mark.spec("C18")
def test_where_those_who_may_command_are_named_nobody_else_but_the_owner_may() -> None:
    settings = AccessSettings(dm=DmPolicy.ALLOWLIST, allow_from=("7", "8"), commands_from=("8",))
    assert not decide_access(STRANGER, settings).may_command
    assert decide_access(STRANGER, settings).trust is Trust.PERSON
    assert decide_access(changed(STRANGER, sender_id="8"), settings).may_command
    assert decide_access(changed(STRANGER, person="owner", is_owner=True), settings).may_command
    assert check_named_sender_id("*") is not None, "commands cannot be opened to everyone at all"


def test_the_owner_is_believed_as_the_owner_and_people_of_the_house_as_people() -> None:
    assert decide_access(changed(STRANGER, person="owner", is_owner=True), DEFAULT_ACCESS).trust is Trust.OWNER
    assert decide_access(changed(STRANGER, person="maria"), DEFAULT_ACCESS).trust is Trust.PERSON


def test_an_id_that_is_only_claimed_opens_nothing_that_is_not_open_to_everyone() -> None:
    """Anyone can write any address into a mail."""
    claimed = changed(STRANGER, is_verified=False, person="owner", is_owner=True, is_paired=True)
    for policy in (DmPolicy.CLOSED, DmPolicy.ALLOWLIST, DmPolicy.PAIRING):
        assert entry(claimed, AccessSettings(dm=policy, allow_from=("7",), commands_from=("7",))) is AccessAction.REFUSE
    let_in = decide_access(claimed, AccessSettings(dm=DmPolicy.OPEN, allow_from=("7",), commands_from=("7",)))
    assert (let_in.action, let_in.trust, let_in.may_command) == (AccessAction.ADMIT, Trust.UNTRUSTED, False)


def test_a_username_is_no_id_and_a_broken_pattern_no_pattern() -> None:
    assert check_sender_id("@maria") is not None
    assert check_sender_id("4711") is None
    assert check_mention_pattern("(") is not None
