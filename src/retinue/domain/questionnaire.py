"""Questionnaires: forms that an agent sends to a person. The answers return as an envelope."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum

from msgspec import Struct

from retinue.domain.ids import EnvelopeId, QuestionnaireId, RunId, SessionId
from retinue.domain.trust import Trust

QuestionnaireAnswer = str | int | float | bool | list[str] | None
"""The answer to one field; None if the field was left empty."""


class QuestionnaireFieldKind(StrEnum):
    TEXT = "text"
    CHOICE = "choice"  # one of the options
    SEVERAL = "several"  # any of the options
    NUMBER = "number"
    YES_NO = "yes-no"


class QuestionnaireState(StrEnum):
    OPEN = "open"
    ANSWERED = "answered"
    CANCELLED = "cancelled"
    EXPIRED = "expired"  # never stored: the state of an open questionnaire after its expiry


class QuestionnaireField(Struct, frozen=True, kw_only=True):
    """One question of a questionnaire. `name` is the key of its answer, and `label` is what the person reads.

    `least` and `most` limit a number, the length of text, or how many options are selected.
    """

    name: str
    label: str
    kind: QuestionnaireFieldKind
    required: bool = False
    options: tuple[str, ...] = ()
    least: float | None = None
    most: float | None = None


class Questionnaire(Struct, frozen=True, kw_only=True):
    """A form that an agent sends to a person.

    `trust` is the trust of the agent's context when it wrote the questions. It applies to selected options too, because
    the agent wrote their text.
    """

    id: QuestionnaireId
    person: str
    agent: str
    session: SessionId
    run: RunId
    title: str
    fields: tuple[QuestionnaireField, ...]
    trust: Trust
    asked_at: datetime
    expires_at: datetime
    state: QuestionnaireState = QuestionnaireState.OPEN
    ended_at: datetime | None = None
    ended_by: str = ""
    answers: Mapping[str, QuestionnaireAnswer]
    envelope: EnvelopeId | None = None

    def state_at(self, now: datetime) -> QuestionnaireState:
        """Return the state of the questionnaire at this time.

        After its expiry, an open questionnaire counts as expired, although its stored state does not
        change.
        """
        if self.state is QuestionnaireState.OPEN and now >= self.expires_at:
            return QuestionnaireState.EXPIRED
        return self.state
