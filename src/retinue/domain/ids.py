"""Ids: random UUIDs kept as 32 hex digits, shown as their first 8, accepted as any unambiguous prefix."""

from __future__ import annotations

import hashlib
import re
from typing import NewType

from retinue.domain.errors import Invalid

EnvelopeId = NewType("EnvelopeId", str)
SessionId = NewType("SessionId", str)
RunId = NewType("RunId", str)
ApprovalId = NewType("ApprovalId", str)
TokenId = NewType("TokenId", str)
GrantId = NewType("GrantId", str)
NotificationId = NewType("NotificationId", str)
QuestionnaireId = NewType("QuestionnaireId", str)
ScheduleId = NewType("ScheduleId", str)

ID_LENGTH = 32
SHORT_LENGTH = 8
CANDIDATES_SHOWN_MAX = 20

_HEX = re.compile(r"[0-9a-f]+")


def short(id_: str) -> str:
    """How an id is shown to people and models."""
    return id_[:SHORT_LENGTH]


def prefix(text: str) -> str:
    """Read what someone typed for an id: 8 or more hex digits, hyphens and case ignored."""
    digits = text.strip().replace("-", "").lower()
    if not SHORT_LENGTH <= len(digits) <= ID_LENGTH or not _HEX.fullmatch(digits):
        raise Invalid(
            f"{text[:64]!r} is not an id",
            because=f"an id is {SHORT_LENGTH} to {ID_LENGTH} hex digits",
            try_this="copy it from a list or an answer",
            code="id.invalid",
        )
    return digits


def distinguish(ids: list[str]) -> tuple[str, ...]:
    """The shortest prefixes, 8 digits or more, that tell these ids apart."""
    ordered = sorted(set(ids))
    length = SHORT_LENGTH
    while length < ID_LENGTH and len({id_[:length] for id_ in ordered}) < len(ordered):
        length += 1
    return tuple(id_[:length] for id_ in ordered)


def derived(id_: str, purpose: str) -> str:
    """An id that follows from another: the same each time, so a transaction that is run again makes nothing new."""
    return hashlib.sha256(f"{id_}/{purpose}".encode()).hexdigest()[:ID_LENGTH]
