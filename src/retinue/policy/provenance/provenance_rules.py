"""The rules that decide where values may come from: the owner's, then the built-in ones."""

from __future__ import annotations

from fnmatch import fnmatchcase

from msgspec import Struct

from retinue.config.provenance import ActRule, ArgumentRule, Measure, OriginSettings, SourceRule, Standing
from retinue.domain.structs import replace
from retinue.domain.trust import Trust

KEY = "<key>"  # of a result that is an object from names to values
VALUE = "<value>"
ITEM = "<item>"  # of a result that is a list of plain values


class OriginPolicy(Struct, frozen=True, kw_only=True, eq=False):
    """All provenance rules. The first rule that matches applies."""

    sources: tuple[SourceRule, ...] = ()
    arguments: tuple[ArgumentRule, ...] = ()
    acts: tuple[ActRule, ...] = ()
    measures: tuple[Measure, ...] = ()
    speakers: frozenset[Trust] = frozenset({Trust.OWNER})  # whose messages explain values

    def source(self, tool: str) -> SourceRule | None:
        return next((rule for rule in self.sources if fnmatchcase(tool, rule.tools)), None)

    def argument(self, tool: str, argument: str) -> ArgumentRule | None:
        return next(
            (rule for rule in self.arguments if fnmatchcase(tool, rule.tools) and fnmatchcase(argument, rule.argument)),
            None,
        )

    def act(self, tool: str) -> ActRule | None:
        return next((rule for rule in self.acts if fnmatchcase(tool, rule.tools)), None)


_TO_WRITE = ("write", "save", "note", "put", "store", "create", "make", "draft", "record", "add", "append", "keep")
_TO_CHANGE = (*_TO_WRITE, "edit", "change", "update", "fix", "replace", "correct", "rewrite", "rename", "remove")

# The defaults if the owner has set nothing. The owner must name where something is written. The
# content may be untrusted, because a file keeps its provenance. No other untrusted value passes
# without approval.
HOUSE_RULES = OriginSettings(
    argument=(
        ArgumentRule(tools="write", argument="content", standing=(Standing.KEPT,)),
        *(ArgumentRule(tools="edit", argument=name, standing=(Standing.KEPT,)) for name in ("old", "new", "edits*")),
    ),
    act=(ActRule(tools="write", words=_TO_WRITE), ActRule(tools="edit", words=_TO_CHANGE)),
)


def house_policy(own: OriginSettings) -> OriginPolicy:
    """Build the policy from the owner's rules, followed by the default rules."""
    return policy_of(replace(own, argument=own.argument + HOUSE_RULES.argument, act=own.act + HOUSE_RULES.act))


def policy_of(rules: OriginSettings) -> OriginPolicy:
    """Build the policy from these rules alone."""
    return OriginPolicy(
        sources=rules.source,
        arguments=rules.argument,
        acts=rules.act,
        measures=rules.measure,
        speakers=frozenset(rules.speakers),
    )
