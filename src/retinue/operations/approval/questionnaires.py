"""Operations on questionnaires: list, show, submit and cancel."""

from __future__ import annotations

from typing import Annotated

import msgspec
import sqlalchemy as sa

from retinue.domain import address
from retinue.domain.agent import PermissionLevel
from retinue.domain.errors import Conflict, NotFound
from retinue.domain.ids import prefix, short
from retinue.domain.principal import Principal
from retinue.domain.questionnaire import Field, FieldKind, Questionnaire, QuestionnaireState
from retinue.domain.times import show, to_ms
from retinue.domain.trust import Trust
from retinue.engine.questionnaire_answers import check_answerable, submit_in
from retinue.intake.accept import Wake
from retinue.operations.base import Desk, Operation
from retinue.store.core.transaction import Page
from retinue.store.runs import questionnaires

LISTED_MAX = 50
SENT_AT_ONCE_MAX = 100  # answers in one request, checked before validation

Said = str | int | float | bool | list[str] | None
Meta = msgspec.Meta


class Listing(msgspec.Struct, forbid_unknown_fields=True):
    open: Annotated[bool, Meta(description="only those that can still be answered")] = False
    limit: int = 20
    before: Annotated[str, Meta(description="the id that the page before gave as next")] = ""


class ById(msgspec.Struct, forbid_unknown_fields=True):
    id: str


class Submit(msgspec.Struct, forbid_unknown_fields=True):
    id: str
    answers: Annotated[
        dict[str, Said], Meta(max_length=SENT_AT_ONCE_MAX, description="for each field by its name what you answer")
    ]


class FieldShown(msgspec.Struct, frozen=True):
    name: str
    label: str
    kind: FieldKind
    required: bool
    options: list[str]
    least: float | None
    most: float | None


class QuestionnaireShown(msgspec.Struct, frozen=True, rename="kebab"):
    """One questionnaire. `untrusted`: the agent had read untrusted text when it wrote the questions."""

    id: str
    short: str
    state: QuestionnaireState
    title: str
    agent: str
    session: str
    to: str
    asked_at: str
    expires_at: str
    untrusted: bool
    fields: list[FieldShown]
    answers: dict[str, Said]
    ended_by: str
    envelope: str | None


class QuestionnairesListed(msgspec.Struct, frozen=True):
    """One page. `next` is the `before` of the next page."""

    questionnaires: list[QuestionnaireShown]
    next: str | None


class QuestionnaireSubmitted(msgspec.Struct, frozen=True):
    """`envelope` is the envelope that carries the answers to the agent."""

    id: str
    envelope: str
    session: str


class QuestionnaireCancelled(msgspec.Struct, frozen=True):
    id: str
    state: QuestionnaireState


async def listed(desk: Desk, caller: Principal, asked: Listing) -> QuestionnairesListed:
    limit = max(1, min(asked.limit, LISTED_MAX))

    def body(conn: sa.Connection) -> list[Questionnaire]:
        before = _one(conn, caller, asked.before) if asked.before else None
        now_ms = to_ms(desk.clock.now())
        return questionnaires.listed(
            conn, seen_by=caller, limit=limit + 1, now_ms=now_ms, only_open=asked.open, before=before
        )

    found = await desk.store.scan(body)
    shown = [_form(desk, each) for each in found[:limit]]
    return QuestionnairesListed(shown, next=shown[-1].id if len(found) > limit else None)


async def show_one(desk: Desk, caller: Principal, asked: ById) -> QuestionnaireShown:
    return _form(desk, await desk.store.scan(lambda conn: _one(conn, caller, asked.id)))


async def submit(desk: Desk, caller: Principal, asked: Submit) -> QuestionnaireSubmitted:
    """Store the answers and send them to the agent, in one commit. Invalid answers change nothing."""

    def body(conn: sa.Connection) -> tuple[QuestionnaireSubmitted, tuple[Wake, ...]]:
        page = Page(conn, to_ms(desk.clock.now()))
        found = _to_answer(conn, desk, caller, asked.id)
        envelope, wakes = submit_in(page, found, asked.answers, by=caller)
        page.close()
        return QuestionnaireSubmitted(found.id, envelope=envelope, session=found.session), wakes

    def answered(done: tuple[QuestionnaireSubmitted, tuple[Wake, ...]] | None) -> None:
        for wake in done[1] if done else ():
            desk.engine.wake(wake)

    return (await desk.store.write(body, point="questionnaire", then=answered))[0]


async def cancel(desk: Desk, caller: Principal, asked: ById) -> QuestionnaireCancelled:
    """Close a questionnaire unanswered. The agent is not notified: it did not wait for the answers."""

    def body(conn: sa.Connection) -> Questionnaire:
        page = Page(conn, to_ms(desk.clock.now()))
        found = _to_answer(conn, desk, caller, asked.id)
        questionnaires.end(page, found, QuestionnaireState.CANCELLED, by=str(caller.address))
        page.close()
        return found

    found = await desk.store.write(body, point="questionnaire")
    return QuestionnaireCancelled(found.id, QuestionnaireState.CANCELLED)


def _to_answer(conn: sa.Connection, desk: Desk, caller: Principal, text: str) -> Questionnaire:
    """Return an open questionnaire that the caller may answer."""
    found = _one(conn, caller, text)
    check_answerable(found, caller, desk.clock.now())
    return found


def _one(conn: sa.Connection, caller: Principal, text: str) -> Questionnaire:
    found = questionnaires.find(conn, prefix(text), seen_by=caller)
    if not found:
        raise NotFound(
            f"no questionnaire {short(text)}",
            because="none that you see has an id that begins so",
            try_this="copy it from the list",
            code="questionnaire.not-found",
        )
    if len(found) > 1:
        raise Conflict(
            f"{short(text)} fits several questionnaires",
            because="their ids begin alike",
            try_this="give more digits of the id",
            code="questionnaire.ambiguous",
        )
    return found[0]


def _form(desk: Desk, found: Questionnaire) -> QuestionnaireShown:
    return QuestionnaireShown(
        id=found.id,
        short=short(found.id),
        state=found.state_at(desk.clock.now()),
        title=found.title,
        agent=found.agent,
        session=found.session,
        to=str(address.person(found.person)),
        asked_at=show(found.asked_at, desk.zone),
        expires_at=show(found.expires_at, desk.zone),
        untrusted=found.trust is Trust.UNTRUSTED,
        fields=[_field_form(field) for field in found.fields],
        answers=dict(found.answers),
        ended_by=found.ended_by,
        envelope=found.envelope,
    )


def _field_form(field: Field) -> FieldShown:
    return FieldShown(
        name=field.name,
        label=field.label,
        kind=field.kind,
        required=field.required,
        options=list(field.options),
        least=field.least,
        most=field.most,
    )


OPERATIONS = (
    Operation(
        name="questionnaire.list",
        summary="List questions with fields that were put to you, newest first.",
        parameters=Listing,
        handler=listed,
        permission=PermissionLevel.RESTRICTED,
        result=QuestionnairesListed,
    ),
    Operation(
        name="questionnaire.show",
        summary="Show one questionnaire.",
        parameters=ById,
        handler=show_one,
        permission=PermissionLevel.RESTRICTED,
        result=QuestionnaireShown,
    ),
    Operation(
        name="questionnaire.submit",
        summary="Answer a questionnaire; the agent goes on with what you say.",
        parameters=Submit,
        handler=submit,
        permission=PermissionLevel.RESTRICTED,
        effect=True,
        result=QuestionnaireSubmitted,
    ),
    Operation(
        name="questionnaire.cancel",
        summary="Leave a questionnaire unanswered for good.",
        parameters=ById,
        handler=cancel,
        permission=PermissionLevel.RESTRICTED,
        effect=True,
        result=QuestionnaireCancelled,
    ),
)
