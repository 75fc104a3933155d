"""Retries dead letters. A settled envelope never changes: the same content is posted as a new
envelope."""

from __future__ import annotations

import sqlalchemy as sa
from msgspec.structs import replace

from retinue.domain.envelope import Draft, Envelope, Kind
from retinue.domain.errors import Conflict
from retinue.domain.ids import EnvelopeId, short
from retinue.intake.accept import HANDED_ON, Entered, enter
from retinue.store.core.transaction import Page
from retinue.store.envelopes import envelopes
from retinue.store.envelopes.dead_letters import DEAD, RETRIES_MAX, RETRY_SOURCE, first_letter, retries, retry_key


def retry(conn: sa.Connection, *, id_text: str, new_id: EnvelopeId, now_ms: int) -> Entered:
    """The retry commit. Refused unless the envelope and all its earlier retries are dead letters."""
    page = Page(conn, now_ms)
    letter = envelopes.get(conn, envelopes.resolve(conn, id_text))
    assert letter is not None  # resolved in the same transaction
    earlier = retries(conn, letter)
    _refuse_unless_dead(conn, letter, earlier)
    entered = enter(page, _draft(letter, new_id, number=len(earlier) + 1), strict=True)
    page.close()
    return replace(entered, receipt=replace(entered.receipt, news_seq=page.news_seq))


def _draft(letter: Envelope, new_id: EnvelopeId, *, number: int) -> Draft:
    """The same content and addresses. Its times are not repeated: a retry means now."""
    return Draft(
        id=new_id,
        sender=letter.sender,
        recipient=letter.recipient,
        text=letter.text,
        source=RETRY_SOURCE,
        key=retry_key(first_letter(letter), number),
        kind=letter.kind,
        attachments=letter.attachments,
        context=letter.context,
        reply_to=letter.reply_to,
        trust=letter.trust,
        silent=letter.silent,
        retry_of=letter.id,
    )


def _refuse_unless_dead(conn: sa.Connection, letter: Envelope, earlier: list[Envelope]) -> None:
    ended = envelopes.settled(conn, letter.id)
    if ended is None or ended.outcome not in DEAD:
        raise Conflict(
            f"envelope {short(letter.id)} is no dead letter",
            because=f"it ended {ended.outcome}: {ended.because}" if ended else f"it is still {letter.status}",
            try_this="send a new envelope" if ended else f"look at `retinue why {short(letter.id)}`",
            code="dead.not-dead",
        )
    if letter.kind is Kind.DECISION:
        raise Conflict(
            f"envelope {short(letter.id)} is a decision, and a decision is not repeated",
            because="it allowed its calls once; some of them may have been made",
            try_this="ask the agent again",
            code="dead.decision",
        )
    if letter.kind in HANDED_ON:
        raise Conflict(
            f"envelope {short(letter.id)} is work that an agent handed on, and that is not repeated",
            because="whoever asked was told that it failed, and may have gone on",
            try_this="ask the agent again",
            code="dead.handed-on",
        )
    for retried in earlier:
        became = envelopes.settled(conn, retried.id)
        if became is None or became.outcome not in DEAD:
            raise Conflict(
                f"envelope {short(letter.id)} was already retried",
                because=f"its retry {short(retried.id)} is {became.outcome if became else retried.status}",
                try_this=f"look at `retinue why {short(retried.id)}`",
                code="dead.already-retried",
            )
    if len(earlier) >= RETRIES_MAX:
        raise Conflict(
            f"envelope {short(letter.id)} was retried {len(earlier)} times",
            because=f"a letter is retried at most {RETRIES_MAX} times",
            try_this="send it as a new envelope",
            code="dead.retried-too-often",
        )
