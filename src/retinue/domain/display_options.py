"""Display options: how a session shows its work to a person, and where its commands run."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct


class Verbosity(StrEnum):
    """What is shown of tool calls while they are made."""

    OFF = "off"
    ON = "on"  # one line per call
    FULL = "full"  # also a short result


class Reasoning(StrEnum):
    """What is shown of a model's reasoning. If not set, live viewers see it as it streams and no
    envelope contains it."""

    OFF = "off"
    ON = "on"  # in a separate message, before the answer
    STREAM = "stream"  # as it streams, on clients that can show it


class Elevation(StrEnum):
    """Where commands run. If not set, each call decides whether it asks to leave the sandbox."""

    OFF = "off"  # no command leaves the sandbox
    ON = "on"  # same as ASK; the name that Crocbot uses
    ASK = "ask"  # on the host; a person is asked according to the host rules
    FULL = "full"  # on the host, without asking


class UsageLine(StrEnum):
    """What is shown below an answer."""

    OFF = "off"
    TOKENS = "tokens"
    FULL = "full"
    COST = "cost"


class Manner(Struct, frozen=True, kw_only=True):
    """The display options of a message, a session, an agent or the server. Unset options come from
    the next level."""

    verbose: Verbosity | None = None
    reasoning: Reasoning | None = None
    elevated: Elevation | None = None
    usage: UsageLine | None = None

    def over(self, other: Manner) -> Manner:
        """Return these options, with unset ones taken from `defaults`."""
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
