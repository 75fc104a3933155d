"""Text that a run sends to a channel before its answer, and its removal from that answer.

A reply with calls becomes an envelope in the commit that closes its step. So it is sent once, also
if the run is resumed, and nothing reaches a channel before it is stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from msgspec.structs import replace

from retinue.domain import address
from retinue.domain.address import Address, AddressKind
from retinue.domain.envelope import TEXT_BYTES_MAX, Draft, Kind
from retinue.domain.ids import EnvelopeId, derived
from retinue.domain.record import Reply
from retinue.domain.reply_delivery import Stream, Words
from retinue.domain.run import Step
from retinue.domain.storable_text import clipped_bytes
from retinue.domain.times import from_ms
from retinue.domain.trust import Trust, least
from retinue.engine.run_context import Work, trust_of_mail
from retinue.engine.step_writer import Closing, Unwritten
from retinue.intake.accept import ClockWake, RoomWake, Wake, enter
from retinue.intake.routing import answer_address
from retinue.runners.base import SILENT_TOKENS, Finished
from retinue.store.core.transaction import Page
from retinue.store.envelopes import envelopes
from retinue.text.answer_dedupe import unsaid

SAID = "said"
SAID_BEFORE = "answered by what the agent sent there itself"


def say_so_far(page: Page, work: Work, closings: Sequence[Unwritten]) -> tuple[Wake, ...]:
    """Send the text of replies with calls to the channel that waits for the answer.

    Other recipients see it as a stream, or not at all.
    """
    words = work.words
    if words is None or not words.intermediate or (room := _room(work)) is None:
        return ()
    wakes: list[Wake] = []
    for closing in closings:
        match closing:
            case Closing(Reply(calls=calls) as reply, Step(turn=turn)) if calls and _has_words(reply):
                wakes += _say(page, work, words, room, turn=turn, text=reply.text.strip())
            case _:
                pass
    return tuple(wakes)


def let_go(page: Page, work: Work) -> tuple[Wake, ...]:
    """Send text that is held back for more blocks now: the answer or a question follows it."""
    if work.words is None or work.words.stream is not Stream.BLOCKS or (room := _room(work)) is None:
        return ()
    waits = envelopes.said_and_waiting(page.conn, run=work.run.id, recipient=str(room))
    if waits is None:
        return ()
    envelopes.let_go(page.conn, waits.id, due_ms=page.at_ms, session=None, recipient=room, text=waits.text)
    return (RoomWake(str(room)),)


def without_what_was_said(page: Page, work: Work, answer: Draft, finished: Finished) -> Draft | None:
    """Remove text from the answer that this run already sent to the same channel. None if nothing is left."""
    said = envelopes.said_by(page.conn, run=work.run.id, recipient=str(answer.recipient))
    if not said:
        return answer
    rest = unsaid(finished.text, said)
    if rest == finished.text:
        return answer
    remarks = [f"[{remark}]" for remark in finished.remarks]
    text = "\n\n".join((*((rest,) if rest else ()), *remarks))
    if not text:
        return None
    return replace(answer, text=clipped_bytes(text, TEXT_BYTES_MAX))


def _room(work: Work) -> Address | None:
    if not work.envelopes or not work.session.origin.kind.foreground:
        return None
    first = work.envelopes[0]
    if first.kind is Kind.DELEGATION:
        return None
    to = answer_address(work.run.sender, origin=work.session.origin, kind=first.kind, asked=first.context.answer_to)
    return to if to is not None and to.kind is AddressKind.CHANNEL else None


def _has_words(reply: Reply) -> bool:
    text = reply.text.strip()
    return bool(text) and text not in SILENT_TOKENS


def _say(page: Page, work: Work, words: Words, room: Address, *, turn: int, text: str) -> tuple[Wake, ...]:
    """Send one reply. In block mode a short one waits a moment, because the next may be joined to it."""
    idle_ms = words.block_idle_ms if words.stream is Stream.BLOCKS else 0
    waits = envelopes.said_and_waiting(page.conn, run=work.run.id, recipient=str(room)) if idle_ms else None
    if waits is not None:
        text = f"{waits.text}\n\n{text}"
        idle_ms = 0 if len(text) >= words.block_min else idle_ms
        due_ms = page.at_ms + idle_ms
        text = clipped_bytes(text, TEXT_BYTES_MAX)
        envelopes.let_go(page.conn, waits.id, due_ms=due_ms, session=None, recipient=room, text=text)
        return (ClockWake(due_ms),) if idle_ms else (RoomWake(str(room)),)
    if len(text) >= words.block_min:
        idle_ms = 0
    draft = Draft(
        id=EnvelopeId(derived(work.run.id, f"{SAID} {turn}")),
        sender=address.agent(work.agent.name, work.session.id),
        recipient=room,
        text=clipped_bytes(text, TEXT_BYTES_MAX),
        source="run",
        key=f"{SAID}/{work.run.id}/{turn}",
        kind=Kind.MESSAGE,  # not a reply: only the answer quotes the question
        trust=least((Trust.AGENT, trust_of_mail(work.envelopes))),
        deliver_at=from_ms(page.at_ms) + timedelta(milliseconds=idle_ms) if idle_ms else None,
    )
    return enter(page, draft).wakes
