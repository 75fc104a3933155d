"""The ways to answer a question in a channel: its options, button data and option numbers.

Pure. A button carries the id of the question as asked in that one channel: 32 unpredictable hex digits
that are invalid in any other channel. Who pressed it, and whether they may answer, is checked at
the press.
"""

from __future__ import annotations

import re

from msgspec import Struct

from retinue.domain.delivery_part import Button
from retinue.domain.envelope import Envelope, Kind
from retinue.domain.grant import GrantScope
from retinue.domain.ids import ID_LENGTH, EnvelopeId, derived, short

DENY = "deny"
IN_ROOM = "question/room"  # derives the id of the envelope that asks the question in a channel

PICK = "pick"

_DATA = re.compile(rf"([a-z]{{1,16}}[0-9]{{0,2}}):([0-9a-f]{{{ID_LENGTH}}})")


class Option(Struct, frozen=True):
    """One answer to a question. `scope` is None for a denial and for a choice of a questionnaire."""

    label: str
    word: str
    scope: GrantScope | None


_ONCE = Option("Allow", "allow", GrantScope.ONCE)
_DENY = Option("Deny", DENY, None)
_LONGER = (
    Option("Allow: session", "session", GrantScope.SESSION),
    Option("Allow: always", "always", GrantScope.ALWAYS),
)


def question_in_room(approval: str) -> EnvelopeId:
    """Return the id of the envelope that asks an approval question in a channel."""
    return EnvelopeId(derived(approval, IN_ROOM))


def options(question: Envelope) -> tuple[Option, ...]:
    """Return the answers that a question offers, in the order of their numbers: only those that its
    text or context names.
    """
    if question.context.questionnaire:
        return tuple(Option(each, f"{PICK}{number}", None) for number, each in enumerate(question.context.choices))
    if question.kind is not Kind.APPROVAL or not question.context.approval:
        return ()
    id_ = short(question.context.approval)
    longer = [each for each in _LONGER if f"/allow {id_} {each.word}" in question.text]
    return (_ONCE, _DENY, *longer)


def buttons(question: Envelope) -> tuple[tuple[Button, ...], ...]:
    """Return the rows of buttons below a question: allow and deny, then longer grants.

    A questionnaire choice has its own row.
    """
    offered = [Button(each.label, f"{each.word}:{question.id}") for each in options(question)]
    if question.context.questionnaire:
        return tuple((each,) for each in offered)
    return tuple(row for row in (tuple(offered[:2]), tuple(offered[2:])) if row)


def read_press(data: str) -> tuple[str, EnvelopeId] | None:
    """Return the option keyword and the question id of a pressed button; None if the data is not ours."""
    found = _DATA.fullmatch(data)
    return (found[1], EnvelopeId(found[2])) if found else None


def by_word(question: Envelope, word: str) -> Option | None:
    return next((each for each in options(question) if each.word == word), None)


def by_number(question: Envelope, number: int) -> Option | None:
    offered = options(question)
    return offered[number - 1] if 1 <= number <= len(offered) else None


def numbers(question: Envelope) -> str:
    """Return the line that lists the numbered options, for platforms without buttons."""
    if question.context.questionnaire:  # answered there in free text, which its agent reads
        return ""
    offered = [f"{number}: {each.label}" for number, each in enumerate(options(question), start=1)]
    return f"Or answer with a number. {', '.join(offered)}" if offered else ""
