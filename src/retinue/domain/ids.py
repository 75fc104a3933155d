"""Ids: random UUIDs of 32 hex digits. People see the first 8, and can enter any unambiguous prefix."""

from __future__ import annotations

import hashlib
import re
from typing import NewType

from retinue.domain.value_errors import IdInvalid

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


def short_id(id_: str) -> str:
    """Return the short form of an id, which people and models see."""
    return id_[:SHORT_LENGTH]


def parse_id_prefix(text: str) -> str:
    """Parse an id as typed by a person: 8 or more hex digits; hyphens and case are ignored."""
    digits = text.strip().replace("-", "").lower()
    if not SHORT_LENGTH <= len(digits) <= ID_LENGTH or not _HEX.fullmatch(digits):
        raise IdInvalid(text, digits_min=SHORT_LENGTH, digits_max=ID_LENGTH)
    return digits


def shortest_unique_prefixes(ids: list[str]) -> tuple[str, ...]:
    """Return a prefix of each id, as short as possible, so that the prefixes are distinct.

    Each prefix has at least 8 digits.
    """
    ordered = sorted(set(ids))
    length = SHORT_LENGTH
    while length < ID_LENGTH and len({id_[:length] for id_ in ordered}) < len(ordered):
        length += 1
    return tuple(id_[:length] for id_ in ordered)


def derive_id(id_: str, purpose: str) -> str:
    """Derive an id from another id.

    The same arguments always give the same id, so a repeated transaction does not create a second
    object.
    """
    return hashlib.sha256(f"{id_}/{purpose}".encode()).hexdigest()[:ID_LENGTH]
