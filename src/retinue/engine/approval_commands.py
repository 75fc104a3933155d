"""Executes /allow, /approve and /deny, and accepts option numbers as answers in channels without buttons."""

from __future__ import annotations

from msgspec import Struct

from retinue.domain.approval import Approval
from retinue.domain.envelope import Envelope, EnvelopeDraft
from retinue.domain.errors import RetinueError
from retinue.domain.grant import GrantScope
from retinue.domain.ids import EnvelopeId, derive_id, short_id
from retinue.domain.principal import Principal
from retinue.domain.session import Session
from retinue.domain.slash_command import CommandName, SlashCommand
from retinue.domain.times import to_ms
from retinue.engine.approvals import decide_approval
from retinue.intake.accept import Wake
from retinue.store.core.transaction import Transaction
from retinue.store.envelopes import envelopes
from retinue.store.runs import approvals
from retinue.text.answer_options import DENY, AnswerOption, channel_question_id, find_option_by_number

ID_SHOWN_MAX = 40
OPEN_READ_MAX = 200  # open approvals read to find those of one channel

_SCOPES = {
    "allow": GrantScope.ONCE,
    **{scope.value: scope for scope in GrantScope},
    **{f"allow-{scope}": scope for scope in GrantScope},
}


def answer_by_command(
    tx: Transaction, draft: EnvelopeDraft, name: CommandName, arguments: str, session: Session, *, principal: Principal
) -> tuple[str, tuple[Wake, ...]]:
    """Execute /allow ID [SCOPE] [COMMENT], /approve ID [DECISION] [COMMENT] or /deny ID [COMMENT]."""
    id_, _, more = arguments.strip().partition(" ")
    first, _, words = more.strip().partition(" ")
    allow, scope = name is not CommandName.DENY, GrantScope.ONCE
    if name is CommandName.APPROVE and first.casefold() == DENY:
        allow = False
    elif first.casefold() in _SCOPES:
        scope = _SCOPES[first.casefold()]
    else:
        words = more
    try:
        approval = approvals.get_by_short_id(tx.conn, id_)
    except RetinueError as error:
        return _format_failure(error), ()
    if approval.session != session.id and not (principal.sees_everything or principal.address in approval.recipients):
        return f"No pending approval {id_[:ID_SHOWN_MAX]} in this conversation.", ()
    return _decide(tx, draft, approval, allow=allow, scope=scope, comment=words.strip(), principal=principal)


class NumberedAnswer(Struct, frozen=True):
    """The open approvals that a number in a person's message may answer, and the option that the person chose.

    `option` is None if several approvals are open, because the number is then ambiguous.
    """

    open_approvals: tuple[Approval, ...]
    option: AnswerOption | None


def find_numbered_answer(tx: Transaction, draft: EnvelopeDraft, command: SlashCommand) -> NumberedAnswer | None:
    """Return the open approvals that a message answers if its text is only a number.

    Returns None if no open approval in this channel has an option with this number. The message is
    then ordinary text.
    """
    standing = [
        (approval, question)
        for approval in approvals.list_open(tx.conn, limit=OPEN_READ_MAX)
        if to_ms(approval.expires_at) > tx.at_ms and (question := _question_in_channel(tx, approval, draft)) is not None
    ]
    meant = [each for each in standing if each[1].id == draft.reply_to] or standing
    offered = [(approval, find_option_by_number(question, int(command.word))) for approval, question in meant]
    if not any(option for _, option in offered):
        return None
    approval, option = offered[0]
    return (
        NumberedAnswer((approval,), option)
        if len(offered) == 1
        else NumberedAnswer(tuple(each for each, _ in meant), None)
    )


def _question_in_channel(tx: Transaction, approval: Approval, draft: EnvelopeDraft) -> Envelope | None:
    question = envelopes.get(tx.conn, channel_question_id(approval.id))
    return question if question is not None and question.recipient == draft.sender else None


def answer_by_number(
    tx: Transaction, draft: EnvelopeDraft, answer: NumberedAnswer, *, principal: Principal
) -> tuple[str, tuple[Wake, ...]]:
    """Answer an approval with the number of an option. If several approvals are open, ask the person for an id."""
    option = answer.option
    if option is None:
        ids = ", ".join(short_id(each.id) for each in answer.open_approvals)
        return (
            f"Several approvals are pending here: {ids}. Reply to the message of one, or write /allow ID or /deny ID.",
            (),
        )
    allow = option.scope is not None
    return _decide(
        tx,
        draft,
        answer.open_approvals[0],
        allow=allow,
        scope=option.scope or GrantScope.ONCE,
        comment="",
        principal=principal,
    )


def _decide(
    tx: Transaction,
    draft: EnvelopeDraft,
    approval: Approval,
    *,
    allow: bool,
    scope: GrantScope,
    comment: str,
    principal: Principal,
) -> tuple[str, tuple[Wake, ...]]:
    try:
        decided, wakes = decide_approval(
            tx,
            approval,
            allow=allow,
            by=principal,
            envelope_id=EnvelopeId(derive_id(draft.id, "decision")),
            scope=scope,
            comment=comment,
        )
    except RetinueError as error:
        return _format_failure(error), ()
    return f"{short_id(decided.id)} is {decided.state}.", wakes


def _format_failure(error: RetinueError) -> str:
    because = f" ({error.because})" if error.because else ""
    return f"Not done: {error.sentence}.{because}"
