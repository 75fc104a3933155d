"""The options of a question in a channel, and how a person chooses one: with a button, a keyword or a number.

The data of a button contains the id of the question. The id is different in every channel, and
cannot be guessed. When a button is pressed, the server checks who pressed it and whether this person
may answer.
"""

from __future__ import annotations

import re

from msgspec import Struct

from retinue.domain.delivery_part import Button
from retinue.domain.envelope import Envelope, EnvelopeKind
from retinue.domain.grant import GrantScope
from retinue.domain.ids import ID_LENGTH, EnvelopeId, derive_id, short_id

DENY = "deny"
CHANNEL_QUESTION = "question/room"  # the id of the envelope that asks in a channel is derived with this

CHOICE_PREFIX = "pick"

_BUTTON_DATA = re.compile(rf"([a-z]{{1,16}}[0-9]{{0,2}}):([0-9a-f]{{{ID_LENGTH}}})")


class AnswerOption(Struct, frozen=True):
    """One possible answer to a question.

    `scope` is how long the permission lasts. It is None for a denial and for an answer to a
    questionnaire.
    """

    label: str
    keyword: str
    scope: GrantScope | None


_ALLOW_ONCE = AnswerOption("Allow", "allow", GrantScope.ONCE)
_DENY = AnswerOption("Deny", DENY, None)
_ALLOW_LONGER = (
    AnswerOption("Allow: session", "session", GrantScope.SESSION),
    AnswerOption("Allow: always", "always", GrantScope.ALWAYS),
)


def channel_question_id(approval: str) -> EnvelopeId:
    """Return the id of the envelope that asks for an approval in a channel."""
    return EnvelopeId(derive_id(approval, CHANNEL_QUESTION))


def list_options(question: Envelope) -> tuple[AnswerOption, ...]:
    """Return the answers that a question offers, in the order of their numbers.

    An approval offers a longer grant only if its text names that grant.
    """
    if question.context.questionnaire:
        return tuple(
            AnswerOption(each, f"{CHOICE_PREFIX}{number}", None) for number, each in enumerate(question.context.choices)
        )
    if question.kind is not EnvelopeKind.APPROVAL or not question.context.approval:
        return ()
    id_ = short_id(question.context.approval)
    longer = [each for each in _ALLOW_LONGER if f"/allow {id_} {each.keyword}" in question.text]
    return (_ALLOW_ONCE, _DENY, *longer)


def build_buttons(question: Envelope) -> tuple[tuple[Button, ...], ...]:
    """Return the rows of buttons below a question.

    For an approval, the first row has the buttons to allow and deny, and the second row has those
    for longer grants. For a questionnaire, each choice has a separate row.
    """
    offered = [Button(each.label, f"{each.keyword}:{question.id}") for each in list_options(question)]
    if question.context.questionnaire:
        return tuple((each,) for each in offered)
    return tuple(row for row in (tuple(offered[:2]), tuple(offered[2:])) if row)


def parse_button_data(data: str) -> tuple[str, EnvelopeId] | None:
    """Return the option keyword and the question id from the data of a pressed button.

    Returns None if the data does not have the form of this server's button data.
    """
    found = _BUTTON_DATA.fullmatch(data)
    return (found[1], EnvelopeId(found[2])) if found else None


def find_option_by_keyword(question: Envelope, keyword: str) -> AnswerOption | None:
    return next((each for each in list_options(question) if each.keyword == keyword), None)


def find_option_by_number(question: Envelope, number: int) -> AnswerOption | None:
    offered = list_options(question)
    return offered[number - 1] if 1 <= number <= len(offered) else None


def format_numbered_options(question: Envelope) -> str:
    """Return the line that lists the numbered options, for platforms without buttons."""
    if question.context.questionnaire:  # in a channel, it is answered in free text, which the agent reads
        return ""
    offered = [f"{number}: {each.label}" for number, each in enumerate(list_options(question), start=1)]
    return f"Or answer with a number. {', '.join(offered)}" if offered else ""
