"""Decides tool calls by the provenance of their arguments, once for all calls of a turn."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from functools import cached_property

from retinue.domain.decision import Decision
from retinue.domain.record import Record
from retinue.domain.structs import replace
from retinue.domain.tool import Call, ToolSpec
from retinue.policy.provenance import provenance
from retinue.policy.provenance.provenance_match import Known
from retinue.policy.provenance.provenance_rules import OriginPolicy


class Reading:
    """Decides calls by the provenance of their arguments.

    `canonicalize` returns a call in the form in which its tool parses it.
    """

    def __init__(
        self, policy: OriginPolicy, context: list[Record], *, today: date | None, as_read: Callable[[Call], Call]
    ) -> None:
        self._policy = policy
        self._today = today
        told = provenance.context_of(context)
        # A call that leaves out a default equals one that spells it out.
        self._context = replace(told, done=tuple(as_read(call) for call in told.done))

    def decide(self, spec: ToolSpec, call: Call) -> Decision:
        known = self._known if provenance.is_effectful(spec) else None
        return provenance.decide(self._policy, spec, call, self._context, today=self._today, known=known).decision

    @cached_property
    def _known(self) -> Known:
        return provenance.known_from(self._policy, self._context, today=self._today)
