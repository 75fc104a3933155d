"""Operations on questionnaires: list, show, submit and cancel."""

from __future__ import annotations

from typing import Annotated

import msgspec
import sqlalchemy as sa

from retinue.domain import address
from retinue.domain.agent import PermissionLevel
from retinue.domain.ids import parse_id_prefix, short_id
from retinue.domain.principal import Principal
from retinue.domain.questionnaire import Questionnaire, QuestionnaireField, QuestionnaireFieldKind, QuestionnaireState
from retinue.domain.times import format_time, to_ms
from retinue.domain.trust import Trust
from retinue.engine.questionnaire_answers import check_answerable, submit_answers
from retinue.intake.accept import Wake
from retinue.operations.approval.errors import QuestionnaireAmbiguous, QuestionnaireNotFound
from retinue.operations.base import Operation, Services
from retinue.store.core.transaction import Transaction
from retinue.store.runs import questionnaires

LISTED_MAX = 50
ANSWERS_MAX = 100  # answers in one request, checked before validation

AnswerValue = str | int | float | bool | list[str] | None
Meta = msgspec.Meta


class QuestionnaireListRequest(msgspec.Struct, forbid_unknown_fields=True):
    open: Annotated[bool, Meta(description="list only questionnaires that can still be answered")] = False
    limit: int = 20
    before: Annotated[str, Meta(description="`next` of the previous page; default: the first page")] = ""


class QuestionnaireIdRequest(msgspec.Struct, forbid_unknown_fields=True):
    id: str


class QuestionnaireSubmitRequest(msgspec.Struct, forbid_unknown_fields=True):
    id: str
    answers: Annotated[dict[str, AnswerValue], Meta(max_length=ANSWERS_MAX, description="your answers, by field name")]


class QuestionnaireFieldDetails(msgspec.Struct, frozen=True):
    name: str
    label: str
    kind: QuestionnaireFieldKind
    required: bool
    options: list[str]
    least: float | None
    most: float | None


class QuestionnaireDetails(msgspec.Struct, frozen=True):
    """One questionnaire. `untrusted` is true if the agent had read untrusted text before it wrote the questions."""

    id: str
    short: str
    state: QuestionnaireState
    title: str
    agent: str
    session: str
    to: str
    created_at: str
    expires_at: str
    untrusted: bool
    fields: list[QuestionnaireFieldDetails]
    answers: dict[str, AnswerValue]
    ended_by: str
    envelope: str | None


class QuestionnaireList(msgspec.Struct, frozen=True):
    """One page of questionnaires. `next` is the `before` of the next page."""

    questionnaires: list[QuestionnaireDetails]
    next: str | None


class QuestionnaireSubmitted(msgspec.Struct, frozen=True):
    """Result of submitting answers. `envelope` is the id of the envelope that contains the answers for the agent."""

    id: str
    envelope: str
    session: str


class QuestionnaireCancelled(msgspec.Struct, frozen=True):
    id: str
    state: QuestionnaireState


async def list_questionnaires(
    services: Services, caller: Principal, request: QuestionnaireListRequest
) -> QuestionnaireList:
    limit = max(1, min(request.limit, LISTED_MAX))

    def body(conn: sa.Connection) -> list[Questionnaire]:
        before = _require_questionnaire(conn, caller, request.before) if request.before else None
        now_ms = to_ms(services.clock.now())
        return questionnaires.list_questionnaires(
            conn, seen_by=caller, limit=limit + 1, now_ms=now_ms, only_open=request.open, before=before
        )

    found = await services.store.scan(body)
    shown = [_to_details(services, each) for each in found[:limit]]
    return QuestionnaireList(shown, next=shown[-1].id if len(found) > limit else None)


async def show_questionnaire(
    services: Services, caller: Principal, request: QuestionnaireIdRequest
) -> QuestionnaireDetails:
    return _to_details(
        services, await services.store.scan(lambda conn: _require_questionnaire(conn, caller, request.id))
    )


async def submit_questionnaire(
    services: Services, caller: Principal, request: QuestionnaireSubmitRequest
) -> QuestionnaireSubmitted:
    """Store the answers to a questionnaire and send them to the agent, in one commit.

    If an answer is invalid, nothing is stored.
    """

    def body(conn: sa.Connection) -> tuple[QuestionnaireSubmitted, tuple[Wake, ...]]:
        tx = Transaction(conn, to_ms(services.clock.now()))
        found = _require_answerable(conn, services, caller, request.id)
        envelope, wakes = submit_answers(tx, found, request.answers, by=caller)
        tx.close()
        return QuestionnaireSubmitted(found.id, envelope=envelope, session=found.session), wakes

    def on_commit(done: tuple[QuestionnaireSubmitted, tuple[Wake, ...]] | None) -> None:
        for wake in done[1] if done else ():
            services.engine.wake(wake)

    return (await services.store.write(body, point="questionnaire", then=on_commit))[0]


async def cancel_questionnaire(
    services: Services, caller: Principal, request: QuestionnaireIdRequest
) -> QuestionnaireCancelled:
    """Close a questionnaire without answers. The agent is not notified, because no run is waiting for the answers."""

    def body(conn: sa.Connection) -> Questionnaire:
        tx = Transaction(conn, to_ms(services.clock.now()))
        found = _require_answerable(conn, services, caller, request.id)
        questionnaires.end(tx, found, QuestionnaireState.CANCELLED, by=str(caller.address))
        tx.close()
        return found

    found = await services.store.write(body, point="questionnaire")
    return QuestionnaireCancelled(found.id, QuestionnaireState.CANCELLED)


def _require_answerable(conn: sa.Connection, services: Services, caller: Principal, text: str) -> Questionnaire:
    """Return the questionnaire with this id. Raise if it is not open or the caller may not answer it."""
    found = _require_questionnaire(conn, caller, text)
    check_answerable(found, caller, services.clock.now())
    return found


def _require_questionnaire(conn: sa.Connection, caller: Principal, text: str) -> Questionnaire:
    found = questionnaires.find_by_prefix(conn, parse_id_prefix(text), seen_by=caller)
    if not found:
        raise QuestionnaireNotFound(short_id(text))
    if len(found) > 1:
        raise QuestionnaireAmbiguous(short_id(text))
    return found[0]


def _to_details(services: Services, questionnaire: Questionnaire) -> QuestionnaireDetails:
    return QuestionnaireDetails(
        id=questionnaire.id,
        short=short_id(questionnaire.id),
        state=questionnaire.state_at(services.clock.now()),
        title=questionnaire.title,
        agent=questionnaire.agent,
        session=questionnaire.session,
        to=str(address.person_address(questionnaire.person)),
        created_at=format_time(questionnaire.asked_at, services.zone),
        expires_at=format_time(questionnaire.expires_at, services.zone),
        untrusted=questionnaire.trust is Trust.UNTRUSTED,
        fields=[_to_field_details(field) for field in questionnaire.fields],
        answers=dict(questionnaire.answers),
        ended_by=questionnaire.ended_by,
        envelope=questionnaire.envelope,
    )


def _to_field_details(field: QuestionnaireField) -> QuestionnaireFieldDetails:
    return QuestionnaireFieldDetails(
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
        summary="List your questionnaires, newest first.",
        parameters=QuestionnaireListRequest,
        handler=list_questionnaires,
        permission=PermissionLevel.RESTRICTED,
        result=QuestionnaireList,
    ),
    Operation(
        name="questionnaire.show",
        summary="Show a questionnaire.",
        parameters=QuestionnaireIdRequest,
        handler=show_questionnaire,
        permission=PermissionLevel.RESTRICTED,
        result=QuestionnaireDetails,
    ),
    Operation(
        name="questionnaire.submit",
        summary="Answer a questionnaire. The agent gets your answers.",
        parameters=QuestionnaireSubmitRequest,
        handler=submit_questionnaire,
        permission=PermissionLevel.RESTRICTED,
        has_effect=True,
        result=QuestionnaireSubmitted,
    ),
    Operation(
        name="questionnaire.cancel",
        summary="Close a questionnaire without an answer.",
        parameters=QuestionnaireIdRequest,
        handler=cancel_questionnaire,
        permission=PermissionLevel.RESTRICTED,
        has_effect=True,
        result=QuestionnaireCancelled,
    ),
)
