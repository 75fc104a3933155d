"""Validates questionnaires and their answers, and formats both as text."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

from retinue.domain.questionnaire import (
    Questionnaire,
    QuestionnaireAnswer,
    QuestionnaireField,
    QuestionnaireFieldKind,
)
from retinue.domain.storable_text import is_storable
from retinue.domain.trust import Trust
from retinue.policy.errors import QuestionnaireInvalid

TITLE_LENGTH_MAX = 200
FIELDS_MAX = 20
LABEL_LENGTH_MAX = 500
OPTIONS_MAX = 30
BUTTON_CHOICES_MAX = 10  # more buttons are hard to scan
OPTION_LENGTH_MAX = 200
ANSWER_LENGTH_MAX = 4_000  # characters of a text answer
NUMBER_MAX = 1e15  # beyond this, a JSON number may differ from what was typed

# No dot, @ or slash: a name appears in the person's text and must not look like an address that an agent was given.
_NAME = re.compile(r"[a-z][a-z0-9-]{0,39}")
_WITH_OPTIONS = (QuestionnaireFieldKind.CHOICE, QuestionnaireFieldKind.SEVERAL)
_CONTINUATION_INDENT = "\n  "


def check_questions(title: str, fields: Sequence[QuestionnaireField]) -> None:
    """Raise `QuestionnaireInvalid` if a question cannot be answered or exceeds a limit. The error says which field."""
    if not title.strip() or len(title) > TITLE_LENGTH_MAX or not is_storable(title):
        raise QuestionnaireInvalid("title", because=f"it must have 1 to {TITLE_LENGTH_MAX} characters")
    if not 1 <= len(fields) <= FIELDS_MAX:
        raise QuestionnaireInvalid("fields", because=f"there are {len(fields)}; a questionnaire has 1 to {FIELDS_MAX}")
    names = [field.name for field in fields]
    for number, field in enumerate(fields, start=1):
        if fault := _find_field_error(field):
            raise QuestionnaireInvalid(f"field {number}", because=fault)
        if names.index(field.name) < number - 1:
            raise QuestionnaireInvalid(f"field {number}", because=f"another field is named {field.name}")


def _find_field_error(field: QuestionnaireField) -> str:
    """Return what is wrong with a field of a questionnaire, or an empty string if the field is valid."""
    if not _NAME.fullmatch(field.name):
        return "its name must have 1 to 40 lowercase letters, digits and hyphens, and begin with a letter"
    if not field.label.strip() or len(field.label) > LABEL_LENGTH_MAX or not is_storable(field.label):
        return f"its label must have 1 to {LABEL_LENGTH_MAX} characters"
    if field.kind not in _WITH_OPTIONS and field.options:
        return f"a field of the kind {field.kind} has no options"
    if field.kind in _WITH_OPTIONS:
        if not 1 <= len(field.options) <= OPTIONS_MAX or len(set(field.options)) < len(field.options):
            return f"a field of the kind {field.kind} has 1 to {OPTIONS_MAX} different options"
        if not all(_is_option(option) for option in field.options):
            return f"an option must be one line of 1 to {OPTION_LENGTH_MAX} characters"
    return _find_limit_error(field)


def _is_option(option: str) -> bool:
    return bool(option.strip()) and option.isprintable() and len(option) <= OPTION_LENGTH_MAX and is_storable(option)


def _find_limit_error(field: QuestionnaireField) -> str:
    bounds = [bound for bound in (field.least, field.most) if bound is not None]
    if not bounds:
        return ""
    if field.kind in (QuestionnaireFieldKind.CHOICE, QuestionnaireFieldKind.YES_NO):
        return f"a field of the kind {field.kind} cannot have least or most"
    if not all(math.isfinite(bound) and abs(bound) <= NUMBER_MAX for bound in bounds):
        return "least and most must be numbers that can be stored"
    if len(bounds) == 2 and bounds[0] > bounds[1]:
        return "least is greater than most"
    most_possible = {
        QuestionnaireFieldKind.TEXT: ANSWER_LENGTH_MAX,
        QuestionnaireFieldKind.SEVERAL: len(field.options),
    }.get(field.kind)
    if most_possible is not None and field.least is not None and field.least > most_possible:
        return f"no answer can reach {field.least:g}"
    return ""


def list_button_choices(fields: Sequence[QuestionnaireField]) -> tuple[str, ...]:
    """Return the choices to show as buttons.

    There are none unless a single press can answer the whole questionnaire.
    """
    if len(fields) != 1:
        return ()
    match fields[0].kind:
        case QuestionnaireFieldKind.YES_NO:
            return ("Yes", "No")
        case QuestionnaireFieldKind.CHOICE if len(fields[0].options) <= BUTTON_CHOICES_MAX:
            return fields[0].options
        case _:
            return ()


def format_questionnaire(title: str, fields: Sequence[QuestionnaireField]) -> str:
    """Format a questionnaire as text for a channel, where it is answered in free text or with a button."""
    lines = [title]
    for field in fields:
        lines.append(f"- {field.label}" if len(fields) > 1 or field.label != title else "")
        lines += [f"    {number}. {option}" for number, option in enumerate(field.options, start=1)]
    return "\n".join(line for line in lines if line)


def find_invalid_answers(
    fields: Sequence[QuestionnaireField], answers: Mapping[str, QuestionnaireAnswer]
) -> dict[str, str]:
    """Return what is wrong with each invalid answer, by field name. Empty if all answers are valid."""
    found = {field.name: fault for field in fields if (fault := _find_answer_error(field, answers.get(field.name)))}
    known = {field.name for field in fields}
    return found | {name[:40]: "unknown field" for name in answers if name not in known}


def _is_empty(answer: QuestionnaireAnswer) -> bool:
    return answer is None or answer == [] or (isinstance(answer, str) and not answer.strip())


def _find_answer_error(field: QuestionnaireField, answer: QuestionnaireAnswer) -> str:
    if _is_empty(answer):
        return "an answer is required" if field.required else ""
    match field.kind:
        case QuestionnaireFieldKind.TEXT:
            return _find_text_error(field, answer)
        case QuestionnaireFieldKind.CHOICE:
            return "" if answer in field.options else "choose one of the options"
        case QuestionnaireFieldKind.SEVERAL:
            return _find_several_error(field, answer)
        case QuestionnaireFieldKind.NUMBER:
            return _find_number_error(field, answer)
        case QuestionnaireFieldKind.YES_NO:
            return "" if isinstance(answer, bool) else "answer yes or no"


def _find_text_error(field: QuestionnaireField, answer: QuestionnaireAnswer) -> str:
    if not isinstance(answer, str) or not is_storable(answer):
        return "it must be text"
    most = min(ANSWER_LENGTH_MAX, field.most if field.most is not None else ANSWER_LENGTH_MAX)
    return _check_limits(len(answer), field.least, most, "characters")


def _find_several_error(field: QuestionnaireField, answer: QuestionnaireAnswer) -> str:
    if not isinstance(answer, list) or len(set(answer)) < len(answer) or not set(answer) <= set(field.options):
        return "choose from the options, each at most once"
    return _check_limits(len(answer), field.least, field.most, "options")


def _find_number_error(field: QuestionnaireField, answer: QuestionnaireAnswer) -> str:
    if isinstance(answer, bool) or not isinstance(answer, int | float) or not math.isfinite(answer):
        return "it must be a number"
    if abs(answer) > NUMBER_MAX:
        return "the number is too large"
    return _check_limits(answer, field.least, field.most, "")


def _check_limits(size: float, least: float | None, most: float | None, unit: str) -> str:
    if least is not None and size < least:
        return f"at least {least:g} {unit}".rstrip()
    if most is not None and size > most:
        return f"at most {most:g} {unit}".rstrip()
    return ""


def drop_empty_answers(
    fields: Sequence[QuestionnaireField], answers: Mapping[str, QuestionnaireAnswer]
) -> dict[str, QuestionnaireAnswer]:
    """Return the answers in the order of the questions, without empty ones."""
    return {field.name: answers[field.name] for field in fields if not _is_empty(answers.get(field.name))}


def format_answers(questionnaire: Questionnaire, answers: Mapping[str, QuestionnaireAnswer]) -> str:
    """Format the answers as the person's message to the agent.

    It contains the names of the fields, but not their labels. Labels are the agent's text, perhaps
    written after it read untrusted content, and must not return as something that a person said.
    """
    lines = [f"Answers to questionnaire {questionnaire.id[:8]}:"]
    lines += [f"{field.name}: {_format_answer(answers.get(field.name))}" for field in questionnaire.fields]
    return "\n".join(lines)


def _format_answer(answer: QuestionnaireAnswer) -> str:
    match answer:
        case None:
            return "(not answered)"
        case bool():
            return "yes" if answer else "no"
        case list():
            return "; ".join(answer)
        case float() if answer.is_integer():
            return str(int(answer))
        case str():
            return answer.replace("\n", _CONTINUATION_INDENT)  # so that no line of an answer looks like the next field
        case _:
            return str(answer)


def decide_answer_trust(
    questionnaire: Questionnaire, answers: Mapping[str, QuestionnaireAnswer], person: Trust
) -> Trust:
    """Return the trust of the answers to a questionnaire.

    It is the person's trust, with one exception. Options are the agent's text. If the agent had read
    untrusted content before it wrote them, answers with a selected option are untrusted.
    """
    picked = any(field.kind in _WITH_OPTIONS and field.name in answers for field in questionnaire.fields)
    return Trust.UNTRUSTED if picked and questionnaire.trust is Trust.UNTRUSTED else person
