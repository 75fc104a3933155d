"""Decides which tool calls the provenance of their arguments allows. Provenance is where a value came from."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from functools import cached_property

from retinue.domain.decision import Decision
from retinue.domain.record import Record
from retinue.domain.structs import replace
from retinue.domain.tool import Call, ToolSpec
from retinue.policy.provenance import provenance
from retinue.policy.provenance.provenance_match import KnownValues
from retinue.policy.provenance.provenance_rules import ProvenancePolicy


class ProvenanceChecker:
    """Decides which calls of one turn the provenance of their arguments allows.

    `canonicalize` returns a call with the aliases of arguments resolved and default values left
    out.
    """

    def __init__(
        self,
        policy: ProvenancePolicy,
        context: list[Record],
        *,
        today: date | None,
        canonicalize: Callable[[Call], Call],
    ) -> None:
        self._policy = policy
        self._today = today
        built = provenance.build_context(context)
        # A call that leaves out a default equals one that spells it out.
        self._context = replace(built, calls_done=tuple(canonicalize(call) for call in built.calls_done))

    def decide(self, spec: ToolSpec, call: Call) -> Decision:
        known = self._known_values if provenance.has_guarded_effect(spec) else None
        return provenance.decide_provenance(
            self._policy, spec, call, self._context, today=self._today, known=known
        ).decision

    @cached_property
    def _known_values(self) -> KnownValues:
        return provenance.collect_known_values(self._policy, self._context, today=self._today)
