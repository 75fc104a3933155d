"""Test the access rules: which senders are admitted, refused or paired."""

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


def decide_action(facts: AccessFacts, settings: AccessSettings) -> AccessAction:
    return decide_access(facts, settings).action


@pytest.mark.spec("C16")
def test_the_default_access_settings_refuse_strangers_everywhere() -> None:
    assert decide_action(STRANGER, DEFAULT_ACCESS) is AccessAction.REFUSE
    assert decide_action(IN_GROUP, DEFAULT_ACCESS) is AccessAction.REFUSE
    assert decide_access(STRANGER, DEFAULT_ACCESS).setting_key == "connectors.tg.dm_policy"


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
def test_each_dm_policy_decides_which_direct_senders_are_admitted(
    policy: DmPolicy, stranger: AccessAction, listed: AccessAction, paired: AccessAction
) -> None:
    settings = AccessSettings(dm_policy=policy, allow_from=("8",))
    assert decide_action(STRANGER, settings) is stranger
    assert decide_action(changed(STRANGER, sender_id="8"), settings) is listed
    assert decide_action(changed(STRANGER, is_paired=True), settings) is paired
    assert decide_action(changed(STRANGER, person="maria"), settings) is AccessAction.ADMIT, (
        "linked people are always admitted"
    )


@pytest.mark.spec("C17")
def test_group_access_checks_policy_group_sender_and_activation_in_this_order() -> None:
    """Each step is corrected in turn, and the next step then decides."""
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
    assert decide_action(facts, steps[-1]) is AccessAction.AMBIENT
    assert decide_action(changed(facts, is_mentioned=True), steps[-1]) is AccessAction.ADMIT


@pytest.mark.spec("C17")
def test_an_open_group_policy_is_limited_to_the_listed_groups() -> None:
    open_policy = AccessSettings(group_policy=GroupPolicy.OPEN)
    named = AccessSettings(group_policy=GroupPolicy.OPEN, groups={"-2": GroupSettings()})
    assert decide_action(IN_GROUP, open_policy) is AccessAction.ADMIT
    assert decide_action(IN_GROUP, named) is AccessAction.REFUSE
    assert decide_action(changed(IN_GROUP, channel="-2/5", parent_channel="-2"), named) is AccessAction.ADMIT, (
        "a topic belongs to its group"
    )


@pytest.mark.spec("C17")
def test_access_rules_of_a_group_may_have_their_own_sender_allowlist() -> None:
    settings = AccessSettings(
        group_policy=GroupPolicy.OPEN, groups={"-1": GroupSettings(allow_from=("8",)), "*": GroupSettings()}
    )
    assert decide_action(IN_GROUP, settings) is AccessAction.REFUSE
    assert decide_action(changed(IN_GROUP, sender_id="8"), settings) is AccessAction.ADMIT
    assert decide_action(changed(IN_GROUP, channel="-9"), settings) is AccessAction.ADMIT


@pytest.mark.spec("C85")
def test_the_activation_of_a_channel_decides_if_an_unmentioned_message_is_admitted() -> None:
    quiet = changed(IN_GROUP, is_mentioned=False)
    by_mention = AccessSettings(group_policy=GroupPolicy.OPEN)
    always = AccessSettings(group_policy=GroupPolicy.OPEN, activation=Activation.ALWAYS)
    but_here = AccessSettings(
        group_policy=GroupPolicy.OPEN,
        activation=Activation.ALWAYS,
        groups={"-1": GroupSettings(activation=Activation.MENTION)},
    )
    assert decide_action(quiet, by_mention) is AccessAction.AMBIENT
    assert decide_action(quiet, always) is AccessAction.ADMIT
    assert decide_action(quiet, but_here) is AccessAction.AMBIENT
    assert decide_action(changed(quiet, activation=Activation.ALWAYS), but_here) is AccessAction.ADMIT, (
        "the activation set in the channel wins"
    )


def test_access_rules_count_a_mention_pattern_of_the_owner_as_a_mention() -> None:
    settings = AccessSettings(group_policy=GroupPolicy.OPEN, mention_patterns=(r"\bada\b",))
    quiet = changed(IN_GROUP, is_mentioned=False)
    assert decide_action(quiet, settings) is AccessAction.ADMIT
    assert decide_action(changed(quiet, text="Canada"), settings) is AccessAction.AMBIENT


@pytest.mark.parametrize("person", ["", "owner"])
def test_access_rules_always_refuse_programs_and_senders_without_an_id(person: str) -> None:
    wide_open = AccessSettings(dm_policy=DmPolicy.OPEN, group_policy=GroupPolicy.OPEN, activation=Activation.ALWAYS)
    for facts, broken in itertools.product((STRANGER, IN_GROUP), ({"is_program": True}, {"sender_id": ""})):
        assert (
            decide_action(changed(facts, person=person, is_owner=bool(person), **broken), wide_open)
            is AccessAction.REFUSE
        )


@pytest.mark.spec("C18")
def test_commands_need_a_listed_or_known_sender_even_if_access_is_open() -> None:
    wide_open = AccessSettings(dm_policy=DmPolicy.OPEN, group_policy=GroupPolicy.OPEN, allow_from=("8",))
    for facts in (STRANGER, IN_GROUP):
        assert not decide_access(facts, wide_open).may_command
        assert decide_access(facts, wide_open).trust is Trust.UNTRUSTED
        assert decide_access(changed(facts, sender_id="8"), wide_open).may_command
        assert decide_access(changed(facts, person="maria"), wide_open).may_command
    everyone_listed = AccessSettings(dm_policy=DmPolicy.ALLOWLIST, allow_from=("*",))
    assert decide_action(STRANGER, everyone_listed) is AccessAction.ADMIT
    assert not decide_access(STRANGER, everyone_listed).may_command


@pytest.mark.spec("C18")
def test_the_access_setting_commands_from_limits_commands_to_listed_senders_and_the_owner() -> None:
    settings = AccessSettings(dm_policy=DmPolicy.ALLOWLIST, allow_from=("7", "8"), commands_from=("8",))
    assert not decide_access(STRANGER, settings).may_command
    assert decide_access(STRANGER, settings).trust is Trust.PERSON
    assert decide_access(changed(STRANGER, sender_id="8"), settings).may_command
    assert decide_access(changed(STRANGER, person="owner", is_owner=True), settings).may_command
    assert check_named_sender_id("*") is not None, "commands can never be open to everyone"


def test_access_rules_give_the_owner_owner_trust_and_other_linked_people_person_trust() -> None:
    assert decide_access(changed(STRANGER, person="owner", is_owner=True), DEFAULT_ACCESS).trust is Trust.OWNER
    assert decide_access(changed(STRANGER, person="maria"), DEFAULT_ACCESS).trust is Trust.PERSON


def test_an_unverified_sender_id_gives_no_access_beyond_an_open_policy() -> None:
    """Anyone can write any sender address into an email."""
    claimed = changed(STRANGER, is_verified=False, person="owner", is_owner=True, is_paired=True)
    for policy in (DmPolicy.CLOSED, DmPolicy.ALLOWLIST, DmPolicy.PAIRING):
        assert (
            decide_action(claimed, AccessSettings(dm_policy=policy, allow_from=("7",), commands_from=("7",)))
            is AccessAction.REFUSE
        )
    let_in = decide_access(claimed, AccessSettings(dm_policy=DmPolicy.OPEN, allow_from=("7",), commands_from=("7",)))
    assert (let_in.action, let_in.trust, let_in.may_command) == (AccessAction.ADMIT, Trust.UNTRUSTED, False)


def test_access_settings_refuse_a_username_as_sender_id_and_a_broken_regex_as_mention_pattern() -> None:
    assert check_sender_id("@maria") is not None
    assert check_sender_id("4711") is None
    assert check_mention_pattern("(") is not None
