"""How a question can be answered in a room: which answers there are, what a button bears, what a number means. Pure.

A button bears the id of the question as it was put to that one room: 32 digits that nobody can foresee, and that mean
nothing in any other room. Who pressed it, and whether they may, is judged when it is pressed.
"""

from __future__ import annotations

import re

from msgspec import Struct

from retinue.domain.delivery_part import Button
from retinue.domain.envelope import Envelope, Kind
from retinue.domain.grant import GrantScope
from retinue.domain.ids import ID_LENGTH, EnvelopeId, derived, short

DENY = "deny"
IN_ROOM = "question/room"  # as what a question stands in a room

PICK = "pick"

_DATA = re.compile(rf"([a-z]{{1,16}}[0-9]{{0,2}}):([0-9a-f]{{{ID_LENGTH}}})")


class Option(Struct, frozen=True):
    """One answer. `scope` is None for a no, and for a choice of a questionnaire."""

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
    """The envelope with which an approval is put to a room."""
    return EnvelopeId(derived(approval, IN_ROOM))


def options(question: Envelope) -> tuple[Option, ...]:
    """Which answers a question offers, in the order of its numbers: those that it names itself."""
    if question.context.questionnaire:
        return tuple(Option(each, f"{PICK}{number}", None) for number, each in enumerate(question.context.choices))
    if question.kind is not Kind.APPROVAL or not question.context.approval:
        return ()
    id_ = short(question.context.approval)
    longer = [each for each in _LONGER if f"/allow {id_} {each.word}" in question.text]
    return (_ONCE, _DENY, *longer)


def buttons(question: Envelope) -> tuple[tuple[Button, ...], ...]:
    """What can be pressed below it, in rows: yes and no, and below them for how long else. A choice has its own row."""
    offered = [Button(each.label, f"{each.word}:{question.id}") for each in options(question)]
    if question.context.questionnaire:
        return tuple((each,) for each in offered)
    return tuple(row for row in (tuple(offered[:2]), tuple(offered[2:])) if row)


def read_press(data: str) -> tuple[str, EnvelopeId] | None:
    """The word and the question that a button bore; None where it is none of ours."""
    found = _DATA.fullmatch(data)
    return (found[1], EnvelopeId(found[2])) if found else None


def by_word(question: Envelope, word: str) -> Option | None:
    return next((each for each in options(question) if each.word == word), None)


def by_number(question: Envelope, number: int) -> Option | None:
    offered = options(question)
    return offered[number - 1] if 1 <= number <= len(offered) else None


def numbers(question: Envelope) -> str:
    """What stands below a question where nothing can be pressed."""
    if question.context.questionnaire:  # it is answered in words there, which its agent reads
        return ""
    offered = [f"{number}: {each.label}" for number, each in enumerate(options(question), start=1)]
    return f"Or answer with a number. {', '.join(offered)}" if offered else ""
