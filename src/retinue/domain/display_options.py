"""Display options: how a session shows its work to a person, and where its commands run."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct


class Verbosity(StrEnum):
    """What a person sees of tool calls while they are performed."""

    OFF = "off"
    ON = "on"  # one line per call
    FULL = "full"  # also a short result


class ReasoningDisplay(StrEnum):
    """What a person sees of a model's reasoning.

    If this is not set, people see the reasoning only while it streams, in clients that show a run
    live. It is not part of the answer.
    """

    OFF = "off"
    ON = "on"  # in a separate message, before the answer
    STREAM = "stream"  # as it streams, on clients that can show it


class Elevation(StrEnum):
    """Whether commands may run outside the sandbox.

    If this is not set, a command runs outside only if the model requests it.
    """

    OFF = "off"  # no command runs outside the sandbox
    ON = "on"  # same as ASK; the name that Crocbot uses
    ASK = "ask"  # on the host; a person is asked according to the host rules
    FULL = "full"  # on the host, without asking


class UsageFooter(StrEnum):
    """How much of the token usage and cost is shown below an answer."""

    OFF = "off"
    TOKENS = "tokens"
    FULL = "full"
    COST = "cost"


class DisplayOptions(Struct, frozen=True, kw_only=True):
    """The display options of a message, a session, an agent or the server.

    A message inherits unset options from its session, a session from its agent, and an agent from the server.
    """

    verbose: Verbosity | None = None
    reasoning: ReasoningDisplay | None = None
    elevated: Elevation | None = None
    usage: UsageFooter | None = None

    def with_defaults(self, defaults: DisplayOptions) -> DisplayOptions:
        """Return these options, with unset options taken from `defaults`."""
        if defaults == NO_DISPLAY_OPTIONS:
            return self
        if self == NO_DISPLAY_OPTIONS:
            return defaults
        return DisplayOptions(
            verbose=self.verbose or defaults.verbose,
            reasoning=self.reasoning or defaults.reasoning,
            elevated=self.elevated or defaults.elevated,
            usage=self.usage or defaults.usage,
        )


NO_DISPLAY_OPTIONS = DisplayOptions()
