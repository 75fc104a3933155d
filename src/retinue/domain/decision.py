"""Decisions of a policy: allow, ask or deny, always with a reason."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct


class DecisionKind(StrEnum):
    ALLOW = "allow"
    ASK = "ask"
    DENY = "deny"


class Decision(Struct, frozen=True):
    kind: DecisionKind
    because: str
    setting_key: str = ""  # the setting or rule to change

    @property
    def is_allowed(self) -> bool:
        return self.kind is DecisionKind.ALLOW

    @property
    def is_denied(self) -> bool:
        return self.kind is DecisionKind.DENY
