"""Functions over questionnaires."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import sqlalchemy as sa

from retinue.domain.event import NewsKind
from retinue.domain.ids import EnvelopeId, QuestionnaireId, RunId, SessionId
from retinue.domain.principal import Principal
from retinue.domain.questionnaire import Answer, Field, Questionnaire, QuestionnaireState
from retinue.domain.times import from_ms, to_ms
from retinue.domain.trust import Trust
from retinue.store.core import tables as t
from retinue.store.core.row_visibility import PerScope, Scope, scope_of
from retinue.store.core.transaction import Page

_b = sa.bindparam
_q = t.questionnaires.c
_encode = msgspec.json.Encoder().encode
_fields = msgspec.json.Decoder(tuple[Field, ...])
_answers = msgspec.json.Decoder(dict[str, str | int | float | bool | list[str] | None])

# The owner sees all, a person those put to them, an agent its own.
_SEEN = {Scope.ALL: sa.true(), Scope.PERSON: _q.person == _b("my_name"), Scope.AGENT: _q.agent == _b("my_name")}
_open = sa.and_(_q.state == t.word("'open'"), _q.expires_ms > _b("now"))
_older = sa.or_(_q.asked_ms < _b("before_ms"), sa.and_(_q.asked_ms == _b("before_ms"), _q.id < _b("before_id")))
_newest_first = (_q.asked_ms.desc(), _q.id.desc())
_insert = t.questionnaires.insert()
_get = sa.select(t.questionnaires).where(_q.id == _b("the_id"))
_by_prefix = PerScope(
    lambda scope: sa.select(t.questionnaires).where(_q.id >= _b("low"), _q.id < _b("high"), _SEEN[scope]).limit(2)
)
_listed = PerScope(
    lambda scope: sa.select(t.questionnaires).where(_SEEN[scope], _older).order_by(*_newest_first).limit(_b("limit"))
)
_listed_open = PerScope(lambda scope: _listed[scope].where(_open))
_count_open = sa.select(sa.func.count()).select_from(t.questionnaires).where(_q.session == _b("session"), _open)
_end = (
    t.questionnaires.update()
    .where(_q.id == _b("the_id"), _q.state == t.word("'open'"))
    .values(
        state=_b("new_state"),
        ended_ms=_b("at"),
        ended_by=_b("who"),
        answers=_b("new_answers"),
        envelope=_b("new_envelope"),
    )
)
_LAST_MS = 2**62


def _questionnaire(row: sa.Row[Any]) -> Questionnaire:
    return Questionnaire(
        id=QuestionnaireId(row.id),
        person=row.person,
        agent=row.agent,
        session=SessionId(row.session),
        run=RunId(row.run),
        title=row.title,
        fields=_fields.decode(row.fields),
        trust=Trust(row.trust),
        asked_at=from_ms(row.asked_ms),
        expires_at=from_ms(row.expires_ms),
        state=QuestionnaireState(row.state),
        ended_at=from_ms(row.ended_ms) if row.ended_ms is not None else None,
        ended_by=row.ended_by,
        answers=_answers.decode(row.answers),
        envelope=EnvelopeId(row.envelope) if row.envelope else None,
    )


def _me(scope: Scope, principal: Principal) -> dict[str, str]:
    return {} if scope is Scope.ALL else {"my_name": principal.address.name}


def get(conn: sa.Connection, id_: str) -> Questionnaire | None:
    row = conn.execute(_get, {"the_id": id_}).one_or_none()
    return _questionnaire(row) if row else None


def find(conn: sa.Connection, prefix: str, *, seen_by: Principal) -> list[Questionnaire]:
    """Return at most two visible matches. Only a single one is unambiguous."""
    scope = scope_of(seen_by)
    bounds = {"low": prefix, "high": prefix + "g", **_me(scope, seen_by)}
    return [_questionnaire(row) for row in conn.execute(_by_prefix[scope], bounds)]


def listed(
    conn: sa.Connection,
    *,
    seen_by: Principal,
    limit: int,
    now_ms: int,
    only_open: bool = False,
    before: Questionnaire | None = None,
) -> list[Questionnaire]:
    """List questionnaires, newest first, starting after `before`."""
    scope = scope_of(seen_by)
    bounds: dict[str, Any] = {
        "limit": limit,
        "before_ms": to_ms(before.asked_at) if before else _LAST_MS,
        "before_id": before.id if before else "",
        **_me(scope, seen_by),
    }
    if not only_open:
        return [_questionnaire(row) for row in conn.execute(_listed[scope], bounds)]
    return [_questionnaire(row) for row in conn.execute(_listed_open[scope], {**bounds, "now": now_ms})]


def count_open(conn: sa.Connection, session: str, *, now_ms: int) -> int:
    return conn.execute(_count_open, {"session": session, "now": now_ms}).scalar_one()


def add(page: Page, questionnaire: Questionnaire) -> bool:
    """Insert a questionnaire. Returns False if it exists: a call repeated after a crash does not ask twice."""
    if get(page.conn, questionnaire.id) is not None:
        return False
    page.conn.execute(
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
    _tell(page, questionnaire, QuestionnaireState.OPEN)
    return True


def end(
    page: Page,
    questionnaire: Questionnaire,
    state: QuestionnaireState,
    *,
    by: str,
    answers: Mapping[str, Answer] | None = None,
    envelope: EnvelopeId | None = None,
) -> bool:
    """End a questionnaire. Returns whether it was still open: only the first of two concurrent answers counts."""
    values = {
        "the_id": questionnaire.id,
        "new_state": state.value,
        "at": page.at_ms,
        "who": by,
        "new_answers": _encode(answers or {}).decode(),
        "new_envelope": envelope,
    }
    if page.conn.execute(_end, values).rowcount != 1:
        return False
    _tell(page, questionnaire, state)
    return True


def _tell(page: Page, questionnaire: Questionnaire, state: QuestionnaireState) -> None:
    """Emit an event to the person and to those who can see the session. It does not contain the text."""
    page.tell(
        NewsKind.QUESTIONNAIRE_CHANGED,
        session=questionnaire.session,
        run=questionnaire.run,
        person=questionnaire.person,
        to=questionnaire.person,
        questionnaire=questionnaire.id,
        state=state.value,
    )
