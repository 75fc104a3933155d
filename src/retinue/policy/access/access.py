"""Decides who may write to the server through a connector, from facts about the sender and the settings.

Without settings, only people of this instance may write. A sender is identified only by a platform id
that cannot change. Messages from bots and other programs are never admitted, because two programs
could answer each other forever.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

from msgspec import Struct

from retinue.config.access import AccessSettings, GroupSettings
from retinue.domain.access import EVERYONE, AccessAction, AccessDecision, Activation, DmPolicy, GroupPolicy
from retinue.domain.structs import replace
from retinue.domain.trust import Trust

# Only this much of a message is searched for a mention, so that no pattern takes long on a hostile message.
MENTION_SEARCH_CHARS_MAX = 2_000
_DEFAULT_GROUP = GroupSettings()


class AccessFacts(Struct, frozen=True, kw_only=True):
    """Facts about a message: who wrote it and in which channel.

    `person` is the person to whom the sender's id is linked, if any.
    """

    connector: str
    is_direct: bool
    channel: str
    sender_id: str
    parent_channel: str = ""
    is_program: bool = False
    is_verified: bool = True  # the platform has verified the id; an id that is only claimed grants nothing
    person: str = ""
    is_owner: bool = False
    is_paired: bool = False
    is_mentioned: bool = False  # the platform reports a mention: by name, by a quote of our message, or by a command
    activation: Activation | None = None  # set for this channel; None: the settings decide
    text: str = ""


def decide_access(facts: AccessFacts, settings: AccessSettings) -> AccessDecision:
    """Decide whether a message is accepted, before any part of it is fetched or stored."""
    at = f"connectors.{facts.connector}"
    if facts.is_program:
        return _refuse("the sender is a program, and two programs could answer each other forever")
    if not facts.sender_id:
        return _refuse("the sender is unknown")
    if not facts.is_verified:
        return _decide_unverified(facts, settings, at)
    return _decide_direct(facts, settings, at) if facts.is_direct else _decide_group(facts, settings, at)


def _decide_unverified(facts: AccessFacts, settings: AccessSettings, settings_key: str) -> AccessDecision:
    """Decide about a sender whose id the platform has not verified.

    An unverified sender matches no allowlist. Their messages are admitted only where everyone may
    write, and are untrusted.
    """
    unverified = replace(facts, sender_id=EVERYONE, is_verified=True, person="", is_owner=False, is_paired=False)
    verdict = (
        _decide_direct(unverified, settings, settings_key)
        if facts.is_direct
        else _decide_group(unverified, settings, settings_key)
    )
    if verdict.action is AccessAction.PAIR or verdict.action is AccessAction.REFUSE:
        return _refuse(f"the sender's id is not verified, and {verdict.because}", verdict.setting_key)
    return replace(verdict, trust=Trust.UNTRUSTED, may_command=False)


# --- direct messages ---


def _decide_direct(facts: AccessFacts, settings: AccessSettings, settings_key: str) -> AccessDecision:
    key = f"{settings_key}.dm_policy"
    if facts.person:
        return _admit(facts, settings, f"the sender is {facts.person}", key)
    listed = facts.sender_id in settings.allow_from
    match settings.dm_policy:
        case DmPolicy.CLOSED:
            return _refuse("only people of this server may send direct messages", key)
        case DmPolicy.OPEN:
            if listed:
                return _admit(
                    facts, settings, "the sender is on the allowlist", f"{settings_key}.allow_from", is_known=True
                )
            return _admit(facts, settings, "everyone may send direct messages", key)
        case DmPolicy.ALLOWLIST | DmPolicy.PAIRING if listed:
            return _admit(
                facts, settings, "the sender is on the allowlist", f"{settings_key}.allow_from", is_known=True
            )
        case DmPolicy.ALLOWLIST | DmPolicy.PAIRING if EVERYONE in settings.allow_from:
            return _admit(facts, settings, "everyone is on the allowlist", f"{settings_key}.allow_from")
        case DmPolicy.ALLOWLIST:
            return _refuse("the sender is not on the allowlist", f"{settings_key}.allow_from")
        case DmPolicy.PAIRING if facts.is_paired:
            return _admit(facts, settings, "the sender was paired", key, is_known=True)
        case DmPolicy.PAIRING:
            return AccessDecision(action=AccessAction.PAIR, because="the sender may request access", setting_key=key)


# --- groups: the policy, the group list, the sender list, and whether the agent is addressed ---


def _decide_group(facts: AccessFacts, settings: AccessSettings, settings_key: str) -> AccessDecision:
    key = f"{settings_key}.group_policy"
    if settings.group_policy is GroupPolicy.CLOSED:
        return _refuse("the connector does not listen in groups", key)
    group = find_group_settings(settings, facts.channel, facts.parent_channel)
    if group is None and (settings.groups or settings.group_policy is GroupPolicy.ALLOWLIST):
        return _refuse("this channel is not on the list of groups", f"{settings_key}.groups")
    group = group or _DEFAULT_GROUP
    heard = group.allow_from or settings.group_allow_from or settings.allow_from
    listed = facts.sender_id in heard
    must_be_listed = settings.group_policy is GroupPolicy.ALLOWLIST or bool(group.allow_from)
    if must_be_listed and not (listed or EVERYONE in heard or facts.person or facts.is_paired):
        return _refuse("the sender is not on the allowlist of this channel", f"{settings_key}.group_allow_from")
    if not _is_addressed(facts, settings, group):
        return AccessDecision(
            action=AccessAction.AMBIENT,
            because="the message was not addressed to the agent",
            setting_key=f"{settings_key}.activation",
        )
    because = "the sender is on the allowlist of this channel" if listed else "everyone in this channel may write"
    if facts.person:
        because = f"the sender is {facts.person}"
    return _admit(facts, settings, because, key, is_known=listed or facts.is_paired)


def find_group_settings(settings: AccessSettings, channel: str, parent: str = "") -> GroupSettings | None:
    """Return the settings that apply to a channel.

    Settings for its id come first, then those for its parent channel, then those for every channel.
    """
    for name in (channel, parent, EVERYONE):
        if name and (group := settings.groups.get(name)) is not None:
            return group
    return None


def _is_addressed(facts: AccessFacts, settings: AccessSettings, group: GroupSettings) -> bool:
    activation = facts.activation or group.activation or settings.activation
    if activation is Activation.ALWAYS or facts.is_mentioned:
        return True
    return mentions_agent(facts.text, (*settings.mention_patterns, *group.mention_patterns))


def mentions_agent(text: str, patterns: Sequence[str]) -> bool:
    return any(_compile_pattern(pattern).search(text[:MENTION_SEARCH_CHARS_MAX]) is not None for pattern in patterns)


@lru_cache(maxsize=256)
def _compile_pattern(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.IGNORECASE)


# --- trust of admitted senders ---


def _admit(
    facts: AccessFacts, settings: AccessSettings, because: str, key: str, *, is_known: bool = False
) -> AccessDecision:
    """Return the decision that admits a sender.

    `is_known` means that the owner has put the sender's id on an allowlist, or has accepted the
    sender's pairing request.
    """
    named = facts.sender_id in settings.commands_from
    if facts.is_owner:
        trust = Trust.OWNER
    elif facts.person or is_known or named:
        trust = Trust.PERSON
    else:
        trust = Trust.UNTRUSTED
    may_command = facts.is_owner or named or (trust is Trust.PERSON and not settings.commands_from)
    return AccessDecision(
        action=AccessAction.ADMIT, because=because, setting_key=key, trust=trust, may_command=may_command
    )


def _refuse(because: str, key: str = "") -> AccessDecision:
    return AccessDecision(action=AccessAction.REFUSE, because=because, setting_key=key)
