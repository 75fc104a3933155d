"""Decisions of a policy: allow, ask or deny, always with a reason."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct


class Verdict(StrEnum):
    ALLOW = "allow"
    ASK = "ask"
    DENY = "deny"


class Decision(Struct, frozen=True):
    verdict: Verdict
    because: str
    key: str = ""  # the setting or rule to change

    @property
    def allowed(self) -> bool:
        return self.verdict is Verdict.ALLOW

    @property
    def denied(self) -> bool:
        return self.verdict is Verdict.DENY
