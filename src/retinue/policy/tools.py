"""May this agent make this call? Deny wins, then ask; what no list names is denied."""

from __future__ import annotations

from fnmatch import fnmatchcase

from retinue.domain.agent import ToolRules
from retinue.domain.decision import Decision, Verdict

EVERYTHING = "*"


def decide(rules: ToolRules, tool: str, *, by_name: bool = False) -> Decision:
    """`by_name`: a bare `*` does not let an agent have it."""
    for globs, verdict in ((rules.deny, Verdict.DENY), (rules.ask, Verdict.ASK), (rules.allow, Verdict.ALLOW)):
        for glob in globs:
            if by_name and glob == EVERYTHING and verdict is not Verdict.DENY:
                continue
            if fnmatchcase(tool, glob):
                return Decision(verdict, f"the agent's rules {verdict} '{glob}'")
    return Decision(Verdict.DENY, f"no rule of the agent names '{tool}'")
