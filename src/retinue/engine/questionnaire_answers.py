"""Answers to questionnaires: from a form, or from one button press if there is one question."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from retinue.domain import address
from retinue.domain.address import Address
from retinue.domain.envelope import NO_CONTEXT, Context, Draft
from retinue.domain.errors import Conflict, NotAllowed, Unfit
from retinue.domain.ids import EnvelopeId, derived, short
from retinue.domain.principal import Principal
from retinue.domain.questionnaire import Answer, Questionnaire, QuestionnaireState
from retinue.intake.accept import Wake, check, enter
from retinue.policy.questionnaires import faults, given, in_words, trust_of
from retinue.store.agents import agents
from retinue.store.core.transaction import Page
from retinue.store.runs import questionnaires
from retinue.store.sessions import sessions


def check_answerable(found: Questionnaire, by: Principal, now: datetime) -> None:
    """Raise if the person may not answer the questionnaire, or if it is no longer open."""
    if not by.sees_all and by.address != address.person(found.person):
        raise NotAllowed(
            f"questionnaire {short(found.id)} is not yours to answer",
            because=f"it was put to {found.person}",
            try_this="leave it to them, or to the owner of this house",
            code="questionnaire.not-yours",
        )
    state = found.state_at(now)
    if state is not QuestionnaireState.OPEN:
        raise Conflict(
            f"questionnaire {short(found.id)} is {state}",
            because=f"it was {state} by {found.ended_by}" if found.ended_by else "its time was over",
            try_this="write to the agent instead",
            code="questionnaire.not-open",
        )


def submit_in(
    page: Page,
    found: Questionnaire,
    answers: Mapping[str, Answer],
    *,
    by: Principal,
    sender: Address | None = None,
    context: Context = NO_CONTEXT,
) -> tuple[EnvelopeId, tuple[Wake, ...]]:
    """Store the answers and send them to the agent in one commit. Invalid answers change nothing.

    `sender` is the channel in which they were given. The agent's answer goes there.
    """
    if wrong := faults(found.fields, answers):
        raise Unfit(
            "these answers do not fit",
            because="; ".join(f"{name}: {fault}" for name, fault in wrong.items()),
            try_this="put these right and send all answers again",
            code="questionnaire.answers-unfit",
            fields=wrong,
        )
    _refuse_gone(page, found)
    kept = given(found.fields, answers)
    draft = Draft(
        id=EnvelopeId(derived(found.id, "answers")),
        sender=sender or by.address,
        recipient=address.agent(found.agent, found.session),
        text=in_words(found, kept),
        source=str(by.address),
        key=f"{found.id}/answers",
        context=context,
        trust=trust_of(found, kept, by.trust),
    )
    check(draft)  # all answers together may exceed the size of one envelope
    questionnaires.end(page, found, QuestionnaireState.ANSWERED, by=str(by.address), answers=kept, envelope=draft.id)
    return draft.id, enter(page, draft, strict=True).wakes


def _refuse_gone(page: Page, found: Questionnaire) -> None:
    """Raise if the session was deleted: an answer must not start it again."""
    session = sessions.get(page.conn, found.session)
    if session is None or session.deleted_at is not None or agents.find(page.conn, found.agent) is None:
        raise Conflict(
            "nobody waits for these answers any more",
            because="the conversation they belong to was deleted, or its agent has gone",
            try_this="cancel the questionnaire",
            code="questionnaire.nobody-waits",
        )
