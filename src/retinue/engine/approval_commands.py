"""The commands /allow, /approve and /deny, and a bare number in a channel without buttons."""

from __future__ import annotations

from msgspec import Struct

from retinue.domain.approval import Approval
from retinue.domain.envelope import Draft, Envelope
from retinue.domain.errors import RetinueError
from retinue.domain.grant import GrantScope
from retinue.domain.ids import EnvelopeId, derived, short
from retinue.domain.principal import Principal
from retinue.domain.session import Session
from retinue.domain.slash_command import Command, CommandName
from retinue.domain.times import to_ms
from retinue.engine.approvals import decide_in
from retinue.intake.accept import Wake
from retinue.store.core.transaction import Page
from retinue.store.envelopes import envelopes
from retinue.store.runs import approvals
from retinue.text.answer_options import DENY, Option, by_number, question_in_room

ID_SHOWN_MAX = 40
OPEN_LOOKED_AT_MAX = 200  # open approvals read, to find those of one channel

_SCOPES = {
    "allow": GrantScope.ONCE,
    **{scope.value: scope for scope in GrantScope},
    **{f"allow-{scope}": scope for scope in GrantScope},
}


def decide(
    page: Page, draft: Draft, name: CommandName, rest: str, session: Session, *, who: Principal
) -> tuple[str, tuple[Wake, ...]]:
    """Execute /allow ID [SCOPE] [COMMENT], /approve ID [DECISION] [COMMENT] or /deny ID [COMMENT]."""
    id_, _, more = rest.strip().partition(" ")
    first, _, words = more.strip().partition(" ")
    allow, scope = name is not CommandName.DENY, GrantScope.ONCE
    if name is CommandName.APPROVE and first.casefold() == DENY:
        allow = False
    elif first.casefold() in _SCOPES:
        scope = _SCOPES[first.casefold()]
    else:
        words = more
    try:
        approval = approvals.resolve(page.conn, id_)
    except RetinueError as error:
        return _not_done(error), ()
    if approval.session != session.id and not (who.sees_all or who.address in approval.asked_of):
        return f"There is no open question {id_[:ID_SHOWN_MAX]} in this conversation.", ()
    return _decided(page, draft, approval, allow=allow, scope=scope, words=words.strip(), who=who)


class Numbered(Struct, frozen=True):
    """What a number in a channel may answer: the open approvals there, and the chosen option.

    `option` is None if several approvals are open and the number is ambiguous.
    """

    open: tuple[Approval, ...]
    option: Option | None


def numbered(page: Page, draft: Draft, command: Command) -> Numbered | None:
    """Return what a number answers. None if it is plain text: no open approval in this channel offers it."""
    standing = [
        (approval, question)
        for approval in approvals.listed(page.conn, limit=OPEN_LOOKED_AT_MAX)
        if to_ms(approval.expires_at) > page.at_ms and (question := _put_to(page, approval, draft)) is not None
    ]
    meant = [each for each in standing if each[1].id == draft.reply_to] or standing
    offered = [(approval, by_number(question, int(command.word))) for approval, question in meant]
    if not any(option for _, option in offered):
        return None
    approval, option = offered[0]
    return Numbered((approval,), option) if len(offered) == 1 else Numbered(tuple(each for each, _ in meant), None)


def _put_to(page: Page, approval: Approval, draft: Draft) -> Envelope | None:
    question = envelopes.get(page.conn, question_in_room(approval.id))
    return question if question is not None and question.recipient == draft.sender else None


def choose(page: Page, draft: Draft, chosen: Numbered, *, who: Principal) -> tuple[str, tuple[Wake, ...]]:
    """Answer an approval by the number of an option. With several open approvals, none is guessed."""
    option = chosen.option
    if option is None:
        ids = ", ".join(short(each.id) for each in chosen.open)
        return (
            f"Several questions are open here: {ids}. Say which one: answer to its message, or write /allow ID or "
            "/deny ID.",
            (),
        )
    allow = option.scope is not None
    return _decided(page, draft, chosen.open[0], allow=allow, scope=option.scope or GrantScope.ONCE, words="", who=who)


def _decided(
    page: Page, draft: Draft, approval: Approval, *, allow: bool, scope: GrantScope, words: str, who: Principal
) -> tuple[str, tuple[Wake, ...]]:
    try:
        decided, wakes = decide_in(
            page,
            approval,
            allow=allow,
            by=who,
            envelope_id=EnvelopeId(derived(draft.id, "decision")),
            scope=scope,
            words=words,
        )
    except RetinueError as error:
        return _not_done(error), ()
    return f"{short(decided.id)} is {decided.state}.", wakes


def _not_done(error: RetinueError) -> str:
    because = f" ({error.because})" if error.because else ""
    return f"That could not be done: {error.sentence}.{because}"
