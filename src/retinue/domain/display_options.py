"""Manners: how a conversation shows its work to the person, and how far its commands may go."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct


class Verbosity(StrEnum):
    """What is told of calls as they are made."""

    OFF = "off"
    ON = "on"  # a line for each call
    FULL = "full"  # and what came of it, in short


class Reasoning(StrEnum):
    """What is told of a model's thoughts. Not set, whoever looks on sees them as they come, and no mail holds them."""

    OFF = "off"
    ON = "on"  # in a message of their own, before the answer
    STREAM = "stream"  # as they come, wherever a door can show that


class Elevation(StrEnum):
    """Where commands run. Not set, each call says for itself whether it asks to leave the sandbox."""

    OFF = "off"  # none leaves it
    ON = "on"  # as ASK: what Crocbot calls it
    ASK = "ask"  # on the host, where a person is asked as the rules for the host have it
    FULL = "full"  # on the host, unasked


class UsageLine(StrEnum):
    """What stands below an answer."""

    OFF = "off"
    TOKENS = "tokens"
    FULL = "full"
    COST = "cost"


class Manner(Struct, frozen=True, kw_only=True):
    """One voice on it: a message's, a session's, an agent's, the house's. What it does not say, the next one may."""

    verbose: Verbosity | None = None
    reasoning: Reasoning | None = None
    elevated: Elevation | None = None
    usage: UsageLine | None = None

    def over(self, other: Manner) -> Manner:
        """Both, where this one has the first word."""
        if other == PLAIN:
            return self
        if self == PLAIN:
            return other
        return Manner(
            verbose=self.verbose or other.verbose,
            reasoning=self.reasoning or other.reasoning,
            elevated=self.elevated or other.elevated,
            usage=self.usage or other.usage,
        )


PLAIN = Manner()
