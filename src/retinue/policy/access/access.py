"""Decides who may talk to a connector.

Facts in, a decision with its reason out: closed unless the settings open it.

Only stable platform ids are considered. Other programs are never admitted, so that two of them
cannot answer each other forever.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

from msgspec import Struct

from retinue.config.access import DoorSettings, GroupSettings
from retinue.domain.access import EVERYONE, Activation, DmPolicy, Entry, GroupPolicy, Verdict
from retinue.domain.structs import replace
from retinue.domain.trust import Trust

# Searched for a mention: limits the time that a stranger's text can cost with an owner's pattern.
SEARCHED_CHARS_MAX = 2_000
_NO_GROUP = GroupSettings()


class Facts(Struct, frozen=True, kw_only=True):
    """Who wrote in which channel. `person` is the person whose identity this sender is linked to, if any."""

    instance: str
    direct: bool
    room: str
    speaker: str
    parent: str = ""
    is_program: bool = False
    vouched: bool = True  # by the platform; an id that is only claimed grants nothing
    person: str = ""
    is_owner: bool = False
    is_paired: bool = False
    mentioned: bool = False  # according to the platform: by name, by quoting us, by a command to us
    activation: Activation | None = None  # as set in this channel
    text: str = ""


def may_talk(facts: Facts, settings: DoorSettings) -> Verdict:
    """Decide about a message before anything of it is fetched or stored."""
    at = f"connectors.{facts.instance}"
    if facts.is_program:
        return _refused("another program speaks, and two that answer each other never stop")
    if not facts.speaker:
        return _refused("nobody can say who speaks")
    if not facts.vouched:
        return _unvouched(facts, settings, at)
    return _in_person(facts, settings, at) if facts.direct else _in_group(facts, settings, at)


def _unvouched(facts: Facts, settings: DoorSettings, at: str) -> Verdict:
    """Decide about a sender whose id is only claimed.

    They match no list: admitted only where everyone is, and as untrusted.
    """
    nobody = replace(facts, speaker=EVERYONE, vouched=True, person="", is_owner=False, is_paired=False)
    verdict = _in_person(nobody, settings, at) if facts.direct else _in_group(nobody, settings, at)
    if verdict.entry is Entry.PAIR or verdict.entry is Entry.REFUSE:
        return _refused(f"nobody vouches for who they say they are, and {verdict.because}", verdict.key)
    return replace(verdict, trust=Trust.UNTRUSTED, may_command=False)


# --- direct messages ---


def _in_person(facts: Facts, settings: DoorSettings, at: str) -> Verdict:
    key = f"{at}.dm"
    if facts.person:
        return _let_in(facts, settings, f"they are {facts.person}, of this house", key)
    listed = facts.speaker in settings.allow_from
    match settings.dm:
        case DmPolicy.CLOSED:
            return _refused("the door is closed to all but the people of the house", key)
        case DmPolicy.OPEN:
            if listed:
                return _let_in(facts, settings, "they are on the list", f"{at}.allow_from", known=True)
            return _let_in(facts, settings, "the door is open to everyone", key)
        case DmPolicy.ALLOWLIST | DmPolicy.PAIRING if listed:
            return _let_in(facts, settings, "they are on the list", f"{at}.allow_from", known=True)
        case DmPolicy.ALLOWLIST | DmPolicy.PAIRING if EVERYONE in settings.allow_from:
            return _let_in(facts, settings, "everyone is on the list", f"{at}.allow_from")
        case DmPolicy.ALLOWLIST:
            return _refused("they are not on the list", f"{at}.allow_from")
        case DmPolicy.PAIRING if facts.is_paired:
            return _let_in(facts, settings, "they were let in by a code", key, known=True)
        case DmPolicy.PAIRING:
            return Verdict(entry=Entry.PAIR, because="they may ask to be let in", key=key)


# --- groups: the policy, the group list, the sender list, and whether the agent is addressed ---


def _in_group(facts: Facts, settings: DoorSettings, at: str) -> Verdict:
    key = f"{at}.group_policy"
    if settings.group_policy is GroupPolicy.CLOSED:
        return _refused("it does not listen where several speak", key)
    group = group_of(settings, facts.room, facts.parent)
    if group is None and (settings.groups or settings.group_policy is GroupPolicy.ALLOWLIST):
        return _refused("this room is not on the list", f"{at}.groups")
    group = group or _NO_GROUP
    heard = group.allow_from or settings.group_allow_from or settings.allow_from
    listed = facts.speaker in heard
    must_be_listed = settings.group_policy is GroupPolicy.ALLOWLIST or bool(group.allow_from)
    if must_be_listed and not (listed or EVERYONE in heard or facts.person or facts.is_paired):
        return _refused("they are not on the list of those who are heard here", f"{at}.group_allow_from")
    if not _is_said_to_us(facts, settings, group):
        return Verdict(entry=Entry.OVERHEAR, because="it was not said to the agent", key=f"{at}.activation")
    because = "they are heard in this room" if listed else "this room is open"
    if facts.person:
        because = f"they are {facts.person}, of this house"
    return _let_in(facts, settings, because, key, known=listed or facts.is_paired)


def group_of(settings: DoorSettings, room: str, parent: str = "") -> GroupSettings | None:
    """Return the settings of a channel: by its id, by that of the channel it is a topic of, or
    those for every channel.
    """
    for name in (room, parent, EVERYONE):
        if name and (group := settings.groups.get(name)) is not None:
            return group
    return None


def _is_said_to_us(facts: Facts, settings: DoorSettings, group: GroupSettings) -> bool:
    activation = facts.activation or group.activation or settings.activation
    if activation is Activation.ALWAYS or facts.mentioned:
        return True
    return is_mention(facts.text, (*settings.mention_patterns, *group.mention_patterns))


def is_mention(text: str, patterns: Sequence[str]) -> bool:
    return any(_compiled(pattern).search(text[:SEARCHED_CHARS_MAX]) is not None for pattern in patterns)


@lru_cache(maxsize=256)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.IGNORECASE)


# --- trust of admitted senders ---


def _let_in(facts: Facts, settings: DoorSettings, because: str, key: str, *, known: bool = False) -> Verdict:
    """Admit a sender. `is_known`: the owner has listed their id, or accepted their pairing."""
    named = facts.speaker in settings.commands_from
    if facts.is_owner:
        trust = Trust.OWNER
    elif facts.person or known or named:
        trust = Trust.PERSON
    else:
        trust = Trust.UNTRUSTED
    may_command = facts.is_owner or named or (trust is Trust.PERSON and not settings.commands_from)
    return Verdict(entry=Entry.ADMIT, because=because, key=key, trust=trust, may_command=may_command)


def _refused(because: str, key: str = "") -> Verdict:
    return Verdict(entry=Entry.REFUSE, because=because, key=key)
