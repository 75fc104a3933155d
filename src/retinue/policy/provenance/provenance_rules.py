"""The rules that decide where values may come from: the owner's rules, then the built-in rules."""

from __future__ import annotations

from fnmatch import fnmatchcase

from msgspec import Struct

from retinue.config.provenance import (
    ArgumentRule,
    MeasureRule,
    ProvenanceSettings,
    SourceRule,
    StandingExplanation,
    ToolRequestRule,
)
from retinue.domain.structs import replace
from retinue.domain.trust import Trust

KEY_FIELD = "<key>"  # names the keys of a result that is an object of names and values
VALUE_FIELD = "<value>"
ITEM_FIELD = "<item>"  # names the items of a result that is a list of plain values


class ProvenancePolicy(Struct, frozen=True, kw_only=True, eq=False):
    """All provenance rules. For each kind of rule, the first one that matches a tool or argument applies."""

    sources: tuple[SourceRule, ...] = ()
    arguments: tuple[ArgumentRule, ...] = ()
    acts: tuple[ToolRequestRule, ...] = ()
    measures: tuple[MeasureRule, ...] = ()
    speakers: frozenset[Trust] = frozenset({Trust.OWNER})  # messages with these trust levels explain values

    def find_source_rule(self, tool: str) -> SourceRule | None:
        return next((rule for rule in self.sources if fnmatchcase(tool, rule.tools)), None)

    def find_argument_rule(self, tool: str, argument: str) -> ArgumentRule | None:
        return next(
            (rule for rule in self.arguments if fnmatchcase(tool, rule.tools) and fnmatchcase(argument, rule.argument)),
            None,
        )

    def find_act_rule(self, tool: str) -> ToolRequestRule | None:
        return next((rule for rule in self.acts if fnmatchcase(tool, rule.tools)), None)


_WRITE_VERBS = ("write", "save", "note", "put", "store", "create", "make", "draft", "record", "add", "append", "keep")
_EDIT_VERBS = (*_WRITE_VERBS, "edit", "change", "update", "fix", "replace", "correct", "rewrite", "rename", "remove")

# The default rules, which follow those of the owner. The owner must name the file to write. Its content
# may be untrusted, because the server remembers that the file is untrusted. No other unexplained value
# is allowed without approval.
DEFAULT_RULES = ProvenanceSettings(
    argument=(
        ArgumentRule(tools="write", argument="content", explanations=(StandingExplanation.STAYS_ON_SERVER,)),
        *(
            ArgumentRule(tools="edit", argument=name, explanations=(StandingExplanation.STAYS_ON_SERVER,))
            for name in ("old", "new", "edits*")
        ),
    ),
    tool_request=(ToolRequestRule(tools="write", words=_WRITE_VERBS), ToolRequestRule(tools="edit", words=_EDIT_VERBS)),
)


def build_policy_with_defaults(own: ProvenanceSettings) -> ProvenancePolicy:
    """Build the provenance policy from the owner's rules, followed by the default rules."""
    return build_policy(
        replace(
            own,
            argument=own.argument + DEFAULT_RULES.argument,
            tool_request=own.tool_request + DEFAULT_RULES.tool_request,
        )
    )


def build_policy(rules: ProvenanceSettings) -> ProvenancePolicy:
    """Build a provenance policy from these rules alone, without the default rules."""
    return ProvenancePolicy(
        sources=rules.source,
        arguments=rules.argument,
        acts=rules.tool_request,
        measures=rules.measure,
        speakers=frozenset(rules.explaining_trust),
    )
