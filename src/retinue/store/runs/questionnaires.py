"""Store questionnaires: forms that agents send to people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import sqlalchemy as sa

from retinue.domain.event import EventKind
from retinue.domain.ids import EnvelopeId, QuestionnaireId, RunId, SessionId
from retinue.domain.principal import Principal
from retinue.domain.questionnaire import Questionnaire, QuestionnaireAnswer, QuestionnaireField, QuestionnaireState
from retinue.domain.times import from_ms, to_ms
from retinue.domain.trust import Trust
from retinue.store.core import tables as t
from retinue.store.core.row_visibility import PerScope, VisibilityScope, visibility_scope
from retinue.store.core.transaction import Transaction

_b = sa.bindparam
_q = t.questionnaires.c
_encode = msgspec.json.Encoder().encode
_fields_decoder = msgspec.json.Decoder(tuple[QuestionnaireField, ...])
_answers_decoder = msgspec.json.Decoder(dict[str, str | int | float | bool | list[str] | None])

# The owner sees all, a person those put to them, an agent its own.
_IS_VISIBLE = {
    VisibilityScope.ALL: sa.true(),
    VisibilityScope.PERSON: _q.person == _b("my_name"),
    VisibilityScope.AGENT: _q.agent == _b("my_name"),
}
_is_open = sa.and_(_q.state == t.sql_literal("'open'"), _q.expires_ms > _b("now"))
_is_older = sa.or_(_q.asked_ms < _b("before_ms"), sa.and_(_q.asked_ms == _b("before_ms"), _q.id < _b("before_id")))
_newest_first = (_q.asked_ms.desc(), _q.id.desc())
_insert = t.questionnaires.insert()
_get = sa.select(t.questionnaires).where(_q.id == _b("the_id"))
_by_prefix = PerScope(
    lambda scope: sa.select(t.questionnaires).where(_q.id >= _b("low"), _q.id < _b("high"), _IS_VISIBLE[scope]).limit(2)
)
_listed = PerScope(
    lambda scope: (
        sa.select(t.questionnaires).where(_IS_VISIBLE[scope], _is_older).order_by(*_newest_first).limit(_b("limit"))
    )
)
_listed_open = PerScope(lambda scope: _listed[scope].where(_is_open))
_count_open = sa.select(sa.func.count()).select_from(t.questionnaires).where(_q.session == _b("session"), _is_open)
_end = (
    t.questionnaires.update()
    .where(_q.id == _b("the_id"), _q.state == t.sql_literal("'open'"))
    .values(
        state=_b("new_state"),
        ended_ms=_b("at"),
        ended_by=_b("who"),
        answers=_b("new_answers"),
        envelope=_b("new_envelope"),
    )
)
_LAST_MS = 2**62


def _questionnaire_from_row(row: sa.Row[Any]) -> Questionnaire:
    return Questionnaire(
        id=QuestionnaireId(row.id),
        person=row.person,
        agent=row.agent,
        session=SessionId(row.session),
        run=RunId(row.run),
        title=row.title,
        fields=_fields_decoder.decode(row.fields),
        trust=Trust(row.trust),
        asked_at=from_ms(row.asked_ms),
        expires_at=from_ms(row.expires_ms),
        state=QuestionnaireState(row.state),
        ended_at=from_ms(row.ended_ms) if row.ended_ms is not None else None,
        ended_by=row.ended_by,
        answers=_answers_decoder.decode(row.answers),
        envelope=EnvelopeId(row.envelope) if row.envelope else None,
    )


def _principal_parameters(scope: VisibilityScope, principal: Principal) -> dict[str, str]:
    return {} if scope is VisibilityScope.ALL else {"my_name": principal.address.name}


def get(conn: sa.Connection, id_: str) -> Questionnaire | None:
    row = conn.execute(_get, {"the_id": id_}).one_or_none()
    return _questionnaire_from_row(row) if row else None


def find_by_prefix(conn: sa.Connection, prefix: str, *, seen_by: Principal) -> list[Questionnaire]:
    """Return up to two visible questionnaires whose ids start with this prefix.

    Two questionnaires mean that the prefix is ambiguous.
    """
    scope = visibility_scope(seen_by)
    bounds = {"low": prefix, "high": prefix + "g", **_principal_parameters(scope, seen_by)}
    return [_questionnaire_from_row(row) for row in conn.execute(_by_prefix[scope], bounds)]


def list_questionnaires(
    conn: sa.Connection,
    *,
    seen_by: Principal,
    limit: int,
    now_ms: int,
    only_open: bool = False,
    before: Questionnaire | None = None,
) -> list[Questionnaire]:
    """List questionnaires, newest first. For the next page, pass the last questionnaire of this page as `before`."""
    scope = visibility_scope(seen_by)
    bounds: dict[str, Any] = {
        "limit": limit,
        "before_ms": to_ms(before.asked_at) if before else _LAST_MS,
        "before_id": before.id if before else "",
        **_principal_parameters(scope, seen_by),
    }
    if not only_open:
        return [_questionnaire_from_row(row) for row in conn.execute(_listed[scope], bounds)]
    return [_questionnaire_from_row(row) for row in conn.execute(_listed_open[scope], {**bounds, "now": now_ms})]


def count_open(conn: sa.Connection, session: str, *, now_ms: int) -> int:
    return conn.execute(_count_open, {"session": session, "now": now_ms}).scalar_one()


def add(tx: Transaction, questionnaire: Questionnaire) -> bool:
    """Insert a questionnaire. Returns False if one with this id exists, so the call can be repeated after a crash."""
    if get(tx.conn, questionnaire.id) is not None:
        return False
    tx.conn.execute(
        _insert,
        {
            "id": questionnaire.id,
            "person": questionnaire.person,
            "agent": questionnaire.agent,
            "session": questionnaire.session,
            "run": questionnaire.run,
            "title": questionnaire.title,
            "fields": _encode(questionnaire.fields).decode(),
            "trust": questionnaire.trust.value,
            "state": questionnaire.state.value,
            "asked_ms": to_ms(questionnaire.asked_at),
            "expires_ms": to_ms(questionnaire.expires_at),
            "ended_ms": None,
            "ended_by": "",
            "answers": "{}",
            "envelope": None,
        },
    )
    _emit_change(tx, questionnaire, QuestionnaireState.OPEN)
    return True


def end(
    tx: Transaction,
    questionnaire: Questionnaire,
    state: QuestionnaireState,
    *,
    by: str,
    answers: Mapping[str, QuestionnaireAnswer] | None = None,
    envelope: EnvelopeId | None = None,
) -> bool:
    """End a questionnaire. Returns False if it was no longer open. If two answers arrive, only the first one counts."""
    values = {
        "the_id": questionnaire.id,
        "new_state": state.value,
        "at": tx.at_ms,
        "who": by,
        "new_answers": _encode(answers or {}).decode(),
        "new_envelope": envelope,
    }
    if tx.conn.execute(_end, values).rowcount != 1:
        return False
    _emit_change(tx, questionnaire, state)
    return True


def _emit_change(tx: Transaction, questionnaire: Questionnaire, state: QuestionnaireState) -> None:
    """Emit an event about a questionnaire, for its recipient and for everyone who can see its session.

    The event does not contain the questions or answers.
    """
    tx.emit(
        EventKind.QUESTIONNAIRE_CHANGED,
        session=questionnaire.session,
        run=questionnaire.run,
        person=questionnaire.person,
        to=questionnaire.person,
        questionnaire=questionnaire.id,
        state=state.value,
    )
