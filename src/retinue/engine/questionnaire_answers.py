"""Accepts answers to questionnaires, from a form or, if there is only one question, from a button press."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from retinue.domain import address
from retinue.domain.address import Address
from retinue.domain.envelope import NO_CONTEXT, EnvelopeContext, EnvelopeDraft
from retinue.domain.ids import EnvelopeId, derive_id, short_id
from retinue.domain.principal import Principal
from retinue.domain.questionnaire import Questionnaire, QuestionnaireAnswer, QuestionnaireState
from retinue.engine.errors import (
    QuestionnaireAnswersInvalid,
    QuestionnaireNotAllowed,
    QuestionnaireNotOpen,
    QuestionnaireRecipientGone,
)
from retinue.intake.accept import Wake, accept_in_transaction, check_draft
from retinue.policy.questionnaires import decide_answer_trust, drop_empty_answers, find_invalid_answers, format_answers
from retinue.store.agents import agents
from retinue.store.core.transaction import Transaction
from retinue.store.runs import questionnaires
from retinue.store.sessions import sessions


def check_answerable(questionnaire: Questionnaire, by: Principal, now: datetime) -> None:
    """Raise an error if the person may not answer the questionnaire, or if it is no longer open."""
    if not by.sees_everything and by.address != address.person_address(questionnaire.person):
        raise QuestionnaireNotAllowed(short_id(questionnaire.id), person=questionnaire.person)
    state = questionnaire.state_at(now)
    if state is not QuestionnaireState.OPEN:
        raise QuestionnaireNotOpen(short_id(questionnaire.id), state=state, ended_by=questionnaire.ended_by)


def submit_answers(
    tx: Transaction,
    questionnaire: Questionnaire,
    answers: Mapping[str, QuestionnaireAnswer],
    *,
    by: Principal,
    sender: Address | None = None,
    context: EnvelopeContext = NO_CONTEXT,
) -> tuple[EnvelopeId, tuple[Wake, ...]]:
    """Store the answers and send them to the agent in one commit. If an answer is invalid, nothing changes.

    `sender` is the channel in which the person answered. The agent replies in this channel.
    """
    if wrong := find_invalid_answers(questionnaire.fields, answers):
        raise QuestionnaireAnswersInvalid(wrong)
    _check_recipient_exists(tx, questionnaire)
    kept = drop_empty_answers(questionnaire.fields, answers)
    draft = EnvelopeDraft(
        id=EnvelopeId(derive_id(questionnaire.id, "answers")),
        sender=sender or by.address,
        recipient=address.agent_address(questionnaire.agent, questionnaire.session),
        text=format_answers(questionnaire, kept),
        source=str(by.address),
        idempotency_key=f"{questionnaire.id}/answers",
        context=context,
        trust=decide_answer_trust(questionnaire, kept, by.trust),
    )
    check_draft(draft)  # all answers together may exceed the size of one envelope
    questionnaires.end(
        tx, questionnaire, QuestionnaireState.ANSWERED, by=str(by.address), answers=kept, envelope=draft.id
    )
    return draft.id, accept_in_transaction(tx, draft, strict=True).wakes


def _check_recipient_exists(tx: Transaction, questionnaire: Questionnaire) -> None:
    """Raise an error if the session or agent was deleted. Answers to a deleted session would create it again."""
    session = sessions.get(tx.conn, questionnaire.session)
    if session is None or session.deleted_at is not None or agents.find(tx.conn, questionnaire.agent) is None:
        raise QuestionnaireRecipientGone
