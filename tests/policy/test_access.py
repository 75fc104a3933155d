"""Who may talk at a door."""

from __future__ import annotations

import itertools

import pytest
from msgspec.structs import replace as changed

from retinue.config.access import CLOSED, DoorSettings, GroupSettings, mention_pattern, named_speaker, speaker_id
from retinue.domain.access import Activation, DmPolicy, Entry, GroupPolicy
from retinue.domain.trust import Trust
from retinue.policy.access.access import Facts, may_talk

STRANGER = Facts(instance="tg", direct=True, room="7", speaker="7", text="hello")
IN_GROUP = Facts(instance="tg", direct=False, room="-1", speaker="7", text="hello ada", mentioned=True)


def entry(facts: Facts, settings: DoorSettings) -> Entry:
    return may_talk(facts, settings).entry


@pytest.mark.spec("C16")
def test_a_door_about_which_nothing_was_said_is_closed_to_strangers_everywhere() -> None:
    assert entry(STRANGER, CLOSED) is Entry.REFUSE
    assert entry(IN_GROUP, CLOSED) is Entry.REFUSE
    assert may_talk(STRANGER, CLOSED).key == "connectors.tg.dm"


@pytest.mark.spec("C16")
@pytest.mark.parametrize(
    ("policy", "stranger", "listed", "paired"),
    [
        (DmPolicy.CLOSED, Entry.REFUSE, Entry.REFUSE, Entry.REFUSE),
        (DmPolicy.ALLOWLIST, Entry.REFUSE, Entry.ADMIT, Entry.REFUSE),
        (DmPolicy.PAIRING, Entry.PAIR, Entry.ADMIT, Entry.ADMIT),
        (DmPolicy.OPEN, Entry.ADMIT, Entry.ADMIT, Entry.ADMIT),
    ],
)
def test_in_person_each_policy_lets_in_whom_it_says(
    policy: DmPolicy, stranger: Entry, listed: Entry, paired: Entry
) -> None:
    settings = DoorSettings(dm=policy, allow_from=("8",))
    assert entry(STRANGER, settings) is stranger
    assert entry(changed(STRANGER, speaker="8"), settings) is listed
    assert entry(changed(STRANGER, is_paired=True), settings) is paired
    assert entry(changed(STRANGER, person="maria"), settings) is Entry.ADMIT, "people of the house are always heard"


@pytest.mark.spec("C17")
def test_in_a_group_the_policy_the_group_the_sender_and_the_mention_are_asked_in_this_order() -> None:
    """Each step is mended in turn, and the next one is what then decides."""
    facts = changed(IN_GROUP, mentioned=False)
    asked: list[str] = []
    steps = (
        DoorSettings(),
        DoorSettings(group_policy=GroupPolicy.ALLOWLIST),
        DoorSettings(group_policy=GroupPolicy.ALLOWLIST, groups={"-1": GroupSettings()}),
        DoorSettings(group_policy=GroupPolicy.ALLOWLIST, groups={"-1": GroupSettings()}, group_allow_from=("7",)),
    )
    for settings in steps:
        verdict = may_talk(facts, settings)
        assert verdict.entry is not Entry.ADMIT
        asked.append(verdict.key.removeprefix("connectors.tg."))
    assert asked == ["group_policy", "groups", "group_allow_from", "activation"]
    assert entry(facts, steps[-1]) is Entry.OVERHEAR
    assert entry(changed(facts, mentioned=True), steps[-1]) is Entry.ADMIT


@pytest.mark.spec("C17")
def test_an_open_group_policy_still_keeps_to_the_groups_that_are_named() -> None:
    open_ = DoorSettings(group_policy=GroupPolicy.OPEN)
    named = DoorSettings(group_policy=GroupPolicy.OPEN, groups={"-2": GroupSettings()})
    assert entry(IN_GROUP, open_) is Entry.ADMIT
    assert entry(IN_GROUP, named) is Entry.REFUSE
    assert entry(changed(IN_GROUP, room="-2/5", parent="-2"), named) is Entry.ADMIT, "a topic is of its group"


@pytest.mark.spec("C17")
def test_a_group_may_have_senders_of_its_own() -> None:
    settings = DoorSettings(
        group_policy=GroupPolicy.OPEN, groups={"-1": GroupSettings(allow_from=("8",)), "*": GroupSettings()}
    )
    assert entry(IN_GROUP, settings) is Entry.REFUSE
    assert entry(changed(IN_GROUP, speaker="8"), settings) is Entry.ADMIT
    assert entry(changed(IN_GROUP, room="-9"), settings) is Entry.ADMIT


@pytest.mark.spec("C85")
def test_what_is_said_to_us_follows_the_activation_of_the_room() -> None:
    quiet = changed(IN_GROUP, mentioned=False)
    by_mention = DoorSettings(group_policy=GroupPolicy.OPEN)
    always = DoorSettings(group_policy=GroupPolicy.OPEN, activation=Activation.ALWAYS)
    but_here = DoorSettings(
        group_policy=GroupPolicy.OPEN,
        activation=Activation.ALWAYS,
        groups={"-1": GroupSettings(activation=Activation.MENTION)},
    )
    assert entry(quiet, by_mention) is Entry.OVERHEAR
    assert entry(quiet, always) is Entry.ADMIT
    assert entry(quiet, but_here) is Entry.OVERHEAR
    assert entry(changed(quiet, activation=Activation.ALWAYS), but_here) is Entry.ADMIT, "as was said in the room"


def test_a_pattern_of_the_owners_counts_as_a_mention() -> None:
    settings = DoorSettings(group_policy=GroupPolicy.OPEN, mention_patterns=(r"\bada\b",))
    quiet = changed(IN_GROUP, mentioned=False)
    assert entry(quiet, settings) is Entry.ADMIT
    assert entry(changed(quiet, text="Canada"), settings) is Entry.OVERHEAR


@pytest.mark.parametrize("person", ["", "owner"])
def test_another_program_and_somebody_without_an_id_are_never_let_in(person: str) -> None:
    wide_open = DoorSettings(dm=DmPolicy.OPEN, group_policy=GroupPolicy.OPEN, activation=Activation.ALWAYS)
    for facts, broken in itertools.product((STRANGER, IN_GROUP), ({"is_program": True}, {"speaker": ""})):
        assert entry(changed(facts, person=person, is_owner=bool(person), **broken), wide_open) is Entry.REFUSE


@pytest.mark.spec("C18")
def test_commands_are_carried_out_for_those_who_are_named_and_for_nobody_because_a_door_is_open() -> None:
    wide_open = DoorSettings(dm=DmPolicy.OPEN, group_policy=GroupPolicy.OPEN, allow_from=("8",))
    for facts in (STRANGER, IN_GROUP):
        assert not may_talk(facts, wide_open).may_command
        assert may_talk(facts, wide_open).trust is Trust.UNTRUSTED
        assert may_talk(changed(facts, speaker="8"), wide_open).may_command
        assert may_talk(changed(facts, person="maria"), wide_open).may_command
    everyone_listed = DoorSettings(dm=DmPolicy.ALLOWLIST, allow_from=("*",))
    assert entry(STRANGER, everyone_listed) is Entry.ADMIT
    assert not may_talk(STRANGER, everyone_listed).may_command


@pytest.mark.spec("C18")
def test_where_those_who_may_command_are_named_nobody_else_but_the_owner_may() -> None:
    settings = DoorSettings(dm=DmPolicy.ALLOWLIST, allow_from=("7", "8"), commands_from=("8",))
    assert not may_talk(STRANGER, settings).may_command
    assert may_talk(STRANGER, settings).trust is Trust.PERSON
    assert may_talk(changed(STRANGER, speaker="8"), settings).may_command
    assert may_talk(changed(STRANGER, person="owner", is_owner=True), settings).may_command
    assert named_speaker("*") is not None, "commands cannot be opened to everyone at all"


def test_the_owner_is_believed_as_the_owner_and_people_of_the_house_as_people() -> None:
    assert may_talk(changed(STRANGER, person="owner", is_owner=True), CLOSED).trust is Trust.OWNER
    assert may_talk(changed(STRANGER, person="maria"), CLOSED).trust is Trust.PERSON


def test_an_id_that_is_only_claimed_opens_nothing_that_is_not_open_to_everyone() -> None:
    """Anyone can write any address into a mail."""
    claimed = changed(STRANGER, vouched=False, person="owner", is_owner=True, is_paired=True)
    for policy in (DmPolicy.CLOSED, DmPolicy.ALLOWLIST, DmPolicy.PAIRING):
        assert entry(claimed, DoorSettings(dm=policy, allow_from=("7",), commands_from=("7",))) is Entry.REFUSE
    let_in = may_talk(claimed, DoorSettings(dm=DmPolicy.OPEN, allow_from=("7",), commands_from=("7",)))
    assert (let_in.entry, let_in.trust, let_in.may_command) == (Entry.ADMIT, Trust.UNTRUSTED, False)


def test_a_username_is_no_id_and_a_broken_pattern_no_pattern() -> None:
    assert speaker_id("@maria") is not None
    assert speaker_id("4711") is None
    assert mention_pattern("(") is not None
