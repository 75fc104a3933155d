"""Button presses below questions: the decision, and the reply that only the presser sees.

A press decides like a command, in one commit. The reply to it is tried once, in the background.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from functools import partial

import sqlalchemy as sa
from msgspec import Struct

from retinue.connectors.base import Answers, Connector
from retinue.domain.approval import Approval
from retinue.domain.audit import approval_refused
from retinue.domain.envelope import Context, Envelope
from retinue.domain.errors import NotAllowed, RetinueError, StoreError
from retinue.domain.grant import GrantScope
from retinue.domain.ids import EnvelopeId, derived, short
from retinue.domain.ports import Clock
from retinue.domain.questionnaire import FieldKind, Questionnaire
from retinue.domain.times import from_ms, to_ms
from retinue.domain.trust import Trust
from retinue.engine.approvals import decide_in
from retinue.engine.questionnaire_answers import check_answerable, submit_in
from retinue.intake.accept import Wake
from retinue.intake.connector_intake import Press
from retinue.store.agents import audit
from retinue.store.core.connection import Store
from retinue.store.core.transaction import Page
from retinue.store.envelopes import envelopes
from retinue.store.runs import approvals, questionnaires
from retinue.text.answer_options import PICK, Option, by_word, read_press

log = logging.getLogger(__name__)

ANSWERED_AT_ONCE_MAX = 20  # concurrent replies; more presses than that get no reply
ANSWER_S_MAX = 10.0
NOT_YOURS = "This is not yours to decide."
YES = f"{PICK}0"  # the first of the two options
MEANS_NOTHING = "This button means nothing here."


class Pressed(Struct, frozen=True):
    """The result of a press: the reply to the presser, and the lanes to wake."""

    text: str
    wakes: tuple[Wake, ...] = ()


class Presses:
    """Handles button presses from connectors, and replies where the platform can."""

    def __init__(
        self, store: Store, clock: Clock, wake: Callable[[Wake], None], connectors: Mapping[str, Connector]
    ) -> None:
        self._store = store
        self._clock = clock
        self._wake = wake
        self._connectors = connectors
        self._answers: set[asyncio.Task[None]] = set()

    async def take(self, press: Press) -> None:
        """Handle a press. Once this returns, the decision is stored.

        Raises if the store fails; the platform then delivers the press again.
        """
        body = partial(press_in, press=press, now_ms=to_ms(self._clock.now()))
        pressed = await self._store.write(body, point="decide", then=self._decided)
        self._say(press.instance, press.press_id, pressed.text)

    async def refuse(self, instance: str, press_id: str) -> None:
        """Reply to a presser without access. The intake has already audited it."""
        self._say(instance, press_id, NOT_YOURS)

    def abandon(self) -> None:
        for task in self._answers:
            task.cancel()

    def _decided(self, pressed: Pressed | None) -> None:
        for wake in pressed.wakes if pressed is not None else ():
            self._wake(wake)

    def _say(self, instance: str, press_id: str, text: str) -> None:
        connector = self._connectors.get(instance)
        if isinstance(connector, Answers) and len(self._answers) < ANSWERED_AT_ONCE_MAX:
            task = asyncio.create_task(_answer(connector, instance, press_id, text), name=f"press at {instance}")
            self._answers.add(task)
            task.add_done_callback(self._answers.discard)


async def _answer(connector: Answers, instance: str, press_id: str, text: str) -> None:
    try:
        async with asyncio.timeout(ANSWER_S_MAX):
            await connector.answer_press(press_id, text)
    except Exception as error:  # a connector failure must not undo the decision
        known = isinstance(error, RetinueError | OSError)
        log.info("press not answered", exc_info=None if known else error, extra={"connector": instance})


def press_in(conn: sa.Connection, *, press: Press, now_ms: int) -> Pressed:
    """The commit of a press. A button is valid only in the channel that its question was sent to."""
    found = _question(conn, press)
    if found is None:
        log.info("press means nothing here", extra={"connector": press.instance})
        return Pressed(MEANS_NOTHING)
    question, subject, option = found
    page = Page(conn, now_ms)
    try:
        if isinstance(subject, Questionnaire):
            pressed = _pick(page, press, question, subject, option)
        else:
            pressed = _decide(page, press, question, subject, option)
    except StoreError:
        raise
    except NotAllowed as error:
        if isinstance(subject, Questionnaire):
            log.info("press refused", extra={"connector": press.instance, "because": error.because})
            return Pressed(NOT_YOURS)
        approval, who = subject, str(press.who.address)
        line = approval_refused(
            approval.id, by=who, agent=question.sender.name, run=approval.run, because=error.because
        )
        audit.append(page, approval.session, [line])
        page.close()
        return Pressed(f"{NOT_YOURS} ({error.because})")
    except RetinueError as error:
        return Pressed(f"{error.sentence} ({error.because})" if error.because else error.sentence)
    page.close()
    return pressed


def _decide(page: Page, press: Press, question: Envelope, approval: Approval, option: Option) -> Pressed:
    decided, wakes = decide_in(
        page,
        approval,
        allow=option.scope is not None,
        by=press.who,
        envelope_id=EnvelopeId(derived(question.id, f"press/{press.press_id}")),
        scope=option.scope or GrantScope.ONCE,
    )
    return Pressed(f"{short(decided.id)} is {decided.state}.", wakes)


def _pick(page: Page, press: Press, question: Envelope, asked: Questionnaire, option: Option) -> Pressed:
    """Answer a questionnaire of one question with one press. The agent's answer goes to the same channel."""
    check_answerable(asked, press.who, from_ms(page.at_ms))
    field = asked.fields[0]
    answer = option.word == YES if field.kind is FieldKind.YES_NO else option.label
    context = Context(person=press.who.address.name, from_boss=press.who.trust is Trust.OWNER)
    _, wakes = submit_in(page, asked, {field.name: answer}, by=press.who, sender=question.recipient, context=context)
    return Pressed(f"{option.label}.", wakes)


def _question(conn: sa.Connection, press: Press) -> tuple[Envelope, Approval | Questionnaire, Option] | None:
    read = read_press(press.data)
    question = envelopes.get(conn, read[1]) if read is not None else None
    if read is None or question is None or str(question.recipient) != f"channel:{press.instance}:{press.room}":
        return None
    about = question.context.questionnaire
    subject = questionnaires.get(conn, about) if about else approvals.get(conn, question.context.approval)
    option = by_word(question, read[0])
    return (question, subject, option) if subject is not None and option is not None else None
