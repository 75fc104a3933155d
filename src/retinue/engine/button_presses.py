"""Handles presses of the buttons below a question: stores the decision, and replies to the person who pressed.

Only this person sees the reply. The decision is stored in one commit, like the decision of a slash
command. The reply is sent in the background and never retried.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from functools import partial

import sqlalchemy as sa
from msgspec import Struct

from retinue.connectors.base import Connector, SupportsPressAnswers
from retinue.domain.approval import Approval
from retinue.domain.audit import approval_refused
from retinue.domain.envelope import Envelope, EnvelopeContext
from retinue.domain.errors import NotAllowed, RetinueError, StoreError
from retinue.domain.grant import GrantScope
from retinue.domain.ids import EnvelopeId, derive_id, short_id
from retinue.domain.ports import Clock
from retinue.domain.questionnaire import Questionnaire, QuestionnaireFieldKind
from retinue.domain.times import from_ms, to_ms
from retinue.domain.trust import Trust
from retinue.engine.approvals import decide_approval
from retinue.engine.questionnaire_answers import check_answerable, submit_answers
from retinue.intake.accept import Wake
from retinue.intake.connector_intake import ButtonPress
from retinue.store.agents import audit
from retinue.store.core.connection import Store
from retinue.store.core.transaction import Transaction
from retinue.store.envelopes import envelopes
from retinue.store.runs import approvals, questionnaires
from retinue.text.answer_options import CHOICE_PREFIX, AnswerOption, find_option_by_keyword, parse_button_data

log = logging.getLogger(__name__)

CONCURRENT_REPLIES_MAX = 20  # concurrent replies; further presses get no reply
REPLY_TIMEOUT_S = 10.0
NOT_ALLOWED = "You cannot decide this."
YES_OPTION = f"{CHOICE_PREFIX}0"  # the first of the two options
UNKNOWN_BUTTON = "This button no longer works."


class PressResult(Struct, frozen=True):
    """The result of a button press: the reply to the person, and the lanes to wake."""

    text: str
    wakes: tuple[Wake, ...] = ()


class ButtonPresses:
    """Handles button presses from connectors, and replies to them if the platform supports it."""

    def __init__(
        self, store: Store, clock: Clock, wake: Callable[[Wake], None], connectors: Mapping[str, Connector]
    ) -> None:
        self._store = store
        self._clock = clock
        self._wake = wake
        self._connectors = connectors
        self._replies: set[asyncio.Task[None]] = set()

    async def handle(self, press: ButtonPress) -> None:
        """Handle a button press. When this returns, the decision is stored.

        Raises an error if the store fails. The platform then delivers the press again.
        """
        body = partial(handle_press, press=press, now_ms=to_ms(self._clock.now()))
        pressed = await self._store.write(body, point="decide", then=self._wake_all)
        self._reply_soon(press.connector, press.press_id, pressed.text)

    async def refuse(self, connector_name: str, press_id: str) -> None:
        """Reply to a person without access who pressed a button. The intake has already written the audit entry."""
        self._reply_soon(connector_name, press_id, NOT_ALLOWED)

    def abandon(self) -> None:
        for task in self._replies:
            task.cancel()

    def _wake_all(self, result: PressResult | None) -> None:
        for wake in result.wakes if result is not None else ():
            self._wake(wake)

    def _reply_soon(self, connector_name: str, press_id: str, text: str) -> None:
        connector = self._connectors.get(connector_name)
        if isinstance(connector, SupportsPressAnswers) and len(self._replies) < CONCURRENT_REPLIES_MAX:
            task = asyncio.create_task(
                _reply(connector, connector_name, press_id, text), name=f"press at {connector_name}"
            )
            self._replies.add(task)
            task.add_done_callback(self._replies.discard)


async def _reply(connector: SupportsPressAnswers, connector_name: str, press_id: str, text: str) -> None:
    try:
        async with asyncio.timeout(REPLY_TIMEOUT_S):
            await connector.answer_press(press_id, text)
    except Exception as error:  # a connector failure must not undo the decision
        known = isinstance(error, RetinueError | OSError)
        log.info("button press not answered", exc_info=None if known else error, extra={"connector": connector_name})


def handle_press(conn: sa.Connection, *, press: ButtonPress, now_ms: int) -> PressResult:
    """Carry out a button press in one commit. A button is valid only in the channel that its question was sent to."""
    found = _find_question(conn, press)
    if found is None:
        log.info("unknown button pressed", extra={"connector": press.connector})
        return PressResult(UNKNOWN_BUTTON)
    question, subject, option = found
    tx = Transaction(conn, now_ms)
    try:
        if isinstance(subject, Questionnaire):
            pressed = _answer_questionnaire(tx, press, question, subject, option)
        else:
            pressed = _decide_approval(tx, press, question, subject, option)
    except StoreError:
        raise
    except NotAllowed as error:
        if isinstance(subject, Questionnaire):
            log.info("button press refused", extra={"connector": press.connector, "because": error.because})
            return PressResult(NOT_ALLOWED)
        approval, who = subject, str(press.principal.address)
        line = approval_refused(
            approval.id, by=who, agent=question.sender.name, run=approval.run, because=error.because
        )
        audit.append(tx, approval.session, [line])
        tx.close()
        return PressResult(f"{NOT_ALLOWED} ({error.because})")
    except RetinueError as error:
        return PressResult(f"{error.sentence} ({error.because})" if error.because else error.sentence)
    tx.close()
    return pressed


def _decide_approval(
    tx: Transaction, press: ButtonPress, question: Envelope, approval: Approval, option: AnswerOption
) -> PressResult:
    decided, wakes = decide_approval(
        tx,
        approval,
        allow=option.scope is not None,
        by=press.principal,
        envelope_id=EnvelopeId(derive_id(question.id, f"press/{press.press_id}")),
        scope=option.scope or GrantScope.ONCE,
    )
    return PressResult(f"{short_id(decided.id)} is {decided.state}.", wakes)


def _answer_questionnaire(
    tx: Transaction, press: ButtonPress, question: Envelope, questionnaire: Questionnaire, option: AnswerOption
) -> PressResult:
    """Answer a questionnaire with a button press. Only a questionnaire with one question has buttons.

    The agent then replies in the channel of the question.
    """
    check_answerable(questionnaire, press.principal, from_ms(tx.at_ms))
    field = questionnaire.fields[0]
    answer = option.keyword == YES_OPTION if field.kind is QuestionnaireFieldKind.YES_NO else option.label
    context = EnvelopeContext(person=press.principal.address.name, from_boss=press.principal.trust is Trust.OWNER)
    _, wakes = submit_answers(
        tx, questionnaire, {field.name: answer}, by=press.principal, sender=question.recipient, context=context
    )
    return PressResult(f"{option.label}.", wakes)


def _find_question(
    conn: sa.Connection, press: ButtonPress
) -> tuple[Envelope, Approval | Questionnaire, AnswerOption] | None:
    read = parse_button_data(press.data)
    question = envelopes.get(conn, read[1]) if read is not None else None
    if read is None or question is None or str(question.recipient) != f"channel:{press.connector}:{press.channel}":
        return None
    about = question.context.questionnaire
    subject = questionnaires.get(conn, about) if about else approvals.get(conn, question.context.approval)
    option = find_option_by_keyword(question, read[0])
    return (question, subject, option) if subject is not None and option is not None else None
